"""Random inputs of `gpu.py`, the same for both sides, and what a side prepares.

Legend: B batch, N heads, T tokens, H head size.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

VOCABULARY = {"bert": 30_522, "lora": 30_522, "gpt2": 50_257}
CLASSES = 1000
# How many numbers of each result are compared.
COMPARED = 2048


class Prepared(NamedTuple):
    """A contestant.

    Attributes:
        time: Function that returns the milliseconds of one call, `{"ms": …}`.
        bytes: Peak memory, or None.
        values: Some numbers of each result, or None.
    """

    time: Callable[[], dict[str, float]]
    bytes: int | None
    values: list[list[float]] | None


def attention_inputs(sizes, length):
    """Queries, keys, values and a gradient, each (B, N, T, H); lengths, (B,)."""
    batch = max(sizes.tokens // length, 1)
    shape = (4, batch, sizes.heads, length, sizes.head_dim)
    tensors = np.random.default_rng(0).normal(size=shape).astype("float32")
    lengths = np.linspace(length // 2, length, batch).astype("int32")
    return list(tensors), lengths


def compared(size):
    """Random places in a flat array of a size."""
    return np.random.default_rng(1).integers(0, size, COMPARED)


def images_and_labels(sizes):
    """Images (B, R, R, 3) and their classes."""
    shape = (sizes.images, sizes.side, sizes.side, 3)
    images = np.random.default_rng(0).normal(size=shape).astype("float32")
    return images, np.zeros(sizes.images, "int32")


def tokens(sizes, name):
    """Texts of full length, (B, T), for `bert`, `lora` or `gpt2`."""
    rng = np.random.default_rng(0)
    return rng.integers(1, VOCABULARY[name], getattr(sizes, name)).astype("int32")
