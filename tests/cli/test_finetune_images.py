"""`keras-attn finetune` on images, with classes, masks and boxes, and `predict`."""

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from cli.finetuning_data import write_boxes, write_photos
from data.image_sets import truncate, write_image, write_mask, write_voc
from parity.folders import CHECKPOINTS
from PIL import Image

from keras_attn import models
from keras_attn.cli.finetuning.kinds import find_kind
from keras_attn.cli.finetuning.objects import ObjectJob
from keras_attn.cli.finetuning.pixels import PixelJob
from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.finetuning.source import Source, find_source
from keras_attn.cli.prediction.inputs import list_files
from keras_attn.cli.prediction.network import Network
from keras_attn.cli.prediction.pictures import predict_masks, predict_objects
from keras_attn.data import detection_dataset, read_coco
from keras_attn.data.images.instance_masks import decode_mask
from keras_attn.metrics import DetectionScoreLogger
from keras_attn.viz.drawing.panels import class_colors

pytestmark = pytest.mark.usefixtures("eager_runs")


def test_files_that_are_no_pictures_are_counted(command, tmp_path, capsys):
    photos = tmp_path / "photos"
    for number in range(6):
        shade = "dark" if number % 2 else "bright"
        name = f"{number}.{('png', 'webp', 'gif')[number // 2]}"
        write_image(photos / shade / name, (17, 23), seed=number)
    (photos / "dark" / "clip.heic").write_bytes(b"")
    write_image(photos / "cover.png", (17, 23))
    model = CHECKPOINTS / "vit_classifier"
    assert command("finetune", model, photos, "--plan") == 0
    assert "5 images to train on, 1 to validate on" in command.out
    assert "left out 2: cover.png must be in the folder of its class" in command.out
    assert "clip.heic must be a picture" in command.out
    assert len(list_files([str(photos)])) == 7
    assert "1 file of another kind (.heic 1)" in capsys.readouterr().err


@pytest.mark.runs
def test_images_of_classes_are_learned(command, tmp_path):
    photos, folder = write_photos(tmp_path / "photos"), tmp_path / "run"
    given = ["finetune", CHECKPOINTS / "vit_classifier", photos, "--epochs", 1]
    assert command(*given, "--run-dir", folder) == 0
    assert "image_classification, because 2 folders" in command.out
    assert "2 classes: bright" in command.out
    assert command("predict", folder, photos, "--batch-size", 4, "--all-scores") == 0
    rows = command.rows()
    card = (folder / "README.md").read_text()
    assert 'base_model: "vit_classifier"' in card and "fine-tuned on" in card
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
    # Nothing is fine-tuned.
    assert "unet is a name from `keras-attn list`: its weights are" in command.out
    assert "Trained from random weights: nothing was fine-tuned." in command.out
    card = (folder / "README.md").read_text()
    assert "`unet`, trained from random weights on images and masks." in card
    assert "base_model" not in card and "fine-tuned on" not in card
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
    rows = command.rows()
    assert [Path(row["mask"]).name for row in rows] == ["0.png", "1.png", "2.png"]
    np.testing.assert_array_equal(np.asarray(Image.open(masks / "1.png")), expected)
    assert float(rows[1]["share_foreground"]) == pytest.approx(expected.mean())
    assert 0.4 < expected.mean() < 0.6
    images, other = cells / "images", tmp_path / "other"
    line = command.refuses("predict", folder, images, "--masks", images)
    assert "--masks must not be the folder of the images" in line
    truncate(images / "2.png")
    line = command.refuses("predict", folder, images, "--masks", other)
    assert "2.png must be a complete" in line and not other.exists()


def test_boxes_are_read(command, tmp_path):
    """A detector takes too long to compile for a whole run."""
    path = write_boxes(tmp_path / "boxes.json", tmp_path / "images")
    for data in (path, tmp_path):
        assert command("finetune", "faster_rcnn_resnet50", data, "--plan") == 0
        assert "detection, because boxes.json is COCO's" in command.out
        assert "2 images with 2 boxes to train on, 1 images to" in command.out
        assert "2 classes: cell, ring" in command.out


def test_masks_of_objects_are_learned(command, tmp_path):
    """A Mask R-CNN on polygons: all but `fit`, and what it cannot learn."""
    files = tmp_path / "boxes.json", tmp_path / "images"
    path = write_boxes(*files, segmentation=[[1, 2, 10, 2, 10, 10, 1, 10]])
    model = CHECKPOINTS / "maskrcnn_resnet50_fpn"
    few = {"num_proposals": 5, "max_detections": 3, "num_training_proposals": 5}
    few |= {"detection_options": {"num_samples": 8, "max_candidates": 8}}
    settings = Settings(str(model), path, image_size="24x32")
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
    assert "`--task detection` learns only from boxes" in line
    assert command("finetune", model, write_boxes(*files), *options, "--plan") == 0
    assert "detection, because" in command.out
    name, *masks = "mask_rcnn_resnet50", "--task", "instance_segmentation", "--plan"
    voc = write_voc(tmp_path / "voc")
    line = command.refuses("finetune", name, voc, *masks)
    assert "needs COCO's JSON with a `segmentation` of each object" in line


