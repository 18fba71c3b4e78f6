"""The decoding loop: prefill, then one `step` per token, compiled or on the host.

`decode` is the loop, `next_state` the state update after each step. The strategies are
in `strategies.py`, the compilation of the loop in `compiled.py`.

Legend: B batch, K beams, M length of the buffer of new tokens, E end tokens; of a
cache: L length, its number of slots, G key/value heads, H head size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from keras_attn.cache_names import CACHE_INDEX, NEW
from keras_attn.decoding.pair import DecodingFunctions
from keras_attn.kernels.gather import gather_rows


@dataclass(frozen=True)
class Settings:
    """The settings of decoding; the numbers may be tensors.

    Attributes:
        strategy: How the next token is chosen.
        max_new_tokens: Maximum number of tokens to add.
        end_token_ids: The tokens that end a row, (E,).
        pad_token_id: Written to a row after it has ended.
        num_results: n, the continuations of each prompt. Not a tensor.
    """

    strategy: Any
    max_new_tokens: Any
    end_token_ids: Any
    pad_token_id: Any
    num_results: int = 1


def random_numbers(settings: Settings, batch: int) -> np.ndarray | None:
    """The random numbers that `decode` needs, or None if the strategy needs none.

    Args:
        settings: Settings whose numbers are plain Python numbers.
        batch: B, the number of prompts.

    Returns:
        float32 (B, max_new_tokens, n): one row for each prompt, like its other inputs.
    """
    count, tokens = settings.num_results, settings.max_new_tokens
    uniform = settings.strategy.uniform(batch * count, tokens)
    if uniform is None:
        return None
    return uniform.reshape(batch, count, tokens).transpose(0, 2, 1)


def decode(
    functions: DecodingFunctions,
    inputs: dict,
    uniform,
    buffer_length: int,
    settings: Settings,
    while_loop: Callable,
    on_token: Callable | None = None,
):
    """Prefill, then one `step` per token, until every row has ended or is full.

    Args:
        functions: `prefill` and `step`.
        inputs: Inputs of `prefill`.
        uniform: The strategy's random numbers, (B, M, n), or None.
        buffer_length: M, at least `max_new_tokens`.
        settings: Strategy, number of tokens and special tokens.
        while_loop: `ops.while_loop`, or `host_while`.
        on_token: Called with the tokens of each step; only with `host_while`.

    Returns:
        The tokens, (B, n, M), and their scores, (B, n).
    """
    strategy, max_new_tokens = settings.strategy, settings.max_new_tokens
    special = (settings.end_token_ids, settings.pad_token_id)
    outputs = {**inputs, **functions.prefill(inputs)}
    # Of each prompt: its beams, or its samples.
    rows = max(strategy.num_beams, settings.num_results)
    logits = repeat_for_beams(outputs["logits"], rows)
    state = {
        name: repeat_for_beams(outputs[name], rows)
        for name in functions.step_inputs
        # `token_ids` is the new token of each step here, not the prompt.
        if name in outputs and name != "token_ids"
    }
    changing = changing_state(state, functions.step_outputs)

    def report_token(token):
        if on_token is not None:
            on_token(ops.convert_to_numpy(token))

    # Beams of a prompt are one row of the search, samples of it are as many.
    batch = ops.shape(outputs["logits"])[0] * (rows // strategy.num_beams)
    if uniform is not None:
        uniform = ops.transpose(uniform, (0, 2, 1))
        uniform = ops.reshape(uniform, (-1, buffer_length))  # (B·n, M)
    # `search` holds the tokens and scores so far; `advance` chooses the next token of
    # each row and, in beam search, the row that each beam continues, its parent. It
    # also sets `search["done"]` for rows that chose an end token, or in beam search for
    # rows with K finished continuations. `Sample` divides the logits by the
    # temperature, keeps the top k, then the top p, and inverts the cumulative
    # distribution at `uniform`.
    search = strategy.start(batch, buffer_length, settings.pad_token_id, uniform)
    token, parents, search = strategy.advance(search, logits, 0, *special)
    changing = reorder_by_parent(changing, parents, strategy.num_beams)
    report_token(token)

    def unfinished(index, token, search, changing):
        all_done = ops.all(search["done"])
        return ops.logical_and(
            ops.less(index, max_new_tokens), ops.logical_not(all_done)
        )

    def body(index, token, search, changing):
        before = {**state, **changing}
        outputs = functions.step({**before, "token_ids": token})
        # The caches belong to this loop, so arrays are updated without a copy.
        after = next_state(before, outputs, in_place=True)
        changed = loop_variables(after, changing)
        token, parents, search = strategy.advance(
            search, after["logits"], index, *special
        )
        report_token(token)
        changed = reorder_by_parent(changed, parents, strategy.num_beams)
        return index + 1, token, search, changed

    carry = (ops.convert_to_tensor(1, "int32"), token, search, changing)
    _, _, search, _ = while_loop(unfinished, body, carry)
    return strategy.finish(search, max_new_tokens, settings.num_results)


def host_while(cond, body, carry):
    """`ops.while_loop`, in Python."""
    while bool(cond(*carry)):
        carry = body(*carry)
    return carry


def next_state(state, outputs, *, in_place=False):
    """The state after a step, from the state before the step and its outputs.

    An output with the name of a state is its new value. An output `new_<name>`,
    (B, G, 1, H), is written into the cache `<name>`, (B, G, L, H):
    `cache[:, :, cache_index] = new`, with the `cache_index` of the state before the
    step. Entries of `extend`, (B, G, T, H), fill T slots from there. All other states
    are unchanged.

    Args:
        state: Tensors or arrays by name, before the step.
        outputs: The outputs of the step.
        in_place: Whether to write into the caches of `state` themselves if they are
            NumPy arrays, rather than into copies.

    Returns:
        The state after the step and the other outputs, such as `logits`, by name.

    Example:
        Needs a decoder that was exported:

        ```python
        import numpy as np
        from keras_attn import decoding, export

        runner = export.load_runner("gpt.onnx")
        inputs = {"token_ids": np.array([[5, 6]]), "padding_mask": np.array([[1, 1]])}
        state = {**inputs, **runner.prefill(inputs)}
        state["token_ids"] = state["logits"].argmax(-1)
        outputs = runner.step({x: state[x] for x in runner.signatures["step"].inputs})
        state = decoding.next_state(state, outputs)
        ```
    """
    result = {**state, **outputs}
    if CACHE_INDEX in state:
        cache_index = state[CACHE_INDEX][0]  # The same in all rows.
        for name in state:
            if NEW + name in outputs:
                entry = result.pop(NEW + name)
                result[name] = _update_cache(state[name], entry, cache_index, in_place)
    return result


def _update_cache(cache, entry, cache_index, in_place):
    """`cache`, (B, G, L, H), with `entry`, (B, G, T, H), from `cache_index` on."""
    if not isinstance(cache, np.ndarray):
        entry = ops.cast(entry, cache.dtype)
        return ops.slice_update(cache, (0, 0, cache_index, 0), entry)
    if not in_place:
        cache = cache.copy()
    entry, start = ops.convert_to_numpy(entry), int(cache_index)
    cache[:, :, start : start + entry.shape[2]] = entry
    return cache


def changing_state(state: dict, step_outputs) -> dict:
    """The part of the state that a step changes, all that a loop has to carry."""
    outputs = set(step_outputs)
    return {name: x for name, x in state.items() if {name, NEW + name} & outputs}


def repeat_for_beams(tensor, num_beams: int):
    """Each row once per beam, or per sample: (B, …) -> (B·K, …)."""
    if isinstance(tensor, np.ndarray):
        return np.repeat(tensor, num_beams, axis=0)
    # With one beam this is a copy, which drops the mask that Keras attached to the
    # tensor.
    return ops.repeat(tensor, num_beams, axis=0) if num_beams > 1 else ops.copy(tensor)


def reorder_by_parent(state: dict, parents, num_beams: int) -> dict:
    """Gives each beam the state of the beam it continues.

    Args:
        state: Tensors or arrays (B·K, …) by name.
        parents: Row of the parent of each beam, (B·K,); None if every beam continues
            itself.
        num_beams: K.
    """
    if parents is None:
        return state
    return {
        name: _take_rows(tensor, parents, num_beams) for name, tensor in state.items()
    }


def _take_rows(tensor, rows, num_beams):
    if not isinstance(tensor, np.ndarray):
        # A parent is a beam of the same example.
        shape = ops.shape(tensor)
        beams = ops.reshape(tensor, (-1, num_beams, *shape[1:]))
        chosen = gather_rows(beams, ops.reshape(rows % num_beams, (-1, num_beams)))
        return ops.reshape(chosen, shape)
    rows = ops.convert_to_numpy(rows)
    return tensor if (rows == np.arange(len(tensor))).all() else tensor[rows]


def loop_variables(after: dict, before: dict) -> dict:
    """The variables `before` an iteration, as they are `after` it, of the same form."""
    return {name: like(after[name], old) for name, old in before.items()}


def like(tensor, old):
    """`tensor` with the static shape and dtype that a loop variable must keep."""
    if tuple(tensor.shape) != tuple(old.shape):
        tensor = ops.reshape(tensor, ops.shape(old))
    if isinstance(tensor, np.ndarray):
        return tensor
    return ops.cast(tensor, old.dtype)
