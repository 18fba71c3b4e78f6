"""Rewrites what LiteRT's converter does not support, before it, and its order, after.

Both are edited in place: the graph of a SavedModel, and the bytes of a flatbuffer.
"""

from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_attn.export.metadata import Order
from keras_attn.extras import requires_extra


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


def in_order(content: bytes | bytearray, order: Order) -> bytearray:
    """Gives the graphs of a `.tflite` file the model's order of inputs and outputs.

    TensorFlow sorts the tensors of a signature by name, and the converter lists them in
    an order of its own, by which `get_input_details()` numbers them.

    Args:
        content: The flatbuffer; a `bytearray` is edited in place.
        order: The names of inputs and outputs, by signature.

    Returns:
        The flatbuffer.
    """
    with requires_extra("export", "LiteRT"):
        from ai_edge_litert import schema_py_generated as schema
    content = content if isinstance(content, bytearray) else bytearray(content)
    model = schema.Model.GetRootAs(content, 0)
    for number in range(model.SignatureDefsLength()):
        signature = model.SignatureDefs(number)
        names = order[signature.SignatureKey().decode()]
        graph = model.Subgraphs(signature.SubgraphIndex())
        inputs = [signature.Inputs(i) for i in range(signature.InputsLength())]
        outputs = [signature.Outputs(i) for i in range(signature.OutputsLength())]
        _sort(graph.InputsAsNumpy(), inputs, names["inputs"])
        _sort(graph.OutputsAsNumpy(), outputs, names["outputs"])
    return content


def _sort(tensors: np.ndarray, maps: list, names: list[str]) -> None:
    """Writes the tensors of these names into a graph's list of inputs or outputs."""
    by_name = {each.Name().decode(): each.TensorIndex() for each in maps}
    wanted = [by_name[name] for name in names if name in by_name]
    # One tensor may be listed under two names, or be left out as unused.
    if sorted(wanted) == sorted(tensors):
        tensors[:] = wanted
