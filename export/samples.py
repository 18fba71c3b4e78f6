"""Inputs for verification and calibration: the caller's, or random ones.

Legend: B batch, T length.
"""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_attn.checks.inputs import BOX_SHARES, MASKED_INPUTS
from keras_attn.decoding import next_state
from keras_attn.export.shapes import Specs
from keras_attn.export.signature_info import IMAGE_BYTES
from keras_attn.export.signatures import PREFILL, STEP, Signature
from keras_attn.layers import MinimumImageSize

Inputs = dict[str, np.ndarray]
Case = tuple[str, Inputs]

_SEED = 20260101
# Unknown sizes: (batch, length) of the first sample and of the second, tried in turn.
_SIZES = (
    ((2, 7), (3, 5)),
    ((2, 32), (3, 64)),
    ((2, 64), (3, 96)),
    ((1, 224), (2, 256)),
    ((2, 3), (3, 2)),
)
# Values of a row of an input from which batches are smaller.
_LARGE = 400 * 400 * 3
_SIZES_IF_LARGE = tuple(((1, first), (2, second)) for (_, first), (_, second) in _SIZES)
# Rows and columns of images: more than the tokens a language model needs, because a
# runtime may reject maps of a single location, which the model accepts.
_IMAGE_SIZES = (
    ((2, 37), (3, 51)),
    ((2, 101), (2, 139)),
    ((1, 224), (2, 256)),
    ((1, 512), (1, 640)),
)
# Random ids are less than the first of these that the model accepts.
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


def named(signature: Signature, sample_inputs: Any) -> Inputs | None:
    """The caller's sample as arrays by input name.

    Args:
        signature: The signature that is called with them.
        sample_inputs: A dictionary by input name, what the model is called with, or
            None.

    Returns:
        Arrays by name, in the signature's dtypes; None without samples.
    """
    if sample_inputs is None:
        return None
    specs = signature.inputs
    if isinstance(sample_inputs, dict):
        sample_inputs = _with_masks(sample_inputs, specs)
    if isinstance(sample_inputs, dict) and set(sample_inputs) == set(specs):
        given = sample_inputs
    else:
        given = _by_structure(signature.structure, sample_inputs)
    if given is None:
        given = _by_position(signature, sample_inputs)
    result = {}
    for name, spec in specs.items():
        array = _as_array(f"sample_inputs[{name!r}]", given[name], spec.dtype)
        if not spec.shape.is_compatible_with(array.shape) or 0 in array.shape:
            raise ValueError(
                f"`sample_inputs[{name!r}]` must have the shape {tuple(spec.shape)}, "
                f"where None is any size but 0. Received: shape={array.shape}"
            )
        result[name] = array
    return result


