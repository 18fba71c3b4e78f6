"""Arguments of a call as arrays, for the steps of every class of layers.

Legend: N heads, T queries, S keys, R rows and C columns of a map, D width.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_attn.viz.layer_steps.steps import to_numpy
from keras_attn.viz.layer_steps.terms import as_float64


def refuse(given: Mapping[str, Any], *names: str) -> None:
    """Raises if one of these arguments of the call is given: it hides a step."""
    for name in names:
        if given[name] is not None:
            raise ValueError(
                f"`{name}` must be None to show the steps of a layer: call it with "
                f"all of its inputs. Received: {name} of a call"
            )


def tensor(layer, values):
    """A tensor in the dtype in which the layer computes."""
    return ops.cast(ops.convert_to_tensor(values), layer.compute_dtype)


def array(values) -> np.ndarray:
    """A tensor or an array as an array."""
    return to_numpy(ops.convert_to_tensor(values))


def flat(maps) -> np.ndarray:
    """A map (1, R, C, D) as positions, (R·C, D)."""
    maps = as_float64(array(maps))
    return maps.reshape(-1, maps.shape[-1])


def merged(shape, given: Mapping[str, Any], *names: str) -> np.ndarray:
    """The masks of the keys by these names, and the attention mask, as (N, T, S).

    Args:
        shape: (N, T, S).
        given: The arguments of a call; those of keys are (1, S), or (1, T, S).
        names: Names of arguments.
    """
    mask = np.ones(shape, bool)
    for name in names:
        if given[name] is not None:
            own = array(given[name]).astype(bool)
            mask = mask & (own[:, None] if own.ndim == 2 else own)
    if given.get("attention_mask") is not None:
        own = array(given["attention_mask"]).astype(bool)
        mask = mask & (own[0] if own.ndim == 4 else own)
    return mask


def only_head(mixed):
    """(1, T, V) -> (T, V), the output of a layer without heads."""
    return mixed[0]
