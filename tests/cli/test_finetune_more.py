"""Options of `keras-attn finetune`: class weights, more epochs, adapters, images."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from cli.finetuning_data import FAST, history, interrupted_after, write_photos
from parity.folders import CHECKPOINTS
from refusals import refuses

from keras_attn import models
from keras_attn.cli.finetuning.images import RandomCrop, augmentations
from keras_attn.cli.finetuning.job import balanced_weights
from keras_attn.cli.finetuning.result import read_result
from keras_attn.cli.finetuning.settings import Settings

pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")

from keras_attn.data import WordPieceTokenizer  # noqa: E402

pytestmark = pytest.mark.usefixtures("eager_runs")


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """Three good films for each bad one."""
    path = tmp_path_factory.mktemp("data") / "reviews.csv"
    lines = []
    for number in range(16):
        word = "bad" if number % 4 == 3 else "good"
        lines.append(f"{'very ' * (number % 3)}{word} film,{word}")
    path.write_text("review,label\n" + "\n".join(lines) + "\n")
    return path


def test_balanced_weights():
    weights = balanced_weights(np.array([0, 0, 0, 2]), 3)
    assert weights == {0: pytest.approx(4 / 9), 1: 0, 2: 4 / 3}
    equal = balanced_weights(np.array([0, 1, 1, 0]), 2)
    assert equal == {0: 1.0, 1: 1.0}


@pytest.mark.runs
def test_classes_weigh_the_same(command, bert, reviews, tmp_path):
    """The loss of an epoch at a rate of nearly 0, from the outputs before it."""
    still = ["--epochs", 1, "--learning-rate", 1e-9, "--override", "dropout=0.0"]
    given = ["finetune", bert, reviews, *FAST, *still]
    weighted = [*given, "--class-weights", "balanced", "--run-dir", tmp_path / "a"]
    assert command(*weighted) == 0
    assert "weights of the classes in the loss: 1.88, 0.682" in command.out
    assert "--class-weights balanced" in (tmp_path / "a" / "README.md").read_text()
    assert command(*given, "--run-dir", tmp_path / "b") == 0
    (first,), (second,) = (history(tmp_path / name) for name in "ab")
    assert first["val_loss"] == second["val_loss"]
    assert first["loss"] != second["loss"]
    scores = tmp_path / "scores.csv"
    shutil.copy(reviews, scores)
    scores.write_text(scores.read_text().replace(",bad", ",0.5").replace(",good", ",1"))
    line = command.refuses(
        "finetune", bert, scores, "--class-weights", "balanced", "--plan"
    )
    assert "--class-weights is for texts or images with a class each, and for" in line
    assert "Received: data for text_regression" in line


@pytest.mark.runs
# Keras leaves the history open when it is interrupted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_complete_run_goes_on(command, bert, reviews, tmp_path):
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    given = ["finetune", bert, reviews, *FAST, "--lora", 2]
    assert command(*given, "--epochs", 1, "--run-dir", whole) == 0
    shutil.copytree(whole, halved)
    first = history(whole)
    assert command(*given, "--epochs", 3, "--run-dir", whole) == 0
    assert f"goes on after 1 epochs of the run in {whole}" in command.out
    assert "Epoch 2/3" in command.out and "Epoch 1/3" not in command.out
    assert history(whole)[:1] == first and len(history(whole)) == 3
    result = read_result(whole)
    assert result is not None and result.epochs == 3

    more = [*given, "--epochs", 3, "--run-dir", halved]
    with interrupted_after(2):
        assert command(*more) == 130
    line = command.refuses(*given, "--epochs", 4, "--run-dir", halved)
    assert "epochs was 3, is 4" in line
    assert command(*more) == 0
    assert "Resuming the interrupted run" in command.out
    assert history(halved) == history(whole)
    first, second = (models.load_checkpoint(each) for each in (whole, halved))
    for one, other in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    line = command.refuses(*given, "--epochs", 2, "--run-dir", halved)
    assert "epochs was 3, is 2" in line


@pytest.mark.runs
def test_adapters_are_saved_alone(command, bert, reviews, tmp_path):
    folder = tmp_path / "run"
    given = ["finetune", bert, reviews, *FAST, "--epochs", 1, "--save-adapters"]
    assert "--save-adapters needs --lora" in command.refuses(*given)
    assert command(*given, "--lora", 2, "--run-dir", folder) == 0
    config = json.loads((folder / "adapters" / "adapter_config.json").read_text())
    assert config["r"] == 2 and config["base_model_name_or_path"] == str(bert)
    # On the base they are the merged model.
    base = models.load_checkpoint(folder, "classifier")
    fresh = models.load_checkpoint(folder, "classifier")
    inputs = WordPieceTokenizer.from_folder(folder).encode_batch(["so bad", "a film"])
    expected = base.predict_on_batch(inputs)
    encoder = models.load_checkpoint(bert, "encoder")
    for one, other in zip(encoder.weights, fresh.weights, strict=False):
        other.assign(one)
    models.load_lora(fresh, folder / "adapters")
    np.testing.assert_allclose(fresh.predict_on_batch(inputs), expected, atol=1e-5)


def test_augmentations():
    def made(task="image_classification", **options):
        settings = Settings("model", Path("data"), **options)
        return [type(each).__name__ for each in augmentations(settings, task)]

    assert made() == ["RandomMirror"] and made(augment=False) == []
    names = ["RandomMirror", "RandomCrop", "RandomColors", "RandomQuarterTurns"]
    assert made(augmentation="mirror, crop,colors,turns") == names
    assert made("detection", augmentation="vertical,colors") == [names[0], names[2]]
    for task, given in (
        ("detection", "crop"),
        ("segmentation", "turns"),
        ("image_classification", "mirror,mirror"),
        ("image_classification", "blur"),
    ):
        refuses("--augmentation must be different ones", made, task, augmentation=given)
    refuses("exclude each other", made, augment=False, augmentation="crop")


def test_a_part_of_an_image_is_inside_it_and_large_enough():
    rows, columns = np.mgrid[:37, :53].astype("float32")
    image = tf.stack([rows, columns, rows + columns], -1)
    shares = []
    for seed in range(60):
        found = RandomCrop()({"image": image, "class": 3}, tf.constant([7, seed]))
        part = found["image"].numpy()
        height, width = part.shape[:2]
        top, left = part[0, 0, :2].astype(int)
        expected = image.numpy()[top : top + height, left : left + width]
        np.testing.assert_array_equal(part, expected)
        shares.append(height * width / (37 * 53))
        assert found["class"] == 3
    assert 0.3 < min(shares) < 0.45 and max(shares) > 0.85
    tiny = RandomCrop()({"image": image[:1, :1]}, tf.constant([1, 2]))
    assert tiny["image"].shape == (1, 1, 3)


@pytest.mark.runs
def test_images_are_changed_as_asked(command, tmp_path):
    photos = write_photos(tmp_path / "photos")
    given = ["finetune", CHECKPOINTS / "vit_classifier", photos, "--epochs", 1]
    options = ["--augmentation", "mirror,crop,colors,turns"]
    weights = ["--class-weights", "balanced"]
    folder = tmp_path / "run"
    assert command(*given, *options, *weights, "--run-dir", folder) == 0
    assert "--augmentation mirror,crop,colors,turns" in (
        (folder / "README.md").read_text()
    )
    options = ["--augmentation", "blur", "--plan"]
    assert "one" in command.refuses(*given, *options, "--run-dir", tmp_path / "b")
