"""`benchmarks/shipping.py`: a published size exports within limited memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "shipping.py"


@pytest.mark.shipped
def test_vit_base_to_onnx_takes_less_than_3_gb(tmp_path):
    """With its weights as constants it took 17.5 GB and three minutes."""
    rows = tmp_path / "rows.json"
    command = [sys.executable, BENCHMARK, "--models", "vit_base_patch16"]
    command += ["--formats", "onnx", "--rows", rows]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    [row] = json.loads(rows.read_text())
    assert "error" not in row, row
    assert row["max_abs_diff"] <= 1e-4
    assert row["peak_bytes"] < 3e9
    assert row["bytes"] < 1.05 * 4 * row["parameters"]
    # Finished rows are not run again.
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout == finished.stdout
    assert again.stderr == ""


@pytest.mark.shipped
def test_failed_row_shows_its_error(tmp_path, printed):
    options = ["--formats", "saved_model", "--rows", tmp_path / "rows.json"]
    names = ("bert_baze", "bert_tiny")
    *_, failed, shipped = printed(BENCHMARK, "--models", *names, *options)
    assert "| bert_baze | saved_model |" in failed and "did you mean" in failed
    assert "| bert_tiny | saved_model |" in shipped and "Error" not in shipped
