"""Residual branches, attention over feature maps and norms of image models."""

import math
from typing import Any, cast

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn import layers
from keras_attn.layers.blocks.stochastic_depth import rising_rates

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.normal(size=shape).astype("float32")


def numpy(tensor):
    return np.asarray(ops.convert_to_numpy(tensor))


def set_all(layer):
    """Sets every weight to random values, zeros and ones included."""
    for weight in layer.weights:
        weight.assign(draw(*weight.shape))


# Residual branches.


def test_stochastic_depth_drops_whole_branches_and_scales_the_rest():
    layer = layers.StochasticDepth(0.25, seed=1)
    outputs = numpy(layer(np.ones((4000, 3, 2), "float32"), training=True))
    values = outputs.reshape(4000, -1)
    assert (values == values[:, :1]).all()
    assert set(np.unique(values)) == {0, np.float32(1 / 0.75)}
    assert abs((values[:, 0] == 0).mean() - 0.25) < 0.03
    inputs = draw(2, 3)
    np.testing.assert_array_equal(layer(inputs), inputs)


def test_rates_rise_linearly():
    assert rising_rates(0.3, 4) == pytest.approx([0, 0.1, 0.2, 0.3])
    assert rising_rates(0.3, 1) == [0]
    with pytest.raises(ValueError, match="`stochastic_depth` must be a probability"):
        rising_rates(1.0, 2)


def test_a_block_scales_the_output_of_each_sub_layer():
    block = layers.TransformerEncoderBlock(
        1, 5, norm_first=True, layer_scale=0.0, stochastic_depth=0.5
    )
    inputs = draw(2, 3, 4)
    np.testing.assert_array_equal(block(inputs), inputs)
    block.attention_scale.gamma.assign(np.full(4, 0.5))
    attended = block.attention(block.attention_norm(inputs))
    np.testing.assert_allclose(
        block(inputs), inputs + 0.5 * numpy(attended), rtol=0, atol=1e-5
    )


def test_a_swin_block_drops_units_and_probabilities_at_rates_of_their_own():
    inputs = draw(1, 4, 4, 6)
    rates: list[dict[str, Any]] = [{"dropout": 0.9}, {"attention_dropout": 0.9}]
    for options in rates:
        block = layers.SwinBlock(2, 5, 2, seed=3, **options)
        before = numpy(block(inputs))
        normed = block.attention_norm(inputs)
        attended = block.attention(normed)
        in_training = block.attention(normed, training=True)
        is_dropped = "attention_dropout" in options
        assert (numpy(in_training) != numpy(attended)).any() == is_dropped
        assert (numpy(block(inputs, training=True)) != before).any()


# Attention over feature maps.


def test_a_window_is_multi_head_attention():
    layer = layers.WindowAttention(3, 2)
    image = draw(2, 4, 6, 9)
    layer(image)
    set_all(layer)
    layer.position_bias.assign(np.zeros((9, 3)))
    whole = layers.MultiHeadAttention(3, 3)
    window = image[1:, 2:4, 2:4].reshape(1, 4, 9)
    whole(window)
    whole.set_weights([numpy(w) for w in layer.weights[1:]])
    outputs, scores = layer(image, return_attention_scores=True)
    expected, expected_scores = whole(window, return_attention_scores=True)
    np.testing.assert_allclose(
        numpy(outputs)[1, 2:4, 2:4].reshape(4, 9), expected[0], rtol=0, atol=1e-4
    )
    # The fifth window of six.
    np.testing.assert_allclose(
        numpy(scores)[1, 4 * 3 : 5 * 3], expected_scores[0], rtol=0, atol=1e-5
    )


def test_the_bias_depends_on_the_relative_position():
    layer = layers.WindowAttention(1, 2)
    image = np.zeros((1, 2, 2, 3), "float32")
    layer(image)
    bias = draw(9, 1)
    layer.position_bias.assign(bias)
    _, scores = layer(image, return_attention_scores=True)
    # From the first token to itself, to the right, below, and diagonally.
    expected = np.exp(bias[[4, 3, 1, 0], 0])
    np.testing.assert_allclose(
        numpy(scores)[0, 0, 0], expected / expected.sum(), rtol=1e-5
    )


