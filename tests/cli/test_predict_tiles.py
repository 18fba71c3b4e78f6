"""`keras-attn predict --tiles`: images larger than the input of a model."""

import contextlib
import json

import keras
import numpy as np
import pytest
from data.image_sets import write_image
from PIL import Image

from keras_attn import export
from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.prediction import image_inputs
from keras_attn.cli.prediction.image_inputs import Tiling, make_tiling
from keras_attn.cli.prediction.network import Network
from keras_attn.cli.prediction.pictures import predict_masks, predict_objects
from keras_attn.data.images.instance_masks import decode_mask

NAMES = ["dark", "middle", "bright"]


def pixel_model(size):
    """Looks at each pixel alone: logits of three classes by its brightness."""
    inputs = keras.Input((*size, 3), name="images")
    layer = keras.layers.Conv2D(3, 1, name="logits")
    model = keras.Model(inputs, layer(inputs))
    kernel = np.tile(np.array([-1.0, 0.25, 1.0]) / 3, (1, 1, 3, 1))
    layer.set_weights([kernel, np.array([0.5, 0.3, -0.5])])
    return model


def expected_labels(pixels):
    brightness = pixels.mean(-1) / 255
    scores = [0.5 - brightness, 0.3 + 0.25 * brightness, brightness - 0.5]
    return np.argmax(scores, 0)


@pytest.fixture
def folder(tmp_path):
    """A fine-tuned folder, and what it says of images of several sizes."""
    run = tmp_path / "run"
    run.mkdir()
    pixel_model((16, 24)).save(run / "model.keras")
    Result(
        "segmentation", NAMES, image_size=[16, 24], channels=3, normalize="unit"
    ).save(run)
    sizes = [(37, 61), (16, 50), (16, 24), (29, 24)]
    for number, size in enumerate(sizes):
        write_image(tmp_path / "photos" / f"{number}.png", size, seed=number)
    return run


def check_masks(command, model, photos, *options):
    masks = photos.parent / "masks"
    given = ["predict", model, photos, "--masks", masks, "--tiles", *options]
    assert command(*given) == 0, command.err
    rows = command.rows()
    assert len(rows) == 4
    for row in rows:
        pixels = np.asarray(Image.open(row["file"]))
        found = np.asarray(Image.open(row["mask"]))
        expected = expected_labels(pixels)
        np.testing.assert_array_equal(found, expected)
        assert float(row["share_dark"]) == pytest.approx((expected == 0).mean(), 1e-4)


def test_joined_masks_are_exact(command, folder, tmp_path):
    """Of a model that looks at each pixel alone."""
    photos = tmp_path / "photos"
    check_masks(command, folder, photos, "model")
    given = ["model", "--tile-overlap", 0.6, "--batch-size", 3]
    check_masks(command, folder, photos, *given)
    # An image that is smaller than a tile is enlarged, as it is without tiles.
    small = tmp_path / "small.png"
    write_image(small, (5, 7))
    outputs = []
    for options in ([], ["--tiles", "model"]):
        assert command("predict", folder, small, *options) == 0
        outputs.append(command.out)
    assert outputs[0] == outputs[1] and "small.png" in outputs[0]


@pytest.mark.runs
def test_an_exported_file_takes_tiles(command, folder, tmp_path):
    """ONNX of one image at a time, and of any number."""
    photos = tmp_path / "photos"
    model = keras.saving.load_model(folder / "model.keras")
    for batch_size in (1, None):
        path = folder / f"{batch_size}.onnx"
        export.export(model, path, batch_size=batch_size)
        check_masks(command, path, photos, "model")


def network_of(call, image_size=(16, 24), shape=(None, 16, 24, 3), **given):
    size = None if image_size is None else list(image_size)
    result = Result(**{"task": "segmentation", "class_names": NAMES, **given})
    result = Result(**{**vars(result), "image_size": size})
    return Network(call, {"images": shape}, result, None, is_exported=True)


def test_a_model_of_images_of_any_size(tmp_path):
    """Tiles of the size that is asked for; smaller images as they are."""
    sizes = []

    def segment(inputs):
        sizes.append(inputs["images"].shape)
        return np.stack([inputs["images"][..., 0], 128 - inputs["images"][..., 1]], -1)

    network = network_of(
        segment, None, (None, None, None, 3), class_names=["road", "sky"]
    )
    pixels = write_image(tmp_path / "a.png", (31, 17))
    options = Tiling((16, 24), 0.25, 2)
    (row,) = predict_masks(network, [str(tmp_path)], folder=None, tiling=options)
    assert sizes == [(2, 16, 17, 3), (1, 16, 17, 3)]
    sky = (128 - pixels[..., 1].astype(int) > pixels[..., 0]).mean()
    assert row["share_sky"] == pytest.approx(sky, abs=1e-6)
    with pytest.raises(ValueError, match="--tiles must be rows and columns, such as"):
        make_tiling(network, "model", None, 1)


