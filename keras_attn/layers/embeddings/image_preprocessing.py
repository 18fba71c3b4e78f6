"""From images of any size to the inputs of a model, as Pillow computes them.

Legend: B batch, h and w rows and columns of the images, H and W rows and columns of the
result.
"""

from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_attn.checks.arguments import (
    check_choice,
    check_pair,
    check_positive,
    check_rank,
)
from keras_attn.checks.indices import known_values
from keras_attn.layers.base import BaseLayer
from keras_attn.ops.resampling import PASSES, RESAMPLING, resize_like_pillow

_AXES = "(batch, rows, columns, channels)"


@keras.saving.register_keras_serializable("keras_attn")
class ImagePreprocessing(BaseLayer):
    """`(crop(resize(images)) * scale - mean) / std`, with the pixels of Pillow.

    Published image models were trained on images that Pillow resized, in two passes
    that each round to integers; `tf.image.resize` differs in one of seven values. This
    layer computes the same integers as Pillow, in the graph of the model, so it ships
    with it. It has no weights and computes in float32 under every dtype policy. Rows
    and columns that the crop discards are never computed.

    If the size of the images is known, the matrices of both passes are constants of the
    graph. With unknown sizes they are computed in float64 from the size of each batch,
    on TensorFlow, in SavedModels and in ONNX; LiteRT has no operators for it, so
    `export` fixes the size there, and says so.

    Args:
        size: One number: the length of the shorter edge after resizing; the other
            becomes `size * longer // shorter`. Two numbers: height and width, for an
            image of any shape. None = no resizing.
        covers: Whether an image keeps its shape and becomes just as large as to cover a
            `size` of two numbers, as timm and open_clip do before they crop to a size
            that is not square. Otherwise it is squeezed to `size`.
        crop_size: Height and width of the part in the middle to keep, one number or
            two. A smaller image is padded with zeros before it is scaled. None = all of
            it.
        resample: `"bicubic"`, `"bilinear"` or `"lanczos"`, all with antialiasing.
        crop_offset: Where the crop begins if an odd number of rows or columns is left
            over: `"floor"`, the half rounded down, as in transformers; or `"round"`, to
            the even neighbor, as in torchvision, timm and open_clip.
        passes: The order of the two passes: `"auto"`, as in Pillow since version 13, or
            `"columns_first"`, as before. They differ, by 1 in some values of a
            photograph, where an image loses more than twice as many rows as columns.
        scale: Factor of the pixels.
        mean: What is subtracted then: one number, or one for each channel.
        std: What the result is divided by: one number, or one for each channel.
        **kwargs: `name`, … of a Keras layer.

    Call arguments:
        inputs: Images of one size with pixels 0 to 255, integers or floats,
            (B, h, w, C). Floats are rounded, and larger and smaller numbers clipped.
            Fractions of at most 1, as of images in [0, 1] or [-1, 1], are refused
            where their values are known.

    Returns:
        float32 (B, H, W, C).

    Raises:
        TypeError: If the images are booleans.
        ValueError: If an argument is out of range, `mean` or `std` has a different
            number of channels than the images, or known images are scaled already.

    Example:
        ```python
        import numpy as np
        from keras_attn import layers

        mean, std = [0.4815, 0.4578, 0.4082], [0.2686, 0.2613, 0.2758]  # CLIP's.
        layer = layers.ImagePreprocessing(224, crop_size=224, mean=mean, std=std)
        photos = np.random.randint(0, 256, (2, 480, 640, 3))
        layer(photos)  # (2, 224, 224, 3)
        ```
    """

    def __init__(
        self,
        size: int | Sequence[int] | None,
        *,
        crop_size: int | Sequence[int] | None = None,
        resample: Literal["bicubic", "bilinear", "lanczos"] = "bicubic",
        crop_offset: Literal["floor", "round"] = "floor",
        covers: bool = False,
        passes: Literal["auto", "columns_first"] = "auto",
        scale: float = 1 / 255,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        **kwargs,
    ):
        # Pixels in half precision would be rounded, and means too.
        super().__init__(**kwargs, autocast=False)
        if size is not None and not isinstance(size, Sequence):
            size = check_positive("size", size)
        self.size = list(check_pair("size", size)) if _is_list(size) else size
        self.crop_size = None
        if crop_size is not None:
            self.crop_size = list(check_pair("crop_size", crop_size))
        check_choice("resample", resample, RESAMPLING)
        check_choice("crop_offset", crop_offset, ("floor", "round"))
        check_choice("passes", passes, PASSES)
        self.resample, self.crop_offset, self.passes = resample, crop_offset, passes
        self.covers = bool(covers)
        if self.covers and (crop_size is None or not _is_list(self.size)):
            raise ValueError(
                "`covers` must be False without a `crop_size` and a `size` of two "
                f"numbers. Received: covers={covers!r}, size={size!r}, "
                f"crop_size={crop_size!r}"
            )
        self.scale = _finite("scale", scale)
        self.mean, self.std = _finite("mean", mean), _finite("std", std)
        if not np.all(np.asarray(self.std) > 0):
            raise ValueError(f"`std` must be positive. Received: std={std!r}")

    def build(self, input_shape):
        self._check_channels(input_shape[-1])

    def call(self, inputs):
        check_rank("inputs", inputs, 4, _AXES)
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if dtype == "bool":
            raise TypeError(
                "`inputs` must be pixels from 0 to 255. Received: inputs of dtype bool"
            )
        pixels = ops.cast(inputs, "float32")
        if keras.backend.is_float_dtype(dtype):
            _check_pixels(inputs)
            pixels = ops.clip(ops.round(pixels), 0.0, 255.0)
        pixels = self._resized(pixels)
        mean, std = (np.asarray(x, "float64") for x in (self.mean, self.std))
        # (pixels * scale - mean) / std, as one product and one sum.
        factor, shift = self.scale / std, -mean / std
        return pixels * np.float32(factor) + np.float32(shift)

    def compute_output_spec(self, inputs):
        check_rank("inputs", inputs, 4, _AXES)
        sides = self.crop_size or self._resized_sides(inputs.shape[1:3])
        shape = (inputs.shape[0], *sides, inputs.shape[3])
        return keras.KerasTensor(shape, "float32")

    def compute_output_shape(self, input_shape):
        """(B, H, W, C)."""
        sides = self.crop_size or self._resized_sides(input_shape[1:3])
        return (input_shape[0], *sides, input_shape[3])

    def visible_box(self, rows: int, columns: int) -> tuple[float, ...]:
        """The part of an image that the result shows: what is not cropped.

        Args:
            rows: h, rows of the image.
            columns: w, columns of the image.

        Returns:
            Left, top, right and bottom in pixels of the image; outside it where it is
            padded.
        """
        resized = self._resized_sides((rows, columns))
        crop = self.crop_size or resized
        top, left = map(self._offset, resized, crop)
        down, across = rows / resized[0], columns / resized[1]
        return (
            left * across,
            top * down,
            (left + crop[1]) * across,
            (top + crop[0]) * down,
        )

    def _resized(self, pixels):
        sides = [
            side if side is not None else ops.shape(pixels)[axis]
            for axis, side in enumerate(pixels.shape[1:3], 1)
        ]
        if self.size is None and self.crop_size is None:
            return pixels
        resized, window = self._resized_sides(sides), None
        if self.crop_size is not None:
            offsets = map(self._offset, resized, self.crop_size)
            window = (*offsets, *self.crop_size)
        return resize_like_pillow(pixels, resized, self.resample, window, self.passes)

    def _resized_sides(self, sides) -> tuple:
        """Rows and columns after resizing; numbers, tensors, or None for unknown."""
        if self.size is None:
            return tuple(sides)
        if isinstance(self.size, list) and not self.covers:
            return tuple(self.size)
        rows, columns = sides
        if rows is None or columns is None:
            return None, None
        if isinstance(self.size, list):
            return self._covering(rows, columns, self.size)
        shorter = min(rows, columns) if _are_known(sides) else ops.minimum(*sides)
        return rows * self.size // shorter, columns * self.size // shorter

    def _covering(self, rows, columns, size: list[int]) -> tuple:
        """Rows and columns of the smallest image of this shape that covers `size`."""
        if _are_known((rows, columns)):
            ratio = min(rows / size[0], columns / size[1])
            return round(rows / ratio), round(columns / ratio)
        wide = [ops.cast(side, "float64") for side in (rows, columns)]
        shares = [side / wanted for side, wanted in zip(wide, size, strict=True)]
        ratio = ops.minimum(*shares)
        # Both round halves to the even neighbor.
        return tuple(ops.cast(ops.round(side / ratio), "int32") for side in wide)

    def _offset(self, side, crop):
        """The first row or column of the crop; negative if the image is smaller."""
        rest = side - crop
        half = rest // 2
        if self.crop_offset == "floor":
            return half
        if isinstance(rest, int):
            return -(-rest // 2) if rest < 0 else round(rest / 2)
        # Halves go to the even neighbor.
        up = (rest % 2) * (half % 2)
        return ops.where(rest < 0, -(-rest // 2), half + up)

    def _check_channels(self, channels):
        for name in ("mean", "std"):
            value = getattr(self, name)
            if isinstance(value, list) and len(value) != channels:
                raise ValueError(
                    f"`{name}` must be one number or one for each channel of the "
                    f"images. Received: {name}={value}, images with {channels} channels"
                )


def _check_pixels(inputs) -> None:
    """Raises for fractions of at most 1, which would be rounded to black."""
    array = known_values(inputs)
    if array is None or not array.size:
        return
    low, high = float(array.min()), float(array.max())
    if high <= 1 and (array != np.rint(array)).any():
        raise ValueError(
            "`inputs` must be pixels from 0 to 255, as they are in files: multiply "
            "images in [0, 1] by 255, and do not normalize them before. "
            f"Received: inputs from {low:g} to {high:g}"
        )


def _is_list(value) -> bool:
    return isinstance(value, Sequence)


def _are_known(sides) -> bool:
    return all(isinstance(side, int) for side in sides)


def _finite(name: str, value: Any) -> Any:
    """A number as it is, and several as a list of floats."""
    numbers = np.asarray(value, dtype="float64")
    if numbers.ndim > 1 or not np.isfinite(numbers).all():
        raise ValueError(
            f"`{name}` must be a finite number or a list of them. "
            f"Received: {name}={value!r}"
        )
    return numbers.tolist()
