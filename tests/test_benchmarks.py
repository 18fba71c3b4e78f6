"""Every benchmark runs at a small size: one row with all contestants, and ours of all.

What is printed says which contestants are skipped, and why.
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

import keras
import pytest
from processes import run_python

from keras_attn import models
from keras_attn.models.parts.keras_state import without_allocating

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = {
    path.name for path in FOLDER.glob("*.py") if "__main__" in path.read_text("utf-8")
}
# Script to its arguments.
RUNS = {
    "attend.py": ["--row", "listen_attend_spell, 8 x 1000 frames"],
    "attention.py": [],
    "checkouts.py": [str(FOLDER.parent), str(FOLDER.parent), "--row", "bert forward"],
    "continuous.py": ["--prompts", "5", "--batch", "2"],
    "dense.py": ["--row", "unet training, batch 1"],
    "distributed.py": [],
    "edge.py": [],
    "feedback.py": ["--row", "rloo"],
    "finetune.py": ["--only", "lora_8"],
    "gpu.py": ["--row", "causal 8 training", "lora", "--dtype", "float32"],
    "lean.py": ["--only", "blocks", "keras"],
    "multimodal.py": ["--row", "clip loss"],
    "quantized.py": [],
    "shipping.py": ["--models", "vit_base_patch16", "--formats", "saved_model"],
    "speculation.py": [],
    "steps.py": [],
    "text.py": ["--row", "gpt2 forward"],
    "tpu.py": ["--topologies", "v5e:1x1"],
    "vision.py": ["--row", "vit training"],
}
VARIATION = pytest.mark.variation
DENSE_ROWS = ("unet forward, batch 1", "mask_rcnn_resnet50 forward")

pytestmark = [
    pytest.mark.runs,
    pytest.mark.skipif(
        keras.backend.backend() != "tensorflow",
        reason="the benchmarks need the TensorFlow backend",
    ),
]


@pytest.fixture
def module(monkeypatch):
    """Imports a benchmark."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def run(script, *arguments):
    """What a benchmark prints."""
    rounds = [] if script in ("shipping.py", "tpu.py") else ["--rounds", "1"]
    command = [FOLDER / script, "--small", *rounds, *arguments]
    # Where `make install` puts it, beside the other packages.
    library = str(Path(sys.prefix, "libtpu", "libtpu", "libtpu.so"))
    library = os.environ.get("TPU_LIBRARY_PATH", library)
    return run_python(*command, TPU_LIBRARY_PATH=library)


def test_every_benchmark_is_run():
    assert set(RUNS) == SCRIPTS


@pytest.mark.parametrize(
    "script",
    # All start processes and time calls by the same two files.
    [x if x == "text.py" else pytest.param(x, marks=VARIATION) for x in RUNS],
)
def test_a_row_runs_with_its_contestants(script):
    printed = run(script, *RUNS[script])
    _, _, row, *_ = [x for x in printed.splitlines() if not x.startswith("skipped: ")]
    assert "Error" not in row
    # A time, or a ratio.
    assert any(character.isdigit() for character in row.rpartition("|")[0] or row)


@pytest.mark.variation
@pytest.mark.parametrize("name", ["attend", "multimodal", "text", "vision"])
def test_our_models_of_all_rows_run(name, module):
    script = module(name)
    for row in script.ROWS:
        script.ours(row, script.SMALL)()


@pytest.mark.variation
def test_our_models_of_dense_rows_run(module):
    """The shapes of TensorFlow that it passes on are what users have at hand."""
    arguments = argparse.Namespace(small=True, folder=None)
    for row in DENSE_ROWS:
        module("dense").Dense(arguments).call("ours", row)()


def test_what_ships_of_models_of_images_and_texts(module):
    shipping = module("shipping")
    names = set(shipping.default_models())
    assert set(shipping.PARTS) <= names
    assert set(models.list_models()) - names >= shipping.IN_PARTS
    with without_allocating():
        counts = {x: shipping.new_model(x).count_params() for x in shipping.PARTS}
    towers = counts["clip_image_encoder"] + counts["clip_text_encoder"]
    temperature = updates = 1
    card = models.describe("clip_vit_base_patch32")
    assert towers + temperature == card.parameters
    halves = counts["dvae_encode"] + counts["dvae_decode"]
    assert halves + updates == models.count_parameters("dvae_dalle")


def test_a_contestant_whose_package_is_missing_is_skipped(module, capsys):
    needs = {"ours": (), "theirs": ("keras", "no_such_package")}
    assert module("interleaved").available(needs, "a row") == ["ours"]
    printed = capsys.readouterr().out
    assert printed == (
        "skipped: theirs in a row, because no_such_package is not installed\n"
    )
