"""Attention over chosen axes of inputs with more than three.

Legend: B batch, F axes that are not attended over, T… and S… axes of queries and keys
that are, N heads, D width.
"""

import math
from collections.abc import Sequence
from typing import Any

from keras import ops


class FoldedAxes:
    """Folds inputs into sequences, and results back.

    Axes that are not attended over count as batch, and those that are become one
    sequence, so that (B, F…, T…, D) is (B·F, T, D). Inputs with three axes, and their
    results, stay as they are.

    Args:
        axes: The axes that are attended over, in order, from 1 to the one before the
            last. None = all of them.
        query: The query, (B, …, D).
        value: The value, (B, …, D). None = the query.
    """

    def __init__(self, axes: Sequence[int] | None, query, value=None):
        self.has_several = len(query.shape) > 3
        if not self.has_several:
            return
        value = query if value is None else value
        inner = range(1, len(query.shape) - 1)
        axes = inner if axes is None else axes
        self.axes = [axis % len(query.shape) for axis in axes]
        self.free = [axis for axis in inner if axis not in self.axes]
        self.order = [0, *self.free, *self.axes, len(query.shape) - 1]
        shape = ops.shape(query)
        self.batch = [shape[0], *(shape[axis] for axis in self.free)]
        self.queries = [shape[axis] for axis in self.axes]
        self.keys = [ops.shape(value)[axis] for axis in self.axes]

    def fold(self, inputs):
        """(B, …, D) -> (B·F, T, D); None -> None."""
        if inputs is None or not self.has_several:
            return inputs
        inputs = ops.transpose(inputs, self.order)
        length = _product([ops.shape(inputs)[-2 - i] for i in range(len(self.axes))])
        return ops.reshape(inputs, (-1, length, ops.shape(inputs)[-1]))

    def unfold(self, outputs, last: Sequence[int] | None = None):
        """(B·F, T, D) -> (B, …, D), or with the sizes `last` in place of D."""
        if not self.has_several and last is None:
            return outputs
        axes = ops.shape(outputs)[:2]
        if self.has_several:
            axes = (*self.batch, *self.queries)
        outputs = ops.reshape(outputs, (*axes, *(last or outputs.shape[2:])))
        if not self.has_several:
            return outputs
        order = [*self.order[:-1], *range(len(self.order) - 1, len(outputs.shape))]
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return ops.transpose(outputs, inverse)

    def unfold_scores(self, scores):
        """(B·F, N, T, S) -> (B, F…, N, T…, S…); None -> None."""
        if scores is None or not self.has_several:
            return scores
        heads = scores.shape[1]
        return ops.reshape(scores, (*self.batch, heads, *self.queries, *self.keys))

    def fold_padding(self, mask):
        """(B, …) -> (B·F, T), a mask of queries or keys; None -> None."""
        if mask is None or not self.has_several:
            return mask
        return ops.squeeze(self.fold(ops.expand_dims(mask, -1)), -1)

    def fold_mask(self, mask):
        """A mask that broadcasts to (B, F…, N, T…, S…) -> (B·F, N or 1, T, S).

        As in Keras, axes that are missing are before those of queries and keys. None
        stays None.
        """
        if mask is None or not self.has_several:
            return mask
        pairs = len(self.queries) + len(self.keys)
        rank = len(self.batch) + 1 + pairs
        while len(mask.shape) < rank:
            mask = ops.expand_dims(mask, max(len(mask.shape) - pairs, 0))
        heads = mask.shape[len(self.batch)]
        shape = (*self.batch, heads, *self.queries, *self.keys)
        lengths = (_product(self.queries), _product(self.keys))
        return ops.reshape(ops.broadcast_to(mask, shape), (-1, heads, *lengths))


def as_axes(axes: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """The argument `attention_axes` as a tuple, or None.

    Args:
        axes: One axis, or several.

    Raises:
        ValueError: If it is something else, or has no axis.
    """
    if axes is None:
        return None
    found = (axes,) if isinstance(axes, int) else axes
    if (
        isinstance(found, str)
        or not isinstance(found, Sequence)
        or not found
        or not all(isinstance(axis, int) and axis for axis in found)
    ):
        raise ValueError(
            "`attention_axes` must be an axis after the first one, or several. "
            f"Received: attention_axes={axes!r}"
        )
    return tuple(found)


def _product(sizes: Sequence[Any]):
    """The product of sizes, of which some may be tensors."""
    if all(isinstance(size, int) for size in sizes):
        return math.prod(sizes)
    product = sizes[0]
    for size in sizes[1:]:
        product = product * size
    return product
