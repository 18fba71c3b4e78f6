"""Predictions beside the truth in TensorBoard, each epoch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from event_files import pictures_of

from keras_attn.viz.callbacks import DetectionBoxes, SegmentationMaps

RNG = np.random.default_rng(0)
IMAGES = RNG.random((5, 13, 17, 3)).astype("float32")
LABELS = RNG.integers(0, 3, (5, 13, 17))
NAMES = ["sky", "road", "car"]
TRUTH = {
    "boxes": np.tile(np.array([[1, 2, 7, 9], [0, 0, 0, 0]], "float32"), (5, 1, 1)),
    "classes": tf.constant([[1, -1]] * 5),
}


def fit(callback, epochs=1):
    """Trains a small model with a callback."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((13, 17, 3)), keras.layers.Conv2D(3, 1)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.3), loss, jit_compile=False)
    model.fit(IMAGES, LABELS, epochs=epochs, verbose=0, callbacks=[callback])


def test_segmentation(tmp_path):
    log_dir = tmp_path / "Läufe 1"
    maps = SegmentationMaps(
        log_dir, IMAGES, LABELS, NAMES, every=2, max_examples=2, errors=True
    )
    fit(maps, epochs=3)
    written = pictures_of(log_dir)
    assert set(written) == {"segmentation/0", "segmentation/1"}
    for events in written.values():
        (first, one), (last, two) = events
        assert (first, last) == (0, 2) and one != two
        assert tf.io.decode_png(one).shape == tf.io.decode_png(two).shape


def test_detections(tmp_path):
    given = []

    def detect(images):
        given.append(images.shape)
        scores = np.full((len(images), 2), 0.9)
        return {
            **TRUTH,
            "boxes": TRUTH["boxes"][:3] + 1,
            "classes": [[1, 0]] * 3,
            "scores": scores,
        }

    boxes = DetectionBoxes(
        tmp_path, IMAGES, TRUTH, NAMES, detect=detect, max_examples=3, min_score=0.1
    )
    fit(boxes)
    assert set(pictures_of(tmp_path)) == {f"detections/{i}" for i in range(3)}
    assert set(given) == {(3, 13, 17, 3)}


def test_predictions_of_a_function(tmp_path):
    maps = SegmentationMaps(
        tmp_path, IMAGES, LABELS, NAMES, predict=lambda x: np.zeros(x.shape[:3], int)
    )
    fit(maps)
    assert len(pictures_of(tmp_path)) == 4


def test_what_cannot_be_drawn_fails_before_the_first_epoch(tmp_path):
    with pytest.raises(ValueError, match="logits of 4 classes, as many as"):
        fit(SegmentationMaps(tmp_path, IMAGES, LABELS, [*NAMES, "tree"]))
    boxes = DetectionBoxes(
        tmp_path, IMAGES, TRUTH, NAMES[:1], detect=lambda _: TRUTH, max_examples=5
    )
    with pytest.raises(ValueError, match="Classes of `truth` must be below 1"):
        fit(boxes)
