"""The reconstruction loss of the discrete VAE."""

import numpy as np
from keras import ops

from keras_attn.losses import logit_laplace_loss


def test_the_loss_of_one_pixel_by_hand():
    # log(2b) + log(x (1 - x)) + |logit(x) - μ| / b with b = 2, x = 0.8, μ = log 2.
    statistics = np.array([np.log(2.0), np.log(2.0)], "float32")
    got = logit_laplace_loss(
        np.array([[[[0.8]]]], "float32"), statistics[None, None, None]
    )
    expected = np.log(4) + np.log(0.16) + (np.log(4) - np.log(2)) / 2
    np.testing.assert_allclose(ops.convert_to_numpy(got)[0, 0, 0, 0], expected, 1e-5)


def test_channels_have_their_own_statistics():
    rng = np.random.default_rng(0)
    pixels = rng.uniform(0.1, 0.9, (2, 3, 5, 3)).astype("float32")
    statistics = rng.normal(size=(2, 3, 5, 6)).astype("float32")
    got = ops.convert_to_numpy(logit_laplace_loss(pixels, statistics))
    assert got.shape == pixels.shape
    for channel in range(3):
        alone = logit_laplace_loss(
            pixels[..., channel : channel + 1], statistics[..., channel::3]
        )
        alone = ops.convert_to_numpy(alone)[..., 0]
        np.testing.assert_allclose(got[..., channel], alone, rtol=1e-5)
