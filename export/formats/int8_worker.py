"""Calibrate and quantize to int8, in a process of its own.

TensorFlow's calibrator can take the process down with it (tensorflow#75140 on loops,
tensorflow#120295 on infinities), and that process may hold a trained model. Run as

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

# Beyond this a value stands for infinity, as in a masked score.
_WIDE = 1e4


def quantize(saved_model: str, cases: Path) -> bytes:
    """Converts a SavedModel to an int8 flatbuffer; in and outputs stay float.

    Attention adds minus infinity to the scores it hides. Spread over such a range
    the 256 levels of int8 leave all other scores equal, and attention is lost
    (tensorflow#61796). What touches such values, and what feeds it, stays float.

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
    # As the converter itself does in two steps, with a look at the ranges between.
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
        # An operator of one scale for all its tensors passes the range on to what
        # feeds it, even if it is itself left alone.
        feeding = {index for op in touching for index in op.inputs}
        feeders = [op for op in graph.operators if feeding & {*op.outputs}]
        names.update(
            graph.tensors[index].name.decode()
            for op in (*touching, *feeders)
            for index in op.outputs
        )
    return sorted(names)


def _range(model, tensor) -> float:
    """The largest magnitude of a tensor: of a constant, or as calibrated."""
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
