"""`keras-attn finetune` on each kind of data, and `predict` with what it wrote."""

import inspect
import io
import json
import re
import shutil
from typing import get_args

import keras
import numpy as np
import pytest
import tensorflow as tf
from cli.finetuning_data import (
    FAST,
    history,
    interrupted_after,
    write_csv,
    write_photos,
)
from data.image_sets import write_image, write_mask
from parity.folders import CHECKPOINTS

from keras_attn import models
from keras_attn.cli.finetune import finetune
from keras_attn.cli.finetuning.adaptation import check_quantizable
from keras_attn.cli.finetuning.job import shortened_names
from keras_attn.cli.finetuning.kinds import TASKS
from keras_attn.cli.finetuning.result import Result, read_result
from keras_attn.models.checkpoints.publishing import markdown_line

pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")

from keras_attn.data import WordPieceTokenizer  # noqa: E402

pytestmark = pytest.mark.usefixtures("eager_runs")
WORDS = {"good": "praise", "bad": "blame"}


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """Texts whose class is in one word."""
    rows = [["review", "label"]]
    for number in range(20):
        word = list(WORDS)[number % 2]
        rows.append([f"{'very ' * (number % 3)}{word} film", WORDS[word]])
    return write_csv(tmp_path_factory.mktemp("data") / "reviews.csv", rows)


# Keras leaves the history open when it is interrupted.
@pytest.mark.runs
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_texts_are_learned_resumed_and_predicted(
    command, bert, reviews, tmp_path, monkeypatch
):
    """With LoRA and early stopping; `predict` with the folder and what it exports."""
    options = [*FAST, "--epochs", 2, "--lora", 2, "--patience", 2]
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    assert command("finetune", bert, reviews, *options, "--run-dir", whole) == 0
    for text in (
        "text_classification, because reviews.csv has the columns review and label",
        "18 texts to train on, 2 to validate on",
        "2 classes: blame 9, praise 9",
        "trainable parameters: ",
        "On the validation data: accuracy ",
        f"keras-attn predict {whole} FILE",
    ):
        assert text in command.out
    assert command.err == "" and not (whole / "backup").exists()

    with interrupted_after(1):
        assert command("finetune", bert, reviews, *options, "--run-dir", halved) == 130
    assert "run the same command to go on" in command.err
    line = command.refuses("finetune", bert, reviews, *FAST, "--run-dir", halved)
    assert "different settings" in line and "epochs was 2, is 3" in line
    assert command("finetune", bert, reviews, *options, "--run-dir", halved) == 0
    assert "Resuming the interrupted run" in command.out
    assert "Epoch 2/2" in command.out and "Epoch 1/2" not in command.out
    assert history(halved) == history(whole) and len(history(whole)) == 2
    assert command("finetune", bert, reviews, *options, "--run-dir", halved) == 0
    assert "is already trained" in command.out and "Epoch" not in command.out

    result = json.loads((whole / "finetuned.json").read_text())
    assert result["class_names"] == ["blame", "praise"]
    assert result["figures"]["most_frequent_class"] == 0.5
    card = (whole / "README.md").read_text()
    assert "--lora 2" in card and "| accuracy |" in card and "blame, praise" in card
    # A checkpoint of transformers, whose updates are merged.
    config = json.loads((whole / "config.json").read_text())
    assert config["id2label"] == {"0": "blame", "1": "praise"}
    model = models.load_checkpoint(whole)
    assert len(model.weights) == len(models.load_checkpoint(bert).weights) + 2

    texts = tmp_path / "texts.csv"
    write_csv(texts, [["review"], ["a good film"], ["very bad"], ["good"]])
    assert command("predict", whole, texts, "--all-scores") == 0
    rows = command.rows()
    assert [row["review"] for row in rows] == ["a good film", "very bad", "good"]
    tokenizer = WordPieceTokenizer.from_folder(whole)
    encoded = tokenizer.encode_batch(["a good film", "very bad", "good"], max_length=8)
    shares = tf.nn.softmax(model.predict(encoded, verbose=0)).numpy()
    for row, share in zip(rows, shares, strict=True):
        assert row["label"] == ["blame", "praise"][share.argmax()]
        assert float(row["score"]) == pytest.approx(share.max(), abs=1e-5)
        assert float(row["score_blame"]) == pytest.approx(share[0], abs=1e-5)
    assert command("predict", halved, texts, "--all-scores") == 0
    assert command.rows() == rows

    artefact, written = whole / "model.onnx", tmp_path / "labels.jsonl"
    tf.config.run_functions_eagerly(False)
    assert command("export", whole, artefact) == 0
    assert command("predict", artefact, texts, "--output", written) == 0
    assert command.out == ""
    for row, line in zip(rows, written.read_text().splitlines(), strict=True):
        found = json.loads(line)
        assert (found["review"], found["label"]) == (row["review"], row["label"])
        assert found["score"] == pytest.approx(float(row["score"]), abs=1e-4)
    line = command.refuses("predict", whole, texts, "--masks", tmp_path / "masks")
    assert "--masks has no meaning for a model of text_classification" in line
    moved = shutil.copy(artefact, tmp_path)
    line = command.refuses("predict", moved, texts)
    assert "--finetuned must be the folder that MODEL was exported from" in line
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeffa good film\n\nvery bad\n"))
    assert command("predict", moved, "--finetuned", whole) == 0
    found = command.rows()
    assert [row["review"] for row in found] == ["a good film", "", "very bad"]
    labels = [row["label"] for row in rows[:2]]
    assert [row["label"] for row in found] == [labels[0], "", labels[1]]
    assert "1 of 3 rows have no text" in command.err


