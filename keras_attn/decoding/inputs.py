"""The arguments of `generate`: checked, completed, and converted to arrays.

Legend: B batch, P prompt length, S source length, V vocabulary.
"""

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_attn.checks import inputs as input_checks
from keras_attn.checks.arguments import check_positive
from keras_attn.decoding.pair import (
    MASKS,
    SPEECH_MASKS,
    DecodingFunctions,
    prompt_name,
)

# No token has this id, so no row ever ends.
_NO_END = (-1,)
_ALL_MASKS = {**MASKS, **SPEECH_MASKS}
SEGMENTS = "segment_ids"


def check_strategy(strategy, on_token) -> None:
    """Raises unless `strategy` can decode, and can report tokens to `on_token`.

    Raises:
        TypeError: If `strategy` is not a strategy, or `on_token` is not callable.
        ValueError: If `on_token` is given with beam search.
    """
    # The class itself has the methods, too, but is not an instance.
    if isinstance(strategy, type) or not hasattr(strategy, "advance"):
        raise TypeError(
            "`strategy` must be a strategy, such as `Greedy()`, `Sample(...)` or "
            f"`Beam(...)`. Received: strategy={strategy!r}"
        )
    if on_token is None:
        return
    if not callable(on_token):
        raise TypeError(
            "`on_token` must be a function of the new tokens. "
            f"Received: on_token={on_token!r}"
        )
    if getattr(strategy, "revises", False):
        raise ValueError(
            "`on_token` needs a strategy that never revises a token, `Greedy()` or "
            f"`Sample(...)`. Received: strategy={strategy!r}"
        )


def as_arrays(inputs) -> dict[str, np.ndarray]:
    """The `inputs` of `generate` as NumPy arrays by name.

    Raises:
        TypeError: If `inputs` is not a dictionary.
        ValueError: If a value cannot be converted to an array.
    """
    if not isinstance(inputs, Mapping):
        raise TypeError(
            "`inputs` must be a dictionary of arrays by name, as in "
            f'{{"token_ids": ids}}. Received: inputs of type {type(inputs).__name__}'
        )
    arrays = {}
    for name, values in inputs.items():
        try:
            arrays[name] = np.asarray(values)
        except ValueError as error:
            raise ValueError(
                f"`{name}` must be an array: pad rows to equal length, and mark the "
                f"real tokens in a mask. Received: {name} that are not an array "
                f"({error})"
            ) from error
    return arrays


def required_length(
    model, inputs: Mapping[str, np.ndarray], max_new_tokens: int
) -> int:
    """The length of prompt and continuation, which the caches of a model must hold.

    Raises:
        ValueError: If it exceeds the maximum length of the model.
    """
    name = prompt_name(model)
    prompt = inputs.get(name)
    # A missing prompt becomes one start token.
    length = prompt.shape[1] if prompt is not None and prompt.ndim == 2 else 1
    if hasattr(model, "incremental"):
        limit = getattr(model, "max_length", None)
        check_length(limit, name, length, max_new_tokens)
    return length + max_new_tokens


def check_length(
    limit: int | None, prompt: str, prompt_length: int, max_new_tokens: int
) -> None:
    """Raises unless a prompt and its continuation fit into the model.

    Raises:
        ValueError: If they do not. The message names what is too long.
    """
    if limit is None:
        return
    left = limit - prompt_length
    if left < 1:
        raise ValueError(
            f"`{prompt}` must have at most {limit - 1} tokens, padding included: the "
            f"model has {limit} positions, and a new token needs one. Shorten the "
            f"prompt. Received: prompt length={prompt_length}"
        )
    if max_new_tokens > left:
        raise ValueError(
            f"`max_new_tokens` exceeds the model's {limit} positions; at most {left} "
            f"fit after this prompt. Received: max_new_tokens={max_new_tokens}, "
            f"prompt length={prompt_length}"
        )


def check_speculative_length(model, length: int, speculation) -> None:
    """Raises unless prompt, continuation and rejected guesses fit into the model.

    Raises:
        ValueError: If they do not.
    """
    limit = getattr(model, "max_length", None)
    if limit is not None and length > limit:
        raise ValueError(
            f"`speculation.tokens` must leave room for the guesses of the last pass: "
            f"prompt, new tokens and guesses need {length} positions, and the "
            f"{'draft ' if model is getattr(speculation, 'model', None) else ''}model "
            f"has {limit}. Received: tokens={speculation.tokens}"
        )


