"""Patches, class tokens, merging and masking, compared with their equations."""

from typing import Any

import keras
import numpy as np
import pytest
from attention_reference import layer_norm
from layer_contract import randomize
from model_cases import numpy

from keras_attn import layers
from keras_attn.layers.initializers import SinusoidGrid

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.normal(size=shape).astype("float32")


# Patches.


def test_patches_are_projected():
    layer = layers.PatchEmbedding(7, (2, 3))
    images = draw(2, 4, 9, 3)
    layer(images)
    randomize(layer)
    outputs = numpy(layer(images))
    assert outputs.shape == (2, 6, 7)
    patch = images[1, 2:4, 3:6].reshape(-1)  # The second patch of the second row.
    kernel = numpy(layer.projection.kernel).reshape(-1, 7)
    expected = patch @ kernel + numpy(layer.projection.bias)
    np.testing.assert_allclose(outputs[1, 4], expected, rtol=0, atol=1e-4)


def test_an_image_is_padded_or_cropped_to_whole_patches():
    images = draw(1, 5, 7, 3)
    padded = layers.PatchEmbedding(7, 4, padding="same", flatten=False)
    more = np.pad(images, ((0, 0), (0, 3), (0, 1), (0, 0)))
    np.testing.assert_allclose(padded(images), padded(more), rtol=0, atol=1e-5)
    # Also a single pixel.
    one = np.pad(images[:, :1, :1], ((0, 0), (0, 3), (0, 3), (0, 0)))
    small = layers.PatchEmbedding(7, 4, padding="same", flatten=False)
    np.testing.assert_allclose(small(images[:, :1, :1]), small(one), atol=1e-5)
    cropped = layers.PatchEmbedding(7, 4, padding="valid", flatten=False)
    np.testing.assert_allclose(
        cropped(images), cropped(images[:, :4, :4]), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("padding", [None, "same"])
def test_an_image_of_unknown_size_is_cropped_or_rejected(padding):
    inputs = keras.Input((None, 8, 3))
    with pytest.raises(ValueError, match=r"must be known.*Received: .*None, None, 8"):
        layers.PatchEmbedding(5, 4, padding=padding)(inputs)
    cropped = layers.PatchEmbedding(5, 4, padding="valid", flatten=False)
    assert cropped(inputs).shape == (None, None, 2, 5)


@pytest.mark.parametrize("size", [(5, 8), (8, 6), (3, 8)])
def test_an_image_of_partial_patches_is_rejected(size):
    message = r"multiple of `patch_size`.*Received: inputs.shape=.*\(4, 4\)"
    with pytest.raises(ValueError, match=message):
        layers.PatchEmbedding(7, 4)(draw(1, *size, 3))
    with pytest.raises(ValueError, match=message):
        layers.PatchEmbedding(7, 4)(keras.Input((*size, 3)))
    if min(size) < 4:
        with pytest.raises(ValueError, match="must be at least `patch_size`"):
            layers.PatchEmbedding(7, 4, padding="valid")(draw(1, *size, 3))


@pytest.mark.parametrize("stem_dims", [None, [5]])
def test_another_number_of_channels_is_rejected(stem_dims):
    layer = layers.PatchEmbedding(7, 4, stem_dims=stem_dims)
    layer(draw(1, 8, 8, 3))
    message = r"3 channels .*num_channels=1. Received: inputs.shape=\({}, 8, 8, 1\)"
    with pytest.raises(ValueError, match=message.format(2)):
        layer(draw(2, 8, 8, 1))
    # Also in a functional model, which does not trace such a layer.
    with pytest.raises(ValueError, match=message.format(None)):
        layer(keras.Input((8, 8, 1)))


def test_inputs_without_channels_are_rejected():
    message = r"channels must be known.*inputs.shape=\(None, 8, 8, None\)"
    with pytest.raises(ValueError, match=message):
        layers.PatchEmbedding(7, 4)(keras.Input((8, 8, None)))


def test_patches_must_be_as_large_as_the_strides_of_the_stem():
    message = r"multiple of .*2 \*\* len\(stem_dims\) = 4"
    with pytest.raises(ValueError, match=message):
        layers.PatchEmbedding(7, 6, stem_dims=[5, 5])


def test_a_stem_comes_before_the_patches():
    layer = layers.PatchEmbedding(7, 8, stem_dims=[5, 3])
    assert layer(draw(1, 16, 24, 3)).shape == (1, 6, 7)
    assert layer.projection.kernel.shape == (2, 2, 3, 7)
    # In training the batch norms update their moving averages.
    before = numpy(layer.stem[1].moving_mean)
    layer(draw(4, 16, 24, 3), training=True)
    assert np.abs(numpy(layer.stem[1].moving_mean) - before).max() > 1e-4


def test_class_tokens_are_prepended():
    layer = layers.ClassToken(2)
    inputs = draw(3, 5, 7)
    layer(inputs)
    randomize(layer)
    outputs = numpy(layer(inputs))
    np.testing.assert_array_equal(outputs[:, 2:], inputs)
    np.testing.assert_array_equal(outputs[2, :2], numpy(layer.tokens)[0])


def test_patches_are_merged_column_before_row():
    layer = layers.PatchMerging()
    image = draw(2, 3, 4, 5)
    assert layer(image).shape == (2, 2, 2, 10)
    randomize(layer)
    padded = np.pad(image, ((0, 0), (0, 1), (0, 0), (0, 0)))
    merged = np.concatenate(
        [padded[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], axis=-1
    )
    normed = layer_norm(merged, numpy(layer.norm.gamma), numpy(layer.norm.beta), 1e-5)
    expected = normed @ numpy(layer.reduction.kernel)
    np.testing.assert_allclose(layer(image), expected, rtol=0, atol=1e-4)


def test_learned_positions_can_start_as_sinusoids():
    table = layers.LearnedPositionEmbedding(
        7, embeddings_initializer=SinusoidGrid(2, 3, num_prefix_tokens=1)
    )
    table(draw(1, 7, 8))
    values = numpy(table.embeddings)
    assert not values[0].any()
    # Row 1, column 2: the sine of the column comes first.
    np.testing.assert_allclose(values[6, 0], np.sin(2.0), atol=1e-6)
    np.testing.assert_allclose(values[6, 4], np.sin(1.0), atol=1e-6)


# Masking.


def test_unmasking_restores_the_patches_with_the_lowest_noise():
    inputs, noise = draw(2, 1 + 8, 3), RNG.uniform(size=(2, 8)).astype("float32")
    masking = layers.RandomPatchMasking(0.6, num_prefix_tokens=1)
    visible, hidden, places = map(numpy, masking(inputs, noise=noise))
    assert visible.shape == (2, 1 + 3, 3)
    np.testing.assert_array_equal(hidden.sum(1), [5, 5])
    for row in range(2):
        order = np.argsort(noise[row])
        np.testing.assert_array_equal(visible[row, 1:], inputs[row, 1:][order[:3]])
        assert hidden[row][order[3:]].all()
    unmasking = layers.PatchUnmasking(num_prefix_tokens=1)
    unmasking(visible, places)
    randomize(unmasking)
    restored = numpy(unmasking(visible, places))
    np.testing.assert_array_equal(restored[:, 0], inputs[:, 0])
    np.testing.assert_array_equal(restored[:, 1:][~hidden], inputs[:, 1:][~hidden])
    np.testing.assert_array_equal(
        restored[:, 1:][hidden], np.tile(numpy(unmasking.token)[0], (10, 1))
    )


def test_noise_is_sampled_at_each_call_by_default():
    masking = layers.RandomPatchMasking(0.5, seed=3)
    inputs = draw(400, 8, 2)
    first, second = (numpy(masking(inputs)[1]) for _ in range(2))
    assert (first != second).any(1).mean() > 0.9
    # All patches are hidden equally often.
    np.testing.assert_allclose(first.mean(0), 0.5, atol=0.1)


def test_a_mask_ratio_may_be_a_numpy_number():
    half: Any = np.float32(0.5)
    assert layers.RandomPatchMasking(half).num_visible(8) == 4


@pytest.mark.parametrize("ratio", [0.0, "0.5", 1.0, -0.5, 75])
def test_a_mask_ratio_of_nothing_or_all_is_rejected(ratio):
    with pytest.raises(ValueError, match=f"`mask_ratio` .* mask_ratio={ratio!r}"):
        layers.RandomPatchMasking(ratio)


def test_too_few_patches_are_rejected():
    with pytest.raises(ValueError, match="some hidden.*3 patches, mask_ratio=0.75"):
        layers.RandomPatchMasking(0.75)(draw(1, 3, 2))
