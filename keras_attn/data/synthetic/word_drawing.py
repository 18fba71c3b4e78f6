"""Draws a word with curvature, rotation and perspective, character by character.

Legend: N characters, H rows and W columns of pixels. x runs to the right and y down;
the center of the pixel in row i and column j is (j + 0.5, i + 0.5).
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

_MEASURED_SIZE = 64.0  # The font size whose lengths are scaled.
_SMALLEST_SIZE = 3
_MARGIN = 2  # Pixels around a word.
_LUMA = np.array([0.299, 0.587, 0.114])  # Brightness of red, green and blue.


@dataclass(frozen=True)
class Look:
    """The parameters of one drawn word.

    Attributes:
        angle: Radians, clockwise.
        curvature: Height of the arc of the baseline divided by half the length of the
            word; above 0 the ends are lower than the middle.
        perspective: How much smaller the right end and the lower edge become, as a
            share, at half the length of the word from its middle.
        fill: Share of the image that the word fills, in (0, 1].
        text: Red, green and blue of the characters, in [0, 1].
        background: The same for the background.
        blur: Standard deviation of a Gaussian blur in pixels.
        noise: Standard deviation of noise on the pixels, in units of 0 to 255.
    """

    angle: float
    curvature: float
    perspective: tuple[float, float]
    fill: float
    text: np.ndarray
    background: np.ndarray
    blur: float
    noise: float


def draw_word(
    word: str,
    font: Path,
    look: Look,
    image_size: tuple[int, int],
    random: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws a word as large as the image and its look allow.

    Args:
        word: The characters.
        font: The file of the font.
        look: Geometry and colors.
        image_size: H and the maximum W.
        random: Draws the noise.

    Returns:
        The image, uint8 (H, W, 3), no wider than the word and its margin; and how much
        of each pixel each character covers, float32 (N, H, W) in [0, 1].

    Raises:
        ValueError: If `word` is too long for the image, or a character has no ink.
    """
    height, most_columns = image_size
    box, _, _ = _measure(word, _font(font, _MEASURED_SIZE))
    left, top, right, bottom = _extent(box, look)
    scale = look.fill * min(
        (height - 2 * _MARGIN) / (bottom - top),
        (most_columns - 2 * _MARGIN) / (right - left),
    )
    font_size = _MEASURED_SIZE * scale
    if font_size < _SMALLEST_SIZE:
        raise ValueError(
            f"A word must fit in a font of at least {_SMALLEST_SIZE} pixels: use "
            f"larger images or shorter words. Received: {word!r}, font={font.name!r}, "
            f"image_size={image_size}"
        )
    scaled = _font(font, font_size)
    box, positions, flat_characters = _measure(word, scaled)
    left, top, right, bottom = _extent(box, look)
    columns = min(most_columns, math.ceil(right - left) + 2 * _MARGIN)
    # The pixels' centers, from the middle of the bent word.
    x = np.arange(columns) + 0.5 - (columns - left - right) / 2
    y = np.arange(height) + 0.5 - (height - top - bottom) / 2
    x, y = np.meshgrid(x, y)
    u, v = _straightened(x, y, box, look)
    coverage = np.stack(
        [
            _sample(layer, u - corner[0], v - corner[1])
            for layer, corner in zip(flat_characters, positions, strict=True)
        ]
    )
    for character, covered in zip(word, coverage, strict=True):
        if covered.max() < 0.02:
            raise ValueError(
                "Every character must have ink: use another font. "
                f"Received: {character!r} of {word!r}, font={font.name!r}"
            )
    ink = coverage.max(0)[..., None]
    image = 255 * (look.background + ink * (look.text - look.background))
    pixels = Image.fromarray(np.clip(image + 0.5, 0, 255).astype("uint8"))
    if look.blur:
        pixels = pixels.filter(ImageFilter.GaussianBlur(look.blur))
    image = np.asarray(pixels, np.float32)
    image = image + random.normal(0, look.noise, image.shape)
    return np.clip(np.rint(image), 0, 255).astype("uint8"), coverage


