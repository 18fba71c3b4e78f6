"""Base class of single-head attention: additive and dot-product.

Legend: B batch, T query length, S key length, D width.
"""

from keras import ops

from keras_attn.checks.arguments import check_rank
from keras_attn.layers import recorder
from keras_attn.layers.attention.attention_checks import (
    check_attention_mask,
    check_padding_mask,
)
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.output_specs import caches_output_specs
from keras_attn.ops import attention_weights, both_masks, merge_masks


@caches_output_specs
class ScoredAttention(BaseLayer):
    """Single-head attention, `c_t = Σ_s softmax(e_t)_s v_s`.

    A subclass defines the scores `e_ts` in `project_key`, the part that is computed
    once for all queries, and `scores`. Decoders call `project_key` once and `attend` at
    every step.

    Args:
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        query: (B, T, Dq), the decoder states.
        value: (B, S, Dv), the vectors to average.
        key: (B, S, Dk), the vectors to compute scores from. Default: `value`.
        projected_key: The result of `project_key`, to avoid computing it again.
        padding_mask: (B, S), True = a real key.
        attention_mask: (B, T, S), True = attend.
        return_attention_scores: Whether to return the probabilities as well.

    Returns:
        The context, (B, T, Dv); with `return_attention_scores=True` also the
        probabilities, (B, T, S).

    Raises:
        ValueError: If an input does not have 3 axes, or a mask has the wrong shape.

    Masking:
        The Keras mask of `value` is used as a `padding_mask`. A query whose keys are
        all masked gets a context of zeros.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    @property
    def projects_key(self) -> bool:
        """Whether `project_key` returns something other than the key."""
        return True

    def project_key(self, key):
        """The part of the scores that depends on the keys only, (B, S, …).

        Args:
            key: (B, S, Dk).
        """
        raise NotImplementedError

    def scores(self, query, projected_key):
        """Scores before the softmax, (B, T, S).

        Args:
            query: (B, T, Dq).
            projected_key: (B, S, …), from `project_key`.
        """
        raise NotImplementedError

    def attend(self, query, value, projected_key, mask=None):
        """`α = softmax(scores)`, 0 where masked, and `α value`, without checks.

        Args:
            query: (B, T, Dq).
            value: (B, S, Dv).
            projected_key: From `project_key`.
            mask: Boolean, broadcastable to (B, T, S).

        Returns:
            The context, (B, T, Dv), and the probabilities, (B, T, S).
        """
        weights = attention_weights(self.scores(query, projected_key), mask)
        return ops.matmul(ops.cast(weights, value.dtype), value), weights

    def call(
        self,
        query,
        value,
        key=None,
        *,
        projected_key=None,
        padding_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        value_mask=None,
    ):
        check_rank("query", query, 3, "(batch, query length, width)")
        check_rank("value", value, 3, "(batch, key length, width)")
        if projected_key is None:
            projected_key = self.project_key(value if key is None else key)
        batch, query_length, _ = query.shape
        key_length = value.shape[1]
        check_padding_mask("padding_mask", padding_mask, batch, key_length)
        check_padding_mask("value_mask", value_mask, batch, key_length)
        scores_shape = (batch, query_length, key_length)
        check_attention_mask("attention_mask", attention_mask, scores_shape, ranks=(3,))
        mask = merge_masks(
            padding_mask=both_masks(padding_mask, value_mask),
            attention_mask=attention_mask,
            per_head=False,
        )
        context, weights = self.attend(query, value, projected_key, mask)
        if recorder.is_recording():
            recorder.record(self, ops.expand_dims(weights, 1))
        return (context, weights) if return_attention_scores else context
