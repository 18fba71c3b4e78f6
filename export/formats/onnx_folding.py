"""At export time, computes what depends only on weights.

tf2onnx transposes the kernels of convolutions and folds batch norms into them, but only
constants: a large weight is an input of the graph that it converts (`onnx_weights`). So
the same is done here afterwards, on weights that are not yet in memory.

Legend: O output channels, I input channels, h and w rows and columns of a kernel.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from keras_attn.export.formats.onnx_weights import Weights

# Axis of the output channels: kernels are (O, I, h, w) and (I, O, h, w).
_OUTPUT_AXIS = {"Conv": 0, "ConvTranspose": 1}


def fold(model, weights: Weights) -> None:
    """Transposes weights and folds batch norms into convolutions, in place.

    Args:
        model: An `onnx.ModelProto`.
        weights: The large weights that it lacks, by name.
    """
    _transpose_weights(model.graph, weights)
    _fold_batch_norms(model.graph, weights)
    _fix_paddings(model.graph, weights)


def _transpose_weights(graph, weights: Weights) -> None:
    """Replaces each `Transpose` of a weight by a transposed weight.

    Weights with other uses are skipped: tied embeddings would be stored twice.
    """
    uses = count_uses(graph)
    for node in list(graph.node):
        if node.op_type != "Transpose" or node.input[0] not in weights:
            continue
        if uses[node.input[0]] == 1:
            weight = weights.pop(node.input[0])
            axes = get_attribute(node, "perm", range(len(weight.shape))[::-1])
            weights[node.output[0]] = replace(weight, axes=tuple(axes))
            graph.node.remove(node)


def _fold_batch_norms(graph, weights: Weights) -> None:
    """Folds scales and shifts of a convolution's output channels into the convolution.

    These are a batch norm, or the product and sum that Keras turns one into:
    s · (conv(x, W) + b) + t = conv(x, s · W) + (s · b + t).
    """
    import onnx

    constants = {tensor.name: tensor for tensor in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output}
    uses = count_uses(graph)

    def value(name: str) -> np.ndarray | None:
        if name in constants:
            return onnx.numpy_helper.to_array(constants[name])
        return weights[name].array() if name in weights else None

    def is_float(name: str) -> bool:
        if name in weights:
            return weights[name].element_type == onnx.TensorProto.FLOAT
        return name in constants and (
            constants[name].data_type == onnx.TensorProto.FLOAT
        )

    def convolution_before(name: str):
        """The convolution with this output, if nothing else uses it or its kernel."""
        node = producers.get(name)
        if node is None or node.op_type not in _OUTPUT_AXIS or uses[name] != 1:
            return None
        if node.op_type == "ConvTranspose" and get_attribute(node, "group", 1) != 1:
            return None
        kernel = node.input[1]  # A shared kernel would be stored once for each use.
        return node if is_float(kernel) and uses[kernel] == 1 else None

    for node in list(graph.node):
        found = next(filter(None, map(convolution_before, node.input)), None)
        if found is None:
            continue
        kernel, *bias = found.input[1:]
        old_bias = value(bias[0]) if bias and bias[0] else np.float32(0)
        shape, axis = _shape(kernel, constants, weights), _OUTPUT_AXIS[found.op_type]
        affine = _affine(node, found.output[0], value, shape[axis])
        if affine is None or old_bias is None:
            continue
        scale, shift = affine  # (O,)
        scaled, shifted = f"{node.output[0]}_kernel", f"{node.output[0]}_bias"
        factor = scale.astype("float32").reshape(-1, *[1] * (len(shape) - 1 - axis))
        if kernel in weights:
            before = weights[kernel]
            before_factor = 1 if before.factor is None else before.factor
            weights[scaled] = replace(before, factor=before_factor * factor)
        else:
            array = onnx.numpy_helper.to_array(constants[kernel]) * factor
            constants[scaled] = onnx.numpy_helper.from_array(array, scaled)
            graph.initializer.append(constants[scaled])
        array = (scale * old_bias + shift).astype("float32")
        constants[shifted] = onnx.numpy_helper.from_array(array, shifted)
        graph.initializer.append(constants[shifted])
        found.input[1:] = [scaled, shifted]
        found.output[0] = node.output[0]
        producers[node.output[0]], uses[scaled] = found, 1
        graph.node.remove(node)
    _drop_unused(graph, weights)


def _affine(
    node, source: str, value: Callable[[str], np.ndarray | None], channels: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Scale and shift, (O,), by which a node maps a tensor; None for other nodes.

    Args:
        node: The node.
        source: Name of the tensor, (B, O, H, W).
        value: Function of a name: the constant of this name, or None.
        channels: O.
    """
    if node.op_type == "BatchNormalization":
        parameters = [value(name) for name in node.input[1:]]
        if any(each is None for each in parameters):
            return None
        gamma, beta, mean, variance = np.array(parameters, "float64")
        scale = gamma / np.sqrt(variance + get_attribute(node, "epsilon", 1e-5))
        return scale, beta - scale * mean
    if node.op_type not in ("Mul", "Add", "Sub"):
        return None
    is_first = node.input[0] == source
    constant = value(node.input[is_first])
    if node.op_type == "Sub" and not is_first:
        return None
    # One number per channel: (O, 1, 1) or (1, O, 1, 1).
    if constant is None or constant.shape[-3:] != (channels, 1, 1):
        return None
    if constant.size != channels:
        return None
    vector = constant.reshape(channels).astype("float64")
    if node.op_type == "Mul":
        return vector, np.zeros(channels)
    return np.ones(channels), vector if node.op_type == "Add" else -vector


def _fix_paddings(graph, weights: Weights) -> None:
    """Makes the padding of convolutions with a stride of 1 explicit.

    tf2onnx writes `auto_pad` if sizes are unknown, which ONNX Runtime does not support
    for dilated kernels.
    """
    import onnx

    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if (
            node.op_type != "Conv"
            or get_attribute(node, "auto_pad", b"") != b"SAME_UPPER"
        ):
            continue
        kernel = node.input[1]
        if kernel not in {*constants, *weights}:
            continue
        shape = _shape(kernel, constants, weights)
        if set(get_attribute(node, "strides", (1,))) != {1}:
            continue
        sizes = shape[2:]
        dilations = get_attribute(node, "dilations", [1] * len(sizes))
        total = [(size - 1) * by for size, by in zip(sizes, dilations, strict=True)]
        begin = [each // 2 for each in total]
        end = [each - half for each, half in zip(total, begin, strict=True)]
        kept = [each for each in node.attribute if each.name != "auto_pad"]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute("pads", begin + end)])


def _shape(name: str, constants: Mapping, weights: Weights) -> tuple[int, ...]:
    """The shape of a constant or a weight."""
    return weights[name].shape if name in weights else tuple(constants[name].dims)


def get_attribute(node, name: str, default):
    """The value of an attribute."""
    import onnx

    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return default


def count_uses(graph) -> Counter[str]:
    """The number of uses of each tensor: by nodes, inner graphs, or as an output."""
    return Counter([*_inputs(graph), *(value.name for value in graph.output)])


def _inputs(graph) -> Iterator[str]:
    """The inputs of every node of a graph and its inner graphs."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _inputs(inner)
                yield from (value.name for value in inner.output)


def _drop_unused(graph, weights: Weights) -> None:
    """Removes the weights and constants that no node uses any more."""
    uses = count_uses(graph)
    for name in [name for name in weights if not uses[name]]:
        del weights[name]
    for tensor in [each for each in graph.initializer if not uses[each.name]]:
        graph.initializer.remove(tensor)
