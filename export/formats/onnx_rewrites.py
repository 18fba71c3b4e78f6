"""Extensions of tf2onnx: operators that it lacks, and faster passes.

A handler takes tf2onnx's graph and a TensorFlow node, removes the node, and adds ONNX
nodes with the same output. `args` is part of tf2onnx's interface and is not used.
"""

import contextlib
from collections.abc import Iterator
from unittest import mock

import numpy as np


@contextlib.contextmanager
def reshapes_kept() -> Iterator[None]:
    """Keeps tf2onnx from fusing two consecutive reshapes, which gives a wrong result.

    Before fusing, it writes zeros into the second shape, for sizes copied from its
    input; the fusion then changes that input (tf2onnx 1.17).
    """
    from tf2onnx.optimizer import back_to_back_optimizer

    with mock.patch.dict(back_to_back_optimizer._func_map):
        back_to_back_optimizer._func_map.pop(("Reshape",), None)
        yield


@contextlib.contextmanager
def optimized_in_place() -> Iterator[None]:
    """Makes tf2onnx's optimizers work on the graph itself.

    Otherwise each of a few dozen passes copies the whole graph, to restore it if the
    pass fails, which takes more than half the time of a conversion. In place, a pass
    that fails raises and leaves the graph unusable.
    """
    from tf2onnx import optimizer

    original = optimizer.optimize_graph

    def optimize_graph(graph, catch_errors=True, optimizers=None):
        return original(graph, catch_errors=False, optimizers=optimizers)

    with mock.patch.object(optimizer, "optimize_graph", optimize_graph):
        yield


@contextlib.contextmanager
def nodes_visited_once() -> Iterator[None]:
    """Makes tf2onnx find unused nodes in one traversal of the graph.

    Otherwise each pass traverses it once per output, and a decoder has two outputs per
    layer: a quarter of the conversion time of GPT-2 small, and most of the conversion
    time of GPT-2 XL.
    """
    from tf2onnx.graph import Graph

    with mock.patch.object(Graph, "extract_sub_graph_nodes", needed_nodes):
        yield


def needed_nodes(
    graph, outputs_name, input_checker=None, remove_unused_inputs=True
) -> list:
    """`Graph.extract_sub_graph_nodes`: the nodes that some outputs are computed from.

    Args:
        graph: The `tf2onnx.graph.Graph`.
        outputs_name: Names of the outputs.
        input_checker: Function of a node; the traversal stops where it returns False.
        remove_unused_inputs: Whether to leave out inputs that no output needs.

    Returns:
        The nodes, each once, in any order.
    """

    def producer(name: str):
        return graph.get_node_by_output(name, search_in_parent_graphs=False)

    pending = [producer(name) for name in outputs_name]
    if not remove_unused_inputs:
        pending += graph.inputs
    needed = set()
    while pending:
        node = pending.pop()
        # None: an optional input that is absent, or one of an outer graph.
        if node is None or node in needed:
            continue
        if input_checker is not None and input_checker(node) is False:
            continue
        needed.add(node)
        pending += map(producer, (*node.input, *node.get_implicit_inputs()))
    return list(needed)


def _replace(graph, node) -> dict:
    """Removes a node; returns `make_node`'s arguments for the node that replaces it."""
    output = node.output[0]
    made = {
        "name": node.name,
        "outputs": [output],
        "dtypes": [graph.get_dtype(output)],
        "shapes": [graph.get_shape(output)],
    }
    graph.remove_node(node.name)
    return made


def _one_like(graph, node) -> str:
    """Name of a constant 1 of the dtype of the node's input."""
    from tf2onnx import utils

    dtype = utils.map_onnx_to_numpy_type(graph.get_dtype(node.input[0]))
    return graph.make_const(utils.make_name("one"), np.array(1, dtype)).output[0]


def _erfc(graph, node, name: str, args: list) -> None:
    """erfc(x) = 1 - erf(x). Exact GELU uses it."""
    made = _replace(graph, node)
    erf = graph.make_node("Erf", node.input).output[0]
    graph.make_node("Sub", [_one_like(graph, node), erf], **made)


def _log1p(graph, node, name: str, args: list) -> None:
    """log(1 + x)."""
    made = _replace(graph, node)
    total = graph.make_node("Add", [_one_like(graph, node), *node.input]).output[0]
    graph.make_node("Log", [total], **made)


def _expm1(graph, node, name: str, args: list) -> None:
    """exp(x) - 1."""
    made = _replace(graph, node)
    exponential = graph.make_node("Exp", node.input).output[0]
    graph.make_node("Sub", [exponential, _one_like(graph, node)], **made)


def _dynamic_update_slice(graph, node, name: str, args: list) -> None:
    """`ops.slice_update`: writes an update into a slice of a tensor.

    The update and a mask of its slice are padded to the size of the tensor. As in XLA,
    a slice that would reach beyond the end is moved back.
    """
    from onnx import TensorProto
    from tf2onnx import utils

    def constant(value: int) -> str:
        made = graph.make_const(utils.make_name(name), np.array(value, np.int64))
        return made.output[0]

    def make(kind: str, *inputs: str, **attributes) -> str:
        return graph.make_node(kind, list(inputs), **attributes).output[0]

    tensor, update, start = node.input
    made = _replace(graph, node)
    size = make("Shape", update)
    room = make("Sub", make("Shape", tensor), size)
    start = make("Cast", start, attr={"to": TensorProto.INT64})
    start = make("Min", make("Max", start, constant(0)), room)
    pads = make("Concat", start, make("Sub", room, start), attr={"axis": 0})
    ones = make("Expand", constant(1), size)
    mask = make("Cast", make("Pad", ones, pads), attr={"to": TensorProto.BOOL})
    graph.make_node("Where", [mask, make("Pad", update, pads), tensor], **made)


HANDLERS = {
    "Erfc": (_erfc, []),
    "Expm1": (_expm1, []),
    "Log1p": (_log1p, []),
    "XlaDynamicUpdateSlice": (_dynamic_update_slice, []),
}
