"""Several weights from one initializer, each with numbers of its own."""

import keras
import numpy as np
from keras import ops

from keras_attn.patches import sinusoid_grid


def nth(initializer: keras.initializers.Initializer, index: int):
    """A copy of an initializer that draws the `index`-th weight of a layer.

    One initializer object draws the same numbers at every call, and so does a clone
    that was given a seed: two kernels of one layer would start out equal.
    """
    config = initializer.get_config()
    if isinstance(config.get("seed"), int):
        config["seed"] += index
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
