"""The one loop that drives any incremental pair with any strategy."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.decoding.pair import IncrementalPair
from keras_attn.decoding.strategies import Greedy

# What was compiled for a model lives as long as the model.
_compiled = weakref.WeakKeyDictionary()


class Generated(NamedTuple):
    """What `generate` returns.

    Attributes:
        token_ids: int32 (B, max_new_tokens), the new tokens with their end token;
            padding behind it.
        scores: float32 (B,), the log-probability of those tokens; for a beam divided
            by its length penalty.
    """

    token_ids: np.ndarray
    scores: np.ndarray


def generate(
    model,
    inputs,
    max_new_tokens,
    *,
    strategy=None,
    start_token_id=None,
    end_token_id=None,
    pad_token_id=0,
    jit_compile="auto",
):
    """Continues a prompt, one token at a time.

    Args:
        model: A generative model (one with `incremental()`), its `IncrementalPair`,
            or an exported pair from `export.load_runner`. The first two run as one
            compiled call, the third step by step on the host.
        inputs: Dictionary of arrays, as for `model`: `token_ids` (B, S), and for an
            encoder-decoder `decoder_token_ids` (B, P), the prompt. `padding_mask`
            may be left out: then every token is real.
        max_new_tokens: L, the most tokens to add.
        strategy: `Greedy()` (default), `Sample(...)` or `Beam(...)`.
        start_token_id: The prompt of an encoder-decoder, if `inputs` have none.
        end_token_id: The token that ends a row. None = none does.
        pad_token_id: What fills a row behind its end.
        jit_compile: Whether XLA compiles the loop. "auto" = on JAX or an accelerator.

    Returns:
        `Generated(token_ids, scores)`.

    Raises:
        TypeError: for a model that can't decode, or no strategy.
        ValueError: for missing, unknown or empty inputs, or more tokens than the
            model has positions for.

    Example:
        ```python
        answer = generate(
            model, {"token_ids": ids}, 20, strategy=Beam(4), start_token_id=1,
            end_token_id=2,
        )
        ```
    """
    strategy = Greedy() if strategy is None else strategy
    check_positive("max_new_tokens", max_new_tokens)
    _check_strategy(strategy)
    keeps = isinstance(model, (keras.Model, IncrementalPair))
    cache = _compiled.setdefault(model, {}) if keeps else {}
    if "halves" not in cache:
        cache["halves"] = _halves(model)
    halves = cache["halves"]
    inputs = _check_inputs(halves, inputs, start_token_id)
    batch, prompt_length = inputs[halves.prompt].shape
    if halves.max_length is not None:
        left = halves.max_length - prompt_length
        if max_new_tokens > left:
            raise ValueError(
                "`max_new_tokens` reaches beyond the model's "
                f"{halves.max_length} positions; at most {left} fit behind this "
                f"prompt. Received: max_new_tokens={max_new_tokens}, "
                f"prompt length={prompt_length}"
            )
    # No token has this id, so no row ever ends.
    end_token_id = -1 if end_token_id is None else end_token_id
    settings = (strategy, max_new_tokens, end_token_id, pad_token_id)
    uniform = strategy.draw(batch, max_new_tokens)
    if not halves.traceable:
        token_ids, scores = _decode(halves, inputs, uniform, *settings, _host_while)
        return Generated(ops.convert_to_numpy(token_ids), ops.convert_to_numpy(scores))
    key = (*settings, jit_compile)
    if key not in cache:
        cache[key] = _CompiledLoop(halves, settings)
        cache[key].compile(jit_compile=_resolve_jit(jit_compile))
    if uniform is not None:
        inputs["uniform"] = uniform
    outputs = cache[key].predict_on_batch(inputs)
    return Generated(outputs["token_ids"], outputs["scores"])


@dataclass(frozen=True)
class _Halves:
    """A pair from any runtime, as two functions and the names they go by."""

    prefill: Callable[[dict], dict]
    step: Callable[[dict], dict]
    prefill_inputs: tuple[str, ...]
    step_inputs: tuple[str, ...]
    step_outputs: tuple[str, ...]
    prompt: str
    max_length: int | None
    traceable: bool


def _halves(model) -> _Halves:
    pair = model.incremental() if hasattr(model, "incremental") else model
    if isinstance(pair, IncrementalPair):
        return _Halves(
            pair.prefill,
            pair.step,
            tuple(tensor.name for tensor in pair.prefill.inputs),
            tuple(tensor.name for tensor in pair.step.inputs),
            tuple(pair.step.output),
            pair.prompt,
            pair.max_length,
            traceable=True,
        )
    signatures = getattr(model, "signatures", {})
    if not {"prefill", "step"} <= set(signatures):
        raise TypeError(
            "`model` can't decode: it has neither `incremental()` nor the signatures "
            f"`prefill` and `step`. Received: model={type(model).__name__}"
        )
    names = tuple(signatures["prefill"].inputs)
    return _Halves(
        model.prefill,
        model.step,
        names,
        tuple(signatures["step"].inputs),
        tuple(signatures["step"].outputs),
        "decoder_token_ids" if "decoder_token_ids" in names else "token_ids",
        None,
        traceable=False,
    )


def _check_strategy(strategy) -> None:
    # A class has the methods, too, but is not a strategy yet.
    if isinstance(strategy, type) or not hasattr(strategy, "advance"):
        raise TypeError(
            "`strategy` must be a strategy, such as `Greedy()`, `Sample(...)` or "
            f"`Beam(...)`. Received: strategy={strategy!r}"
        )


def _check_inputs(halves, inputs, start_token_id):
    """The inputs of `prefill` as arrays, with what may be left out filled in."""
    arrays = {name: np.asarray(array) for name, array in inputs.items()}
    for name, array in arrays.items():
        if array.ndim > 1 and 0 in array.shape[:2]:
            raise ValueError(
                f"`inputs` are empty: every row needs at least one token. Received: "
                f"{name}.shape={array.shape}"
            )
    if "padding_mask" in halves.prefill_inputs and "token_ids" in arrays:
        arrays.setdefault("padding_mask", np.ones(arrays["token_ids"].shape, bool))
    if start_token_id is not None and halves.prompt not in arrays and arrays:
        batch = len(next(iter(arrays.values())))
        arrays[halves.prompt] = np.full((batch, 1), start_token_id, "int32")
    missing = [name for name in halves.prefill_inputs if name not in arrays]
    unknown = [name for name in arrays if name not in halves.prefill_inputs]
    if missing or unknown:
        hint = "; or give `start_token_id`" if halves.prompt in missing else ""
        raise ValueError(
            f"`inputs` must be named {', '.join(halves.prefill_inputs)}{hint}. "
            f"Received: missing={missing}, unknown={unknown}"
        )
    if arrays[halves.prompt].ndim != 2:
        raise ValueError(
            f"`{halves.prompt}` must have 2 axes, (batch, length). Received: "
            f"{halves.prompt}.shape={arrays[halves.prompt].shape}"
        )
    return arrays


def _decode(halves, inputs, uniform, strategy, length, end, pad, while_loop):
    """Prefill, then one `step` a token, until every row is done or L are chosen."""
    beams = strategy.num_beams
    outputs = {**inputs, **halves.prefill(inputs)}

    def spread(tensor):  # (B, …) -> (B·K, …)
        # A copy, where no row is repeated, leaves behind the mask Keras attached.
        return ops.repeat(tensor, beams, axis=0) if beams > 1 else ops.copy(tensor)

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
    search = strategy.start(batch, length, pad, uniform)
    token, parents, search = strategy.advance(search, logits, 0, end, pad)
    changing = _follow(changing, parents)

    def unfinished(index, token, search, changing):
        all_done = ops.all(search["done"])
        return ops.logical_and(ops.less(index, length), ops.logical_not(all_done))

    def body(index, token, search, changing):
        outputs = halves.step({**state, **changing, "token_ids": token})
        next_token, parents, search = strategy.advance(
            search, outputs["logits"], index, end, pad
        )
        moved = {name: _like(outputs[name], old) for name, old in changing.items()}
        return index + 1, next_token, search, _follow(moved, parents)

    carry = (ops.convert_to_tensor(1, "int32"), token, search, changing)
    _, _, search, _ = while_loop(unfinished, body, carry)
    return strategy.finish(search, length)


def _follow(state, parents):
    """Each beam's state is that of the beam it continues."""
    if parents is None:
        return state
    return {name: ops.take(tensor, parents, axis=0) for name, tensor in state.items()}


