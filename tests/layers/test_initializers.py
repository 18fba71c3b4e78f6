"""Initializers of several weights: independent values that the seed decides."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.layers.initializers import fork, normal, truncated_normal

SHAPE = (5, 7)


def drawn(initializer):
    return ops.convert_to_numpy(initializer(SHAPE, dtype="float32"))


def test_without_a_seed_every_copy_draws_other_values():
    initializer = keras.initializers.GlorotUniform()
    values = [drawn(fork(initializer, name)) for name in ("query", "key", "key")]
    values.append(drawn(initializer))
    assert len({array.tobytes() for array in values}) == 4


def test_with_a_seed_a_copy_follows_from_the_name():
    initializer = keras.initializers.GlorotUniform(seed=3)
    query, key, again = (drawn(fork(initializer, n)) for n in ("query", "key", "key"))
    assert np.any(query != key)
    np.testing.assert_array_equal(key, again)
    np.testing.assert_array_equal(drawn(fork(initializer)), drawn(initializer))


def test_a_seed_generator_and_a_function_are_kept():
    moving = keras.initializers.RandomNormal(seed=keras.random.SeedGenerator(5))
    assert np.any(drawn(fork(moving, "query")) != drawn(fork(moving, "key")))
    assert fork(np.zeros, "query") is np.zeros
    assert fork(None, "query") is None


@pytest.mark.parametrize("make", [normal, truncated_normal])
def test_layers_that_share_a_configuration_start_apart(make):
    initializer = make(0.5)
    layers = [keras.layers.Dense(7, kernel_initializer=initializer) for _ in range(2)]
    for layer in layers:
        layer.build((None, 500))
    one, other = (ops.convert_to_numpy(layer.kernel) for layer in layers)
    assert np.any(one != other)
    assert 0.4 < one.std() < 0.55
    assert initializer == make(0.5)
