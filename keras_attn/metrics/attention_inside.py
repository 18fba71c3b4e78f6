"""The share of attention on the object that a word or a question names.

Legend: B batch, … further axes such as glimpses or words, h and w rows and columns of
the grid of locations, H and W pixels, M objects, T words.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn.checks.arguments import check_pair
from keras_attn.checks.configuration import Configured
from keras_attn.checks.indices import known_values


def attention_inside(maps, masks, *, grid_size=None) -> tuple[Any, Any]:
    """`Σ_l α_l f_l / Σ_l α_l`, f_l the share of location l that the object covers.

    A location is one of h × w equal rectangles of the image, and its attention is
    spread evenly over it. A pixel on the border of two locations is divided between
    them, so any grid is exact for any number of pixels.

    Args:
        maps: Attention α ≥ 0, (B, …, h, w), or (B, …, h·w) with a `grid_size`. It need
            not sum to 1.
        masks: Pixels of the object, bool or in [0, 1], (B, H, W) for all maps of an
            image, or (B, …, H, W) with one mask for each of the first further axes.
        grid_size: h and w of flat maps, one number or two.

    Returns:
        The share of attention inside the object, (B, …), and the share of the image
        that the object covers, of the same shape: the score of uniform attention. Where
        the object is not visible, both are 0; without attention the first is 0. Both
        are float32.

    Raises:
        ValueError: If a shape differs from these; in an eager call, also if attention
            is negative or not finite, or masks are outside [0, 1].

    Example:
        ```python
        import numpy as np
        from keras_attn import metrics

        maps = np.full((1, 2, 4), 0.25)  # Two maps of 2 × 2 places.
        masks = np.zeros((1, 2, 8, 8))
        masks[..., :4] = 1  # Each word's object is the left half.
        inside, area = metrics.attention_inside(maps, masks, grid_size=2)  # 0.5, 0.5
        ```
    """
    maps, masks = _check(maps, masks, grid_size)
    rows, columns = ops.shape(maps)[-2:]
    covered = _covered(masks, rows, columns)
    for _ in range(len(maps.shape) - len(covered.shape)):
        covered = ops.expand_dims(covered, -3)
    inside = ops.divide_no_nan(_total(ops.multiply(maps, covered)), _total(maps))
    area = ops.add(ops.mean(covered, axis=(-2, -1)), ops.zeros_like(inside))
    return inside, area


@keras.saving.register_keras_serializable("keras_attn")
class AttentionInside(Configured, keras.metrics.Metric):
    """Mean share of attention inside the named object, over all maps so far.

    Its figures, in the logs and in `evaluate(return_dict=True)`, are

    - `attention_inside`: see the function of that name;
    - `object_area`: mean share of the image that the object covers, the score of
      uniform attention;
    - `object_visible`: the share of maps whose object is visible. Only these count in
      the other two figures.

    Args:
        grid_size: h and w of flat maps, one number or two; None for maps with rows and
            columns.
        max_area: Maximum share of the image, in (0, 1], that an object may cover.
            Larger objects count nowhere: even uniform attention is mostly inside them.
        name: Name of the metric.
        dtype: Dtype of the sums. Default: float32, under every policy.

    Call arguments:
        y_true: Masks (B, H, W), or (B, …, H, W).
        y_pred: Maps (B, …, h, w) or (B, …, h·w), such as the `attention_scores` of a
            model.
        sample_weight: (B,), or more of the axes (B, …), such as 0 for words that name
            nothing.

    Returns:
        A dictionary of scalars in [0, 1]; 0 before the first map.

    Raises:
        ValueError: If `max_area` is out of range, and as for `attention_inside`.

    Example:
        ```python
        import numpy as np
        from keras_attn import metrics

        metric = metrics.AttentionInside(grid_size=2)
        masks = np.zeros((1, 1, 8, 8))
        masks[..., :4] = 1  # The object is the left half.
        metric(masks, np.array([[[0.7, 0.1, 0.2, 0.0]]]))["attention_inside"]  # 0.9
        ```
    """

    def __init__(
        self, grid_size=None, *, max_area=1.0, name="attention_inside", dtype=None
    ):
        super().__init__(name=name, dtype=dtype or "float32")
        if grid_size is not None:
            grid_size = check_pair("grid_size", grid_size)
        if not 0 < max_area <= 1:
            raise ValueError(
                "`max_area` must be a share of the image, above 0 and at most 1. "
                f"Received: max_area={max_area!r}"
            )
        self.grid_size = grid_size
        self.max_area = max_area
        self.inside = self.add_variable((), initializer="zeros", name="inside")
        self.area = self.add_variable((), initializer="zeros", name="area")
        self.visible = self.add_variable((), initializer="zeros", name="visible")
        self.count = self.add_variable((), initializer="zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds the maps of a batch; see the class."""
        inside, area = attention_inside(y_pred, y_true, grid_size=self.grid_size)
        weights = ops.cast(ops.less_equal(area, self.max_area), inside.dtype)
        if sample_weight is not None:
            given = ops.cast(sample_weight, inside.dtype)
            for _ in range(len(inside.shape) - len(given.shape)):
                given = ops.expand_dims(given, -1)
            weights = ops.multiply(weights, given)
        visible = ops.multiply(weights, ops.cast(ops.greater(area, 0), inside.dtype))
        for total, values in (
            (self.inside, ops.multiply(inside, visible)),
            (self.area, ops.multiply(area, visible)),
            (self.visible, visible),
            (self.count, weights),
        ):
            total.assign_add(ops.cast(ops.sum(values), self.dtype))

    def result(self):
        """Returns the figures of the maps so far, by their names."""
        visible = self.visible.value
        return {
            "attention_inside": ops.divide_no_nan(self.inside.value, visible),
            "object_area": ops.divide_no_nan(self.area.value, visible),
            "object_visible": ops.divide_no_nan(visible, self.count.value),
        }


