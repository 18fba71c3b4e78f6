"""`keras-attn evaluate`: the scores of each kind of model, and its worst examples."""

import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from cli.finetuning_data import write_boxes, write_csv
from data.image_sets import write_image, write_mask, write_voc
from data.test_yolo import write_yaml, write_yolo
from model_cases import build
from parity.folders import CHECKPOINTS
from PIL import Image

from keras_attn import models
from keras_attn.cli.finetuning.images import preprocessing_fields
from keras_attn.cli.finetuning.label_scale import LabelScale
from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.prediction.drawn import draw_grid
from keras_attn.cli.prediction.evaluation import evaluate_model
from keras_attn.cli.prediction.network import Network

pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")

from keras_attn.data import (  # noqa: E402
    ByteLevelBPETokenizer,
    WordPieceTokenizer,
    completion_dataset,
)
from keras_attn.losses import SmoothedCrossEntropy

TEXTS = ["a good film", "a bad film", "very good", "so bad", "good film", "bad"]
SIZES = {"vocabulary_size": 61, "hidden_dim": 6, "num_heads": 2, "num_layers": 1}


def bert(folder, result, scale=None):
    """The folder of a run whose weights are random."""
    keras.utils.set_random_seed(3)
    encoder = build("bert_base", **SIZES)
    count = len(result.class_names) or 1
    model = models.build_bert_classifier(encoder, num_classes=count)
    # Outputs that differ.
    kernel = model.layers[-1].kernel
    kernel.assign(np.random.default_rng(3).normal(size=kernel.shape) * 9)
    if scale is not None:
        model = scale.into(model)
    models.save_checkpoint(model, folder)
    WordPieceTokenizer.train(TEXTS * 3, vocabulary_size=61).save(folder)
    result.save(folder)
    return folder


def predicted(command, *arguments):
    assert command("predict", *arguments, "--format", "jsonl") == 0
    return [json.loads(line) for line in command.out.splitlines()]


def evaluated(command, *arguments):
    assert command("evaluate", *arguments, "--json") == 0
    return json.loads(command.out)


