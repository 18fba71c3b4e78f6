"""keras-cv's boxes become ours, and ours keras-cv's."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from box_formats import CENTER_FORMATS, FORMATS, H, W
from extras import NEEDS_KERAS_CV

from keras_attn.data import RandomMirror, from_keras_cv, to_keras_cv
from keras_attn.data.images.geometry import augment

if keras.backend.backend() != "tensorflow":
    pytest.skip("tf.data feeds TensorFlow", allow_module_level=True)
pytestmark = [NEEDS_KERAS_CV, pytest.mark.extra]

# Left, top, right, bottom: two boxes of one image, one of the other.
BOXES = [[[4.0, 5, 12, 15], [20, 0, 30, 10]], [[0, 10, 40, 20], [0, 0, 0, 0]]]
CLASSES = [[3, 0], [7, -1]]
ALL_FORMATS = {**FORMATS, **CENTER_FORMATS}


def ours():
    images = np.random.default_rng(3).uniform(0, 255, (2, H, W, 3)).astype("float32")
    targets = {
        "boxes": np.array(BOXES, "float32"),
        "classes": np.array(CLASSES, "int32"),
    }
    return tf.data.Dataset.from_tensors((images, targets))


def only(dataset):
    [batch] = dataset
    return tf.nest.map_structure(lambda value: value.numpy(), batch)


@pytest.mark.parametrize("form", ALL_FORMATS)
def test_there_and_back(form):
    theirs = to_keras_cv(ours(), form)
    found = only(theirs)["bounding_boxes"]
    np.testing.assert_allclose(found["boxes"][0, 0], ALL_FORMATS[form], rtol=1e-6)
    np.testing.assert_array_equal(found["boxes"][1, 1], [-1] * 4)
    np.testing.assert_array_equal(found["classes"], CLASSES)
    _, back = only(from_keras_cv(theirs, form, max_boxes=3))
    np.testing.assert_allclose(back["boxes"][:, :2], BOXES, atol=1e-5)
    np.testing.assert_array_equal(back["boxes"][:, 2], np.zeros((2, 4)))
    np.testing.assert_array_equal(back["classes"], [[3, 0, -1], [7, -1, -1]])
    assert back["classes"].dtype == "int32"


def test_ragged_boxes_in_and_beside_the_image():
    # Cut off at the left; beside the image; larger than the others.
    boxes = [[[-5.0, 0, 10, 10], [50, 0, 5, 5], [0, 0, 30, 20]], []]
    batch = {
        "images": tf.zeros((2, H, W, 3)),
        "bounding_boxes": {
            "boxes": tf.ragged.constant(boxes, ragged_rank=1, inner_shape=(4,)),
            "classes": tf.ragged.constant([[1.0, 2, 3], []], ragged_rank=1),
        },
    }
    theirs = tf.data.Dataset.from_tensors(batch)
    _, targets = only(from_keras_cv(theirs, "xywh", max_boxes=2))
    np.testing.assert_array_equal(targets["classes"], [[1, 3], [-1, -1]])
    np.testing.assert_array_equal(targets["boxes"][0], [[0, 0, 5, 10], [0, 0, 30, 20]])
    _, targets = only(from_keras_cv(theirs, "xywh", max_boxes=1))
    np.testing.assert_array_equal(targets["classes"], [[3], [-1]])


def test_a_mirror_of_keras_cv_is_ours():
    # Here, because the import takes seconds, which every suite would wait for.
    import keras_cv

    layer = keras_cv.layers.RandomFlip("horizontal", 1.0, bounding_box_format="xywh")
    theirs = to_keras_cv(ours(), "xywh").map(lambda batch: layer(batch, training=True))
    images, targets = only(from_keras_cv(theirs, "xywh", max_boxes=2))
    given, of_given = only(ours())
    for row, real in enumerate((2, 1)):
        example = {"image": given[row], "boxes": of_given["boxes"][row, :real]}
        seed = tf.constant([0, 0], tf.int64)
        want = augment(example, [RandomMirror(horizontal=1.0)], seed)
        np.testing.assert_array_equal(images[row], want["image"])
        np.testing.assert_allclose(
            targets["boxes"][row, :real], want["boxes"], atol=1e-5
        )


def test_refused():
    with pytest.raises(TypeError, match="`images` and `bounding_boxes`, and these"):
        from_keras_cv(ours(), "xywh", max_boxes=2)
    with pytest.raises(ValueError, match="`max_boxes` must be"):
        from_keras_cv(to_keras_cv(ours(), "xywh"), "xywh", max_boxes=0)
    with pytest.raises(ValueError, match="Got target=corners"):
        to_keras_cv(ours(), "corners")
