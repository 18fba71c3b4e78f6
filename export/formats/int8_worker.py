"""Calibrates and quantizes to int8, in a separate process.

TensorFlow's calibrator can crash its process (tensorflow#75140 with loops,
tensorflow#120295 with infinities), which may hold a trained model. Run as

    python -P int8_worker.py <SavedModel> <cases> <target>

where `cases` is a folder of `<number>-<signature>.npz`, one sample each.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema
from tensorflow.lite.python.convert import mlir_quantize

# Larger values represent infinity, as in masked attention scores.
_WIDE = 1e4


def quantize(saved_model: str, cases: Path) -> bytes:
    """Converts a SavedModel to an int8 flatbuffer; inputs and outputs stay float.

    Attention adds minus infinity to masked scores. Over such a range, the 256 levels of
    int8 would make all other scores equal (tensorflow#61796). So operators with such
    values, and the operators that feed them, stay float.

    Args:
        saved_model: Folder of the SavedModel.
        cases: Folder of the calibration samples.

    Returns:
        The flatbuffer.
    """
    files = sorted(cases.iterdir())
    names = {file.stem.split("-", 1)[1] for file in files}

    def feed() -> Iterator[tuple[str, dict]]:
        for file in files:
            with np.load(file) as arrays:
                yield file.stem.split("-", 1)[1], dict(arrays)

    converter = tf.lite.TFLiteConverter.from_saved_model(
        saved_model, signature_keys=sorted(names)
    )
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = feed
    # The converter's own two steps, run separately: the ranges are read in between.
    converter._experimental_calibrate_only = True
    calibrated = converter.convert()
    return mlir_quantize(calibrated, denylisted_nodes=_keep_float(calibrated))


def _keep_float(calibrated: bytes) -> list[str]:
    """Names of the operators that must not be quantized."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(calibrated, 0))
    names: set[str] = set()
    for graph in model.subgraphs:
        wide = {
            index
            for index, tensor in enumerate(graph.tensors)
            if _range(model, tensor) > _WIDE
        }
        touching = [op for op in graph.operators if wide & {*op.inputs, *op.outputs}]
        # An operator with one scale for all its tensors passes the range on to those
        # that feed it, even if it stays float itself.
        feeding = {index for op in touching for index in op.inputs}
        feeders = [op for op in graph.operators if feeding & {*op.outputs}]
        names.update(
            graph.tensors[index].name.decode()
            for op in (*touching, *feeders)
            for index in op.outputs
        )
    return sorted(names)


def _range(model, tensor) -> float:
    """The largest magnitude of a constant, or of a tensor during calibration."""
    data = model.buffers[tensor.buffer].data
    if data is not None and len(data) and tensor.type == schema.TensorType.FLOAT32:
        return float(np.abs(np.frombuffer(bytes(data), np.float32)).max())
    observed = tensor.quantization
    if observed is None or observed.min is None or observed.max is None:
        return 0.0
    return float(max(np.abs(observed.min).max(), np.abs(observed.max).max()))


if __name__ == "__main__":
    source, folder, target = sys.argv[1:]
    Path(target).write_bytes(quantize(source, Path(folder)))
