"""The example of the bottleneck runs from the command line, with small sizes."""

import json

import numpy as np
import pytest
from conftest import assert_drawn

from keras_attn.data import make_dates


def test_a_copy_has_all_digits_and_an_end(example_module):
    example = example_module("bottleneck")
    task = example.Copying.__new__(example.Copying)
    rng = np.random.default_rng(0)
    inputs, labels, weights = task.examples([2, 5], 5, rng)
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


def stored(trained, *curves):
    return {
        "lengths": [4, 8, 16],
        "trained_length": trained,
        "models": {f"model {n}": {"scores": rows} for n, rows in enumerate(curves)},
    }


def test_the_text_under_the_picture_follows_from_the_figures(example_module):
    findings = example_module("bottleneck").findings
    good, bad = [[100, 90, 80], [100, 98, 84]], [[90, 60, 20]]
    assert findings(stored(8, good, bad)) == (
        "At length 8: model 0 94, model 1 60. At length 16: model 0 82, model 1 20. "
        "Beyond the trained length fails: model 1."
    )
    assert findings(stored(8, bad, bad)).endswith(
        "the trained length all of them fail."
    )
    assert findings(stored(8, good, good)).endswith(
        "At length 16: model 0 82, model 1 82."
    )
    assert findings(stored(16, bad)) == "At length 16: model 0 20."


@pytest.mark.runs
@pytest.mark.parametrize(
    "compare, names",
    [
        ("attention", ["RNNsearch (attention)", "RNNencdec (fixed context)"]),
        pytest.param(
            "positions",
            [
                *("sinusoidal, added", "sinusoidal, concatenated"),
                *("learned, added", "learned, concatenated"),
            ],
            marks=pytest.mark.variation,
        ),
    ],
)
def test_copy(example, tmp_path, compare, names):
    options = ("--smoke", "--compare", compare, "--run-dir", tmp_path)
    printed = example("bottleneck", *options)
    # Two rates are tried, and the better one is run with another seed.
    assert printed.count("tuning_score") == 2 * len(names)
    assert printed.count(": scores ") == len(names)
    assert_drawn(tmp_path, "scores_by_length")
    results = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert list(results["models"]) == names
    assert results["lengths"] == [2, 4, 6] and results["trained_length"] == 4
    assert "--smoke" in results["command"] and results["cpu"] and results["date"]
    for model in results["models"].values():
        assert np.shape(model["scores"]) == (1, 3) and len(model["tried"]) == 2
        best = max(model["tried"], key=lambda rate: model["tried"][rate])
        assert model["learning_rate"] == float(best)
        assert 0 <= np.min(model["scores"]) <= np.max(model["scores"]) <= 100
    if compare == "attention":
        # What is there is not trained again, and can be drawn alone.
        again = example("bottleneck", *options)
        assert "s of CPU" not in again and "| length |" in again
        other = tmp_path / "drawn"
        stored = ("--results", tmp_path / "results.json", "--run-dir", other)
        example("bottleneck", *stored)
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
