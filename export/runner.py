"""Call an artefact of any format the same way: a dictionary in, a dictionary out."""

import importlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from keras_attn.checks import check_fits, empty_axes_of
from keras_attn.export import metadata
from keras_attn.export.errors import ExportError, RefusedError, missing_extra
from keras_attn.export.files import ONNX_OUTPUT_NAMES, format_at, size_of
from keras_attn.export.formats.litert_step import LiteRTStep
from keras_attn.export.metadata import IndexRanges
from keras_attn.export.signatures import PREFILL, SERVE, STEP
from keras_attn.indices import IndexRange, check_indices
from keras_attn.silence import silence

Arrays = dict[str, np.ndarray]

# Bytes of an ONNX folder above which its sessions share the weights, mapped from the
# file. Below it each packs a copy of its own, with which a prompt takes two thirds to
# three quarters of the time and a single token as long.
_LARGEST_PACKED = 2**31


@dataclass(frozen=True)
class TensorInfo:
    """Shape and dtype of one input or output.

    Attributes:
        shape: Sizes; None where any size is taken.
        dtype: NumPy's name of the dtype.
    """

    shape: tuple[int | None, ...]
    dtype: str

    def __str__(self) -> str:
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype} ({sizes})"


@dataclass(frozen=True)
class SignatureInfo:
    """The inputs and the outputs of one signature, by name."""

    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]


class Engine(Protocol):
    """One stock runtime, with a file loaded.

    Attributes:
        format: As of `Runner`.
        signatures: As of `Runner`.
        index_ranges: As of `Runner`; None where the artefact does not say.
    """

    format: str
    signatures: dict[str, SignatureInfo]
    index_ranges: IndexRanges | None

    def call(self, signature: str, inputs: Arrays, in_place: bool) -> dict:
        """Runs one signature on checked inputs; several threads may call it at once.

        Args:
            signature: Its name.
            inputs: Arrays by name.
            in_place: As of `Runner.step`.

        Returns:
            Arrays by output name, which no later call writes to.
        """
        ...


class Runner:
    """An exported artefact, ready to call, from several threads if need be.

    A SavedModel and an ONNX graph run as many calls at once as there are threads; a
    LiteRT interpreter has one set of buffers, so its calls wait for one another. To
    run several at once load a runner for each thread, which share the pages of the
    file.

    Attributes:
        format: `"saved_model"`, `"litert"` or `"onnx"`.
        signatures: Inputs and outputs of each signature, by its name.
        max_length: Of a generative artefact: the most tokens that prompt and
            continuation may have together; None where it has no limit, as a
            recurrent one.
        index_ranges: By signature and name, of an input that indexes a table (token
            ids, positions): the least index and the first that is too large. Empty
            for an artefact of another exporter: then inputs named `…_ids` must not
            be negative, and what is too large is up to the runtime.

    Example:
        runner = load_runner("model.tflite")
        logits = runner({"token_ids": token_ids})["logits"]

    One artefact with the signatures `prefill` and `step` also drives
    `keras_attn.decoding.generate`.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        self.format = engine.format
        self.signatures = engine.signatures
        self.index_ranges = engine.index_ranges or _least_ranges(engine.signatures)
        step = self.signatures.get(STEP)
        # Of a decoder with caches the step says which of their places are taken.
        visible = step.inputs.get("visible") if step else None
        self.max_length = visible.shape[1] if visible else None

    def __call__(
        self, inputs: Mapping[str, Any], signature: str | None = None
    ) -> dict[str, np.ndarray]:
        """Runs a signature.

        Args:
            inputs: Arrays by input name. A dtype is converted where no kind of number
                is lost (int64 to int32 if the numbers fit, float64 to float32, a mask
                of the integers 0 and 1 to bool).
            signature: Its name; None for the only one, or `serve`.

        Returns:
            NumPy arrays by output name.

        Raises:
            ValueError: Another signature, name, dtype or shape than the artefact's, an
                empty input, or an index (a token id, a position) out of range.
            ExportError: The runtime cannot run it.
        """
        return self._run(self._choose(signature), inputs)

    def prefill(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Runs the prompt of a generative artefact."""
        return self(inputs, PREFILL)

    def step(
        self, inputs: Mapping[str, Any], *, in_place: bool = False
    ) -> dict[str, np.ndarray]:
        """Runs one token of a generative artefact.

        Args:
            inputs: Arrays by input name, as in a call.
            in_place: Promises that an array that was given to the previous step, too,
                has been changed by `decoding.next_state(..., in_place=True)` alone
                since. LiteRT then copies what is new of the caches, and not all of
                them at each token.

        Returns:
            As a call.
        """
        return self._run(self._choose(STEP), inputs, in_place)

    def _run(self, name: str, inputs, in_place: bool = False) -> dict[str, np.ndarray]:
        expected, ranges = self.signatures[name].inputs, self.index_ranges.get(name, {})
        return self._engine.call(name, _checked(inputs, expected, ranges), in_place)

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

    Args:
        path: A SavedModel folder, a `.tflite` file, an `.onnx` file, or an ONNX folder
            with one graph a signature.

    Returns:
        A `Runner`.

    Raises:
        ValueError: Nothing is there, or it is none of these.
        ExportError: It is one, but cannot be read, is damaged, or its runtime refuses
            to load it.
        ImportError: The runtime is not installed.

    A damaged file is refused where the runtime's own parser sees the damage. A weight
    or an operator's setting changed into another valid one is noticed by `verify`
    alone, which compares with Keras.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(f"`path` does not exist. Received: path={str(path)!r}")
    engines = {
        "saved_model": _SavedModelEngine,
        "litert": _LiteRTEngine,
        "onnx": _OnnxEngine,
    }
    try:
        format = format_at(path)
        special = [file for file in path.rglob("*") if not _is_ordinary(file)]
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror}") from error
    if special:
        # A runtime that opens a FIFO waits for ever.
        raise ValueError(
            "`path` must hold ordinary files and folders alone. "
            f"Received: {str(special[0])!r}"
        )
    if format is None:
        raise ValueError(
            "`path` must be a SavedModel folder, a `.tflite` flatbuffer, an `.onnx` "
            f"file or a folder of them. Received: path={str(path)!r}"
        )
    return Runner(engines[format](path))


