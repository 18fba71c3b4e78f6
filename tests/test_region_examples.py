"""The examples of ViLBERT and VLN-BERT, with the regions of a tiny detector."""

import contextlib
import io
import json
import re
from types import SimpleNamespace

import pytest
from conftest import EXAMPLES
from walk_cases import write_r2r

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def r2r(tmp_path_factory):
    folder = tmp_path_factory.mktemp("r2r")
    for split in ("train", "val_seen", "val_unseen"):
        write_r2r(folder, split=split)
    return folder


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    """Options of a run with a tiny detector, which is trained here."""
    folder, printed = tmp_path_factory.mktemp("detector"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        from shape_regions import (  # pyright: ignore[reportMissingImports]
            TINY_DETECTOR,
            trained_detector,
        )

        arguments = SimpleNamespace(seed=0, detector_dir=folder, **TINY_DETECTOR)
        with contextlib.redirect_stdout(printed):
            trained_detector(arguments)
    assert re.search(r"mAP@0\.5 [01]\.\d{3}, \d+ s", printed.getvalue())
    return "--smoke", "--detector-dir", folder


# `test_ranking` trains a ViLBERT by the same functions.
@pytest.mark.variation
# The encoder of a task has no head, and a BERT knows no regions.
@pytest.mark.filterwarnings("ignore:The checkpoint has no weights for:UserWarning")
@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables:UserWarning")
def test_vilbert_shapes(example, detector, tmp_path):
    printed = example("vilbert_shapes", *detector, "--run-dir", tmp_path)
    figures = r" \| ".join(2 * [r"[01]\.\d{3} ± 0\.000"])
    table = re.findall(rf"^\| (\w+) \| (\w+) \| {figures} \|$", printed, re.M)
    assert table == [("questions", "bert_captions"), ("phrases", "bert_captions")]
    # A finished run is in a file.
    assert len(list(tmp_path.glob("*_bert_captions_0.json"))) == 2


# `test_ranking` and `test_paths` train a ViLBERT in the same worlds.
@pytest.mark.variation
def test_captions(example, detector, tmp_path):
    printed = example("vln_bert_captions", *detector, "--run-dir", tmp_path)
    assert "captions told from other captions: " in printed
    assert (tmp_path / "captions.weights.h5").is_file()


@pytest.mark.variation
def test_paths(example, r2r, tmp_path):
    options = ("--smoke", "--world", "ways", "--data-dir", r2r, "--run-dir", tmp_path)
    printed = example("vln_bert_paths", *options)
    for name in ("seen", "unseen"):
        assert f"{name} buildings: loss" in printed
    assert (tmp_path / "paths.weights.h5").is_file()


@pytest.mark.variation
@pytest.mark.parametrize(
    ("world", "start"), [("ways", "none"), ("pictures", "captions")]
)
def test_ranking(example, r2r, detector, tmp_path, world, start):
    options = ("--world", world, "--starts", start, "--data-dir", r2r)
    printed = example("vln_bert_rank", *detector, *options, "--run-dir", tmp_path)
    results = json.loads((tmp_path / f"{world}.json").read_text("utf-8"))
    assert set(results) == {"seen", "unseen"}
    before = {"ways": "follower + ", "pictures": "4 instructions, "}[world]
    label = f"{before}VLN-BERT, start: {start}"
    for runs in results.values():
        ((success, error),) = runs[label]
        assert 0 <= success <= 1 and error >= 0
    assert printed.count(label) >= 2


def test_a_start_of_the_other_world(example, r2r, tmp_path, capsys):
    options = ("--world", "ways", "--starts", "captions", "--data-dir", r2r)
    with pytest.raises(SystemExit):
        example("vln_bert_rank", *options, "--run-dir", tmp_path)
    assert "--starts in ways must be of none, masked" in capsys.readouterr().err
