"""Augmentations move images, boxes, masks and labels together."""

import math

import numpy as np
import pytest
import tensorflow as tf
from backend import skip_module_without_tensorflow

from keras_attn.data import (
    ElasticDeformation,
    RandomColors,
    RandomMirror,
    RandomQuarterTurns,
    RandomScaleAndCrop,
)
from keras_attn.data.images.elastic import sample
from keras_attn.data.images.geometry import augment, fit_into

skip_module_without_tensorflow("tf.data feeds TensorFlow")

H, W = 31, 43
BOXES = [[3, 5, 17, 19], [20, 2, 43, 11], [7, 21, 16, 31]]


def example():
    """Objects of one brightness each, so that images and masks can be compared."""
    image, labels = np.zeros((H, W, 3), "float32"), np.zeros((H, W), "int32")
    masks = np.zeros((len(BOXES), H, W), bool)
    for index, (left, top, right, bottom) in enumerate(BOXES):
        image[top:bottom, left:right] = 80 * (index + 1)
        labels[top:bottom, left:right] = index + 1
        masks[index, top:bottom, left:right] = True
    made = {
        "image": image,
        "boxes": np.array(BOXES, "float32"),
        "classes": np.array([2, 0, 5], "int32"),
        "masks": masks,
        "is_crowd": np.array([False, True, False]),
        "labels": labels,
    }
    return {name: tf.constant(value) for name, value in made.items()}


def seed(number=0):
    return tf.constant([7, number], tf.int64)


def apply(augmentation, number, given=None):
    """The result as arrays; of the first number in a graph of unknown sizes too."""
    given = example() if given is None else given
    eager = augmentation(given, seed(number))
    if number == 0:
        unknown = {
            name: tf.TensorSpec([None] * len(value.shape), value.dtype)
            for name, value in given.items()
        }
        for name, last in (("image", given["image"].shape[-1]), ("boxes", 4)):
            if name in unknown:
                shape = [*unknown[name].shape[:-1], last]
                unknown[name] = tf.TensorSpec(shape, unknown[name].dtype)
        signature = [unknown, tf.TensorSpec([2], tf.int64)]
        compiled = tf.function(augmentation, input_signature=signature)
        for name, value in compiled(given, seed(number)).items():
            np.testing.assert_allclose(eager[name], value, atol=1e-3)
    return {name: np.asarray(value) for name, value in eager.items()}


def check_consistent(made, tolerance):
    """Boxes surround their masks, and masks their brightness."""
    for box, mask, kind in zip(
        made["boxes"], made["masks"], made["classes"], strict=True
    ):
        rows, columns = np.nonzero(mask)
        around = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        np.testing.assert_allclose(box, around, atol=tolerance)
        label = {2: 1, 0: 2, 5: 3}[int(kind)]
        assert (made["labels"][mask] == label).all()
        # Interpolated at the borders.
        inside = np.abs(made["image"][mask] - 80 * label) < 1
        assert inside.mean() > 0.3


@pytest.mark.parametrize("number", range(8))
def test_mirrors(number):
    made = apply(RandomMirror(0.5, 0.5), number)
    given = {name: np.asarray(value) for name, value in example().items()}
    (flips,) = (
        (rows, columns)
        for rows in (1, -1)
        for columns in (1, -1)
        if np.array_equal(made["labels"], given["labels"][::rows, ::columns])
    )
    rows, columns = flips
    np.testing.assert_array_equal(made["image"], given["image"][::rows, ::columns])
    np.testing.assert_array_equal(made["masks"], given["masks"][:, ::rows, ::columns])
    check_consistent(made, 0)


def test_all_mirrors_occur_as_often_as_asked():
    mirror = RandomMirror(0.25, 0.75)
    labels = tf.constant([[1, 2], [3, 4]])
    small = {"image": tf.zeros([2, 2, 1]), "labels": labels}
    firsts = [int(mirror(small, seed(i))["labels"][0, 0]) for i in range(400)]
    shares = {value: firsts.count(value) / 400 for value in (1, 2, 3, 4)}
    expected = {1: 0.75 * 0.25, 2: 0.25 * 0.25, 3: 0.75 * 0.75, 4: 0.25 * 0.75}
    for value, share in expected.items():
        assert abs(shares[value] - share) < 0.08
    never = RandomMirror(0.0)
    assert all(int(never(small, seed(i))["labels"][0, 0]) == 1 for i in range(50))


@pytest.mark.parametrize("number", range(7))
def test_scales_and_crops(number):
    crop = RandomScaleAndCrop((29, 37), scale=(0.6, 1.9), min_visible=0.0)
    made = apply(crop, number)
    assert made["image"].shape == (29, 37, 3) and made["labels"].shape == (29, 37)
    assert made["masks"].shape[1:] == (29, 37)
    assert len(made["boxes"]) == len(made["is_crowd"]) == len(made["classes"])
    check_consistent(made, 1.0)
    is_outside = made["labels"] == 255
    assert (made["image"][is_outside] == 0).all()
    assert not made["masks"][:, is_outside].any()


