"""The weights of an ONNX artefact, written without passing through tf2onnx.

tf2onnx copies every constant many times: a model of 0.5 GB took 20 GB of memory and
minutes. So a large weight is an input of the graph that is converted (`liftable`,
`call_with`), and becomes an initializer when the graph is written, copied one at a time
from the Keras variable to the file. Smaller weights, and constants that are not weights
(shapes, axes, tables), stay constants, which tf2onnx folds and some ONNX operators
need.
"""

import hashlib
import os
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from keras_attn.export.signatures import Signature

# Bytes. Smaller tensors stay in the graph, where shape inference can see them.
_SMALLEST = 1024
# Bytes. Smaller variables become constants of the graph.
_SMALLEST_LIFTED = 100_000
# Bytes of a memory page, so that a runtime can map a tensor.
_ALIGNMENT = 4096
# Protobuf's wire type of a field that begins with its length.
_LENGTH_DELIMITED = 2


@dataclass(frozen=True, eq=False)
class Weight:
    """A large tensor of a graph, computed from its variable when it is written.

    Attributes:
        variable: The variable.
        element_type: ONNX' number of its dtype.
        axes: The axes of the variable in the order of the tensor; None if it is the
            same.
        factor: What the transposed variable is multiplied by; None for 1.
    """

    variable: keras.Variable
    element_type: int
    axes: tuple[int, ...] | None = None
    factor: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the tensor."""
        shape = tuple(self.variable.shape)
        return shape if self.axes is None else tuple(shape[axis] for axis in self.axes)

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return _size(self.variable)

    @property
    def key(self) -> tuple:
        """Equal for tensors with the same content."""
        factor = None if self.factor is None else self.factor.tobytes()
        return id(self.variable), self.axes, factor

    def array(self) -> np.ndarray:
        """The tensor."""
        array = self.variable.numpy()
        if self.axes is not None:
            array = array.transpose(self.axes)
        return array if self.factor is None else array * self.factor

    def data(self) -> memoryview:
        """The bytes of the tensor."""
        return bytes_of(self.array())


Weights = dict[str, Weight]


def bytes_of(array: np.ndarray) -> memoryview:
    """The bytes of an array, row by row."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def take_inputs(model, lifted: Mapping[str, keras.Variable]) -> Weights:
    """Removes lifted weights from the inputs of a graph.

    Args:
        model: An `onnx.ModelProto`, edited in place.
        lifted: The variables by the names of their inputs.

    Returns:
        The weights by name, which the graph lacks until it is written.
    """
    weights = {}
    for value in [v for v in model.graph.input if v.name in lifted]:
        model.graph.input.remove(value)
        element_type = value.type.tensor_type.elem_type
        weights[value.name] = Weight(lifted[value.name], element_type)
    return weights


def liftable(
    signature: Signature, function, always: Container[int] = ()
) -> dict[str, keras.Variable]:
    """The large variables of a function, which become inputs for the conversion.

    Variables in bfloat16 are excluded, because tf2onnx mistakes them for float16.

    Args:
        signature: The signature of the model that owns the variables.
        function: Its concrete function.
        always: Ids of variables that are lifted at any size.

    Returns:
        Variables by input name.
    """
    used = {id(variable) for variable in function.graph.variables}
    prefix, taken = "weight", (*signature.inputs, *function.structured_outputs)
    while any(name.lower().startswith(prefix) for name in taken):
        prefix = f"own_{prefix}"
    return {
        f"{prefix}_{i}": variable
        for i, variable in enumerate(signature.model.variables)
        if id(variable.value) in used
        and variable.value.dtype != tf.bfloat16
        and (_size(variable) >= _SMALLEST_LIFTED or id(variable) in always)
    }


def spec(name: str, variable: keras.Variable) -> tf.TensorSpec:
    """A lifted weight as an input of the graph that is converted.

    Its sizes are unknown: TensorFlow's graph optimizer allocates a tensor for every
    input of known size, and keeps the memory.
    """
    sizes = [None] * len(variable.shape)
    return tf.TensorSpec(sizes, variable.value.dtype, name=name)


def call_with(
    signature: Signature, lifted: Mapping[str, keras.Variable], tensors: Mapping
) -> dict:
    """Calls a signature with the values of lifted weights among its tensors."""
    state = [
        (variable, tf.ensure_shape(tensors[name], variable.shape))
        for name, variable in lifted.items()
    ]
    with keras.StatelessScope(state_mapping=state):
        return signature(tensors)


