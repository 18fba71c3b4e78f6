"""`prefill` and `step`, the two functions that decode one token at a time.

A Keras model provides them as an `IncrementalPair`, an exported artefact as signatures.
The loop takes either as `DecodingFunctions`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn.checks.indices import IndexRange, length_ranges

# Inputs that hold tokens, and the names of their padding masks.
MASKS = {"token_ids": "padding_mask", "decoder_token_ids": "decoder_padding_mask"}
# The same for inputs that hold speech: frames (B, T, F) or samples (B, N).
SPEECH_MASKS = {"features": "padding_mask", "waveform": "padding_mask"}


@dataclass(frozen=True)
class IncrementalPair:
    """The two models that decode one token at a time.

    Both are functional models that share their layers with the training model, with
    dictionaries as inputs and outputs:

        prefill: {the model's inputs}           -> {"logits": (B, V), **state}
        step:    {"token_ids": (B,), **state}   -> {"logits": (B, V), **changes}

    A model that acts in an environment has `world_state`, (B, F), among the inputs of
    both, and no `token_ids` in `step`; its logits are scores of actions. `walk` runs
    it.

    State tensors are batch first. A state that `step` takes but `prefill` doesn't
    return comes from the inputs of `prefill`. A change is either the new value of the
    state of that name, or `new_<name>`, an entry to write into the cache `<name>`;
    `next_state` applies both. A state that `step` doesn't return is unchanged. The mask
    of the prompt, which the training model may lack, is named `padding_mask` for
    `token_ids` and `decoder_padding_mask` for `decoder_token_ids`.

    Attributes:
        prefill: Reads the whole prompt (and an encoder's input) at once.
        step: Takes the last token and the state; predicts the next token.
        prompt: Name of the input of `prefill` that holds the prompt's tokens, (B, P).
        max_length: Maximum length of prompt and continuation together; None if the
            model sets no limit.
        source_vocabulary_size: Vocabulary size of an encoder's `token_ids`; None
            without such an input, or if the size is unknown.
        prompt_vocabulary_size: Vocabulary size of the prompt, if it differs from the
            logits', as the words of a caption differ from the codes of an image.
        extend: A function that reads several tokens per row after the state, for
            `speculation`; None if the model does not. {"token_ids": (B, T), **state} ->
            {"logits": (B, T, V), **entries}, where the entries `new_<name>`,
            (B, G, T, H), are for T slots, and the state is a decoder's with caches.
    """

    prefill: keras.Model
    step: keras.Model
    prompt: str = "token_ids"
    max_length: int | None = None
    source_vocabulary_size: int | None = None
    prompt_vocabulary_size: int | None = None
    extend: Callable[[dict], dict] | None = None


@dataclass(frozen=True)
class DecodingFunctions:
    """`prefill` and `step` of a Keras model or an artefact, and what they accept.

    Attributes:
        prefill: As in `IncrementalPair`: named tensors in, named tensors out.
        step: As in `IncrementalPair`.
        prefill_inputs: Names.
        step_inputs: Names.
        step_outputs: Names.
        prompt: Name of the input that holds the prompt's tokens.
        max_length: As in `IncrementalPair`.
        vocabulary: Vocabulary sizes by the name of the input, where known.
        new_vocabulary: Vocabulary size of the new tokens.
        fixed_lengths: Lengths by the name of the input, where they are fixed.
        length_ranges: The minimum length of an input and the first length that is too
            large, by the name of the input, where there is a limit.
        num_beams: Rows of `step` for each row of `prefill` if an artefact fixes both;
            None otherwise.
        traceable: Whether both can be compiled into one loop.
        extend: As in `IncrementalPair`.
    """

    prefill: Callable[[dict], dict]
    step: Callable[[dict], dict]
    prefill_inputs: tuple[str, ...]
    step_inputs: tuple[str, ...]
    step_outputs: tuple[str, ...]
    prompt: str
    max_length: int | None
    vocabulary: Mapping[str, int]
    new_vocabulary: int | None
    fixed_lengths: Mapping[str, int]
    length_ranges: Mapping[str, IndexRange]
    num_beams: int | None
    traceable: bool
    extend: Any = None


def prompt_name(model, input_names=()) -> str:
    """Name of the input that holds the prompt's tokens.

    Args:
        model: A model, a pair or an exported pair.
        input_names: Inputs that it is known to have, besides `model.input`.
    """
    if isinstance(model, IncrementalPair):
        return model.prompt
    inputs = getattr(model, "input", None)
    names = {*input_names, *(inputs if isinstance(inputs, dict) else ())}
    return "decoder_token_ids" if "decoder_token_ids" in names else "token_ids"


def get_functions(model) -> DecodingFunctions:
    """The decoding functions of a pair, or of an exported pair.

    Raises:
        TypeError: If `model` can't decode.
    """
    if isinstance(model, IncrementalPair):
        return _from_pair(model)
    return _from_runner(model)


def _from_pair(pair: IncrementalPair) -> DecodingFunctions:
    vocabulary = {"token_ids": pair.source_vocabulary_size}
    new_vocabulary = pair.prefill.output["logits"].shape[-1]
    step_inputs = tuple(tensor.name for tensor in pair.step.inputs)
    if "token_ids" in step_inputs:  # Otherwise the logits are of actions.
        vocabulary[pair.prompt] = pair.prompt_vocabulary_size or new_vocabulary
    lengths = {
        tensor.name: tensor.shape[1]
        for tensor in pair.prefill.inputs
        if tensor.name in MASKS
    }
    return DecodingFunctions(
        pair.prefill,
        pair.step,
        tuple(tensor.name for tensor in pair.prefill.inputs),
        step_inputs,
        tuple(pair.step.output),
        pair.prompt,
        pair.max_length,
        _known(vocabulary),
        new_vocabulary,
        _known(lengths),
        length_ranges(pair.prefill),
        num_beams=None,
        traceable=True,
        extend=pair.extend,
    )


def _from_runner(runner) -> DecodingFunctions:
    signatures = getattr(runner, "signatures", {})
    if not {"prefill", "step"} <= set(signatures):
        raise TypeError(
            "`model` can't decode: it has neither `incremental()` nor the signatures "
            f"`prefill` and `step`. Received: model={type(runner).__name__}"
        )
    prefill, step = signatures["prefill"], signatures["step"]
    prompt = prompt_name(runner, prefill.inputs)
    reads_tokens = "token_ids" in step.inputs
    lengths = {
        name: info.shape[1]
        for name, info in prefill.inputs.items()
        if (name in MASKS and len(info.shape) == 2)
        or (name in SPEECH_MASKS and SPEECH_MASKS[name] in prefill.inputs)
    }

    def run_step(inputs):
        # Caches that already are arrays are passed as they are, so that they can be
        # written to.
        arrays = {
            name: x if isinstance(x, np.ndarray) else ops.convert_to_numpy(x)
            for name, x in inputs.items()
        }
        return runner.step(arrays, in_place=True)

    new_vocabulary = prefill.outputs["logits"].shape[-1]
    ranges = getattr(runner, "index_ranges", {}).get("prefill", {})
    # An artefact without metadata knows only that a token is not negative.
    prompt_vocabulary = ranges.get(prompt, (0, None))[1] or new_vocabulary

    return DecodingFunctions(
        runner.prefill,
        run_step,
        tuple(prefill.inputs),
        tuple(step.inputs),
        tuple(step.outputs),
        prompt,
        getattr(runner, "max_length", None),
        _known({prompt: prompt_vocabulary} if reads_tokens else {}),
        new_vocabulary,
        _known(lengths),
        getattr(runner, "length_ranges", {}).get("prefill", {}),
        num_beams=_fixed_beams(
            prefill.inputs[prompt],
            step.inputs["token_ids" if reads_tokens else "world_state"],
        ),
        traceable=False,
    )


def _known(sizes: Mapping[str, int | None]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size is not None}


def _fixed_beams(prompt, token_ids) -> int | None:
    rows, step_rows = prompt.shape[0], token_ids.shape[0]
    return None if None in (rows, step_rows) else step_rows // rows