def named_objects(masks, is_named):
    """The pixels of all objects that a question names.

    Args:
        masks: bool (B, M, H, W).
        is_named: bool (B, M), as `Shapes.dataset("questions", …)` gives it.

    Returns:
        bool (B, H, W), False everywhere for a question that names no visible object.
    """
    chosen = ops.reshape(ops.cast(is_named, "bool"), (*ops.shape(is_named), 1, 1))
    return ops.any(ops.logical_and(ops.cast(masks, "bool"), chosen), axis=1)


def word_objects(masks, numbers):
    """The pixels of the object that each word of a caption describes.

    Args:
        masks: bool (B, M, H, W).
        numbers: int32 (B, T), the object of each word, or -1 for none, as
            `Shapes.dataset("captions", …)` gives it in `caption_objects`.

    Returns:
        bool (B, T, H, W), False everywhere for a word without an object.
    """
    numbers = ops.cast(numbers, "int32")
    index = ops.reshape(ops.maximum(numbers, 0), (*ops.shape(numbers), 1, 1))
    taken = ops.take_along_axis(ops.cast(masks, "bool"), index, axis=1)
    has_object = ops.reshape(numbers >= 0, (*ops.shape(numbers), 1, 1))
    return ops.logical_and(taken, has_object)


def _covered(masks, rows, columns):
    """The share of each location that is inside the masks, (B, …, h, w)."""
    height, width = ops.shape(masks)[-2:]
    by_row = ops.matmul(_overlaps(rows, height), masks)
    return ops.matmul(by_row, ops.transpose(_overlaps(columns, width)))


def _overlaps(cells, pixels):
    """The share of each cell that each pixel covers along one axis, (cells, pixels)."""
    size = ops.cast(pixels, "float32") / ops.cast(cells, "float32")
    start = ops.expand_dims(ops.arange(cells, dtype="float32"), 1) * size
    pixel = ops.expand_dims(ops.arange(pixels, dtype="float32"), 0)
    shared = ops.minimum(start + size, pixel + 1) - ops.maximum(start, pixel)
    return ops.maximum(shared, 0.0) / size


def _total(maps):
    return ops.sum(maps, axis=(-2, -1))


def _check(maps, masks, grid_size):
    """Maps (B, …, h, w) and masks (B, …, H, W) as float32."""
    _check_range("maps", maps, np.inf, "attention after the softmax")
    _check_range("masks", masks, 1, "pixels of an object, bool or in [0, 1]")
    maps = ops.cast(ops.convert_to_tensor(maps), "float32")
    masks = ops.cast(ops.convert_to_tensor(masks), "float32")
    shape, mask_shape = tuple(maps.shape), tuple(masks.shape)
    if grid_size is not None:
        rows, columns = check_pair("grid_size", grid_size)
        if len(shape) < 2 or shape[-1] not in (None, rows * columns):
            raise ValueError(
                f"`maps` must have {rows} x {columns} locations on their last axis, as "
                f"in `grid_size`. Received: maps.shape={shape}"
            )
        maps = ops.reshape(maps, (*ops.shape(maps)[:-1], rows, columns))
    leading, mask_leading = maps.shape[:-2], mask_shape[:-2]
    pairs = list(zip(leading, mask_leading, strict=False))
    is_prefix = 1 <= len(mask_leading) <= len(leading) and all(
        None in pair or pair[0] == pair[1] for pair in pairs
    )
    if not is_prefix:
        raise ValueError(
            "`masks` must be (batch, H, W) or have one mask for each of the first axes "
            "of `maps`, (batch, …, rows, columns); pass `grid_size` for flat maps. "
            f"Received: masks.shape={mask_shape}, maps.shape={shape}"
        )
    return maps, masks


def _check_range(name: str, tensor, highest: float, meaning: str) -> None:
    """Raises if values that are known are negative, too large, or not finite."""
    values = known_values(tensor)
    if values is None or values.dtype == bool or not values.size:
        return
    if not (np.isfinite(values).all() and 0 <= values.min() <= values.max() <= highest):
        raise ValueError(
            f"`{name}` must be {meaning}, finite and at least 0. "
            f"Received: values from {values.min()} to {values.max()}"
        )
