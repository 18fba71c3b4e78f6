"""Dense prediction of images of any size, tile by tile.

A module beside the packages, like `translator.py`: it calls a given model on NumPy
arrays, and imports none of the packages.

Legend: H and W pixels of an image, C channels, K channels of the output.
"""

import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_attn.checks.arguments import as_pair, check_pair, check_positive, is_whole

__all__ = ["predict_tiles"]


def __dir__():
    return __all__


def predict_tiles(
    model: Any,
    image,
    tile_size,
    *,
    overlap: Any = 0,
    output=None,
    batch_size: int = 1,
    verbose: bool = True,
):
    """Predicts an image in overlapping tiles, each in turn.

    Tiles overlap because the pixels at the edge of a tile depend on the pixels around
    it. Only one batch of tiles is read and predicted at a time, so `image` and `output`
    may be memory maps of any size.

    A model whose output is smaller than its input, such as a U-Net of `"valid"`
    convolutions, predicts the center of each tile. Beyond the border of the image its
    tiles are mirrored; the border pixel itself is not repeated.

    A model that keeps the size pads the edges of each tile. An `overlap` equal to the
    radius of its receptive field discards the pixels that this padding changed. Tiles
    end at the border of the image, so there the model pads as it pads the whole image.
    Each pixel then gets the value that it has in a prediction of the whole image,
    provided that tiles begin at multiples of the factor by which the model shrinks its
    maps. For this the factor must divide `overlap` and the step between tiles, which is
    the output size of a tile minus twice the overlap. If the model refuses the smaller
    tile that is left at the border, because it takes a single size or the tile is too
    small for it, mirrored pixels complete the tile.

    Args:
        model: A model with one input, (B, rows, columns, C), and one output, (B, rows',
            columns', K), of the same size or smaller by equal margins on both sides. If
            it has several outputs by name, `logits` is used. Or a `Runner` of such a
            model that was exported, for tiles of the size that it takes.
        image: (H, W, C), an array or a `numpy.memmap`, in the model's range of values.
        tile_size: Rows and columns of the model's input, one number or two.
        overlap: Pixels to discard at each edge of a tile's output, one number or two.
            Neighboring tiles share twice as many.
        output: (H, W, K), an array or a `numpy.memmap` that is written into. Default: a
            new float32 array.
        batch_size: Number of tiles that are predicted together.
        verbose: Whether to show a progress bar.

    Returns:
        `output`.

    Raises:
        TypeError: If `output` cannot be written into, or has no float dtype.
        ValueError: If `image` or `output` has the wrong shape, `model` has inputs or
            outputs other than these, or `overlap` leaves nothing of a tile.

    Example:
        ```python
        import numpy as np
        from keras_attn import models, tiling

        model = models.build_unet(num_channels=3, hidden_dims=(4, 8))
        image = np.random.uniform(size=(100, 150, 3))
        tiling.predict_tiles(model, image, 64)  # (100, 150, 2)
        ```

    Reference:
        Ronneberger et al. 2015, section 2, figure 2 (arXiv:1505.04597).
    """
    tile = check_pair("tile_size", tile_size)
    check_positive("batch_size", batch_size)
    if hasattr(model, "signatures"):
        model = _Exported(model)
    _check_image(image)
    shape = _tile_output(model, tile, image.shape[-1])
    margins = [
        (before - after) // 2 for before, after in zip(tile, shape, strict=False)
    ]
    cut = _overlap(overlap, shape)
    steps = [n - 2 * by for n, by in zip(shape, cut, strict=False)]
    output = _output(output, (*image.shape[:2], shape[-1]))
    keeps_size = not any(margins)
    by_size: dict[Any, list] = {}
    for place in _places(image.shape[:2], steps):
        start = [p - c - m for p, c, m in zip(place, cut, margins, strict=True)]
        size = tile
        if keeps_size:
            start, size = _inside(model, image, start, tile, steps, cut)
        by_size.setdefault(size, []).append((place, start))
    count = sum(map(len, by_size.values()))
    bar = keras.utils.Progbar(count, unit_name="tile") if verbose else None
    done = 0
    for size, tiles in by_size.items():
        for first in range(0, len(tiles), batch_size):
            batch = tiles[first : first + batch_size]
            inputs = np.stack([_read(image, start, size) for _, start in batch])
            found: Any = _scores(model.predict_on_batch(inputs))
            for (place, start), prediction in zip(batch, found, strict=True):
                # Where the output of the tile begins.
                offset = [
                    p - first - margin
                    for p, first, margin in zip(place, start, margins, strict=True)
                ]
                _write(output, prediction, place, offset, steps)
            done += len(batch)
            if bar is not None:
                bar.update(done)
    return output


