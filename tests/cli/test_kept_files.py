"""Files of the user that a command must not replace, and none that are half written."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keras_attn.cli.prediction.pictures import predict_masks
from keras_attn.cli.runs import claim
from keras_attn.training.history_file import HistoryFile


@pytest.fixture
def table(tmp_path):
    rows = "".join(f"good film {n},{'ab'[n % 2]}\n" for n in range(8))
    (tmp_path / "a.csv").write_text(f"text,label\n{rows}")
    return tmp_path / "a.csv"


@pytest.mark.parametrize(
    "name", ["README.md", "vocab.txt", "model.safetensors", "adapters"]
)
def test_a_new_run_replaces_no_file(command, bert, table, tmp_path, name):
    """`finetune --run-dir .` replaced the README.md of a project by its card."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / name).write_text("mine")
    line = command.refuses("finetune", bert, table, "--run-dir", folder, "--plan")
    assert "--run-dir must be a new folder" in line and f"with {name}" in line
    assert (folder / name).read_text() == "mine"


@pytest.mark.parametrize("name", ["backup", "history.csv", "logs", "model.keras"])
def test_a_new_run_goes_on_with_no_other(tmp_path, name):
    """A backup or curves without settings are of another run."""
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=f"must be a new folder .* with {name}"):
        claim(tmp_path, {"command": "train"})
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_settings_that_are_damaged_are_named(tmp_path):
    path = tmp_path / "settings.json"
    for content in ("{", "[]"):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"settings.json must .* Received: .*json"):
            claim(tmp_path, {"command": "train"})


def test_a_file_that_is_no_history_is_kept(tmp_path):
    path = tmp_path / "history.csv"
    for content in ("a,b\n1,2\n", "epoch\none\n", "epoch,b\n,2\n"):
        path.write_text(content)
        with pytest.raises(ValueError, match="history.csv must be a history of train"):
            HistoryFile(path).on_train_begin()
        assert path.read_text() == content


def test_predictions_do_not_replace_what_they_are_of(command, bert, table):
    before = table.read_bytes()
    other = table.parent / "." / table.name
    line = command.refuses("predict", bert, table, "--output", other)
    assert "--output must be another file than INPUT" in line
    assert table.read_bytes() == before


def test_masks_and_pictures_of_one_folder(tmp_path):
    """The pictures had the names of the masks, and replaced them."""
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "a.png")
    network: Any = SimpleNamespace(result=SimpleNamespace(class_names=["a"]))
    out = tmp_path / "out"
    rows = predict_masks(network, [str(tmp_path / "a.png")], folder=out, drawn=out)
    with pytest.raises(ValueError, match="--masks and --save-images must be different"):
        next(rows)


def test_a_later_evaluation_leaves_nothing_of_an_earlier_one(tmp_path):
    from keras_attn.cli.evaluate import _save
    from keras_attn.cli.prediction.scores import Evaluation

    (tmp_path / "worst_1_mine.png").write_text("mine")
    counts = np.eye(2, dtype=int)
    first = Evaluation("a", "8 texts", {}, ["a", "b"], counts, [{"text": "x"}])
    _save(first, tmp_path)
    assert (tmp_path / "worst.csv").exists() and (tmp_path / "confusion.csv").exists()
    assert (tmp_path / "worst_1_mine.png").exists()
    _save(Evaluation("b", "8 pairs", {}, [], None, []), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["scores.json"]
    assert json.loads((tmp_path / "scores.json").read_text())["task"] == "b"
