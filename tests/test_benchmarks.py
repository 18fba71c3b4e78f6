"""Every script of the benchmarks starts, and our models of two rows run."""

import argparse
import subprocess
import sys
from pathlib import Path

import keras
import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(
    path.name for path in FOLDER.glob("*.py") if "__main__" in path.read_text()
)

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def dense():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("the benchmarks need the TensorFlow backend")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        import dense  # pyright: ignore[reportMissingImports]

        yield dense


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_benchmark_starts(script):
    command = [sys.executable, str(FOLDER / script), "--help"]
    printed = subprocess.run(command, capture_output=True, check=True, text=True)
    assert "usage:" in printed.stdout


def test_our_models_of_dense_rows_run_at_a_small_size(dense):
    """The shapes of TensorFlow that it passes on are what users have at hand."""
    arguments = argparse.Namespace(small=True, folder=None)
    for row in ("unet forward, batch 1", "mask_rcnn_resnet50 forward"):
        dense.Dense(arguments).call("ours", row)()
