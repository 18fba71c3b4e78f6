"""The page of the lectures, its pictures and what makes them."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
from conftest import assert_drawn

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGE = (DOCS / "lectures.md").read_text("utf-8")
# Without the comments at their ends.
COMMANDS = {
    re.sub(r"\s+#.*", "", line)
    for block in re.findall(r"```shell\n(.*?)```", PAGE, re.S)
    for line in block.splitlines()
}


@pytest.fixture(scope="module")
def gallery():
    """The script, as a module."""
    found = importlib.util.spec_from_file_location("gallery", DOCS / "gallery.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["gallery"] = module  # For its dataclass.
    found.loader.exec_module(module)
    return module


def test_every_picture_is_there_and_can_be_made_again(gallery):
    shown = re.findall(r"!\[[^\]]{20,}\]\(images/(\w+\.(?:png|gif))\)", PAGE)
    assert PAGE.count("![") == len(shown)
    assert sorted(shown) == sorted(
        name + Path(picture.path).suffix for name, picture in gallery.PICTURES.items()
    )
    for name in shown:
        assert (DOCS / "images" / name).is_file(), name


def test_pictures_are_made_by_the_commands_of_the_page(gallery):
    for name, picture in gallery.PICTURES.items():
        results = re.search(r"--results (\S+)", picture.command)
        command = picture.command
        if results:
            command = json.loads((ROOT / results[1]).read_text("utf-8"))["command"]
        for each in (*picture.after, command):
            assert each in COMMANDS, (name, each)


def test_stored_results_say_where_they_are_from(gallery):
    commands = " ".join(picture.command for picture in gallery.PICTURES.values())
    for path in sorted((DOCS / "results").iterdir()):
        assert f"docs/results/{path.name}" in commands
        results = json.loads(path.read_text("utf-8"))
        assert results["command"].startswith("python examples/")
        assert results["cpu"] and results["seeds"]
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", results["date"])


def test_each_topic_has_a_command_and_tests_that_exist():
    topics = re.split(r"^## (\d+)\. ", PAGE, flags=re.M)[1:]
    assert [int(number) for number in topics[::2]] == [*range(1, 27)]
    for number, topic in zip(topics[::2], topics[1::2], strict=True):
        named = re.findall(r"`(tests/[\w/]+\.py)`", topic)
        assert named, number
        for path in named:
            assert (ROOT / path).is_file(), path
        examples = re.findall(r"python (examples/\w+\.py)", topic)
        assert examples or "keras-attn " in topic, number
        for path in examples:
            assert (ROOT / path).is_file(), path


def test_a_command_that_fails_is_named_and_its_old_picture_stays(
    gallery, tmp_path, monkeypatch, capsys
):
    picture = gallery.Picture("python missing.py", "x.png", 0.1)
    monkeypatch.setattr(gallery, "PICTURES", {"x": picture})
    (tmp_path / "x.png").write_text("old")
    monkeypatch.setattr(sys, "argv", ["gallery.py", "--output-dir", str(tmp_path)])
    with pytest.raises(SystemExit, match="error: not made: x"):
        gallery.main()
    printed = capsys.readouterr().out
    assert "[1/1] x: `python missing.py` failed: " in printed
    assert "No such file" in printed
    assert (tmp_path / "x.png").read_text() == "old"


def test_data_that_is_missing_is_named(gallery, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_ATTN_DATA", str(tmp_path))
    picture = gallery.Picture("python x.py", "x.png", 0.1, data="cifar10")
    assert "needs cifar10/" in gallery.make(picture, tmp_path, set())


def test_unknown_pictures_are_refused(gallery, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gallery.py", "it", "nothing"])
    with pytest.raises(SystemExit):
        gallery.main()
    assert "no such picture: nothing" in capsys.readouterr().err


@pytest.mark.runs
@pytest.mark.variation
def test_what_takes_seconds_is_made(gallery, tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["gallery.py", "--quick", "--output-dir", str(tmp_path)]
    )
    gallery.main()
    quick = [
        name
        for name, picture in gallery.PICTURES.items()
        if picture.minutes <= gallery.QUICK
    ]
    assert len(quick) > 5
    assert_drawn(tmp_path, *quick)
