"""Runs the recipes of the documentation as written, one after the other."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
from data.image_sets import write_coco, write_voc

DOCS = Path(__file__).resolve().parent.parent / "docs"
RNG = np.random.default_rng(0)


def run_recipes(name):
    """Runs the recipes of a document; returns their variables."""
    names = {}
    text = (DOCS / name).read_text("utf-8")
    for recipe in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(recipe, name, "exec"), names)
    return names


# A recipe loads a checkpoint under a new head.
@pytest.mark.filterwarnings("ignore:The checkpoint has no weights for:UserWarning")
@pytest.mark.runs
def test_images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Two epochs on random images: the accuracy of an int8 export depends on the seed.
    keras.utils.set_random_seed(1)
    for split in ("train", "val"):
        for label in ("cat", "dog", "owl"):
            folder = tmp_path / "images" / split / label
            folder.mkdir(parents=True)
            for index in range(8):
                picture = RNG.integers(0, 256, (32, 32, 3))
                keras.utils.save_img(folder / f"{index}.png", picture, scale=False)
    names = run_recipes("images.md")
    for picture in ("heads", "rollout", "positions", "mae"):
        assert (tmp_path / f"{picture}.png").stat().st_size > 1000
    assert names["maps"]["stage_0"].shape == (1, 24, 16, 16)
    assert names["maps"]["stage_1"].shape == (1, 12, 8, 32)
    for artefact in ("vit.tflite", "vit.onnx", "vit/saved_model.pb"):
        assert (tmp_path / artefact).is_file()


@pytest.mark.runs
def test_captions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_recipes("captions.md")
    assert len(names["captions"]) == 16
    assert (tmp_path / "captioner.onnx" / "step.onnx").is_file()


@pytest.mark.runs
def test_dense(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for index in range(6):
        for folder, values in (("image", 256), ("mask", 3)):
            shape = (40, 48, 3) if folder == "image" else (40, 48, 1)
            picture = RNG.integers(0, values, shape)
            path = tmp_path / "cells" / folder / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            keras.utils.save_img(path, picture, scale=False)
    write_voc(tmp_path).rename(tmp_path / "VOC")
    path, images = write_coco(tmp_path)
    (tmp_path / "COCO").mkdir()
    images.rename(tmp_path / "COCO" / "images")
    (tmp_path / "COCO" / "images" / path.name).rename(tmp_path / "COCO" / path.name)
    names = run_recipes("dense.md")
    for picture in ("segmentation", "field", "detections"):
        assert (tmp_path / f"{picture}.png").stat().st_size > 1000
    assert len(names["history"]["iou_membrane"]) == 2
    assert names["scores"].result()["map_50"] == pytest.approx(1)
    assert names["truth"]["masks"].shape[0] == 2
    assert set(names["answers"]) < set(names["words"])
