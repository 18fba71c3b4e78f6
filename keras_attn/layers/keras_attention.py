"""Records the scores of Keras' attention layers, and of subclasses as in KerasHub.

Legend: B batch, F axes without attention, N heads, G groups of heads, T query and S key
positions.
"""

import contextlib
import math
import threading
from collections.abc import Iterator

import keras
from keras import ops

from keras_attn.layers.recorder import (
    has_value,
    is_recording,
    record,
    record_attention_scores,
)

# The classes are changed for all threads.
_lock = threading.RLock()


@contextlib.contextmanager
def keras_attention_recorded(model: keras.Model) -> Iterator[None]:
    """Lets Keras' attention layers call `record`, as ours do, inside of this block.

    They are `MultiHeadAttention`, `GroupQueryAttention`, `Attention`,
    `AdditiveAttention`, and subclasses that compute scores as these do; and layers of
    the model with "attention" in their path that have a `Softmax` layer for their
    scores, as KerasHub has for Llama and Gemma. Layers return what they return
    otherwise: they compute scores in any case, or leave it to a fused operator, whose
    outputs are the same but for rounding.

    Args:
        model: The model that is called, built.
    """
    owners = {
        id(inner): layer
        for layer in model._flatten_layers()
        for inner in layer._layers
        if isinstance(inner, keras.layers.Softmax) and "attention" in (layer.path or "")
    }
    recording = {**_RECORDING, (keras.layers.Softmax, "call"): _of_softmax(owners)}
    with _lock:
        originals = {(owner, name): getattr(owner, name) for owner, name in recording}
        for (owner, name), original in originals.items():
            setattr(owner, name, recording[owner, name](original))
        try:
            yield
        finally:
            for (owner, name), original in originals.items():
                setattr(owner, name, original)


def _of_heads(original):
    """`MultiHeadAttention._compute_attention`, which records."""

    def compute_attention(
        self,
        query,
        key,
        value,
        attention_mask=None,
        training=None,
        return_attention_scores=False,
        **options,
    ):
        given = (self, query, key, value, attention_mask, training)
        if not is_recording():
            return original(*given, return_attention_scores, **options)
        with _computing_scores(self):
            outputs, scores = original(*given, True, **options)
        if has_value(scores):
            count = len(self._attention_axes)
            targets = math.prod(scores.shape[-2 * count : -count])
            sources = math.prod(scores.shape[-count:])
            # (B, F, N, T, S), of each several axes, to (B·F, N, T, S).
            record(self, ops.reshape(scores, (-1, self.num_heads, targets, sources)))
        return outputs, scores if return_attention_scores else None

    return compute_attention


def _of_groups(original):
    """`GroupedQueryAttention._compute_attention`, which records."""

    def compute_attention(self, *args, **options):
        if not is_recording():
            return original(self, *args, **options)
        is_wanted, self._return_attention_scores = self._return_attention_scores, True
        try:
            with _computing_scores(self):
                outputs, scores = original(self, *args, **options)
        finally:
            self._return_attention_scores = is_wanted
        record(self, scores)
        return outputs, scores

    return compute_attention


def _of_one(original):
    """`Attention._apply_scores`, which records."""

    def apply_scores(self, *args, **options):
        outputs, scores = original(self, *args, **options)
        record(self, scores[:, None])  # (B, T, S) -> (B, 1, T, S)
        return outputs, scores

    return apply_scores


def _of_softmax(owners):
    """`Softmax.call`, which records for the layer, by the id of its softmax."""

    def recording(original):
        def call(self, inputs, mask=None):
            outputs = original(self, inputs, mask)
            is_scores = id(self) in owners and len(outputs.shape) >= 4
            if is_scores and is_recording() and has_value(outputs):
                batch, *_, targets, sources = outputs.shape
                # (B, N, T, S) or (B, N, G, T, S) -> (B, N·G, T, S)
                scores = ops.reshape(outputs, (batch, -1, targets, sources))
                record(owners[id(self)], scores)
            return outputs

        return call

    return recording


@contextlib.contextmanager
def _computing_scores(layer) -> Iterator[None]:
    """Without the fused operator, with which Keras refuses to return scores.

    What a `Softmax` inside records is thrown away: `layer` records.
    """
    flash, layer._flash_attention = layer._flash_attention, False
    try:
        with record_attention_scores():
            yield
    finally:
        layer._flash_attention = flash


# `AdditiveAttention` is a subclass of `Attention`.
_RECORDING = {
    (keras.layers.MultiHeadAttention, "_compute_attention"): _of_heads,
    (keras.layers.GroupQueryAttention, "_compute_attention"): _of_groups,
    (keras.layers.Attention, "_apply_scores"): _of_one,
}
