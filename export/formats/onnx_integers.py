"""Quantized weights as initializers of integers.

The graph is converted with the numbers that the integers stand for. Afterwards the
float weights are replaced: a product becomes `MatMulNBits`, an operator of ONNX
Runtime, which takes codes and scales as they are; a table look-up takes rows of codes;
for anything else, such as a convolution, the graph computes the floats from the codes,
which the runtime does once, when it loads the file.

`MatMulNBits` computes in integers (`accuracy_level` 4) if its other factor may be
rounded to 8 bits, too, in blocks of a row that have a scale each. If not, it computes
in floats. With codes of 8 bits it then computes the floats of the whole kernel in each
call, which takes 20 to 40 times as long as a product of floats, so those products get
floats that are computed once.

Legend: D width of the inputs, E width of the outputs, G rows of a block.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keras_attn.export.formats.onnx_folding import count_uses, get_attribute
from keras_attn.export.formats.onnx_weights import Weights, bytes_of
from keras_attn.layers.adaptation.quantized import QuantizedKernel

_DOMAIN = "com.microsoft"
# G of `MatMulNBits`.
_BLOCKS = (16, 32, 64, 128, 256)
# `onnx.TensorProto`.
_FLOAT, _UINT8, _INT8 = 1, 2, 3
# `accuracy_level` of `MatMulNBits`: products of integers of 8 bits.
_IN_INTEGERS = 4


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor that is computed from integers when it is written.

    Attributes:
        shape: Sizes of the tensor.
        element_type: ONNX' number of its dtype.
        array: Computes the tensor.
        key: Equal for tensors with the same content.
    """

    shape: tuple[int, ...]
    element_type: int
    array: Callable[[], np.ndarray]
    key: tuple

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        width = 4 if self.element_type == _FLOAT else 1
        return width * int(np.prod(self.shape))

    def data(self) -> memoryview:
        """The bytes of the tensor."""
        return bytes_of(self.array())


@dataclass
class _Graph:
    """A graph whose weights are replaced.

    Attributes:
        graph: `onnx.GraphProto`.
        weights: Its weights, which the replaced ones leave and new ones join.
        in_integers: Whether products may round their other factor to 8 bits.
        counts: How many kernels became what.
    """

    graph: Any
    weights: dict
    in_integers: bool
    counts: Counter = field(default_factory=Counter)

    def node(self, kind: str, inputs: list[str], output: str, **attributes):
        """A node with one output, not yet in the graph."""
        import onnx

        return onnx.helper.make_node(kind, inputs, [output], **attributes)

    def constant(self, array: np.ndarray, name: str) -> str:
        """Adds a constant to the graph; returns its name."""
        import onnx

        self.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        return name


def replace(
    model,
    weights: Weights,
    integers: Mapping[int, QuantizedKernel],
    *,
    in_integers: bool = False,
) -> list:
    """Replaces float weights by integers, in place.

    Args:
        model: An `onnx.ModelProto`.
        weights: The large weights that it lacks, by name.
        integers: The integers whose numbers a variable holds, by its id.
        in_integers: Whether products may round their other factor to 8 bits.

    Returns:
        Notes for the report.
    """
    import onnx

    done = _Graph(model.graph, weights, in_integers)
    for name, weight in list(weights.items()):
        kernel = integers.get(id(getattr(weight, "variable", None)))
        if kernel is not None:
            _replace(done, name, kernel, weight)
    if any(node.domain == _DOMAIN for node in model.graph.node):
        if not any(each.domain == _DOMAIN for each in model.opset_import):
            model.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    if not done.counts:
        return []
    listed = ", ".join(f"{count} as {what}" for what, count in done.counts.items())
    return [f"quantized weights in `{model.graph.name}`: {listed}"]


def _replace(done, name, kernel, weight) -> None:
    """Replaces one weight."""
    graph, axes = done.graph, weight.axes
    is_plain = axes is None or list(axes) == sorted(axes)
    is_matrix = len(kernel.shape) == 2
    if is_matrix and is_plain:
        for node in list(graph.node):
            if node.op_type == "Gather" and node.input[0] == name:
                if kernel.mode == "int8" and get_attribute(node, "axis", 0) == 0:
                    _take_rows(done, node, name, kernel)
            elif node.op_type == "MatMul" and node.input[1] == name:
                if _fits_products(done, kernel):
                    _multiply(done, node, name, kernel)
            elif node.op_type == "Transpose" and node.input[0] == name:
                _multiply_transposed(done, node, name, kernel)
    elif is_matrix and kernel.mode == "int8" and done.in_integers:
        for node in list(graph.node):
            if node.op_type == "MatMul" and node.input[1] == name:
                _multiply_by_rows(done, node, name, kernel)
    del done.weights[name]
    if count_uses(graph)[name]:
        _compute_floats(done, name, kernel, weight)


