"""The layers of image models against what their equations say."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn import layers
from keras_attn.layers.initializers import SinusoidGrid
from keras_attn.layers.stochastic_depth import rising_rates

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.normal(size=shape).astype("float32")


def numpy(tensor):
    return np.asarray(ops.convert_to_numpy(tensor))


def set_all(layer):
    """Draws every weight, those that start at zero or one too."""
    for weight in layer.weights:
        weight.assign(draw(*weight.shape))


# Patches.


def test_a_patch_is_projected():
    layer = layers.PatchEmbedding(7, (2, 3))
    images = draw(2, 4, 9, 3)
    layer(images)
    set_all(layer)
    outputs = numpy(layer(images))
    assert outputs.shape == (2, 6, 7)
    patch = images[1, 2:4, 3:6].reshape(-1)  # The second of the second row.
    kernel = numpy(layer.projection.kernel).reshape(-1, 7)
    expected = patch @ kernel + numpy(layer.projection.bias)
    np.testing.assert_allclose(outputs[1, 4], expected, rtol=0, atol=1e-4)


def test_what_patches_do_not_fill():
    images = draw(1, 5, 7, 3)
    padded = layers.PatchEmbedding(7, 4, padding="same", flatten=False)
    more = np.pad(images, ((0, 0), (0, 3), (0, 1), (0, 0)))
    np.testing.assert_allclose(padded(images), padded(more), rtol=0, atol=1e-5)
    # A lone pixel, too.
    one = np.pad(images[:, :1, :1], ((0, 0), (0, 3), (0, 3), (0, 0)))
    small = layers.PatchEmbedding(7, 4, padding="same", flatten=False)
    np.testing.assert_allclose(small(images[:, :1, :1]), small(one), atol=1e-5)
    cropped = layers.PatchEmbedding(7, 4, padding="valid", flatten=False)
    np.testing.assert_allclose(
        cropped(images), cropped(images[:, :4, :4]), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("padding", [None, "same"])
def test_an_image_of_unknown_size_is_cropped_or_refused(padding):
    inputs = keras.Input((None, 8, 3))
    with pytest.raises(ValueError, match=r"must be known.*Received: .*None, None, 8"):
        layers.PatchEmbedding(5, 4, padding=padding)(inputs)
    cropped = layers.PatchEmbedding(5, 4, padding="valid", flatten=False)
    assert cropped(inputs).shape == (None, None, 2, 5)


@pytest.mark.parametrize("size", [(5, 8), (8, 6), (3, 8)])
def test_an_image_that_patches_do_not_fill_is_refused(size):
    message = r"filled by patches of \(4, 4\) pixels.*Received: inputs.shape=\("
    with pytest.raises(ValueError, match=message):
        layers.PatchEmbedding(7, 4)(draw(1, *size, 3))
    with pytest.raises(ValueError, match=message):
        layers.PatchEmbedding(7, 4)(keras.Input((*size, 3)))
    if min(size) < 4:
        with pytest.raises(ValueError, match=message):
            layers.PatchEmbedding(7, 4, padding="valid")(draw(1, *size, 3))


@pytest.mark.parametrize("stem_dims", [None, [5]])
def test_other_channels_than_it_was_built_for_are_refused(stem_dims):
    layer = layers.PatchEmbedding(7, 4, stem_dims=stem_dims)
    layer(draw(1, 8, 8, 3))
    message = r"3 channels .*num_channels=1. Received: inputs.shape=\({}, 8, 8, 1\)"
    with pytest.raises(ValueError, match=message.format(2)):
        layer(draw(2, 8, 8, 1))
    # Also while a functional model is built, which traces no such layer.
    with pytest.raises(ValueError, match=message.format(None)):
        layer(keras.Input((8, 8, 1)))


@pytest.mark.parametrize(
    "shape, message",
    [
        ((8, 8, None), r"channels must be known.*inputs.shape=\(None, 8, 8, None\)"),
        ((8, 8), r"`inputs` must have 4 axes.*inputs.shape=\(None, 8, 8\)"),
    ],
)
def test_what_has_no_channels_is_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        layers.PatchEmbedding(7, 4)(keras.Input(shape))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"patch_size": 0}, "`patch_size` must be a whole number above zero"),
        ({"patch_size": (2, 3, 4)}, "`patch_size` must be .*one for the columns"),
        ({"padding": "full"}, "`padding` must be one of None, 'same', 'valid'"),
        ({"patch_size": 6, "stem_dims": [5, 5]}, "multiple of 2 for each of `stem_d"),
        ({"hidden_dim": 0}, "`hidden_dim` must be a whole number above zero"),
    ],
)
def test_patches_that_can_not_be(options, message):
    with pytest.raises(ValueError, match=message):
        layers.PatchEmbedding(**{"hidden_dim": 7, "patch_size": 4, **options})


def test_a_stem_shrinks_before_patches_are_cut():
    layer = layers.PatchEmbedding(7, 8, stem_dims=[5, 3])
    assert layer(draw(1, 16, 24, 3)).shape == (1, 6, 7)
    assert layer.projection.kernel.shape == (2, 2, 3, 7)
    # Its norms learn while it trains, and only then.
    before = numpy(layer.stem[1].moving_mean)
    layer(draw(4, 16, 24, 3), training=True)
    assert np.abs(numpy(layer.stem[1].moving_mean) - before).max() > 1e-4


def test_tokens_stand_in_front():
    layer = layers.ClassToken(2)
    inputs = draw(3, 5, 7)
    layer(inputs)
    set_all(layer)
    outputs = numpy(layer(inputs))
    np.testing.assert_array_equal(outputs[:, 2:], inputs)
    np.testing.assert_array_equal(outputs[2, :2], numpy(layer.tokens)[0])


def test_neighbours_are_merged_column_before_row():
    layer = layers.PatchMerging()
    image = draw(2, 3, 4, 5)
    assert layer(image).shape == (2, 2, 2, 10)
    set_all(layer)
    padded = np.pad(image, ((0, 0), (0, 1), (0, 0), (0, 0)))
    merged = np.concatenate(
        [padded[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], axis=-1
    )
    mean, variance = merged.mean(-1, keepdims=True), merged.var(-1, keepdims=True)
    normed = (merged - mean) / np.sqrt(variance + 1e-5)
    normed = normed * numpy(layer.norm.gamma) + numpy(layer.norm.beta)
    expected = normed @ numpy(layer.reduction.kernel)
    np.testing.assert_allclose(layer(image), expected, rtol=0, atol=1e-4)


def test_positions_begin_as_sinusoids():
    table = layers.LearnedPositionEmbedding(
        7, embeddings_initializer=SinusoidGrid(2, 3, num_prefix_tokens=1)
    )
    table(draw(1, 7, 8))
    values = numpy(table.embeddings)
    assert not values[0].any()
    # At row 1 and column 2: the sine of the column, which comes first.
    np.testing.assert_allclose(values[6, 0], np.sin(2.0), atol=1e-6)
    np.testing.assert_allclose(values[6, 4], np.sin(1.0), atol=1e-6)


# Hiding.


def test_noise_decides_what_is_hidden_and_all_comes_back():
    inputs, noise = draw(2, 1 + 8, 3), RNG.uniform(size=(2, 8)).astype("float32")
    masking = layers.RandomPatchMasking(0.6, num_prefix_tokens=1)
    visible, hidden, places = map(numpy, masking(inputs, noise=noise))
    assert visible.shape == (2, 1 + 3, 3)
    np.testing.assert_array_equal(hidden.sum(1), [5, 5])
    for row in range(2):
        order = np.argsort(noise[row])
        np.testing.assert_array_equal(visible[row, 1:], inputs[row, 1:][order[:3]])
        assert hidden[row][order[3:]].all()
    back = layers.PatchUnmasking(num_prefix_tokens=1)
    back(visible, places)
    set_all(back)
    restored = numpy(back(visible, places))
    np.testing.assert_array_equal(restored[:, 0], inputs[:, 0])
    np.testing.assert_array_equal(restored[:, 1:][~hidden], inputs[:, 1:][~hidden])
    np.testing.assert_array_equal(
        restored[:, 1:][hidden], np.tile(numpy(back.token)[0], (10, 1))
    )


def test_without_noise_each_call_hides_others():
    masking = layers.RandomPatchMasking(0.5, seed=3)
    inputs = draw(400, 8, 2)
    first, second = (numpy(masking(inputs)[1]) for _ in range(2))
    assert (first != second).any(1).mean() > 0.9
    # Every patch is hidden as often as any other.
    np.testing.assert_allclose(first.mean(0), 0.5, atol=0.1)


def test_a_ratio_may_be_a_number_of_numpy():
    half: Any = np.float32(0.5)
    assert layers.RandomPatchMasking(half).num_visible(8) == 4


@pytest.mark.parametrize("ratio", [0.0, "0.5", 1.0, -0.5, 75])
def test_a_ratio_that_hides_nothing_or_all(ratio):
    with pytest.raises(ValueError, match=f"`mask_ratio` .* mask_ratio={ratio!r}"):
        layers.RandomPatchMasking(ratio)


def test_too_few_patches_to_hide_some():
    with pytest.raises(ValueError, match="some hidden.*3 patches, mask_ratio=0.75"):
        layers.RandomPatchMasking(0.75)(draw(1, 3, 2))


# Residual branches.


def test_a_branch_is_dropped_as_a_whole_and_scaled():
    layer = layers.StochasticDepth(0.25, seed=1)
    outputs = numpy(layer(np.ones((4000, 3, 2), "float32"), training=True))
    values = outputs.reshape(4000, -1)
    assert (values == values[:, :1]).all()
    assert set(np.unique(values)) == {0, np.float32(1 / 0.75)}
    assert abs((values[:, 0] == 0).mean() - 0.25) < 0.03
    inputs = draw(2, 3)
    np.testing.assert_array_equal(layer(inputs), inputs)


def test_rates_rise_to_the_last():
    assert rising_rates(0.3, 4) == pytest.approx([0, 0.1, 0.2, 0.3])
    assert rising_rates(0.3, 1) == [0]
    with pytest.raises(ValueError, match="`stochastic_depth` is a probability"):
        rising_rates(1.0, 2)


def test_a_block_scales_each_sub_layer():
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
    whole.set_weights([numpy(w) for w in layer.weights[:4]])
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
    with pytest.raises(ValueError, match="must have 4 axes"):
        layers.WindowAttention(2, 4)(draw(1, 4, 8))


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
def test_the_largest_gain_is_one(inner, shape):
    layer = layers.SpectralNormalization(inner, use_bias=False, power_iterations=50)
    inputs = draw(*shape)
    layer(inputs, training=True)
    kernel = numpy(inner.kernel)
    sigma = np.linalg.svd(kernel.reshape(-1, 5), compute_uv=False)[0]
    np.testing.assert_allclose(
        layer(inputs), numpy(inner(inputs)) / sigma, rtol=1e-4, atol=1e-6
    )
    # The kernel itself stays, and so does the direction but for training.
    direction = numpy(layer.direction)
    layer(inputs)
    np.testing.assert_array_equal(layer.direction, direction)
    np.testing.assert_array_equal(inner.kernel, kernel)


def test_only_linear_layers_have_a_largest_gain():
    for options in ({}, {"use_bias": False, "activation": "relu"}):
        with pytest.raises(ValueError, match="`layer` must be linear.*use_bias="):
            layers.SpectralNormalization(keras.layers.Dense(3, **options))
    with pytest.raises(TypeError, match="`layer` must be a `Dense` or a convolution"):
        layers.SpectralNormalization(keras.layers.ReLU())


def test_each_class_has_its_scale_and_shift():
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
def test_a_spectral_norm_of_any_kernel_is_finite(scale):
    layer = layers.SpectralNormalization(keras.layers.Dense(3, use_bias=False))
    inputs = np.ones((2, 5), "float32")
    layer(inputs)
    kernel = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    layer.layer.kernel.assign(scale * kernel)

    def settled():
        for _ in range(39):
            layer(inputs, training=True)
        return numpy(layer(inputs, training=True))

    expected = np.zeros((2, 3))
    if scale:
        expected = inputs @ kernel / np.linalg.svd(kernel, compute_uv=False)[0]
    np.testing.assert_allclose(settled(), expected, rtol=1e-3, atol=1e-6)
    # It recovers: the direction was kept while there was nothing to follow.
    layer.layer.kernel.assign(kernel)
    expected = inputs @ kernel / np.linalg.svd(kernel, compute_uv=False)[0]
    np.testing.assert_allclose(settled(), expected, rtol=1e-3)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="fits")
def test_a_kernel_of_zeros_learns():
    inner = keras.layers.Dense(3, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential(
        [keras.Input((5,)), layers.SpectralNormalization(inner, use_bias=False)]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(np.ones((4, 5)), np.ones((4, 3)), epochs=3, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert history["loss"][-1] < history["loss"][0]