def _is_ordinary(path: Path) -> bool:
    return path.is_file() or path.is_dir()


def _least_ranges(signatures: Mapping[str, SignatureInfo]) -> IndexRanges:
    """What holds of ids whatever the model: none is negative."""
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


def _cast(
    name: str, value: Any, info: TensorInfo, allowed: IndexRange | None
) -> np.ndarray:
    empty_axes = empty_axes_of(name)
    name = f"inputs[{name!r}]"
    array = _texts(name, value) if info.dtype == "string" else _array(name, value)
    check_fits(name, array.shape, info.shape, empty_axes)
    if allowed is not None:
        check_indices(name, array, allowed)
    if info.dtype != "string" and array.dtype != info.dtype:
        # The tokenizers give masks of integers.
        is_mask = info.dtype == "bool" and array.dtype.kind in "iu"
        if is_mask and not np.isin(array, (0, 1)).all():
            raise ValueError(
                f"`{name}` must be bool, or the integers 0 and 1. "
                f"Received: values from {array.min()} to {array.max()}"
            )
        if not is_mask and not np.can_cast(array.dtype, info.dtype, "same_kind"):
            raise ValueError(
                f"`{name}` must be {info.dtype}. Received: dtype={array.dtype}"
            )
        if np.issubdtype(info.dtype, np.integer):
            limits = np.iinfo(info.dtype)
            check_indices(name, array, (limits.min, limits.max + 1))
        array = array.astype(info.dtype)
    return array


def _array(name: str, value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be an array, all of its rows equally long. "
            f"Received: {error}"
        ) from error


def _texts(name: str, value: Any) -> np.ndarray:
    """Strings, or bytes in UTF-8, as an array of bytes."""
    array = np.asarray(value, object)
    flat = []
    for index, text in enumerate(array.ravel()):
        try:
            if not isinstance(text, str | bytes):
                raise TypeError
            flat.append(text.encode() if isinstance(text, str) else text)
            flat[-1].decode()
        except (TypeError, UnicodeError) as error:
            raise ValueError(
                f"`{name}` must be strings, or bytes in UTF-8. "
                f"Received: number {index} is {text!r}"
            ) from error
    result = np.empty(len(flat), object)
    result[:] = flat
    return result.reshape(array.shape)


class _SavedModelEngine:
    format = "saved_model"

    def __init__(self, path: Path):
        import tensorflow as tf

        self._tf = tf
        try:
            # Held: the functions keep only weak references to its variables.
            self._loaded = self._load(path)
            functions = dict(self._loaded.signatures)
            if SERVE in functions:
                functions.pop("serving_default", None)
            self._functions = functions
            self.signatures = {
                name: SignatureInfo(
                    infos(function.structured_input_signature[1]),
                    infos(function.structured_outputs),
                )
                for name, function in functions.items()
            }
            self.index_ranges = metadata.read_saved_model(path)
        except ImportError:
            raise
        # A damaged file gives errors of every kind, down to a KeyError.
        except Exception as error:
            raise RefusedError(
                f"TensorFlow cannot load {path.name}: {error}"
            ) from error

    def _load(self, path: Path):
        with silence():
            try:
                return self._tf.saved_model.load(str(path))
            except (self._tf.errors.OpError, OSError, RuntimeError) as error:
                if "Op type not registered" not in str(error):
                    raise
            # A tokenizer is in it, whose operators come with this.
            try:
                importlib.import_module("tensorflow_text")
            except ImportError as error:
                raise missing_extra("tensorflow_text", "text") from error
            return self._tf.saved_model.load(str(path))

    def call(self, signature: str, inputs: Arrays, in_place: bool) -> dict:
        tensors = {k: self._tf.constant(v) for k, v in inputs.items()}
        try:
            outputs = self._functions[signature](**tensors)
            return {name: tensor.numpy() for name, tensor in outputs.items()}
        except Exception as error:  # Also of every kind, as those of the others.
            raise RefusedError(
                f"TensorFlow cannot run `{signature}`: {error}",
                signatures=(signature,),
            ) from error


