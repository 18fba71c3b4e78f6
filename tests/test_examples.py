"""The text examples run from the command line, with small sizes."""

import json

import pytest
import tensorflow as tf
from conftest import assert_drawn

from keras_attn.data import make_dates

pytest.importorskip("tokenizers", reason="the extra `text` is not installed")
pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")
pytest.importorskip("sacrebleu", reason="the extra `eval` is not installed")

pytestmark = pytest.mark.runs


# The README's example and `keras-attn demo` train a translator.
@pytest.mark.variation
@pytest.mark.parametrize(
    "name, sizes",
    [
        ("translate_rnnsearch", "--hidden-dim 8 --embedding-dim 5"),
        ("translate_transformer", "--hidden-dim 8 --num-heads 2 --warmup-steps 1"),
    ],
)
def test_translators(example, tmp_path, name, sizes):
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    sources, targets = zip(*make_dates(40, seed=3), strict=True)
    for split in ("train", "val"):
        (data / f"{split}.en").write_text("\n".join(sources) + "\n")
        (data / f"{split}.de").write_text("\n".join(targets) + "\n")
    options = f"--epochs 1 --batch-size 16 {sizes} --vocabulary-size 97"
    printed = example(name, "--data-dir", data, "--run-dir", run, *options.split())
    assert_drawn(run, "alignment")
    assert (run / "model.keras").is_file()
    assert "Greedy(): BLEU" in printed
    assert "Beam(num_beams=4" in printed


@pytest.mark.variation
def test_write_shakespeare(example, tmp_path):
    text = tmp_path / "play.txt"
    text.write_text("ROMEO:\nIs the day so young?\n" * 40)
    options = (
        "--epochs 1 --batch-size 8 --block-length 16 --num-layers 1 --hidden-dim 6 "
        "--num-heads 2"
    )
    run = tmp_path / "run"
    printed = example(
        "write_shakespeare", "--data-file", text, "--run-dir", run, *options.split()
    )
    assert "nats per character" in printed
    assert printed.count("\nROMEO:") == 3
    assert (run / "model.keras").is_file()


def write_dates(path, count):
    """Writes dates in words, one a line, and returns them."""
    dates = [words for words, _ in make_dates(count, seed=3)]
    path.write_text("\n".join(dates) + "\n")
    return dates


# The head is new, and the pooler was not pre-trained.
# The guides to sentences and fine-tuning use the same functions.
@pytest.mark.variation
@pytest.mark.filterwarnings("ignore:The checkpoint has no weights for:UserWarning")
def test_pretrain_bert_and_fine_tune(example, tmp_path):
    dates = write_dates(tmp_path / "texts.txt", 200)
    bert, tuned = tmp_path / "bert", tmp_path / "tuned"
    options = ("--run-dir", bert, "--epochs", 1, "--batch-size", 64)
    options += ("--vocabulary-size", 97)
    printed = example("pretrain_bert", tmp_path / "texts.txt", *options)
    assert "196 sentences" in printed
    for split in ("train", "dev"):
        lines = [f"{index % 2} {text}" for index, text in enumerate(dates[:60])]
        (tmp_path / f"stsa.binary.{split}").write_text("\n".join(lines) + "\n")
    options = ("--data-dir", tmp_path, "--epochs", 1, "--save", tuned)
    printed = example("classify_sst2", bert, *options)
    assert "of the held-out reviews classified correctly" in printed
    assert (tuned / "vocab.txt").is_file()
    # The fine-tuned model is a checkpoint too; here its weights are discarded.
    printed = example("classify_sst2", tuned, *options[:-2], "--from-scratch")
    assert "of the held-out reviews classified correctly" in printed
    options = ("--smoke", "--checkpoint", bert, "--sst2", tmp_path, "--tasks", "SST-2")
    options += ("--run-dir", tmp_path / "glue", "--methods", "int4", "scratch")
    printed = example("finetune_glue", *options)
    assert "SST-2 int4, seed 0, rate" in printed and "SST-2 scratch" in printed
    table = [line.split() for line in printed.splitlines()[-2:]]
    assert [row[0] for row in table] == ["int4", "scratch"]
    # LoRA weights and the head train, or everything.
    assert int(table[0][2].replace(",", "")) < int(table[1][2].replace(",", ""))


@pytest.mark.variation
@pytest.mark.filterwarnings("ignore:The checkpoint has no weights for:UserWarning")
def test_finetune_glue_chooses_rates_and_measures(example, tmp_path):
    dates = write_dates(tmp_path / "texts.txt", 60)
    bert, run, glue = (tmp_path / name for name in ("bert", "run", "glue"))
    options = ("--run-dir", bert, "--epochs", 1, "--batch-size", 64)
    example("pretrain_bert", tmp_path / "texts.txt", *options, "--vocabulary-size", 97)
    (glue / "MRPC").mkdir(parents=True)
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    rows = [f"{index % 2}\t1\t2\t{text}\t{text}" for index, text in enumerate(dates)]
    for split in ("train", "dev"):
        (glue / "MRPC" / f"{split}.tsv").write_text("\n".join([header, *rows]))
    options = ("--smoke", "--checkpoint", bert, "--data-dir", glue, "--run-dir", run)
    options += ("--tasks", "MRPC", "--methods", "int8")
    example("finetune_glue", *options, "--tune")
    assert len(list(run.glob("rates/MRPC_int8_*.json"))) == 3
    printed = example("finetune_glue", *options, "--cost")
    assert "ms a step" in printed and "MiB added" in printed


# Learning from rewards, in pieces.


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
    assert_drawn(run, "reward_against_kl")
