"""Runs the recipes of the documentation as written, one after the other."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
RNG = np.random.default_rng(0)


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
    names = {}
    text = (DOCS / "images.md").read_text("utf-8")
    for recipe in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(recipe, "images.md", "exec"), names)
    for picture in ("heads", "rollout", "positions", "mae"):
        assert (tmp_path / f"{picture}.png").stat().st_size > 1000
    assert names["maps"]["stage_0"].shape == (1, 24, 16, 16)
    assert names["maps"]["stage_1"].shape == (1, 12, 8, 32)
    for artefact in ("vit.tflite", "vit.onnx", "vit/saved_model.pb"):
        assert (tmp_path / artefact).is_file()
