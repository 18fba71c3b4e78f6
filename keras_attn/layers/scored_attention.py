"""What additive and dot-product attention have in common.

Legend: B batch, T query length, S key length, D width.
"""

from keras import ops

from keras_attn.checks import check_matches, check_rank
from keras_attn.layers import recorder
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.output_specs import caches_output_specs
from keras_attn.ops import attention_weights


@caches_output_specs
class ScoredAttention(BaseLayer):
    """Attention with one row of scores a query: `c_t = Σ_s softmax(e_t)_s v_s`.

    A subclass says how a score comes about, in `project_key` (what can be computed
    once for all queries) and `scores`. Decoders call `project_key` once and `attend`
    at every step. `projects_key` says whether `project_key` does anything.

    Call arguments:
        query: (B, T, Dq), the states that look.
        value: (B, S, Dv), what they look at.
        key: (B, S, Dk), what scores are computed from. Default: `value`.
        projected_key: The result of `project_key`, to save computing it again.
        padding_mask: (B, S), True = a real key.
        attention_mask: (B, T, S), True = attend.
        return_attention_scores: Whether to return the probabilities as well.

    Returns:
        The context, (B, T, Dv); with `return_attention_scores=True` also the
        probabilities, (B, T, S).

    Raises:
        ValueError: where an input is not of rank 3 or a mask has another shape.

    Masking:
        A Keras mask that arrives with `value` counts as `padding_mask`. A query with
        nothing to attend to gets a context of zeros.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    @property
    def projects_key(self) -> bool:
        """Whether `project_key` returns something other than the key."""
        return True

    def project_key(self, key):
        """What the scores need of the keys, computed once: (B, S, …)."""
        raise NotImplementedError

    def scores(self, query, projected_key):
        """Scores before the softmax, (B, T, S)."""
        raise NotImplementedError

    def attend(self, query, value, projected_key, mask=None):
        """One look, without checks or recording.

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
        mask = merge_row_masks(
            (query.shape[0], query.shape[1], value.shape[1]),
            {"padding_mask": padding_mask, "value_mask": value_mask},
            attention_mask,
        )
        context, weights = self.attend(query, value, projected_key, mask)
        if recorder.is_recording():
            recorder.record(self, ops.expand_dims(weights, 1))
        return (context, weights) if return_attention_scores else context


def merge_row_masks(shape, padding_masks, attention_mask=None):
    """All that hides a key from a single-headed query, as one mask.

    Args:
        shape: Static (B, T, S), None for an unknown axis.
        padding_masks: The names of masks (B, S), True = a real key, to the masks or
            None.
        attention_mask: (B, T, S), True = attend.

    Returns:
        Boolean mask, broadcastable to (B, T, S), or None.
    """
    batch, length, keys = shape
    merged = None
    for name, mask in padding_masks.items():
        if mask is None:
            continue
        check_rank(name, mask, 2, "(batch, key length)")
        check_matches(name, mask.shape, (batch, keys), "(batch, key length)")
        row = ops.expand_dims(ops.cast(mask, "bool"), 1)
        merged = row if merged is None else ops.logical_and(merged, row)
    if attention_mask is not None:
        meaning = "(batch, query length, key length)"
        check_rank("attention_mask", attention_mask, 3, meaning)
        check_matches("attention_mask", attention_mask.shape, shape, meaning)
        mask = ops.cast(attention_mask, "bool")
        merged = mask if merged is None else ops.logical_and(merged, mask)
    return merged
