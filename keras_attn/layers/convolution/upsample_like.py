"""Enlarges a map to the size of a reference map.

Legend: B batch, h and w rows and columns, C channels.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_positive
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers.convolution.match_size import MatchSize, ResizeLike


@keras.saving.register_keras_serializable("keras_attn")
@described_as(ResizeLike)
class UpsampleLike(MatchSize):
    """Repeats each row and column, then crops or extends to the size of a reference.

    Excess rows and columns are cropped at the bottom and on the right; missing ones
    repeat the last row and column. So row i takes the values of row ⌊i / 2⌋ or of the
    last row, and columns likewise. This undoes both ways to halve an odd size, rounding
    up or down. For ⌈H / 2⌉ rows it equals PyTorch's
    `interpolate(size=H, mode="nearest")`.

    With `centered=True` half of the missing rows and columns, rounded down, are added
    at the top and on the left, however many are missing, and half of the excess,
    rounded up, is cropped there: for networks whose convolutions remove rows and
    columns on all sides.

    Args:
        max_missing: Maximum number of rows and columns that may be missing after the
            repetition: 1 undoes one halving, 3 undoes the second of two.
        centered: Whether to crop and extend on all sides; `max_missing` is then
            ignored.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Returns:
        (B, H, W, C).

    Raises:
        ValueError: If `inputs` or `reference` does not have 4 axes, or, unless
            centered, the reference is known to have more than 2h + `max_missing` rows
            or 2w + `max_missing` columns.
    """

    def __init__(self, max_missing: int = 1, centered: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.max_missing = check_positive("max_missing", max_missing)
        self.centered = centered

    def call(self, inputs, reference):
        self._check(inputs.shape, reference.shape)
        if self.centered:
            for axis, size in enumerate(ops.shape(reference)[1:3], start=1):
                inputs = _centered(inputs, axis, size)
            return inputs
        _, rows, columns, channels = ops.shape(inputs)
        # All with 4 axes, the maximum that every runtime handles.
        twice = ops.concatenate([inputs, inputs], axis=-1)
        twice = ops.reshape(twice, (-1, 1, 2 * columns, channels))  # (B * h, 1, 2w, C)
        twice = ops.concatenate([twice, twice], axis=1)
        outputs = ops.reshape(twice, (-1, 2 * rows, 2 * columns, channels))
        for axis, size in enumerate(ops.shape(reference)[1:3], start=1):
            outputs = self._fit(outputs, axis, size)
        return outputs

    def _fit(self, inputs, axis, size):
        """The first `size` rows (axis 1) or columns (axis 2), the last one repeated."""
        before = inputs.shape[axis]
        missing = self.max_missing
        if isinstance(size, int) and before is not None:
            if size == before:
                return inputs
            missing = max(0, size - before)
        if missing:
            last = inputs[:, -1:] if axis == 1 else inputs[:, :, -1:]
            inputs = ops.concatenate([inputs, *[last] * missing], axis=axis)
        return inputs[:, :size] if axis == 1 else inputs[:, :, :size]

    def _check(self, inputs_shape, reference_shape):
        super()._check(inputs_shape, reference_shape)
        pairs = zip(inputs_shape[1:3], reference_shape[1:3], strict=True)
        if not self.centered and any(
            None not in pair and pair[1] > 2 * pair[0] + self.max_missing
            for pair in pairs
        ):
            raise ValueError(
                "`reference` must have at most twice the rows and columns of "
                f"`inputs`, plus {self.max_missing}. Received: "
                f"inputs.shape={tuple(inputs_shape)}, "
                f"reference.shape={tuple(reference_shape)}"
            )


def _centered(inputs, axis, size):
    """Rows (axis 1) or columns (axis 2) cropped or repeated equally on both sides."""
    places = ops.shape(inputs)[axis]
    before = (size - 2 * places) // 2
    chosen = (ops.arange(size, dtype="int32") - before) // 2
    return ops.take(inputs, ops.clip(chosen, 0, places - 1), axis=axis)