def infos(specs: Mapping[str, Any]) -> dict[str, TensorInfo]:
    """Shapes and dtypes of TensorFlow specs or tensors, by name."""
    return {
        name: TensorInfo(tuple(spec.shape), spec.dtype.name)
        for name, spec in specs.items()
    }


class _LiteRTEngine:
    format = "litert"

    def __init__(self, path: Path):
        try:
            from ai_edge_litert.interpreter import Interpreter
        except ImportError as error:
            raise missing_extra("ai_edge_litert") from error
        try:
            with silence():
                self._interpreter = Interpreter(model_path=str(path))
                names = list(self._interpreter.get_signature_list())
                self._functions = {
                    name: self._interpreter.get_signature_runner(name) for name in names
                }
            self._step = LiteRTStep(self._functions.get(STEP))
            self.signatures = {
                name: SignatureInfo(
                    _details(function.get_input_details()),
                    _details(function.get_output_details()),
                )
                for name, function in self._functions.items()
            }
            self.index_ranges = metadata.read_litert(path)
        except Exception as error:
            raise RefusedError(f"LiteRT cannot load {path.name}: {error}") from error
        # The signatures of an interpreter share its buffers, inputs and outputs too.
        self._lock = threading.Lock()

    def call(self, signature: str, inputs: Arrays, in_place: bool) -> dict:
        try:
            with self._lock:
                if signature == STEP:
                    return self._step(inputs, in_place)
                return self._functions[signature](**inputs)
        except Exception as error:
            shapes = {name: value.shape for name, value in inputs.items()}
            raise RefusedError(
                f"LiteRT cannot run `{signature}` at {shapes}: {error}",
                signatures=(signature,),
            ) from error


def _details(details: Mapping[str, Mapping]) -> dict[str, TensorInfo]:
    return {
        name: TensorInfo(
            tuple(None if size < 0 else int(size) for size in info["shape_signature"]),
            np.dtype(info["dtype"]).name,
        )
        for name, info in details.items()
    }


class _OnnxEngine:
    format = "onnx"

    def __init__(self, path: Path):
        try:
            import onnxruntime
        except ImportError as error:
            raise missing_extra("onnxruntime") from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        if path.is_dir() and size_of(path) > _LARGEST_PACKED:
            options.add_session_config_entry("session.disable_prepacking", "1")
        files = (
            {f.stem: f for f in path.glob("*.onnx")} if path.is_dir() else {SERVE: path}
        )
        if len({PREFILL, STEP} & set(files)) == 1:
            lost = ({PREFILL, STEP} - set(files)).pop()
            raise RefusedError(f"{path.name} lacks {lost}.onnx, half of the pair")
        self._sessions, self._names, self.signatures = {}, {}, {}
        self.index_ranges = None
        for name, file in sorted(files.items()):
            try:
                session = onnxruntime.InferenceSession(
                    file, options, providers=["CPUExecutionProvider"]
                )
                self._add(name, session)
            except Exception as error:  # Its errors share no base class but this.
                raise RefusedError(
                    f"ONNX Runtime cannot load {file.name}: {error}"
                ) from error

    def _add(self, name: str, session) -> None:
        """Takes one graph in, with what its metadata say."""
        self._sessions[name] = session
        inputs, outputs = session.get_inputs(), session.get_outputs()
        properties = session.get_modelmeta().custom_metadata_map
        names = metadata.parse_json(properties.get(ONNX_OUTPUT_NAMES, "{}"))
        if not isinstance(names, dict) or not all(
            isinstance(value, str) for value in names.values()
        ):
            raise ValueError(f"its `{ONNX_OUTPUT_NAMES}` are no JSON object of names")
        self._names[name] = [names.get(value.name, value.name) for value in outputs]
        self.signatures[name] = SignatureInfo(
            {value.name: _onnx_info(value) for value in inputs},
            dict(zip(self._names[name], map(_onnx_info, outputs), strict=True)),
        )
        ranges = metadata.read_onnx(properties)
        if ranges is not None:
            self.index_ranges = ranges

    def call(self, signature: str, inputs: Arrays, in_place: bool) -> dict:
        try:
            outputs = self._sessions[signature].run(None, inputs)
        except Exception as error:  # As above.
            raise RefusedError(
                f"ONNX Runtime cannot run `{signature}`: {error}",
                signatures=(signature,),
            ) from error
        return dict(zip(self._names[signature], outputs, strict=True))


def _onnx_info(value) -> TensorInfo:
    sizes = tuple(size if isinstance(size, int) else None for size in value.shape)
    element = str(value.type).removeprefix("tensor(").removesuffix(")")
    numpy_names = {"float": "float32", "double": "float64"}
    return TensorInfo(sizes, numpy_names.get(element, element))