def _as_array(name: str, value: Any, dtype: tf.DType) -> np.ndarray:
    """A value of the caller in the dtype of its input.

    Raises:
        ValueError: If it is not an array, or has a number that the dtype cannot hold.
    """
    wanted = dtype.as_numpy_dtype
    try:
        # NumPy's own strings would lose zeros at the end of a file.
        given = np.asarray(value, object if dtype == tf.string else None)
        array = given.astype(wanted)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{name}` must be an array of {dtype.name}. Received: a value of type "
            f"{type(value).__name__}, {error}"
        ) from error
    if (dtype.is_integer or dtype.is_bool) and not np.array_equal(array, given):
        first = given[array != given].flat[0]
        raise ValueError(
            f"`{name}` must be {dtype.name}, which cannot hold each of its numbers. "
            f"Received: {first} in an array of {given.dtype}"
        )
    return array


def _by_structure(structure: Any, sample: Any) -> dict[str, Any] | None:
    """The arrays by name of a sample in the structure that the model is called with.

    Returns:
        None if it has another structure, or the model has none of its own.
    """
    if not keras.tree.is_nested(structure):
        return None
    given: dict[str, Any] = {}
    try:
        keras.tree.map_structure_up_to(
            structure,
            lambda name, value: given.update({name: value}),
            structure,
            sample,
        )
    except (ValueError, TypeError, KeyError):
        return None
    return given


def _by_position(signature: Signature, sample: Any) -> dict[str, Any]:
    """The arrays by name of a sample in the order in which Keras flattens inputs."""
    names = list(signature.inputs)
    if isinstance(sample, dict):
        raise ValueError(
            f"`sample_inputs` must have the keys {sorted(names)}. "
            f"Received: keys {sorted(map(str, sample))}"
        )
    if signature.structure is not None:
        names = keras.tree.flatten(signature.structure)
    values = keras.tree.flatten(sample)
    if all(isinstance(value, bool | int | float | str | bytes) for value in values):
        # A nested list of numbers or strings is one array.
        values = [sample]
    if len(values) != len(names):
        raise ValueError(
            f"`sample_inputs` must hold {len(names)} arrays, for the inputs {names}. "
            f"Received: {len(values)} arrays"
        )
    return dict(zip(names, values, strict=True))


def _with_masks(sample: dict[str, Any], specs: dict[str, Any]) -> dict[str, Any]:
    """The sample, with a mask that marks all tokens as real where it has none.

    A decoding pair takes a mask of the prompt that the model itself may lack.
    """
    masks = {
        mask: np.ones(np.shape(sample[name])[:2], bool)
        for mask, names in MASKED_INPUTS.items()
        for name in names
        if mask in specs and mask not in sample and name in sample
    }
    return {**sample, **masks}


def cases(
    signatures: list[Signature], specs: dict[str, Specs], sample: Inputs | None
) -> Iterator[Case]:
    """Inputs on which an artefact is compared with Keras.

    This is a generator, because the caches in the state of a language model are large.

    Args:
        signatures: `[serve]`, `[serve, serve_pair]` or `[prefill, step]`.
        specs: The artefact's inputs, by signature and name.
        sample: The caller's inputs of the first signature; None = random ones.

    Yields:
        `(signature name, inputs)`: one sample, a second of a different size if the
        artefact has unknown sizes, and two steps after each prompt.
    """
    first = signatures[0]
    given = specs[first.name]
    if sample is not None:
        batches = [_rows(sample, given, _VERIFIED_ROWS)]
        if given.has_open_batch:
            batches.append({name: value[:1] for name, value in batches[0].items()})
    else:
        batches = _random_batches(first, given)
    row: Inputs = {}
    for inputs in batches:
        yield first.name, inputs
        if first.name == PREFILL:
            for step in _steps(signatures, specs, inputs, count=2):
                yield STEP, step
                row = {name: value[:1] for name, value in step.items()}
    if first.name == PREFILL:
        if specs[STEP].has_open_batch:
            # Several rows for one row of the prompt, as in beam search.
            yield STEP, {k: np.repeat(v, 2, axis=0) for k, v in row.items()}
        return
    for other in signatures[1:]:
        for inputs in _random_batches(other, specs[other.name]):
            yield other.name, inputs


def calibration(
    signatures: list[Signature],
    specs: dict[str, Specs],
    sample: Inputs,
    max_batch: int | None = None,
) -> Iterator[Case]:
    """All of the caller's inputs, in batches that fit the artefact.

    Args:
        signatures: As in `cases`.
        specs: As in `cases`.
        sample: The caller's inputs of the first signature.
        max_batch: Rows per batch if the batch size is unknown. None = all rows.

    Yields:
        `(signature name, inputs)`.
    """
    first = signatures[0]
    total = max(len(value) for value in sample.values())
    size = specs[first.name].batch or max_batch or total
    for start in range(0, total, size):
        chunk = {name: value[start : start + size] for name, value in sample.items()}
        inputs = _rows(chunk, specs[first.name], size)
        yield first.name, inputs
        if first.name == PREFILL:
            for step in _steps(signatures, specs, inputs, _CALIBRATION_STEPS):
                yield STEP, step


def _rows(sample: Inputs, specs: Specs, max_rows: int) -> Inputs:
    """The first rows of a sample; repeated if the artefact has a larger batch size."""
    size = specs.batch
    result = {}
    for name, value in sample.items():
        wanted = min(len(value), max_rows) if size is None else size
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
    """The inputs of the first steps of greedy decoding, computed by Keras."""
    prefill, step = signatures
    # Inputs of `step` that `prefill` does not return are inputs of `prefill`.
    state = {**prompt, **prefill.reference(prompt)}
    rows = len(state["logits"])
    batch = specs[STEP].batch or rows
    # With a fixed number of beams each row is repeated for its beams.
    beams = max(batch // rows, 1)
    if beams > 1:
        state = {name: np.repeat(array, beams, axis=0) for name, array in state.items()}
    for number in range(count):
        state["token_ids"] = state["logits"].argmax(axis=-1).astype(np.int32)  # (B,)
        missing = sorted(set(step.inputs) - set(state))
        if missing:
            raise ValueError(
                "`prefill` of an `IncrementalPair` must take or return every state "
                f"that `step` takes. Received: no state named {missing}"
            )
        inputs = {name: state[name] for name in step.inputs}
        # One row at a time if only the batch of `step` had to be fixed.
        for start in range(0, rows * beams, batch):
            yield {k: value[start : start + batch] for k, value in inputs.items()}
        if number < count - 1:
            state = next_state(state, step.reference(inputs))


def _random_batches(signature: Signature, specs: Specs) -> list[Inputs]:
    """A random batch, and a second one of a different size if sizes are unknown."""
    failure: Exception | None = None
    for (batch, length), (other_batch, other_length) in _sizes(signature, specs):
        if signature.name == PREFILL:
            # The caches of each row are as long as the model has positions.
            batch, other_batch = 1, 2
        limits = dict.fromkeys(specs, 2)
        failure = _failure(signature, _random_batch(specs, batch, length, limits))
        if failure is not None:
            if specs.open_lengths:
                continue
            break
        limits = _id_limits(signature, specs, batch, length)
        result = [_random_batch(specs, batch, length, limits)]
        if specs.has_open_batch or specs.open_lengths:
            second = _random_batch(specs, other_batch, other_length, limits)
            if _failure(signature, second) is not None:
                second = _random_batch(specs, other_batch, length, limits)
            result.append(second)
        return result
    sizes = ", of up to 640 pixels a side" if specs.open_images else ""
    raise ValueError(
        "`sample_inputs` is needed: the model fails on random inputs of its shapes"
        f"{sizes} ({failure}). Received: sample_inputs=None"
    ) from failure


def _sizes(signature: Signature, specs: Specs):
    """Pairs of (batch, length) to try."""
    if not specs.open_images:
        # A detector takes over 1 GB for each image of 512 pixels.
        is_large = any(
            np.prod([size or 1 for size in spec.shape[1:]]) > _LARGE
            for spec in specs.values()
        )
        return _SIZES_IF_LARGE if is_large else _SIZES
    for layer in signature.model._flatten_layers():
        if isinstance(layer, MinimumImageSize):
            (batch, side), (other_batch, _) = _IMAGE_SIZES[0]
            side = layer.accepted_side(side)
            if side is not None:
                other = layer.accepted_side(side + 1) or side
                return ((batch, side), (other_batch, other)), *_IMAGE_SIZES, *_SIZES
    return _IMAGE_SIZES + _SIZES


def _id_limits(
    signature: Signature, specs: Specs, batch: int, length: int
) -> dict[str, int]:
    """Finds by trial how large the ids of each input may be, below a known limit."""
    limits = dict.fromkeys(specs, 2)
    for name, spec in specs.items():
        if not spec.dtype.is_integer or _is_mask(name, spec):
            continue
        _, stop = signature.index_ranges.get(name, (0, None))
        for limit in _ID_LIMITS:
            if stop is not None:
                # The second batch may have larger ids than the first, which is tried.
                limit = max(2, min(limit, stop))
            tried = {**limits, name: limit}
            inputs = _random_batch(specs, batch, length, tried)
            if _failure(signature, inputs) is None:
                limits = tried
                break
    return limits


def _failure(signature: Signature, inputs: Inputs) -> Exception | None:
    """The error of Keras on inputs; None if it takes them."""
    try:
        signature.reference(inputs)
    except (tf.errors.OpError, ValueError) as error:
        return error
    return None


def _random_batch(
    specs: Specs, batch: int, length: int, limits: dict[str, int]
) -> Inputs:
    # Reseeded, so that it depends on its own sizes and not on earlier attempts.
    random = np.random.default_rng(_SEED)
    result = {}
    for name, spec in specs.items():
        unknown = [batch, *[length] * len(spec.shape)]
        shape = [size or unknown[axis] for axis, size in enumerate(spec.shape)]
        result[name] = _random_array(name, spec, shape, limits[name], random)
    return result


def _random_array(
    name: str, spec: tf.TensorSpec, shape: list[int], limit: int, random: Any
) -> np.ndarray:
    dtype = spec.dtype.as_numpy_dtype
    if name == IMAGE_BYTES:
        files = np.empty(shape, object)
        for index in range(len(files)):
            # Neighbors differ in size.
            rows, columns = 61 + index % 7, 83 - index % 5
            pixels = random.integers(0, 256, (rows, columns, 3))
            files[index] = tf.io.encode_png(pixels.astype(np.uint8)).numpy()
        return files
    if spec.dtype == tf.string:
        chosen = (np.arange(np.prod(shape)) + len(name)) % len(_TEXTS)
        return np.array(_TEXTS, object)[chosen].reshape(shape)
    if _is_mask(name, spec):
        mask = np.ones(shape, bool)
        if len(shape) == 2:
            # Row r has r padded positions, but at least one real token.
            real = np.maximum(shape[1] - np.arange(shape[0]), 1)
            mask = np.arange(shape[1]) < real[:, None]
        return mask.astype(dtype)
    if name in BOX_SHARES:
        # Left before right, top before bottom.
        corners = np.sort(random.random((*shape[:-1], 2, 2)), axis=-2)
        return corners.reshape(shape).astype(dtype)
    if spec.dtype.is_integer:
        # Not 0, which most vocabularies pad with: padding verifies nothing.
        return random.integers(0 if limit == 2 else 1, limit, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def _is_mask(name: str, spec: tf.TensorSpec) -> bool:
    return spec.dtype == tf.bool or "mask" in name
