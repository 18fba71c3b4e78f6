"""The examples of navigation, and of ViLBERT and VLN-BERT with a tiny detector."""

import contextlib
import io
import json
import re
import runpy
import sys

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
    script = str(EXAMPLES / "shape_detector.py")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [script, "--smoke", "--run-dir", str(folder)])
        runpy.run_path(script, run_name="__main__")
    assert re.search(r"mAP@0\.5 [01]\.\d{3}, \d+ s", printed.getvalue())
    return "--smoke", "--detector", folder / "model.keras"


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


# `test_ranking` trains a VLN-BERT in the same world.
@pytest.mark.variation
def test_masked_paths(example, r2r, tmp_path):
    options = ("--smoke", "--world", "ways", "--data-dir", r2r, "--run-dir", tmp_path)
    printed = example("vln_bert_rank", *options, "--masked-epochs", 1)
    for name in ("seen", "unseen"):
        assert f"{name} buildings: loss" in printed


@pytest.mark.variation
@pytest.mark.parametrize(
    ("world", "start"), [("ways", "none"), ("pictures", "captions")]
)
def test_ranking(example, r2r, detector, tmp_path, world, start):
    folder, run = tmp_path / "before", tmp_path / "run"
    if world == "ways":
        options = ("--worlds", "look_ahead", "--data-dir", r2r, "--run-dir", folder)
        example("walk_buildings", "--smoke", *options)
        before, option = "follower + ", "--followers"
    else:
        printed = example("vln_bert_captions", *detector, "--run-dir", folder)
        assert "captions told from other captions: " in printed
        before, option = "4 instructions, ", "--captions"
    options = ("--world", world, "--starts", start, "--data-dir", r2r, option, folder)
    printed = example("vln_bert_rank", *detector, *options, "--run-dir", run)
    results = json.loads((run / f"{world}.json").read_text("utf-8"))
    assert set(results) == {"seen", "unseen"}
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


# The guide to navigation uses the same model and functions.
@pytest.mark.variation
def test_walk_buildings(example, r2r, tmp_path):
    run = tmp_path
    options = ("--smoke", "--data-dir", r2r, "--run-dir", run)
    printed = example("walk_buildings", *options)
    assert "train: 4 instructions, 1 buildings" in printed
    assert "unseen: 4 instructions" in printed
    line = r"success +[\d.]+ %  SPL +[\d.]+ %  error +[\d.]+ m"
    for kind in ("random walk", "standing still"):
        assert len(re.findall(rf"^{kind} +{line}", printed, re.M)) == 2
    for world in ("odometry", "look_ahead"):
        for kind in ("attention", "mean"):
            runs = r"success +[\d.]+ ± [\d.]+ %  SPL +[\d.]+ ± [\d.]+ %  error "
            assert len(re.findall(rf"^{world}, {kind} +{runs}", printed, re.M)) == 2
            for seed in (0, 1):
                folder = run / f"{world}_{kind}_{seed}"
                assert (folder / "model.keras").is_file()
                assert list(folder.glob("**/events*"))
        beam = rf"^{world}, attention, 2 models, beam of 4 +{line}"
        assert len(re.findall(beam, printed, re.M)) == 2
    assert (run / "walk.png").stat().st_size > 1000
    scores = json.loads((run / "scores.json").read_text("utf-8"))
    seeds = scores["seen, look_ahead, attention"]
    assert len(seeds) == 2 and set(seeds[0]) > {"success", "spl"}
