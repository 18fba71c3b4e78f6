"""Fonts to render words with: matplotlib's, and files of your own."""

import functools
import os
import string
from pathlib import Path

import matplotlib
from matplotlib.ft2font import FT2Font
from PIL import ImageFont

# The fonts shipped with matplotlib that have whole alphabets.
FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique"),
    *("DejaVuSansMono-BoldOblique", "DejaVuSerif", "DejaVuSerif-Bold"),
    *("DejaVuSerif-Italic", "DejaVuSerif-BoldItalic", "STIXGeneral", "STIXGeneralBol"),
    *("STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmr10", "cmb10", "cmti10", "cmss10", "cmtt10"),
)
# TeX's fonts have different characters at some codes, such as ¡ in place of <.
_OF_TEX = frozenset(string.ascii_letters + string.digits)


def font_path(font: str | os.PathLike) -> Path:
    """The file of a font.

    Args:
        font: One of `FONTS`, or the path of a TrueType or OpenType file.

    Raises:
        ValueError: If `font` is neither.
    """
    if font in FONTS:
        return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
    path = Path(font)
    if not path.is_file():
        raise ValueError(
            "`fonts` must be names of `data.FONTS` or paths of font files. Received: "
            f"{str(font)!r}, which is not a file"
        )
    return path


@functools.lru_cache(maxsize=256)
def font_characters(font: str | os.PathLike) -> frozenset[str]:
    """The characters that a font has.

    Args:
        font: As in `font_path`.

    Raises:
        ValueError: If the file is not a font.
    """
    path = font_path(font)
    try:
        codes = FT2Font(os.fspath(path)).get_charmap()
        ImageFont.truetype(os.fspath(path), 16)
    except (OSError, RuntimeError) as error:
        raise ValueError(
            "`fonts` must be TrueType or OpenType files. "
            f"Received: {str(font)!r}, which cannot be read ({error})"
        ) from error
    characters = frozenset(map(chr, codes))
    return characters & _OF_TEX if str(font).startswith("cm") else characters
