"""FCN beyond the contract: image sizes, upsampling, labels that are ignored."""

import keras
import numpy as np
import pytest
from layer_contract import normal as sample
from model_cases import numpy, randomize
from model_family import C

from keras_attn import models

TINY = {"stem_dim": 3, "num_blocks": (1, 1, 2, 1), "num_classes": C}


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


@pytest.mark.compiled
def test_ignored_labels_do_not_count_and_the_loss_falls():
    """The class of a square is its brightest channel; a border is labelled 255."""
    keras.utils.set_random_seed(3)
    model = build(num_classes=3, num_blocks=(1, 1, 1), dilated_stages=(2,), dropout=0.0)
    images = sample(4, 3, 4, 3).repeat(17, 1).repeat(17, 2)
    labels = images.argmax(-1).astype("int32")
    labels[:, :5] = 255
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=255
    )
    model.compile(
        keras.optimizers.Adam(0.02),
        loss={"logits": loss, "auxiliary_logits": loss},
        loss_weights={"logits": 1.0, "auxiliary_logits": 0.5},
        jit_compile=False,
    )
    both = {"logits": labels, "auxiliary_logits": labels}
    before = model.evaluate(images, both, verbose=0, return_dict=True)
    logits = numpy(model(images)["logits"]).astype("float64")
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    counted = labels != 255
    picked = np.take_along_axis(logits, np.where(counted, labels, 0)[..., None], -1)
    expected = -picked[..., 0][counted].mean()
    np.testing.assert_allclose(before["logits_loss"], expected, rtol=1e-4)
    history = model.fit(images, both, epochs=12, batch_size=4, verbose=0).history
    assert history["logits_loss"][-1] < 0.7 * history["logits_loss"][0]


VGG = {
    "hidden_dims": (3, 5, 7, 11, 13),
    "num_convs": (1, 2, 1, 1, 1),
    "fully_connected_dims": (17, 19),
}


def build_vgg(variant="8s", **options):
    return models.build_fcn_vgg(variant, **{"num_classes": C, **VGG, **options})


def test_scores_of_an_fcn_are_those_of_the_vgg_as_convolutions():
    vgg = randomize(models.build_vgg(image_size=224, num_classes=C, **VGG))
    images = sample(1, 58, 90, 3)  # With 99 zeros on all sides a multiple of 32.
    padded = np.pad(images, ((0, 0), (99, 99), (99, 99), (0, 0)))
    expected = numpy(models.convolutionize(vgg)(padded))
    for variant in ("32s", "8s"):
        fcn = build_vgg(variant, weights_from=vgg)
        scores = keras.Model(fcn.input, fcn.get_layer("classifier").output)
        np.testing.assert_allclose(numpy(scores(images)), expected, rtol=0, atol=1e-4)
    # Sums of zeros until the scores of the skips are trained.
    assert not fcn.get_layer("score_3").kernel.numpy().any()


def test_each_variant_starts_from_the_one_before():
    coarse = randomize(build_vgg("32s"))
    middle = build_vgg("16s", weights_from=coarse)
    images = sample(2, 37, 51, 3)
    one, other = numpy(coarse(images)), numpy(middle(images))
    assert one.shape == other.shape == (2, 37, 51, C)
    # Enlarging twice, bilinearly, is nearly enlarging once; the skip adds nothing yet.
    coarse.get_layer("upsampling").set_weights(
        build_vgg("32s").get_layer("upsampling").get_weights()
    )
    one = numpy(coarse(images))
    assert one.std() > 0.1
    assert np.abs(one - other).mean() < 0.1 * one.std()
    fine = build_vgg("8s", weights_from=randomize(middle))
    for name in ("upsampling_3", "score_3", "classifier"):
        for mine, theirs in zip(
            fine.get_layer(name).weights, middle.get_layer(name).weights, strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)
    # With other classes only the body is copied.
    other = build_vgg("8s", num_classes=3, weights_from=fine)
    assert not other.get_layer("classifier").kernel.numpy().any()
    np.testing.assert_array_equal(
        other.get_layer("fully_connected_0").kernel,
        fine.get_layer("fully_connected_0").kernel,
    )


def test_weights_that_do_not_fit_are_refused():
    small = models.build_vgg(image_size=64, num_classes=C, **VGG)
    message = r"`fully_connected_0` has .*\(52, 17\).*\(7, 7, 13, 17\).* 224 pixels"
    with pytest.raises(ValueError, match=message):
        build_vgg(weights_from=small)
    for wrong in (build(), "vgg16"):
        with pytest.raises(ValueError, match="`weights_from` must be a model of"):
            build_vgg(weights_from=wrong)


@pytest.mark.parametrize("variant", ["32s", "16s", "8s"])
def test_images_of_any_size_have_a_score_for_each_pixel(variant):
    model = randomize(build_vgg(variant))
    for size in ((1, 1), (31, 33), (64, 7)):
        images = sample(1, *size, 3)
        fixed = build_vgg(variant, image_size=size)
        fixed.set_weights(model.get_weights())
        found = numpy(model(images))
        assert found.shape == (1, *size, C)
        np.testing.assert_allclose(found, numpy(fixed(images)), rtol=0, atol=1e-5)
