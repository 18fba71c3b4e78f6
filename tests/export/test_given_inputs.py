"""Runners called with texts and images, and what artefacts say about both."""

import io
import zipfile

import flatbuffers
import keras
import numpy as np
import pytest
from export_formats import SUFFIXES
from flatbuffers import number_types as flags
from PIL import Image

from keras_attn import models
from keras_attn.export import ExportError, export, load_runner
from keras_attn.export.description import STEPS, Description, from_json
from keras_attn.export.given_inputs import preprocess
from keras_attn.export.metadata import IndexRanges
from keras_attn.export.runner import Runner, SignatureInfo, TensorInfo
from keras_attn.layers import ImagePreprocessing
from keras_attn.models.parts.functional import Functional

FIELDS = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 17},
    "crop_size": {"height": 13, "width": 13},
    "image_mean": [0.5, 0.25, 1.0],
    "image_std": [0.5, 2.0, 1.0],
}
NAMES = ("a cat", "ein Hund ä", "two\nlines")


def photo(rows, columns, channels=3):
    rng = np.random.default_rng(rows)
    return rng.integers(0, 256, (rows, columns, channels)).astype("uint8")


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1)
    images = keras.Input((13, 13, 3), name="images")
    pooled = keras.layers.GlobalAveragePooling2D()(images)
    logits = keras.layers.Dense(3, name="logits")(pooled)
    model = Functional(images, logits)
    model.class_names, model.preprocessing = NAMES, FIELDS
    return model


@pytest.mark.parametrize(
    "options",
    [
        {"size": 17, "crop_size": 13},
        {"size": 11, "crop_size": [13, 17], "crop_offset": "round"},
        {"size": [7, 19], "resample": "lanczos", "mean": [0.5, 0, 1], "std": 3.0},
        {"size": [11, 19], "covers": True, "crop_size": [10, 17]},
        {"size": [5, 31], "resample": "bilinear", "passes": "columns_first"},
        {"size": None, "crop_size": 29, "crop_offset": "round", "scale": 1.0},
        {"size": None},
    ],
)
@pytest.mark.parametrize("sides", [(31, 47), (101, 23), (17, 13)])
def test_pillow_computes_what_the_layer_does(options, sides):
    layer = ImagePreprocessing(**options)
    config = layer.get_config()
    found = preprocess(photo(*sides), {name: config[name] for name in STEPS})
    np.testing.assert_allclose(found, layer(photo(*sides)[None])[0], atol=1e-6)
    assert found.dtype == "float32"


def member(table, slot):
    """The table in a slot of metadata_schema.fbs."""
    place = table.Pos + table.Offset(4 + 2 * slot)
    return flatbuffers.table.Table(table.Bytes, table.Indirect(place))


def first_of(table, slot):
    """The only table of a vector of them."""
    place = table.Offset(4 + 2 * slot)
    assert table.VectorLen(place) == 1
    return flatbuffers.table.Table(table.Bytes, table.Indirect(table.Vector(place)))


def check_task_metadata(path):
    """What LiteRT's Task Library reads: labels, and the normalization of a pixel.

    The `ImageClassifier` of tflite-support 0.4.4 and of MediaPipe 1.2.3 have read such
    a file: their names and scores were the runner's.
    """
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    content = path.read_bytes()
    file = schema.Model.GetRootAs(content, 0)
    entries = [file.Metadata(number) for number in range(file.MetadataLength())]
    (entry,) = [each for each in entries if each.Name() == b"TFLITE_METADATA"]
    found = file.Buffers(entry.Buffer()).DataAsNumpy().tobytes()
    assert found[4:8] == b"M001"
    start = int.from_bytes(found[:4], "little")
    graph = first_of(flatbuffers.table.Table(found, start), 3)
    tensor, output = first_of(graph, 2), first_of(graph, 3)
    assert tensor.String(tensor.Pos + tensor.Offset(4)) == b"images"
    content = member(tensor, 3)
    assert content.Get(flags.Uint8Flags, content.Pos + content.Offset(4)) == 2  # Image
    image = member(content, 1)
    assert image.Get(flags.Uint8Flags, image.Pos + image.Offset(4)) == 1  # RGB
    unit = first_of(tensor, 4)
    assert unit.Get(flags.Uint8Flags, unit.Pos + unit.Offset(4)) == 1  # Normalization
    options = member(unit, 1)
    for slot, name in enumerate(("image_mean", "image_std")):
        numbers = options.GetVectorAsNumpy(
            flags.Float32Flags, options.Offset(4 + 2 * slot)
        )
        np.testing.assert_allclose(numbers, 255 * np.array(FIELDS[name]), rtol=1e-6)
    labels = first_of(output, 6)
    assert labels.String(labels.Pos + labels.Offset(4)) == b"labels.txt"
    assert (
        labels.Get(flags.Uint8Flags, labels.Pos + labels.Offset(8)) == 2
    )  # Of an axis