def computes_in_integers(node) -> bool:
    """Whether a node rounds what it multiplies to integers of 8 bits."""
    if node.op_type != "MatMulNBits":
        return False
    return get_attribute(node, "accuracy_level", 0) == _IN_INTEGERS


def _fits_products(done, kernel):
    if kernel.mode == "int8":
        return done.in_integers
    return kernel.num_blocks == 1 or kernel.block_size in _BLOCKS


def _multiply(done, node, name, kernel) -> None:
    """`x W` by `MatMulNBits`."""
    bits = 8 if kernel.mode == "int8" else 4
    inner, outer = kernel.shape
    size = kernel.block_size if kernel.num_blocks > 1 else _block_for(inner)
    blocks = -(-inner // size)

    def scales():
        scale = kernel.scale.numpy().T  # (E, blocks)
        return scale if kernel.num_blocks > 1 else np.repeat(scale, blocks, axis=1)

    def codes():
        return _packed(_codes(kernel).T, bits, size)

    done.weights[f"{name}_blocks"] = Stored(
        (outer, blocks, size * bits // 8), _UINT8, codes, (id(kernel), "blocks")
    )
    done.weights[f"{name}_scales"] = Stored(
        (outer, blocks), _FLOAT, scales, (id(kernel), "scales")
    )
    _to_blocks(done, node, node.input[0], name, inner, outer, bits, size)
    done.counts[f"{kernel.mode} `MatMulNBits`"] += 1


def _multiply_by_rows(done, node, name, kernel) -> None:
    """`x Wᵀ` of int8 as `(s x) codesᵀ`, with scales of 1."""
    outer, inner = kernel.shape
    size = _block_for(inner)
    blocks = -(-inner // size)
    done.weights[f"{name}_rows"] = Stored(
        (outer, blocks, size),
        _UINT8,
        lambda: _packed(_codes(kernel), 8, size),
        (id(kernel), "rows"),
    )
    done.weights[f"{name}_ones"] = Stored(
        (outer, blocks),
        _FLOAT,
        lambda: np.ones((outer, blocks), "float32"),
        ("ones", outer, blocks),
    )
    scaled = f"{node.output[0]}_scaled"
    factors = [node.input[0], _scale(done, name, kernel)]
    multiply = done.node("Mul", factors, scaled)
    done.graph.node.insert(list(done.graph.node).index(node), multiply)
    parts = ("rows", "ones")
    _to_blocks(done, node, scaled, name, inner, outer, 8, size, parts)
    done.counts["int8 `MatMulNBits`"] += 1


def _multiply_transposed(done, node, name, kernel) -> None:
    """Products with what a `Transpose` of the weight returns."""
    perm = get_attribute(node, "perm", (1, 0))
    users = [each for each in done.graph.node if node.output[0] in each.input]
    if kernel.mode != "int8" or list(perm) != [1, 0] or not done.in_integers:
        return
    if count_uses(done.graph)[node.output[0]] != len(users):
        return
    if not all(x.op_type == "MatMul" and x.input[1] == node.output[0] for x in users):
        return
    for user in users:
        _multiply_by_rows(done, user, name, kernel)
    done.graph.node.remove(node)


def _to_blocks(
    done, node, source, name, inner, outer, bits, size, parts=("blocks", "scales")
) -> None:
    """Makes a product a `MatMulNBits`."""
    import onnx

    del node.input[:], node.attribute[:]
    node.op_type, node.domain = "MatMulNBits", _DOMAIN
    node.input.extend([source, *(f"{name}_{part}" for part in parts)])
    options = {"K": inner, "N": outer, "bits": bits, "block_size": size}
    if done.in_integers:
        options["accuracy_level"] = _IN_INTEGERS
    node.attribute.extend(
        onnx.helper.make_attribute(key, value) for key, value in options.items()
    )


def _take_rows(done, node, name, kernel) -> None:
    """Rows of int8 codes, then their numbers."""
    rows, taken = node.output[0], f"{node.output[0]}_codes"
    node.input[0], node.output[0] = _flat_codes(done, name, kernel), taken
    position = list(done.graph.node).index(node) + 1
    cast = done.node("Cast", [taken], f"{taken}_float", to=_FLOAT)
    scale = _scale(done, name, kernel)
    multiply = done.node("Mul", [f"{taken}_float", scale], rows)
    done.graph.node.insert(position, cast)
    done.graph.node.insert(position + 1, multiply)
    done.counts["int8 table"] += 1


def _compute_floats(done, name, kernel, weight) -> None:
    """The weight from codes, one byte each, for nodes that still use it.

    A batch norm that was folded into the weight is one more factor, which leaves the
    codes as they are.
    """
    axes, factor = weight.axes, weight.factor
    floats, scaled = f"{name}_floats", f"{name}_scaled"
    nodes = [
        done.node("Cast", [_flat_codes(done, name, kernel)], floats, to=_FLOAT),
        done.node("Mul", [floats, _scale(done, name, kernel)], scaled),
    ]
    rows, columns = kernel.num_rows, kernel.shape[-1]
    last = scaled
    if kernel.num_blocks > 1:
        last = _reshaped(done, nodes, last, (-1, columns), f"{name}_padded")
        first = done.constant(np.array([0]), f"{name}_first")
        end = done.constant(np.array([rows]), f"{name}_rows")
        cut = f"{name}_cut"
        nodes.append(done.node("Slice", [last, first, end, first], cut))
        last = cut
    is_plain = axes is None or list(axes) == sorted(axes)
    last = _reshaped(
        done,
        nodes,
        last,
        kernel.shape,
        name if is_plain and factor is None else f"{name}_plain",
    )
    if not is_plain:
        turned = name if factor is None else f"{name}_turned"
        perm = list(axes or ())
        nodes.append(done.node("Transpose", [last], turned, perm=perm))
        last = turned
    if factor is not None:
        factors = [last, done.constant(factor, f"{name}_factor")]
        nodes.append(done.node("Mul", factors, name))
    for position, each in enumerate(nodes):
        done.graph.node.insert(position, each)
    done.counts["codes of 8 bits"] += 1


def _reshaped(done, nodes, source, shape, target):
    sizes = done.constant(np.array(shape, "int64"), f"{target}_shape")
    nodes.append(done.node("Reshape", [source, sizes], target))
    return target


def _flat_codes(done, name, kernel) -> str:
    """Codes of a byte each: (rows, E), or in blocks (blocks, G, E)."""
    key, columns = f"{name}_codes", kernel.shape[-1]
    shape = (kernel.num_rows, columns)
    if kernel.num_blocks > 1:
        shape = (kernel.num_blocks, -(-2 * kernel.codes.shape[0] // kernel.num_blocks))
        shape = (*shape, columns)
    done.weights[key] = Stored(
        shape,
        _INT8,
        lambda: _codes(kernel, padded=kernel.num_blocks > 1),
        (id(kernel), "codes"),
    )
    return key


def _scale(done, name, kernel) -> str:
    """Scales (E,), or of blocks (blocks, 1, E)."""
    key, shape = f"{name}_scale", (kernel.shape[-1],)
    if kernel.num_blocks > 1:
        shape = (kernel.num_blocks, 1, *shape)
    done.weights[key] = Stored(
        shape, _FLOAT, lambda: kernel.scale.numpy(), (id(kernel), "scale")
    )
    return key


def _codes(kernel: QuantizedKernel, padded: bool = False) -> np.ndarray:
    """Codes of a byte each, (rows, E)."""
    codes = kernel.codes.numpy()
    if kernel.mode == "int8":
        return codes
    pairs = np.stack([(codes << 4) >> 4, codes >> 4], axis=1)
    flat = pairs.reshape(-1, codes.shape[-1])
    return flat if padded else flat[: kernel.num_rows]


def _packed(codes: np.ndarray, bits: int, size: int) -> np.ndarray:
    """Rows of codes (E, D) in the bytes of `MatMulNBits`, zero in the middle."""
    outer, inner = codes.shape
    codes = np.pad(codes, ((0, 0), (0, -inner % size)))
    unsigned = (codes.astype("int16") + 2 ** (bits - 1)).astype("uint8")
    if bits == 4:
        unsigned = unsigned[:, 0::2] | (unsigned[:, 1::2] << 4)
    return unsigned.reshape(outer, -1, size * bits // 8)


def _block_for(inner: int) -> int:
    """G for one scale a column, repeated for each block."""
    return 32 if inner % 128 else 128
