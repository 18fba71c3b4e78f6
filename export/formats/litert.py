"""LiteRT (`.tflite`): built-in operators only, for phones and small computers."""

import contextlib
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest import mock

import flatbuffers
import keras
import numpy as np
import tensorflow as tf

from keras_attn.export import rewrites
from keras_attn.export.errors import ExportError, RefusedError, missing_extra
from keras_attn.export.formats import saved_model
from keras_attn.silence import silence

QUANTIZATIONS = ("float16", "int8_dynamic", "int8")
_WORKER = Path(__file__).with_name("int8_worker.py")
_QUOTED_CHARACTERS = 2000


def write(
    functions: dict,
    models: Iterable[keras.Model],
    path: Path,
    quantization: str | None = None,
    calibration: Iterable[tuple[str, dict]] = (),
) -> None:
    """Converts concrete functions to one `.tflite` with a signature each.

    Args:
        functions: Concrete functions by signature name. Weights that several of them
            use are stored once.
        models: The models behind them.
        path: File to write.
        quantization: None, `"float16"`, `"int8_dynamic"` or `"int8"`.
        calibration: `(signature name, inputs)`, for `"int8"`.

    Raises:
        RefusedError: Operators without a built-in form at these shapes.
        ExportError: The converter failed otherwise.
    """
    # The converter freezes variables only when it reads them from a SavedModel; from
    # bare functions they stay `READ_VARIABLE`, which the interpreter cannot run.
    folder = path.with_name(f"{path.name}.saved_model")
    saved_model.write(functions, models, folder)
    rewrites.expand_new_axes(folder)
    content = _convert(folder, list(functions), quantization)
    if quantization == "int8":
        if "WHILE" in _count(content):
            raise RefusedError(
                "LiteRT cannot calibrate loops (tensorflow#75140); recurrent layers "
                "are unrolled where lengths are known",
                ("While",),
            )
        content = _calibrated(folder, calibration)
    shutil.rmtree(folder)
    # A runtime may still have an earlier attempt mapped into memory.
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def operators(path: Path) -> dict[str, int]:
    """Counts the operators of a `.tflite` file."""
    return _count(path.read_bytes())


def _count(content: bytes) -> dict[str, int]:
    schema = _schema()
    model = schema.Model.GetRootAs(content, 0)
    names = {
        value: name
        for name, value in vars(schema.BuiltinOperator).items()
        if isinstance(value, int)
    }
    codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    # Files from before the 128th operator have the code in the deprecated field.
    labels = [
        names[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())] for code in codes
    ]
    counts: Counter[str] = Counter()
    for i in range(model.SubgraphsLength()):
        graph = model.Subgraphs(i)
        counts.update(
            labels[graph.Operators(j).OpcodeIndex()]
            for j in range(graph.OperatorsLength())
        )
    return dict(counts)


def _schema():
    try:
        from ai_edge_litert import schema_py_generated
    except ImportError as error:
        raise missing_extra("ai_edge_litert") from error
    return schema_py_generated


def _convert(folder: Path, signatures: list[str], quantization: str | None) -> bytes:
    """Converts a SavedModel, quantizing what needs no calibration."""
    # Not public, yet the only type that carries the operators refused.
    from tensorflow.lite.python.convert_phase import ConverterError

    converter = tf.lite.TFLiteConverter.from_saved_model(
        str(folder), signature_keys=signatures
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    # To add it the whole flatbuffer is read and written once more.
    converter.exclude_conversion_metadata = True
    if quantization in ("float16", "int8_dynamic"):
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantization == "float16":
        converter.target_spec.supported_types = [tf.float16]
    try:
        with silence(), serialized_in_place():
            return converter.convert()
    except ConverterError as error:
        raise _refusal(error, signatures) from error
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise ExportError(f"LiteRT's converter failed: {error}") from error


@contextlib.contextmanager
def serialized_in_place() -> Iterator[None]:
    """While it lasts TensorFlow's Python makes no copies of a flatbuffer that it wrote.

    Otherwise it makes two, beside the one that it read, which is when an export takes
    the most memory: 4.3 GB with RoBERTa-base, 3.6 without.
    """
    from tensorflow.lite.tools import flatbuffer_utils

    def serialize(model, extra_buffer: bytes = b"") -> bytearray:
        builder = flatbuffers.Builder()
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
        content = builder.Bytes
        # It is filled from its end. What is cut off at its start moves nothing.
        del content[: builder.Head()]
        content += extra_buffer
        return content

    with mock.patch.object(flatbuffer_utils, "convert_object_to_bytearray", serialize):
        yield


def _calibrated(folder: Path, calibration: Iterable[tuple[str, dict]]) -> bytes:
    """Quantizes to int8 in another process; see `int8_worker`."""
    cases, target = folder / "cases", folder / "quantized.tflite"
    cases.mkdir()
    for number, (signature, inputs) in enumerate(calibration):
        np.savez(cases / f"{number:06d}-{signature}.npz", **inputs)
    finished = subprocess.run(
        # As a file and with `-P`: it needs nothing of this package, and `import onnx`
        # must not find the file beside it.
        [sys.executable, "-P", _WORKER, folder, cases, target],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if finished.returncode != 0:
        raise ExportError(
            "LiteRT's calibrator failed"
            + (" (it crashed)" if finished.returncode < 0 else "")
            + '; `quantization="int8_dynamic"` needs no calibration. It said: '
            + finished.stderr.strip()[-_QUOTED_CHARACTERS:]
        )
    return target.read_bytes()


def _refusal(error: Exception, signatures: Iterable[str]) -> ExportError:
    """Reads out of a converter's error which operators it refused, and where."""
    names: list[str] = []
    locations: list[str] = []
    for data in getattr(error, "errors", ()):
        name = data.operator.name.removeprefix("tf.")
        # The converter also blames the constants that feed a refused operator.
        if name and name != "Const" and name not in names:
            names.append(name)
        locations += [call.name for call in data.location.call]
    flex = re.search(r"(?:TF Select|Custom|Flex) ops: (.+)", str(error))
    if flex:
        names += [n for n in flex.group(1).strip().split(", ") if n not in names]
    if not names:
        return ExportError(f"LiteRT's converter failed: {error}")
    return RefusedError(
        "LiteRT has no built-in form of "
        + ", ".join(f"`{name}`" for name in names)
        + " at these shapes, and Flex operators load in no stock interpreter",
        tuple(names),
        tuple(locations),
        # A location ends in the traced function: `mha/Roll@__inference_prefill_17`.
        tuple(s for s in signatures if any(f"_{s}_" in where for where in locations)),
    )
