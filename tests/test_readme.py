"""The README's example is run as it stands."""

import re
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    assert (tmp_path / "alignment.png").stat().st_size > 1000
    assert (tmp_path / "dates.tflite").is_file()
    printed = capsys.readouterr().out
    assert "litert" in printed
    # Two epochs are not enough for every date, but for its form they are.
    assert re.search(r"\['\d{4}-\d\d-\d\d'\]", printed.splitlines()[-1])
