"""A model with attention, small enough to compute its scores by hand."""

import keras
from keras import ops

from keras_attn.layers import recorder


class DotAttention(keras.layers.Layer):
    """`softmax(q·kᵀ)` in `heads` equal heads, recorded."""

    def __init__(self, heads=1, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads

    def call(self, query, value):
        weights = ops.softmax(ops.einsum("btd,bsd->bts", query, value), axis=-1)
        if recorder.is_recording():
            recorder.record(self, ops.repeat(weights[:, None], self.heads, axis=1))
        return ops.einsum("bts,bsd->btd", weights, value)


def make_model(*names, heads=1, dropout=0.3):
    """Source (B, S) and target (B, U) ids to logits (B, U, 5); one layer per name."""
    source = keras.Input((None,), dtype="int32", name="token_ids")
    target = keras.Input((None,), dtype="int32", name="decoder_token_ids")
    value = keras.layers.Embedding(11, 3)(source)
    query = keras.layers.Embedding(11, 3)(target)
    for name in names:
        query = query + DotAttention(heads, name=name)(query, value)
        query = keras.layers.Dropout(dropout)(query)
    return keras.Model(
        {"token_ids": source, "decoder_token_ids": target}, keras.layers.Dense(5)(query)
    )
