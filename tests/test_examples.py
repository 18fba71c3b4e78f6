"""The examples run, small, from the command line that a reader would type."""

import runpy
import sys
from pathlib import Path

import pytest

from keras_attn.data import make_dates

pytest.importorskip("tokenizers", reason="the extra `text` is not installed")
pytest.importorskip("sacrebleu", reason="the extra `eval` is not installed")

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def test_translate_rnnsearch(tmp_path, monkeypatch, capsys):
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    sources, targets = zip(*make_dates(40, seed=3), strict=True)
    for split in ("train", "val"):
        (data / f"{split}.en").write_text("\n".join(sources) + "\n")
        (data / f"{split}.de").write_text("\n".join(targets) + "\n")
    sizes = "--epochs 1 --batch-size 16 --hidden-dim 8 --embedding-dim 5"
    options = f"--data-dir {data} --run-dir {run} {sizes} --vocabulary-size 97"
    script = str(EXAMPLES / "translate_rnnsearch.py")
    monkeypatch.setattr(sys, "argv", [script, *options.split()])
    runpy.run_path(script, run_name="__main__")
    assert (run / "alignment.png").stat().st_size > 1000
    assert (run / "model.keras").is_file()
    printed = capsys.readouterr().out
    assert "Greedy(): BLEU" in printed
    assert "Beam(num_beams=4" in printed