@pytest.mark.shipped
@pytest.mark.parametrize("suffix", SUFFIXES.values())
def test_classes_and_preprocessing_travel(model, suffix, tmp_path):
    path = tmp_path / f"m{suffix}"
    export(model, path, batch_size=2)
    runner = load_runner(path)
    assert runner.class_names == NAMES
    layer = models.image_preprocessing(model)
    assert runner.preprocessing is not None
    same = ImagePreprocessing(**runner.preprocessing, name=layer.name)
    assert same.get_config() == layer.get_config()
    pictures = [photo(31, 47), photo(19, 23), photo(13, 13)]
    file = tmp_path / "p.png"
    Image.fromarray(pictures[0]).save(file)
    want = np.concatenate([model(layer(each[None])) for each in pictures])
    given = [str(file), Image.fromarray(pictures[1]), pictures[2]]
    # Three images for a file of two rows.
    found = runner(given)["logits"]
    np.testing.assert_allclose(found, want, atol=1e-5)
    np.testing.assert_allclose(runner(file)["logits"], want[:1], atol=1e-5)
    with pytest.raises(TypeError, match="`tokenizer` must be a folder, .*tokenizer=3"):
        load_runner(path, tokenizer=3)
    floats = np.asarray(layer(pictures[1][None]))
    np.testing.assert_allclose(runner(floats)["logits"], want[1:2], atol=1e-5)
    with pytest.raises(ValueError, match="`images` must be normalized.* to 200"):
        runner(np.full((1, 13, 13, 3), 200.0))  # As Keras' `img_to_array` returns.
    with pytest.raises(ValueError, match="must be at least one image"):
        runner(np.zeros((0, 13, 13, 3), "uint8"))
    rows = runner.decode_predictions(found, top=1)
    assert [row[0][0] for row in rows] == want.argmax(-1).tolist()
    if suffix == ".tflite":
        with zipfile.ZipFile(path) as archive:
            text = archive.read("labels.txt").decode()
        assert text.splitlines() == ["a cat", "ein Hund ä", "two lines"]
        check_task_metadata(path)
    if suffix == "":
        damaged = path / "assets.extra" / "keras_attn_description.json"
        damaged.write_text('{"class_names": [1]}')
        with pytest.raises(ExportError, match="`class_names` as a list of strings"):
            load_runner(path)


def test_an_unusable_description_is_refused():
    assert from_json(None) == Description()
    with pytest.raises(ValueError, match="must hold `preprocessing` with size, crop"):
        from_json(b'{"preprocessing": {"size": 3}}')


class Returns:
    """A runtime that returns its inputs, of the given shapes."""

    format = "onnx"
    index_ranges: IndexRanges | None = None
    description = Description()

    def __init__(self, **inputs):
        signature = SignatureInfo(inputs, {})
        self.signatures = {"serve": signature}
        if "text" in inputs:
            pair = {**inputs, "text_pair": inputs["text"]}
            self.signatures["serve_pair"] = SignatureInfo(pair, {})

    def call(self, signature, inputs, in_place):
        return inputs


class Letters:
    """A tokenizer of letters."""

    def encode_batch(
        self, texts, second=None, max_length=None, pad_to_max_length=False
    ):
        rows = [[ord(letter) for letter in text][:max_length] for text in texts]
        longest = max(map(len, rows))
        width = max(longest, max_length or 0) if pad_to_max_length else longest
        ids = np.array([row + [0] * (width - len(row)) for row in rows])
        return {"token_ids": ids, "padding_mask": ids > 0, "segment_ids": 0 * ids}


TEXTS = TensorInfo((None,), "string")
PIXELS = TensorInfo((None, None, None, 3), "float32")


def test_texts():
    runner = Runner(Returns(text=TEXTS))
    assert runner("one")["text"].tolist() == [b"one"]
    assert runner(["one", "two"])["text"].tolist() == [b"one", b"two"]
    pairs = runner([("a", "b"), ("c", "d")])
    assert pairs["text"].tolist() == [b"a", b"c"]
    assert pairs["text_pair"].tolist() == [b"b", b"d"]
    with pytest.raises(ValueError, match="must have 2 texts a row.*: 1 texts a row"):
        runner(["one"], "serve_pair")


