"""Texts and images as the inputs of an artefact; nothing here needs TensorFlow.

An artefact says how images become its inputs (`description.py`), and Pillow computes
the same pixels as the layer `ImagePreprocessing`.

Legend: B batch, h and w rows and columns of an image, H and W of an input, C channels.
"""

import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_attn.checks.inputs import MOST_NORMALIZED, check_normalized
from keras_attn.export.signature_info import (
    IMAGE_BYTES,
    TEXT,
    TEXT_PAIR,
    SignatureInfo,
    TensorInfo,
)

_TOKENS = "token_ids"
# Of a resized image before it is cropped: a line of a few kB could become gigabytes.
_MAX_PIXELS = 80_000_000


def is_pairs(given: Any) -> bool:
    """Whether these are pairs of texts: tuples of two."""
    rows = _rows(given)
    return bool(rows) and all(
        isinstance(row, tuple) and len(row) == 2 and all(map(_is_text, row))
        for row in rows
    )


def name_inputs(
    given: Any,
    info: SignatureInfo,
    steps: Mapping[str, Any] | None,
    tokenizer: Any,
    longest: int | None = None,
) -> dict[str, Any]:
    """What a runner was called with, as arrays by input name.

    Args:
        given: Texts, images, or the array of the only input.
        info: The signature to be called.
        steps: The arguments of `ImagePreprocessing`; None if they are unknown.
        tokenizer: What makes ids of texts, if the artefact does not.
        longest: The most ids that a row of the artefact may have, if it is known;
            longer texts are cut.

    Raises:
        ValueError: If the signature takes something else, or it is not known how the
            inputs are made.
        FileNotFoundError: If a file does not exist.
    """
    inputs = info.inputs
    if TEXT in inputs or _TOKENS in inputs:
        rows = _rows(given)
        if rows and (is_pairs(rows) or all(map(_is_text, rows))):
            return _named_texts(rows, inputs, tokenizer, longest)
    if IMAGE_BYTES in inputs:
        images = _images(given)
        if not all(isinstance(each, bytes) or _are_images(each) for each in images):
            raise ValueError(
                "`inputs` must be image files, their bytes, images of Pillow or arrays "
                f"of uint8. Received: inputs of type {type(given).__name__}"
            )
        return {IMAGE_BYTES: [_as_file(each) for each in images]}
    if len(inputs) == 1:
        [(name, only)] = inputs.items()
        if len(only.shape) == 4 and _are_images(given):
            return {name: _as_pixels(_images(given), only, steps)}
        if steps is not None and isinstance(given, np.ndarray):
            white = 255 * steps["scale"] / np.max(steps["std"])
            if white <= MOST_NORMALIZED:
                check_normalized(name, given)
        return {name: given}
    texts = ", or texts, a pair as a tuple," if _TOKENS in inputs else ""
    raise ValueError(
        f"`inputs` must be a dictionary, arrays by input name,{texts} for a signature "
        f"of the inputs {sorted(inputs)}. Received: inputs of type "
        f"{type(given).__name__}"
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _rows(given: Any) -> list:
    """The rows of a list; a text or a pair is one row."""
    if _is_text(given) or (isinstance(given, tuple) and all(map(_is_text, given))):
        return [given]
    is_list = isinstance(given, Sequence) and not isinstance(given, bytes)
    is_strings = isinstance(given, np.ndarray) and given.dtype.kind in "OU"
    return list(given) if is_list or is_strings else []


def _named_texts(
    rows: list, inputs: Mapping[str, TensorInfo], tokenizer: Any, longest: int | None
) -> dict[str, Any]:
    pairs = zip(*rows, strict=True) if is_pairs(rows) else [rows]
    texts = [list(column) for column in pairs]
    if TEXT in inputs:
        names = [name for name in (TEXT, TEXT_PAIR) if name in inputs]
        if len(names) != len(texts):
            raise ValueError(
                f"`inputs` must have {len(names)} texts a row, a pair as a tuple. "
                f"Received: {len(texts)} texts a row"
            )
        return dict(zip(names, texts, strict=True))
    if tokenizer is None:
        raise ValueError(
            "`inputs` are texts, and the artefact takes ids: pass its tokenizer, "
            "`load_runner(path, tokenizer=…)`. Received: "
            f"inputs={rows[0]!r}, … without a tokenizer"
        )
    length = inputs[_TOKENS].shape[1]
    limits = {longest, getattr(tokenizer, "max_length", None)} - {None}
    encoded = tokenizer.encode_batch(
        *texts,
        max_length=length or min(limits, default=None),
        pad_to_max_length=length is not None,
    )
    return {name: encoded[name] for name in inputs if name in encoded}


def _are_images(given: Any) -> bool:
    """Whether these are images as they are in files, not the floats of an input."""
    if isinstance(given, list | tuple):
        return bool(given) and all(map(_are_images, given))
    if hasattr(given, "dtype"):
        return np.asarray(given).dtype == np.uint8
    return isinstance(given, str | os.PathLike) or hasattr(given, "getexif")


def _images(given: Any) -> list:
    """The images of a batch; one image is a batch of one."""
    if isinstance(given, list | tuple):
        return list(given)
    # Several images, or the bytes of several files.
    is_batch = hasattr(given, "dtype") and np.ndim(given) in (1, 4)
    return list(given) if is_batch else [given]


def _as_file(image: Any) -> bytes:
    """The bytes of an image file."""
    from PIL import Image

    if isinstance(image, bytes):
        return image
    if isinstance(image, str | os.PathLike):
        return Path(image).read_bytes()
    array = _read(image, None)
    image = Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)
    with io.BytesIO() as file:
        image.save(file, "png")
        return file.getvalue()


