"""Records the scores of Keras' attention layers, and of subclasses as in KerasHub.

Keras has no hook for scores: a call returns them if it is asked to, which a user's
model does not do. So methods of Keras' classes are replaced for a while.

Legend: B batch, F axes without attention, N heads, G groups of heads, T query and S key
positions.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator

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
    the model with "attention" in their name, or in that of their class, that have a
    `Softmax` layer for their scores, as KerasHub has for Llama and Gemma. Layers return
    what they return otherwise: where a fused operator computes the outputs, which has
    no scores, these are computed besides.

    Args:
        model: The model that is called, built.
    """
    owners = {
        id(softmax): layer
        for layer in model._flatten_layers()
        if _is_attention(layer)
        for softmax in layer._layers
        if isinstance(softmax, keras.layers.Softmax)
    }
    # `AdditiveAttention` is a subclass of `Attention`.
    recording = {
        (keras.layers.MultiHeadAttention, "_compute_attention"): _of_heads,
        (keras.layers.GroupQueryAttention, "_compute_attention"): _of_groups,
        (keras.layers.Attention, "_apply_scores"): _of_one,
        (keras.layers.Softmax, "call"): _of_softmax(owners),
    }
    with _lock:
        # The names are private: where a later Keras has others, only ours record.
        originals = {place: getattr(*place) for place in recording if hasattr(*place)}
        try:
            for place, original in originals.items():
                setattr(*place, recording[place](original))
            yield
        finally:
            for place, original in originals.items():
                setattr(*place, original)


def _is_attention(layer: keras.Layer) -> bool:
    """Not a model: its `Softmax` may be of classes, as in an attention U-Net."""
    names = f"{layer.name} {type(layer).__name__}".lower()
    return "attention" in names and not isinstance(layer, keras.Model)


def _of_heads(original: Callable) -> Callable:
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
        def compute(with_scores):
            return original(
                self,
                query,
                key,
                value,
                attention_mask,
                training,
                with_scores,
                **options,
            )

        if not is_recording():
            return compute(return_attention_scores)
        with record_attention_scores():  # Not of the `Softmax` inside: `self` records.
            outputs, scores = compute(return_attention_scores)
            every = scores
            if scores is None:
                with _not_fused(self):
                    _, every = compute(True)
        if has_value(every):
            count = len(self._attention_axes)
            targets = math.prod(every.shape[-2 * count : -count])
            sources = math.prod(every.shape[-count:])
            # (B, F, N, T, S), of each several axes, to (B·F, N, T, S).
            record(self, ops.reshape(every, (-1, self.num_heads, targets, sources)))
        return outputs, scores

    return compute_attention


def _of_groups(original: Callable) -> Callable:
    """`GroupQueryAttention._compute_attention`, which records."""

    def compute_attention(self, *args, **options):
        if not is_recording():
            return original(self, *args, **options)
        with record_attention_scores():
            outputs, scores = original(self, *args, **options)
            every = scores
            if scores is None:
                # What the call asked for: the layer has it as a state.
                self._return_attention_scores = True
                try:
                    with _not_fused(self):
                        _, every = original(self, *args, **options)
                finally:
                    self._return_attention_scores = False
        record(self, every)
        return outputs, scores

    return compute_attention


def _of_one(original: Callable) -> Callable:
    """`Attention._apply_scores`, which records."""

    def apply_scores(self, *args, **options):
        outputs, scores = original(self, *args, **options)
        if is_recording() and has_value(scores):
            record(self, _with_one_axis_of_heads(scores))
        return outputs, scores

    return apply_scores


def _of_softmax(owners: dict[int, keras.Layer]) -> Callable[[Callable], Callable]:
    """`Softmax.call`, which records for the layer, by the id of its softmax."""

    def recording(original):
        def call(self, inputs, mask=None):
            outputs = original(self, inputs, mask)
            layer = owners.get(id(self))
            if layer is not None and is_recording() and has_value(outputs):
                rank = len(outputs.shape)
                axes = [self.axis] if isinstance(self.axis, int) else [*self.axis]
                # Over the keys: slot attention has its softmax over the queries.
                if rank >= 4 and axes in ([-1], [rank - 1]):
                    record(layer, _with_one_axis_of_heads(outputs))
            return outputs

        return call

    return recording


def _with_one_axis_of_heads(scores):
    """(B, T, S), (B, N, T, S) or (B, N, G, T, S) as (B, heads, T, S)."""
    batch, *_, targets, sources = scores.shape
    return ops.reshape(scores, (batch, -1, targets, sources))


@contextlib.contextmanager
def _not_fused(layer: keras.Layer) -> Iterator[None]:
    """Without the fused operator, with which Keras refuses to return scores."""
    flash, layer._flash_attention = layer._flash_attention, False
    try:
        yield
    finally:
        layer._flash_attention = flash
