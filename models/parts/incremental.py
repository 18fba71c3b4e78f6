"""What decoders with key/value caches share: their state between two tokens.

    key_0, …      (B, N, L, H), the keys of each block
    value_0, …    (B, N, L, H), its values
    visible       (B, L) bool, which slots of the caches hold a real token
    position      (B,) int32, the position of the next token among the real ones
    cache_index   (B,) int32, the slot of the next token, the same in all rows

Slot and position differ where a prompt is padded: padding has a slot, which nobody
sees, but no position. So prompts of unequal length share a batch.

A step does not return its caches, only what it adds to them: `new_key_0`, …,
`new_value_0`, … (B, N, 1, H), for the slot `cache_index` (`decoding.next_state`).

Legend: B batch, T length, P prompt length, L length of a cache, N heads, H head size,
D width, V vocabulary.
"""

import keras
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.layers.pad_cache import PadCache
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
        caches: Of each block its keys and its values, (B, N, P, H).
        length: L.
    """
    real = ops.cast(padding_mask, "int32")
    pad = PadCache(length, name="cache_room")
    # The mask is padded as the caches are, so it needs as many axes.
    as_cache = ops.expand_dims(real, (1, 3))
    visible = PadCache(length, dtype="int32", name="visible_room")(as_cache)
    padded = [(pad(keys), pad(values)) for keys, values in caches]
    return {
        "visible": ops.cast(ops.reshape(visible, (-1, length)), "bool"),
        "position": ops.sum(real, axis=1),
        "cache_index": ops.sum(ops.ones_like(real), axis=1),
        **named(padded),
    }


def named(caches, prefix=""):
    """Names `<prefix>key_0`, `<prefix>value_0`, … for the pairs of every block."""
    return {
        f"{prefix}{part}_{index}": tensor
        for index, pair in enumerate(caches)
        for part, tensor in zip(("key", "value"), pair, strict=True)
    }


def cache_inputs(attentions, length, prefix=""):
    """Inputs for the keys and values of every attention, by name as in `named`."""
    pairs = [
        [
            (attention.num_key_value_heads, length, size)
            for size in (attention.key_dim, attention.value_dim)
        ]
        for attention in attentions
    ]
    dtype = attentions[0].compute_dtype
    return {
        name: keras.Input(shape, dtype=dtype, name=name)
        for name, shape in named(pairs, prefix).items()
    }


def pairs_of(inputs, prefix=""):
    """Keys and values of every block, from tensors by name as in `named`."""
    count = sum(name.startswith(f"{prefix}key_") for name in inputs)
    return [
        (inputs[f"{prefix}key_{index}"], inputs[f"{prefix}value_{index}"])
        for index in range(count)
    ]


def step_inputs(attentions, length):
    """The token and the state that a step begins with, by name.

    Args:
        attentions: The self-attention of every block.
        length: L.
    """
    return {
        "token_ids": keras.Input((), dtype="int32", name="token_ids"),
        "visible": keras.Input((length,), dtype="bool", name="visible"),
        "position": keras.Input((), dtype="int32", name="position"),
        "cache_index": keras.Input((), dtype="int32", name="cache_index"),
        **cache_inputs(attentions, length),
    }


class DecodingStep:
    """One step: what the blocks are called with, and the state that it leaves.

    Args:
        inputs: From `step_inputs`.

    Attributes:
        token_ids: (B, 1).
        positions: (B, 1).
        padding_mask: (B, L + 1), what the token sees: the caches, then itself.
        caches: Keys and values of every block, before the token.
    """

    def __init__(self, inputs):
        self._position = inputs["position"]
        self._index = inputs["cache_index"]
        self.token_ids = ops.expand_dims(inputs["token_ids"], 1)
        self.positions = ops.expand_dims(self._position, 1)
        self._visible = inputs["visible"]
        itself = ops.ones_like(self._visible[:, :1])
        self.padding_mask = ops.concatenate([self._visible, itself], axis=1)
        self.caches = pairs_of(inputs)

    def state_after(self, added):
        """The state after the token.

        Args:
            added: The keys and values of the token, from every block.
        """
        slots = ops.expand_dims(ops.arange(self._visible.shape[1], dtype="int32"), 0)
        own = ops.equal(slots, ops.expand_dims(self._index, 1))
        return {
            "visible": ops.logical_or(self._visible, own),
            "position": ops.add(self._position, 1),
            "cache_index": ops.add(self._index, 1),
            **named(added, "new_"),
        }
