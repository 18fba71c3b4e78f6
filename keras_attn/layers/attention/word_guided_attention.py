"""Attention to the locations of an image by the best-fitting word of each.

Legend: B batch, T words, S locations, D width of words and keys, E width of values.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_rank
from keras_attn.layers import recorder
from keras_attn.layers.attention.attention_checks import check_padding_mask
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.output_specs import caches_output_specs
from keras_attn.ops import both_masks, word_guided_weights


@keras.saving.register_keras_serializable("keras_attn")
@caches_output_specs
class WordGuidedAttention(BaseLayer):
    """`α = softmax_s(max_t q_t · k_s)`, context `Σ_s α_s v_s`.

    Each word scores each location, and the highest score of a location counts, so one
    relevant word is enough. The layer has no weights: words, keys and values are
    embedded beforehand.

    Args:
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        query: The words, (B, T, D).
        value: The locations to average, (B, S, E).
        key: The locations to compare with the words, (B, S, D).
        padding_mask: (B, T), True = a real word.
        return_attention_scores: Whether to return the probabilities and the
            correlations as well.

    Returns:
        The context, (B, E). With `return_attention_scores=True` also the probabilities
        α, (B, S), and the correlations `q_t · k_s`, (B, T, S), both float32.

    Raises:
        ValueError: If an input does not have 3 axes, `key` and `query` have different
            widths, or a mask has the wrong shape.

    Masking:
        The Keras mask of `query` is used as a `padding_mask`. A padded word never
        counts, and has correlations of 0. A row without a real word has probabilities
        and a context of zeros.

    Reference:
        Xu and Saenko 2016, "Ask, Attend and Answer: Exploring Question-Guided Spatial
        Attention for Visual Question Answering", section 3.1 (arXiv:1511.05234).
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(
        self,
        query,
        value,
        key,
        *,
        padding_mask=None,
        return_attention_scores=False,
        query_mask=None,
    ):
        check_rank("query", query, 3, "(batch, words, width)")
        check_rank("value", value, 3, "(batch, locations, width)")
        check_rank("key", key, 3, "(batch, locations, width)")
        if query.shape[-1] != key.shape[-1]:
            raise ValueError(
                "`key` must be as wide as `query`, because they are compared. "
                f"Received: key.shape={tuple(key.shape)}, "
                f"query.shape={tuple(query.shape)}"
            )
        batch, length = query.shape[:2]
        check_padding_mask("padding_mask", padding_mask, batch, length)
        weights, correlations = word_guided_weights(
            query, key, both_masks(padding_mask, query_mask)
        )
        row = ops.expand_dims(weights, 1)  # (B, 1, S)
        if recorder.is_recording():
            recorder.record(self, ops.expand_dims(row, 1))
        context = ops.squeeze(ops.matmul(ops.cast(row, value.dtype), value), 1)
        if return_attention_scores:
            return context, weights, correlations
        return context

    def compute_mask(self, query, previous_mask=None):
        return None