def draw_color(luma: float, random: np.random.Generator) -> np.ndarray:
    """A random color of a given brightness in [0, 1]: red, green and blue."""
    tint = random.normal(size=3)
    tint -= _LUMA * (tint @ _LUMA) / (_LUMA @ _LUMA)  # Keeps the brightness.
    # The largest multiple of the tint that leaves every part in [0, 1].
    room = np.where(tint > 0, 1 - luma, luma) / np.maximum(np.abs(tint), 1e-9)
    return luma + tint * random.uniform(0, 0.8) * room.min()


def _font(path, size):
    # Without the optional layout engine, so that all machines draw the same image.
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


def _measure(word, font):
    """A word on a straight baseline, around its middle.

    Returns:
        Half the length and half the height of its ink; and for each character the x and
        y of the corner of its layer, and the layer, float32 (rows, columns) in [0, 1].
    """
    layers, boxes, corners = [], [], []
    for index, character in enumerate(word):
        start = font.getlength(word[:index])
        left, top, right, bottom = font.getbbox(character, anchor="ls")
        corner = math.floor(start + left) - 1, math.floor(top) - 1
        columns = math.ceil(start + right) - corner[0] + 1
        rows = math.ceil(bottom) - corner[1] + 1
        layer = Image.new("L", (columns, rows))
        origin = (start - corner[0], -corner[1])
        ImageDraw.Draw(layer).text(origin, character, 255, font, anchor="ls")
        layers.append(np.asarray(layer, np.float32) / 255)
        boxes.append((start + left, top, start + right, bottom))
        corners.append(corner)
    lefts, tops, rights, bottoms = zip(*boxes, strict=True)
    middle = (min(lefts) + max(rights)) / 2, (min(tops) + max(bottoms)) / 2
    half = max(rights) - middle[0], max(bottoms) - middle[1]
    corners = [(x - middle[0], y - middle[1]) for x, y in corners]
    return half, corners, layers


def _extent(half, look):
    """Left, top, right and bottom of a bent word, from points on its edges."""
    across, down = np.linspace(-1, 1, 33) * half[0], np.linspace(-1, 1, 9) * half[1]
    u = np.concatenate([across, across, np.full(9, -half[0]), np.full(9, half[0])])
    v = np.concatenate([np.full(33, -half[1]), np.full(33, half[1]), down, down])
    x, y = _bent(u, v, half, look)
    return x.min(), y.min(), x.max(), y.max()


def _bent(u, v, half, look):
    """From positions on the straight word to positions on the image."""
    length = max(half)
    v = v + look.curvature * u**2 / length
    x = u * math.cos(look.angle) - v * math.sin(look.angle)
    y = u * math.sin(look.angle) + v * math.cos(look.angle)
    depth = 1 + (look.perspective[0] * x + look.perspective[1] * y) / length
    return x / depth, y / depth


def _straightened(x, y, half, look):
    """The inverse of `_bent`."""
    length = max(half)
    depth = 1 / (1 - (look.perspective[0] * x + look.perspective[1] * y) / length)
    x, y = x * depth, y * depth
    u = x * math.cos(look.angle) + y * math.sin(look.angle)
    v = y * math.cos(look.angle) - x * math.sin(look.angle)
    return u, v - look.curvature * u**2 / length


def _sample(layer, x, y):
    """Bilinear interpolation of a layer at positions of any shape, zero outside."""
    rows, columns = layer.shape
    padded = np.pad(layer, 1)
    x = np.clip(x + 0.5, 0, columns + 0.999)  # The first column's center is at 1.
    y = np.clip(y + 0.5, 0, rows + 0.999)
    j, i = x.astype(int), y.astype(int)
    right, down = x - j, y - i
    above = padded[i, j] * (1 - right) + padded[i, j + 1] * right
    below = padded[i + 1, j] * (1 - right) + padded[i + 1, j + 1] * right
    return (above * (1 - down) + below * down).astype(np.float32)
