"""What decoders with key/value caches share: their state between two tokens.

    cache_0, …    (B, 2, N, L, H), keys and values of each block
    visible       (B, L) bool, which places of the caches hold a real token
    position      (B,) int32, the number of the next token among the real ones
    cache_index   (B,) int32, its place in the caches, the same in all rows

Places and numbers differ where a prompt is padded: the padding has a place, which
nobody sees, but no number. So prompts of unequal length share a batch.

Legend: B batch, T length, P prompt length, L length of a cache, N heads, H head size,
D width, V vocabulary.
"""

import keras
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.layers.cache_room import CacheRoom
from keras_attn.layers.token_pooling import TokenPooling


def parts(model):
    """The layers of a model by name."""
    return {layer.name: layer for layer in model.layers}


def blocks(part, prefix):
    """The layers `<prefix>_0`, `<prefix>_1`, …, in order."""
    count = sum(name.startswith(f"{prefix}_") for name in part)
    return [part[f"{prefix}_{index}"] for index in range(count)]


def check_length(max_length, limit, is_hard=False):
    """The length of the caches: what is asked for, or what the model has.

    Raises:
        ValueError: for no whole number above zero, or more than a hard limit.
    """
    if max_length is None:
        return limit
    check_positive("max_length", max_length)
    if is_hard and max_length > limit:
        raise ValueError(
            f"`max_length` must be at most {limit}, the positions of the model. "
            f"Received: max_length={max_length}"
        )
    return max_length


def last_logits(part, hidden, padding_mask):
    """Logits (B, V) behind the last real token of features (B, P, D)."""
    last = TokenPooling("last", name="last_token")(hidden, padding_mask)
    return part["token_embedding"](last, reverse=True)


def state_behind(padding_mask, caches, length):
    """The state behind a prompt.

    Args:
        padding_mask: (B, P), True = a real token of the prompt.
        caches: Of each block its keys and values, (B, 2, N, P, H).
        length: L.
    """
    real = ops.cast(padding_mask, "int32")
    room = CacheRoom(length, name="cache_room")
    # The mask is lengthened as the caches are, so it needs as many axes.
    as_cache = ops.expand_dims(real, (1, 2, 4))
    visible = CacheRoom(length, dtype="int32", name="visible_room")(as_cache)
    return {
        "visible": ops.cast(ops.reshape(visible, (-1, length)), "bool"),
        "position": ops.sum(real, axis=1),
        "cache_index": ops.sum(ops.ones_like(real), axis=1),
        **{f"cache_{index}": room(cache) for index, cache in enumerate(caches)},
    }


def cache_shape(attention, length):
    """The shape of a layer's cache, without its batch."""
    return 2, attention.num_key_value_heads, length, attention.key_dim


def step_inputs(attentions, length):
    """The token and the state that a step begins with, by name.

    Args:
        attentions: The self-attention of every block.
        length: L.
    """
    inputs = {
        "token_ids": keras.Input((), dtype="int32", name="token_ids"),
        "visible": keras.Input((length,), dtype="bool", name="visible"),
        "position": keras.Input((), dtype="int32", name="position"),
        "cache_index": keras.Input((), dtype="int32", name="cache_index"),
    }
    for index, attention in enumerate(attentions):
        name = f"cache_{index}"
        inputs[name] = keras.Input(
            cache_shape(attention, length), dtype=attention.compute_dtype, name=name
        )
    return inputs


class Moment:
    """One step: what the blocks are called with, and the state that it leaves.

    Args:
        inputs: From `step_inputs`.

    Attributes:
        token_ids: (B, 1).
        positions: (B, 1).
        visible: (B, L), the token's own place included.
        caches: The cache arguments of every block.
    """

    def __init__(self, inputs):
        self._position = inputs["position"]
        self._index = inputs["cache_index"]
        self.token_ids = ops.expand_dims(inputs["token_ids"], 1)
        self.positions = ops.expand_dims(self._position, 1)
        length = inputs["visible"].shape[1]
        places = ops.expand_dims(ops.arange(length, dtype="int32"), 0)
        own = ops.equal(places, ops.expand_dims(self._index, 1))
        self.visible = ops.logical_or(inputs["visible"], own)
        count = sum(name.startswith("cache_") for name in inputs) - 1
        self.caches = [
            # All rows are at the same place, so one number is enough.
            {"cache": inputs[f"cache_{index}"], "cache_index": self._index[0]}
            for index in range(count)
        ]

    def state_after(self, caches):
        """The state behind the token; `caches` are what the blocks returned."""
        return {
            "visible": self.visible,
            "position": ops.add(self._position, 1),
            "cache_index": ops.add(self._index, 1),
            **{f"cache_{index}": cache for index, cache in enumerate(caches)},
        }
