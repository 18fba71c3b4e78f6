"""The examples of detection run from the command line, with small sizes."""

import re

import keras
import numpy as np
import pytest
from conftest import assert_drawn

pytestmark = pytest.mark.runs

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
