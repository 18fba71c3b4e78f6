"""Detectors beyond the contract: what `fit` learns, bad boxes, region features."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops
from model_cases import build, create, inputs_for, numpy, randomize, tiny, truth_for
from model_contract import close
from model_family import B, M
from variations import in_turn

from keras_attn import data, metrics
from keras_attn.losses import detection
from keras_attn.models.parts.detection.detector_truth import mask_targets
from keras_attn.ops.boxes import convert_boxes

# A Faster R-CNN on a ResNet is the Mask R-CNN without its last layers.
DETECTORS = ("mask_rcnn_resnet50", "faster_rcnn_vgg16")
every_detector = pytest.mark.parametrize("case", DETECTORS)
NAN, INFINITY = float("nan"), float("inf")


def losses_of(model, truth):
    """The losses of `truth`, without an update."""
    model.compile(run_eagerly=True)
    return model.test_on_batch(inputs_for(model)["images"], truth, return_dict=True)


def test_losses_by_hand():
    np.testing.assert_allclose(
        detection.smooth_l1(np.array([[0.05, -2.0], [0.0, 1.0]], "float32")),
        [4.5 * 0.05**2 + 2 - 1 / 18, 1 - 1 / 18],
        rtol=1e-6,
    )
    values = np.array([[1, 2, INFINITY], [NAN, 5, 6], [7, 8, 9]], "float32")
    counted = np.array([[True, True, False], [False, True, False], [False] * 3])
    samples = np.array([[True, True, True], [False, True, True], [False] * 3])
    found = detection.mean_over_samples(values, counted, samples)
    np.testing.assert_allclose(found, (3 / 3 + 5 / 2 + 0) / 3, rtol=1e-6)
    logits = np.array([-90.0, -1.0, 0.5, 90.0], "float32")
    probabilities = 1 / (1 + np.exp(-logits.astype("float64")))
    for target in (0.0, 1.0, 0.3):
        expected = -target * np.log(probabilities) - (1 - target) * np.log(
            np.maximum(1 - probabilities, 1e-40)
        )
        found = detection.binary_losses(logits[:3], target)
        np.testing.assert_allclose(found, expected[:3], rtol=1e-5)
    np.testing.assert_allclose(detection.binary_losses(logits[3:], 0.0), [90.0])
    logits = np.log(np.array([[[0.2, 0.3, 0.5], [0.6, 0.1, 0.3]]], "float32"))
    found = detection.class_losses(logits, np.array([[2, 0]], "int32"))
    np.testing.assert_allclose(found, -np.log([[0.5, 0.6]]), rtol=1e-6)


def test_maps_of_a_new_detector_do_not_grow():
    """Under frozen norms too, whose 16 blocks once left a deviation of 130."""
    keras.utils.set_random_seed(1)
    model = build(
        "faster_rcnn_resnet50",
        image_size=64,
        stem_dim=8,
        num_blocks=(3, 4, 6, 3),
        anchor_sizes=(7, 13, 19, 29, 37),
        num_frozen=2,
    )
    images = np.random.default_rng(0).normal(size=(2, 64, 64, 3)).astype("float32")
    maps = keras.Model(model.input, model.get_layer("feature_pyramid").input)
    for features in maps.predict_on_batch(images):
        assert 0.1 < features.std() < 3


@pytest.mark.compiled
def test_frozen_norms_that_have_seen_no_data_are_warned_of():
    model = build("faster_rcnn_resnet50")
    model.compile("sgd", run_eagerly=True)
    images, truth = inputs_for(model)["images"], truth_for(model)
    with pytest.warns(UserWarning, match="frozen at their .*frozen_norms=False"):
        model.fit(images, truth, verbose=0)
    # As a checkpoint does.
    randomize(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(images, truth, verbose=0)
        trained = build("faster_rcnn_resnet50", frozen_norms=False)
        trained._warn_of_initial_norms()


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:The norms of this detector:UserWarning")
def test_a_detector_learns_to_detect_one_image():
    keras.utils.set_random_seed(3)
    model = build("faster_rcnn_resnet50")
    for layer in model.layers:
        if layer.name.endswith("_norm_2"):  # Two blocks alone can all count.
            layer.gamma.assign(0 * layer.gamma + 1)
    images = inputs_for(model, batch=1)["images"]
    truth = {
        "boxes": np.array([[[9.0, 11, 47, 43], [0, 0, 0, 0]]], "float32"),
        "classes": np.array([[4, -1]], "int32"),
    }
    model.compile(keras.optimizers.Adam(0.006), jit_compile=False)
    history = model.fit(images, truth, epochs=60, verbose=0).history
    names = {"loss", "objectness_loss", "proposal_box_loss", "class_loss", "box_loss"}
    assert set(history) == names
    # Boxes are learned later, from the first proposals that overlap with the object.
    for name in ("loss", "objectness_loss", "class_loss"):
        assert history[name][-1] < 0.2 * history[name][0], name
    total = sum(history[name][-1] for name in names - {"loss"})
    np.testing.assert_allclose(history["loss"][-1], total, rtol=1e-4)
    found = numpy(model(images))
    assert found["classes"][0, 0] == 4
    np.testing.assert_allclose(found["boxes"][0, 0], truth["boxes"][0, 0], atol=5)


@every_detector
def test_unusable_boxes_count_as_padding(case):
    model = create(case)
    truth = truth_for(model)
    expected = losses_of(model, truth)
    height, width = model.input.shape[1:3]
    bad = np.array(
        [
            *([9, 9, 9, 20], [20, 5, 30, 5], [NAN, 1, 5, 7], [0, 0, INFINITY, NAN]),
            *(
                [-30, 2, -1, 9],
                [width + 1, 2, width + 9, 9],
                [1, height, 9, height + 5],
            ),
            *([1, 2, 8, 9], [1, 2, 8, 9]),  # Their classes are unknown.
            *([-1e30, 0, 1e30, 9], [-3e38, -3e38, 3e38, 3e38]),
        ],
        "float32",
    )
    classes = np.array([0, 1, 2, 0, 1, 2, 0, M, -7, 0, 1], "int32")
    more = {
        "boxes": np.concatenate([truth["boxes"], np.tile(bad, (B, 1, 1))], axis=1),
        "classes": np.concatenate([truth["classes"], np.tile(classes, (B, 1))], 1),
    }
    if model.has_masks:
        masks = np.ones((B, len(bad), height, width), "int32")
        more["masks"] = np.concatenate([truth["masks"], masks], axis=1)
    found = losses_of(model, more)
    # Not the same: every ground-truth box is a proposal, and padding none.
    close(found, expected, 0, rtol=1e-4)


@pytest.mark.parametrize("case", ["mask_rcnn_resnet50"])
def test_crowds_are_not_learned(case):
    model = create(case)
    truth = truth_for(model)
    expected = losses_of(model, truth)
    crowd = {name: value[:1, :1].repeat(B, 0) for name, value in truth.items()}
    more = {
        name: np.concatenate([value, crowd[name]], axis=1)
        for name, value in truth.items()
    }
    more["is_crowd"] = np.arange(more["classes"].shape[1]) == truth["classes"].shape[1]
    more["is_crowd"] = np.tile(more["is_crowd"], (B, 1))
    close(losses_of(model, more), expected, 0, rtol=1e-4)
    none = {name: value[:, :0] for name, value in more.items()}
    assert np.isfinite(list(losses_of(model, none).values())).all()


@pytest.mark.compiled
@pytest.mark.parametrize("case", ["faster_rcnn_resnet50"])
def test_a_compiled_detector_takes_any_number_of_boxes(case):
    model = create(case)
    images, truth = inputs_for(model)["images"], truth_for(model)

    def with_padding(count):
        padded = {
            name: np.pad(
                value,
                [(0, count if axis == 1 else 0) for axis in range(value.ndim)],
                constant_values=-1 if name == "classes" else 0,
            )
            for name, value in truth.items()
        }
        return images, padded

    expected = losses_of(create(case), truth)
    # All losses are those of the same weights.
    model.compile(keras.optimizers.SGD(0.0), jit_compile=False)
    found = [
        model.test_on_batch(*with_padding(0), return_dict=True),
        model.test_on_batch(*with_padding(2), return_dict=True),
        model.test_on_batch(*with_padding(1), return_dict=True),
        model.evaluate(*with_padding(4), return_dict=True, verbose=0),
        model.evaluate(*with_padding(0), return_dict=True, verbose=0),
    ]
    for losses in found:
        assert losses == pytest.approx(expected, rel=1e-4)
    for count in (0, 2, 1):
        assert np.isfinite(model.train_on_batch(*with_padding(count))[0])
    validation = with_padding(5)
    history = model.fit(*with_padding(3), validation_data=validation, verbose=0)
    assert np.isfinite(history.history["val_loss"][0])


def test_no_boxes_are_an_image_without_objects():
    model = create("mask_rcnn_resnet50")
    padding = {name: 0 * value[:, :1] for name, value in truth_for(model).items()}
    padding["classes"] -= 1
    none = {name: value[:, :0] for name, value in padding.items()}
    expected = losses_of(model, padding)
    assert losses_of(model, none) == pytest.approx(expected, rel=1e-5)


def test_masks_of_other_values_are_read_as_0_and_1():
    model = create("mask_rcnn_resnet50")
    truth = truth_for(model)
    scaled = np.where(truth["masks"] > 0, 255.0, NAN).astype("float32")
    images = inputs_for(model)["images"]
    one, other = (
        model.compute_loss(x=images, y={**truth, "masks": masks})
        for masks in (truth["masks"], scaled)
    )
    np.testing.assert_allclose(one, other, rtol=1e-6)
    # The maps of the model are those that it computes from the images.
    maps = model(images, training=True)
    np.testing.assert_allclose(model.compute_loss(y=truth, y_pred=maps), one, 1e-6)
    with pytest.raises(ValueError, match="`x`, the images, must be given .*: x=None"):
        model.compute_loss(y=truth, y_pred=model(images))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="reads tf.data")
def test_a_perfect_mask_head_scores_one():
    """Targets cut by the model, and pasted as its masks are, equal the truth."""
    pytest.importorskip("pycocotools", reason="needs the extra `eval`")
    model = tiny("mask_rcnn_resnet50")
    aligned = model.get_layer("masks").aligned
    assert aligned
    size = (97, 131)
    shapes = data.Shapes(image_size=size, num_objects=(1, 5), max_overlap=0.3, seed=5)
    batches = shapes.dataset("detection", 21, batch_size=7)
    names = list(shapes.shapes)
    scores = {
        case: metrics.DetectionScores(names, masks=True, aligned_masks=case)
        for case in (True, False)
    }
    rng = np.random.default_rng(2)
    for _, truth in batches:
        truth = {name: value.numpy() for name, value in truth.items()}
        boxes, objects = truth["boxes"], np.arange(truth["boxes"].shape[1])
        objects = np.tile(objects, (len(boxes), 1)).astype("int32")
        # Detected boxes have fractions, and are a little too large.
        boxes = boxes + rng.uniform(0, 1.5, boxes.shape) * [-1, -1, 1, 1]
        boxes = boxes.astype("float32")
        found = {**truth, "boxes": boxes, "scores": np.ones(objects.shape)}
        for case, each in scores.items():
            arguments = truth["masks"], boxes, objects, (28, 28), case
            found["masks"] = numpy(mask_targets(*arguments))
            each.add(truth, found, size)
    assert scores[aligned].result()["map"] >= 0.99
    # Half a pixel off: what torchvision loses on small objects.
    assert scores[False].result()["map"] < 0.9


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"boxes": (B, 3, 5)}, r"`boxes` \(B, M, 4\).*boxes.shape=\(2, 3, 5\)"),
        ({"boxes": (B, 4)}, r"boxes.shape=\(2, 4\)"),
        ({"classes": (B, 1)}, r"classes.shape=\(2, 1\)"),
        ({"classes": (B, 3, M)}, r"classes.shape=\(2, 3, 13\)"),
        ({"masks": (B, 1, 51, 79)}, r"masks.shape=\(2, 1, 51, 79\)"),
        ({"masks": (B, 3, 79, 51)}, r"of the image size, \(51, 79\).*3, 79, 51\)"),
    ],
)
def test_arrays_of_other_shapes_are_refused(changes, match):
    model = tiny("mask_rcnn_resnet50")
    arrays = {name: np.zeros(shape, "int32") for name, shape in changes.items()}
    with pytest.raises(ValueError, match=match):
        model.compute_loss(y={**truth_for(model), **arrays})


def test_the_number_of_boxes_must_be_known():
    model = tiny("faster_rcnn_vgg16")
    truth = {
        "boxes": keras.KerasTensor((None, None, 4)),
        "classes": keras.KerasTensor((None, None), "int32"),
    }
    with pytest.raises(ValueError, match="must be the same for all .*`max_boxes`"):
        model.compute_loss(y=truth)


@every_detector
@pytest.mark.compiled
def test_images_without_objects_have_finite_losses_and_gradients(case):
    model = create(case)
    truth = {name: 0 * value for name, value in truth_for(model).items()}
    truth["classes"] -= 1
    before = [numpy(weight) for weight in model.trainable_weights]
    model.compile(keras.optimizers.SGD(0.01))
    images = inputs_for(model)["images"]
    losses = model.train_on_batch(images, truth, return_dict=True)
    assert all(np.isfinite(value) for value in losses.values())
    assert losses["objectness_loss"] > 0 and losses["class_loss"] > 0
    for name in ("proposal_box_loss", "box_loss", "mask_loss"):
        assert losses.get(name, 0) == 0
    for weight in model.trainable_weights:
        assert np.isfinite(numpy(weight)).all(), weight.path
    assert any(
        np.any(numpy(weight) != old)
        for weight, old in zip(model.trainable_weights, before, strict=True)
    )


@pytest.mark.parametrize("bounding_box_format", in_turn(["rel_xywh", "yxyx"]))
def test_boxes_have_the_format_of_the_model(bounding_box_format):
    model = create("mask_rcnn_resnet50")
    other = create("mask_rcnn_resnet50", bounding_box_format=bounding_box_format)
    other.set_weights(model.get_weights())
    size = model.input.shape[1:3]
    images = inputs_for(model)["images"]
    expected, found = numpy(model(images)), numpy(other(images))
    boxes = convert_boxes(found.pop("boxes"), bounding_box_format, "xyxy", size)
    np.testing.assert_allclose(boxes, expected.pop("boxes"), rtol=0, atol=1e-4)
    close(found, expected, 1e-4)
    truth = truth_for(model)
    boxes = convert_boxes(truth["boxes"], "xyxy", bounding_box_format, size)
    converted = {**truth, "boxes": ops.convert_to_numpy(boxes)}
    close(losses_of(other, converted), losses_of(model, truth), 0, rtol=1e-4)


@every_detector
def test_region_features(case):
    model = tiny(case)
    images = inputs_for(model)["images"]
    features, boxes, scores, shares = map(numpy, model.region_features(images, 5))
    assert boxes.shape == (B, 5, 4) and scores.shape == (B, 5)
    assert (scores[:, :-1] >= scores[:, 1:]).all() and (scores[:, 0] > 0).all()
    outputs = numpy(model.region_model(5)(images))
    assert model.region_model(5) is model.region_model(5)
    count = outputs["num_detections"]
    assert (count > 1).all()
    if case == "faster_rcnn_vgg16":
        assert features.shape == (B, 5, 17)
    else:
        last_map = model.get_layer("feature_pyramid").input[-1]
        last = numpy(keras.Model(model.input, last_map)(images))
        assert features.shape == (B, 5, last.shape[-1])
        # A mean of features inside the map, which are not negative.
        assert (features >= 0).all()
        assert features.max() <= last.max() + 1e-5
    for row in range(B):
        assert np.abs(features[row, : count[row]]).max(axis=-1).min() > 0
        assert not features[row, count[row] :].any()
        # The score is the best class's probability, the background's left out.
        real = shares[row, : count[row]]
        np.testing.assert_allclose(real.sum(-1), 1, rtol=1e-5)
        np.testing.assert_allclose(
            real[:, 1:].max(-1), scores[row, : count[row]], rtol=1e-5
        )
        assert not shares[row, count[row] :].any()


def test_region_features_of_the_head():
    model = tiny("mask_rcnn_resnet50")
    images = inputs_for(model)["images"]
    found = numpy(model.region_model(5, source="head")(images))
    maps = keras.Model(model.input, model.get_layer("region_proposal").input)(images)
    pooled = model.get_layer("roi_pooling")(maps, found["boxes"])
    hidden = ops.reshape(pooled, (B, 5, -1))
    for name in ("fc_0", "fc_1"):
        hidden = model.get_layer(name)(hidden)
    is_real = np.arange(5) < found["num_detections"][:, None]
    assert is_real.sum() > B
    expected = np.where(is_real[..., None], numpy(hidden), 0)
    np.testing.assert_allclose(found["features"], expected, atol=1e-5)
    assert np.abs(expected[is_real]).max(axis=-1).min() > 0


def test_region_features_of_a_single_map():
    sizes = {"num_blocks": (1,), "anchor_sizes": (7, 13)}
    model = build("faster_rcnn_resnet50", **sizes)
    features, *_ = model.region_features(inputs_for(model)["images"], 5)
    assert features.shape == (B, 5, 12)


def test_the_samples_follow_the_seed():
    def losses(seed):
        options = {"proposal_options": {"num_samples": 7}, "seed": seed}
        model = create("faster_rcnn_resnet50", **options)
        truth = truth_for(model)
        return [losses_of(model, truth)["objectness_loss"] for _ in range(2)]

    one, again, other = losses(1), losses(1), losses(2)
    assert one == pytest.approx(again, rel=1e-5)
    for another_sample in (one[1], other[0]):
        assert one[0] != pytest.approx(another_sample, rel=1e-5)


def test_errors():
    model = tiny("mask_rcnn_resnet50")
    images, truth = inputs_for(model)["images"], truth_for(model)
    with pytest.raises(ValueError, match="`num_regions` must be a positive integer"):
        model.region_features(images, 0)
    with pytest.raises(ValueError, match="`source` must be .*'map', 'head'"):
        model.region_features(images, 5, source="maps")
    model = build("mask_rcnn_resnet50")
    model.compile("sgd", run_eagerly=True)
    with pytest.raises(ValueError, match="`y` must be a dictionary.*Received: y="):
        model.train_on_batch(images, truth["boxes"])
    del truth["masks"]
    with pytest.raises(ValueError, match=r"keys \['boxes', 'classes', 'masks'\].*"):
        model.train_on_batch(images, truth)
    model = build("faster_rcnn_vgg16")
    model.compile("sgd", run_eagerly=True)
    images = inputs_for(model)["images"]
    with pytest.raises(ValueError, match="`sample_weight` is not supported"):
        model.train_on_batch(images, truth_for(model), sample_weight=np.ones(B))


@pytest.mark.parametrize(
    "name, options, match",
    [
        (
            "faster_rcnn_resnet50",
            {"anchor_sizes": (8, 16, 32, 64, 128)},
            r"`anchor_sizes` must have .* stages of `num_blocks`: 3. .*64, 128\)",
        ),
        ("faster_rcnn_resnet50", {"iou_threshold": 5}, "must be a number from 0 to 1"),
        ("faster_rcnn_resnet50", {"score_threshold": -3}, "`score_threshold` must be"),
        (
            "faster_rcnn_resnet50",
            {"detection_options": {"positive_fraction": 3.0}},
            "`positive_fraction` must be a number",
        ),
        (
            "mask_rcnn_resnet50",
            {"proposal_options": {"training_candidates_per_level": 0}},
            "`training_candidates_per_level` must be a positive integer",
        ),
        (
            "faster_rcnn_vgg16",
            {"proposal_options": {"seed": 3, "name": "mine"}},
            r"`proposal_options` must not have \['name', 'seed'\]: .*='?.*3",
        ),
        ("faster_rcnn_vgg16", {"num_frozen": 9}, "must be from 0 to .*num_frozen=9"),
    ],
)
def test_wrong_arguments(name, options, match):
    with pytest.raises(ValueError, match=match):
        build(name, **options)