def test_padding_has_the_color_that_is_asked_for():
    color = (123.0, 116.0, 104.0)
    crop = RandomScaleAndCrop((29, 37), (0.5, 0.5), min_visible=0.0, fill=color)
    made = apply(crop, 3)
    is_outside = made["labels"] == 255
    assert is_outside.mean() > 0.5
    assert (made["image"][is_outside] == color).all()


def test_scales_span_their_range():
    crop = RandomScaleAndCrop(40, scale=(0.25, 4.0), min_visible=0.0)
    square = {
        "image": tf.ones([20, 20, 1]),
        "boxes": tf.constant([[9.9, 9.9, 10.1, 10.1]]),
        "classes": tf.constant([0]),
    }
    scales = []
    for number in range(90):
        made = crop(square, seed(number))
        if len(made["boxes"]):
            left, _, right, _ = np.asarray(made["boxes"][0])
            scales.append((right - left) / 0.2 / 2)
    assert 0.24 < min(scales) < 0.35 and 2.8 < max(scales) < 4.1
    # As many are smaller than 1 as larger; of the larger ones some are cut off.
    assert 0.35 < np.mean(np.array(scales) < 1) < 0.75


def test_boxes_that_are_mostly_cut_off_are_dropped():
    whole = {
        "image": tf.ones([10, 10, 1]),
        "boxes": tf.constant([[0.0, 0, 10, 10], [8, 8, 10, 10]]),
        "classes": tf.constant([0, 1]),
    }
    kept = {0.0: [], 0.5: []}
    for share, found in kept.items():
        crop = RandomScaleAndCrop(10, scale=(3.0, 3.0), min_visible=share)
        for number in range(40):
            found.append(crop(whole, seed(number))["classes"].numpy().tolist())
    assert all(0 in classes for classes in kept[0.0])
    assert not any(0 in classes for classes in kept[0.5])
    assert 0 < sum(1 in classes for classes in kept[0.5]) < 40


@pytest.mark.each_value
@pytest.mark.parametrize("size", [(31, 43), (17, 43), (62, 86), (23, 19), (97, 89)])
@pytest.mark.parametrize("keep", [True, False])
def test_resizing(size, keep):
    made = apply(lambda given, _: fit_into(given, size, keep, fill=9.0), 0)
    scale = min(size[0] / H, size[1] / W)
    height, width = (round(H * scale), round(W * scale)) if keep else size
    factors = np.array([width / W, height / H] * 2)
    np.testing.assert_allclose(made["boxes"], np.array(BOXES) * factors, rtol=1e-5)
    assert (made["image"][height:] == 9).all() and (made["image"][:, width:] == 9).all()
    assert (made["labels"][height:] == 255).all()
    assert made["labels"][:height, :width].max() <= 3
    # What antialiasing means: the mean brightness stays.
    mean = np.asarray(example()["image"]).mean()
    assert abs(made["image"][:height, :width].mean() - mean) < 0.05 * mean


def test_resizing_interpolates_as_tensorflow_does():
    image = np.random.default_rng(0).random((31, 43, 3)).astype("float32")
    for size in [(17, 19), (62, 129), (31, 20)]:
        made = fit_into({"image": tf.constant(image)}, size, False)["image"]
        expected = tf.image.resize(image, size, antialias=True)
        np.testing.assert_allclose(made, expected, atol=1e-5)


def test_colors():
    rng = np.random.default_rng(0)
    image = tf.constant(rng.uniform(0, 255, (H, W, 3)), tf.float32)
    made = apply(RandomColors(0.3, 0.3, 0.3, 0.1), 3, {"image": image})["image"]
    assert made.min() >= 0 and made.max() <= 255
    assert np.abs(made - image).max() > 5
    again = RandomColors(0.3, 0.3, 0.3, 0.1)({"image": image}, seed(3))["image"]
    np.testing.assert_array_equal(made, again)
    other = RandomColors(0.3, 0.3, 0.3, 0.1)({"image": image}, seed(4))["image"]
    assert np.abs(made - other).max() > 5
    same = RandomColors(0, 0, 0, 0)({"image": image}, seed(3))["image"]
    np.testing.assert_allclose(same, image, atol=0.01)
    gray = RandomColors()({"image": image[:, :, :1]}, seed(3))["image"]
    assert gray.shape == (H, W, 1)


def cells():
    given = example()
    return {"image": given["image"], "labels": given["labels"]}


@pytest.mark.parametrize("number", range(3))
def test_elastic_deformation(number):
    made = apply(ElasticDeformation(4.0, max_turn=0.1), number, cells())
    assert made["image"].shape == (H, W, 3) and made["labels"].shape == (H, W)
    # Labels move with the image.
    agree = np.abs(made["image"][..., 0] - 80 * made["labels"]) < 40.5
    assert agree.mean() > 0.9
    assert (made["labels"] != np.asarray(cells()["labels"])).mean() > 0.02
    assert set(np.unique(made["labels"])) <= {0, 1, 2, 3}


