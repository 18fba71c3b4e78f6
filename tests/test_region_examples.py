"""The examples of ViLBERT and VLN-BERT, with the regions of a tiny detector."""

import json
import re

import pytest
from walk_cases import write_r2r

from keras_attn import models

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def r2r(tmp_path_factory):
    folder = tmp_path_factory.mktemp("r2r")
    for split in ("train", "val_seen", "val_unseen"):
        write_r2r(folder, split=split)
    return folder


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    folder = tmp_path_factory.mktemp("detector")
    model = models.build_faster_rcnn(
        num_classes=48,
        image_size=(64, 64),
        num_blocks=(1, 1),
        stem_dim=4,
        num_frozen=0,
        pyramid_dim=8,
        head_dim=16,
        anchor_sizes=(8, 16, 32),
        num_proposals=10,
    )
    model.save(folder / "model.keras")
    return "--smoke", "--detector-dir", folder


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


def test_captions(example, detector, tmp_path):
    printed = example("vln_bert_captions", *detector, "--run-dir", tmp_path)
    assert "captions told from other captions: " in printed
    assert (tmp_path / "captions.weights.h5").is_file()


def test_paths(example, r2r, tmp_path):
    options = ("--smoke", "--world", "ways", "--data-dir", r2r, "--run-dir", tmp_path)
    printed = example("vln_bert_paths", *options)
    for name in ("seen", "unseen"):
        assert f"{name} buildings: loss" in printed
    assert (tmp_path / "paths.weights.h5").is_file()


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
