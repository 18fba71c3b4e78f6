"""`keras-attn finetune` on each kind of data, and `predict` with what it wrote."""

import csv
import inspect
import io
import json
import re
import shutil
import zipfile
from pathlib import Path
from typing import get_args

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from data.image_sets import truncate, write_image, write_mask, write_voc
from model_cases import build
from PIL import Image

from keras_attn import models
from keras_attn.cli.finetune import finetune
from keras_attn.cli.finetuning import run as runs
from keras_attn.cli.finetuning.adaptation import quantize
from keras_attn.cli.finetuning.kinds import TASKS, find_kind
from keras_attn.cli.finetuning.objects import ObjectJob
from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.finetuning.source import Source
from keras_attn.cli.prediction.network import Network
from keras_attn.cli.prediction.pictures import predict_masks, predict_objects
from keras_attn.data import detection_dataset, read_coco
from keras_attn.data.images.instance_masks import decode_mask
from keras_attn.training import DetectionScoreLogger

pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")

from keras_attn.data import WordPieceTokenizer  # noqa: E402

# Keras turns TensorFlow's variables into arrays in a way that NumPy 2 deprecates.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    # See `eager`: the data sets are still graphs.
    pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run"),
]
CHECKPOINTS = Path(__file__).parents[1] / "parity/checkpoints"
TOKENIZER = Path(__file__).parents[1] / "data/references/gpt2"
WORDS = {"good": "praise", "bad": "blame"}
FAST = ["--batch-size", 18, "--max-length", 8]


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """Runs the few steps one by one: tracing and compiling them takes far longer.

    The cost, which needs a graph, is counted in one test alone.
    """
    monkeypatch.setattr(runs, "_say_cost", lambda job: None)
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A tiny BERT with its tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoints") / "bert"
    sizes = {"vocabulary_size": 61, "hidden_dim": 6, "num_heads": 2, "num_layers": 1}
    models.save_checkpoint(build("bert_base", **sizes), folder)
    texts = ["a good film", "a bad film", "very good", "so bad"]
    WordPieceTokenizer.train(texts * 3, vocabulary_size=61).save(folder)
    return folder


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """Texts whose class is in one word."""
    rows = [["review", "label"]]
    for number in range(20):
        word = list(WORDS)[number % 2]
        rows.append([f"{'very ' * (number % 3)}{word} film", WORDS[word]])
    return write_csv(tmp_path_factory.mktemp("data") / "reviews.csv", rows)


def history(folder):
    return list(csv.DictReader((folder / "history.csv").read_text().splitlines()))


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
        "numbers train",
        "On the validation data: accuracy ",
        f"keras-attn predict {whole} FILE",
    ):
        assert text in command.out
    assert command.err == "" and not (whole / "backup").exists()

    write = runs.HistoryFile.on_epoch_end

    def interrupt(self, epoch, logs=None):
        write(self, epoch, logs)
        if epoch == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runs.HistoryFile, "on_epoch_end", interrupt)
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
    rows = list(csv.DictReader(command.out.splitlines()))
    assert [row["review"] for row in rows] == ["a good film", "very bad", "good"]
    tokenizer = WordPieceTokenizer.from_folder(whole)
    encoded = tokenizer.encode_batch(["a good film", "very bad", "good"], max_length=8)
    shares = tf.nn.softmax(model.predict(encoded, verbose=0)).numpy()
    for row, share in zip(rows, shares, strict=True):
        assert row["label"] == ["blame", "praise"][share.argmax()]
        assert float(row["score"]) == pytest.approx(share.max(), abs=1e-5)
        assert float(row["score_blame"]) == pytest.approx(share[0], abs=1e-5)
    assert command("predict", halved, texts, "--all-scores") == 0
    assert list(csv.DictReader(command.out.splitlines())) == rows

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
    found = list(csv.DictReader(command.out.splitlines()))
    assert [row["review"] for row in found] == ["a good film", "very bad"]
    assert [row["label"] for row in found] == [row["label"] for row in rows[:2]]


