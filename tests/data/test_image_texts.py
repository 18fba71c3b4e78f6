"""Images and texts: COCO's captions, tables, named pictures; and their pipeline."""

import json
import zipfile
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from backend import skip_module_without_tensorflow
from data.tokenizer_cases import REFERENCES
from PIL import Image
from refusals import named_or_left_out, refuses

from keras_attn.data import (
    CLIPTokenizer,
    image_text_dataset,
    read_coco_captions,
    read_image_texts,
    read_named_pictures,
)
from keras_attn.data.images.image_files import ZippedFile, read_image
from keras_attn.layers import ImagePreprocessing

skip_module_without_tensorflow("tf.data feeds TensorFlow")

COLORS = {"red_heart": (200, 10, 20), "sun": (240, 220, 10), "sea": (5, 60, 190)}
TABLE = "file\tname\tother\nred_heart\ta heart\tlove\nsun\tthe sun\t\nsea\tsea\twater\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pictures" / "inner").mkdir(parents=True)
    for number, (name, color) in enumerate(COLORS.items()):
        image = Image.new("RGB", (13 + number, 11), color)
        image.save(tmp_path / "pictures" / ("inner" if number else "") / f"{name}.png")
    (tmp_path / "pictures" / "notes.txt").write_text("no picture")
    with zipfile.ZipFile(tmp_path / "pictures.zip", "w") as archive:
        for file in (tmp_path / "pictures").rglob("*.*"):
            archive.write(file, file.relative_to(tmp_path / "pictures"))
    (tmp_path / "table.tsv").write_text(TABLE)
    return tmp_path


@pytest.fixture(scope="module")
def tokenizer():
    return CLIPTokenizer.from_folder(REFERENCES / "clip")


def texts_of(data):
    return {each.name: each.texts for each in data.examples}


@pytest.mark.parametrize("source", ["pictures", "pictures.zip"])
def test_a_table_with_a_header(folder, source):
    columns: Any = {"image_column": "file", "text_columns": ["name", "other"]}
    data = read_image_texts(folder / "table.tsv", folder / source, **columns)
    texts = [("a heart", "love"), ("the sun",), ("sea", "water")]
    assert [*texts_of(data).items()] == [*zip(COLORS, texts, strict=True)]
    for example, color in zip(data.examples, COLORS.values(), strict=True):
        assert tuple(read_image(example.image_path)[0, 0]) == color
    assert len(data.check()) == 3


@pytest.mark.parametrize("source", ["pictures", "pictures.zip"])
def test_pictures_that_no_row_names_are_counted(folder, source):
    table = folder / "one.tsv"
    table.write_text("\ufeffsun\tthe sun\n", encoding="utf-8")
    data = read_image_texts(table, folder / source)
    assert texts_of(data) == {"sun": ("the sun",)}
    rest = f"not used in {folder / source}: "
    others = "1 file of another kind (.txt 1)"
    assert data.notes == [f"{rest}2 images, {others}"]
    assert read_named_pictures(folder / source).notes == [rest + others]


def test_a_table_without_a_header_names_files_in_several_ways(folder):
    table = folder / "plain.tsv"
    table.write_text("inner/sun.png\tone\r\n\nsun\ttwo\u2028lines\r\nred_heart.png\tx")
    data = read_image_texts(table, folder / "pictures")
    assert texts_of(data) == {
        "inner/sun.png": ("one",),
        "sun": ("two\u2028lines",),
        "red_heart.png": ("x",),
    }


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("sun", r"plain\.tsv, line 2 must have at least 2 fields.*\['sun'\]"),
        ("moon\tx", "line 2 must name one image.*'moon', the name of 0 images"),
        ("sun\t ", "line 2 must have a text"),
    ],
)
def test_bad_lines_are_named_or_left_out(folder, line, match):
    table = folder / "plain.tsv"
    table.write_text(f"sea\tthe sea\n{line}\n")
    data = named_or_left_out(match, read_image_texts, table, folder / "pictures")
    assert texts_of(data) == {"sea": ("the sea",)}
    assert list(data.skipped) == ["plain.tsv, line 2"]


