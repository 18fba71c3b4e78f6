"""Reads weights that `keras.distribution` divides: each process reads its parts."""

from collections.abc import Mapping

import keras
import numpy as np

from keras_attn.models.checkpoints.folder import Folder
from keras_attn.models.checkpoints.mapping import Joined, Weight
from keras_attn.models.checkpoints.tensors import Index


def assign_divided(weight: Weight, keys: Mapping[str, str], opened: Folder) -> None:
    """Gives a variable its value, of which each device reads its part.

    A part of most kernels is a part of the tensors in the files, and only that is in
    memory. A weight whose tensors are computed with, such as resized positions, and
    joined variables are read whole, one at a time.

    Args:
        weight: The weight, whose variable is allocated.
        keys: Full key to the key in the files.
        opened: The folder.
    """
    names = [keys[key] for key in weight.keys]
    if keras.backend.backend() != "jax" or isinstance(weight.variable, Joined):
        weight.variable.assign(weight.read(*map(opened.read, names)))
        return
    import jax

    shapes = weight.shapes()
    is_as_expected = all(opened.shapes[keys[key]] == shapes[key] for key in weight.keys)
    shape, dtype = tuple(weight.variable.shape), jax.numpy.dtype(weight.variable.dtype)
    # Devices that hold the same part are asked for one after another.
    read: dict[tuple, np.ndarray] = {}

    def part(index: Index | None) -> np.ndarray:
        # JAX may name the ends of an axis that is not divided.
        index = tuple(
            slice(None) if len(range(size)[each]) == size else each
            for each, size in zip(index or (), shape, strict=True)
        )
        ends = tuple((each.start, each.stop) for each in index)
        if ends not in read:
            whole = all(each == slice(None) for each in index)
            parts = weight.parts(index) if is_as_expected and not whole else None
            if parts is None:
                value = weight.read(*map(opened.read, names))[index]
            else:
                value = weight.read(*map(opened.read_part, names, parts))
            read.clear()
            read[ends] = np.ascontiguousarray(value, dtype)
        return read[ends]

    sharding = weight.variable.value.sharding
    weight.variable.assign(jax.make_array_from_callback(shape, sharding, part))
