"""The state of a decoder after a step: what the step returned, and wrote to caches.

Legend: B batch, L length of a cache, N heads, H head size.
"""

import numpy as np
from keras import ops

# The state that says in which slot of the caches the next token is, and what the name
# of an output begins with that is written into a cache there.
CACHE_INDEX, NEW = "cache_index", "new_"


def next_state(state, outputs, *, in_place=False):
    """The state after a step, from the state before it and what the step returned.

    An output with the name of a state is its new value. An output `new_<name>`,
    (B, N, 1, H), is written into the cache `<name>`, (B, N, L, H), at the slot that
    `cache_index` was before the step. Every other state stays as it is.

    Args:
        state: Tensors or arrays by name, before the step.
        outputs: What the step returned.
        in_place: Whether to write into the caches of `state` where they are NumPy
            arrays, rather than into copies.

    Returns:
        The state after the step and the other outputs, such as `logits`, by name.

    Example:
        ```python
        state = {**inputs, **runner.prefill(inputs)}
        for _ in range(20):
            state["token_ids"] = state["logits"].argmax(-1)
            names = runner.signatures["step"].inputs
            outputs = runner.step({name: state[name] for name in names})
            state = next_state(state, outputs)
        ```
    """
    result = {**state, **outputs}
    for name in caches_in(outputs, state):
        result[name] = _written(
            state[name], result.pop(NEW + name), state[CACHE_INDEX][0], in_place
        )
    return result


def caches_in(outputs, state) -> list[str]:
    """Names of the caches among `state` that a step with these outputs writes to."""
    if CACHE_INDEX not in state:
        return []
    return [name for name in state if NEW + name in outputs]


def _written(cache, entry, slot, in_place):
    """`cache`, (B, N, L, H), with `entry`, (B, N, 1, H), at `slot`."""
    if not isinstance(cache, np.ndarray):
        entry = ops.cast(entry, cache.dtype)
        return ops.slice_update(cache, (0, 0, slot, 0), entry)
    if not in_place:
        cache = cache.copy()
    cache[:, :, int(slot)] = ops.convert_to_numpy(entry)[:, :, 0]
    return cache
