"""Pooling of a sequence into one vector: of one of its tokens, or of all of them.

Legend: B batch, T length, D width.
"""

from typing import Literal, get_args

import keras
from keras import ops

from keras_attn.checks.arguments import (
    check_choice,
    check_rank,
    check_shape,
    check_token_id,
)
from keras_attn.layers.attention.attention_checks import check_is_mask
from keras_attn.layers.base import BaseLayer

Pooling = Literal["first", "last", "mean", "max", "mean_sqrt_length", "weighted_mean"]
POOLINGS = get_args(Pooling)


@keras.saving.register_keras_serializable("keras_attn")
class TokenPooling(BaseLayer):
    """The vector of the first or the last real token, or of all real tokens.

    Args:
        pooling: `"first"` or `"last"` of the real tokens; or of all of them `"mean"`,
            `"max"` by feature, `"mean_sqrt_length"` (their sum, divided by the square
            root of their number) or `"weighted_mean"` (weights 1, 2, 3, … in their
            order).
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, D).
        padding_mask: (B, T), True = a real token; padding may be anywhere. Default:
            the Keras mask of the inputs, or else all tokens are real.

    Returns:
        (B, D). For a row without a real token, the vector at its first position with
        `"first"` and `"last"`, otherwise zeros.

    Raises:
        ValueError: If `pooling` is unknown, or an input has the wrong shape.
    """

    def __init__(self, pooling: Pooling = "mean", **kwargs):
        super().__init__(**kwargs)
        check_choice("pooling", pooling, POOLINGS)
        self.pooling = pooling

    def call(self, inputs, padding_mask=None, mask=None):
        padding_mask = mask_of_tokens(inputs, padding_mask, mask)
        if self.pooling not in ("first", "last"):
            real = ops.cast(padding_mask, "float32")
            # In float32: a long sum in half precision loses small terms.
            pooled = self._pool(ops.cast(inputs, "float32"), real)
            return ops.cast(pooled, inputs.dtype)
        real = ops.cast(padding_mask, "int32")
        positions = ops.arange(ops.shape(inputs)[1], dtype="int32")
        if self.pooling == "last":
            position = ops.max(ops.multiply(real, positions), axis=1)
        else:
            position = ops.argmax(real, axis=1)
        position = ops.reshape(ops.cast(position, "int32"), (-1, 1, 1))
        return ops.squeeze(ops.take_along_axis(inputs, position, axis=1), 1)

    def _pool(self, inputs, real):
        """Pools all real tokens; `real` (B, T) has zeros for the others."""
        if self.pooling == "max":
            is_real = ops.expand_dims(real, -1) > 0
            largest = ops.max(ops.where(is_real, inputs, -3e38), axis=1)
            return ops.where(ops.any(is_real, axis=1), largest, 0.0)
        weights = real
        if self.pooling == "weighted_mean":
            weights = ops.multiply(real, ops.cumsum(real, axis=1))
        total = ops.sum(ops.multiply(inputs, ops.expand_dims(weights, -1)), axis=1)
        count = ops.maximum(ops.sum(weights, axis=1, keepdims=True), 1.0)
        if self.pooling == "mean_sqrt_length":
            count = ops.sqrt(count)
        return ops.divide(total, count)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, inputs_shape, padding_mask_shape=None):
        check_token_shapes(inputs_shape, padding_mask=padding_mask_shape)
        return inputs_shape[0], inputs_shape[2]


@keras.saving.register_keras_serializable("keras_attn")
class EndTokenPooling(BaseLayer):
    """The vector at the end token of each row.

    Args:
        end_token_id: Id of the end token, whose first position counts. None = the
            position of the largest id, the first of equal ones: in CLIP's own
            vocabulary the end token is the last one.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, D).
        token_ids: (B, T), integers.

    Returns:
        (B, D); for a row without the end token the vector at its first position.

    Raises:
        ValueError: If `end_token_id` is not an integer of at least 0, or an input has
            the wrong shape.

    Reference:
        Radford et al. 2021, section 2.4 (arXiv:2103.00020).
    """

    def __init__(self, end_token_id: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.end_token_id = check_token_id("end_token_id", end_token_id)

    def call(self, inputs, token_ids):
        check_token_shapes(inputs.shape, token_ids=token_ids.shape)
        candidates = token_ids
        if self.end_token_id is not None:
            candidates = ops.cast(ops.equal(token_ids, self.end_token_id), "int32")
        # The first of equal ones.
        position = ops.cast(ops.argmax(candidates, axis=1), "int32")
        position = ops.reshape(position, (-1, 1, 1))
        return ops.squeeze(ops.take_along_axis(inputs, position, axis=1), 1)

    def compute_output_shape(self, inputs_shape, token_ids_shape):
        check_token_shapes(inputs_shape, token_ids=token_ids_shape)
        return inputs_shape[0], inputs_shape[2]


def mask_of_tokens(inputs, padding_mask, mask):
    """Which tokens are real; all, where nothing says it.

    Args:
        inputs: (B, T, D).
        padding_mask: (B, T), an argument; or None.
        mask: Keras' mask of the inputs, or None.

    Raises:
        ValueError: If one has the wrong shape, or the mask is none.
    """
    check_token_shapes(inputs.shape)
    if padding_mask is None:
        padding_mask = mask
    if padding_mask is None:
        return ops.ones_like(inputs[:, :, 0], dtype="bool")
    check_token_shapes(inputs.shape, padding_mask=padding_mask.shape)
    check_is_mask("padding_mask", padding_mask)
    return padding_mask


def check_token_shapes(inputs_shape, **shapes):
    """Raises unless inputs are (B, T, D), and what belongs to their tokens (B, T).

    Args:
        inputs_shape: The static shape of the inputs.
        **shapes: Other static shapes by the name of the argument, or None.

    Raises:
        ValueError: If a shape is wrong.
    """
    check_rank("inputs", inputs_shape, 3, "(batch, length, width)")
    for name, shape in shapes.items():
        if shape is not None:
            check_shape(name, shape, inputs_shape[:2], "(batch, length)")
