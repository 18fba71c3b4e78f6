"""Several weights from one initializer, each with random values of its own."""

import zlib
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn.ops.patches import sinusoid_grid


def normal(stddev: float) -> Any:
    """A normal initializer with a mean of 0, as a configuration.

    A model's file hands one initializer to many layers. An initializer object draws
    its seed when it is made and returns the same values at every call, so all those
    layers would start alike; from a configuration each layer makes an initializer of
    its own, whose seed `keras.utils.set_random_seed` governs.

    Args:
        stddev: Standard deviation of the values.
    """
    return {"class_name": "RandomNormal", "config": {"stddev": stddev}}


def truncated_normal(stddev: float) -> Any:
    """As `normal`, with values beyond two standard deviations drawn again."""
    return {"class_name": "TruncatedNormal", "config": {"stddev": stddev}}


def fork(initializer, name: str = ""):
    """A copy of an initializer whose random values are independent of the original's.

    An initializer object returns the same values at every call, so each weight of a
    layer needs a copy. Without a seed the copy draws a fresh one. With an integer seed
    the copy's seed follows from it and `name`, so the values stay reproducible; without
    a name it stays the same.

    Args:
        initializer: From `keras.initializers.get`. What has no seed to copy, such as a
            function or an initializer that holds a `keras.random.SeedGenerator`, which
            moves on with every call, is returned as it is.
        name: Of the weight, or of the sublayer, that the copy is for.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    if isinstance(getattr(initializer, "seed", None), keras.random.SeedGenerator):
        return initializer
    config = initializer.get_config()
    if isinstance(config.get("seed"), int):
        config["seed"] = (config["seed"] + zlib.crc32(name.encode())) % 2**31
    return type(initializer).from_config(config)


@keras.saving.register_keras_serializable("keras_attn")
class SinusoidGrid(keras.initializers.Initializer):
    """The first values of a table of positions: `patches.sinusoid_grid`.

    Args:
        rows: Of the grid.
        columns: Of the grid.
        num_prefix_tokens: Rows of zeros in front, for what has no place on it.
    """

    def __init__(self, rows, columns, num_prefix_tokens=0):
        self.rows = rows
        self.columns = columns
        self.num_prefix_tokens = num_prefix_tokens

    def __call__(self, shape, dtype=None):
        grid = sinusoid_grid(self.rows, self.columns, shape[-1])
        front = np.zeros((self.num_prefix_tokens, shape[-1]), "float32")
        return ops.convert_to_tensor(np.concatenate([front, grid]), dtype=dtype)

    def get_config(self):
        return {
            "rows": self.rows,
            "columns": self.columns,
            "num_prefix_tokens": self.num_prefix_tokens,
        }
