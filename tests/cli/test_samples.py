"""`--samples` of images, for `export` and `verify`."""

import keras
import numpy as np
import pytest
from PIL import Image
from refusals import refuses

from keras_attn.cli import samples
from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.opened_model import OpenedModel
from keras_attn.cli.prediction.image_inputs import fitted_image
from keras_attn.cli.samples import read_samples
from keras_attn.data.images.image_files import read_image
from keras_attn.models import image_preprocessing
from keras_attn.models.parts.functional import Functional


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photos of two classes and of different sizes, and a file that is no image."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(5)
    for name, size in (("cat/0", (9, 13)), ("cat/1", (20, 31)), ("dog/0", (17, 11))):
        file = folder / f"{name}.png"
        file.parent.mkdir(exist_ok=True)
        picture = random.integers(0, 256, (*size, 3)).astype("uint8")
        Image.fromarray(picture).save(file)
    (folder / "labels.txt").write_text("cat\n")
    return folder


@pytest.fixture(scope="module")
def image_models(tmp_path_factory):
    """Convolutions of images of any size and of 11 × 7 pixels, and a dense layer."""
    folder = tmp_path_factory.mktemp("image_models")
    keras.utils.set_random_seed(1)
    for name, size in (("any", (None, None)), ("fixed", (11, 7))):
        images = keras.Input((*size, 3), name="images")
        scores = keras.layers.Conv2D(5, 1)(images)
        keras.Model(images, scores).save(folder / f"{name}.keras")
    features = keras.Input((7,), name="features")
    keras.Model(features, keras.layers.Dense(3)(features)).save(folder / "mlp.keras")
    return folder


def samples_of(path, photos, *, pixels="unit", length=None, shapes=None):
    opened = OpenedModel(path, keras.saving.load_model(path))
    return read_samples(photos, opened, shapes or {}, length, None, pixels)


@pytest.mark.parametrize(
    "pixels, low, high",
    [
        ("unit", 0, 1),
        ("signed", -1, 1),
        ("bytes", 0, 255),
        ("imagenet", (0 - 0.485) / 0.229, (1 - 0.406) / 0.225),
    ],
)
def test_images_have_the_size_and_the_range_of_the_model(
    photos, image_models, pixels, low, high
):
    model = image_models / "fixed.keras"
    found = samples_of(model, photos, pixels=pixels)
    assert found.shape == (3, 11, 7, 3) and found.dtype == "float32"
    assert low <= found.min() < low + (high - low) / 4
    assert high - (high - low) / 3 < found.max() <= high + 1e-6
    # One file of the size of the model is read as it is.
    exact = np.arange(11 * 7 * 3, dtype="uint8").reshape(11, 7, 3)
    file = photos.parent / f"{photos.name}.png"
    Image.fromarray(exact).save(file)
    found = samples_of(model, file)
    np.testing.assert_allclose(found[0], exact / np.float32(255), rtol=1e-6)


def test_images_for_a_model_of_any_size(photos, image_models):
    model = image_models / "any.keras"
    match = r"of one size .*0.png of \(9, 13\) and 1.png of \(20, 31\) pixels"
    refuses(match, samples_of, model, photos)
    assert samples_of(model, photos, length=19).shape == (3, 19, 19, 3)
    # `verify` knows what the artefact takes.
    shapes = {"images": (None, 5, 8, 3)}
    assert samples_of(model, photos, shapes=shapes).shape == (3, 5, 8, 3)


def test_too_many_images_are_drawn_evenly(
    photos, image_models, tmp_path, monkeypatch, capsys
):
    for number in range(5):
        color = Image.new("L", (7, 11), 51 * number)
        color.save(tmp_path / f"{number}.png")
    monkeypatch.setattr(samples, "_MAX_IMAGES", 2)
    found = samples_of(image_models / "fixed.keras", tmp_path, pixels="bytes")
    assert found[:, 0, 0, 0].round().tolist() == [0, 102]
    assert "--samples: 2 of 5 images are used." in "".join(capsys.readouterr())


PREPROCESSING = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 12},
    "crop_size": {"height": 11, "width": 7},
    "resample": 3,
    "image_mean": [0.25, 0.5, 0.5],
    "image_std": [0.5, 1, 0.25],
}


@pytest.fixture(scope="module")
def described(image_models):
    """A function that gives a model of 11 × 7 pixels, or of any, a preprocessing."""

    def describe(fields, name="fixed"):
        model = keras.saving.load_model(image_models / f"{name}.keras")
        model = Functional(model.input, model.output)
        model.preprocessing = fields
        return OpenedModel(image_models, model)

    return describe