@pytest.mark.runs
def test_numbers_of_pairs_are_learned(command, bert, tmp_path):
    rows = [["sentence1", "sentence2", "score"]]
    rows += [["a good film", "very good", 120_000.5 + 48_000 * n] for n in range(6)]
    data = write_csv(tmp_path / "pairs.csv", rows)
    folder = tmp_path / "run"
    options = [*FAST, "--epochs", 1, "--precision", "mixed_bfloat16"]
    assert command("finetune", bert, data, *options, "--run-dir", folder) == 0
    assert "text_regression" in command.out and "numbers from 120000" in command.out
    assert "mean_absolute_error" in command.out
    result = read_result(folder)
    assert result is not None and result.label_scale is not None
    assert result.label_scale["deviation"] > 48_000
    assert "in the unit of the labels" in (folder / "README.md").read_text()
    assert keras.config.dtype_policy().name == "float32"
    assert command("predict", folder, data, "--format", "jsonl") == 0
    rows = [json.loads(line) for line in command.out.splitlines()]
    names = ["sentence1", "sentence2", "input_score", "score"]
    assert len(rows) == 6 and list(rows[0]) == names
    assert rows[1]["input_score"] == "168000.5"
    # As transformers reads the weights: in the unit of the labels.
    assert all(120_000 < row["score"] < 360_000 for row in rows)
    # Fine-tuned again, it begins where it ended.
    again = ["--epochs", 1, "--learning-rate", 1e-9, "--run-dir", tmp_path / "again"]
    assert command("finetune", folder, data, *FAST, *again) == 0
    assert command("predict", tmp_path / "again", data, "--format", "jsonl") == 0
    for row, line in zip(rows, command.out.splitlines(), strict=True):
        assert json.loads(line)["score"] == pytest.approx(row["score"], rel=1e-3)
    rows = [["a film", "so bad"], ["good", 'very "good"']]
    path = tmp_path / "unnamed.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    given = ["--no-header", "--columns", "2,1", "--format", "jsonl"]
    assert command("predict", folder, path, *given) == 0
    found = [json.loads(line) for line in command.out.splitlines()]
    assert [[row["1"], row["2"]] for row in found] == rows
    line = command.refuses("predict", folder, write_csv(tmp_path / "a.csv", [["x"]]))
    assert "must have the columns ['sentence1', 'sentence2']" in line


