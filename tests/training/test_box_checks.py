"""`check_boxes`: every mistake has its error, in arrays and in data sets."""

import numpy as np
import pytest
import tensorflow as tf

from keras_attn.data import check_boxes

SIZE = (61, 83)
NAN = float("nan")


def truth(**changes):
    given = {
        "boxes": np.array([[[3, 5, 90, 41], [0, 0, 0, 0]]], "float32"),
        "classes": np.array([[6, -1]], "int32"),
        "masks": np.ones((1, 2, *SIZE), "uint8"),
    }
    return {k: np.asarray(v) for k, v in {**given, **changes}.items() if v is not None}


WRONG = {
    "boxes of three numbers": (
        {"boxes": np.zeros((1, 2, 3), "float32")},
        r"`boxes` must have the shape .*boxes.shape=\(1, 2, 3\)",
    ),
    "another number of classes": ({"classes": np.array([[6]])}, r"shape=\(1, 1\)"),
    "classes as floats": ({"classes": np.array([[6.0, -1]])}, "`classes` must be int"),
    "a class too large": (
        {"classes": np.array([[6, 7]])},
        r"`classes` must be in \[0, 7\).*Received: 7 at index \(0, 1\)",
    ),
    "a class below -1": ({"classes": np.array([[-2, -1]])}, "Received: -2 at"),
    "not a number": (
        {"boxes": [[[3, NAN, 9, 9], [0, 0, 0, 0]]]},
        r"must be finite.*Received: \[3.0, nan, 9.0, 9.0\] at index \(0, 0\)",
    ),
    "empty": (
        {"boxes": [[[3, 4, 3, 9], [0, 0, 0, 0]]]},
        "above zero in the format 'xy",
    ),
    "of negative size": ({"boxes": [[[9, 4, 3, 9], [0, 0, 0, 0]]]}, "a height above"),
    "outside": (
        {"boxes": [[[83.0, 4, 99, 9], [0, 0, 0, 0]]]},
        r"overlap with the image of \(61, 83\) pixels",
    ),
    "above": ({"boxes": [[[3.0, -9, 9, -1], [0, 0, 0, 0]]]}, "overlap with the image"),
    "masks of another size": (
        {"masks": np.ones((1, 2, 61, 61), "uint8")},
        r"`masks` must have the shape \(1, 2, 61, 83\).*Received: masks.shape",
    ),
    "numbered masks": (
        {"masks": np.full((1, 2, *SIZE), 2, "uint8")},
        r"`masks` must be 0 or 1.*Received: 2 at index \(0, 0, 0, 0\)",
    ),
    "no classes": ({"classes": None}, r"Received: keys \['boxes', 'masks'\]"),
}


def dataset(given):
    return tf.data.Dataset.from_tensors((np.zeros((1, *SIZE, 3), "float32"), given))


@pytest.mark.parametrize("changes, match", WRONG.values(), ids=WRONG)
def test_a_mistake_is_an_error(changes, match):
    given = truth(**changes)
    with pytest.raises(ValueError, match=match):
        check_boxes(given, 7, SIZE)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=match):
        list(check_boxes(dataset(given), 7, SIZE))


def test_what_is_right_is_unchanged():
    given = truth()
    assert check_boxes(given, 7, SIZE) is given
    for spec, (_, found) in [
        (data.element_spec, next(iter(data)))
        for data in [check_boxes(dataset(given), 7, SIZE)]
    ]:
        assert spec == dataset(given).element_spec
        for name, value in given.items():
            np.testing.assert_array_equal(found[name], value)
    check_boxes(truth(masks=np.ones((1, 2, *SIZE), bool)), 7, SIZE)
    # Padding may be anything.
    check_boxes(truth(boxes=[[[3.0, 5, 9, 41], [NAN, 0, -9, 0]]]), 7, SIZE)
    # The box of each format covers the same pixels.
    for name, box in {
        "yxyx": [5, 3, 41, 90],
        "xywh": [3, 5, 87, 36],
        "rel_xyxy": [0.04, 0.1, 1.05, 0.7],
        "rel_yxyx": [0.1, 0.04, 0.7, 1.05],
        "rel_xywh": [0.04, 0.1, 1.0, 0.6],
    }.items():
        boxes = np.array([[box, [0] * 4]], "float32")
        check_boxes(truth(boxes=boxes), 7, SIZE, bounding_box_format=name)


def test_a_wrong_format_is_noticed():
    boxes = [[[50.0, 5, 30, 41], [0, 0, 0, 0]]]  # x, y, width, height.
    check_boxes(truth(boxes=boxes), 7, SIZE, bounding_box_format="xywh")
    with pytest.raises(ValueError, match="in the format 'xyxy'"):
        check_boxes(truth(boxes=boxes), 7, SIZE)
    with pytest.raises(ValueError, match="`bounding_box_format` must be one of"):
        check_boxes(truth(), 7, SIZE, bounding_box_format="cxcywh")


def test_other_arguments():
    with pytest.raises(TypeError, match="`truth` must be a dictionary.*truth=list"):
        check_boxes([1], 7, SIZE)
    images = tf.data.Dataset.from_tensors(np.zeros((1, *SIZE, 3)))
    with pytest.raises(TypeError, match="pairs .images, dictionary"):
        check_boxes(images, 7, SIZE)