def check_beams(
    functions: DecodingFunctions, strategy, num_results: int | None = None
) -> None:
    """Raises unless an artefact was exported for the number of beams, or of samples.

    Raises:
        ValueError: If it was exported for a different number.
    """
    rows = max(strategy.num_beams, num_results or 1)
    if functions.num_beams in (None, rows):
        return
    raise ValueError(
        f"`strategy` must have {functions.num_beams} beams per row, or `num_results` "
        "be as many: the artefact was exported with that `num_beams`, or with a fixed "
        f"batch. Received: strategy={strategy!r}, num_beams={strategy.num_beams}, "
        f"num_results={num_results}"
    )


def check_num_results(num_results: int | None, strategy, speculation) -> None:
    """Raises unless a strategy finds so many continuations of a prompt.

    Raises:
        ValueError: If it does not, or the call speculates.
    """
    if num_results is None:
        return
    check_positive("num_results", num_results)
    if speculation is not None:
        raise ValueError(
            "`num_results` cannot be combined with `speculation`. "
            f"Received: num_results={num_results}, speculation={speculation!r}"
        )
    # A strategy without random numbers would find the same one again.
    if num_results > strategy.num_beams and strategy.uniform(1, 1) is None:
        raise ValueError(
            f"`num_results` must be at most {strategy.num_beams} with this strategy; "
            "`Beam(K)` finds up to K continuations, `Sample(...)` any number. "
            f"Received: num_results={num_results}, strategy={strategy!r}"
        )


def prepare(
    functions: DecodingFunctions,
    inputs: Mapping[str, np.ndarray],
    start_token_id: int | None,
    pad_token_id: int,
) -> dict[str, np.ndarray]:
    """The inputs of `prefill` as arrays, with defaults for missing inputs.

    Args:
        functions: The functions to prepare the inputs for.
        inputs: From `as_arrays`.
        start_token_id: The prompt if `inputs` has none.
        pad_token_id: Pads rows for an artefact of fixed length.

    Raises:
        ValueError: If an input is missing, unknown, empty, too long or too short; a
            text has segments that the model does not read; a token is out of range; a
            number is not finite; or a mask does not match its tokens or leaves a row
            without any.
    """
    arrays = _without_segments(functions, inputs)
    for name, array in arrays.items():
        if array.ndim > 1 and 0 in array.shape[:2]:
            raise ValueError(
                f"`inputs` are empty: every row needs at least one token. Received: "
                f"{name}.shape={array.shape}"
            )
    if start_token_id is not None and functions.prompt not in arrays and arrays:
        batch = len(next(iter(arrays.values())))
        arrays[functions.prompt] = np.full((batch, 1), start_token_id, "int32")
    for name, mask in _ALL_MASKS.items():
        if mask in functions.prefill_inputs and name in arrays:
            arrays.setdefault(mask, np.ones(arrays[name].shape[:2], bool))
    _check_names(functions, arrays)
    _check_rows(functions, arrays)
    for name, array in arrays.items():
        # An earlier call with longer inputs may have left a graph that checks nothing.
        if name in functions.length_ranges and array.ndim > 1:
            input_checks.check_length(name, array.shape, functions.length_ranges[name])
        input_checks.check_finite(name, array)
    for name in MASKS:
        if name in arrays:
            vocabulary = functions.vocabulary.get(name)
            arrays[name] = _as_tokens(name, arrays[name], vocabulary)
    for name, mask in _ALL_MASKS.items():
        if mask in arrays and name in arrays:
            arrays[mask] = _as_mask(mask, arrays[mask], name, arrays[name])
            least = input_checks.smallest_rows(functions.length_ranges, mask)
            input_checks.check_rows(mask, arrays[mask], least)
            _pad_to_fixed_length(functions, arrays, name, pad_token_id)
    return arrays


def check_token(name: str, token: Any, vocabulary: int | None) -> int:
    """Raises unless `token` is an integer in [0, V); returns it.

    Raises:
        TypeError: If `token` is not an integer.
        ValueError: If a token is out of range.
    """
    try:
        index = operator.index(token)
    except TypeError:
        raise TypeError(
            f"`{name}` must be a token id, an integer. Received: {name}={token!r}"
        ) from None
    if index < 0 or (vocabulary is not None and index >= vocabulary):
        raise ValueError(
            f"`{name}` must be {_range(vocabulary)}. Received: {name}={index}"
        )
    return index


