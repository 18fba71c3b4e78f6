"""Scores of segmentation, against NumPy, SciPy and values derived by hand."""

import keras
import numpy as np
import pytest
from scipy import ndimage

from keras_attn.metrics import SegmentationScores, foreground_rand_scores
from keras_attn.metrics.segmentation import label_components

RNG = np.random.default_rng(0)
C = 5
LABELS = RNG.integers(0, C - 1, (6, 7, 11))  # The last class never occurs.
LABELS[:, :2] = 255
LOGITS = RNG.normal(size=(6, 7, 11, C)).astype("float32")
LOGITS[..., -1] = -9  # Nor is it predicted.


def expected(labels=LABELS, logits=LOGITS):
    valid = labels < C
    true, found = labels[valid], logits.argmax(-1)[valid]
    ious = {}
    for number in range(C):
        union = ((true == number) | (found == number)).sum()
        both = ((true == number) & (found == number)).sum()
        ious[f"iou_{number}"] = both / union if union else np.nan
    return {
        "mean_iou": np.nanmean(list(ious.values())),
        "pixel_accuracy": (true == found).mean(),
        **ious,
    }


def as_numbers(scores):
    return {name: float(value) for name, value in scores.items()}


def test_scores_are_those_of_all_pixels():
    metric = SegmentationScores(C)
    for start in (0, 1, 3):  # Batches of one, two and three images.
        stop = {0: 1, 1: 3, 3: 6}[start]
        metric.update_state(LABELS[start:stop], LOGITS[start:stop])
    found = as_numbers(metric.result())
    assert found.keys() == expected().keys() and np.isnan(found["iou_4"])
    np.testing.assert_allclose(list(found.values()), list(expected().values()), 1e-6)
    metric.reset_state()
    assert as_numbers(metric.result())["mean_iou"] == 0


def test_other_ignored_labels_and_weights():
    metric = SegmentationScores(C, ignore_label=2)
    metric.update_state(LABELS, LOGITS)
    as_void = np.where(LABELS == 2, 255, LABELS)
    found = as_numbers(metric.result())
    np.testing.assert_allclose(
        list(found.values()), list(expected(as_void).values()), 1e-6
    )
    weighted = SegmentationScores(C)
    weights = np.zeros(LABELS.shape)
    weights[:3] = 1
    weighted.update_state(LABELS, LOGITS, sample_weight=weights)
    np.testing.assert_allclose(
        list(as_numbers(weighted.result()).values()),
        list(expected(LABELS[:3], LOGITS[:3]).values()),
        1e-6,
    )


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.compiled
def test_in_compile(jit_compile):
    keras.utils.set_random_seed(0)
    names = ["sky", "road", "car", "tree", "void"]
    model = keras.Sequential([keras.Input((7, 11, C)), keras.layers.Conv2D(C, 1)])
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=255
    )
    metric = SegmentationScores(C, names)
    model.compile("sgd", loss, metrics=[metric], jit_compile=jit_compile)
    history = model.fit(
        LOGITS, LABELS, validation_data=(LOGITS, LABELS), epochs=2, verbose=0
    ).history
    values = expected(LABELS, model.predict(LOGITS, verbose=0))
    found = model.evaluate(LOGITS, LABELS, verbose=0, return_dict=True, batch_size=4)
    for number, name in enumerate(names):
        values[f"iou_{name}"] = values.pop(f"iou_{number}")
    for name, value in values.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)
        np.testing.assert_allclose(history[f"val_{name}"][-1], value, rtol=1e-5)
        assert len(history[name]) == 2


def test_it_is_saved_with_its_model(tmp_path):
    metric = SegmentationScores(C, ["a", "b", "c", "d", "e"], ignore_label=11)
    model = keras.Sequential([keras.Input((7, 11, C)), keras.layers.Conv2D(C, 1)])
    model.compile("sgd", "mse", metrics=[metric])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded is not None and loaded.compiled


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 0}, "`num_classes` must be a positive integer"),
        ({"num_classes": 3, "class_names": ["a", "b"]}, "must be 3 different names"),
        ({"num_classes": 2, "class_names": ["a", "a"]}, "must be 2 different names"),
    ],
)
def test_invalid_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        SegmentationScores(**options)


@pytest.mark.parametrize("density", [0.0, 0.2, 0.5, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("shape", [(1, 1), (1, 17), (23, 1), (31, 37), (101, 97)])
def test_components_are_those_of_scipy(density, shape):
    mask = RNG.random(shape) < density
    found, expected = label_components(mask), ndimage.label(mask)[0]
    # The same up to their numbers.
    pairs = np.unique(np.stack([found.ravel(), expected.ravel()]), axis=1)
    assert len(np.unique(pairs[0])) == len(np.unique(pairs[1])) == pairs.shape[1]
    np.testing.assert_array_equal(found == 0, ~mask)


def spiral():
    """One component that closes only in its last row."""
    mask = np.zeros((7, 7), bool)
    mask[:, ::2] = True
    mask[-1] = True
    return mask


def test_late_joins():
    assert label_components(spiral()).max() == 1
    assert label_components(spiral()[:-1]).max() == 4


def cells(width=21, wall=None, thickness=1):
    """Two cells beside each other, with a wall between them."""
    mask = np.ones((10, width), bool)
    if wall is not None:
        mask[:, wall : wall + thickness] = False
    return mask


def test_equal_divisions_have_the_score_1():
    for truth in (cells(), cells(wall=10), RNG.random((31, 37)) < 0.6):
        assert foreground_rand_scores(truth, truth) == {
            "rand": 1.0,
            "split": 1.0,
            "merge": 1.0,
        }


def test_merging_and_splitting_by_hand():
    truth = cells(wall=10)  # Two cells of 100 pixels.
    scores = foreground_rand_scores(truth, cells())
    # In the prediction all 200 are one: 2 · 100² of 200² pairs.
    assert scores == pytest.approx({"split": 1.0, "merge": 0.5, "rand": 2 / 3})
    scores = foreground_rand_scores(cells(), cells(wall=10), grow_objects=True)
    # One cell of 210 becomes two, which meet at the wall: 110 and 100.
    both = 110**2 + 100**2
    expected = {"split": both / 210**2, "merge": 1.0, "rand": 2 * both / 210**2}
    expected["rand"] = 2 * both / (both + 210**2)
    assert scores == pytest.approx(expected)


def test_thick_borders_cost_nothing_if_objects_grow():
    truth, thick = cells(wall=10), cells(wall=8, thickness=5)
    assert foreground_rand_scores(truth, thick)["rand"] == pytest.approx(1.0)
    scores = foreground_rand_scores(truth, thick, grow_objects=False)
    # Each cell keeps 80 pixels, and 20 are alone.
    both = 2 * (80**2 + 20)
    assert scores == pytest.approx(
        {
            "split": both / (2 * 100**2),
            "merge": 1.0,
            "rand": 2 * both / (both + 2 * 100**2),
        }
    )


def test_nothing_predicted():
    truth = cells(wall=10)
    scores = foreground_rand_scores(truth, np.zeros_like(truth))
    # Every pixel alone.
    assert scores["merge"] == 1 and scores["split"] == pytest.approx(0.01)


def test_masks_that_are_refused():
    for truth, prediction in [
        (cells(), cells(20)),
        (cells()[None], cells()[None]),
    ]:
        with pytest.raises(ValueError, match=r"masks \(H, W\) of the same shape"):
            foreground_rand_scores(truth, prediction)
    with pytest.raises(ValueError, match="`truth` must have objects"):
        foreground_rand_scores(np.zeros((3, 5)), np.ones((3, 5)))
