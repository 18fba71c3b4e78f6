"""Calls artefacts of any format in the same way: dictionaries in and out.

Loading and running a `.tflite` or `.onnx` file imports neither TensorFlow nor Keras.
"""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from keras_attn.checks.arguments import check_fits, get_empty_axes
from keras_attn.checks.indices import IndexRange, check_indices
from keras_attn.checks.inputs import (
    MASKED_INPUTS,
    check_finite,
    check_length,
    check_rows,
    smallest_rows,
)
from keras_attn.export import metadata
from keras_attn.export.errors import ExportError
from keras_attn.export.formats import ANY_ARTEFACT, format_at
from keras_attn.export.metadata import IndexRanges
from keras_attn.export.runtimes import Engine
from keras_attn.export.signature_info import (
    IMAGE_BYTES,
    PREFILL,
    SERVE,
    STEP,
    SignatureInfo,
    TensorInfo,
)


class Runner:
    """An exported artefact, loaded and ready to call; thread-safe.

    SavedModel and ONNX run calls from several threads in parallel. A LiteRT
    interpreter has one set of buffers, so its calls are serialized; for parallel calls,
    load one runner per thread; the runners share the pages of the file. A call uses
    every CPU on which the process may run.

    Args:
        engine: The artefact in its runtime; `load_runner` makes it.

    Attributes:
        format: `"saved_model"`, `"litert"` or `"onnx"`.
        signatures: Inputs and outputs of each signature, by its name, in the order of
            the model.
        max_length: For a generative artefact: the maximum number of tokens in the
            prompt and its continuation; None if unlimited, as in recurrent models.
        index_ranges: For inputs that index a table (token ids, positions), by
            signature and name: the smallest index and the first one that is too large.
            For an artefact from a different exporter: inputs named `…_ids` must not be
            negative, and ids that are too large are left to the runtime.
        length_ranges: For inputs whose length is limited, such as a text by the number
            of positions, by signature and name: the smallest length and the first one
            that is too large.

    Example:
        runner = load_runner("model.tflite")
        logits = runner({"token_ids": token_ids})["logits"]

    An artefact with the signatures `prefill` and `step` also works with
    `keras_attn.decoding.generate`.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        self.format = engine.format
        self.signatures = engine.signatures
        ranges = engine.index_ranges or _default_ranges(engine.signatures)
        self.index_ranges, self.length_ranges = metadata.split(ranges)
        step = self.signatures.get(STEP)
        # A decoder with caches has a mask of their used slots as an input of `step`.
        visible = step.inputs.get("visible") if step else None
        self.max_length = visible.shape[1] if visible else None

    def __call__(
        self, inputs: Mapping[str, Any], signature: str | None = None
    ) -> dict[str, np.ndarray]:
        """Runs a signature.

        Args:
            inputs: Arrays by input name. Dtypes are converted within their kind (int64
                to int32 if the values fit, float64 to float32), and masks of the
                integers 0 and 1 to bool.
            signature: Its name. None = `serve`, or the only signature.

        Returns:
            NumPy arrays by output name, in the order of the model.

        Raises:
            ValueError: If the signature, or a name, dtype or shape of the inputs does
                not match the artefact, an input is empty, too long or too short, an
                index is out of range, a number is NaN or infinite, or a row is all
                padding.
            ExportError: If the runtime cannot run it.
        """
        return self._run(self._choose(signature), inputs)

    def prefill(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Runs the prompt through a generative artefact.

        Args:
            inputs: Arrays by input name.
        """
        return self(inputs, PREFILL)

    def step(
        self, inputs: Mapping[str, Any], *, in_place: bool = False
    ) -> dict[str, np.ndarray]:
        """Runs one decoding step of a generative artefact.

        Args:
            inputs: Arrays by input name.
            in_place: Promises that arrays which were also passed to the previous step
                have since been changed only by
                `decoding.next_state(..., in_place=True)`. LiteRT then copies only the
                new slot of each cache.

        Returns:
            NumPy arrays by output name.
        """
        return self._run(self._choose(STEP), inputs, in_place)

    def _run(self, name: str, inputs, in_place: bool = False) -> dict[str, np.ndarray]:
        expected, ranges = self.signatures[name].inputs, self.index_ranges.get(name, {})
        arrays = _checked(inputs, expected, ranges)
        # The inputs of a step were computed by the artefact, and its caches are large.
        if name != STEP:
            _check_values(arrays, self.length_ranges.get(name, {}))
        outputs = self._engine.call(name, arrays, in_place)
        known = [key for key in self.signatures[name].outputs if key in outputs]
        return {**{key: outputs[key] for key in known}, **outputs}

    def _choose(self, signature: str | None) -> str:
        names = list(self.signatures)
        if signature is None and SERVE in names:
            return SERVE
        if signature is None and len(names) == 1:
            return names[0]
        if signature not in names:
            raise ValueError(
                f"`signature` must be one of {names}. Received: signature={signature!r}"
            )
        return signature