def _like(tensor, old):
    """`tensor` with the static shape and dtype that a loop variable must keep."""
    return ops.cast(ops.reshape(tensor, ops.shape(old)), old.dtype)


def _host_while(cond, body, carry):
    while bool(cond(*carry)):
        carry = body(*carry)
    return carry


class _CompiledLoop(keras.Model):
    """The loop as a Keras model, whose `predict` Keras compiles on every backend."""

    def __init__(self, halves: _Halves, settings: tuple[Any, int, int, int]):
        # Not the global policy's precision: chance must not be rounded to it.
        super().__init__(name="generate", dtype="float32")
        self.halves = halves
        self.settings = settings
        # Keras hands a model's weights to compiled code if it can see them.
        self.prefill = halves.prefill
        self.step = halves.step

    def call(self, inputs):
        inputs = dict(inputs)
        uniform = inputs.pop("uniform", None)
        token_ids, scores = _decode(
            self.halves, inputs, uniform, *self.settings, ops.while_loop
        )
        return {"token_ids": token_ids, "scores": scores}


def _resolve_jit(jit_compile):
    """XLA pays on an accelerator; on a CPU, TensorFlow's own kernels are faster."""
    if jit_compile != "auto":
        return jit_compile
    if keras.backend.backend() != "tensorflow":
        return True
    import tensorflow as tf

    return bool(tf.config.list_logical_devices("GPU"))
