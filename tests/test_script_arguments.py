"""The command lines of training scripts."""

import re
import sys
from pathlib import Path

import pytest
from processes import run_python

from keras_attn import script_arguments


def parsed(monkeypatch, *line):
    monkeypatch.setattr(sys, "argv", ["script.py", *line])
    parser = script_arguments.new_parser("Trains.\n\nMore.", "runs/mine")
    script_arguments.add_data_dir(parser, "mine", "images.npy")
    script_arguments.add_image_counts(parser, images=50, held_out=7)
    script_arguments.add_training_options(
        parser, epochs=8, batch_size=32, learning_rate=1e-3
    )
    return script_arguments.parse(parser, epochs=1, width=2)


def test_defaults_and_given_values(monkeypatch):
    monkeypatch.setenv("KERAS_ATTN_DATA", "/data")
    found = parsed(monkeypatch, "--seed", "3")
    assert vars(found) == {
        **{"run_dir": Path("runs/mine"), "data_dir": Path("/data/mine")},
        **{"images": 50, "held_out": 7, "epochs": 8, "batch_size": 32},
        **{"learning_rate": 1e-3, "seed": 3, "smoke": False},
    }
    assert script_arguments.selected(found, "epochs", "seed") == {
        "epochs": 8,
        "seed": 3,
    }
    monkeypatch.delenv("KERAS_ATTN_DATA")
    assert script_arguments.data_folder("mine") == Path("mine")


def test_a_smoke_test_is_tiny(monkeypatch):
    found = parsed(monkeypatch, "--smoke", "--epochs", "5")
    assert (found.epochs, found.width, found.smoke) == (1, 2, True)


def test_a_full_run_does_not_take_up_a_smoke_test(monkeypatch):
    assert parsed(monkeypatch, "--smoke").run_dir == Path("runs/mine-smoke")
    given = parsed(monkeypatch, "--smoke", "--run-dir", "runs/other")
    assert given.run_dir == Path("runs/other")


def test_what_another_script_writes_is_named(tmp_path):
    assert script_arguments.written_by("first.py", tmp_path) == tmp_path
    with pytest.raises(SystemExit, match=r"model.keras does not exist: run first.py"):
        script_arguments.written_by("first.py", tmp_path / "model.keras")


def test_the_help_has_the_first_line_and_all_defaults(monkeypatch, capsys):
    monkeypatch.setenv("KERAS_ATTN_DATA", "/data")
    with pytest.raises(SystemExit):
        parsed(monkeypatch, "--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "Trains. " in shown and "More." not in shown
    for text in ("runs/mine", "/data/mine", "in $KERAS_ATTN_DATA", "default: 0.001"):
        assert text in shown


def test_provenance(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["examples/some.py", "--run-dir", "my runs"])
    found = script_arguments.provenance()
    assert found["command"] == "python examples/some.py --run-dir 'my runs'"
    assert re.fullmatch(r"\d+ × .*\w.*", found["cpu"])
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", found["date"])


def test_missing_folders_are_named(tmp_path):
    (tmp_path / "train").mkdir()
    assert script_arguments.check_folders(tmp_path, "train") == [tmp_path / "train"]
    with pytest.raises(SystemExit, match="must have the folders train, val. Pass --da"):
        script_arguments.check_folders(tmp_path, "train", "val")


def test_a_missing_checkpoint_is_named(monkeypatch):
    monkeypatch.setattr(script_arguments, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="or pass --checkpoint"):
        script_arguments.minilm_folder("--checkpoint")


def test_it_is_imported_before_tensorflow(monkeypatch):
    """What it sets is read when TensorFlow is imported."""
    code = (
        "import os, sys\n"
        "from keras_attn import script_arguments\n"
        "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules\n"
        "print(os.environ['TF_ENABLE_ONEDNN_OPTS'])"
    )
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    assert run_python("-c", code).strip() == "1"
    assert run_python("-c", code, TF_ENABLE_ONEDNN_OPTS="0").strip() == "0"


def test_an_example_is_one_file():
    folder = Path(__file__).resolve().parent.parent / "examples"
    names = {path.stem for path in folder.glob("*.py")}
    assert len(names) > 20
    for path in folder.glob("*.py"):
        text = path.read_text("utf-8")
        for name in names:
            assert f"\nimport {name}\n" not in text, path
            assert f"\nfrom {name} import" not in text, path