def test_displacements_are_normal_with_the_given_deviation():
    # An image whose values are the column numbers shows where each pixel came from,
    # unless it came from beyond the border.
    columns = np.tile(np.arange(200.0, dtype="float32"), (200, 1))
    given = {"image": tf.constant(columns[..., None])}
    deform = ElasticDeformation(5.0)
    moves = []
    for number in range(60):
        made = np.asarray(deform(given, seed(number))["image"])[..., 0]
        moves.append((made - columns)[::100, 100])  # Points of the grid, in the middle.
        steps = np.abs(np.diff(made, axis=1))
        assert steps.max() < 2  # Smooth.
    moves = np.array(moves)
    assert abs(moves.std() - 5) < 0.8 and abs(moves.mean()) < 1


def test_without_displacement_nothing_changes():
    made = ElasticDeformation(0.0)(cells(), seed())
    for name, value in cells().items():
        np.testing.assert_allclose(made[name], value, atol=1e-4)


def test_samples_between_pixels_and_mirrors_beyond_the_border():
    image = tf.constant(np.arange(12.0, dtype="float32").reshape(3, 4, 1))
    rows = tf.constant([0.0, 0.5, 2.0, -1.0, 3.0, -4.0])
    columns = tf.constant([1.0, 1.5, 3.0, 0.0, -2.0, 7.0])
    # By hand: 0.5, 1.5 lies between 1, 2, 5 and 6; row -1 is row 1, 3 is 1, -4 is 0.
    expected = [1.0, 3.5, 11.0, 4.0, 6.0, 1.0]
    np.testing.assert_allclose(sample(image, rows, columns)[:, 0], expected)
    one = sample(tf.fill([1, 1, 1], 7.0), rows, columns)
    np.testing.assert_array_equal(one, np.full((6, 1), 7.0))


def test_quarter_turns():
    given = {name: np.asarray(value) for name, value in cells().items()}
    found = set()
    for number in range(24):
        made = apply(RandomQuarterTurns(), number, cells())
        (turns,) = (
            turns
            for turns in range(4)
            if np.array_equal(made["labels"], np.rot90(given["labels"], turns))
        )
        np.testing.assert_array_equal(made["image"], np.rot90(given["image"], turns))
        found.add(turns)
    assert found == {0, 1, 2, 3}


def test_each_augmentation_of_a_list_has_a_seed_of_its_own():
    drawn = []

    def draw(example, given):
        drawn.append(given.numpy().tolist())
        return example

    for number in range(2):
        augment({}, [draw, draw], seed(number))
    assert len({tuple(each) for each in drawn}) == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomMirror(1.5), "`horizontal` must be a number from 0 to 1.*=1.5"),
        (lambda: RandomMirror(0, -0.1), "`vertical` must be a number from 0 to 1"),
        (lambda: RandomScaleAndCrop(0), "`image_size` must be a positive integer"),
        (lambda: RandomScaleAndCrop(8, (2, 1)), r"`scale` must be two numbers.*\(2, 1"),
        (lambda: RandomScaleAndCrop(8, (0, 1)), "`scale` must be two numbers"),
        (lambda: RandomScaleAndCrop(8, 2.0), "`scale` must be two numbers"),  # pyright: ignore[reportArgumentType]
        (lambda: RandomScaleAndCrop(8, min_visible=1.0), "`min_visible` must be a pr"),
        (lambda: RandomScaleAndCrop(8, fill=math.nan), "`fill` must be a finite num"),
        (lambda: RandomScaleAndCrop(8, fill=[]), r"`fill` must be a .*fill=\[\]"),
        (lambda: RandomScaleAndCrop(8, fill="red"), "`fill` must be a .*fill='red'"),  # pyright: ignore[reportArgumentType]
        (
            lambda: RandomScaleAndCrop(8, fill=(1, 2))(
                {"image": tf.zeros((5, 5, 3))}, tf.constant([0, 0], tf.int64)
            ),
            "`fill` must be a number, or one for each of 3 chan.*fill=.1.0, 2",
        ),
        (lambda: RandomColors(brightness=-0.1), "`brightness` must be a probability"),
        (lambda: RandomColors(hue=1.0), "`hue` must be a probability"),
        (lambda: ElasticDeformation(-1.0), "`sigma` must be at least 0"),
        (lambda: ElasticDeformation(float("nan")), "`sigma` must be at least 0"),
        (lambda: ElasticDeformation(grid=1), "`grid` must be an integer of at least 2"),
        (lambda: ElasticDeformation(max_turn=1.0), "`max_turn` must be a probability"),
        (lambda: ElasticDeformation()(example(), seed()), "would no longer fit"),
        (lambda: RandomQuarterTurns()(example(), seed()), "`RandomQuarterTurns` is"),
    ],
)
def test_invalid_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
