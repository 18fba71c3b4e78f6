"""The example of navigation runs from the command line, on a made-up building."""

import json
import re

import pytest
from walk_cases import write_r2r

pytestmark = pytest.mark.runs


# The guide to navigation uses the same model and functions.
@pytest.mark.variation
def test_walk_buildings(example, tmp_path):
    folder, run = tmp_path / "r2r", tmp_path / "run"
    for split in ("train", "val_seen", "val_unseen"):
        write_r2r(folder, split=split)
    options = ("--smoke", "--data-dir", folder, "--run-dir", run)
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
