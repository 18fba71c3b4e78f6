"""Incremental decoding with key/value caches: the state between two steps.

`prefill` reads the prompt once and returns the state; `step` takes one token per row
and the state, and returns the changes of the state.

    key_0, …      (B, G, L, H), the keys of each block
    value_0, …    (B, G, L, H), the values of each block
    visible       (B, L) bool, which slots of the caches hold a real token
    position      (B,) int32, the position of the next token
    cache_index   (B,) int32, the slot of the next token, the same in all rows

A slot is a place in the caches, one of L; a position counts the real tokens of a row.
They differ where a prompt is padded: padding has a slot, which is never attended to,
but no position. So prompts of different lengths can share a batch.

A step does not return its caches, only the entries to write: `new_key_0`, …,
`new_value_0`, …, (B, G, 1, H). `decoding.next_state` writes them at `cache_index`. The
argument `cache_index` of a block, by which the block writes, is None in a step.

Legend: B batch, P prompt length, L cache length, G key/value heads, H head size,
D width, V vocabulary.
"""

from keras import ops

from keras_attn.checks.arguments import check_positive
from keras_attn.layers.attention.pad_cache import PadCache
from keras_attn.layers.embeddings.token_pooling import TokenPooling


def check_cache_length(max_length, default, is_limit=False):
    """The length of the caches: `max_length`, or the default if it is None.

    Args:
        max_length: The requested length, or None.
        default: The length otherwise.
        is_limit: Whether the default is also the maximum length.

    Raises:
        ValueError: If `max_length` is not a positive integer, or exceeds the limit.
    """
    if max_length is None:
        return default
    max_length = check_positive("max_length", max_length)
    if is_limit and max_length > default:
        raise ValueError(
            f"`max_length` must be at most {default}, the positions of the model. "
            f"Received: max_length={max_length}"
        )
    return max_length


def next_token_logits(layers, features, padding_mask):
    """Logits (B, V) of the token after the prompt, from features (B, P, D)."""
    last = TokenPooling("last", name="last_token")(features, padding_mask)
    return layers["token_embedding"](last, reverse=True)


def state_after_prompt(padding_mask, caches, length):
    """The state that `prefill` returns.

    Args:
        padding_mask: (B, P), True = a real token of the prompt.
        caches: Keys and values of each block, a pair of (B, G, P, H).
        length: L.
    """
    is_real = ops.cast(padding_mask, "int32")
    # Zeros in the slots after the prompt.
    pad = PadCache(length, name="cache_room")
    # The mask is padded like the caches, so it needs as many axes: (B, 1, P, 1).
    visible = ops.expand_dims(is_real, (1, 3))
    visible = PadCache(length, dtype="int32", name="visible_room")(visible)
    padded = [(pad(keys), pad(values)) for keys, values in caches]
    return {
        "visible": ops.cast(ops.reshape(visible, (-1, length)), "bool"),
        "position": ops.sum(is_real, axis=1),
        "cache_index": ops.sum(ops.ones_like(is_real), axis=1),
        **name_caches(padded),
    }


def name_caches(caches, prefix=""):
    """Names `<prefix>key_0`, `<prefix>value_0`, … for the pairs of all blocks."""
    return {
        f"{prefix}{kind}_{index}": tensor
        for index, pair in enumerate(caches)
        for kind, tensor in zip(("key", "value"), pair, strict=True)
    }


def caches_by_block(tensors, prefix=""):
    """Keys and values of each block, from tensors named as by `name_caches`."""
    count = sum(name.startswith(f"{prefix}key_") for name in tensors)
    return [
        (tensors[f"{prefix}key_{index}"], tensors[f"{prefix}value_{index}"])
        for index in range(count)
    ]


class DecodingStep:
    """The inputs of one step in the form that blocks expect, and the state after it.

    A block is called with a sequence of length 1, the new token, and the caches of all
    earlier tokens. The new token's own key and value are not in the caches yet: the
    block attends to them alongside the caches and returns them, so no step copies a
    cache.

    ```python
    step = DecodingStep(token_ids, state)
    hidden = embed(step.token_ids, step.positions)
    for block, cache in zip(blocks, step.caches):
        hidden, entry = block(hidden, padding_mask=step.padding_mask, cache=cache, ...)
    changes = step.state_after(entries)
    ```

    Several tokens per row may be read at once, for `speculation`: axes of length 1 are
    then of length T.

    Args:
        token_ids: The last token, (B,), or several tokens, (B, T).
        state: The state before it, from `state_after_prompt` or the previous step.

    Attributes:
        token_ids: (B, 1), the new token.
        positions: (B, 1), its position.
        padding_mask: (B, L + 1), what the token attends to: the visible slots of the
            caches, then itself.
        caches: Keys and values of each block, a pair of (B, G, L, H), without the new
            token.
    """

    def __init__(self, token_ids, state):
        self._visible = state["visible"]
        self._position = state["position"]
        self._cache_index = state["cache_index"]
        position = ops.expand_dims(self._position, 1)
        if len(token_ids.shape) == 1:
            self.token_ids, self.positions = ops.expand_dims(token_ids, 1), position
            itself = ops.ones_like(self._visible[:, :1])
        else:
            ones = ops.ones_like(token_ids)
            self.token_ids = token_ids
            self.positions = ops.add(position, ops.cumsum(ones, axis=1) - 1)
            itself = ops.cast(ones, "bool")
        self.padding_mask = ops.concatenate([self._visible, itself], axis=1)
        self.caches = caches_by_block(state)

    def state_after(self, entries):
        """The changes of the state, which `step` returns.

        Args:
            entries: The new token's keys and values from each block, (B, G, 1, H).
        """
        slots = ops.expand_dims(ops.arange(self._visible.shape[1], dtype="int32"), 0)
        is_new = ops.equal(slots, ops.expand_dims(self._cache_index, 1))
        return {
            "visible": ops.logical_or(self._visible, is_new),
            "position": ops.add(self._position, 1),
            "cache_index": ops.add(self._cache_index, 1),
            **name_caches(entries, "new_"),
        }
