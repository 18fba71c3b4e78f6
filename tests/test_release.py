"""What a release says of itself is the same in each place."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

import keras_attn

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
CITATION = (ROOT / "CITATION.cff").read_text("utf-8")
ADDRESS = "https://example.org/owner/keras-attn"


def field(name):
    found = re.search(rf"^{name}: (\S+)$", CITATION, re.M)
    return found and found[1]


def test_the_version_is_the_same_everywhere():
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest = re.search(
        r"^## (\d\S*) - (?:not released yet|\d{4}-\d\d-\d\d)$", changelog, re.M
    )
    assert newest
    version = keras_attn.__version__
    assert SETTINGS["project"]["version"] == field("version") == version == newest[1]


def test_the_address_of_the_repository_is_the_same_or_nowhere():
    address = SETTINGS["tool"]["keras-attn"]["repository"]
    assert field("repository-code") == (address or None)
    assert not address.endswith("/")


@pytest.fixture(scope="module")
def setup():
    return runpy.run_path(str(ROOT / "setup.py"))


def test_links_of_the_package_follow_from_the_address(setup):
    assert setup["urls"]("") == {}
    urls = setup["urls"](ADDRESS)
    assert urls["Source"] == ADDRESS
    assert all(url.startswith(ADDRESS) for url in urls.values())


def test_links_of_the_readme_lead_to_files_of_the_version(setup):
    readme = (ROOT / "README.md").read_text("utf-8")
    assert setup["description"](readme, "", "0.1.0") == readme
    text = setup["description"](readme, ADDRESS, "0.1.0")
    assert f"]({ADDRESS}/raw/v0.1.0/docs/images/" in text
    assert f"]({ADDRESS}/blob/v0.1.0/docs/start.md)" in text
    for target in re.findall(r"\]\(([^)\s#]+)", text):
        found = re.fullmatch(rf"{ADDRESS}/(?:raw|blob)/v0.1.0/(.+)", target)
        assert found is None or (ROOT / found[1]).is_file(), target
        assert found or ":" in target, target
    other = "[a](#b) [c](https://d.org/e) ![f](g.png)"
    assert setup["description"](other, ADDRESS, "2") == (
        f"[a](#b) [c](https://d.org/e) ![f]({ADDRESS}/raw/v2/g.png)"
    )


def test_the_files_of_a_released_version_are_kept():
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    released = re.findall(r"^## (\d\S*) - \d{4}-\d\d-\d\d$", changelog, re.M)
    kept = {path.stem for path in (ROOT / "tests/released").glob("*.zip")}
    assert kept and {*released} <= kept
