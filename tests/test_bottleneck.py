"""The example of the bottleneck runs from the command line, with small sizes."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import assert_drawn

from keras_attn.data import make_dates


def test_a_copy_has_all_digits_and_an_end(example_module):
    example = example_module("bottleneck")
    rng = np.random.default_rng(0)
    inputs, labels, weights = example.copy_examples([2, 5], 5, rng)
    assert labels.shape == weights.shape == (2, 6)
    for row, length in enumerate((2, 5)):
        digits = inputs["token_ids"][row, :length]
        assert (digits >= example.ZERO).all()
        np.testing.assert_array_equal(labels[row, :length], digits)
        assert labels[row, length] == example.END
        np.testing.assert_array_equal(weights[row], np.arange(6) <= length)
        shifted = [example.START, *inputs["token_ids"][row]]
        np.testing.assert_array_equal(inputs["decoder_token_ids"][row], shifted)
        mask = inputs["padding_mask"][row]
        np.testing.assert_array_equal(mask, np.arange(5) < length)


def stored(trained, chance, *curves):
    return {
        "lengths": [4, 8, 16],
        "trained_length": trained,
        "chance": chance,
        "models": {f"model {n}": {"scores": rows} for n, rows in enumerate(curves)},
    }


def test_the_text_under_the_picture_follows_from_the_figures(example_module):
    findings = example_module("bottleneck").findings
    good, bad = [[100, 90, 80], [100, 98, 84]], [[90, 60, 20]]
    assert findings(stored(8, 10.0, good, bad)) == (
        "At length 8: model 0 94; model 1 60. At length 16: model 0 82; model 1 20. "
        "Guessing: 10."
    )
    assert findings(stored(16, None, bad)) == "At length 16: model 0 20."
    assert findings(stored(2, None, bad)).startswith("At length 4: model 0 90. At le")


def test_figures_are_kept_until_the_settings_change(example_module, tmp_path, capsys):
    example = example_module("bottleneck")
    settings = dict.fromkeys(example.SETTINGS, 1)
    trained = []

    def train(name, options, rate, seed, folder):
        # A translator that is trained goes on from its backup.
        assert not (folder / "backup").exists()
        (folder / "backup").mkdir()
        trained.append((name, rate, seed))
        return SimpleNamespace(count_params=lambda: 7)

    arguments = SimpleNamespace(task="copy", run_dir=tmp_path, **settings)
    task = SimpleNamespace(
        arguments=arguments, train=train, scores=lambda model: [12.345, 7]
    )
    run = ("A model", "some_name", {}, 1e-3, 5, "scores")
    found = example.measured_run(task, *run)
    assert found["score"] == [12.34, 7] and found["parameters"] == 7
    assert example.measured_run(task, *run) == found
    assert trained == [("some_name", 1e-3, 5)]
    assert capsys.readouterr().out.count("A model, rate 0.001, seed 5: scores [12") == 1
    arguments.steps = 2
    example.measured_run(task, *run)
    assert len(trained) == 2


def test_the_best_of_the_learning_rates_is_used(example_module, monkeypatch):
    example = example_module("bottleneck")
    tried, tuning_seeds = {"0.01": 20.0, "0.02": 30.0, "0.03": 10.0}, set()

    def measured_run(task, label, name, options, rate, seed, key):
        score: Any = [rate, seed]
        if key == "tuning_score":
            tuning_seeds.add(seed)
            score = tried[f"{rate:g}"]
        return {"parameters": 7, "cpu_seconds": 1, "score": score}

    monkeypatch.setattr(example, "measured_run", measured_run)
    line = ["bottleneck.py", "--learning-rates", *tried, "--seeds", "2", "--seed", "5"]
    monkeypatch.setattr(sys, "argv", line)
    results = example.measure(example.parse_arguments())
    assert results["seeds"] == [5, 6] and tuning_seeds == {7}
    for model in results["models"].values():
        assert model["tried"] == tried and model["learning_rate"] == 0.02
        assert model["scores"] == [[0.02, 5], [0.02, 6]]


def test_four_kinds_of_positions_are_compared(example_module):
    example = example_module("bottleneck")
    compared = example.compared_models(
        SimpleNamespace(compare="positions", hidden_dim=8)
    )
    found = {}
    for label, (name, options) in compared.items():
        model = example.create(name, options, 13, 9)
        is_joined = any(layer.name == "position_projection" for layer in model.layers)
        found[label] = (model.max_length, is_joined)
    assert found == {
        "sinusoidal, added": (None, False),
        "sinusoidal, concatenated": (None, True),
        "learned, added": (9, False),
        "learned, concatenated": (9, True),
    }


@pytest.mark.runs
def test_copy(example, tmp_path):
    printed = example("bottleneck", "--smoke", "--run-dir", tmp_path)
    names = ["RNNsearch (attention)", "RNNencdec (fixed context)"]
    assert printed.count(": scores ") == len(names)
    assert_drawn(tmp_path, "scores_by_length")
    results = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert list(results["models"]) == names
    assert results["lengths"] == [2, 4, 6] and results["trained_length"] == 4
    assert "--smoke" in results["command"] and results["cpu"] and results["date"]
    for model in results["models"].values():
        assert np.shape(model["scores"]) == (1, 3) and not model["tried"]
        assert 0 <= np.min(model["scores"]) <= np.max(model["scores"]) <= 100
    # The results can be drawn alone.
    other = tmp_path / "drawn"
    stored = ("--results", tmp_path / "results.json", "--run-dir", other)
    assert "| length |" in example("bottleneck", *stored)
    assert_drawn(other, "scores_by_length")
    with pytest.raises(SystemExit, match="--lengths needs two"):
        example("bottleneck", "--lengths", 3, "--run-dir", other)


@pytest.mark.runs
@pytest.mark.variation
def test_translate(example, tmp_path):
    for package in ("tokenizers", "tensorflow_text", "sacrebleu"):
        pytest.importorskip(package, reason="an extra is not installed")
    data = tmp_path / "data"
    data.mkdir()
    sources, targets = zip(*make_dates(80, seed=3), strict=True)
    for split in ("train", "val"):
        (data / f"{split}.en").write_text("\n".join(sources) + "\n")
        (data / f"{split}.de").write_text("\n".join(targets) + "\n")
    run = tmp_path / "run"
    options = ("--smoke", "--task", "translate", "--data-dir", data, "--run-dir", run)
    printed = example("bottleneck", *options)
    assert "BLEU, decoded greedily" in printed
    assert_drawn(run, "scores_by_length")
    results = json.loads((run / "results.json").read_text("utf-8"))
    assert results["chance"] is None and len(results["lengths"]) >= 2
