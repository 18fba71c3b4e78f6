"""Call an artefact of any format the same way: a dictionary in, a dictionary out."""

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from keras_attn.export.errors import RefusedError, missing_extra
from keras_attn.export.files import ONNX_OUTPUT_NAMES, format_at
from keras_attn.export.signatures import PREFILL, SERVE, STEP
from keras_attn.quiet import quiet


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
    """One stock runtime, with a file loaded."""

    format: str
    signatures: dict[str, SignatureInfo]

    def call(self, signature: str, inputs: dict[str, np.ndarray]) -> dict:
        """Runs one signature on checked inputs."""
        ...


class Runner:
    """An exported artefact, ready to call.

    Attributes:
        format: `"saved_model"`, `"litert"` or `"onnx"`.
        signatures: Inputs and outputs of each signature, by its name.
        max_length: Of a generative artefact: the most tokens that prompt and
            continuation may have together; None where it has no limit, as a
            recurrent one.

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
                is lost (int64 to int32, float64 to float32).
            signature: Its name; None for the only one, or `serve`.

        Returns:
            NumPy arrays by output name.

        Raises:
            ValueError: Another signature, name, dtype or shape than the artefact's.
        """
        name = self._choose(signature)
        return self._engine.call(name, _checked(inputs, self.signatures[name].inputs))

    def prefill(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Runs the prompt of a generative artefact."""
        return self(inputs, PREFILL)

    def step(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Runs one token of a generative artefact."""
        return self(inputs, STEP)

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
        ExportError: It is one, but its runtime refuses to load it.
        ImportError: The runtime is not installed.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(f"`path` does not exist. Received: path={str(path)!r}")
    engines = {
        "saved_model": _SavedModelEngine,
        "litert": _LiteRTEngine,
        "onnx": _OnnxEngine,
    }
    format = format_at(path)
    if format is None:
        raise ValueError(
            "`path` must be a SavedModel folder, a `.tflite` flatbuffer, an `.onnx` "
            f"file or a folder of them. Received: path={str(path)!r}"
        )
    return Runner(engines[format](path))


def _checked(
    inputs: Mapping[str, Any], expected: dict[str, TensorInfo]
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
    return {name: _cast(name, inputs[name], info) for name, info in expected.items()}


def _cast(name: str, value: Any, info: TensorInfo) -> np.ndarray:
    array = _texts(name, value) if info.dtype == "string" else np.asarray(value)
    if array.dtype != object and array.dtype != info.dtype:
        if not np.can_cast(array.dtype, np.dtype(info.dtype), casting="same_kind"):
            raise ValueError(
                f"`inputs[{name!r}]` must be {info.dtype}. "
                f"Received: dtype={array.dtype}"
            )
        array = array.astype(info.dtype)
    fits = len(array.shape) == len(info.shape) and all(
        want in (None, have) for want, have in zip(info.shape, array.shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"`inputs[{name!r}]` must have the shape {info.shape}, None being any "
            f"size. Received: shape={array.shape}"
        )
    return array


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
                f"`inputs[{name!r}]` must be strings, or bytes in UTF-8. "
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
        except (tf.errors.OpError, OSError, ValueError) as error:
            raise RefusedError(
                f"TensorFlow cannot load {path.name}: {error}"
            ) from error
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

    def _load(self, path: Path):
        with quiet():
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

    def call(self, signature: str, inputs: dict[str, np.ndarray]) -> dict:
        tensors = {k: self._tf.constant(v) for k, v in inputs.items()}
        outputs = self._functions[signature](**tensors)
        return {name: tensor.numpy() for name, tensor in outputs.items()}


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
            with quiet():
                self._interpreter = Interpreter(model_path=str(path))
                names = list(self._interpreter.get_signature_list())
                self._functions = {
                    name: self._interpreter.get_signature_runner(name) for name in names
                }
        except (ValueError, RuntimeError) as error:
            raise RefusedError(f"LiteRT cannot load {path.name}: {error}") from error
        self.signatures = {
            name: SignatureInfo(
                _details(function.get_input_details()),
                _details(function.get_output_details()),
            )
            for name, function in self._functions.items()
        }

    def call(self, signature: str, inputs: dict[str, np.ndarray]) -> dict:
        try:
            return self._functions[signature](**inputs)
        except (ValueError, RuntimeError) as error:
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
        files = (
            {f.stem: f for f in path.glob("*.onnx")} if path.is_dir() else {SERVE: path}
        )
        self._sessions, self._names, self.signatures = {}, {}, {}
        for name, file in sorted(files.items()):
            try:
                session = onnxruntime.InferenceSession(
                    file, options, providers=["CPUExecutionProvider"]
                )
            except Exception as error:  # Its errors share no base class but this.
                raise RefusedError(
                    f"ONNX Runtime cannot load {file.name}: {error}"
                ) from error
            self._sessions[name] = session
            metadata = session.get_modelmeta().custom_metadata_map
            names = json.loads(metadata.get(ONNX_OUTPUT_NAMES, "{}"))
            self._names[name] = [
                names.get(o.name, o.name) for o in session.get_outputs()
            ]
            self.signatures[name] = SignatureInfo(
                {value.name: _onnx_info(value) for value in session.get_inputs()},
                dict(
                    zip(
                        self._names[name],
                        map(_onnx_info, session.get_outputs()),
                        strict=True,
                    )
                ),
            )

    def call(self, signature: str, inputs: dict[str, np.ndarray]) -> dict:
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