def load_runner(path: str | PathLike) -> Runner:
    """Loads an exported artefact into its stock runtime.

    Damage is detected only where the runtime's parser detects it. A weight or an
    attribute that was changed to a different valid value is found by `verify`, which
    compares with Keras.

    Args:
        path: A SavedModel folder, a `.tflite` file, an `.onnx` file, or a folder of
            ONNX graphs, one per signature.

    Returns:
        A `Runner`.

    Raises:
        ValueError: If `path` does not exist, or is none of these.
        ExportError: If the artefact cannot be read, is damaged, or its runtime rejects
            it.
        ImportError: If the runtime is not installed.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(f"`path` does not exist. Received: path={str(path)!r}")
    try:
        format = format_at(path)
        special = [x for x in path.rglob("*") if not (x.is_file() or x.is_dir())]
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror}") from error
    if special:
        # A runtime that opens a FIFO would wait forever.
        raise ValueError(
            "`path` must hold only regular files and folders. "
            f"Received: {str(special[0])!r}"
        )
    if format is None:
        raise ValueError(
            f"`path` must be one of: {ANY_ARTEFACT}. Received: path={str(path)!r}"
        )
    return Runner(format.runtime.Engine(path))


def _default_ranges(signatures: Mapping[str, SignatureInfo]) -> IndexRanges:
    """The ranges for an artefact without metadata: ids are not negative."""
    return {
        signature: {name: (0, None) for name in info.inputs if name.endswith("_ids")}
        for signature, info in signatures.items()
    }


def _checked(
    inputs: Mapping[str, Any],
    expected: Mapping[str, TensorInfo],
    ranges: Mapping[str, IndexRange],
) -> dict[str, np.ndarray]:
    if not isinstance(inputs, Mapping):
        raise ValueError(
            "`inputs` must be a dictionary, arrays by input name. "
            f"Received: inputs of type {type(inputs).__name__}"
        )
    if set(inputs) != set(expected):
        missing = sorted(set(expected) - set(inputs))
        unknown = sorted(set(inputs) - set(expected))
        raise ValueError(
            f"`inputs` must have the keys {sorted(expected)} "
            f"(missing: {missing}, unknown: {unknown}). "
            f"Received: keys {sorted(inputs)}"
        )
    return {
        name: _cast(name, inputs[name], info, ranges.get(name))
        for name, info in expected.items()
    }


def _check_values(
    arrays: Mapping[str, np.ndarray], lengths: Mapping[str, IndexRange]
) -> None:
    """Raises for a length, a number or a row that the model cannot handle."""
    for name, array in arrays.items():
        shown = f"inputs[{name!r}]"
        if name in lengths:
            check_length(shown, array.shape, lengths[name])
        if name in MASKED_INPUTS:
            check_rows(shown, array, smallest_rows(lengths, name))
        check_finite(shown, array)


def _cast(
    name: str, value: Any, info: TensorInfo, allowed: IndexRange | None
) -> np.ndarray:
    """Checks one input and converts it to the artefact's dtype."""
    empty_axes = get_empty_axes(name)
    name = f"inputs[{name!r}]"
    array = _strings(name, value) if info.dtype == "string" else _array(name, value)
    check_fits(name, array.shape, info.shape, empty_axes)
    if allowed is not None:
        check_indices(name, array, allowed)
    if info.dtype == "string" or array.dtype == info.dtype:
        return array
    # The tokenizers return integer masks.
    is_mask = info.dtype == "bool" and array.dtype.kind in "iu"
    if is_mask and not np.isin(array, (0, 1)).all():
        raise ValueError(
            f"`{name}` must be bool, or the integers 0 and 1. "
            f"Received: values from {array.min()} to {array.max()}"
        )
    # A signed integer may hold the values, as in a list.
    is_integer = array.dtype.kind in "iu" and np.issubdtype(info.dtype, np.integer)
    is_wider = np.can_cast(array.dtype, info.dtype, "same_kind")
    if not (is_mask or is_integer or is_wider):
        raise ValueError(
            f"`{name}` must be {info.dtype}. Received: dtype={array.dtype}"
        )
    if np.issubdtype(info.dtype, np.integer):
        limits = np.iinfo(info.dtype)
        check_indices(name, array, (limits.min, limits.max + 1))
    return array.astype(info.dtype)


def _array(name: str, value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be an array whose rows have the same length. "
            f"Received: {error}"
        ) from error


def _strings(name: str, value: Any) -> np.ndarray:
    """Converts strings, or bytes in UTF-8 or of image files, to an array of bytes."""
    array = np.asarray(value, object)
    is_file = name == f"inputs[{IMAGE_BYTES!r}]"
    wanted = "the bytes of files" if is_file else "strings, or bytes in UTF-8"
    flat = []
    for index, text in enumerate(array.ravel()):
        try:
            if not isinstance(text, bytes if is_file else str | bytes):
                raise TypeError
            flat.append(text.encode() if isinstance(text, str) else text)
            if not is_file:
                flat[-1].decode()
        except (TypeError, UnicodeError) as error:
            raise ValueError(
                f"`{name}` must be {wanted}. Received: {text!r} at index {index}"
            ) from error
    result = np.empty(len(flat), object)
    result[:] = flat
    return result.reshape(array.shape)
