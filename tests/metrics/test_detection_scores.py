"""COCO's figures are those of pycocotools on the same boxes."""

import builtins
import contextlib
import io
import json
from typing import Any

import keras
import numpy as np
import pytest
from backend import skip_module_without_tensorflow
from event_files import steps_of
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from keras_attn.metrics import (
    DetectionScoreLogger,
    DetectionScores,
    count_detection_errors,
)
from keras_attn.ops.boxes import convert_boxes

skip_module_without_tensorflow("tf.data feeds TensorFlow")

B, M, K, C, H, W = 13, 7, 11, 3, 101, 131
NAMES = ["cat", "dog", "owl"]
FIGURES = (
    "map map_50 map_75 map_small map_medium map_large recall_1 recall_10 recall_100 "
    "recall_small recall_medium recall_large"
).split()


def random_boxes(rng, *shape):
    sizes = rng.uniform(3, 60, (*shape, 2))
    corner = rng.uniform(0, 1, (*shape, 2)) * (np.array([W, H]) - sizes)
    return np.concatenate([corner, corner + sizes], -1).astype("float32")


def make(seed=0, masks=False):
    """Truth, and detections near it, some of them of the wrong class."""
    rng = np.random.default_rng(seed)
    boxes = random_boxes(rng, B, M)
    classes = rng.integers(0, C, (B, M)).astype("int32")
    classes[rng.random((B, M)) < 0.3] = -1
    crowd = rng.random((B, M)) < 0.1
    found = random_boxes(rng, B, K)
    found[:, :M] = boxes + rng.normal(0, 2, boxes.shape)
    found_classes = rng.integers(0, C, (B, K)).astype("int32")
    found_classes[:, :5] = classes[:, :5]
    truth = {"boxes": boxes, "classes": classes, "is_crowd": crowd}
    detections = {
        "boxes": found,
        "classes": found_classes,
        "scores": rng.random((B, K)).astype("float32"),
        "num_detections": np.full(B, K),
    }
    if masks:
        truth["masks"] = drawn(boxes)
        detections["masks"] = drawn(found)
    return truth, detections


def drawn(boxes):
    """Ellipses in boxes."""
    left, top, right, bottom = (
        side[..., None, None] for side in np.moveaxis(boxes, -1, 0)
    )
    rows, columns = np.mgrid[:H, :W] + 0.5
    x = (2 * columns - left - right) / (right - left)
    y = (2 * rows - top - bottom) / (bottom - top)
    return x**2 + y**2 < 1


def reference(tmp_path, truth, detections, masks=False):
    """pycocotools, given files as its users write them."""
    annotations, results = [], []
    for values, entries in ((truth, annotations), (detections, results)):
        for row, index in np.argwhere(values["classes"] >= 0):
            left, top, right, bottom = values["boxes"][row, index].astype(float)
            entry: dict[str, Any] = {
                "image_id": int(row) + 100,
                "category_id": int(values["classes"][row, index]) * 10 + 7,
                "bbox": [left, top, right - left, bottom - top],
                "area": (right - left) * (bottom - top),
            }
            if masks:
                plane = values["masks"][row, index].astype(np.uint8)
                runs: Any = coco_mask.encode(np.asfortranarray(plane))
                entry["area"] = float(coco_mask.area(runs))
                runs["counts"] = runs["counts"].decode()
                entry["segmentation"] = runs
            if values is truth:
                entry["id"] = len(entries) + 1
                entry["iscrowd"] = int(truth["is_crowd"][row, index])
            else:
                entry["score"] = float(values["scores"][row, index])
                del entry["area"]
                if masks:  # Results of COCO's format have one or the other.
                    del entry["bbox"]
            entries.append(entry)
    content = {
        "images": [{"id": row + 100, "height": H, "width": W} for row in range(B)],
        "annotations": annotations,
        "categories": [{"id": i * 10 + 7, "name": NAMES[i]} for i in range(C)],
    }
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(content))
    (tmp_path / "results.json").write_text(json.dumps(results))
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(path)
        evaluation = COCOeval(
            coco,
            coco.loadRes(str(tmp_path / "results.json")),
            "segm" if masks else "bbox",
        )
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        figures: dict[str, Any] = dict(zip(FIGURES, evaluation.stats, strict=True))
        for index, name in enumerate(NAMES):
            evaluation.params.catIds = [index * 10 + 7]
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            figures[f"ap_{name}"] = evaluation.stats[0]
            figures[f"ap_50_{name}"] = evaluation.stats[1]
    return {name: np.nan if value < 0 else value for name, value in figures.items()}


