"""Images, boxes and distributions of a range that no model of theirs can mean."""

import keras
import numpy as np
import pytest
from model_cases import build, create, inputs_for

from keras_attn import models
from keras_attn.layers import ImagePreprocessing
from keras_attn.losses.masked_regions import MaskedRegionLoss
from keras_attn.models.parts.functional import Functional

RNG = np.random.default_rng(3)
BYTES = RNG.integers(0, 256, (2, 14, 21, 3))


def tower():
    images = keras.Input((14, 21, 3), name="images")
    pooled = keras.layers.GlobalAveragePooling2D()(images)
    return Functional(images, keras.layers.Dense(5)(pooled))


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32"])
def test_pixels_of_files_are_refused_by_models_of_normalized_ones(dtype):
    model, pixels = tower(), BYTES.astype(dtype)
    model.compile("sgd", "mse")
    labels = np.zeros((2, 5), "float32")
    match = rf"`images` must be normalized .* of dtype {dtype}, from \d+ to 25\d"
    for call in (
        lambda: model(pixels),
        lambda: model.predict(pixels),
        lambda: model.fit(pixels, labels),
        lambda: model.evaluate({"images": pixels}, labels),
        lambda: model.train_on_batch(pixels, labels),
    ):
        with pytest.raises(ValueError, match=match):
            call()


@pytest.mark.parametrize(
    "images",
    [
        BYTES / 255,
        BYTES / 127.5 - 1,
        (BYTES / 255 - 0.45) / 0.22,
        np.full((1, 14, 21, 3), 2.64),  # White, normalized.
        BYTES % 9 / 1.0,  # A dark picture: nobody can know.
        -BYTES.astype("float32"),
        BYTES > 100,
        BYTES % 2,
    ],
)
def test_what_may_be_an_image_is_accepted(images):
    assert tower()(images).shape == (len(images), 5)


def test_a_preprocessing_may_leave_pixels_as_they_are():
    model = tower()
    model.preprocessing = {"do_rescale": False, "do_normalize": False, "size": [14, 21]}
    assert model(BYTES).shape == (2, 5)
    model.preprocessing = {"size": "unknown"}
    with pytest.raises(ValueError, match="`images` must be normalized"):
        model(BYTES)


def test_the_towers_of_clip_and_the_codes_of_dall_e():
    clip = create("clip_vit_base_patch32")
    for model in (clip.image_encoder(), models.build_clip_image_encoder(clip)):
        pixels = RNG.integers(0, 256, (1, *model.input_shape[1:]))
        with pytest.raises(ValueError, match="`images` must be normalized"):
            model(pixels)
    inputs = inputs_for(clip) | {"images": 255 * np.ones(pixels.shape, "float32")}
    with pytest.raises(ValueError, match="`images` must be normalized"):
        clip(inputs)
    dvae = create("dvae_dalle")
    images = RNG.uniform(-1, 1, (1, *dvae.input_shape[1:])).astype("float32")
    for given in (images, {"images": images}):
        for call in (dvae, dvae.predict):
            with pytest.raises(ValueError, match=r"`images` must be in \[0, 1\]"):
                call(given)
    with pytest.raises(ValueError, match="`images` must be normalized"):
        dvae.encode_model()(np.abs(255 * images))


@pytest.mark.parametrize("scaled", [BYTES / 255, BYTES / 127.5 - 1])
def test_a_preprocessing_takes_no_scaled_images(scaled):
    layer = ImagePreprocessing(7, crop_size=7)
    with pytest.raises(ValueError, match="`inputs` must be pixels .* multiply .*from"):
        layer(scaled.astype("float32"))


def test_a_preprocessing_takes_dark_and_overshooting_images():
    layer = ImagePreprocessing(None, scale=1.0)
    for images in (BYTES % 2, BYTES + 0.25, BYTES - 3.5, np.zeros((1, 3, 3, 3))):
        expected = np.clip(np.rint(images), 0, 255)
        np.testing.assert_array_equal(layer(images.astype("float32")), expected)


@pytest.mark.parametrize("name", ["vilbert_base", "vln_bert_base"])
def test_boxes_are_shares_and_not_turned(name):
    model = create(name)
    inputs = inputs_for(model)
    boxes = inputs["region_boxes"]
    for wrong, match in (
        (
            boxes * [640, 480, 640, 480],
            r"shares of the image's .*\[0, 1\].*index \(0, 0",
        ),
        (boxes[..., [2, 3, 0, 1]], "left, top, right and bottom, in this order"),
        (boxes[..., [1, 0, 3, 2]][..., [0, 3, 2, 1]], "in this order"),
    ):
        given = {**inputs, "region_boxes": wrong.astype("float32")}
        with pytest.raises(ValueError, match=f"`region_boxes` must be .*{match}"):
            model(given)
    # What is padding does not matter.
    mask = np.ones(boxes.shape[:2], bool)
    mask[:, -1] = False
    padded = boxes.copy()
    padded[:, -1] = -7
    model({**inputs, "region_padding_mask": mask, "region_boxes": padded})


def test_boxes_of_objects():
    detector = build("faster_rcnn_resnet50")
    height, width = detector.input_shape[1:3]
    detector.compile("sgd")
    for layer in detector.layers:  # Norms as a checkpoint has them.
        if hasattr(layer, "moving_variance"):
            layer.moving_variance.assign(layer.moving_variance * 2)
    images = np.zeros((1, height, width, 3), "float32")
    classes = np.array([[0, -1]])
    for box, match in (
        ([width / 2, 3, 2, 9], "`boxes` must be 'xyxy', whose right and bottom do not"),
        ([0.1, 0.2, 0.5, 1.0], "`boxes` must be 'xyxy' in pixels of the input"),
    ):
        truth = {"boxes": np.array([[box, [0] * 4]], "float32"), "classes": classes}
        for call in (detector.fit, detector.evaluate, detector.train_on_batch):
            with pytest.raises(ValueError, match=match):
                call(images, truth)


def test_distributions_sum_to_one():
    loss = MaskedRegionLoss()
    logits = RNG.normal(size=(2, 3, 5)).astype("float32")
    shares = RNG.dirichlet(np.ones(5), (2, 3)).astype("float32")
    shares[1, 2] = 0  # Not masked.
    assert float(loss(shares, logits)) > 0
    negative = shares.copy()
    negative[0, 1, :2] = [-0.5, 0.5 + negative[0, 1, :2].sum()]
    for wrong, match in ((2 * shares, r"the sum 2 .*\(0, 0\)"), (negative, r"-0.5 at")):
        with pytest.raises(ValueError, match=f"`y_true` must be distrib.*{match}"):
            loss(wrong, logits)
    features = keras.Input((3, 4), name="features")
    model = Functional(features, keras.layers.Dense(5)(features))
    model.compile("sgd", loss)
    x = RNG.normal(size=(2, 3, 4)).astype("float32")
    for call in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match="`y` must be distributions .*the sum 2"):
            call(x, 2 * shares)
    model.evaluate(x, shares, verbose=0)
