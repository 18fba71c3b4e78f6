"""The stages of VLN-BERT run from the command line, on a made-up building."""

import json

import pytest
from walk_cases import write_r2r

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def r2r(tmp_path_factory):
    folder = tmp_path_factory.mktemp("r2r")
    for split in ("train", "val_seen", "val_unseen"):
        write_r2r(folder, split=split)
    return folder


def test_captions(example, tmp_path):
    printed = example("vln_bert_captions", "--smoke", "--run-dir", tmp_path)
    assert "captions told from other captions: " in printed
    assert (tmp_path / "captions.weights.h5").is_file()


def test_paths(example, r2r, tmp_path):
    options = ("--smoke", "--world", "ways", "--data-dir", r2r, "--run-dir", tmp_path)
    printed = example("vln_bert_paths", *options)
    for name in ("seen", "unseen"):
        assert f"{name} buildings: loss" in printed
    assert (tmp_path / "paths.weights.h5").is_file()


@pytest.mark.parametrize("world", ["ways", "pictures"])
def test_ranking(example, r2r, tmp_path, world):
    options = ("--smoke", "--world", world, "--data-dir", r2r, "--run-dir", tmp_path)
    printed = example("vln_bert_rank", *options)
    results = json.loads((tmp_path / f"{world}.json").read_text("utf-8"))
    assert set(results) == {"seen", "unseen"}
    start = {"ways": "follower + VLN-BERT, start: none"}
    start["pictures"] = "4 instructions, VLN-BERT, start: captions"
    for runs in results.values():
        ((success, error),) = runs[start[world]]
        assert 0 <= success <= 1 and error >= 0
    assert printed.count(start[world]) >= 2
