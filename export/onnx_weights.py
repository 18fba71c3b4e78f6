"""The weights of an ONNX folder: one file beside the graphs, each tensor once."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import keras
import numpy as np

from keras_attn.export.signatures import Signature

# Smaller tensors stay in the graph, where shape inference can see them.
_SMALLEST = 1024
# Smaller variables are frozen into the graph as usual.
_SMALLEST_LIFTED = 1_000_000
# A page, so that a runtime may map a tensor into memory.
_ALIGNMENT = 4096


class WeightFile:
    """The open file: takes tensors out of graphs and leaves references to it."""

    def __init__(self, path: Path):
        self._path = path
        self._file = path.open("wb")
        self._places: dict[bytes, tuple[int, int]] = {}

    def __enter__(self) -> "WeightFile":
        return self

    def __exit__(self, *details) -> None:
        self._file.close()
        if not self._places:
            self._path.unlink()

    def take_from(self, model, lifted: Mapping[str, keras.Variable]) -> None:
        """Moves the large tensors of a model here.

        Args:
            model: An `onnx.ModelProto`, edited in place.
            lifted: Weights that are inputs of its graph, by name; they become
                initializers.
        """
        import onnx

        for value in [v for v in model.graph.input if v.name in lifted]:
            model.graph.input.remove(value)
            array = np.ascontiguousarray(lifted[value.name].numpy())
            tensor = model.graph.initializer.add(name=value.name, dims=array.shape)
            tensor.data_type = value.type.tensor_type.elem_type
            self._place(onnx, tensor, array.reshape(-1).view(np.uint8).data)
        for tensor in _tensors(onnx, model.graph):
            if len(tensor.raw_data) >= _SMALLEST:
                self._place(onnx, tensor, memoryview(tensor.raw_data))
                tensor.ClearField("raw_data")

    def _place(self, onnx, tensor, data: memoryview) -> None:
        digest = hashlib.sha256(data).digest()
        if digest not in self._places:
            self._file.seek(-self._file.tell() % _ALIGNMENT, os.SEEK_CUR)
            self._places[digest] = (self._file.tell(), len(data))
            self._file.write(data)
        offset, length = self._places[digest]
        tensor.data_location = onnx.TensorProto.EXTERNAL
        where = {"location": self._path.name, "offset": offset, "length": length}
        for key, value in where.items():
            tensor.external_data.add(key=key, value=str(value))


def liftable(signature: Signature) -> dict[str, keras.Variable]:
    """The variables that are worth keeping out of a large graph, by a name for each."""
    return {
        f"weight_{i}": variable
        for i, variable in enumerate(signature.model.variables)
        if variable.value.dtype.size * np.prod(variable.shape) >= _SMALLEST_LIFTED
    }


def lift(
    signature: Signature, lifted: Mapping[str, keras.Variable]
) -> Callable[[dict], dict]:
    """The signature with weights as inputs next to its own.

    tf2onnx copies every constant it sees many times over: 2 GB of weights took more
    than 20 GB of memory. What it does not see it does not copy.
    """

    def call(tensors: dict) -> dict:
        state = [(variable, tensors[name]) for name, variable in lifted.items()]
        with keras.StatelessScope(state_mapping=state):
            return signature(tensors)

    return call


def _tensors(onnx, graph) -> Iterator:
    """Every constant tensor of a graph, of its nodes, and of the graphs inside."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(onnx, inner)