@pytest.mark.parametrize("masks", [False, True])
def test_figures_are_those_of_pycocotools(tmp_path, masks, capsys):
    truth, detections = make(masks=masks)
    scores = DetectionScores(NAMES, masks)
    for start in range(0, B, 5):  # In batches.
        part = slice(start, start + 5)
        scores.add(
            {name: value[part] for name, value in truth.items()},
            {name: value[part] for name, value in detections.items()},
            (H, W),
        )
    found = scores.result()
    assert capsys.readouterr().out == ""
    expected = reference(tmp_path, truth, detections, masks)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12, err_msg=name)
    assert 0.1 < found["map"] < found["map_50"] < 1


def test_perfect_detections_and_none():
    truth, _ = make()
    del truth["is_crowd"]
    perfect = {**truth, "scores": np.ones((B, M), "float32")}
    scores = DetectionScores(NAMES)
    scores.add(truth, perfect, (H, W))
    found = scores.result()
    assert found["map"] == found["ap_owl"] == found["recall_100"] == 1
    nothing = {**perfect, "classes": np.full((B, M), -1)}
    scores = DetectionScores(NAMES)
    scores.add(truth, nothing, (H, W))
    assert scores.result()["map"] == 0
    scores = DetectionScores()
    scores.add(nothing, nothing, (H, W))
    assert np.isnan(scores.result()["map"])


def test_a_class_that_does_not_occur_has_no_score():
    truth, detections = make()
    truth["classes"][truth["classes"] == 1] = -1
    scores = DetectionScores(NAMES)
    scores.add(truth, detections, (H, W))
    found = scores.result()
    assert np.isnan(found["ap_dog"]) and np.isnan(found["ap_50_dog"])
    np.testing.assert_allclose(found["map"], (found["ap_cat"] + found["ap_owl"]) / 2)


@pytest.mark.parametrize("name", ["xywh", "rel_yxyx"])
def test_boxes_of_another_format(name):
    truth, found = make()
    results = []
    for format in ("xyxy", name):
        scores = DetectionScores(bounding_box_format=format)
        given = [
            {
                **x,
                "boxes": np.asarray(convert_boxes(x["boxes"], "xyxy", format, (H, W))),
            }
            for x in (truth, found)
        ]
        scores.add(given[0], given[1], (H, W))
        results.append(scores.result())
    assert 0.1 < results[0]["map"] < 1
    assert results[1] == pytest.approx(results[0], abs=0.01, nan_ok=True)
    with pytest.raises(ValueError, match="`bounding_box_format` must be one of"):
        DetectionScores(bounding_box_format="xxyy")


def test_no_class_has_the_name_of_a_figure():
    """Of 80 classes, 50 and 75 occur, whose numbers COCO's figures have, too."""
    boxes = np.array([[[1, 1, 20, 20], [30, 30, 50, 50]]], "float32")
    truth = {"boxes": boxes, "classes": np.array([[50, 75]])}
    found = {**truth, "scores": np.full((1, 2), 0.9, "float32")}
    found["classes"] = np.array([[50, 74]])
    results = []
    for names in (None, [f"c{index}" for index in range(80)]):
        scores = DetectionScores(names)
        scores.add(truth, found, (60, 60))
        results.append(scores.result())
    for each in results:
        figures = [each[name] for name in ("map", "map_50", "map_75")]
        assert figures == pytest.approx([0.5] * 3)
    assert results[0]["ap_50"] == pytest.approx(1)
    assert results[1]["ap_c50"] == pytest.approx(1)
    with pytest.raises(ValueError, match="`class_names` must be different names"):
        DetectionScores(["cat", "cat"])


def test_small_masks_are_pasted_into_their_boxes():
    truth, _ = make(masks=True)
    del truth["is_crowd"]
    # The ellipse in the square of 28 x 28 that a mask head returns.
    rows, columns = np.mgrid[:28, :28] / 13.5 - 1
    small = np.broadcast_to(rows**2 + columns**2 < 1, (B, M, 28, 28))
    found = {**truth, "masks": small * 1.0, "scores": np.ones((B, M))}
    scores = DetectionScores(masks=True)
    scores.add(truth, found, (H, W))
    assert scores.result()["map_50"] == 1 and scores.result()["map_75"] > 0.95