def test_bad_tables_and_folders_are_named(folder):
    table, pictures = folder / "table.tsv", folder / "pictures"
    for options, message in (
        ({"image_column": "file", "text_columns": ["title"]}, r"without \['title'\]"),
        ({"text_columns": ["name"]}, "must all be numbers or all be names"),
        ({"image_column": "file"}, "must all be numbers or all be names"),
        ({"text_columns": []}, "must all be numbers or all be names"),
        ({"text_columns": [-1]}, r"must count from 0.*text_columns=\[-1\]"),
    ):
        refuses(message, read_image_texts, table, pictures, **options)
    message = "`images` must be an existing folder or"
    with pytest.raises(FileNotFoundError, match=message):
        read_image_texts(table, folder / "none")
    message = "`images` must be a folder with images or a"
    refuses(message, read_image_texts, table, table)
    empty = folder / "empty"
    empty.mkdir()
    refuses("`images` must have images, .jpg", read_named_pictures, empty)
    (empty / "__.png").write_bytes(b"")
    refuses("files whose names describe them.*'__.png'", read_named_pictures, empty)
    table.write_text("moon\tx\n")
    message = "`table` must name images with texts"
    refuses(message, read_image_texts, table, pictures, on_error="skip")
    (pictures / "sun.png").write_bytes((pictures / "red_heart.png").read_bytes())
    table.write_text("sun\tx\n")
    refuses("'sun', the name of 2 images", read_image_texts, table, pictures)


@pytest.mark.parametrize("source", ["pictures", "pictures.zip"])
def test_named_pictures(folder, source):
    data = read_named_pictures(folder / source)
    texts = sorted(texts for (texts,) in texts_of(data).values())
    assert texts == ["red heart", "sea", "sun"]


def test_damaged_archives_are_named(folder):
    archive = folder / "pictures.zip"
    message = r"pictures\.zip/none\.png must be a whole file"
    refuses(message, read_image, ZippedFile(archive, "none.png"))
    with pytest.raises(ValueError, match="red_heart.png must have at most 7 bytes"):
        ZippedFile(archive, "red_heart.png").read_bytes(7)
    # A member whose compressed bytes are damaged.
    deflated = folder / "deflated.zip"
    with zipfile.ZipFile(deflated, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("a.png", bytes(range(256)) * 9)
    content = bytearray(deflated.read_bytes())
    content[35:55] = b"\xff" * 20
    deflated.write_bytes(content)
    with pytest.raises(ValueError, match=r"deflated\.zip/a\.png must be a whole file"):
        read_image(ZippedFile(deflated, "a.png"))
    content = bytearray(archive.read_bytes())
    content[60:80] = bytes(20)
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"pictures\.zip"):
        for example in read_named_pictures(archive).examples:
            read_image(example.image_path)


def write_captions(folder, annotations, images=None):
    images = images or [
        {"id": 7, "file_name": "red_heart.png", "height": 11, "width": 13},
        {"id": 3, "file_name": "inner/sun.png", "height": 11, "width": 14},
    ]
    path = folder / "captions.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations}))
    return path, folder / "pictures"


CAPTIONS = [
    {"image_id": 3, "caption": "The sun. "},
    {"image_id": 7, "caption": "A heart."},
    {"image_id": 3, "caption": "A star."},
]


def test_captions_of_coco(folder):
    data = read_coco_captions(*write_captions(folder, CAPTIONS))
    assert texts_of(data) == {
        "red_heart.png": ("A heart.",),
        "inner/sun.png": ("The sun.", "A star."),
    }


@pytest.mark.parametrize(
    ("annotations", "match"),
    [
        ([*CAPTIONS, {"image_id": 5, "caption": "x"}], "3 must name an image"),
        ([*CAPTIONS, {"image_id": 3}], "annotation 3 must have a `caption`, a text"),
        ([*CAPTIONS, {"image_id": 3, "caption": " "}], "must have a `caption`"),
        (CAPTIONS[1:2], "every image must have a caption.*'inner/sun.png' without"),
    ],
)
def test_bad_captions_are_named_or_left_out(folder, annotations, match):
    files = write_captions(folder, annotations)
    data = named_or_left_out(match, read_coco_captions, *files)
    assert "red_heart.png" in texts_of(data)
    assert len(data.skipped) == 1