def file_size(model, weights: Weights) -> int:
    """An upper bound on the size of `write_file`'s file, in bytes."""
    headers = 1024 * (1 + len(weights))
    return model.ByteSize() + sum(each.size for each in weights.values()) + headers


def write_file(model, weights: Weights, path: Path) -> None:
    """Writes a model and its weights as one `.onnx` file.

    `SerializeToString` would hold every weight in memory twice. Protobuf allows the
    elements of a repeated field anywhere in a message, so the weights are written
    after the rest of the graph, each directly from its variable.

    Args:
        model: An `onnx.ModelProto`, consumed.
        weights: The weights that become its initializers, by name.
        path: The file.
    """
    import onnx

    initializers = [
        (_initializer(onnx, _tensor(onnx, name, weight), weight.size), weight)
        for name, weight in weights.items()
    ]
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    length = len(graph) + sum(len(head) + x.size for head, x in initializers)
    with path.open("wb") as file:
        file.write(model.SerializeToString())
        file.write(_field(onnx.ModelProto, "graph", length))
        file.write(graph)
        for head, weight in initializers:
            file.write(head)
            file.write(weight.data())


class WeightFile:
    """An open file of tensors that several graphs refer to.

    Args:
        path: The file; removed on exit if nothing was written to it.
    """

    def __init__(self, path: Path):
        self._path = path
        self._file = path.open("wb")
        # Offset and length, by `key` of weights and by hash of other tensors.
        self._written: dict[tuple | bytes, tuple[int, int]] = {}

    def __enter__(self) -> "WeightFile":
        return self

    def __exit__(self, *details) -> None:
        self._file.close()
        if not self._written:
            self._path.unlink()

    def take_from(self, model, weights: Weights) -> None:
        """Moves the large tensors of a model to the file.

        Args:
            model: An `onnx.ModelProto`, edited in place.
            weights: The weights that become its initializers, by name.
        """
        import onnx

        for name, weight in weights.items():
            if weight.key not in self._written:
                self._written[weight.key] = self._append(weight.data())
            tensor = _tensor(onnx, name, weight)
            self._refer(onnx, tensor, *self._written[weight.key])
            model.graph.initializer.append(tensor)
        for tensor in _tensors(onnx, model.graph):
            if len(tensor.raw_data) >= _SMALLEST:
                data = memoryview(tensor.raw_data)
                digest = hashlib.sha256(data).digest()
                if digest not in self._written:
                    self._written[digest] = self._append(data)
                self._refer(onnx, tensor, *self._written[digest])
                tensor.ClearField("raw_data")

    def _append(self, data: memoryview) -> tuple[int, int]:
        self._file.seek(-self._file.tell() % _ALIGNMENT, os.SEEK_CUR)
        offset = self._file.tell()
        self._file.write(data)
        return offset, len(data)

    def _refer(self, onnx, tensor, offset: int, length: int) -> None:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        where = {"location": self._path.name, "offset": offset, "length": length}
        for key, value in where.items():
            tensor.external_data.add(key=key, value=str(value))


def _size(variable: keras.Variable) -> int:
    return variable.value.dtype.size * int(np.prod(variable.shape))


def _tensor(onnx, name: str, weight: Weight):
    """An `onnx.TensorProto` without its data."""
    return onnx.TensorProto(name=name, dims=weight.shape, data_type=weight.element_type)


def _initializer(onnx, tensor, size: int) -> bytes:
    """An initializer of a graph's message, up to its `size` bytes of data."""
    head = tensor.SerializeToString() + _field(onnx.TensorProto, "raw_data", size)
    return _field(onnx.GraphProto, "initializer", len(head) + size) + head


def _field(message, name: str, length: int) -> bytes:
    """Protobuf's tag of a field, and the length of its content."""
    number = message.DESCRIPTOR.fields_by_name[name].number
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(length)


def _varint(value: int) -> bytes:
    """Seven bits per byte, lowest first; the top bit is set if more bytes follow."""
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def _tensors(onnx, graph) -> Iterator:
    """Every constant tensor of a graph, of its nodes, and of its inner graphs."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(onnx, inner)
