"""Rewrites parts of a saved graph that LiteRT's converter does not support."""

from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2


def expand_new_axes(saved_model: Path) -> None:
    """Turns `mask[:, None, None, :]` into `ExpandDims`, in place.

    LiteRT has a built-in form of `tf.StridedSlice` with new axes only if at most one
    size is unknown; otherwise it becomes a Flex operator (keras-hub#2608). A slice
    that only adds axes equals a chain of `ExpandDims`, which is built in at any
    shape. Keras' own causal mask is such a slice.

    Args:
        saved_model: Folder of the SavedModel to edit.
    """
    file = saved_model / "saved_model.pb"
    proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for meta_graph in proto.meta_graphs:
        for function in meta_graph.graph_def.library.function:
            _expand_in(function.node_def)
    file.write_bytes(proto.SerializeToString())


def _expand_in(nodes) -> None:
    constants = {
        node.name: tf.make_ndarray(node.attr["value"].tensor)
        for node in nodes
        if node.op == "Const"
    }
    for node in list(nodes):
        if node.op != "StridedSlice":
            continue
        strides = constants.get(node.input[3].split(":")[0])
        axes = [] if strides is None else _new_axes(node, strides)
        if axes:
            _replace_by_expand_dims(nodes, node, axes)


def _new_axes(node, strides: np.ndarray) -> list[int]:
    """Axes that a slice adds to its result; empty unless it only adds axes."""

    def mask(name: str) -> int:
        # Zeros are not saved, and reading a missing attribute would add it.
        return node.attr[name].i if name in node.attr else 0

    if mask("shrink_axis_mask") or mask("ellipsis_mask"):
        return []
    new, whole = mask("new_axis_mask"), mask("begin_mask") & mask("end_mask")
    axes = []
    for axis, stride in enumerate(strides):
        if new >> axis & 1:
            axes.append(axis)
        elif not (whole >> axis & 1 and stride == 1):
            return []
    return axes


def _replace_by_expand_dims(nodes, node, axes: list[int]) -> None:
    """Chains one `ExpandDims` per axis; the last one keeps the name of the slice."""
    value = node.input[0]
    element = node.attr["T"].type
    for position, axis in enumerate(axes):
        index = nodes.add(op="Const", name=f"{node.name}/axis_{axis}")
        index.attr["dtype"].type = tf.int32.as_datatype_enum
        index.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(axis, tf.int32))
        last = position == len(axes) - 1
        expand = node if last else nodes.add(name=f"{node.name}/expand_{axis}")
        expand.ClearField("attr")
        expand.op = "ExpandDims"
        expand.attr["T"].type = element
        expand.attr["Tdim"].type = tf.int32.as_datatype_enum
        expand.input[:] = [value, f"{index.name}:output:0"]
        value = f"{expand.name}:output:0"
