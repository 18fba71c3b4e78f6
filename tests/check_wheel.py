"""Builds what is released, looks inside, and uses it from outside the checkout.

The wheel is built from the archive of sources, as an installer may do it, and must hold
what one from the checkout holds.

A wheel that installed a top-level `models` or `export` would shadow half of other
people's projects; one without them would still pass every test in the checkout.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parent.parent

SMOKE = """
import keras_attn
from keras_attn import decoding, models

assert keras_attn.__file__.startswith({site!r}), keras_attn.__file__
assert models.__file__.startswith({site!r}), models.__file__
model = models.create(
    "rnnsearch_50", source_vocabulary_size=11, target_vocabulary_size=13,
    embedding_dim=5, hidden_dim=7, attention_dim=3, maxout_dim=2,
)
inputs = {{"token_ids": [[4, 5, 6]]}}
answer = decoding.generate(model, inputs, 3, start_token_id=1)
assert answer.token_ids.shape == (1, 3)
assert models.count_parameters("seq2seq_sutskever") == 384_112_000
from keras_attn.export import export, load_runner
export(model, "pair")
assert set(load_runner("pair").signatures) >= {{"prefill", "step"}}
print("1 passed, 0 failed")
"""


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder).resolve()
        run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
        (wheel,) = folder.glob("*.whl")
        (sources,) = folder.glob("*.tar.gz")
        check_sources(sources)
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            (metadata,) = (n for n in names if n.endswith(".dist-info/METADATA"))
            check_metadata(archive.read(metadata))
        tops = {name.split("/")[0] for name in names}
        assert {top for top in tops if not top.endswith(".dist-info")} == {"keras_attn"}
        for needed in ("models/rnnsearch.py", "export/runner.py", "py.typed"):
            assert f"keras_attn/{needed}" in names, f"{needed} is not in the wheel"
        modules = {name for name in names if name.endswith(".py")}
        assert modules == modules_of_the_checkout(), "another wheel than the checkout's"

        site, elsewhere = folder / "site", folder / "elsewhere"
        elsewhere.mkdir()
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        run(*pip, "--target", site, wheel)
        run(
            *(sys.executable, "-c", SMOKE.format(site=str(site))),
            cwd=elsewhere,
            env={**os.environ, "PYTHONPATH": str(site)},
        )


def check_sources(path):
    """The archive of sources has what is built and what belongs to it, and no tests."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "setup.py"):
        assert needed in names, f"{needed} is not in the archive of sources"
    left_out = {"tests", "docs", "examples", ".ci", ".github"}
    assert not {name.split("/")[0] for name in names} & left_out


def check_metadata(content):
    """The metadata follow their standard, which indexes require, and our settings."""
    metadata = Metadata.from_email(content, validate=True)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert str(metadata.version) == settings["project"]["version"]
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.description_content_type == "text/markdown"
    description = metadata.description or ""
    assert description.startswith("# keras_attn")
    address = settings["tool"]["keras-attn"]["repository"]
    links = metadata.project_urls or {}
    assert links.get("Source", "") == address
    assert not address or "](docs/" not in description


def modules_of_the_checkout():
    """The modules of our packages, by their names in the wheel."""
    folders = {"keras_attn": ROOT / "keras_attn"}
    folders |= {f"keras_attn/{name}": ROOT / name for name in ("models", "export")}
    return {
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in folders.items()
        for path in folder.rglob("*.py")
    }


def run(*command, **options):
    subprocess.run([str(part) for part in command], check=True, **options)


if __name__ == "__main__":
    main()
