"""LiteRT (`.tflite`): built-in operators only, for phones and small computers.

`write` saves the traced functions as a SavedModel, replaces in it what the converter
does not support, converts it, quantizes to int8 if asked to, puts inputs and outputs in
the model's order, and adds the metadata, JSON in an appended ZIP archive
(`litert_metadata.py`: those that other tools read).
`export/runtimes/litert.py` runs the file.
"""

import contextlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest import mock

import flatbuffers
import numpy as np
import tensorflow as tf

from keras_attn.export import metadata, seals
from keras_attn.export.description import LABELS_FILE
from keras_attn.export.errors import ExportError, RefusedError, in_one_line
from keras_attn.export.formats import litert_rewrites, saved_model
from keras_attn.export.formats.litert_metadata import with_metadata
from keras_attn.export.signatures import TracedModel
from keras_attn.export.silence import silence
from keras_attn.extras import requires_extra

_WORKER = Path(__file__).with_name("int8_worker.py")
_QUOTED_CHARACTERS = 2000
# Operators without a built-in form at any shape.
_NEVER = {"AvgPool3D", "DenseBincount", "MaxPool3D", "ResizeBicubic"}
# `schema.TensorType` of flatbuffers.
_FLOAT16, _UINT8, _INT8 = 1, 3, 9


def write(traced: TracedModel, path: Path) -> tuple[str, ...]:
    """Converts a traced model to one `.tflite` with all signatures; returns no notes.

    Weights that several signatures use are stored once.

    Raises:
        RefusedError: If operators have no built-in form at these shapes.
        ExportError: If the converter failed for another reason.
    """
    # The converter turns variables into constants only if it reads them from a
    # SavedModel; given functions it emits `READ_VARIABLE`, which the interpreter
    # cannot run.
    folder = path.with_name(f"{path.name}.saved_model")
    saved_model.save(traced, folder)
    # `mask[:, None, None, :]` becomes `ExpandDims`: with unknown sizes a slice would be
    # a Flex operator.
    litert_rewrites.expand_new_axes(folder)
    # For int8 this float conversion only finds rejected operators and loops;
    # `_calibrated` converts again.
    content = _convert(folder, list(traced.functions), traced.quantization)
    if traced.quantization == "int8":
        if any(label == "WHILE" for label, _, _ in _operators(content)):
            raise RefusedError(
                "LiteRT cannot calibrate loops (tensorflow#75140); recurrent layers "
                "are unrolled if lengths are known",
            )
        content = _calibrated(folder, traced.calibration)
    shutil.rmtree(folder)
    # A runtime may still have an earlier attempt mapped into memory.
    path.unlink(missing_ok=True)
    if len(traced.signatures) == 1:
        [info] = traced.infos.values()
        content = with_metadata(content, info, traced.description)
    path.write_bytes(litert_rewrites.in_order(content, metadata.get_order(traced)))
    files = metadata.make_files(traced)
    labels = traced.description.to_lines()
    if labels is not None:
        files[LABELS_FILE] = labels
    with zipfile.ZipFile(path, "a") as archive:
        for name, text in files.items():
            # `ZipInfo` has a constant date: the same model gives the same file.
            archive.writestr(zipfile.ZipInfo(name), text)
        archive.comment = seals.ROOM.encode()
    seals.seal(path)
    return ()