def test_tiles_of_another_size_are_resized_as_images_are(tmp_path):
    """Tiles of twice the size of the input, of squares of two pixels."""
    squares = np.random.default_rng(0).integers(0, 2, (20, 30)) * 255
    pixels = np.repeat(np.kron(squares, np.ones((2, 2), int))[..., None], 3, -1)
    Image.fromarray(pixels.astype("uint8")).save(tmp_path / "a.png")
    shapes = []

    def segment(inputs):
        shapes.append(inputs["images"].shape)
        gray = inputs["images"][..., 0] / 255
        return np.stack([0.5 - gray, 0 * gray, gray - 0.5], -1)

    # Tiles begin at even pixels.
    tiling = Tiling((32, 48), 0.25, 5)
    network = network_of(segment, normalize=None)
    (row,) = predict_masks(
        network, [str(tmp_path)], folder=tmp_path / "masks", tiling=tiling
    )
    assert shapes == [(4, 16, 24, 3)]
    found = np.asarray(Image.open(row["mask"]))
    np.testing.assert_array_equal(found, np.where(pixels[..., 0] > 0, 2, 0))


def bright_box(inputs):
    """A box around the bright pixels of each image, and its mask; twice as scores."""
    found: dict = {"boxes": [], "scores": [], "classes": [], "masks": []}
    for image in inputs["images"]:
        rows, columns = (np.flatnonzero((image[..., 0] > 0.5).any(x)) for x in (1, 0))
        box, is_found = np.zeros(4), len(rows) > 0
        if is_found:
            box[:] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
        found["boxes"].append([box, np.zeros(4)])
        found["scores"].append([0.9 * is_found, 0])
        found["classes"].append([1 if is_found else -1, -1])
        found["masks"].append(np.full((2, 3, 3), 1e6))
    return {name: np.asarray(x, "float32") for name, x in found.items()}


@pytest.mark.parametrize("batch_size", [1, 5, 100])
def test_an_object_over_a_seam_is_written_once(tmp_path, batch_size):
    size = (70, 100)
    places = {"a": (2, 5, 22, 29), "b": (14, 20, 20, 27), "c": (58, 93, 70, 100)}
    for name, (top, left, bottom, right) in places.items():
        pixels = np.zeros((*size, 3), "uint8")
        pixels[top:bottom, left:right] = 255
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    Image.fromarray(np.zeros((*size, 3), "uint8")).save(tmp_path / "d.png")
    calls = []

    def detect(inputs):
        calls.append(len(inputs["images"]))
        return bright_box(inputs)

    given = {"task": "instance_segmentation", "normalize": "unit"}
    network = network_of(detect, (40, 48), (None, 40, 48, 3), **given)
    tiling = make_tiling(network, "model", 0.6, batch_size)
    options = {"min_score": 0.5, "as_lists": False, "tiling": tiling}
    drawn = tmp_path / "drawn"
    rows = list(predict_objects(network, [str(tmp_path)], **options, drawn=drawn))
    assert len(rows) == 4 and len(list(drawn.iterdir())) == 4
    for row, (top, left, bottom, right) in zip(rows, places.values(), strict=False):
        sides = [row[name] for name in ("top", "left", "bottom", "right")]
        assert sides == [top, left, bottom, right] and row["label"] == "middle"
        mask = decode_mask(json.loads(row["segmentation"]), *size)
        expected = np.zeros(size, bool)
        expected[top:bottom, left:right] = True
        np.testing.assert_array_equal(mask, expected)
    # An image without objects is written, too.
    assert rows[3].pop("file").endswith("d.png")
    assert set(rows[3]) == set(rows[0]) - {"file"}
    assert set(rows[3].values()) == {None}
    tiles = 3 * 4
    assert calls == [n for _ in "abcd" for n in parts_of(tiles, batch_size)]


def parts_of(count, size):
    return [min(size, count - first) for first in range(0, count, size)]


def test_progress_is_that_of_tiles(tmp_path, monkeypatch):
    said = []

    @contextlib.contextmanager
    def counting(description):
        said.append(description)
        yield lambda done, total: said.append((done, total))

    monkeypatch.setattr(image_inputs, "counting", counting)
    for name in "ab":
        write_image(tmp_path / f"{name}.png", (16, 40))

    def segment(inputs):
        return np.zeros((*inputs["images"].shape[:3], 3), "float32")

    tiling = Tiling((16, 24), 0.25, 1)
    assert list(
        predict_masks(network_of(segment), [str(tmp_path)], folder=None, tiling=tiling)
    )
    steps = [0, 0.5, 1, 1, 1.5, 2]
    assert said == ["Predicting", *((step, 2) for step in steps)]


def test_what_tiles_are_not_for(command, folder, tmp_path):
    photos = tmp_path / "photos"
    line = command.refuses("predict", folder, photos, "--tile-overlap", 0.5)
    assert "--tile-overlap needs --tiles. Received: --tile-overlap 0.5" in line
    for size in ("0", "5x", "3x4x5", "big", "²"):
        line = command.refuses("predict", folder, photos, "--tiles", size)
        assert "--tiles must be one number, or rows and columns" in line
    Result("image_classification", NAMES, preprocessing={}).save(folder)
    for option in (["--tiles", "model"], ["--tile-overlap", "0.5"]):
        line = command.refuses("predict", folder, photos, *option)
        assert f"{option[0]} has no meaning for a model of image_classification" in line