def test_classes_of_texts(command, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    names = ["blame", "praise", "so-so"]
    labels = ["praise", "blame", "praise", "blame", "so-so", "blame"]
    result = Result("text_classification", names, {"text": "review"}, max_length=8)
    folder = bert(tmp_path / "run", result)
    rows = [*zip(TEXTS, labels, strict=True)]
    data = write_csv(tmp_path / "a.csv", [["review", "label"], *rows])
    rows = predicted(command, folder, data, "--all-scores")
    shares = np.array([[row[f"score_{name}"] for name in names] for row in rows])
    truth = np.array([names.index(label) for label in labels])
    found = evaluated(command, folder, data, "--save", tmp_path / "report")
    figures = found["figures"]
    best = shares.argmax(-1)
    assert figures["accuracy"] == pytest.approx((best == truth).mean())
    losses = -np.log(shares[np.arange(6), truth])
    assert figures["loss"] == pytest.approx(losses.mean(), rel=1e-4)
    assert figures["most_frequent_class"] == 0.5
    expected = np.zeros((3, 3), int)
    np.add.at(expected, (truth, best), 1)
    assert found["confusion"] == expected.tolist()
    wrong = [n for n in np.argsort(-losses) if best[n] != truth[n]]
    assert [row["review"] for row in found["worst"]] == [TEXTS[n] for n in wrong]
    assert json.loads((tmp_path / "report/scores.json").read_text()) == found
    lines = (tmp_path / "report/confusion.csv").read_text().splitlines()
    assert lines[0] == "true,blame,praise,so-so"
    assert lines[1] == "blame," + ",".join(map(str, expected[0]))
    assert (tmp_path / "report/worst.csv").is_file()
    assert command("evaluate", folder, data) == 0
    assert "text_classification: 6 texts" in command.out
    assert "True classes in rows" in command.out and "so-so" in command.out
    # What is no answer of this model.
    write_csv(data, [["review", "label"], ["good", "bad"]])
    line = command.refuses("evaluate", folder, data)
    assert "must be one of ['blame', 'praise', 'so-so']" in line and "line 2" in line
    write_image(tmp_path / "photos" / "cat" / "a.png", (5, 5))
    line = command.refuses("evaluate", folder, tmp_path / "photos")
    assert "A model of text_classification needs texts" in line


@pytest.mark.runs
def test_an_exported_file_has_the_same_scores(command, tmp_path):
    result = Result("text_classification", ["x", "y"], {"text": "text"}, max_length=8)
    folder = bert(tmp_path / "run", result)
    rows = [[text, "xy"[n % 2]] for n, text in enumerate(TEXTS)]
    data = write_csv(tmp_path / "a.csv", [["text", "label"], *rows])
    assert command("export", folder, folder / "model.onnx") == 0
    expected = evaluated(command, folder, data)["figures"]
    found = evaluated(command, folder / "model.onnx", data)["figures"]
    assert found == pytest.approx(expected, abs=1e-4)
    assert "f1_y" in found and "matthews_correlation" in found


def test_numbers_of_texts(command, tmp_path):
    # Not around a mean, because `predict` rounds to six digits.
    scale = LabelScale(0, 60_000)
    columns = {"text": "text", "label": "price"}
    result = Result("text_regression", columns=columns, max_length=8)
    folder = bert(tmp_path / "run", result, scale)
    prices = 120_000 + 40_000 * np.arange(6)
    rows = [*zip(TEXTS, prices.tolist(), strict=True)]
    data = write_csv(tmp_path / "a.csv", [["text", "price"], *rows])
    scores = [row["score"] for row in predicted(command, folder, data)]
    found = evaluated(command, folder, data)
    errors = np.array(scores) - prices
    figures = found["figures"]
    expected = np.abs(errors).mean()
    assert figures["mean_absolute_error"] == pytest.approx(expected, rel=1e-4)
    expected = np.sqrt((errors**2).mean())
    assert figures["root_mean_squared_error"] == pytest.approx(expected, rel=1e-4)
    expected = np.corrcoef(scores, prices)[0, 1]
    assert figures["pearson_correlation"] == pytest.approx(expected, abs=1e-3)
    assert found["worst"][0]["text"] == TEXTS[np.abs(errors).argmax()]
    assert found["confusion"] is None


def test_rankings(command, tmp_path):
    result = Result("reward", columns={"prompt": "prompt"}, max_length=8)
    folder = bert(tmp_path / "run", result)
    rows = [["a", TEXTS[n], TEXTS[n + 1]] for n in range(4)]
    names = ["prompt", "chosen", "rejected"]
    data = write_csv(tmp_path / "a.csv", [names, *rows])
    pairs = [[row[0], text] for row in rows for text in row[1:]]
    inputs = write_csv(tmp_path / "b.csv", [["prompt", "completion"], *pairs])
    scores = [row["score"] for row in predicted(command, folder, inputs)]
    margins = np.reshape(scores, (-1, 2)) @ [1, -1]
    figures = evaluated(command, folder, data)["figures"]
    assert figures["ranking_accuracy"] == pytest.approx((margins > 0).mean())
    assert figures["margin"] == pytest.approx(margins.mean(), abs=1e-4)


@pytest.mark.parametrize("task", ["completion", "preference"])
def test_completions(command, gpt, tmp_path, task):
    folder = shutil.copytree(gpt, tmp_path / "run")
    names = ["prompt", "completion"]
    if task == "preference":
        names = ["prompt", "chosen", "rejected"]
        Result("preference", columns={"prompt": "prompt"}, max_length=31).save(folder)
    rows = [[f"a {n}", f" is {n}{n}", f" was {n}"][: len(names)] for n in range(3)]
    data = write_csv(tmp_path / "a.csv", [names, *rows])
    found = evaluated(command, folder, data, "--batch-size", 2)
    model = models.load_checkpoint(folder)
    tokenizer = ByteLevelBPETokenizer.from_folder(folder)
    prompts, answers = (
        [tokenizer.encode(row[column]) for row in rows] for column in (0, 1)
    )
    options = {"batch_size": 3, "end_token_id": tokenizer.end_token_id}
    batches = completion_dataset(prompts, answers, max_length=31, **options)
    model.compile(loss=SmoothedCrossEntropy())
    expected = model.evaluate(batches, verbose=0)
    assert found["figures"]["loss"] == pytest.approx(expected, rel=1e-4)
    assert found["figures"]["perplexity"] == pytest.approx(np.exp(expected), rel=1e-4)
    if task == "preference":
        assert 0 <= found["figures"]["chosen_more_probable"] <= 1
    assert len(found["worst"]) == 3 and "loss" in found["worst"][0]


def test_classes_of_images(command, tmp_path):
    """A checkpoint that was not fine-tuned here, with its classes and preprocessing."""
    model = models.load_checkpoint(CHECKPOINTS / "vit_classifier")
    names = [f"class {number}" for number in range(model.output.shape[-1])]
    model.class_names = names
    height, width = model.inputs[0].shape[1:3]
    model.preprocessing = preprocessing_fields("signed", (height, width), 3)
    folder = tmp_path / "run"
    models.save_checkpoint(model, folder)
    for number in range(6):
        name = names[number % len(names)]
        write_image(tmp_path / "photos" / name / f"{number}.png", (17, 23), 3, number)
    rows = predicted(command, folder, tmp_path / "photos")
    report = tmp_path / "report"
    found = evaluated(command, folder, tmp_path / "photos", "--save", report)
    right = [row["label"] == Path(row["file"]).parent.name for row in rows]
    assert found["figures"]["accuracy"] == pytest.approx(np.mean(right))
    assert len(found["worst"]) == 6 - sum(right)
    picture = np.asarray(Image.open(report / "worst.png").convert("RGB"))
    assert picture.std() > 0


def test_worst_images_are_in_rows_of_four():
    """Each with its aspect ratio, small."""
    sizes = [(400, 200, 3), (20, 60, 1), *[(8, 8, 3)] * 5]
    images = [np.full(size, 51, "uint8") for size in sizes]
    captions = [[f"{'$long' * 9}.jpg", "cat\n", "predicted 0.91 dog"]] * 7
    figure = draw_grid(images, captions)
    axes: list = figure.axes
    assert axes[0].get_subplotspec().get_gridspec().get_geometry() == (2, 4)
    shown = [axis.get_images()[0].get_array() for axis in axes[:7]]
    assert [x.shape for x in shown[:3]] == [(320, 160, 3), (20, 60, 3), (8, 8, 3)]
    assert all(np.allclose(x, 0.2) for x in shown) and not axes[7].get_images()
    assert axes[0].get_title() == f"{('$long' * 9)[:35]}…\ncat\npredicted 0.91 dog"
    assert draw_grid(images[:2], captions[:2]).axes[1].get_images()


def test_masks(tmp_path):
    """A network that knows the right half of each image, and calls the rest road."""
    for number in range(2):
        write_image(tmp_path / "images" / f"{number}.png", (4, 6), 3, number)
        mask = np.zeros((4, 6), "uint8")
        mask[:, 3:] = 1
        mask[0, 0], mask[1, 0] = (1, 255) if number else (0, 0)
        write_mask(tmp_path / "masks" / f"{number}.png", mask)
    logits = np.zeros((1, 4, 6, 2), "float32")
    logits[:, :, 3:, 1] = 1
    result = Result("segmentation", ["road", "sky"])
    shapes = {"images": (None, None, None, 3)}
    network = Network(lambda inputs: logits, shapes, result, None, is_exported=True)
    found = evaluate_model(network, Settings("model", tmp_path), count=1, min_score=0.5)
    assert found.what == f"2 images with masks in {tmp_path / 'images'}"
    # One pixel of sky is called road; one is ignored.
    assert found.confusion is not None
    assert found.confusion.tolist() == [[22, 0], [1, 24]]
    assert found.figures["pixel_accuracy"] == pytest.approx(46 / 47)
    assert found.figures["iou_sky"] == pytest.approx(24 / 25)
    assert found.figures["mean_iou"] == pytest.approx((22 / 23 + 24 / 25) / 2)
    assert [Path(row["file"]).name for row in found.worst] == ["1.png"]
    (draw,) = found.pictures.values()
    assert draw().axes


def test_boxes(tmp_path):
    """Of two images, one whose object is not found."""
    pytest.importorskip("pycocotools", reason="the extra `eval` is not installed")
    path, names = tmp_path / "boxes.json", ["0.png", "1.png"]

    def lack(content):
        content["categories"].pop()

    write_boxes(path, tmp_path / "images", names, 0, lack, bbox=[4, 8, 16, 8])
    calls = []

    def detect(inputs):
        boxes = np.array([[[4, 8, 20, 16], [0, 0, 0, 0]]], "float32")
        is_found = len(calls) % 2 == 0
        calls.append(inputs)
        classes = np.array([[0 if is_found else -1, -1]], "int32")
        scores = np.array([[0.9 * is_found, 0]], "float32")
        return {"boxes": boxes, "scores": scores, "classes": classes}

    result = Result("detection", ["cell"], image_size=[24, 32], normalize="unit")
    network = Network(detect, {"images": (None, 24, 32, 3)}, result, None, True)
    settings = Settings("model", path)
    found = evaluate_model(network, settings, count=3, min_score=0.5)
    assert found.figures["map_50"] == pytest.approx(0.5, abs=0.01)
    (worst,) = found.worst
    assert Path(worst["file"]).name == "1.png" and worst["missed_or_wrong"] == 1
    (draw,) = found.pictures.values()
    assert draw().axes


def test_the_part_to_validate_on_is_scored(tmp_path):
    """Of data with splits, as `keras-attn finetune` takes them."""
    pytest.importorskip("pycocotools", reason="the extra `eval` is not installed")
    write_yaml(write_yolo(tmp_path / "yolo"))
    voc = write_voc(tmp_path / "voc")
    (voc / "ImageSets" / "Main" / "val.txt").write_text("zwei\n")

    def detect(inputs):
        boxes, scores = np.zeros((1, 1, 4), "float32"), np.zeros((1, 1), "float32")
        classes = np.full((1, 1), -1, "int32")
        return {"boxes": boxes, "scores": scores, "classes": classes}

    for data, names, what in (
        (tmp_path / "yolo", ["red cell", "platelet"], "images/val"),
        (voc, ["cat", "dog"], "1 images with boxes of val.txt"),
    ):
        result = Result("detection", names, image_size=[20, 20], normalize="unit")
        network = Network(detect, {"images": (None, 20, 20, 3)}, result, None, True)
        settings = Settings("model", data)
        found = evaluate_model(network, settings, count=1, min_score=0.5)
        assert what in found.what
    for number, split in enumerate(("train", "val")):
        write_image(tmp_path / "roads" / split / "a.png", (4, 6), seed=number)
        mask = np.maximum(number, np.arange(24).reshape(4, 6) % 2)
        write_mask(tmp_path / "roads" / f"{split}annot" / "a.png", mask)
    logits = np.zeros((1, 4, 6, 2), "float32")
    logits[..., 1] = 1
    result = Result("segmentation", ["road", "sky"])
    shapes = {"images": (None, None, None, 3)}
    network = Network(lambda inputs: logits, shapes, result, None, is_exported=True)
    settings = Settings("model", tmp_path / "roads")
    found = evaluate_model(network, settings, count=1, min_score=0.5)
    assert found.figures["pixel_accuracy"] == 1 and found.what.endswith("roads/val")