def test_what_is_not_finite_is_left_out(tmp_path):
    truth, detections = make()
    damaged = {name: value.copy() for name, value in detections.items()}
    damaged["boxes"][0, 0, 2] = np.nan
    damaged["boxes"][1, 1, 0] = np.inf
    damaged["scores"][2, 2] = np.nan
    scores = DetectionScores(NAMES)
    scores.add(truth, damaged, (H, W))
    for row, index in ((0, 0), (1, 1), (2, 2)):
        detections["classes"][row, index] = -1
    expected = reference(tmp_path, truth, detections)
    np.testing.assert_allclose(scores.result()["map"], expected["map"])


class Detector(keras.Model):
    """Returns what it was given, in place of what it sees."""

    def __init__(self, detections):
        super().__init__()
        self.detections = detections
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, images):
        return keras.ops.mean(images, axis=(1, 2, 3)) * self.scale

    def predict_on_batch(self, x):
        return self.detections


def test_the_logger(tmp_path):
    truth, detections = make()
    model = Detector(detections)
    model.compile("sgd", "mse")
    images, zeros = np.ones((B, H, W, 3), "float32"), np.zeros((B, 1), "float32")
    logger = DetectionScoreLogger(
        [(images, truth)], NAMES, every=2, log_dir=tmp_path / "runs"
    )
    seen = []
    after = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda _, logs: seen.append(logs)
    )
    history = model.fit(
        images, zeros, epochs=3, verbose=0, callbacks=[logger, after], batch_size=B
    ).history
    expected = reference(tmp_path, truth, detections)
    assert history["val_map_50"] == pytest.approx([expected["map_50"]] * 2)
    assert ["val_map" in logs for logs in seen] == [True, False, True]
    assert steps_of(tmp_path / "runs")["val_ap_50_cat"] == [0, 2]

    worse = {**detections, "scores": -detections["scores"]}
    logger = DetectionScoreLogger(
        [(images, truth)], NAMES, detect=lambda _: worse, prefix="test_"
    )
    history = model.fit(images, zeros, verbose=0, callbacks=[logger]).history
    assert history["test_map"][0] != pytest.approx(expected["map"], rel=0.1)
    with pytest.raises(ValueError, match="`every` must be a positive integer"):
        DetectionScoreLogger([], every=0)


def test_arguments_that_are_refused():
    truth, detections = make()
    scores = DetectionScores(NAMES)
    with pytest.raises(ValueError, match="`add` must be called first"):
        scores.result()
    wrong: list[tuple[Any, str]] = [
        ((truth, truth), "`detections` must have .*`scores`"),
        (({"boxes": 1}, detections), r"`truth` must have `boxes`, `classes`.*\['boxes"),
        (({**truth, "boxes": truth["boxes"][:, :2]}, detections), "must have classes"),
        (({**truth, "classes": truth["classes"][0]}, detections), "must have classes"),
        (({name: x[:5] for name, x in truth.items()}, detections), "5 and 13 images"),
        (({**truth, "classes": truth["classes"] + 9}, detections), "`truth` must"),
        ((truth, {**detections, "classes": detections["classes"] + 1}), "class 3"),
    ]
    for (first, second), message in wrong:
        with pytest.raises(ValueError, match=message):
            scores.add(first, second, (H, W))
    with pytest.raises(ValueError, match="`truth` must have `boxes`, .*`masks`"):
        DetectionScores(masks=True).add(truth, detections, (H, W))


def test_without_pycocotools(monkeypatch):
    imported = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("pycocotools"):
            raise ImportError("no pycocotools", name="pycocotools")
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r'pip install "keras-attn\[eval\]"'):
        DetectionScores()


def test_errors_are_counted():
    boxes = np.array([[[0, 0, 9, 9], [20, 0, 29, 9], [40, 0, 49, 9]]], "float32")
    truth = {"boxes": boxes, "classes": np.array([[0, 1, -1]])}
    found = {
        "boxes": boxes[:, [0, 0, 1, 2]],
        # Found; found twice; of the wrong class; not certain enough.
        "classes": np.array([[0, 0, 0, 1]]),
        "scores": np.array([[0.9, 0.8, 0.7, 0.1]], "float32"),
    }
    errors = count_detection_errors(truth, found, 2)
    assert errors.tolist() == [[[1, 0, 2], [1, 1, 0]]]
    errors = count_detection_errors(truth, found, 2, min_score=0.05)
    assert errors.tolist() == [[[1, 0, 2], [1, 1, 1]]]
    with pytest.raises(ValueError, match="`num_classes` must be.*num_classes=0"):
        count_detection_errors(truth, found, 0)
