"""The loop that puts one token behind another, compiled or on the host.

Legend: B batch, K beams, L new tokens at most.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_attn.decoding.halves import Halves


@dataclass(frozen=True)
class Settings:
    """What a loop is compiled for.

    Attributes:
        strategy: How the next token is chosen.
        length: L.
        end_token_ids: The tokens that end a row.
        pad_token_id: What a row that is done goes on with.
    """

    strategy: Any
    length: int
    end_token_ids: tuple[int, ...]
    pad_token_id: int


def decode(
    halves: Halves,
    inputs: dict,
    uniform,
    settings: Settings,
    while_loop: Callable,
    on_token: Callable | None = None,
):
    """Prefill, then one `step` a token, until every row is done or L are chosen.

    Args:
        halves: What is driven.
        inputs: Of `prefill`.
        uniform: The strategy's chance, (B, L), or None.
        settings: See there.
        while_loop: `ops.while_loop`, or `host_while`.
        on_token: Called with the tokens of each step, on the host alone.

    Returns:
        The tokens, (B, L), and their scores, (B,).
    """
    strategy, length = settings.strategy, settings.length
    last = (settings.end_token_ids, settings.pad_token_id)
    beams = strategy.num_beams
    outputs = {**inputs, **halves.prefill(inputs)}

    def spread(tensor):  # (B, …) -> (B·K, …)
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
        name: tensor for name, tensor in state.items() if name in halves.step_outputs
    }
    batch = ops.shape(outputs["logits"])[0]
    search = strategy.start(batch, length, settings.pad_token_id, uniform)
    token, parents, search = strategy.advance(search, logits, 0, *last)
    changing = _follow(changing, parents)

    def unfinished(index, token, search, changing):
        all_done = ops.all(search["done"])
        return ops.logical_and(ops.less(index, length), ops.logical_not(all_done))

    def body(index, token, search, changing):
        outputs = halves.step({**state, **changing, "token_ids": token})
        token, parents, search = strategy.advance(
            search, outputs["logits"], index, *last
        )
        moved = {name: _like(outputs[name], old) for name, old in changing.items()}
        return index + 1, told(token), search, _follow(moved, parents)

    carry = (ops.convert_to_tensor(1, "int32"), told(token), search, changing)
    _, _, search, _ = while_loop(unfinished, body, carry)
    return strategy.finish(search, length)


def host_while(cond, body, carry):
    """`ops.while_loop`, in Python."""
    while bool(cond(*carry)):
        carry = body(*carry)
    return carry


def _follow(state, parents):
    """Each beam's state is that of the beam it continues."""
    if parents is None:
        return state
    return {name: ops.take(tensor, parents, axis=0) for name, tensor in state.items()}


def _like(tensor, old):
    """`tensor` with the static shape and dtype that a loop variable must keep."""
    if tuple(tensor.shape) != tuple(old.shape):
        tensor = ops.reshape(tensor, ops.shape(old))
    return ops.cast(tensor, old.dtype)


class CompiledLoop(keras.Model):
    """The loop as a Keras model, whose `predict` Keras compiles on every backend."""

    def __init__(self, halves: Halves, settings: Settings):
        # Not the global policy's precision: chance must not be rounded to it.
        super().__init__(name="generate", dtype="float32")
        self.halves = halves
        self.settings = settings
        # Keras hands a model's weights to compiled code if it can see them.
        self.prefill = halves.prefill
        self.step = halves.step

    def call(self, inputs):
        """The new tokens and their scores, by name."""
        inputs = dict(inputs)
        uniform = inputs.pop("uniform", None)
        token_ids, scores = decode(
            self.halves, inputs, uniform, self.settings, ops.while_loop
        )
        return {"token_ids": token_ids, "scores": scores}
