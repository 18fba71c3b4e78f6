"""Initializers of several weights: independent, and reproducible by a seed."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.layers.initializers import (
    independent_copy,
    independent_parts,
    normal,
    truncated_normal,
)

SHAPE = (5, 7)


def values_of(initializer):
    return ops.convert_to_numpy(initializer(SHAPE, dtype="float32"))


def test_without_a_seed_every_fork_differs():
    initializer = keras.initializers.GlorotUniform()
    values = [
        values_of(independent_copy(initializer, name))
        for name in ("query", "key", "key")
    ]
    values.append(values_of(initializer))
    assert len({array.tobytes() for array in values}) == 4


def test_with_a_seed_a_fork_is_determined_by_its_name():
    initializer = keras.initializers.GlorotUniform(seed=3)
    query, key, again = (
        values_of(independent_copy(initializer, n)) for n in ("query", "key", "key")
    )
    assert np.any(query != key)
    np.testing.assert_array_equal(key, again)
    np.testing.assert_array_equal(
        values_of(independent_copy(initializer)), values_of(initializer)
    )


def test_seed_generators_and_functions_are_returned_unchanged():
    generator = keras.initializers.RandomNormal(seed=keras.random.SeedGenerator(5))
    assert np.any(
        values_of(independent_copy(generator, "query"))
        != values_of(independent_copy(generator, "key"))
    )
    assert independent_copy(np.zeros, "query") is np.zeros
    assert independent_copy(None, "query") is None


@pytest.mark.parametrize("make", [normal, truncated_normal])
def test_layers_that_share_a_configuration_are_initialized_differently(make):
    initializer = make(0.5)
    layers = [keras.layers.Dense(7, kernel_initializer=initializer) for _ in range(2)]
    for layer in layers:
        layer.build((None, 500))
    one, other = (ops.convert_to_numpy(layer.kernel) for layer in layers)
    assert np.any(one != other)
    assert 0.4 < one.std() < 0.55
    assert initializer == make(0.5)


def test_a_fused_kernel_holds_the_kernels_of_its_parts():
    initializer = keras.initializers.GlorotUniform(seed=3)
    fused = independent_parts(initializer, {"query": 4, "key": 2})(
        (5, 6), dtype="float32"
    )
    parts = [
        independent_copy(initializer, name)((5, width), dtype="float32")
        for name, width in (("query", 4), ("key", 2))
    ]
    np.testing.assert_array_equal(fused, np.concatenate(parts, axis=1))