def test_an_image_that_was_left_out_takes_its_captions_along(folder):
    size = {"height": 11, "width": 13}
    images = [
        {"id": 7, "file_name": "red_heart.png", **size},
        {"id": 3, "file_name": "none.png", **size},
        {"id": 7, "file_name": "red_heart.png", **size},
    ]
    files = write_captions(folder, CAPTIONS, images)
    message = "image 1: `image_folder` has no file"
    left_out = "left out 2 files.*an `id` of its own"
    data = named_or_left_out(message, read_coco_captions, *files, left_out=left_out)
    assert texts_of(data) == {"red_heart.png": ("A heart.",)}
    files = write_captions(folder, [])
    with pytest.raises(ValueError, match="`annotations` must name images with texts"):
        read_coco_captions(*files, on_error="skip")


def test_batches(folder, tokenizer):
    data = read_named_pictures(folder / "pictures.zip")
    layer = ImagePreprocessing((5, 7), scale=1.0)
    dataset = image_text_dataset(data, tokenizer, layer, batch_size=2, max_length=9)
    assert dataset.cardinality() == 2
    spec: Any = dataset.element_spec
    assert spec["images"].shape[1:] == (5, 7, 3)
    (first, last) = dataset
    assert last["token_ids"].shape == (1, 9)
    images = tf.concat([first["images"], last["images"]], 0).numpy()
    by_text = {each.texts[0]: each.image_path for each in data.examples}
    for number, (text, path) in enumerate(by_text.items()):
        expected = layer(read_image(path)[None])[0]
        np.testing.assert_array_equal(images[number], expected)
        batch = (first, last)[number // 2]
        packed = tokenizer.encode_batch([text], max_length=9, pad_to_max_length=True)
        for name in ("token_ids", "padding_mask"):
            np.testing.assert_array_equal(batch[name][number % 2], packed[name][0])


@pytest.mark.compiled
def test_texts_are_drawn_anew_in_each_epoch_and_follow_the_seed(folder, tokenizer):
    table = folder / "many.tsv"
    table.write_text("".join(f"{n}\t{i}\n" for n in ("sun", "sea") for i in range(10)))
    data = read_image_texts(table, folder / "pictures")
    layer = ImagePreprocessing((3, 3))

    def epoch(number, **options):
        options = {"shuffle": True, "seed": 5, "epoch": number, **options}
        batches = image_text_dataset(
            data, tokenizer, layer, batch_size=2, max_length=5, **options
        )
        (batch,) = batches
        order = np.argsort(batch["images"].numpy().sum((1, 2, 3)))
        return tokenizer.decode_batch(batch["token_ids"].numpy()[order])

    drawn = [tuple(epoch(number)) for number in range(12)]
    assert drawn == [tuple(epoch(number)) for number in range(12)]
    assert len(set(drawn)) > 8 and len({one for one, _ in drawn}) > 4
    assert epoch(3, shuffle=False) == ["0", "0"]
    variable = tf.Variable(tf.constant(3, tf.int64))
    assert tuple(epoch(variable)) == drawn[3]


def test_a_corrupt_image_is_named_or_replaced(folder, tokenizer):
    (folder / "pictures" / "inner" / "sea.png").write_bytes(b"no image")
    layer = ImagePreprocessing((3, 3))
    options: dict[str, Any] = {"batch_size": 3, "max_length": 5}
    table = folder / "table.tsv"
    columns: dict[str, Any] = {"image_column": "file", "text_columns": ["name"]}
    data = read_image_texts(table, folder / "pictures", **columns)
    with pytest.raises(tf.errors.InvalidArgumentError, match="sea.png must be a com"):
        list(image_text_dataset(data, tokenizer, layer, **options))
    data = read_image_texts(table, folder / "pictures", on_error="skip", **columns)
    with pytest.warns(UserWarning, match="Left out while reading"):
        (batch,) = image_text_dataset(data, tokenizer, layer, **options)
    assert batch["images"].shape[0] == 3
    assert list(data.skipped) == ["sea"]
    with pytest.warns(UserWarning, match="left out 1 files"):
        assert len(data.check()) == 2


def test_bad_arguments_are_named(folder, tokenizer):
    data = read_named_pictures(folder / "pictures")
    layer = ImagePreprocessing((3, 3))
    with pytest.raises(ValueError, match="`batch_size` must be"):
        image_text_dataset(data, tokenizer, layer, batch_size=0, max_length=5)
    with pytest.raises(ValueError, match="`pad_to_max_length` needs a `max_length`"):
        image_text_dataset(data, tokenizer, layer, batch_size=2)
    data.examples.clear()
    with pytest.raises(ValueError, match="`data` must have images"):
        image_text_dataset(data, tokenizer, layer, batch_size=2, max_length=5)