@pytest.mark.runs
def test_numbers_of_pairs_are_learned(command, bert, tmp_path):
    rows = [["sentence1", "sentence2", "score"]]
    rows += [["a good film", "very good", 0.5 + n] for n in range(6)]
    data = write_csv(tmp_path / "pairs.csv", rows)
    folder = tmp_path / "run"
    options = [*FAST, "--epochs", 1, "--precision", "mixed_bfloat16"]
    assert command("finetune", bert, data, *options, "--run-dir", folder) == 0
    assert "text_regression" in command.out and "numbers from" in command.out
    assert keras.config.dtype_policy().name == "float32"
    assert command("predict", folder, data, "--format", "jsonl") == 0
    rows = [json.loads(line) for line in command.out.splitlines()]
    assert len(rows) == 6 and set(rows[0]) == {"sentence1", "sentence2", "score"}
    rows = [["a film", "so bad"], ["good", 'very "good"']]
    path = tmp_path / "unnamed.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    given = ["--no-header", "--columns", "2,1", "--format", "jsonl"]
    assert command("predict", folder, path, *given) == 0
    found = [json.loads(line) for line in command.out.splitlines()]
    assert [[row["1"], row["2"]] for row in found] == rows
    line = command.refuses("predict", folder, write_csv(tmp_path / "a.csv", [["x"]]))
    assert "must have the columns ['sentence1', 'sentence2']" in line


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    """A tiny GPT-2 with its tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoints") / "gpt2"
    size = json.loads((TOKENIZER / "vocab.json").read_text())
    model = models.build_gpt(
        vocabulary_size=len(size),
        max_sequence_length=31,
        num_layers=1,
        hidden_dim=6,
        num_heads=2,
        mlp_dim=24,
    )
    models.save_checkpoint(model, folder)
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(TOKENIZER / name, folder)
    return folder


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


@pytest.mark.runs
def test_images_of_classes_are_learned(command, tmp_path):
    photos, folder = tmp_path / "photos", tmp_path / "run"
    for number in range(6):
        shade = "dark" if number % 2 else "bright"
        write_image(photos / shade / f"{number}.png", (17, 23), seed=number)
    given = ["finetune", CHECKPOINTS / "vit_classifier", photos, "--epochs", 1]
    assert command(*given, "--run-dir", folder) == 0
    assert "image_classification, because 2 folders" in command.out
    assert "2 classes: bright" in command.out
    assert command("predict", folder, photos, "--batch-size", 4, "--all-scores") == 0
    rows = list(csv.DictReader(command.out.splitlines()))
    assert [Path(row["file"]).name[0] for row in rows] == list("024135")
    model = models.load_checkpoint(folder)
    assert model.class_names == ("bright", "dark")
    served = models.with_preprocessing(model)
    for row in rows:
        image = np.asarray(Image.open(row["file"]))
        shares = tf.nn.softmax(served(image[None])[0]).numpy()
        assert float(row["score_dark"]) == pytest.approx(shares[1], abs=1e-5)
        assert row["label"] == model.class_names[shares.argmax()]
    line = command.refuses("predict", folder, photos, "--columns", "text")
    assert "--columns has no meaning for a model of image_classification" in line
    other = ["--run-dir", tmp_path / "other"]
    truncate(photos / "dark" / "1.png")
    line = command.refuses(*given, *other)
    assert "1.png must be a complete JPEG, PNG" in line
    assert not (tmp_path / "other").exists()
    (photos / "blue").mkdir()
    line = command.refuses(*given, *other)
    assert "must have images" in line and "blue" in line


@pytest.mark.runs
def test_masks_are_learned(command, tmp_path):
    """A small U-Net by its name, on masks of 0 and 255."""
    cells, folder, masks = (tmp_path / name for name in ("cells", "run", "found"))
    for number in range(3):
        pixels = write_image(cells / "images" / f"{number}.png", (12, 20), 1, number)
        write_mask(cells / "masks" / f"{number}.png", np.where(pixels > 99, 255, 0))
    given = ["finetune", "unet", cells, "--run-dir", folder, "--epochs", 1]
    sizes = ["--override", "hidden_dims=[4, 8]"]
    # A model that does not fit leaves no run, which would refuse the next command.
    assert "must have at least (18, 18) pixels" in command.refuses(*given, *sizes)
    assert not folder.exists()
    sizes += ["--override", "padding=same"]
    assert command(*given, *sizes) == 0
    assert "2 classes of pixels: background, foreground" in command.out
    assert "mean_iou" in command.out
    file = folder / "model.keras"
    # Not with the optimizer, which has two numbers for each of the model.
    with zipfile.ZipFile(file) as archive, archive.open("model.weights.h5") as weights:
        with h5py.File(io.BytesIO(weights.read())) as stored:
            assert "optimizer" not in stored
    # As many pixels of either class.
    model = keras.saving.load_model(file, compile=False)
    image = np.asarray(Image.open(cells / "images" / "1.png"))[None, ..., None] / 255
    logits = model(image).numpy()[0]
    difference = np.median(logits[..., 1] - logits[..., 0])
    model.get_layer("classifier").bias.assign_sub([0, difference])
    expected = model(image).numpy()[0].argmax(-1)
    model.save(file)
    assert command("predict", folder, cells / "images", "--masks", masks) == 0
    rows = list(csv.DictReader(command.out.splitlines()))
    assert [Path(row["mask"]).name for row in rows] == ["0.png", "1.png", "2.png"]
    np.testing.assert_array_equal(np.asarray(Image.open(masks / "1.png")), expected)
    assert float(rows[1]["share_foreground"]) == pytest.approx(expected.mean())
    assert 0.4 < expected.mean() < 0.6
    images, other = cells / "images", tmp_path / "other"
    line = command.refuses("predict", folder, images, "--masks", images)
    assert "--masks must be another folder than that of the images" in line
    truncate(images / "2.png")
    line = command.refuses("predict", folder, images, "--masks", other)
    assert "2.png must be a complete" in line and not other.exists()


def write_boxes(folder, segmentation=None):
    """Three images with a box each, as COCO has them, and perhaps with a mask."""
    content = {
        "categories": [{"id": 3, "name": "cell"}, {"id": 5, "name": "ring"}],
        "images": [],
        "annotations": [],
    }
    for number in range(3):
        write_image(folder / "images" / f"{number}.png", (24, 32), seed=number)
        size = {"height": 24, "width": 32}
        image = {"id": number, "file_name": f"{number}.png", **size}
        box = {"id": number, "image_id": number, "category_id": 3}
        box |= {} if segmentation is None else {"segmentation": segmentation}
        content["images"].append(image)
        content["annotations"].append(box | {"bbox": [1, 2, 9, 8], "iscrowd": 0})
    path = folder / "boxes.json"
    path.write_text(json.dumps(content))
    return path


def test_boxes_are_read(command, tmp_path):
    """A detector takes too long to compile for a whole run."""
    path = write_boxes(tmp_path)
    for data in (path, tmp_path):
        assert command("finetune", "faster_rcnn_resnet50", data, "--plan") == 0
        assert "detection, because boxes.json is COCO's" in command.out
        assert "2 images with 2 boxes to train on, 1 images to" in command.out
        assert "2 classes: cell, ring" in command.out


def test_masks_of_objects_are_learned(command, tmp_path):
    """A Mask R-CNN on polygons: all but `fit`, and what it cannot learn."""
    path = write_boxes(tmp_path, [[1, 2, 10, 2, 10, 10, 1, 10]])
    model = CHECKPOINTS / "maskrcnn_resnet50_fpn"
    few = {"num_proposals": 5, "max_detections": 3, "num_training_proposals": 5}
    few |= {"detection_options": {"num_samples": 8, "max_candidates": 8}}
    settings = Settings(str(model), path, tmp_path / "run", image_size="24x32")
    source = Source(str(model), model, few)
    job = ObjectJob(settings, find_kind(settings, path), source)
    assert job.lines()[0].startswith("2 images with 2 masks to train on, 1 images")
    trainer = source.load(job.head, job.options())
    job.prepare(trainer)
    train, validation = job.batches(None)
    assert train.element_spec[1]["masks"].shape == (None, 1, 24, 32)
    job.compile(trainer, optimizer="sgd")
    figures = job.figures(trainer, validation)
    assert figures["mask_loss"] > 0 and {"map", "mask_map"} <= set(figures)
    (logger,) = job.callbacks(validation)
    assert isinstance(logger, DetectionScoreLogger) and logger.masks
    assert job.result().task == "instance_segmentation"
    # As torchvision pastes masks.
    assert not job.result().aligned_masks and not logger.aligned_masks

    options = ["--image-size", "24x32"]
    boxes = ["--task", "detection", "--plan"]
    assert command("finetune", model, path, *options, *boxes) == 0
    assert "detection, because" in command.out and "2 boxes" in command.out
    content = json.loads(path.read_text())
    del content["annotations"][1]["segmentation"]
    path.write_text(json.dumps(content))
    line = command.refuses("finetune", model, path, *options, "--plan")
    assert "boxes.json, annotation 1: `segmentation` must be given" in line
    assert "`--task detection` learns from boxes alone" in line
    assert command("finetune", model, write_boxes(tmp_path), *options, "--plan") == 0
    assert "detection, because" in command.out
    name, *masks = "mask_rcnn_resnet50", "--task", "instance_segmentation", "--plan"
    voc = write_voc(tmp_path / "voc")
    line = command.refuses("finetune", name, voc, *masks)
    assert "needs COCO's JSON with a `segmentation` of each object" in line


def test_boxes_are_those_of_the_file(tmp_path):
    """An input of 8 × 8 pixels holds the image of 24 × 32 as 6 × 8."""
    write_boxes(tmp_path)
    seen = []

    def detect(inputs):
        seen.append(inputs["images"])
        boxes = np.array([[[1, 2, 3, 7], [0, 0, 1, 1], [0, 0, 0, 0]]], "float32")
        found = {"boxes": boxes, "scores": np.array([[0.9, 0.4, 0]], "float32")}
        # So high that the sides of the box are not smoothed.
        found["masks"] = np.full((1, 3, 2, 2), 1e6, "float32")
        return found | {"classes": np.array([[1, 0, -1]], "int32")}

    result = Result("detection", ["cell", "ring"], image_size=[8, 8], normalize="unit")
    network = Network(detect, {"images": (None, 8, 8, 3)}, result, None, True)
    given = {"min_score": 0.5, "as_lists": False}
    rows = list(predict_objects(network, [str(tmp_path / "images")], **given))
    assert len(rows) == 3 and Path(rows[0].pop("file")).name == "0.png"
    sides = {"left": 4.0, "top": 8.0, "right": 12.0, "bottom": 24.0}
    mask = decode_mask(json.loads(rows[0].pop("segmentation")), 24, 32)
    assert rows[0] == {"label": "ring", "score": 0.9, **sides}
    np.testing.assert_array_equal(np.argwhere(mask)[[0, -1]], [[8, 4], [23, 11]])
    assert mask.sum() == 16 * 8
    expected = detection_dataset(
        read_coco(tmp_path / "boxes.json", tmp_path / "images", masks=False),
        image_size=8,
        batch_size=1,
        normalize="unit",
    )
    np.testing.assert_allclose(seen[0], next(iter(expected))[0], atol=1e-6)
    given["as_lists"] = True
    (row, *_) = predict_objects(network, [str(tmp_path / "images" / "1.png")], **given)
    assert [each["label"] for each in row["objects"]] == ["ring"]
    assert row["objects"][0]["segmentation"]["size"] == [24, 32]


@pytest.mark.parametrize("names", [("logits",), ("auxiliary_logits", "logits")])
def test_masks_are_those_of_the_logits(tmp_path, names):
    """As an FCN's, in Keras with a second output that only training needs."""
    write_image(tmp_path / "1.png", (3, 5))
    logits = np.zeros((1, 3, 5, 2), "float32")
    logits[:, :, 3:, 1] = 1

    def segment(inputs):
        assert inputs["images"].shape == (1, 3, 5, 3)
        return {name: logits if name == "logits" else -logits for name in names}

    shapes = {"images": (None, None, None, 3)}
    result = Result("segmentation", ["road", "sky"])
    network = Network(segment, shapes, result, None, is_exported=True)
    (row,) = predict_masks(network, [str(tmp_path)], folder=None)
    assert (row["share_road"], row["share_sky"]) == (0.6, 0.4)


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
    line = command.refuses("finetune", bert, path, *options, *run_dir)
    assert re.search(message, line)


