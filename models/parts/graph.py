"""The calls of a functional or sequential model in order, nested models inlined."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras


@dataclasses.dataclass
class Step:
    """A call of a layer or an operation in the graph of a model.

    A key stands for a tensor: a nested model that is called twice has the same symbolic
    tensors in both calls.

    Attributes:
        operation: The layer or operation.
        node: Keras' record of the call.
        inputs: Keys of the tensors that it is called with.
        outputs: Keys of the tensors that it returns.
    """

    operation: Any
    node: Any
    inputs: list
    outputs: list

    def arguments(self, tensors):
        """Positional and keyword arguments, with tensors by their keys."""
        pairs = zip(self.node.input_tensors, self.inputs, strict=True)
        return self.node.arguments.fill_in({id(x): tensors[key] for x, key in pairs})


class Graph:
    """The calls of a model, with nested models replaced by their own calls.

    Args:
        model: A model for which `is_graph` holds.

    Attributes:
        steps: The calls, each after the calls whose results it needs.
    """

    def __init__(self, model):
        self._aliases = {}
        self._graphs = []  # Keys contain ids of tensors, which must stay alive.
        self.steps = list(self._steps(model, ()))

    @property
    def input_key(self):
        """The key of the first input."""
        return self._key((), self._graphs[0].inputs[0])

    def map_outputs(self, function):
        """The model's outputs, in their structure, as a function of their keys."""
        return keras.tree.map_structure(
            lambda tensor: function(self._key((), tensor)), self._graphs[0].output
        )

    def _steps(self, model, scope) -> Iterator[Step]:
        # A sequential model holds its graph in a functional one.
        graph = model
        if isinstance(model, keras.Sequential):
            graph = keras.Model(model.inputs[0], model.outputs[0])
        self._graphs.append(graph)
        for depth in sorted(graph._nodes_by_depth, reverse=True):
            for node in graph._nodes_by_depth[depth]:
                if node.is_input:
                    continue
                inputs = [self._key(scope, tensor) for tensor in node.input_tensors]
                outputs = [(scope, id(tensor)) for tensor in node.outputs]
                nested = node.operation
                if not is_graph(nested):
                    yield Step(nested, node, inputs, outputs)
                    continue
                inner = (*scope, len(self._graphs))
                start = len(self._graphs)
                steps = self._nested_steps(nested, inner, inputs)
                yield from steps
                inner_outputs = self._graphs[start].outputs
                for key, tensor in zip(outputs, inner_outputs, strict=True):
                    self._aliases[key] = self._key(inner, tensor)

    def _nested_steps(self, model, scope, inputs):
        for key, tensor in zip(inputs, model.inputs, strict=True):
            self._aliases[(scope, id(tensor))] = key
        yield from self._steps(model, scope)

    def _key(self, scope, tensor):
        key = (scope, id(tensor))
        while key in self._aliases:
            key = self._aliases[key]
        return key


def is_graph(operation):
    """Whether an operation is a model whose layers are known."""
    return isinstance(operation, keras.Model) and (
        isinstance(operation, keras.Sequential) or hasattr(operation, "_nodes_by_depth")
    )
