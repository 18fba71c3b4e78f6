"""FCN beyond the contract: image sizes, upsampling, labels that are ignored."""

import keras
import numpy as np
import pytest
from model_cases import C, numpy, randomize

from keras_attn import models

TINY = {"stem_dim": 3, "num_blocks": (1, 1, 2, 1), "num_classes": C}


def sample(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def build(**options):
    return models.build_fcn_resnet(**{**TINY, **options})


def test_scores_are_interpolated_to_the_size_of_the_image():
    model = randomize(build())
    inner = keras.Model(
        model.input,
        [model.get_layer(f"{n}classifier").output for n in ("", "auxiliary_")],
    )
    for size in ((33, 47), (32, 48), (65, 1), (1, 1)):
        images = sample(2, *size, 3)
        found = numpy(model(images))
        for name, scores in zip(("", "auxiliary_"), inner(images), strict=True):
            scores = numpy(scores)
            # The last two stages keep the size of the second.
            assert scores.shape == (2, -(-size[0] // 8), -(-size[1] // 8), C)
            resized = keras.ops.image.resize(scores, size)
            np.testing.assert_allclose(found[f"{name}logits"], resized, atol=1e-5)


def test_a_model_of_any_image_size_equals_the_one_of_each_size():
    model = randomize(build())
    for size in ((33, 47), (24, 40), (3, 2)):
        fixed = build(image_size=size)
        fixed.set_weights(model.get_weights())
        images = sample(2, *size, 3)
        found, expected = numpy(model(images)), numpy(fixed(images))
        predicted = model.predict(images, verbose=0)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5)
            np.testing.assert_allclose(predicted[name], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_ignored_labels_do_not_count_and_the_loss_falls(jit_compile):
    """The class of a square is its brightest channel; a border is labelled 255."""
    keras.utils.set_random_seed(3)
    model = build(num_classes=3, dropout=0.0)
    images = sample(4, 3, 4, 3).repeat(17, 1).repeat(17, 2)
    labels = images.argmax(-1).astype("int32")
    labels[:, :5] = 255
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=255
    )
    model.compile(
        keras.optimizers.Adam(0.01),
        loss={"logits": loss, "auxiliary_logits": loss},
        loss_weights={"logits": 1.0, "auxiliary_logits": 0.5},
        jit_compile=jit_compile,
    )
    both = {"logits": labels, "auxiliary_logits": labels}
    before = model.evaluate(images, both, verbose=0, return_dict=True)
    logits = numpy(model(images)["logits"]).astype("float64")
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    counted = labels != 255
    picked = np.take_along_axis(logits, np.where(counted, labels, 0)[..., None], -1)
    expected = -picked[..., 0][counted].mean()
    np.testing.assert_allclose(before["logits_loss"], expected, rtol=1e-4)
    history = model.fit(images, both, epochs=25, batch_size=4, verbose=0).history
    assert history["logits_loss"][-1] < 0.8 * history["logits_loss"][0]
