"""Tokens as plot labels: visible, and in fonts that have their characters."""

import functools
import unicodedata
import warnings

from matplotlib import font_manager

_BASE_FAMILY = "DejaVu Sans"  # Comes with matplotlib.
# Tried in this order for characters that the base family lacks, if installed.
_FALLBACK_FAMILIES = (
    "Noto Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Noto Sans JP",
    "Noto Sans KR",
    "Noto Sans Arabic",
    "Noto Sans Devanagari",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "Arial Unicode MS",
    "Unifont",
    "Noto Emoji",
)
# Of the families above, one for each alphabet, to be advised where none is installed.
_FAMILY_OF = {
    "CJK": "Noto Sans CJK SC",
    "HIRAGANA": "Noto Sans CJK SC",
    "KATAKANA": "Noto Sans CJK SC",
    "HANGUL": "Noto Sans CJK SC",
    "ARABIC": "Noto Sans Arabic",
    "DEVANAGARI": "Noto Sans Devanagari",
}
_MISSING = "□"


@functools.cache
def font_families() -> tuple[str, ...]:
    """The installed font families for labels, in order of preference.

    matplotlib takes each character from the first family that has it, and would log a
    warning for each that is not installed.
    """
    installed = set(font_manager.fontManager.get_font_names())
    return (_BASE_FAMILY, *(name for name in _FALLBACK_FAMILIES if name in installed))


def readable(token: str) -> str:
    """Makes a token visible in a plot: as `drawable`, with spaces as "␣"."""
    return drawable(token).replace(" ", "␣")


def visible(token: str) -> str:
    """Makes a token visible in any font: control characters and spaces replaced."""
    return "".join(map(_escaped, token)).replace(" ", "␣")


def drawable(text: str) -> str:
    r"""Replaces what cannot be drawn.

    A control character becomes its escape ("\n"), and a character that no font has
    becomes "□", which is what matplotlib would draw. A warning names a font that has
    it, once for each font, where matplotlib would warn of each character.
    """
    drawn = list(map(_drawable, text))
    for character, shown in zip(text, drawn, strict=True):
        if shown == _MISSING != character:
            _advise(_family_for(character))
    return "".join(drawn)


def _family_for(character: str) -> str:
    """A family of fonts that has a character, as far as is known."""
    alphabet = unicodedata.name(character, "?").split()[0]
    other = "Noto Emoji" if ord(character) > 0xFFFF else "Unifont"
    return _FAMILY_OF.get(alphabet, other)


@functools.cache
def _advise(family: str) -> None:
    warnings.warn(
        f"No installed font has some characters, which are drawn as {_MISSING}. "
        f'Install the font "{family}" and start again; or write a page (.html), for '
        "which the browser has its own fonts.",
        stacklevel=2,
    )


@functools.cache
def _drawable(character: str) -> str:
    if not character.isprintable():
        return _escaped(character)
    known = any(font.get_char_index(ord(character)) for font in _fonts())
    return character if known else _MISSING


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


@functools.cache
def _fonts() -> list:
    return [
        font_manager.get_font(font_manager.findfont(family))
        for family in font_families()
    ]
