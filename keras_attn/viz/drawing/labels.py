"""Tokens as plot labels: visible, and in fonts that have their characters."""

import functools

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
)


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
    becomes "□", which is what matplotlib would draw, with a warning for each.
    """
    return "".join(map(_drawable, text))


@functools.cache
def _drawable(character: str) -> str:
    if not character.isprintable():
        return _escaped(character)
    known = any(font.get_char_index(ord(character)) for font in _fonts())
    return character if known else "□"


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
