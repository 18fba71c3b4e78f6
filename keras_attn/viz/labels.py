"""Tokens as they may stand beside a plot: visible, and in fonts that have them."""

import functools

from matplotlib import font_manager

_BASE_FAMILY = "DejaVu Sans"  # Comes with matplotlib.
# Asked in this order for what the base family lacks, where they are installed.
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
    """The installed families that labels are set in, first choice first.

    matplotlib takes each character from the first that has it, and would log a
    complaint about each that is not installed.
    """
    installed = set(font_manager.fontManager.get_font_names())
    return (
        _BASE_FAMILY,
        *(name for name in _FALLBACK_FAMILIES if name in installed),
    )


def readable(token: str) -> str:
    """Makes a token visible: as `drawable`, and a space becomes "␣"."""
    return drawable(token).replace(" ", "␣")


def drawable(text: str) -> str:
    r"""Replaces what cannot be drawn.

    A control character becomes its escape ("\n"), and a character that no font has
    "□", which is what matplotlib would draw, with a warning for each.
    """
    return "".join(map(_drawable, text))


@functools.cache
def _drawable(character: str) -> str:
    if not character.isprintable():
        return character.encode("unicode_escape").decode("ascii")
    known = any(font.get_char_index(ord(character)) for font in _fonts())
    return character if known else "□"


@functools.cache
def _fonts() -> list:
    return [
        font_manager.get_font(font_manager.findfont(family))
        for family in font_families()
    ]
