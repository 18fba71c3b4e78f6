"""Pooling of a sequence into one vector: of one of its tokens, or of all of them.

Legend: B batch, T length, D width.
"""

from typing import Literal, get_args

import keras
from keras import ops

from keras_attn.checks import check_choice, check_rank, is_whole
from keras_attn.layers.attention.attention_checks import check_is_mask
from keras_attn.layers.base import BaseLayer

Pooling = Literal["first", "last", "mean"]
POOLINGS = get_args(Pooling)


@keras.saving.register_keras_serializable("keras_attn")
class TokenPooling(BaseLayer):
    """The vector of the first or the last real token, or the mean of all real tokens.

    Args:
        pooling: `"first"`, `"last"` or `"mean"`.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, D).
        padding_mask: (B, T), True = a real token; padding may be anywhere. Default:
            the Keras mask of the inputs, or else all tokens are real.

    Returns:
        (B, D). For a row without a real token, zeros with `"mean"`, otherwise the
        vector at its first position.

    Raises:
        ValueError: If `pooling` is unknown, or `inputs` does not have 3 axes.
    """

    def __init__(self, pooling: Pooling = "mean", **kwargs):
        super().__init__(**kwargs)
        check_choice("pooling", pooling, POOLINGS)
        self.pooling = pooling

    def call(self, inputs, padding_mask=None, mask=None):
        check_rank("inputs", inputs, 3, "(batch, length, width)")
        if padding_mask is None:
            padding_mask = mask
        if padding_mask is None:
            padding_mask = ops.ones_like(inputs[:, :, 0], dtype="bool")
        check_rank("padding_mask", padding_mask, 2, "(batch, length)")
        check_is_mask("padding_mask", padding_mask)
        if self.pooling == "mean":
            real = ops.expand_dims(ops.cast(padding_mask, "float32"), -1)
            # In float32: a long sum in half precision loses small terms.
            total = ops.sum(ops.multiply(ops.cast(inputs, "float32"), real), axis=1)
            mean = ops.divide(total, ops.maximum(ops.sum(real, axis=1), 1.0))
            return ops.cast(mean, inputs.dtype)
        real = ops.cast(padding_mask, "int32")
        positions = ops.arange(ops.shape(inputs)[1], dtype="int32")
        if self.pooling == "last":
            position = ops.max(ops.multiply(real, positions), axis=1)
        else:
            position = ops.argmax(real, axis=1)
        position = ops.reshape(ops.cast(position, "int32"), (-1, 1, 1))
        return ops.squeeze(ops.take_along_axis(inputs, position, axis=1), 1)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, inputs_shape, padding_mask_shape=None):
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
        ValueError: If `end_token_id` is not an integer of at least 0, `inputs` does not
            have 3 axes, or `token_ids` does not have 2.

    Reference:
        Radford et al. 2021, section 2.4 (arXiv:2103.00020).
    """

    def __init__(self, end_token_id: int | None = None, **kwargs):
        super().__init__(**kwargs)
        if end_token_id is not None and (
            not is_whole(end_token_id) or end_token_id < 0
        ):
            raise ValueError(
                "`end_token_id` must be an integer of at least 0, or None. "
                f"Received: end_token_id={end_token_id!r}"
            )
        self.end_token_id = end_token_id

    def call(self, inputs, token_ids):
        check_rank("inputs", inputs, 3, "(batch, length, width)")
        check_rank("token_ids", token_ids, 2, "(batch, length)")
        candidates = token_ids
        if self.end_token_id is not None:
            candidates = ops.cast(ops.equal(token_ids, self.end_token_id), "int32")
        # The first of equal ones.
        position = ops.cast(ops.argmax(candidates, axis=1), "int32")
        position = ops.reshape(position, (-1, 1, 1))
        return ops.squeeze(ops.take_along_axis(inputs, position, axis=1), 1)

    def compute_output_shape(self, inputs_shape, token_ids_shape):
        return inputs_shape[0], inputs_shape[2]