@pytest.mark.runs
@pytest.mark.parametrize("kind", ["completion", "preference", "reward"])
def test_completions_are_learned(command, gpt, bert, tmp_path, kind):
    names = ["completion"] if kind == "completion" else ["chosen", "rejected"]
    rows = [
        {"prompt": f"a {n}", **{name: f" {name} {n}" for name in names}}
        for n in range(6)
    ]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = tmp_path / "run"
    options = ["--batch-size", 5, "--epochs", 1, "--run-dir", folder]
    options += ["--lora", 2] if kind == "preference" else []
    model = bert if kind == "reward" else gpt
    assert command("finetune", model, data, *options) == 0
    assert f"{kind}, because data.jsonl has the column" in command.out
    figure = {"completion": "perplexity", "preference": "margin"}
    assert figure.get(kind, "ranking_accuracy") in command.out
    if kind == "preference":
        return  # It generates as the next one does.
    given = ["--max-new-tokens", 3, "--format", "jsonl"]
    inputs = data
    if kind == "reward":
        inputs = write_csv(tmp_path / "a.csv", [["prompt", "completion"], ["a", "b"]])
    assert command("predict", folder, inputs, *given) == 0
    rows = [json.loads(line) for line in command.out.splitlines()]
    last = "score" if kind == "reward" else "completion"
    assert all(list(row)[0] == "prompt" and list(row)[-1] == last for row in rows)
    if kind == "completion":
        assert len(rows) == 6
        prompts = write_csv(tmp_path / "b.csv", [["prompt"], ["an a" * 40]])
        line = command.refuses("predict", folder, prompts)
        assert "31 positions" in line and "b.csv, line 2" in line


