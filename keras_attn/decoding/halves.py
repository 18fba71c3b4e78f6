"""The two halves that the loop drives, whatever they run in: Keras, or an artefact."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn.decoding.pair import IncrementalPair

# What masks which input.
MASKS = {"token_ids": "padding_mask", "decoder_token_ids": "decoder_padding_mask"}


@dataclass(frozen=True)
class Halves:
    """A pair from any runtime, as two functions and what they are known to take.

    Attributes:
        prefill: The first half: named tensors in, named tensors out.
        step: The second.
        prefill_inputs: Names.
        step_inputs: Names.
        step_outputs: Names.
        prompt: Name of the input with the tokens that are continued.
        max_length: As in `IncrementalPair`.
        vocabulary: Tokens there are, by the name of the input, where it is known.
        fixed_lengths: Tokens that an input must have, where an artefact fixes them.
        num_beams: Rows of `step` for each row of `prefill`, where an artefact fixes
            both; None where it does not.
        traceable: Whether the halves can be compiled into one loop.
    """

    prefill: Callable[[dict], dict]
    step: Callable[[dict], dict]
    prefill_inputs: tuple[str, ...]
    step_inputs: tuple[str, ...]
    step_outputs: tuple[str, ...]
    prompt: str
    max_length: int | None
    vocabulary: Mapping[str, int]
    fixed_lengths: Mapping[str, int]
    num_beams: int | None
    traceable: bool


def halves_of(model, kept: dict, length: int) -> Halves:
    """The halves of a model, a pair or an exported pair.

    Args:
        model: Any of them.
        kept: What is kept for the model; halves that were made are put into it.
        length: The most tokens that prompt and continuation have together.

    Raises:
        TypeError: for a model that can't decode.
    """
    made = kept.setdefault("halves", {})
    # A pair without a length serves every length.
    if None in made:
        return made[None]
    if not hasattr(model, "incremental"):
        return made.setdefault(None, _of_pair(model) or _of_runner(model))
    if "max_length" not in inspect.signature(model.incremental).parameters:
        return made.setdefault(None, _of_pair(model.incremental()))
    length = cache_length(length, getattr(model, "max_length", None))
    if length not in made:
        halves = _of_pair(model.incremental(max_length=length))
        made[None if halves.max_length is None else length] = halves
        return halves
    return made[length]


def cache_length(length: int, limit: int | None) -> int:
    """`length`, rounded up so that few lengths are compiled.

    Up to a multiple of 64, or above 512 of an eighth to a quarter of the length: 64,
    128, …, 512, 640, 768, 896, 1024, 1280, …

    Args:
        length: Tokens that the caches must hold.
        limit: Tokens that they may hold; None where there is no limit.
    """
    multiple = 1 << max(6, length.bit_length() - 3)
    rounded = -(-length // multiple) * multiple
    return rounded if limit is None else min(rounded, limit)


def prompt_of(model, names=()) -> str:
    """The name of the input with the tokens that are continued.

    Args:
        model: A model, a pair or an exported pair.
        names: Of further inputs that it is known to have.
    """
    if isinstance(model, IncrementalPair):
        return model.prompt
    inputs = getattr(model, "input", None)
    names = {*names, *(inputs if isinstance(inputs, dict) else ())}
    return "decoder_token_ids" if "decoder_token_ids" in names else "token_ids"


def compiled(halves: Halves, jit_compile: bool) -> Halves:
    """The same halves, each compiled, for a loop on the host."""
    return replace(
        halves,
        prefill=_compiled(halves.prefill, jit_compile),
        step=_compiled(halves.step, jit_compile),
    )


def _of_pair(pair) -> Any:
    if not isinstance(pair, IncrementalPair):
        return None
    vocabulary = {"token_ids": pair.source_vocabulary_size}
    vocabulary[pair.prompt] = pair.prefill.output["logits"].shape[-1]
    return Halves(
        pair.prefill,
        pair.step,
        tuple(tensor.name for tensor in pair.prefill.inputs),
        tuple(tensor.name for tensor in pair.step.inputs),
        tuple(pair.step.output),
        pair.prompt,
        pair.max_length,
        {name: size for name, size in vocabulary.items() if size is not None},
        {},
        num_beams=None,
        traceable=True,
    )


def _of_runner(runner) -> Halves:
    signatures = getattr(runner, "signatures", {})
    if not {"prefill", "step"} <= set(signatures):
        raise TypeError(
            "`model` can't decode: it has neither `incremental()` nor the signatures "
            f"`prefill` and `step`. Received: model={type(runner).__name__}"
        )
    prefill, step = signatures["prefill"], signatures["step"]
    prompt = prompt_of(runner, prefill.inputs)
    lengths = {
        name: info.shape[1]
        for name, info in prefill.inputs.items()
        if name in MASKS and len(info.shape) == 2
    }
    vocabulary = {prompt: prefill.outputs["logits"].shape[-1]}
    return Halves(
        runner.prefill,
        lambda inputs: runner.step(
            {
                # What is an array stays the array that it is.
                name: x if isinstance(x, np.ndarray) else ops.convert_to_numpy(x)
                for name, x in inputs.items()
            },
            in_place=True,
        ),
        tuple(prefill.inputs),
        tuple(step.inputs),
        tuple(step.outputs),
        prompt,
        getattr(runner, "max_length", None),
        {name: size for name, size in vocabulary.items() if size is not None},
        {name: size for name, size in lengths.items() if size is not None},
        num_beams=_fixed_beams(prefill.inputs[prompt], step.inputs["token_ids"]),
        traceable=False,
    )


def _fixed_beams(prompt, token_ids) -> int | None:
    rows, step_rows = prompt.shape[0], token_ids.shape[0]
    return None if None in (rows, step_rows) else step_rows // rows


def _compiled(model, jit_compile: bool) -> Callable[[dict], dict]:
    """A functional model as a function that its backend has compiled."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        call = tf.function(
            lambda inputs: model(inputs, training=False),
            jit_compile=jit_compile,
            reduce_retracing=True,
        )
    elif backend == "jax" and jit_compile:
        import jax

        stateless = jax.jit(
            lambda *state: model.stateless_call(*state, training=False)[0]
        )

        def call(inputs):
            # Handed over: what a compiled function only sees, it keeps a copy of.
            trainable = [weight.value for weight in model.trainable_variables]
            others = [weight.value for weight in model.non_trainable_variables]
            return stateless(trainable, others, inputs)
    else:

        def call(inputs):
            return model(inputs, training=False)

    return lambda inputs: call(
        {name: ops.convert_to_tensor(array) for name, array in inputs.items()}
    )
