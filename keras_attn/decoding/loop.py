"""The loop that adds one token after another, compiled or on the host.

Legend: B batch, K beams, L length of the buffer of new tokens, E end tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn.decoding.halves import Halves
from keras_attn.decoding.state import NEW, next_state
from keras_attn.decoding.strategies import numbers_of, with_numbers

# End tokens that a compiled loop takes, or a multiple of so many.
_END_TOKENS = 4
# What the names of a loop's own inputs begin with, beside those of `prefill`.
_OWN = "generate/"


@dataclass(frozen=True)
class Settings:
    """How to decode. The numbers may be tensors.

    Attributes:
        strategy: How the next token is chosen.
        max_new_tokens: The most tokens to add.
        end_token_ids: The tokens that end a row, (E,).
        pad_token_id: What a row that is done goes on with.
    """

    strategy: Any
    max_new_tokens: Any
    end_token_ids: Any
    pad_token_id: Any


def decode(
    halves: Halves,
    inputs: dict,
    uniform,
    length: int,
    settings: Settings,
    while_loop: Callable,
    on_token: Callable | None = None,
):
    """Prefill, then one `step` a token, until every row is done or has enough.

    Args:
        halves: What is driven.
        inputs: Of `prefill`.
        uniform: The strategy's random numbers, (B, L), or None.
        length: L, at least `max_new_tokens`.
        settings: See there.
        while_loop: `ops.while_loop`, or `host_while`.
        on_token: Called with the tokens of each step, on the host alone.

    Returns:
        The tokens, (B, L), and their scores, (B,).
    """
    strategy, most = settings.strategy, settings.max_new_tokens
    last = (settings.end_token_ids, settings.pad_token_id)
    beams = strategy.num_beams
    outputs = {**inputs, **halves.prefill(inputs)}

    def spread(tensor):  # (B, …) -> (B·K, …)
        if isinstance(tensor, np.ndarray):
            return np.repeat(tensor, beams, axis=0)
        # A copy, where no row is repeated, leaves behind the mask Keras attached.
        return ops.repeat(tensor, beams, axis=0) if beams > 1 else ops.copy(tensor)

    def told(token):
        if on_token is not None:
            on_token(ops.convert_to_numpy(token))
        return token

    logits = spread(outputs["logits"])
    state = {
        name: spread(outputs[name])
        for name in halves.step_inputs
        # A new token each step, so what goes by this name in the inputs is no state.
        if name in outputs and name != "token_ids"
    }
    changing = {
        name: tensor
        for name, tensor in state.items()
        if {name, NEW + name} & set(halves.step_outputs)
    }
    batch = ops.shape(outputs["logits"])[0]
    search = strategy.start(batch, length, settings.pad_token_id, uniform)
    token, parents, search = strategy.advance(search, logits, 0, *last)
    changing = _follow(changing, parents)

    def unfinished(index, token, search, changing):
        all_done = ops.all(search["done"])
        return ops.logical_and(ops.less(index, most), ops.logical_not(all_done))

    def body(index, token, search, changing):
        before = {**state, **changing}
        # The caches are this loop's own, so arrays need no copy to be written to.
        outputs = next_state(
            before, halves.step({**before, "token_ids": token}), in_place=True
        )
        token, parents, search = strategy.advance(
            search, outputs["logits"], index, *last
        )
        moved = {name: _like(outputs[name], old) for name, old in changing.items()}
        return index + 1, told(token), search, _follow(moved, parents)

    carry = (ops.convert_to_tensor(1, "int32"), told(token), search, changing)
    _, _, search, _ = while_loop(unfinished, body, carry)
    return strategy.finish(search, most)


def host_while(cond, body, carry):
    """`ops.while_loop`, in Python."""
    while bool(cond(*carry)):
        carry = body(*carry)
    return carry


def _follow(state, parents):
    """Each beam's state is that of the beam it continues."""
    if parents is None:
        return state
    return {name: _take(tensor, parents) for name, tensor in state.items()}


def _take(tensor, rows):
    if not isinstance(tensor, np.ndarray):
        return ops.take(tensor, rows, axis=0)
    rows = ops.convert_to_numpy(rows)
    return tensor if (rows == np.arange(len(tensor))).all() else tensor[rows]


def _like(tensor, old):
    """`tensor` with the static shape and dtype that a loop variable must keep."""
    if tuple(tensor.shape) != tuple(old.shape):
        tensor = ops.reshape(tensor, ops.shape(old))
    if isinstance(tensor, np.ndarray):
        return tensor
    return ops.cast(tensor, old.dtype)


def loop_inputs(inputs: dict, uniform, length: int, settings: Settings) -> dict:
    """What a `CompiledLoop` is called with: all that may differ from call to call.

    Args:
        inputs: Of `prefill`.
        uniform: (B, max_new_tokens), or None.
        length: L.
        settings: With plain numbers.
    """
    ends = np.array(settings.end_token_ids, "int32")
    more = -len(ends) % _END_TOKENS
    own = {
        "max_new_tokens": np.int32(settings.max_new_tokens),
        # No token has the id -1.
        "end_token_ids": np.pad(ends, (0, more), constant_values=-1),
        "pad_token_id": np.int32(settings.pad_token_id),
        **numbers_of(settings.strategy),
    }
    if uniform is not None:
        unused = length - uniform.shape[1]
        own["uniform"] = np.pad(uniform, [(0, 0), (0, unused)])
    return {**inputs, **{_OWN + name: np.asarray(x) for name, x in own.items()}}


class CompiledLoop(keras.Model):
    """The loop as a Keras model, whose `predict` Keras compiles on every backend.

    Args:
        halves: What is driven.
        strategy: Its `numbers` are inputs, so those that it has here don't matter.
        length: L.
    """

    def __init__(self, halves: Halves, strategy, length: int):
        # Not the global policy's precision: random numbers must not be rounded to it.
        super().__init__(name="generate", dtype="float32")
        self.halves = halves
        self.strategy = strategy
        self.length = length
        # Keras hands a model's weights to compiled code if it can see them.
        self.prefill = halves.prefill
        self.step = halves.step

    def call(self, inputs):
        """The new tokens and their scores, by name; `inputs` from `loop_inputs`."""
        inputs, own = dict(inputs), {}
        for name in list(inputs):
            if name.startswith(_OWN):
                own[name.removeprefix(_OWN)] = inputs.pop(name)
        uniform = own.pop("uniform", None)
        limits = ("max_new_tokens", "end_token_ids", "pad_token_id")
        limits = {name: own.pop(name) for name in limits}
        settings = Settings(with_numbers(self.strategy, own), **limits)
        token_ids, scores = decode(
            self.halves, inputs, uniform, self.length, settings, ops.while_loop
        )
        return {"token_ids": token_ids, "scores": scores}