@pytest.mark.compiled
def test_the_cost_is_said(command, bert, reviews, monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    tf.config.run_functions_eagerly(False)
    given = [*FAST, "--plan", "--lora", 2]
    assert command("finetune", bert, reviews, *given) == 0
    trained = 2 * 2 * 6 * 2 + 2 * 6 + 2  # Query and value, and the classifier.
    assert f"of which {trained} train; learning rate 0.0005" in command.out
    assert "FLOP per step of 18 x 6 tokens, 1 steps per epoch" in command.out
    assert not list(tmp_path.iterdir())
    # A model of images of any size is counted for those of the first image.
    write_image(tmp_path / "images" / "1.png", (12, 20), 1)
    write_image(tmp_path / "images" / "2.png", (24, 20), 1)
    for number, shape in ((1, (12, 20)), (2, (24, 20))):
        mask = np.eye(*shape, dtype="uint8")
        write_mask(tmp_path / "masks" / f"{number}.png", mask)
    sizes = ["--override", "hidden_dims=[4, 8]", "--override", "padding=same"]
    assert command("finetune", "unet", tmp_path, "--plan", *sizes) == 0
    assert re.search(r"FLOP per step of 16 images of (12|24)x20, 1 step", command.out)


ROWS = [["text", "label"], ["a", "x"], ["b", "y"], ["c", "x"], ["d", "y"]]


@pytest.mark.parametrize(
    "name, rows, options, message",
    [
        ("a.csv", [["words", "label"]], [], "a column named text,.*--text-column"),
        ("a.csv", [["text", "mark"]], [], "a column named label,.*--label-column"),
        ("a.csv", ROWS, ["--text-column", "words"], "--text-column must be a column"),
        ("a.csv", [], [], "must name its columns.*is empty"),
        ("a.csv", [*ROWS, ["e", ""]], [], "not empty.*a.csv, line 6"),
        ("a.csv", ROWS[:2], [], "two different values"),
        ("a.csv", ROWS[:3], [], "two examples of a class"),
        ("a.csv", ROWS, ["--task", "text_regression"], "finite number.*a.csv, line 2"),
        ("a.csv", ROWS, ["--task", "segmentation"], "needs images and masks"),
        ("a.csv", ROWS, ["--quantize", "int8"], "--quantize needs --lora"),
        ("a.csv", ROWS, ["--lora-targets", "all"], "--lora-targets needs --lora"),
        ("a.csv", ROWS, ["--override", "dropout"], "must be NAME=VALUE"),
        ("a.csv", ROWS, ["--lora", 9], "`rank`.*9"),
        ("a.pdf", ROWS, [], "DATA must be a table"),
    ],
)
def test_data_and_options_that_are_refused(
    command, bert, tmp_path, name, rows, options, message
):
    path = write_csv(tmp_path / name, rows)
    run_dir = ["--run-dir", tmp_path / "run"]
    for plan in ([], ["--plan"]):
        line = command.refuses("finetune", bert, path, *options, *run_dir, *plan)
        assert re.search(message, line)
        assert not (tmp_path / "run").exists()


def test_a_plan_fails_where_the_run_does(command, bert, reviews, tmp_path):
    """With images, too; each line is the error of the run."""
    photos = write_photos(tmp_path / "photos", 4)
    tiny = ["--override", "hidden_dims=[4, 8]", "--override", "padding=same"]
    vit = CHECKPOINTS / "vit_classifier"
    refused = [
        (bert, photos, [], "MODEL must take images"),
        ("unet", photos, tiny, "MODEL must be a classifier of 2 classes"),
        (vit, photos, ["--image-size", "9x9"], "image_size|--image-size"),
        (vit, photos, ["--lora", 2, "--lora-targets", "query,kry"], "kry"),
        (bert, reviews, ["--lora", 2, "--lora-targets", "kry"], "kry"),
        (
            bert,
            reviews,
            ["--override", "dropuot=0.2"],
            "`dropuot` is not an argument.*did you mean dropout or",
        ),
        (vit, reviews, [], "MODEL must take texts: reviews.csv is a table"),
        ("vit_tiny_patch16", reviews, [], "MODEL must take texts"),
    ]
    for model, data, options, message in refused:
        given = ["finetune", model, data, *options, "--run-dir", tmp_path / "run"]
        line = command.refuses(*given)
        assert re.search(message, line), line
        assert command.refuses(*given, "--plan") == line
    given = ["finetune", vit, photos, "--run-dir", tmp_path / "run"]
    assert command(*given, "--plan") == 0
    # A damaged image, and a folder in which another model is.
    whole = (photos / "dark" / "1.png").read_bytes()
    (photos / "dark" / "1.png").write_bytes(whole[:40])
    assert "1.png must be a complete JPEG" in command.refuses(*given, "--plan")
    line = command.refuses("finetune", bert, reviews, "--run-dir", bert, "--plan")
    assert "--run-dir must be a new folder" in line
    assert not (tmp_path / "run").exists()


def test_validation_data_that_are_refused(command, bert, reviews, tmp_path):
    other = write_csv(tmp_path / "a.csv", [["review", "label"], ["good", "so-so"]])
    given = ["finetune", bert, reviews, "--run-dir", tmp_path / "run"]
    line = command.refuses(*given, "--validation", other)
    assert "must be one of ['blame', 'praise']" in line and "a.csv, line 2" in line
    other.write_bytes("review,label\nvery goöd,praise\n".encode("latin-1"))
    line = command.refuses(*given, "--validation", other)
    assert "a.csv must be UTF-8; line 2 is not" in line


def test_models_that_are_refused(command, reviews, tmp_path):
    line = command.refuses("finetune", "bert_tinny", reviews)
    assert "MODEL is not a path that exists" in line and "bert_tiny" in line
    command.refuses_each(
        ["finetune", "--run-dir", tmp_path / "run"],
        ("--tokenizer", "bert_tiny", reviews),
        ("MODEL must be a name from", tmp_path, reviews),
    )
    assert not (tmp_path / "run").exists()
    command.refuses_each(
        ["predict"],
        ("MODEL must be a folder of `keras-attn finetune`", tmp_path, reviews),
        ("MODEL must say what its outputs", CHECKPOINTS / "bert_encoder", reviews),
    )


def test_a_label_of_several_lines_is_one_line_of_the_card(tmp_path):
    assert markdown_line("so\nso `a|b`") == "so so \\`a\\|b\\`"
    assert shortened_names(["a\nb", "c"]) == "a b, c"


def test_a_missing_file_of_texts(command, bert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Result("text_classification", ["a", "b"]).save(tmp_path)
    shutil.copytree(bert, tmp_path, dirs_exist_ok=True)
    line = command.refuses("predict", ".", "nosuch.txt")
    assert "There is no file nosuch.txt" in line


def test_semicolons_are_named(command, bert, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text;label\ngood film;x\nbad film\n")
    line = command.refuses("finetune", bert, path)
    assert "as many in every line" in line and "--no-header" not in line


def test_keras_own_integers_are_refused():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="--quantize int8 is not available"):
        check_quantizable(model, "int8")


def test_the_options_name_every_task():
    options = inspect.signature(finetune).parameters["task"].annotation
    assert set(TASKS) == set(get_args(get_args(get_args(options)[0])[0]))