class _Exported:
    """A runner, called as a Keras model is.

    Args:
        runner: See `predict_tiles`.

    Attributes:
        inputs: Shape and dtype of each input.
    """

    def __init__(self, runner: Any):
        names = list(runner.signatures)
        self._signature = "serve" if "serve" in names else names[0]
        info = runner.signatures[self._signature]
        self._runner, self._names = runner, list(info.inputs)
        self.inputs = list(info.inputs.values())
        self._output_shapes: dict[tuple, Any] = {}

    def predict_on_batch(self, images: np.ndarray) -> Any:
        """The outputs by name, with as many rows at a time as the file takes."""
        info = self.inputs[0]
        size = info.shape[0] or len(images)
        parts = []
        for first in range(0, len(images), size):
            part = images[first : first + size].astype(info.dtype)
            # A file that takes one number of rows gets copies of the last row.
            missing = np.repeat(part[-1:], size - len(part), axis=0)
            inputs = {self._names[0]: np.concatenate([part, missing])}
            parts.append(self._runner(inputs, self._signature))
        return {
            name: np.concatenate([part[name] for part in parts])[: len(images)]
            for name in parts[0]
        }

    def compute_output_shape(self, shape: tuple[int, ...]) -> Any:
        """The shapes that it returns for an image of this shape, which it runs on."""
        if shape not in self._output_shapes:
            try:
                found = self.predict_on_batch(np.zeros(shape, "float32"))
            except RuntimeError as error:  # An `ExportError`.
                raise ValueError(str(error)) from error
            self._output_shapes[shape] = {
                name: (None, *array.shape[1:]) for name, array in found.items()
            }
        return self._output_shapes[shape]


def _scores(outputs: Any) -> Any:
    """The output of a model; of several by name, `logits`; None without."""
    if not isinstance(outputs, dict):
        return outputs
    only = next(iter(outputs.values())) if len(outputs) == 1 else None
    return outputs.get("logits", only)


