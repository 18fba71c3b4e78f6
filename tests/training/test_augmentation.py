"""3-Augment, mixup and cutmix: their outputs and frequencies."""

import numpy as np
import pytest
import tensorflow as tf

from keras_attn.data import three_augment_dataset

C = 5


def batches(images, labels, size=8, **options):
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(size)
    made = three_augment_dataset(
        dataset, image_size=(12, 16), num_classes=C, seed=3, **options
    )
    return list(made.as_numpy_iterator())


def random_images(count=64):
    rng = np.random.default_rng(0)
    images = rng.uniform(0, 255, (count, 12, 16, 3)).astype("float32")
    return images, rng.integers(0, C, count)


def test_shapes_and_ranges():
    images, labels = random_images()
    for made, targets in batches(images, labels):
        assert made.shape == (8, 12, 16, 3) and made.dtype == np.float32
        assert made.min() >= -1e-3 and made.max() <= 255 + 1e-3
        assert targets.shape == (8, C)
        assert set(np.unique(targets)) <= {0, 1}
        assert ((1 <= targets.sum(1)) & (targets.sum(1) <= 2)).all()


def test_the_three_augmentations_are_equally_frequent():
    images, labels = random_images(300)
    options = {"mixup": 0, "cutmix": 0, "color_jitter": 0.0}
    made = np.concatenate([x for x, _ in batches(images, labels, 50, **options)])
    gray = np.ptp(made, axis=-1).max((1, 2)) < 1
    # A solarized image has no values above the middle of the range.
    dark = (made.max((1, 2, 3)) < 129) & ~gray
    assert 0.23 < gray.mean() < 0.43
    assert 0.23 < dark.mean() < 0.43


def test_images_are_solarized_in_their_range():
    images, labels = random_images(100)
    options = {"mixup": 0, "cutmix": 0, "color_jitter": 0.0, "value_range": (-1, 3)}
    made = np.concatenate(
        [x for x, _ in batches(images / 63.75 - 1, labels, 50, **options)]
    )
    gray = np.ptp(made, axis=-1).max((1, 2)) < 0.01
    dark = (made.max((1, 2, 3)) < 1.02) & ~gray  # The middle of the range is 1.
    assert 0.2 < dark.mean() < 0.47
    assert made.min() > -1.01


def test_targets_are_shares_of_the_pixels():
    images = np.zeros((64, 12, 16, 3), "float32")
    images[::2] = 200
    labels = np.arange(64) % 2
    options = {"color_jitter": 0.0, "mixup": 0, "binary_targets": False}
    shares = []
    for _, targets in batches(images, labels, 64, cutmix=1.0, **options):
        np.testing.assert_allclose(targets.sum(1), 1, atol=1e-5)
        shares.append(targets[:, :2])
    assert np.ptp(np.concatenate(shares)[:, 0]) > 0.9
    unmixed = batches(images, labels, 64, cutmix=0, **options)
    for _, targets in unmixed:
        np.testing.assert_array_equal(targets.argmax(1), labels)


def test_a_seed_repeats():
    images, labels = random_images(16)
    first, second = (batches(images, labels) for _ in range(2))
    for (one, targets), (other, same) in zip(first, second, strict=True):
        np.testing.assert_array_equal(targets, same)
        np.testing.assert_allclose(one, other, atol=1e-3)
    # Batches differ from each other.
    assert np.abs(first[0][0] - first[1][0]).max() > 1


@pytest.mark.parametrize("label", [-1, C])
def test_labels_out_of_range_are_refused(label):
    images, labels = random_images(8)
    labels[3] = label
    message = rf"a different `num_classes`.*labels\] \[{label}\] \[num_classes={C}\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        batches(images, labels)


def test_without_a_seed_datasets_differ():
    dataset = tf.data.Dataset.from_tensors(random_images(8))
    first, second = (
        next(
            three_augment_dataset(
                dataset, image_size=(12, 16), num_classes=C
            ).as_numpy_iterator()
        )[0]
        for _ in range(2)
    )
    assert np.abs(first - second).max() > 1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"mixup": -1}, "`mixup` must be at least 0.*mixup=-1"),
        ({"cutmix": -0.5}, "`cutmix` must be at least 0.*cutmix=-0.5"),
        ({"color_jitter": 1.0}, "`color_jitter` must be a probability"),
        ({"num_classes": 0}, "`num_classes` must be a positive"),
        ({"image_size": 0}, "`image_size` must be a positive"),
    ],
)
def test_invalid_arguments_are_refused(options, message):
    dataset = tf.data.Dataset.from_tensors(random_images(4))
    with pytest.raises(ValueError, match=message):
        three_augment_dataset(
            dataset, **{"image_size": 12, "num_classes": C, **options}
        )
