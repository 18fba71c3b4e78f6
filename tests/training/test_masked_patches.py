"""The loss of a masked autoencoder against its equation."""

import keras
import numpy as np
import pytest
from model_cases import create, inputs_for, numpy

from keras_attn.training import MaskedPatchLoss

RNG = np.random.default_rng(0)


def patches(images):
    """(B, 14, 21, 3) in patches of 7, one by one."""
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
def test_it_is_the_error_of_hidden_patches(normalize):
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
    # Without a mask all of them count.
    alone = loss(inputs["images"], outputs["reconstruction"])
    np.testing.assert_allclose(alone, error.mean(), rtol=1e-5)


def test_a_model_is_fitted_by_it():
    keras.utils.set_random_seed(1)
    model = create("mae_vit_base", noise=False)
    images = np.tile(RNG.normal(size=(1, 14, 21, 3)).astype("float32"), (16, 1, 1, 1))
    model.compile(
        keras.optimizers.Adam(1e-2), loss={"reconstruction": MaskedPatchLoss(7)}
    )
    target = {"reconstruction": images}
    losses = model.fit(images, target, epochs=30, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]


def test_images_of_other_patches_are_refused():
    loss = MaskedPatchLoss((7, 7))
    with pytest.raises(ValueError, match="patches that are predicted: .*`patch_size`"):
        loss(np.zeros((1, 14, 14, 3)), np.zeros((1, 6, 147)))
    with pytest.raises(ValueError, match="filled by patches"):
        loss(np.zeros((1, 15, 14, 3)), np.zeros((1, 6, 147)))


def test_it_is_serialised():
    loss = MaskedPatchLoss((7, 5), normalize=False, epsilon=1e-3, name="other")
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert type(again) is MaskedPatchLoss
    assert again.get_config() == loss.get_config()