def _inside(model, image, start, tile, steps, cut):
    """The first row and column of a tile, and its size, ending at the image's border.

    Tiles at the border begin at the same multiples as tiles inside the image: multiples
    of the greatest common divisor of the step and the overlap. So tiles have one size
    inside the image and one at each border.

    Args:
        model: The model.
        image: (H, W, C).
        start: The first row and column, which may be outside the image.
        tile: Rows and columns of a tile.
        steps: Pixels between two tiles.
        cut: Pixels to discard at each edge.
    """
    moved, sizes = [], []
    for axis, (first, count) in enumerate(zip(start, tile, strict=True)):
        length, multiple = image.shape[axis], math.gcd(steps[axis], cut[axis])
        last = -(-max(length - count, 0) // multiple) * multiple
        inside = min(max(first, 0), last)
        size = list(tile)
        size[axis] = min(count, length - inside)
        is_taken = tuple(size) == tuple(tile) or _keeps(model, size, image.shape[-1])
        moved.append(inside if is_taken else first)
        sizes.append(size[axis] if is_taken else count)
    return moved, tuple(sizes)


def _keeps(model, size, channels) -> bool:
    """Whether a model takes a tile of this size, and its output has the same size."""
    try:
        return _tile_output(model, size, channels)[:2] == tuple(size)
    except ValueError:
        return False


def _places(size, steps) -> Iterator[tuple[int, int]]:
    """The first row and column of each tile's part of the output."""
    for row in range(0, size[0], steps[0]):
        for column in range(0, size[1], steps[1]):
            yield row, column


def _read(image, start, size):
    """The rows and columns from `start` on, mirrored beyond the border."""
    indices = [
        _mirrored(np.arange(first, first + count), length)
        for first, count, length in zip(start, size, image.shape, strict=False)
    ]
    # One contiguous part, so that a memory map reads no more than it must.
    (top, left), (bottom, right) = (
        [int(end(index)) for index in indices] for end in (np.min, np.max)
    )
    part = np.asarray(image[top : bottom + 1, left : right + 1], "float32")
    rows, columns = indices
    return part[rows - top][:, columns - left]


def _mirrored(index, length):
    """Indices into an axis that is mirrored at its first and last element."""
    if length == 1:
        return np.zeros_like(index)
    index = np.abs(index) % (2 * length - 2)
    return np.where(index < length, index, 2 * length - 2 - index)


def _write(output, prediction, place, offset, steps):
    """Writes the part of a prediction that is inside the image."""
    size = [
        min(step, length - start)
        for step, length, start in zip(steps, output.shape, place, strict=False)
    ]
    (row, column), (rows, columns), (top, left) = place, size, offset
    part = np.asarray(prediction)[top : top + rows, left : left + columns]
    output[row : row + rows, column : column + columns] = part


def _check_image(image):
    shape = getattr(image, "shape", None)
    if shape is None or len(shape) != 3 or 0 in shape:
        raise ValueError(
            "`image` must be an array (rows, columns, channels) without empty axes; "
            f"predict the images of a batch one by one. Received: image.shape={shape}"
        )


def _tile_output(model, tile, channels):
    """Rows, columns and channels of the output of one tile."""
    inputs = getattr(model, "inputs", None) or []
    expected = tuple(inputs[0].shape[1:]) if len(inputs) == 1 else ()
    given = (*tile, channels)
    if len(expected) != 3 or any(
        n not in (None, m) for n, m in zip(expected, given, strict=True)
    ):
        raise ValueError(
            "`model` must take one input, of tiles (batch, rows, columns, channels) "
            f"of the `tile_size` and the channels of `image`, {given}. Received: "
            f"inputs of the shapes {[tuple(x.shape) for x in inputs]}"
        )
    shape = tuple(_scores(model.compute_output_shape((1, *given))) or ())[1:]
    margins = [n - m for n, m in zip(tile, shape, strict=False) if m is not None]
    if len(shape) != 3 or len(margins) != 2 or any(n < 0 or n % 2 for n in margins):
        raise ValueError(
            "`model` must have an output (batch, rows, columns, channels), called "
            "`logits` if there are several, of the tile's size or smaller by the same "
            f"margin on both sides. Received: an output of {shape} for a tile of {tile}"
        )
    return shape


def _overlap(overlap, shape):
    """Rows and columns that are not used at each edge."""
    pair = as_pair(overlap)
    if pair is None or not all(
        is_whole(n) and 0 <= 2 * n < size for n, size in zip(pair, shape, strict=False)
    ):
        raise ValueError(
            "`overlap` must be a non-negative integer or a pair of them, (rows, "
            f"columns), less than half of the tile's output, {shape[:2]}. "
            f"Received: overlap={overlap!r}"
        )
    return pair


def _output(output, shape):
    if output is None:
        return np.empty(shape, "float32")
    if not isinstance(output, np.ndarray) or not output.flags.writeable:
        raise TypeError(
            "`output` must be a NumPy array or memory map that can be written into. "
            f"Received: output of the type {type(output).__name__}"
        )
    if not np.issubdtype(output.dtype, np.floating):
        raise TypeError(
            "`output` must have a float dtype, because predictions are scores. "
            f"Received: output.dtype={output.dtype}"
        )
    if output.shape != shape:
        raise ValueError(
            f"`output` must have the shape {shape}, the pixels of `image` and the "
            f"channels of the model's output. Received: output.shape={output.shape}"
        )
    return output
