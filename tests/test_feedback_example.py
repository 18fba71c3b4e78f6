"""The example of learning from rewards runs in pieces, with tiny sizes."""

import json

import pytest
import tensorflow as tf

from keras_attn.data import make_dates

pytest.importorskip("tokenizers", reason="the extra `text` is not installed")
pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")

pytestmark = pytest.mark.runs


# `tf.data` stays a graph.
@pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run_f")
@pytest.mark.variation
def test_reviews_feedback(example, tmp_path):
    for split in ("train", "dev"):
        dates = [words for words, _ in make_dates(80, seed=3)]
        lines = [f"{index % 2} {text}" for index, text in enumerate(dates)]
        path = tmp_path / f"stsa.binary.{split}"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    run = tmp_path / "run"
    options = ("--small", "--data-dir", tmp_path, "--run-dir", run, "--seeds", 0)
    try:
        printed = example(
            "reviews_feedback", *options, "--methods", "sft", "ppo", "--kl-weights", 1
        )
        assert "ppo, KL weight 1, seed 0" in printed
        # The group methods learn as PPO does, from the same rollouts.
        methods = ("--methods", "sft", "ppo", "dpo")
        printed = example("reviews_feedback", *options, *methods, "--kl-weights", 1)
    finally:
        tf.config.run_functions_eagerly(False)
    # What exists is not made again.
    assert "ppo, KL weight" not in printed and "dpo, KL weight 1" in printed
    table = printed.splitlines()[-3:]
    assert [line.split()[0] for line in table] == ["sft", "ppo", "dpo"]
    results = list(run.glob("cells/*/result.json"))
    assert len(results) == 3
    for path in results:
        result = json.loads(path.read_text(encoding="utf-8"))
        assert len(result["texts"]) == 8 and 0 <= result["judge"] <= 1
        assert len(result["curve"][0]) == (0 if path.parent.name[:3] == "sft" else 1)
    assert (run / "reward_against_kl.png").stat().st_size > 1000
