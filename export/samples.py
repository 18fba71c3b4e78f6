"""Inputs to try a model on: the caller's, or made up from what the model declares.

B batch, T length.
"""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_attn.decoding import next_state
from keras_attn.export.inference import reference
from keras_attn.export.shapes import Specs, batch_of, open_batch, open_lengths
from keras_attn.export.signatures import PREFILL, STEP, Signature

Inputs = dict[str, np.ndarray]
Case = tuple[str, Inputs]

_SEED = 20260101
# What unknown sizes become: (batch, length) of the first sample and of the second.
# A model of images may need more pixels than a model of tokens needs tokens.
_SIZES = (
    ((2, 7), (3, 5)),
    ((2, 32), (3, 64)),
    ((2, 64), (3, 96)),
    ((1, 224), (2, 256)),
    ((2, 3), (3, 2)),
)
# Identifiers are drawn below the largest of these that the model takes.
_ID_LIMITS = (97, 11, 5, 3)
_VERIFIED_ROWS = 8
_TEXTS = (
    "A man sleeps on a green couch.",
    "Größe, naïveté — and 42 kinds of punctuation: (yes)!",
    "",
    "東京 is a city. 🙂",
    "word " * 600,
)
_CALIBRATION_STEPS = 4


def named(signature: Signature, sample_inputs: Any) -> Inputs:
    """The caller's sample as arrays by input name.

    Args:
        signature: The signature that takes them.
        sample_inputs: A dictionary by input name, or what the model is called with.

    Returns:
        Arrays by name, in the signature's dtypes.
    """
    specs = signature.inputs
    if isinstance(sample_inputs, dict) and set(sample_inputs) == set(specs):
        values = [sample_inputs[name] for name in specs]
    elif isinstance(sample_inputs, dict):
        raise ValueError(
            f"`sample_inputs` must have the keys {sorted(specs)}. "
            f"Received: keys {sorted(sample_inputs)}"
        )
    else:
        values = keras.tree.flatten(sample_inputs)
        if all(isinstance(value, bool | int | float | str) for value in values):
            # A list of numbers, however nested, is one array, and so are texts.
            values = [sample_inputs]
    if len(values) != len(specs):
        raise ValueError(
            f"`sample_inputs` must hold {len(specs)} arrays, for the inputs "
            f"{list(specs)}. Received: {len(values)} arrays"
        )
    result = {}
    for (name, spec), value in zip(specs.items(), values, strict=True):
        array = np.asarray(value).astype(spec.dtype.as_numpy_dtype)
        if not spec.shape.is_compatible_with(array.shape) or 0 in array.shape:
            raise ValueError(
                f"`sample_inputs[{name!r}]` must have the shape {tuple(spec.shape)}, "
                f"None being any size but 0. Received: shape={array.shape}"
            )
        result[name] = array
    return result


def cases(
    signatures: list[Signature], specs: dict[str, Specs], sample: Inputs | None
) -> Iterator[Case]:
    """What to compare an artefact with Keras on.

    Made one by one, as they are asked for: a state with the caches of a language model
    is large.

    Args:
        signatures: `[serve]`, with others of its kind, or `[prefill, step]`.
        specs: The artefact's inputs, by signature and name.
        sample: The caller's inputs of the first signature; None makes some up.

    Yields:
        `(signature name, inputs)`: one sample, a second of another size where the
        artefact is dynamic, and two steps after each prompt.
    """
    first = signatures[0]
    given = specs[first.name]
    if sample is not None:
        drawn = [_rows(sample, given, _VERIFIED_ROWS)]
        if open_batch(given):
            drawn.append({name: value[:1] for name, value in drawn[0].items()})
    else:
        drawn = _made_up(first, given)
    row: Inputs = {}
    for inputs in drawn:
        yield first.name, inputs
        if first.name == PREFILL:
            for step in _steps(signatures, specs, inputs, count=2):
                yield STEP, step
                row = {name: value[:1] for name, value in step.items()}
    if first.name == PREFILL:
        if open_batch(specs[STEP]):
            # As beam search will: several rows for one row of the prompt.
            yield STEP, {k: np.repeat(v, 2, axis=0) for k, v in row.items()}
        return
    for other in signatures[1:]:
        for inputs in _made_up(other, specs[other.name]):
            yield other.name, inputs


def calibration(
    signatures: list[Signature],
    specs: dict[str, Specs],
    sample: Inputs,
    most: int | None = None,
) -> Iterator[Case]:
    """Inputs to calibrate on: all of the caller's, in the batches the artefact takes.

    Args:
        signatures: As in `cases`.
        specs: As in `cases`.
        sample: The caller's inputs of the first signature.
        most: Rows of a batch where the artefact takes any number. None = all of them.

    Yields:
        `(signature name, inputs)`.
    """
    first = signatures[0]
    total = max(len(value) for value in sample.values())
    size = batch_of(specs[first.name]) or most or total
    for start in range(0, total, size):
        chunk = {name: value[start : start + size] for name, value in sample.items()}
        inputs = _rows(chunk, specs[first.name], size)
        yield first.name, inputs
        if first.name == PREFILL:
            for step in _steps(signatures, specs, inputs, _CALIBRATION_STEPS):
                yield STEP, step


