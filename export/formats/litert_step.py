"""The step of a decoder in LiteRT: caches need not be copied in at every token."""

import weakref
from collections.abc import Mapping

import numpy as np

from keras_attn.decoding.loop import CACHE_INDEX, NEW

# Of a `SignatureRunner`, which in public writes all of its inputs or none; nor does an
# interpreter show where it has the inputs of any signature but the first.
_PRIVATE = (
    *("_interpreter", "_interpreter_wrapper", "_subgraph_index"),
    *("_inputs", "_outputs"),
)


class LiteRTStep:
    """Calls the signature `step`, and writes only what has changed into its inputs.

    An interpreter has its inputs in memory of its own, where they stay until the next
    call. The caches of GPT-2 small with room for 1,024 tokens are 75 MB; from one token
    to the next they change at one position.

    Args:
        function: The `SignatureRunner` of `step`.
    """

    def __init__(self, function):
        self._function = function
        self._can_continue = all(hasattr(function, name) for name in _PRIVATE)
        # What the interpreter's inputs were written from, their shapes, and where the
        # caches have been written to since.
        self._arrays: dict[str, weakref.ref] = {}
        self._shapes: dict[str, tuple] = {}
        self._slot = 0

    def __call__(self, inputs: Mapping[str, np.ndarray], in_place: bool) -> dict:
        """Runs one step.

        Args:
            inputs: Arrays by name, all of them.
            in_place: Whether an array that is the one of the previous call has since
                been changed by `next_state(..., in_place=True)` alone.

        Returns:
            Arrays by name.
        """
        arrays, shapes = self._arrays, self._shapes
        # If this call fails, nothing is known of the interpreter's inputs.
        self._arrays, self._shapes = {}, {name: x.shape for name, x in inputs.items()}
        is_next = in_place and self._can_continue and shapes == self._shapes
        kept = {
            name
            for name, array in inputs.items()
            if is_next and name in arrays and arrays[name]() is array
        }
        outputs = self._continue(inputs, kept) if kept else self._function(**inputs)
        if CACHE_INDEX in inputs:
            self._slot = int(inputs[CACHE_INDEX][0])
            self._arrays = {name: weakref.ref(array) for name, array in inputs.items()}
        return outputs

    def _continue(self, inputs, kept) -> dict:
        """Runs the step as `SignatureRunner` does, but leaves what is `kept`."""
        function = self._function
        interpreter, graph = function._interpreter_wrapper, function._subgraph_index
        outputs = dict(function._outputs)
        for name, array in inputs.items():
            index = function._inputs[name]
            if name not in kept:
                interpreter.SetTensor(index, array, graph)
            elif NEW + name in outputs:
                view = interpreter.tensor(function._interpreter, index, graph)
                view[:, :, self._slot] = array[:, :, self._slot]
                del view  # It must not be held while the interpreter runs.
        interpreter.Invoke(graph)
        return {
            name: interpreter.GetTensor(index, graph) for name, index in outputs.items()
        }