def test_shifted_windows_connect_neighbours_but_not_opposite_edges():
    layer = layers.WindowAttention(1, 4, shifted=True)
    image = 0.1 * draw(1, 8, 8, 5)  # Small, so that no probability is zero.
    layer(image)
    set_all(layer)
    before = numpy(layer(image))

    def influenced_by(row, column):
        other = image.copy()
        other[0, row, column] += 1
        return np.abs(numpy(layer(other)) - before)[0].max(-1) > 0

    # Across the edge between unshifted windows.
    assert influenced_by(3, 3)[2:6, 2:6].all() and influenced_by(3, 3).sum() == 16
    # The corner is a quarter of its window: the rest was rolled around the edges.
    assert influenced_by(0, 0)[:2, :2].all() and influenced_by(0, 0).sum() == 4


@pytest.mark.parametrize(
    "size, window, padded, shift",
    [
        ((8, 8), 4, (8, 8), 2),
        ((9, 13), 4, (12, 16), 2),
        ((4, 9), 4, (4, 12), 0),
        ((3, 9), 3, (3, 9), 0),
    ],
)
def test_the_grid_of_windows(size, window, padded, shift):
    layer = layers.WindowAttention(1, 4, shifted=True)
    assert layer.grid(size) == (window, padded, shift)


def test_wrong_feature_maps_are_refused():
    with pytest.raises(ValueError, match="multiple of `num_heads`.*width=7, num_h"):
        layers.WindowAttention(2, 4)(draw(1, 4, 4, 7))
    with pytest.raises(ValueError, match="map of known size.*image_size"):
        layers.WindowAttention(2, 4)(keras.Input((None, 4, 8)))


@pytest.mark.parametrize("spectral", [False, True])
def test_self_attention_2d(spectral):
    layer = layers.SelfAttention2D(2, spectral_normalization=spectral)
    image = draw(2, 3, 5, 7)
    np.testing.assert_array_equal(layer(image), image)  # γ starts at zero.
    set_all(layer)
    outputs, scores = layer(image, return_attention_scores=True)

    def projected(part, x):
        own = getattr(layer, part)
        if not spectral:
            return x @ numpy(own.kernel) + numpy(own.bias)
        kernel, u = numpy(own.layer.kernel), numpy(own.direction)
        # One power iteration from its current direction.
        u = u / np.linalg.norm(u)
        return x @ kernel / np.linalg.norm(kernel @ u) + numpy(own.bias)

    x = image.reshape(2, 15, 7)
    logits = projected("query", x) @ projected("key", x).transpose(0, 2, 1)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    attended = projected("output_projection", weights @ projected("value", x))
    expected = x + numpy(layer.gamma) * attended
    np.testing.assert_allclose(scores[:, 0], weights, rtol=0, atol=1e-5)
    np.testing.assert_allclose(
        numpy(outputs).reshape(2, 15, 7), expected, rtol=0, atol=1e-4
    )


def test_too_few_channels_for_the_default_key_dim():
    with pytest.raises(ValueError, match="`key_dim` .*channels=7, key_dim=None"):
        layers.SelfAttention2D()(draw(1, 2, 2, 7))


# Norms.