def _as_pixels(
    images: list, info: TensorInfo, steps: Mapping[str, Any] | None
) -> np.ndarray:
    """Images as an input, (B, H, W, C).

    Raises:
        ValueError: If it is not known how they become an input, or they have unlike
            sizes.
    """
    if not images:
        raise ValueError("`inputs` must be at least one image. Received: none")
    arrays = [_read(image, info.shape[-1]) for image in images]
    if info.dtype != "uint8":
        if steps is None:
            raise ValueError(
                "`inputs` are images as in files, and the artefact does not say how "
                "they become its input: set `model.preprocessing` before the export, "
                "or pass normalized floats. Received: inputs of "
                f"{arrays[0].shape[0]} × {arrays[0].shape[1]} pixels"
            )
        arrays = [preprocess(array, steps) for array in arrays]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise ValueError(
            "`inputs` must be images of one size for this artefact: pass one at a "
            f"time. Received: images of the shapes {sorted(shapes)}"
        )
    return np.stack(arrays)


def _read(image: Any, channels: int | None) -> np.ndarray:
    """An image, upright, uint8 (h, w, C)."""
    from PIL import Image, ImageOps

    if hasattr(image, "dtype"):
        return _checked_pixels(image, channels)
    if not isinstance(image, str | os.PathLike):
        return _converted(ImageOps.exif_transpose(image), channels)
    try:
        with Image.open(image) as opened:
            return _converted(ImageOps.exif_transpose(opened), channels)
    except FileNotFoundError:
        raise
    except (OSError, SyntaxError) as error:  # The second, for a damaged PNG.
        raise ValueError(
            f"`inputs` must be images that Pillow reads. Received: {str(image)!r}, "
            f"{error}"
        ) from error


def _converted(image: Any, channels: int | None) -> np.ndarray:
    if image.mode.startswith(("I", "F")):
        raise ValueError(
            "`inputs` must be images of 8 bits a channel. "
            f"Received: an image of Pillow's mode {image.mode!r}"
        )
    if "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow would warn.
    array = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    return array.reshape(*array.shape[:2], -1)


def _checked_pixels(image: Any, channels: int | None) -> np.ndarray:
    array = np.asarray(image)
    known = (1, 3) if channels is None else (channels,)
    is_image = array.ndim == 3 and array.size and array.shape[-1] in known
    if array.dtype != np.uint8 or not is_image:
        raise ValueError(
            "`inputs` must be images of uint8, (rows, columns, "
            f"{' or '.join(map(str, known))} channels) each. "
            f"Received: {array.dtype} {array.shape}"
        )
    return array


def preprocess(image: np.ndarray, steps: Mapping[str, Any]) -> np.ndarray:
    """What `ImagePreprocessing(**steps)` computes of one image, by Pillow.

    Args:
        image: uint8 (h, w, C), with one or three channels.
        steps: The arguments of the layer.

    Returns:
        float32 (H, W, C).
    """
    sides = _resized_sides(image.shape[:2], steps)
    if math.prod(sides) > _MAX_PIXELS:
        raise ValueError(
            "`inputs` must be images that are not much longer than wide. "
            f"Received: {image.shape[0]} × {image.shape[1]} pixels, which become "
            f"{sides[0]} × {sides[1]}"
        )
    pixels = _resized(image, sides, steps)
    if steps["crop_size"] is not None:
        pixels = _cropped(pixels, steps)
    mean, std = (np.asarray(steps[name], "float64") for name in ("mean", "std"))
    factor, shift = steps["scale"] / std, -mean / std
    return pixels.astype("float32") * np.float32(factor) + np.float32(shift)


def _resized_sides(sides: tuple[int, ...], steps: Mapping[str, Any]) -> tuple[int, ...]:
    size = steps["size"]
    if size is None:
        return sides
    if isinstance(size, int):
        return tuple(side * size // min(sides) for side in sides)
    if not steps["covers"]:
        return tuple(size)
    ratio = min(side / wanted for side, wanted in zip(sides, size, strict=True))
    return tuple(round(side / ratio) for side in sides)


def _resized(
    image: np.ndarray, sides: tuple[int, ...], steps: Mapping[str, Any]
) -> np.ndarray:
    """Resized in two passes, whose order depends on Pillow's version otherwise."""
    from PIL import Image

    (rows, columns), before = sides, image.shape[:2]
    lost_rows, lost_columns = before[0] - rows, before[1] - columns
    is_rows_first = steps["passes"] == "auto" and lost_rows > max(0, 2 * lost_columns)
    between = (before[1], rows) if is_rows_first else (columns, before[0])
    method = Image.Resampling[steps["resample"].upper()]
    # A channel at a time, so that any number of them is resized.
    channels = [
        Image.fromarray(np.ascontiguousarray(image[..., channel]))
        .resize(between, method)
        .resize((columns, rows), method)
        for channel in range(image.shape[-1])
    ]
    return np.stack([np.asarray(channel) for channel in channels], axis=-1)


def _cropped(pixels: np.ndarray, steps: Mapping[str, Any]) -> np.ndarray:
    """The part in the middle; what a smaller image lacks is 0."""
    crop = steps["crop_size"]
    result = np.zeros((*crop, pixels.shape[-1]), pixels.dtype)
    places = []
    for side, kept in zip(pixels.shape[:2], crop, strict=True):
        rest = side - kept
        first = rest // 2
        if steps["crop_offset"] == "round":
            first = -(-rest // 2) if rest < 0 else round(rest / 2)
        source = slice(max(first, 0), min(first + kept, side))
        target = slice(source.start - first, source.stop - first)
        places.append((source, target))
    (rows, to_rows), (columns, to_columns) = places
    result[to_rows, to_columns] = pixels[rows, columns]
    return result