def test_validation_data_that_are_refused(command, bert, reviews, tmp_path):
    other = write_csv(tmp_path / "a.csv", [["review", "label"], ["good", "so-so"]])
    given = ["finetune", bert, reviews, "--run-dir", tmp_path / "run"]
    line = command.refuses(*given, "--validation", other)
    assert "must be one of ['blame', 'praise']" in line and "a.csv, line 2" in line
    other.write_bytes("review,label\nvery goöd,praise\n".encode("latin-1"))
    line = command.refuses(*given, "--validation", other)
    assert "a.csv must be UTF-8; line 2 is not" in line


def test_models_that_are_refused(command, reviews, tmp_path):
    data = [reviews, "--run-dir", tmp_path / "run"]
    line = command.refuses("finetune", "bert_tinny", *data)
    assert "MODEL is not a path that exists" in line and "bert_tiny" in line
    assert "--tokenizer" in command.refuses("finetune", "bert_tiny", *data)
    line = command.refuses("finetune", tmp_path, *data)
    assert "MODEL must be a name from" in line
    assert not (tmp_path / "run").exists()
    line = command.refuses("predict", tmp_path, reviews)
    assert "MODEL must be a folder of `keras-attn finetune`" in line
    line = command.refuses("predict", CHECKPOINTS / "bert_encoder", reviews)
    assert "MODEL must say what its outputs mean" in line


def test_a_model_is_not_replaced(command, bert, reviews):
    before = {path.name: path.read_bytes() for path in bert.iterdir()}
    line = command.refuses("finetune", bert, reviews, "--run-dir", bert)
    assert "--run-dir must be a new folder" in line and "model.safetensors" in line
    assert before == {path.name: path.read_bytes() for path in bert.iterdir()}


def test_folders_that_are_refused(command, tmp_path):
    given = ["finetune", CHECKPOINTS / "vit_classifier", tmp_path]
    given += ["--run-dir", tmp_path / ".run"]
    line = command.refuses(*given)
    assert "with 0 images and no subfolder" in line
    write_image(tmp_path / "train" / "cat" / "a.png", (7, 9))
    (tmp_path / "val").mkdir()
    line = command.refuses(*given)
    assert "the folder inside, and the other one as --validation" in line


def test_keras_own_integers_are_refused():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="--quantize int8 is not available"):
        quantize(model, "int8")


def test_the_options_name_every_task():
    options = inspect.signature(finetune).parameters["task"].annotation
    assert set(TASKS) == set(get_args(get_args(get_args(options)[0])[0]))
