"""What comes in at the door of `generate`: filled in, checked, and in one form.

Legend: B batch, P prompt length, S source length, V vocabulary.
"""

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_attn.decoding.halves import MASKS, Halves


def prepare(
    halves: Halves,
    inputs: Mapping[str, np.ndarray],
    start_token_id: int | None,
    pad_token_id: int,
) -> dict[str, np.ndarray]:
    """The inputs of `prefill` as arrays, with what may be left out filled in.

    Args:
        halves: What the inputs are for.
        inputs: From `as_arrays`.
        start_token_id: The prompt, where `inputs` have none.
        pad_token_id: What rows are lengthened with for an artefact of fixed length.

    Raises:
        ValueError: for missing, unknown or empty inputs, tokens out of range, or a
            mask that does not go with its tokens.
    """
    arrays = dict(inputs)
    for name, array in arrays.items():
        if array.ndim > 1 and 0 in array.shape[:2]:
            raise ValueError(
                f"`inputs` are empty: every row needs at least one token. Received: "
                f"{name}.shape={array.shape}"
            )
    if start_token_id is not None and halves.prompt not in arrays and arrays:
        batch = len(next(iter(arrays.values())))
        arrays[halves.prompt] = np.full((batch, 1), start_token_id, "int32")
    for name, mask in MASKS.items():
        if mask in halves.prefill_inputs and name in arrays:
            arrays.setdefault(mask, np.ones(arrays[name].shape, bool))
    _check_names(halves, arrays)
    _check_rows(halves, arrays)
    for name in MASKS:
        if name in arrays:
            arrays[name] = _tokens(name, arrays[name], halves.vocabulary.get(name))
    for name, mask in MASKS.items():
        if mask in arrays and name in arrays:
            arrays[mask] = _mask(mask, arrays[mask], name, arrays[name])
            _fill_up(halves, arrays, name, pad_token_id)
    return arrays


def as_arrays(inputs) -> dict[str, np.ndarray]:
    """What `generate` was given as NumPy arrays by name.

    Raises:
        TypeError: for what has no names.
        ValueError: for what is no array.
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
                f"`{name}` must be an array: fill up rows of unequal length, and say "
                f"by a mask which tokens are real. Received: {name} that are no array "
                f"({error})"
            ) from error
    return arrays


def check_token(name: str, token: Any, vocabulary: int | None) -> int:
    """Raises unless `token` is a whole number in [0, V); returns it.

    Raises:
        TypeError: for what is no whole number.
        ValueError: for a token out of range.
    """
    try:
        index = operator.index(token)
    except TypeError:
        raise TypeError(
            f"`{name}` must be a token's id, a whole number. Received: {name}={token!r}"
        ) from None
    if index < 0 or (vocabulary is not None and index >= vocabulary):
        raise ValueError(
            f"`{name}` must be {_range(vocabulary)}. Received: {name}={index}"
        )
    return index


def check_room(
    limit: int | None, prompt: str, prompt_length: int, max_new_tokens: int
) -> None:
    """Raises unless a prompt and its continuation fit into the model.

    Raises:
        ValueError: naming what is too long.
    """
    if limit is None:
        return
    left = limit - prompt_length
    if left < 1:
        raise ValueError(
            f"`{prompt}` must have at most {limit - 1} tokens, padding included: there "
            f"are {limit} positions, and what is added needs one. Shorten the prompt. "
            f"Received: prompt length={prompt_length}"
        )
    if max_new_tokens > left:
        raise ValueError(
            "`max_new_tokens` reaches beyond the model's "
            f"{limit} positions; at most {left} fit behind this "
            f"prompt. Received: max_new_tokens={max_new_tokens}, "
            f"prompt length={prompt_length}"
        )


def _check_names(halves, arrays):
    missing = [name for name in halves.prefill_inputs if name not in arrays]
    unknown = [name for name in arrays if name not in halves.prefill_inputs]
    if missing or unknown:
        hint = "; or give `start_token_id`" if halves.prompt in missing else ""
        raise ValueError(
            f"`inputs` must be named {', '.join(halves.prefill_inputs)}{hint}. "
            f"Received: missing={missing}, unknown={unknown}"
        )


def _check_rows(halves, arrays):
    shape = arrays[halves.prompt].shape
    if len(shape) != 2:
        raise ValueError(
            f"`{halves.prompt}` must have 2 axes, (batch, length). Received: "
            f"{halves.prompt}.shape={shape}"
        )
    rows = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(rows.values())) > 1:
        raise ValueError(
            f"`inputs` must all have as many rows as one another. Received: rows={rows}"
        )


def _tokens(name, ids, vocabulary):
    """Token ids as int32, each seen to be in the vocabulary."""
    if ids.dtype.kind not in "iu":
        whole = ids.dtype.kind == "f" and bool((ids == np.trunc(ids)).all())
        if not whole:
            raise ValueError(
                f"`{name}` must be whole numbers. Received: {name}.dtype={ids.dtype}"
            )
    least, most = ids.min(), ids.max()
    if least < 0 or (vocabulary is not None and most >= vocabulary):
        raise ValueError(
            f"`{name}` must be {_range(vocabulary)}, under a mask too. Received: ids "
            f"from {least:.0f} to {most:.0f}"
        )
    return ids.astype("int32")


def _range(vocabulary):
    if vocabulary is None:
        return "at least 0"
    return f"in [0, {vocabulary}), the vocabulary of the model"


def _mask(name, mask, ids_name, ids):
    """A mask as bool, seen to go with its tokens."""
    if mask.shape != ids.shape:
        raise ValueError(
            f"`{name}` must have the shape of `{ids_name}`, {ids.shape}. "
            f"Received: {name}.shape={mask.shape}"
        )
    mask = mask.astype(bool)
    empty = np.flatnonzero(~mask.any(axis=1)).tolist()
    if empty:
        raise ValueError(
            f"`{name}` must show a real token in every row. Received: nothing but "
            f"padding in the rows {empty}"
        )
    return mask


def _fill_up(halves, arrays, name, pad_token_id):
    """Lengthens rows to what an artefact was exported with, behind the mask."""
    fixed, ids = halves.fixed_lengths.get(name), arrays[name]
    if fixed is None:
        return
    missing = fixed - ids.shape[1]
    if missing < 0:
        raise ValueError(
            f"`{name}` must have at most {fixed} tokens, the length that the artefact "
            f"was exported with. Received: {name}.shape={ids.shape}"
        )
    behind = [(0, 0), (0, missing)]
    arrays[name] = np.pad(ids, behind, constant_values=pad_token_id)
    arrays[MASKS[name]] = np.pad(arrays[MASKS[name]], behind)
