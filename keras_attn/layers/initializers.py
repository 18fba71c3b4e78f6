"""Initializers for several weights: one configuration, independent random values."""

import zlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn.checks.configuration import Configured
from keras_attn.ops.patches import sinusoid_grid


def normal(stddev: float) -> Any:
    """Configuration of a normal initializer with mean 0.

    A model's file gives one initializer to many layers. An initializer object draws its
    seed when it is created and returns the same values at every call, so all layers
    would start with the same weights. From a configuration, each layer creates its own
    initializer, with a seed that follows `keras.utils.set_random_seed`.

    Args:
        stddev: Standard deviation.
    """
    return {"class_name": "RandomNormal", "config": {"stddev": stddev}}


def truncated_normal(stddev: float) -> Any:
    """As `normal`, with values beyond two standard deviations drawn again."""
    return {"class_name": "TruncatedNormal", "config": {"stddev": stddev}}


def he_normal_fan_out() -> Any:
    """Configuration of He's initializer, scaled by the fan-out; see `normal`.

    Published convolutional networks scale by the number of outputs of a kernel, Keras'
    `he_normal` by the number of inputs.

    Reference:
        He et al. 2015, "Delving Deep into Rectifiers" (arXiv:1502.01852).
    """
    config = {"scale": 2.0, "mode": "fan_out", "distribution": "untruncated_normal"}
    return {"class_name": "VarianceScaling", "config": config}


def independent_copy(initializer, name: str = ""):
    """A copy of an initializer whose random values are independent of the original's.

    An initializer object returns the same values at every call, so each weight of a
    layer needs a copy. The copy of an initializer without a seed draws a new seed. The
    copy of an initializer with an integer seed derives its seed from that seed and from
    `name`, so the values stay reproducible; without a name the seed stays the same.

    Args:
        initializer: From `keras.initializers.get`. Functions, and initializers that
            hold a `keras.random.SeedGenerator`, which advances with every call, are
            returned as they are.
        name: Name of the weight or sublayer that the copy is for.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    if isinstance(getattr(initializer, "seed", None), keras.random.SeedGenerator):
        return initializer
    config = initializer.get_config()
    if isinstance(config.get("seed"), int):
        config["seed"] = (config["seed"] + zlib.crc32(name.encode())) % 2**31
    return type(initializer).from_config(config)


def independent_parts(initializer, widths: Mapping[str, int]):
    """An initializer for several kernels that are stored as one, side by side.

    Each kernel is initialized as if it were a variable of its own: the bounds of Glorot
    and He depend on the shape of a kernel, and would be different for the fused kernel.

    Args:
        initializer: As for `independent_copy`.
        widths: The name of each kernel and its number of columns, in order.

    Returns:
        A function of the shape and dtype of the fused kernel.
    """

    def initialize(shape, dtype=None):
        kernels = [
            independent_copy(initializer, name)((*shape[:-1], width), dtype=dtype)
            for name, width in widths.items()
        ]
        return ops.concatenate(kernels, axis=-1) if len(kernels) > 1 else kernels[0]

    return initialize


@keras.saving.register_keras_serializable("keras_attn")
class SinusoidGrid(Configured, keras.initializers.Initializer):
    """Initializes a position table with the sinusoids of a grid: `ops.sinusoid_grid`.

    Args:
        rows: Number of rows of the grid.
        columns: Number of columns of the grid.
        num_prefix_tokens: Number of zero rows before the grid, for tokens that have no
            position on it.
    """

    def __init__(self, rows: int, columns: int, num_prefix_tokens: int = 0):
        self.rows = rows
        self.columns = columns
        self.num_prefix_tokens = num_prefix_tokens

    def __call__(self, shape, dtype=None):
        grid = sinusoid_grid(self.rows, self.columns, shape[-1])
        prefix = np.zeros((self.num_prefix_tokens, shape[-1]), "float32")
        return ops.convert_to_tensor(np.concatenate([prefix, grid]), dtype=dtype)


@keras.saving.register_keras_serializable("keras_attn")
class BilinearKernel(keras.initializers.Initializer):
    """Bilinear interpolation, as the kernel of a `TransposedConv2D`.

    Each channel is enlarged separately: kernels between different channels are zero.
    Along each axis the k weights form a tent, `1 - |i - c| / f`, where f = ⌈k / 2⌉ and
    the peak c is in the middle of the kernel, or for an odd k at row f - 1. To enlarge
    s times: a stride of s, a kernel of 2s - s mod 2 and a padding of ⌊s / 2⌋.

    Reference:
        Long et al. 2015, section 4 (arXiv:1411.4038), in their published code.
    """

    def __call__(self, shape, dtype=None):
        rows, columns, filters, channels = shape
        if filters != channels:
            raise ValueError(
                "`BilinearKernel` needs as many filters as input channels, each "
                f"interpolated by itself. Received: filters={filters}, "
                f"channels={channels}"
            )
        tent = np.outer(_tent(rows), _tent(columns))
        kernel = tent[:, :, None, None] * np.eye(filters)
        return ops.convert_to_tensor(kernel, dtype=dtype)


def _tent(size):
    """Weights of bilinear interpolation along one axis of a kernel."""
    half = (size + 1) // 2
    top = half - 1 if size % 2 else half - 0.5
    return 1 - np.abs(np.arange(size) - top) / half