def test_boxes_are_those_of_the_file(tmp_path):
    """An input of 8 × 8 pixels holds the image of 24 × 32 as 6 × 8."""
    write_boxes(tmp_path / "boxes.json", tmp_path / "images")
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
    # Drawn at the size of the file: the mask in the color of its class over the image.
    given["drawn"] = tmp_path / "drawn"
    assert len(list(predict_objects(network, [str(tmp_path / "images")], **given))) == 3
    image = np.asarray(Image.open(tmp_path / "images" / "0.png").convert("RGB"), float)
    drawn = np.asarray(Image.open(tmp_path / "drawn" / "0.png"), float)
    assert drawn.shape == (24, 32, 3)
    np.testing.assert_allclose(drawn[:, 20:], image[:, 20:], atol=1)
    color = 255 * class_colors(2)[1]
    np.testing.assert_allclose(
        drawn[20:22, 6:10], 0.55 * image[20:22, 6:10] + 0.45 * color, atol=1
    )
    given["drawn"] = tmp_path / "images"
    with pytest.raises(ValueError, match="--save-images must not be the folder of"):
        list(predict_objects(network, [str(tmp_path / "images")], **given))


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
    drawn = tmp_path / "drawn"
    assert list(predict_masks(network, [str(tmp_path)], folder=None, drawn=drawn))
    image = np.asarray(Image.open(tmp_path / "1.png").convert("RGB"), float)
    found = np.asarray(Image.open(drawn / "1.png"), float)
    # The first class, a background, is the image itself.
    assert found.shape == (3, 5, 3)
    np.testing.assert_allclose(found[:, :3], image[:, :3], atol=1)


def test_classes_of_pixels_weigh_the_same(command, tmp_path):
    """A U-Net on masks with ignored pixels, and a class that occurs once."""
    cells = tmp_path / "cells"
    for number in range(2):
        write_image(cells / "images" / f"{number}.png", (16, 16), seed=number)
        labels = np.zeros((16, 16), int)
        labels[:4], labels[4, :2], labels[8:] = 1, 2 * (1 - number), 255
        write_mask(cells / "masks" / f"{number}.png", labels)
    names = cells / "classes.txt"
    names.write_text("road\nsky\nsign\nrail\n")
    options = ["--validation", cells, "--class-weights", "balanced"]
    unet = ["--override", "padding=same", "--override", "hidden_dims=[2, 3]"]
    assert command("finetune", "unet", cells, *options, *unet, "--plan") == 0
    # Of 256 pixels in 4 classes: 126, 128 and 2.
    expected = [64 / 126, 64 / 128, 64 / 2, 0]
    assert (
        "weights of the classes in the loss: 0.508, 0.5, 32, 0 (balanced: the mean "
        "number of pixels of a class, divided by its own)" in command.out
    )
    overrides = {"padding": "same", "hidden_dims": [2, 3]}
    settings = Settings("unet", cells, validation=cells, class_weights="balanced")
    job = PixelJob(settings, find_kind(settings, cells), find_source("unet", overrides))
    model = job.source.load(job.head, job.options())
    job.prepare(model)
    train, validation = job.batches(None)
    (x, labels, weights), (_, plain) = next(iter(train)), next(iter(validation))
    np.testing.assert_allclose(
        weights, np.append(expected, np.zeros(252))[labels], rtol=1e-6
    )
    sums = [weights.numpy()[labels == each].sum() for each in (*range(4), 255)]
    assert sums == pytest.approx([64, 64, 64, 0, 0]) and plain.shape == labels.shape
    # The mean over what is not ignored, and the same of each class.
    job.compile(model, optimizer="sgd")
    logits = model(x).numpy()
    logs = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
    losses = -np.take_along_axis(logs, labels.numpy().clip(0, 3)[..., None], -1)[..., 0]
    means = [losses[labels == each].mean() for each in range(3)]
    found = model.test_on_batch(x, labels, weights, return_dict=True)
    assert found["loss"] == pytest.approx(np.mean(means), rel=1e-5)
    # Several outputs, as an FCN's in training.
    job.output_names = ("auxiliary_logits", "logits")
    for place in (1, 2):
        assert set(next(iter(job.batches(None)[0]))[place]) == set(job.output_names)
    # A model does not say another range than the one that it learned from.
    model.preprocessing = {"do_resize": False, "image_mean": 0.4, "image_std": 0.3}
    job.settings = replace(settings, pixels="unit")
    job.prepare(model)
    assert model.preprocessing is None


def test_a_folder_without_images_is_refused(command, tmp_path):
    line = command.refuses("finetune", CHECKPOINTS / "vit_classifier", tmp_path)
    assert "with 0 images and no subfolder" in line