@pytest.mark.parametrize(
    "inner, shape",
    [
        (keras.layers.Dense(5, use_bias=False), (4, 7)),
        (keras.layers.Conv2D(5, 3, use_bias=False), (4, 6, 6, 2)),
    ],
)
def test_spectral_normalization_divides_by_the_largest_singular_value(inner, shape):
    layer = layers.SpectralNormalization(inner, use_bias=False, power_iterations=50)
    layer.build(shape)
    # The iterations reach the largest singular value if the next one is not too close.
    left, _ = np.linalg.qr(draw(math.prod(inner.kernel.shape) // 5, 5))
    right, _ = np.linalg.qr(draw(5, 5))
    sigma = 3.0
    kernel = left * [sigma, 2.4, 1, 0.5, 0.1] @ right
    inner.kernel.assign(kernel.reshape(inner.kernel.shape))
    kernel = numpy(inner.kernel)
    inputs = draw(*shape)
    layer(inputs, training=True)
    np.testing.assert_allclose(
        layer(inputs), numpy(inner(inputs)) / sigma, rtol=1e-4, atol=1e-6
    )
    # The kernel is unchanged, and outside of training so is the direction.
    direction = numpy(layer.direction)
    layer(inputs)
    np.testing.assert_array_equal(layer.direction, direction)
    np.testing.assert_array_equal(inner.kernel, kernel)


def test_spectral_normalization_rejects_layers_that_are_not_linear():
    for options in ({}, {"use_bias": False, "activation": "relu"}):
        with pytest.raises(ValueError, match="`layer` must be linear.*use_bias="):
            layers.SpectralNormalization(keras.layers.Dense(3, **options))
    with pytest.raises(TypeError, match="`layer` must be a `Dense` or a convolution"):
        layers.SpectralNormalization(keras.layers.ReLU())


def test_each_class_has_its_own_scale_and_shift():
    layer = layers.ConditionalBatchNormalization(3, epsilon=1e-3)
    image, labels = draw(4, 2, 3, 5), np.array([2, 0, 2, 1], "int32")
    layer(image, labels)
    gamma, beta = draw(3, 5), draw(3, 5)
    layer.gamma.assign(gamma)
    layer.beta.assign(beta)
    mean, variance = image.mean((0, 1, 2)), image.var((0, 1, 2))
    normed = (image - mean) / np.sqrt(variance + 1e-3)
    expected = gamma[labels][:, None, None] * normed + beta[labels][:, None, None]
    np.testing.assert_allclose(
        layer(image, labels, training=True), expected, rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_spectral_normalization_is_finite_at_every_scale(scale):
    layer = layers.SpectralNormalization(keras.layers.Dense(3, use_bias=False))
    inputs = np.ones((2, 5), "float32")
    layer(inputs)
    kernel = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    layer.layer.kernel.assign(scale * kernel)

    def converged():
        for _ in range(39):
            layer(inputs, training=True)
        return numpy(layer(inputs, training=True))

    expected = np.zeros((2, 3))
    if scale:
        expected = inputs @ kernel / np.linalg.svd(kernel, compute_uv=False)[0]
    np.testing.assert_allclose(converged(), expected, rtol=1e-3, atol=1e-6)
    # It recovers: a kernel of zeros leaves the direction as it was.
    layer.layer.kernel.assign(kernel)
    expected = inputs @ kernel / np.linalg.svd(kernel, compute_uv=False)[0]
    np.testing.assert_allclose(converged(), expected, rtol=1e-3)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="fits")
def test_a_kernel_of_zeros_trains():
    inner = keras.layers.Dense(3, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential(
        [keras.Input((5,)), layers.SpectralNormalization(inner, use_bias=False)]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(np.ones((4, 5)), np.ones((4, 3)), epochs=3, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert history["loss"][-1] < history["loss"][0]
    # Of the size of the steps: no gradient was divided by a norm of about zero.
    assert 0 < np.abs(numpy(inner.kernel)).max() < 10


def test_a_map_is_cropped_from_the_offset_to_the_size_of_the_reference():
    images = draw(2, 11, 13, 3)
    found = layers.CropLike(2)(images, draw(1, 5, 7, 17))
    np.testing.assert_array_equal(found, images[:, 2:7, 2:9])


def test_crops_and_resizes_that_cannot_be_are_refused():
    images, reference = draw(2, 11, 13, 3), draw(2, 9, 12, 3)
    message = (
        r"`inputs` must have at least 2 rows and columns more than `reference`.*"
        r"inputs.shape=\(2, 11, 13, 3\), reference.shape=\(2, 9, 12, 3\)"
    )
    with pytest.raises(ValueError, match=message):
        layers.CropLike(2)(images, reference)
    for offset in (1.5, True):
        with pytest.raises(ValueError, match=f"`offset` must be a .*offset={offset}"):
            layers.CropLike(cast("Any", offset))