def test_other_files_of_the_folder_are_counted(photos, capsys):
    hidden = photos / "cat" / "._0.png"
    hidden.write_bytes(b"x")
    files = samples._image_files(photos)
    assert [path.name for path in files] == ["0.png", "1.png", "0.png"]
    hidden.unlink()
    said = capsys.readouterr().out
    assert "1 file of another kind (.txt 1), 1 hidden file" in said


def test_images_are_prepared_as_the_checkpoint_says(photos, described):
    found = read_samples(photos, described(PREPROCESSING), {}, None, None, None)
    assert found.dtype == "float32"
    layer = image_preprocessing(PREPROCESSING)
    for file, image in zip(sorted(photos.rglob("*.png")), found, strict=True):
        np.testing.assert_array_equal(image, layer(read_image(file)[None])[0])
    # A value range that is given takes precedence.
    unit, other = (
        read_samples(photos, described(fields), {}, None, None, "unit")
        for fields in (PREPROCESSING, None)
    )
    np.testing.assert_array_equal(unit, other)


def test_a_preprocessing_that_cannot_be_followed(photos, described):
    opened = described({"image_mean": [0.5], "image_std": [0.25]})
    with pytest.raises(ValueError, match="--pixels must be given, because.*`size` of"):
        read_samples(photos, opened, {}, None, None, None)
    opened = described(PREPROCESSING, "any")
    match = r"for images of 19 × 19 pixels: .* a different size. Received: \(11, 7\)"
    refuses(match, read_samples, photos, opened, {}, 19, None, None)


@pytest.mark.shipped
def test_an_int8_file_from_a_folder_of_images(command, photos, image_models):
    model, artefact = image_models / "fixed.keras", image_models / "m.tflite"
    options = ["--samples", photos, "--pixels", "signed"]
    assert command("export", model, artefact, "--quantization", "int8", *options) == 0
    assert "root mean square error relative to the output" in command.out
    assert "agreement by class" in command.out
    assert command("verify", model, artefact, *options) == 0
    assert "int8" in command.out and "agrees with" in command.out


def test_images_that_are_refused(command, photos, image_models, tmp_path):
    target, broken = tmp_path / "m.tflite", tmp_path / "broken.png"
    empty, unit = tmp_path / "empty", ["--pixels", "unit"]
    empty.mkdir()
    broken.write_bytes(b"no image")
    command.refuses_each(
        ["export", image_models / "fixed.keras", target],
        ("--pixels must be the value range", "--samples", photos),
        ("signed", "--samples", photos),
        ("must be a folder with images", "--samples", empty, *unit),
        ("--pixels requires an image or a folder", *unit),
        ("broken.png", "--samples", broken, *unit),
    )
    given = ["export", image_models / "mlp.keras", target, "--samples", photos]
    line = command.refuses(*given, *unit)
    assert "MODEL must take one input, images" in line and "(7,)" in line
    assert not target.exists()


def test_images_are_prepared_as_the_run_says(photos, image_models, tmp_path):
    """As `predict` prepares them."""
    network = keras.saving.load_model(image_models / "any.keras")
    fields = {**PREPROCESSING, "size": {"height": 11, "width": 7}}
    fields["do_center_crop"] = False
    Result("image_classification", preprocessing=fields).save(tmp_path)
    opened = OpenedModel(tmp_path, network)
    found = read_samples(photos, opened, {}, None, None, None)
    files = sorted(photos.rglob("*.png"))
    layer = image_preprocessing(fields)
    for file, image in zip(files, found, strict=True):
        expected = layer(read_image(file)[None])[0]
        np.testing.assert_array_equal(image, expected)
    result = Result("segmentation", image_size=[12, 16], normalize="imagenet")
    result.save(tmp_path)
    found = read_samples(photos, opened, {}, None, None, None)
    assert found.shape == (3, 12, 16, 3)
    for file, image in zip(files, found, strict=True):
        np.testing.assert_array_equal(image, fitted_image(result, read_image(file))[0])
    assert read_samples(photos, opened, {}, 8, None, None).shape == (3, 8, 8, 3)
    # A value range that is given takes precedence.
    unit = read_samples(photos, opened, {}, 8, None, "unit")
    assert unit.min() >= 0 and unit.max() <= 1
