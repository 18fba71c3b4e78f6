"""Calls artefacts of any format in the same way: arrays by name, texts or images in.

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
from keras_attn.class_predictions import decode_predictions
from keras_attn.export import metadata
from keras_attn.export.errors import ExportError
from keras_attn.export.formats import ANY_ARTEFACT, format_at
from keras_attn.export.given_inputs import is_pairs, name_inputs
from keras_attn.export.metadata import IndexRanges
from keras_attn.export.runtimes import Engine
from keras_attn.export.signature_info import (
    IMAGE_BYTES,
    PREFILL,
    SERVE,
    SERVE_PAIR,
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
        tokenizer: See `load_runner`.

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
        class_names: The name of each class, in the order of the logits, as the
            exported model had it; None if it had none.
        preprocessing: How images become inputs, the arguments of
            `ImagePreprocessing`, from the `preprocessing` of the exported model; None
            if it had none, or if the artefact preprocesses images itself.

    Example:
        Needs an exported file and photos:

        ```python
        from keras_attn.export import load_runner

        runner = load_runner("vit.tflite")
        logits = runner(["cat.jpg", "dog.jpg"])["logits"]
        print(runner.decode_predictions(logits, top=3))
        ```

    An artefact with the signatures `prefill` and `step` also works with
    `keras_attn.decoding.generate`.
    """

    def __init__(self, engine: Engine, tokenizer: Any = None):
        self._engine, self._tokenizer = engine, tokenizer
        self.format = engine.format
        self.signatures = engine.signatures
        ranges = engine.index_ranges or _default_ranges(engine.signatures)
        self.index_ranges, self.length_ranges = metadata.split(ranges)
        self.class_names, self.preprocessing = engine.description
        step = self.signatures.get(STEP)
        # A decoder with caches has a mask of their used slots as an input of `step`.
        visible = step.inputs.get("visible") if step else None
        self.max_length = visible.shape[1] if visible else None

    def __call__(
        self, inputs: Any, signature: str | None = None
    ) -> dict[str, np.ndarray]:
        """Runs a signature.

        Args:
            inputs: Arrays by input name. Dtypes are converted within their kind (int64
                to int32 if the values fit, float64 to float32), and masks of the
                integers 0 and 1 to bool. Or, without a name:

                - a text, or a list of texts or of pairs (tuples of two texts), for an
                  artefact with a tokenizer, its own or that of `load_runner`;
                - an image or a list of them, for an artefact of images: paths, images
                  of Pillow, or uint8 arrays (rows, columns, channels), turned upright
                  and preprocessed as `preprocessing` says;
                - the array of the only input.

                An artefact of a fixed number of rows then takes any number: in parts,
                the last one filled up with copies of its last row.
            signature: Its name. None = `serve`, or the only signature; for pairs of
                texts `serve_pair`, if there is one.

        Returns:
            NumPy arrays by output name, in the order of the model.

        Raises:
            ValueError: If the signature, or a name, dtype or shape of the inputs does
                not match the artefact, an input is empty, too long or too short, an
                index is out of range, a number is NaN or infinite, or a row is all
                padding.
            ExportError: If the runtime cannot run it.
        """
        if isinstance(inputs, Mapping):
            return self._run(self._choose(signature), inputs)
        if signature is None and SERVE_PAIR in self.signatures and is_pairs(inputs):
            signature = SERVE_PAIR
        name = self._choose(signature)
        info = self.signatures[name]
        _, first_too_long = self.length_ranges.get(name, {}).get("token_ids", (0, None))
        longest = None if first_too_long is None else first_too_long - 1
        named = name_inputs(inputs, info, self.preprocessing, self._tokenizer, longest)
        return self._run_in_parts(name, named)

    def decode_predictions(
        self, preds: Any, top: int = 5, from_logits: bool | None = None
    ) -> list[list[tuple[int, str, float]]]:
        """The classes with the highest scores of each row, the best first.

        Args:
            preds: Logits or probabilities (B, C), an output of the artefact.
            top: How many classes of each row; all, if there are fewer.
            from_logits: Whether `preds` are logits, of which the softmax is taken.
                None = unless each row is of probabilities, whose sum is 1.

        Returns:
            A list for each row, of the number, name (`class_names`; without them, the
            number as text) and probability of each class.

        Raises:
            ValueError: If an argument is wrong, or there are not as many classes as
                names.
        """
        return decode_predictions(preds, self.class_names, top, from_logits)

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

    def _run_in_parts(self, name: str, inputs: Mapping[str, Any]) -> dict:
        """Runs any number of rows, in parts if the artefact takes one number only."""
        info = self.signatures[name]
        rows = {each.shape[0] if each.shape else None for each in info.inputs.values()}
        (fixed,) = rows if len(rows) == 1 else (None,)
        is_named = set(inputs) == set(info.inputs)
        counts = {
            len(value)
            for value in inputs.values()
            if isinstance(value, list) or getattr(value, "ndim", 0)
        }
        if fixed is None or not is_named or len(counts) != 1 or counts <= {0, fixed}:
            return self._run(name, inputs)
        (count,) = counts
        parts = []
        for first in range(0, count, fixed):
            places = np.minimum(np.arange(first, first + fixed), count - 1)
            part = {
                key: [value[row] for row in places] for key, value in inputs.items()
            }
            parts.append(self._run(name, part))
        return {
            key: np.concatenate([part[key] for part in parts])[:count]
            for key in (parts[0] if parts else ())
        }

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


def load_runner(path: str | PathLike, *, tokenizer: Any = None) -> Runner:
    """Loads an exported artefact into its stock runtime.

    Damage is detected only where the runtime's parser detects it. A weight or an
    attribute that was changed to a different valid value is found by `verify`, which
    compares with Keras.

    Args:
        path: A SavedModel folder, a `.tflite` file, an `.onnx` file, or a folder of
            ONNX graphs, one per signature.
        tokenizer: What makes ids of texts, for an artefact that takes ids: an object
            with the `encode_batch` of our tokenizers, or a folder for
            `data.load_text_tokenizer`, which imports TensorFlow. None = the runner
            takes ids, or texts if its tokenizer is inside.

    Returns:
        A `Runner`.

    Raises:
        ValueError: If `path` does not exist, or is none of these, or `tokenizer` is not
            the folder of one.
        TypeError: If `tokenizer` is something else.
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
    if isinstance(tokenizer, str | PathLike):
        # Here, because it imports TensorFlow.
        from keras_attn.data import load_text_tokenizer

        tokenizer = load_text_tokenizer(tokenizer)
    if tokenizer is not None and not hasattr(tokenizer, "encode_batch"):
        raise TypeError(
            "`tokenizer` must be a folder, or have the `encode_batch` of our "
            f"tokenizers. Received: tokenizer={tokenizer!r}"
        )
    return Runner(format.runtime.Engine(path), tokenizer)


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
