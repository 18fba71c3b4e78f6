"""The plot of a masked autoencoder: seen, reconstructed, original."""

import numpy as np
import pytest
from keras import ops
from model_cases import tiny

from keras_attn.losses import MaskedPatchLoss
from keras_attn.ops.patches import image_to_patches
from keras_attn.viz import plot_reconstruction, reconstruct_images

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(2, 4, 6, 3)).astype("float32")
HIDDEN = np.array([[True, False, True, True, False, True]] * 2)


@pytest.mark.parametrize("normalized", [True, False])
def test_a_perfect_reconstruction_is_the_image(normalized):
    loss = MaskedPatchLoss(2, normalize=normalized)
    drawn = ops.convert_to_numpy(loss.targets(IMAGES))
    made = reconstruct_images(IMAGES, drawn, HIDDEN, 2, normalized=normalized)
    np.testing.assert_allclose(made, IMAGES, atol=1e-5)


def test_only_hidden_patches_are_replaced():
    drawn = np.full((2, 6, 12), 7.0, "float32")
    made = reconstruct_images(IMAGES, drawn, HIDDEN, 2, normalized=False)
    patches = ops.convert_to_numpy(image_to_patches(made, 2))
    original = ops.convert_to_numpy(image_to_patches(IMAGES, 2))
    assert (patches[HIDDEN] == 7).all()
    np.testing.assert_array_equal(patches[~HIDDEN], original[~HIDDEN])


def test_the_plot_of_a_model():
    model = tiny("mae_vit_base")
    given = {
        name: RNG.normal(size=(2, *each.shape[1:])).astype("float32")
        for name, each in model.input.items()
    }
    images, made = given["images"], model.predict(given, verbose=0)
    patch = model.get_layer("patch_embedding").patch_size
    figure = plot_reconstruction(
        images, made["reconstruction"], made["hidden"], patch, title="a $ b"
    )
    titles = [axis.get_title() for axis in figure.axes[:3]]
    assert titles == ["seen", "reconstructed", "original"] and len(figure.axes) == 6
    seen, drawn, original = (
        np.asarray(a.images[0].get_array()) for a in figure.axes[:3]
    )
    hidden = (seen != original).any(-1).mean()
    assert 0.5 < hidden < 1  # The fraction that the model hides.
    same = (seen == original).all(-1)
    np.testing.assert_array_equal(drawn[same], original[same])


def test_arguments_that_are_refused():
    drawn = np.zeros((2, 6, 12), "float32")
    with pytest.raises(ValueError, match=r"multiple of `patch_size`.*\(2, 4, 6, 3\)"):
        reconstruct_images(IMAGES, drawn, HIDDEN, 4)
    with pytest.raises(ValueError, match=r"must be \(2, 6, 12\).*\(2, 5, 12\)"):
        reconstruct_images(IMAGES, drawn[:, :5], HIDDEN, 2)
    with pytest.raises(ValueError, match=r"`images` must have 4 axes.*\(4, 6, 3\)"):
        reconstruct_images(IMAGES[0], drawn, HIDDEN, 2)
    two = IMAGES[..., :2]
    with pytest.raises(ValueError, match="1 channel or 3"):
        plot_reconstruction(two, drawn[..., :8], HIDDEN, 2)
