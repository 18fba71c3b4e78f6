"""The loss of a masked autoencoder against its equation."""

import keras
import numpy as np
import pytest
from model_cases import create, inputs_for, numpy

from keras_attn.losses import MaskedPatchLoss

RNG = np.random.default_rng(0)


def patches(images):
    """Images (B, 14, 21, 3) cut into patches of 7."""
    return np.stack(
        [
            images[:, 7 * row : 7 * row + 7, 7 * column : 7 * column + 7].reshape(
                len(images), -1
            )
            for row in range(2)
            for column in range(3)
        ],
        axis=1,
    )


@pytest.mark.parametrize("normalize", [True, False])
def test_the_loss_is_the_error_of_hidden_patches(normalize):
    model = create("mae_vit_base")
    inputs = inputs_for(model)
    outputs = numpy(model(inputs))
    wanted = patches(inputs["images"])
    if normalize:
        wanted = wanted - wanted.mean(-1, keepdims=True)
        wanted /= np.sqrt(wanted.var(-1, ddof=1, keepdims=True) + 1e-6)
    error = ((outputs["reconstruction"] - wanted) ** 2).mean(-1)
    loss = MaskedPatchLoss(7, normalize=normalize)
    model.compile(loss={"reconstruction": loss})
    found = model.evaluate(inputs, {"reconstruction": inputs["images"]}, verbose=0)
    np.testing.assert_allclose(found, error[outputs["hidden"]].mean(), rtol=1e-5)
    # Without a mask all patches count.
    alone = loss(inputs["images"], outputs["reconstruction"])
    np.testing.assert_allclose(alone, error.mean(), rtol=1e-5)


def test_images_of_another_size_are_refused():
    loss = MaskedPatchLoss((7, 7))
    with pytest.raises(ValueError, match="patches as are predicted: .*`patch_size`"):
        loss(np.zeros((1, 14, 14, 3)), np.zeros((1, 6, 147)))
    with pytest.raises(ValueError, match="multiple of `patch_size`"):
        loss(np.zeros((1, 15, 14, 3)), np.zeros((1, 6, 147)))


@pytest.mark.parametrize("compiled", [True, False])
def test_weights_of_images_and_of_patches(compiled):
    model = create("mae_vit_base")
    inputs = inputs_for(model)
    images, outputs = inputs["images"], numpy(model(inputs))
    loss = MaskedPatchLoss(7)
    error = numpy(
        keras.ops.mean((outputs["reconstruction"] - loss.targets(images)) ** 2, -1)
    )
    count = outputs["hidden"].sum()
    per_image = np.linspace(0.5, 2.0, len(images)).astype("float32")
    per_patch = RNG.uniform(size=error.shape).astype("float32")
    model.compile(loss={"reconstruction": loss}, run_eagerly=not compiled)
    for weights, shaped in ((per_image, per_image[:, None]), (per_patch, per_patch)):
        found = model.evaluate(
            inputs,
            {"reconstruction": images},
            sample_weight={"reconstruction": weights},
            verbose=0,
        )
        expected = (error * shaped * outputs["hidden"]).sum() / count
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        alone = loss(images, outputs["reconstruction"], weights)
        np.testing.assert_allclose(alone, (error * shaped).mean(), rtol=1e-5)
