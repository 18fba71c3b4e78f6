"""Batch normalization by every kernel, against Keras' own."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.layers import BatchNormalization

C = 5
SHAPES = [(3, 7, 4, C), (1, 1, 1, C), (2, 1, 9, C), (4, 3, C), (6, C)]


def maps(*shape, mean=3.0, seed=1):
    return np.random.default_rng(seed).normal(mean, 2, shape).astype("float32")


def both(shape, **options):
    """Ours and Keras' norm, with the same weights."""
    pair = [
        make(**options)
        for make in (BatchNormalization, keras.layers.BatchNormalization)
    ]
    for layer in pair:
        layer.build((None, *shape[1:]))
        rng = np.random.default_rng(0)
        layer.set_weights([rng.uniform(0.5, 2, w.shape) for w in layer.weights])
    return pair


def as_numpy(tensor):
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "float16"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_computes_what_keras_does(shape, trainable, training, policy):
    pair = both(shape, dtype=policy)
    inputs = ops.cast(maps(*shape), pair[0].compute_dtype)
    for layer in pair:
        layer.trainable = trainable
    ours, theirs = (layer(inputs, training=training) for layer in pair)
    assert ours.dtype == theirs.dtype
    # Two roundings to the nearest number of half precision.
    tolerance = {"float32": 1e-5, "float16": 2**-9, "mixed_bfloat16": 2**-6}[policy]
    np.testing.assert_allclose(
        as_numpy(ours), as_numpy(theirs), rtol=tolerance, atol=tolerance
    )
    for ours, theirs in zip(pair[0].weights, pair[1].weights, strict=True):
        np.testing.assert_allclose(as_numpy(ours), as_numpy(theirs), rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"axis": 1},
        {"center": False},
        {"scale": False},
        {"center": False, "scale": False},
        {"renorm": True},
        {"momentum": 0.7, "epsilon": 0.1},
    ],
    ids=lambda options: "-".join(options),
)
def test_every_option_of_keras_is_honored(options):
    shape = (3, 7, 4, C)
    pair = both(shape, **options)
    for training in (True, False):
        ours, theirs = (layer(maps(*shape), training=training) for layer in pair)
        np.testing.assert_allclose(as_numpy(ours), as_numpy(theirs), 1e-5, 1e-5)
    assert pair[0].get_config() | {"name": ""} == pair[1].get_config() | {"name": ""}


def test_masked_places_do_not_count():
    shape = (3, 7, 4, C)
    pair = both(shape)
    mask = np.arange(7 * 4).reshape(1, 7, 4) % 3 > 0
    mask = np.repeat(mask, 3, axis=0)
    ours, theirs = (layer(maps(*shape), training=True, mask=mask) for layer in pair)
    np.testing.assert_allclose(as_numpy(ours), as_numpy(theirs), 1e-5, 1e-5)


def test_a_mean_of_many_deviations_is_subtracted_first():
    inputs = maps(3, 7, 4, C, mean=3000.0)
    layer = BatchNormalization(epsilon=1e-5)
    found = as_numpy(layer(inputs, training=True))
    exact = inputs.astype("float64")
    exact = (exact - exact.mean((0, 1, 2))) / np.sqrt(exact.var((0, 1, 2)) + 1e-5)
    np.testing.assert_allclose(found, exact, atol=2e-3)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="for `tf` tapes")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("training", [False, True])
def test_gradients_are_those_of_keras(training, compiled):
    import tensorflow as tf

    shape = (3, 7, 4, C)

    def gradients(layer):
        inputs = tf.constant(maps(*shape))
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=training)
            loss = tf.reduce_sum(outputs * maps(*shape, seed=2))
        return tape.gradient(loss, [inputs, *layer.trainable_weights])

    ours, theirs = (
        (tf.function(gradients) if compiled else gradients)(layer)
        for layer in both(shape)
    )
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(as_numpy(one), as_numpy(other), 1e-4, 1e-4)
