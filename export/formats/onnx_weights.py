"""The weights of an ONNX artefact, written past protobuf and past tf2onnx.

tf2onnx copies every constant that it sees many times over: for a model of 0.5 GB that
was 20 GB of memory and minutes. So a weight of some size is an input of the graph that
is converted (`liftable`, `call_with`), and becomes an initializer as the graph is
written: from the Keras variable to the file, one at a time. Smaller weights, and all
constants that are no weights (shapes, axes, tables), stay constants, which tf2onnx
folds and some ONNX operators need.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from keras_attn.export.signatures import Signature

# Smaller tensors stay in the graph, where shape inference can see them.
_SMALLEST = 1024
# Smaller variables are frozen into the graph as usual.
_SMALLEST_LIFTED = 100_000
# A page, so that a runtime may map a tensor into memory.
_ALIGNMENT = 4096
# Of a field in protobuf's wire format whose length is written before it.
_LENGTH_DELIMITED = 2


def liftable(signature: Signature, function) -> dict[str, keras.Variable]:
    """The variables that a graph uses and is better converted without.

    Not those in bfloat16, which tf2onnx takes for float16.

    Args:
        signature: Has the model whose variables they are.
        function: The signature's concrete function.

    Returns:
        Variables by a name for each.
    """
    used = {id(variable) for variable in function.graph.variables}
    return {
        f"weight_{i}": variable
        for i, variable in enumerate(signature.model.variables)
        if id(variable.value) in used
        and variable.value.dtype != tf.bfloat16
        and _size(variable) >= _SMALLEST_LIFTED
    }


def spec(name: str, variable: keras.Variable) -> tf.TensorSpec:
    """A lifted weight as an input of the graph that is converted.

    Its sizes are left open: TensorFlow's graph optimizer allocates a tensor for every
    input whose sizes it knows, and keeps the memory.
    """
    sizes = [None] * len(variable.shape)
    return tf.TensorSpec(sizes, variable.value.dtype, name=name)


def call_with(
    signature: Signature, lifted: Mapping[str, keras.Variable], tensors: Mapping
) -> dict:
    """Calls a signature with the values of some weights among its tensors, by name."""
    state = [
        (variable, tf.ensure_shape(tensors[name], variable.shape))
        for name, variable in lifted.items()
    ]
    with keras.StatelessScope(state_mapping=state):
        return signature(tensors)


def file_size(model, lifted: Mapping[str, keras.Variable]) -> int:
    """Bytes of the file that `write_file` makes, or a little more."""
    headers = 1024 * (1 + len(lifted))
    return model.ByteSize() + sum(map(_size, lifted.values())) + headers


def write_file(model, lifted: Mapping[str, keras.Variable], path: Path) -> None:
    """Writes a model and its lifted weights as one `.onnx` file.

    `SerializeToString` would need every weight in the message and the message once
    more as bytes. Repeated fields of a message may stand anywhere in it, so the
    weights follow the rest of the graph, each straight from its variable.

    Args:
        model: An `onnx.ModelProto`, used up; its inputs named in `lifted` become
            initializers.
        lifted: Weights by name.
        path: The file.
    """
    import onnx

    initializers = [
        (_initializer(onnx, tensor, _size(variable)), variable)
        for tensor, variable in _made_initializers(onnx, model, lifted)
    ]
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    length = len(graph) + sum(len(head) + _size(v) for head, v in initializers)
    with path.open("wb") as file:
        file.write(model.SerializeToString())
        file.write(_field(onnx.ModelProto, "graph", length))
        file.write(graph)
        for head, variable in initializers:
            file.write(head)
            file.write(_bytes(variable))


class WeightFile:
    """The open file: takes tensors out of graphs and leaves references to it."""

    def __init__(self, path: Path):
        self._path = path
        self._file = path.open("wb")
        # Offset and length: of lifted variables by identity, of others by content.
        self._written: dict[int | bytes, tuple[int, int]] = {}

    def __enter__(self) -> "WeightFile":
        return self

    def __exit__(self, *details) -> None:
        self._file.close()
        if not self._written:
            self._path.unlink()

    def take_from(self, model, lifted: Mapping[str, keras.Variable]) -> None:
        """Moves the large tensors of a model here.

        Args:
            model: An `onnx.ModelProto`, edited in place.
            lifted: Weights that are inputs of its graph, by name; they become
                initializers.
        """
        import onnx

        for tensor, variable in _made_initializers(onnx, model, lifted):
            if id(variable) not in self._written:
                self._written[id(variable)] = self._append(_bytes(variable))
            self._refer(onnx, tensor, *self._written[id(variable)])
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


def _bytes(variable: keras.Variable) -> memoryview:
    array = np.ascontiguousarray(variable.numpy())
    return array.reshape(-1).view(np.uint8).data


def _made_initializers(
    onnx, model, lifted: Mapping[str, keras.Variable]
) -> list[tuple]:
    """Takes lifted weights from a graph's inputs.

    Returns:
        `(tensor, variable)` of each that the graph uses: an `onnx.TensorProto` without
        its data, and where the data is.
    """
    made = []
    for value in [v for v in model.graph.input if v.name in lifted]:
        model.graph.input.remove(value)
        variable = lifted[value.name]
        tensor = onnx.TensorProto(
            name=value.name,
            dims=variable.shape,
            data_type=value.type.tensor_type.elem_type,
        )
        made.append((tensor, variable))
    return made


def _initializer(onnx, tensor, size: int) -> bytes:
    """A field of a graph's message, up to where `size` bytes of data begin."""
    head = tensor.SerializeToString() + _field(onnx.TensorProto, "raw_data", size)
    return _field(onnx.GraphProto, "initializer", len(head) + size) + head


def _field(message, name: str, length: int) -> bytes:
    """Protobuf's tag of a field and the length of what follows it."""
    number = message.DESCRIPTOR.fields_by_name[name].number
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(length)


def _varint(value: int) -> bytes:
    """Seven bits per byte, the lowest first; the top bit says that more follow."""
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def _tensors(onnx, graph) -> Iterator:
    """Every constant tensor of a graph, of its nodes, and of the graphs inside."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(onnx, inner)