def _convert(folder: Path, signatures: list[str], quantization: str | None) -> bytes:
    """Converts a SavedModel; `"int8"` is left to `_calibrated`."""
    # Not public, but the only error that lists the rejected operators.
    from tensorflow.lite.python.convert_phase import ConverterError

    converter = tf.lite.TFLiteConverter.from_saved_model(
        str(folder), signature_keys=signatures
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    # Adding it would read and write the whole flatbuffer once more.
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
        raise ExportError(f"LiteRT's converter failed: {in_one_line(error)}") from error


@contextlib.contextmanager
def serialized_in_place() -> Iterator[None]:
    """Keeps TensorFlow from copying the flatbuffers that it serializes.

    It makes two copies at the point where an export uses the most memory: 4.3 GB for
    RoBERTa-base, 3.6 GB without them.
    """
    from tensorflow.lite.tools import flatbuffer_utils

    def serialize(model, extra_buffer: bytes = b"") -> bytearray:
        builder = flatbuffers.Builder()
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
        content = builder.Bytes
        # It is filled from its end; cutting off its start moves no data.
        del content[: builder.Head()]
        content += extra_buffer
        return content

    with mock.patch.object(flatbuffer_utils, "convert_object_to_bytearray", serialize):
        yield


def _calibrated(folder: Path, calibration: Iterable[tuple[str, dict]]) -> bytes:
    """Quantizes to int8 in a separate process; see `int8_worker`."""
    cases, target = folder / "cases", folder / "quantized.tflite"
    cases.mkdir()
    for number, (signature, inputs) in enumerate(calibration):
        np.savez(cases / f"{number:06d}-{signature}.npz", **inputs)
    finished = subprocess.run(
        # As a file, because it needs nothing of this package; with `-P`, because
        # `import onnx` must not find `export/formats/onnx.py`.
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
            + '; `quantization="int8_dynamic"` needs no calibration. Captured output: '
            + finished.stderr.strip()[-_QUOTED_CHARACTERS:]
        )
    return target.read_bytes()


def _refusal(error: Exception, signatures: Iterable[str]) -> ExportError:
    """The converter's error with the operators that it rejected and their locations."""
    names: list[str] = []
    locations: list[str] = []
    for data in getattr(error, "errors", ()):
        name = data.operator.name.removeprefix("tf.")
        # The converter also lists the constants that feed a rejected operator.
        if name and name != "Const" and name not in names:
            names.append(name)
        locations += [call.name for call in data.location.call]
    flex = re.search(r"(?:TF Select|Custom|Flex) ops: (.+)", str(error))
    if flex:
        names += [n for n in flex.group(1).strip().split(", ") if n not in names]
    if not names:
        return ExportError(f"LiteRT's converter failed: {in_one_line(error)}")
    # A layer's name, before the @, may contain the name of a signature.
    functions = [location.rpartition("@")[2] for location in locations]
    return RefusedError(
        "LiteRT has no built-in operator for "
        + ", ".join(f"`{name}`" for name in names)
        + " at these shapes, and stock interpreters cannot load Flex operators",
        tuple(locations),
        # A location ends in the traced function: `mha/Roll@__inference_prefill_17`.
        tuple(s for s in signatures if any(f"_{s}_" in traced for traced in functions)),
        at_any_shape=not _NEVER.isdisjoint(names),
    )


def count_operators(path: Path) -> dict[str, int]:
    """Counts the operators of a `.tflite` file."""
    return dict(Counter(label for label, _, _ in _operators(path.read_bytes())))


def read_quantization(path: Path) -> str | None:
    """The quantization of a `.tflite` file, from the types of its tensors.

    Full int8 computes in integers: operators other than table look-ups return integers.
    The other kinds only store constants in fewer bits.
    """
    kinds = set()
    for label, inputs, outputs in _operators(path.read_bytes()):
        if label != "GATHER" and any(map(_is_int8, outputs)):
            return "int8"
        if any(map(_is_int8, inputs)):
            kinds.add("int8_dynamic")
        # A weight that is in half precision in Keras already has a `CAST`.
        elif label == "DEQUANTIZE" and inputs[0].Type() == _FLOAT16:
            kinds.add("float16")
    return min(kinds, default=None, key=("int8_dynamic", "float16").index)


def _is_int8(tensor) -> bool:
    """Whether a tensor holds real numbers in 8 bits, with a scale."""
    parameters = tensor.Quantization()
    has_scale = parameters is not None and parameters.ScaleLength() > 0
    return has_scale and tensor.Type() in (_INT8, _UINT8)


def _operators(content: bytes) -> Iterator[tuple[str, list, list]]:
    """The name of each operator of a flatbuffer, and its input and output tensors."""
    with requires_extra("export", "LiteRT"):
        from ai_edge_litert import schema_py_generated as schema
    model = schema.Model.GetRootAs(content, 0)
    names = {
        value: name
        for name, value in vars(schema.BuiltinOperator).items()
        if isinstance(value, int)
    }
    codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    # Files older than the 128th operator use the deprecated field.
    labels = [
        names[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())] for code in codes
    ]
    for i in range(model.SubgraphsLength()):
        graph = model.Subgraphs(i)
        for j in range(graph.OperatorsLength()):
            operator = graph.Operators(j)
            inputs = [operator.Inputs(k) for k in range(operator.InputsLength())]
            outputs = [operator.Outputs(k) for k in range(operator.OutputsLength())]
            yield (
                labels[operator.OpcodeIndex()],
                # -1: an optional input that is absent.
                [graph.Tensors(index) for index in inputs if index >= 0],
                [graph.Tensors(index) for index in outputs],
            )
