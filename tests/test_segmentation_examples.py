"""The examples of segmentation and detection run, with small sizes."""

import re

import keras
import numpy as np
import pytest
from conftest import assert_drawn

from keras_attn import models
from keras_attn.data import Shapes

pytestmark = pytest.mark.runs


def save(path, pixels):
    """Writes (H, W) or (H, W, C) as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = pixels if pixels.ndim == 3 else pixels[..., None]
    keras.utils.save_img(path, pixels, scale=False)


def test_segment_membranes(example, tmp_path):
    pytest.importorskip("scipy", reason="the extra `vision` is not installed")
    random = np.random.default_rng(0)
    # Cells of 12 pixels between membranes of 4, darker than they.
    is_cell = np.add.outer(*[np.arange(64) % 16 < 4] * 2) == 0
    for index in range(7):
        cells = np.roll(is_cell, index, axis=(0, 1))
        gray = np.where(cells, 190, 70) + random.integers(-30, 30, (64, 64))
        save(tmp_path / f"image/{index}.png", gray)
        save(tmp_path / f"label/{index}.png", 255 * cells)
    run = tmp_path / "run"
    printed = example(
        "segment_membranes",
        *("--data-dir", tmp_path, "--run-dir", run, "--batch-size", 2),
        *("--epochs", 2, "--width", 2, "--crop-size", 48, "--crops", 1),
    )
    assert "2 slices for training, 5 for testing" in printed
    assert re.search(r"^pixel error +[\d.]+% at 0\.\d\d$", printed, re.M)
    assert re.search(r"^Rand score +0\.\d{3} at .*: split .*, merge ", printed, re.M)
    # A threshold that leaves each membrane to the cells is as wrong as membranes are.
    assert f"all cell: {np.mean(~is_cell):.2%}" in printed
    assert (run / "model.keras").is_file()
    assert_drawn(run, "segmentation")


# The guide to images trains an FCN.
@pytest.mark.variation
def test_segment_streets(example, tmp_path):
    random = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for index in range(count):
            # Blocks of all classes, and of void.
            labels = np.kron(random.integers(0, 12, (3, 4)), np.ones((12, 12), int))
            save(tmp_path / f"{split}annot/{index}.png", labels)
            colors = 20 * labels[..., None] + [0, 10, 20]
            save(tmp_path / f"{split}/{index}.png", colors)
    run = tmp_path / "run"
    printed = example(
        "segment_streets",
        *("--data-dir", tmp_path, "--run-dir", run, "--model", "segnet"),
        *("--epochs", 1, "--batch-size", 2, "--seeds", 2),
    )
    figures = r"[\d.]+% ± [\d.]+% \| [\d.]+% \| "
    assert re.findall(rf"^\| (\w+) \| {figures}", printed, re.M) == ["segnet"]
    for seed in (0, 1):
        assert (run / f"segnet_{seed}" / "model.keras").is_file()
        assert_drawn(run / f"segnet_{seed}", "segmentation")


@pytest.mark.variation
def test_streets_are_segmented_at_equal_cost(example_module):
    script = example_module("segment_streets")
    sizes = {"image_size": (180, 240), "num_classes": len(script.CLASSES)}
    costs = [
        models.plan(name, **options, **sizes).forward_flops
        for name, options in script.MODELS.values()
    ]
    np.testing.assert_allclose(costs, 1e9, rtol=0.04)


def test_missing_masks_are_reported(example, tmp_path):
    with pytest.raises(SystemExit, match="must have the folders train, trainannot"):
        example("segment_streets", "--data-dir", tmp_path)


def test_class_weights_follow_the_frequency_where_a_class_occurs(example_module):
    class Data:
        # Class 1 has a fifth of the one image that has it, class 0 the rest of both.
        images = ([0, 0, 0, 0, 1], [0, 0, 255, 255, 255])

        def __len__(self):
            return len(self.images)

        def read(self, index):
            return None, np.array([self.images[index]])

    script = example_module("segment_streets")
    weights = script.class_weights(Data(), exponent=1.0)
    median = (6 / 7 + 1 / 5) / 2
    np.testing.assert_allclose(weights[:2], [median * 7 / 6, median * 5], rtol=1e-6)
    assert weights[2:].tolist() == [1.0] * 9


# Detection.

OPTIONS = "--epochs 1 --batch-size 2 --width 4 --blocks 1 1 --image-size 48 64".split()


def write_cells(folder):
    """A folder like BCCD, with a white cell in each image."""
    for name in ("JPEGImages", "Annotations", "ImageSets"):
        (folder / name).mkdir(parents=True)
    for split in ("train", "val"):
        names = [f"{split}_{number}" for number in range(4)]
        (folder / "ImageSets" / f"{split}.txt").write_text("\n".join(names))
        for number, name in enumerate(names):
            image = np.full((60, 80, 3), 200)
            image[10:50, 20:60] = 20 * number
            path = folder / "JPEGImages" / f"{name}.jpg"
            keras.utils.save_img(path, image, scale=False)
            cell = (
                "<object><name>WBC</name><bndbox><xmin>21</xmin><ymin>11</ymin>"
                "<xmax>60</xmax><ymax>50</ymax></bndbox></object>"
            )
            (folder / "Annotations" / f"{name}.xml").write_text(
                f"<annotation>{cell}</annotation>"
            )


@pytest.mark.variation
def test_find_blood_cells(example, tmp_path):
    write_cells(tmp_path / "data")
    run = tmp_path / "run"
    printed = example(
        "find_blood_cells", "--data-dir", tmp_path / "data", "--run-dir", run, *OPTIONS
    )
    assert re.search(r"^mAP [\d.]+, mAP@0.5 [\d.]+$", printed, re.M)
    assert re.search(
        r"^WBC: \d of 4 objects missed, \d+ false detections$", printed, re.M
    )
    assert_drawn(run, "worst")
    assert (run / "model.keras").is_file()
    assert not list((run / "backup").glob("*"))


# `test_find_blood_cells` trains by the same functions.
@pytest.mark.variation
def test_shapes_masks(example, tmp_path):
    run = tmp_path / "run"
    counts = ("--images", 4, "--held-out", 3)
    printed = example("shapes_masks", "--run-dir", run, *counts, *OPTIONS)
    for kind in ("boxes", "masks"):
        assert re.search(rf"^{kind}: mAP [\d.]+, mAP@0.5 [\d.]+$", printed, re.M)
    assert_drawn(run, "worst")
    assert list((run / "logs").glob("**/events*"))


# `test_shapes_masks` trains a detector, `test_attend_in_cnn` such a classifier.
@pytest.mark.variation
def test_four_tasks(example, example_module, tmp_path):
    detector, run = tmp_path / "detector.keras", tmp_path / "run"
    with pytest.raises(SystemExit, match="that `python examples/shapes_masks.py`"):
        example("four_tasks", "--detector", detector)
    models.build_mask_rcnn(
        num_classes=4,
        image_size=(64, 64),
        num_blocks=(1, 1),
        stem_dim=4,
        num_frozen=0,
        frozen_norms=False,
        pyramid_dim=8,
        head_dim=16,
        mask_dim=8,
        num_mask_layers=1,
        anchor_sizes=[12, 24, 36],
        num_proposals=10,
        max_detections=5,
    ).save(detector)
    printed = example("four_tasks", "--smoke", "--detector", detector, "--run-dir", run)
    line = r"^classification: [\d.]+% of 24 images .* most frequent shape: [\d.]+%\)$"
    assert re.search(line, printed, re.M)
    assert re.search(r"^  all background: mean IoU 0\.1\d\d$", printed, re.M)
    assert re.search(r"^semantic segmentation: mean IoU 0\.\d{3}$", printed, re.M)
    for task in ("detection", "instance segmentation"):
        assert re.search(rf"^{task}: mAP 0\.\d{{3}}, at 0\.5 ", printed, re.M)
    assert_drawn(run, "four_tasks")
    # Two objects of one shape are not told apart by their class.
    module = example_module("four_tasks")
    examples, _ = module.read_examples(Shapes(shapes=module.SHAPES), 0, 40)
    chosen = examples[module.choose(examples)]
    assert np.bincount(chosen.classes).max() == 2 and len(chosen.classes) >= 3
    pixels = [np.sum(chosen.labels == 1 + c) for c in range(4)]
    assert module.largest_shapes([chosen]) == [np.argmax(pixels)]
