"""Damaged images, annotations and masks are refused by name, or are still readable."""

from typing import Any

import numpy as np
import pytest
from backend import skip_module_without_tensorflow
from data.image_sets import NAMES, SIZES, write_coco, write_mask, write_voc
from data.test_vqa import ANNOTATIONS, QUESTIONS, write_vqa
from fuzz.harmless import SECONDS, check_each, damaged_files
from fuzz.mutations import mutations, rounds
from PIL import Image

from keras_attn.data import read_coco, read_segmentation, read_voc, read_vqa

skip_module_without_tensorflow("tf.data feeds TensorFlow")

FORMATS = ["jpg", "png", "bmp", "tif"]
# What is left of an image may be odd, as Pillow says; what is left out is said, too.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("suffix", FORMATS)
def test_damaged_images(tmp_path, suffix, time_limit):
    pixels = np.random.default_rng(0).integers(0, 256, (31, 43, 3), np.uint8)
    (tmp_path / "image").mkdir()
    path = tmp_path / "image" / f"zwei.{suffix}"
    Image.fromarray(pixels).save(path)
    write_mask(tmp_path / "mask" / "zwei.png", np.zeros((31, 43)))
    data = read_segmentation(path.parent, tmp_path / "mask", ["all"])
    damaged = damaged_files(path.read_bytes(), seed=1, count=40)
    check_each(path, damaged, lambda: data.read(0), time_limit, *NAMES)


@pytest.mark.parametrize("palette", [None, [(0, 0, 0), (9, 9, 9), (7, 0, 0)]])
def test_damaged_masks(tmp_path, palette, time_limit):
    labels = np.random.default_rng(0).integers(0, 3, (31, 43))
    path = tmp_path / "mask" / "zwei.png"
    write_mask(path, labels, palette)
    write_mask(tmp_path / "image" / "zwei.png", np.zeros((31, 43)))
    folders = tmp_path / "image", path.parent
    data = read_segmentation(*folders, ["a", "b", "c"], palette=palette)

    def load():
        _, found = data.read(0)
        assert found.shape == (31, 43) and set(np.unique(found)) <= {0, 1, 2, 255}

    damaged = damaged_files(path.read_bytes(), seed=2, count=80)
    check_each(path, damaged, load, time_limit, *NAMES)


def check_boxes(data):
    for example in data.examples:
        height, width = example.size or (2**31, 2**31)
        left, top, right, bottom = example.boxes.T
        assert (0 <= left).all() and (left < right).all() and (right <= width).all()
        assert (0 <= top).all() and (top < bottom).all() and (bottom <= height).all()
        assert (0 <= example.classes).all()
        assert (example.classes < len(data.class_names)).all()


def test_damaged_xml(tmp_path, time_limit):
    root = write_voc(tmp_path)
    path = root / "Annotations" / "eins 1.xml"
    damaged = [*damaged_files(path.read_bytes(), seed=3, count=120)]
    check_each(path, damaged, lambda: check_boxes(read_voc(root)), time_limit, *NAMES)

    def load_the_rest():
        data = read_voc(root, on_error="skip")
        check_boxes(data)
        assert len(data) >= len(NAMES) - 1

    check_each(path, damaged, load_the_rest, time_limit, *NAMES)


def test_damaged_json(tmp_path, time_limit):
    path, folder = write_coco(tmp_path)

    def load():
        data = read_coco(path, folder)
        check_boxes(data)
        data.check()

    damaged = damaged_files(path.read_bytes(), 4, 80, json_seed=5, json_count=120)
    check_each(path, damaged, load, time_limit, "instances", *NAMES)


@pytest.mark.parametrize("name", ["questions", "annotations"])
def test_damaged_questions(tmp_path, name, time_limit):
    arguments = write_vqa(tmp_path, QUESTIONS, ANNOTATIONS)
    path = arguments[name]

    def load():
        data = read_vqa(**arguments)
        assert all(len(each.answers) == 10 for each in data.examples)
        assert all(data.encode(each.question) for each in data.examples)

    damaged = damaged_files(path.read_bytes(), 7, 40, json_seed=8, json_count=120)
    check_each(path, damaged, load, time_limit, "questions", "annotations")


def test_damaged_run_lengths(tmp_path, time_limit):
    """The string form, which pycocotools reads without looking at its bounds."""
    from pycocotools import mask as coco_mask

    from keras_attn.data.images.instance_masks import decode_mask

    size = SIZES["zwei"]
    mask = np.random.default_rng(0).random(size) < 0.4
    counts: Any = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"]
    with time_limit(SECONDS):
        for damaged in mutations(counts, seed=6, count=rounds(300)):
            try:
                found = decode_mask({"size": list(size), "counts": damaged}, *size)
            except ValueError as error:
                assert "counts" in str(error) and len(str(error)) < 500
            else:
                assert found.shape == size
