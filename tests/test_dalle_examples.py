"""The examples of DALL·E run from the command line, with small sizes."""

import io
import json
import re
import zipfile

import numpy as np
import pytest
from conftest import assert_drawn
from PIL import Image

NAMES = ("red heart", "blue heart", "star", "moon", "sun", "ring", "key")
STYLES = ("noto", "twemoji", "openmoji")


# The other example trains by the same functions.
@pytest.mark.variation
@pytest.mark.runs
def test_dalle_shapes(example, tmp_path):
    printed = example("dalle_shapes", "--smoke", "--run-dir", tmp_path)
    share = r"[\d.]+ ± [\d.]+"
    for part in ("known", "new"):
        judged = rf"^{part}: judged right [\d.]+% of images, [\d.]+% after the dVAE"
        assert re.search(judged, printed, re.M)
        for kind in ("", ", training images"):
            line = f"best of 1 {share}, best of 8 {share}, size {share}, color {share}"
            assert re.search(f"^{part}{kind}: {line}", printed, re.M)
    results = json.loads((tmp_path / "scores.json").read_text("utf-8"))
    # No training image shows a new pair; what the judge says of it is the judge's.
    names = {"best of 1", "best of 8", "size", "color", "shape"}
    assert set(results[0]["new"]) == names
    for name in ("dvae", "clip_0", "dalle_0"):
        assert (tmp_path / name / "model.keras").is_file()
        assert list((tmp_path / name / "logs").glob("**/events*"))
    assert_drawn(tmp_path, "samples_0")
    # What was trained is read.
    from dalle_shapes import fit  # pyright: ignore[reportMissingImports]

    assert fit(None, None, None, tmp_path / "dvae").count_params() == 3_377


# The guide to generation trains a dVAE and a DALL·E.
@pytest.mark.variation
@pytest.mark.runs
def test_dalle_emoji(example, tmp_path):
    folder, rng = tmp_path / "emoji", np.random.default_rng(0)
    folder.mkdir()
    rows = [f"1F60{index}\t{name}" for index, name in enumerate(NAMES)]
    (folder / "emoji.tsv").write_text("\n".join(["hexcode\tname", *rows]), "utf-8")
    for style in STYLES:
        with zipfile.ZipFile(folder / f"{style}.zip", "w") as archive:
            for index in range(len(NAMES)):
                pixels = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
                content = io.BytesIO()
                Image.fromarray(pixels).save(content, "png")
                archive.writestr(f"1F60{index}.png", content.getvalue())
    run = tmp_path / "run"
    printed = example("dalle_emoji", "--smoke", "--data-dir", folder, "--run-dir", run)
    assert "15 pictures, captions of up to" in printed
    figures = json.loads(printed[printed.index("{") : printed.index("}") + 1])
    names = {"best sample", "training picture chosen by CLIP", "discrete VAE"}
    assert set(figures) == names
    assert_drawn(run, "samples")


def test_held_out_pairs(example_module):
    script = example_module("dalle_shapes")
    shapes = script.new_shapes(0)
    known, new = script.split_kinds(shapes)
    assert (len(known), len(new)) == (36, 12)
    assert not {kind[1:] for kind in known} & {kind[1:] for kind in new}
    for part in range(3):
        assert {kind[part] for kind in known} == {kind[part] for kind in known + new}
    pictures = script.draw(shapes, 5, 4)
    for number in range(4):
        example = shapes.example(5 + number)
        assert pictures.captions[number] == example.caption
        assert example.caption == f"a {' '.join(pictures.kinds[number])}"
        mask = example.masks[0]
        image = pictures.images[number]
        np.testing.assert_array_equal(image[mask], example.image[mask])
        np.testing.assert_allclose(image[~mask].mean(0), 120, atol=0.5)


def test_the_best_of_each_few(example_module):
    nearer_than_others = example_module("dalle_emoji").nearer_than_others
    best_of = example_module("dalle_shapes").best_of
    scores = [3, 1, 4, 1, 5, 9]
    assert best_of(scores, 1).tolist() == [0, 1, 2, 3, 4, 5]
    assert best_of(scores, 3).tolist() == [2, 5]
    assert best_of(scores, 6).tolist() == [5]
    truths = np.arange(3.0).reshape(3, 1, 1, 1) * np.ones((1, 2, 2, 3))
    assert nearer_than_others(truths, truths) == 1
    # The last image is like the first picture: of four other pairs all are nearer.
    images = truths[[0, 1, 0]]
    assert nearer_than_others(images, truths) == pytest.approx(4 / 6)
