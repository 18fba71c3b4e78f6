"""The random states of a model's layers in its file, so that dropout continues from it.

Keras saves the weights of layers, and leaves out the states of their seed generators:
a run that was loaded would draw other dropout masks than one that was not interrupted.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

_NAME = "random_states"


def save_random_states(model: keras.Model, store: Any) -> None:
    """Adds the states of all layers to what a file has of the model itself.

    Args:
        model: The model.
        store: From Keras, in `save_own_variables`.
    """
    states = [ops.convert_to_numpy(state) for state in _states(model)]
    if states:
        store[_NAME] = np.stack(states)


def load_random_states(model: keras.Model, store: Any) -> dict[str, Any]:
    """Restores the states of all layers, if the file has them for as many.

    An older file has none, and one of another variant of the model may have others; its
    weights do not depend on them.

    Args:
        model: The model.
        store: From Keras, in `load_own_variables`.

    Returns:
        The rest of the store.
    """
    rest = {name: store[name] for name in store.keys()}  # noqa: SIM118
    saved, states = rest.pop(_NAME, None), _states(model)
    if saved is not None and len(saved) == len(states):
        for state, value in zip(states, np.asarray(saved), strict=True):
            state.assign(value)
    return rest


def _states(model):
    """The states of the seed generators of all layers, each once, in their order."""
    found = {}
    for layer in model._flatten_layers():
        for generator in getattr(layer, "_seed_generators", ()):
            found[id(generator)] = generator.state
    return list(found.values())