def test_texts_by_a_tokenizer():
    ids = {
        "token_ids": TensorInfo((2, 5), "int32"),
        "padding_mask": TensorInfo((2, 5), "bool"),
    }
    runner = Runner(Returns(**ids), Letters())
    found = runner(["ab", "cde", "f"])
    assert found["token_ids"].tolist() == [
        [97, 98, 0, 0, 0],
        [99, 100, 101, 0, 0],
        [102, 0, 0, 0, 0],
    ]
    # Longer texts than the model has positions for are cut.
    ids = {name: TensorInfo((None, None), each.dtype) for name, each in ids.items()}
    limited = Returns(**ids)
    limited.index_ranges = {
        "serve": {"token_ids": (0, 128), "length of token_ids": (1, 4)}
    }
    runner = Runner(limited, Letters())
    assert runner(["abcde", "f"])["token_ids"].tolist() == [[97, 98, 99], [102, 0, 0]]
    with pytest.raises(ValueError, match="pass its tokenizer, `load_runner.*'ab', …"):
        Runner(Returns(**ids))(["ab"])
    with pytest.raises(
        ValueError, match="must be a dictionary.*or texts.*of type ndarray"
    ):
        Runner(Returns(**ids))(np.ones((2, 5)))


def test_the_only_input_needs_no_name():
    runner = Runner(Returns(x=TensorInfo((2, 3), "float32")))
    assert runner([[1, 2, 3]] * 3)["x"].shape == (3, 3)
    with pytest.raises(ValueError, match=r"inputs\['x'\]` must"):
        runner([])


def test_images_of_unknown_preprocessing(tmp_path):
    runner = Runner(Returns(images=PIXELS))
    with pytest.raises(ValueError, match="set `model.preprocessing` before.*7 × 5 pix"):
        runner(photo(7, 5))
    with pytest.raises(FileNotFoundError):
        runner(tmp_path / "none.png")
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(ValueError, match="must be images that Pillow reads"):
        runner([tmp_path / "text.png"])
    with pytest.raises(ValueError, match="8 bits a channel.*mode 'I;16'"):
        runner(Image.fromarray(np.zeros((3, 5), "uint16")))


def test_images_of_bytes_need_one_size(tmp_path):
    raw = Runner(Returns(images=TensorInfo((None, None, None, 3), "uint8")))
    assert raw([photo(7, 5), photo(7, 5)])["images"].shape == (2, 7, 5, 3)
    with pytest.raises(ValueError, match="one size.*shapes .*(5, 7, 3).*(7, 5, 3)"):
        raw([photo(7, 5), photo(5, 7)])
    for wrong in (photo(7, 5)[..., 0], photo(7, 5, 1), photo(7, 5)[:0]):
        with pytest.raises(ValueError, match="images of uint8.* 3 channels.*: uint8 ."):
            raw([wrong])
    # An orientation of EXIF turns the image.
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(photo(7, 5)).save(tmp_path / "turned.png", exif=exif)
    assert raw(tmp_path / "turned.png")["images"].shape == (1, 5, 7, 3)
    with Image.open(tmp_path / "turned.png") as opened:
        assert raw(opened)["images"].shape == (1, 5, 7, 3)


def test_a_line_does_not_become_gigabytes():
    config = ImagePreprocessing(224, crop_size=224).get_config()
    steps = {name: config[name] for name in STEPS}
    runner = Runner(Returns(images=PIXELS))
    runner.preprocessing = steps
    with pytest.raises(ValueError, match="1 × 3000 pixels, which become 224 × 672000"):
        runner(photo(1, 3000))


def test_image_files_for_a_graph_that_decodes(tmp_path):
    runner = Runner(Returns(image_bytes=TEXTS))
    Image.fromarray(photo(7, 5)).save(tmp_path / "p.png")
    content = (tmp_path / "p.png").read_bytes()
    given = [tmp_path / "p.png", content, Image.fromarray(photo(7, 5)), photo(7, 5, 1)]
    found = runner(given)["image_bytes"].tolist()
    assert found[:2] == [content, content]
    assert all(each.startswith(b"\x89PNG") for each in found)
    files = np.array([content, content], object)
    assert runner(files)["image_bytes"].tolist() == [content, content]
    # PNG has no such mode.
    (png,) = runner(Image.new("CMYK", (5, 7)))["image_bytes"]
    assert Image.open(io.BytesIO(png)).size == (5, 7)
    for wrong in (None, 3, np.zeros((7, 5, 3)), [content, None]):
        with pytest.raises(ValueError, match="must be image files, .*of type"):
            runner(wrong)