def check_end_tokens(end_token_id, vocabulary: int | None) -> tuple[int, ...]:
    """One end token, several or none, as a sorted tuple that is never empty.

    Raises:
        TypeError: If `end_token_id` is not an integer or a collection of integers.
        ValueError: If a token is out of range.
    """
    if end_token_id is None:
        return _NO_END
    if isinstance(end_token_id, set | frozenset):
        end_token_id = list(end_token_id)
    ends = end_token_id if np.ndim(end_token_id) else [end_token_id]
    ends = {check_token("end_token_id", token, vocabulary) for token in ends}
    return tuple(sorted(ends)) or _NO_END


def _without_segments(functions, inputs: Mapping[str, np.ndarray]) -> dict:
    """The inputs without segments of 0, which tokenizers give for every model.

    Raises:
        ValueError: If a token has another segment, and the model reads none.
    """
    arrays = dict(inputs)
    if SEGMENTS in functions.prefill_inputs or SEGMENTS not in arrays:
        return arrays
    segments = arrays.pop(SEGMENTS)
    mask = arrays.get("padding_mask")
    if mask is not None and mask.shape == segments.shape:
        segments = segments[mask.astype(bool)]
    if np.any(segments):
        raise ValueError(
            f"`{SEGMENTS}` must be 0 for every token, or be left out: the model does "
            "not read them, and texts of several segments are one text to it. "
            f"Received: segments {np.unique(segments.astype(int)).tolist()}"
        )
    return arrays


def _check_names(functions, arrays):
    missing = [name for name in functions.prefill_inputs if name not in arrays]
    unknown = [name for name in arrays if name not in functions.prefill_inputs]
    if missing or unknown:
        hint = "; or give `start_token_id`" if functions.prompt in missing else ""
        raise ValueError(
            f"`inputs` must be named {', '.join(functions.prefill_inputs)}{hint}. "
            f"Received: missing={missing}, unknown={unknown}"
        )


def _check_rows(functions, arrays):
    shape = arrays[functions.prompt].shape
    if len(shape) != 2:
        raise ValueError(
            f"`{functions.prompt}` must have 2 axes, (batch, length). Received: "
            f"{functions.prompt}.shape={shape}"
        )
    rows = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(rows.values())) > 1:
        raise ValueError(
            f"`inputs` must all have the same number of rows. Received: rows={rows}"
        )


def _as_tokens(name, ids, vocabulary):
    """Token ids as int32, checked against the vocabulary."""
    if ids.dtype.kind not in "iu":
        whole = ids.dtype.kind == "f" and bool((ids == np.trunc(ids)).all())
        if not whole:
            raise ValueError(
                f"`{name}` must be integers. Received: {name}.dtype={ids.dtype}"
            )
    least, most = ids.min(), ids.max()
    if least < 0 or (vocabulary is not None and most >= vocabulary):
        raise ValueError(
            f"`{name}` must be {_range(vocabulary)}, masked tokens included. "
            f"Received: ids from {least:.0f} to {most:.0f}"
        )
    return ids.astype("int32")


def _range(vocabulary):
    if vocabulary is None:
        return "at least 0"
    return f"in [0, {vocabulary}), the vocabulary of the model"


def _as_mask(name, mask, ids_name, ids):
    """A mask as bool, checked against its tokens, frames or samples."""
    if mask.shape != ids.shape[:2]:
        raise ValueError(
            f"`{name}` must have the shape of `{ids_name}`, {ids.shape[:2]}. "
            f"Received: {name}.shape={mask.shape}"
        )
    return mask.astype(bool)


def _pad_to_fixed_length(functions, arrays, name, pad_token_id):
    """Pads rows and mask at the right to the length that an artefact takes.

    Speech is padded with zeros.
    """
    fixed, ids = functions.fixed_lengths.get(name), arrays[name]
    if fixed is None:
        return
    missing = fixed - ids.shape[1]
    is_speech = name in SPEECH_MASKS
    if missing < 0:
        raise ValueError(
            f"`{name}` must have at most {fixed} "
            f"{'frames or samples' if is_speech else 'tokens'}, the length that the "
            f"artefact was exported with. Received: {name}.shape={ids.shape}"
        )
    padding = [(0, 0), (0, missing)]
    mask, others = _ALL_MASKS[name], [(0, 0)] * (ids.ndim - 2)
    fill = 0 if is_speech else pad_token_id
    arrays[name] = np.pad(ids, [*padding, *others], constant_values=fill)
    arrays[mask] = np.pad(arrays[mask], padding)