def _rows(sample: Inputs, specs: Specs, most: int) -> Inputs:
    """As many rows as the artefact takes, repeated from the top if there are fewer."""
    size = batch_of(specs)
    result = {}
    for name, value in sample.items():
        wanted = min(len(value), most) if size is None else size
        result[name] = np.take(value, np.arange(wanted) % len(value), axis=0)
        if not specs[name].shape.is_compatible_with(result[name].shape):
            raise ValueError(
                f"`sample_inputs[{name!r}]` does not fit the artefact, which takes "
                f"{tuple(specs[name].shape)}. Received: shape={value.shape}"
            )
    return result


def _steps(
    signatures: list[Signature], specs: dict[str, Specs], prompt: Inputs, count: int
) -> Iterator[Inputs]:
    """The inputs of the steps that greedily continue a prompt, from Keras."""
    prefill, step = signatures
    # What `step` takes and `prefill` does not return is an input of `prefill`.
    state = {**prompt, **reference(prefill, prompt)}
    rows = len(state["logits"])
    # Of an artefact with a fixed number of beams, each row as many times.
    beams = (batch_of(specs[STEP]) or rows) // rows
    if beams > 1:
        state = {name: np.repeat(array, beams, axis=0) for name, array in state.items()}
    for number in range(count):
        state["token_ids"] = state["logits"].argmax(axis=-1).astype(np.int32)  # (B,)
        missing = sorted(set(step.inputs) - set(state))
        if missing:
            raise ValueError(
                "`prefill` of an `IncrementalPair` must take or return every state "
                f"that `step` takes. Received: none named {missing}"
            )
        inputs = {name: state[name] for name in step.inputs}
        yield inputs
        if number < count - 1:
            state = next_state(state, reference(step, inputs))


def _made_up(signature: Signature, specs: Specs) -> list[Inputs]:
    """Draws a sample, and a second one of another size where sizes are open."""
    failure: Exception | None = None
    for (batch, length), (other_batch, other_length) in _SIZES:
        if signature.name == PREFILL:
            # Each row has caches for as many tokens as the model has positions.
            batch, other_batch = 1, 2
        limits = dict.fromkeys(specs, 2)
        try:
            reference(signature, _draw(specs, batch, length, limits))
        except (tf.errors.OpError, ValueError) as error:
            failure = error
            if not open_lengths(specs):
                break
            continue
        limits = _id_limits(signature, specs, batch, length)
        result = [_draw(specs, batch, length, limits)]
        if open_batch(specs) or open_lengths(specs):
            second = _draw(specs, other_batch, other_length, limits)
            if not _runs(signature, second):
                second = _draw(specs, other_batch, length, limits)
            result.append(second)
        return result
    raise ValueError(
        "`sample_inputs` is needed: the model takes none of the inputs that were made "
        f"up from its shapes ({failure}). Received: sample_inputs=None"
    ) from failure


def _id_limits(
    signature: Signature, specs: Specs, batch: int, length: int
) -> dict[str, int]:
    """Finds how far the identifiers of each input go, by trying."""
    limits = dict.fromkeys(specs, 2)
    for name, spec in specs.items():
        if not spec.dtype.is_integer or _is_mask(name, spec):
            continue
        for limit in _ID_LIMITS:
            tried = {**limits, name: limit}
            if _runs(signature, _draw(specs, batch, length, tried)):
                limits = tried
                break
    return limits


def _runs(signature: Signature, inputs: Inputs) -> bool:
    try:
        reference(signature, inputs)
    except (tf.errors.OpError, ValueError):
        return False
    return True


def _draw(specs: Specs, batch: int, length: int, limits: dict[str, int]) -> Inputs:
    # One seed a draw: a sample depends on its own sizes, not on what was tried before.
    random = np.random.default_rng(_SEED)
    return {
        name: _array(name, spec, batch, length, limits[name], random)
        for name, spec in specs.items()
    }


def _array(
    name: str,
    spec: tf.TensorSpec,
    batch: int,
    length: int,
    limit: int,
    random: np.random.Generator,
) -> np.ndarray:
    shape = [
        size or (batch if axis == 0 else length) for axis, size in enumerate(spec.shape)
    ]
    dtype = spec.dtype.as_numpy_dtype
    if spec.dtype == tf.string:
        chosen = (np.arange(np.prod(shape)) + len(name)) % len(_TEXTS)
        return np.array(_TEXTS, object)[chosen].reshape(shape)
    if _is_mask(name, spec):
        mask = np.ones(shape, bool)
        if len(shape) == 2:
            # Row r has r padded positions, and one real token at the least.
            real = np.maximum(shape[1] - np.arange(shape[0]), 1)
            mask = np.arange(shape[1]) < real[:, None]
        return mask.astype(dtype)
    if spec.dtype.is_integer:
        # 0 is what most vocabularies pad with, and a row of padding proves nothing.
        return random.integers(0 if limit == 2 else 1, limit, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def _is_mask(name: str, spec: tf.TensorSpec) -> bool:
    return spec.dtype == tf.bool or "mask" in name
