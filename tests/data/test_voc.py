"""Pascal VOC: what is read, and what is refused or left out."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend import skip_module_without_tensorflow
from data.image_sets import (
    NAMES,
    SIZES,
    truncate,
    voc_object,
    voc_xml,
    write_image,
    write_voc,
    write_xml,
)
from PIL import Image
from refusals import named_or_left_out, refuses, refuses_in_epoch

from keras_attn.data import detection_dataset, read_voc

skip_module_without_tensorflow("tf.data feeds TensorFlow")


def test_boxes_classes_and_splits(tmp_path):
    root = write_voc(tmp_path)
    data = read_voc(root)
    assert data.class_names == ["cat", "dog"]
    assert [each.name for each in data.examples] == sorted(NAMES)
    example = data.examples[1]
    assert example.name == "eins 1" and example.size == SIZES["eins 1"]
    # From 1 with the last pixel included, to 0 without.
    np.testing.assert_array_equal(example.boxes, [[2, 4, 17, 19], [0, 0, 43, 31]])
    np.testing.assert_array_equal(example.classes, [1, 0])
    assert data.examples[2].boxes.shape == (0, 4)
    as_written = read_voc(root, ["eins 1"], one_based=False).examples[0]
    np.testing.assert_array_equal(as_written.boxes[0], [3, 5, 17, 19])

    train = read_voc(root, "train", ["dog", "cat"])
    assert [each.name for each in train.examples] == ["drei", "zwei"]
    assert train.examples[0].classes.tolist() == [1]
    easy = read_voc(root, "train", ["dog", "cat"], difficult=False)
    assert [len(each.boxes) for each in easy.examples] == [0, 0]


def test_a_batch(tmp_path):
    data = read_voc(write_voc(tmp_path))
    dataset = detection_dataset(data, image_size=(31, 43), batch_size=2)
    assert int(dataset.cardinality()) == 2
    (images, targets), (last, _) = list(dataset.as_numpy_iterator())
    assert images.shape == (2, 31, 43, 3) and last.shape == (1, 31, 43, 3)
    # The second image has this size, so that it is not resized.
    path = data.examples[1].image_path
    np.testing.assert_array_equal(images[1], np.asarray(Image.open(path)))
    np.testing.assert_array_equal(targets["boxes"][1], [[2, 4, 17, 19], [0, 0, 43, 31]])
    np.testing.assert_array_equal(targets["classes"], [[0, -1], [1, 0]])
    np.testing.assert_array_equal(targets["boxes"][0, 1], [0, 0, 0, 0])
    # The first, of 37 x 41, is padded at the right.
    assert (images[0, :, 35:] == 0).all() and (images[0, :, :34] > 0).any(-1).all()
    kept = targets["boxes"][0, 0] * np.array([41 / 34, 37 / 31, 41 / 34, 37 / 31])
    np.testing.assert_allclose(kept, [1, 2, 5, 7], rtol=1e-5)


def test_the_largest_boxes_are_kept(tmp_path):
    data = read_voc(write_voc(tmp_path))
    options: dict[str, Any] = {"image_size": 47, "batch_size": 3, "max_boxes": 1}
    _, targets = next(iter(detection_dataset(data, **options)))
    assert targets["classes"].numpy().tolist() == [[0], [0], [-1]]


BAD_OBJECTS = {
    "inverted": (voc_object("dog", (17, 5, 3, 19)), r"\[16.0, 4.0, 3.0, 19.0\]"),
    "outside": (voc_object("dog", (50, 5, 60, 19)), "31 x 43 pixels"),
    "nan": (voc_object("dog", (1, "nan", 5, 19)), "must be finite"),
    "huge": (voc_object("dog", (1, 1, "1e300", 1e308)), None),
    "infinite": (voc_object("dog", (1, 1, "inf", 9)), "must be finite"),
    "text": (voc_object("dog", (1, "x", 5, 19)), "number in <ymin>.*ymin='x'"),
    "class": (voc_object("cow", (1, 1, 5, 5)), "`class_names`.*name='cow'"),
    "no class": (
        "<object><bndbox/></object>",
        r"`class_names`, \['cat', 'dog'\]. Received: name=None",
    ),
    "no box": ("<object><name>dog</name></object>", "must have a <bndbox>"),
}


@pytest.mark.parametrize("kind", BAD_OBJECTS)
def test_bad_objects(tmp_path, kind):
    root = write_voc(tmp_path)
    element, message = BAD_OBJECTS[kind]
    good = voc_object("cat", (2, 3, 5, 7))
    write_xml(root, "eins 1", voc_xml(SIZES["eins 1"], good + element))
    names = ["cat", "dog"]
    if message is None:  # Cut off at the border.
        boxes = read_voc(root, class_names=names).examples[1].boxes
        assert boxes.tolist() == [[1, 2, 5, 7], [0, 0, 43, 31]]
        return
    message = rf"eins 1\.xml, object 1.*{message}"
    data = named_or_left_out(message, read_voc, root, class_names=names)
    assert list(data.skipped) == ["eins 1.xml, object 1"]
    assert data.examples[1].boxes.tolist() == [[1, 2, 5, 7]]
    assert data.examples[1].classes.tolist() == [0]


LAUGHS = (
    '<!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;">]><annotation>&c;</annotation>'
)
EXTERNAL = (
    '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation>&x;</annotation>'
)
BAD_FILES = {
    "cut": (voc_xml((31, 43))[:-9], "complete, well-formed XML"),
    "no xml": ("{}", "complete, well-formed XML"),
    "empty": ("", "no element found"),
    "laughs": (LAUGHS, "must not declare a DOCTYPE"),
    "external": (EXTERNAL, "must not declare a DOCTYPE"),
    "unknown entity": ("<annotation>&x;</annotation>", "undefined entity"),
    "deep": ("<a>" * 40 + "</a>" * 40, "at most 16 deep"),
    "encoding": (
        '<?xml version="1.0" encoding="x-no"?><a/>',
        "its first line declares",
    ),
    "size": (voc_xml((31, "wide")), "number in <width>.*width='wide'"),
    "fraction": (voc_xml((31, 4.5)), "whole pixels.*width=4.5"),
    "infinite": (voc_xml((31, "inf")), "whole pixels.*width=inf"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_annotations(tmp_path, kind):
    root = write_voc(tmp_path)
    content, message = BAD_FILES[kind]
    write_xml(root, "zwei", content)
    data = named_or_left_out(rf"zwei\.xml.*{message}", read_voc, root)
    assert [each.name for each in data.examples] == ["drei", "eins 1"]
    assert list(data.skipped) == ["zwei"]


def test_large_files_pipes_and_folders_are_refused(tmp_path):
    root = write_voc(tmp_path)
    path = root / "Annotations" / "zwei.xml"
    path.write_text("<a>" + " " * 2**22 + "</a>")
    refuses("at most 4194304 bytes", read_voc, root)
    path.unlink()
    os.mkfifo(path)
    refuses("regular file.*a pipe", read_voc, root)


def test_missing_files(tmp_path):
    root = write_voc(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"has no val\.txt"):
        read_voc(root, "val")
    (root / "JPEGImages" / "zwei.png").unlink()
    assert len(named_or_left_out(r"has no image zwei\.jpg", read_voc, root)) == 2
    for folder in ("nowhere", "ImageSets"):
        refuses("`folder` must be an existing folder", read_voc, root / folder)
    for path in (root / "Annotations").iterdir():
        path.unlink()
    refuses(r"must have `Annotations/\*\.xml`", read_voc, root)
    message = "must have images with annotations"
    refuses(message, read_voc, root, "train", on_error="skip")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a\0b"])
def test_a_split_stays_in_its_folder(tmp_path, name):
    root = write_voc(tmp_path)
    for split in ([name], name):
        refuses("must be a path inside the folder", read_voc, root, split)
    (root / "ImageSets" / "bad.txt").write_text(name)
    refuses("must be a path inside the folder", read_voc, root, "bad")


def test_bad_splits(tmp_path):
    root = write_voc(tmp_path)
    path = root / "ImageSets" / "bad.txt"
    path.write_text("zwei\ndrei\nzwei\n")
    refuses("named once. Received: 'zwei' twice", read_voc, root, "bad")
    path.write_text("\n \n")
    refuses(r"bad\.txt must name images", read_voc, root, "bad")
    with pytest.raises(ValueError, match="`on_error` must be one of 'raise', 'skip'"):
        read_voc(root, on_error="ignore")


def test_a_truncated_image_is_named_or_replaced(tmp_path):
    """In an epoch; test_segmentation.py says how."""
    root = write_voc(tmp_path)
    truncate(root / "JPEGImages" / "eins 1.png")
    options: Any = {"image_size": 17, "batch_size": 1}
    message = r"eins 1\.png must be a complete JPEG"
    refuses_in_epoch(message, detection_dataset(read_voc(root), **options))
    data = read_voc(root, on_error="skip")
    with pytest.warns(UserWarning, match=r"Left out while reading: eins 1\.png"):
        images = [image.numpy() for image, _ in detection_dataset(data, **options)]
    np.testing.assert_array_equal(images[2], images[0])
    assert (images[1] != images[0]).any() and list(data.skipped) == ["eins 1"]


def test_a_check_before_training(tmp_path):
    root = write_voc(tmp_path)
    assert len(read_voc(root).check()) == 3
    truncate(root / "JPEGImages" / "eins 1.png")
    refuses(r"eins 1\.png must be a complete", read_voc(root).check)
    data = read_voc(root, on_error="skip")
    with pytest.warns(UserWarning, match=r"Images: left out 1 files.*eins 1\.png"):
        checked = data.check()
    assert [each.name for each in checked.examples] == ["drei", "zwei"]
    dataset = detection_dataset(checked, image_size=17, batch_size=1)
    assert len(list(dataset)) == 2
    for name in ("drei", "zwei"):
        truncate(root / "JPEGImages" / f"{name}.png")
    with pytest.raises(ValueError, match="At least one image must be readable.*3 bad"):
        read_voc(root, on_error="skip").check()


def test_an_image_of_another_size_than_annotated(tmp_path):
    root = write_voc(tmp_path)
    write_image(root / "JPEGImages" / "zwei.png", (13, 17))
    dataset = detection_dataset(read_voc(root), image_size=17, batch_size=3)
    message = r"zwei\.png must have the size .*= \(29, 23\).*of \(13, 17\)"
    refuses_in_epoch(message, dataset)


def test_boxes_of_an_image_of_unknown_size_are_checked_when_it_is_read(tmp_path):
    root = write_voc(tmp_path)
    write_xml(root, "zwei", voc_xml((0, 0), voc_object("cat", (24, 1, 27, 9))))
    dataset = detection_dataset(read_voc(root), image_size=17, batch_size=3)
    message = "zwei: A box must be finite.*29 x 23 pixels"
    refuses_in_epoch(message, dataset)


ENCODINGS = {"gb2312": "细胞", "GBK": "細胞鎔", "shift_jis": "細胞", "Big5": "細胞"}
ENCODINGS |= {"euc-kr": "세포", "utf-16": "細胞", "windows-1251": "клетка"}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_other_encodings(tmp_path, encoding):
    root, name = write_voc(tmp_path), ENCODINGS[encoding]
    text = voc_xml(SIZES["zwei"], voc_object(name, (1, 1, 9, 9)))
    content = f'<?xml version="1.0" encoding="{encoding}"?>\n{text}'.encode(encoding)
    (root / "Annotations" / "zwei.xml").write_bytes(content)
    assert read_voc(root, ["zwei"]).class_names == [name]
    if encoding != "utf-16":
        (root / "Annotations" / "zwei.xml").write_bytes(content[:-9] + b"\xff\xff<")
        refuses("zwei.xml must be", read_voc, root, ["zwei"])


def test_a_mark_of_utf_8_is_stronger_than_a_declaration(tmp_path):
    root = write_voc(tmp_path)
    text = voc_xml(SIZES["zwei"], voc_object("細胞", (1, 1, 9, 9)))
    content = f'\ufeff<?xml version="1.0" encoding="gbk"?>{text}'
    write_xml(root, "zwei", content)
    assert read_voc(root, ["zwei"]).class_names == ["細胞"]


def test_a_list_may_begin_with_a_mark_of_utf_8(tmp_path):
    root = write_voc(tmp_path)
    text = "\ufeffzwei\r\ndrei\r\n"
    (root / "ImageSets" / "val.txt").write_text(text, encoding="utf-8", newline="")
    assert [each.name for each in read_voc(root, "val").examples] == ["zwei", "drei"]


def test_two_images_of_a_name(tmp_path):
    root = write_voc(tmp_path)
    write_image(root / "JPEGImages" / "zwei.Bmp", SIZES["zwei"])
    refuses("one image of each name.*zwei.Bmp, zwei.png", read_voc, root)


def test_difficult_is_0_or_1(tmp_path):
    root = write_voc(tmp_path)
    for text, count in (("true", 0), ("false", 1), ("", 1)):
        box = voc_object("cat", (1, 1, 9, 9), difficult=text)
        write_xml(root, "zwei", voc_xml(SIZES["zwei"], box))
        (example,) = read_voc(root, ["zwei"], ["cat"], difficult=False).examples
        assert len(example.boxes) == count
    box = voc_object("cat", (1, 1, 9, 9), difficult="maybe")
    write_xml(root, "zwei", voc_xml(SIZES["zwei"], box))
    with pytest.raises(ValueError, match="zwei.xml, object 0 must have <difficult>"):
        read_voc(root, ["zwei"], difficult=False)


@pytest.mark.data
@pytest.mark.skipif("KERAS_ATTN_DATA" not in os.environ, reason="no KERAS_ATTN_DATA")
def test_blood_cells():
    root = Path(os.environ["KERAS_ATTN_DATA"], "bccd")
    train, val = (read_voc(root, split) for split in ("train", "val"))
    assert (len(train), len(val)) == (205, 87)
    assert train.class_names == ["Platelets", "RBC", "WBC"]
    boxes = [len(each.boxes) for data in (train, val) for each in data.examples]
    assert sum(boxes) == 292 + 3350 + 301
    # Two objects have no size, unless their last pixel counts.
    refuses(r"object \d+: A box must be finite", read_voc, root, one_based=False)
    dataset = detection_dataset(train, image_size=(240, 320), batch_size=16)
    images, targets = next(iter(dataset))
    assert images.shape == (16, 240, 320, 3)
    assert (targets["classes"].numpy() >= -1).all()
