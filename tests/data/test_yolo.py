"""YOLO's folders: splits, names, boxes in fractions, and what is refused."""

import json

import numpy as np
import pytest
from backend import skip_module_without_tensorflow
from data.image_sets import write_image
from PIL import Image, ImageOps
from refusals import named_or_left_out, refuses

from keras_attn.data import detection_dataset, read_yolo
from keras_attn.data.images.detection import read_example
from keras_attn.data.images.yolo_layout import _read_yaml, find_yolo

skip_module_without_tensorflow("tf.data feeds TensorFlow")

SIZE = (40, 80)
YAML = """# cells
path: .  # dataset root dir
train: images/train
val: images/val
names:
  0: red cell
  1: 'platelet'
"""


def write_yolo(root, images="images/{}", labels="labels/{}", splits=("train", "val")):
    """Two images per split; the second has no objects."""
    for number, split in enumerate(splits):
        for name in ("a", "b"):
            place = root / images.format(split) / f"{split}_{name}.png"
            write_image(place, SIZE, seed=number)
        folder = root / labels.format(split)
        folder.mkdir(parents=True, exist_ok=True)
        lines = ["1 0.5 0.25 0.25 0.5", "0 0.1 0.2 0.3 0.2 0.3 0.8"]
        (folder / f"{split}_a.txt").write_text("\n".join(lines) + "\n")
        (folder / f"{split}_b.txt").write_text("")
    return root


def write_yaml(root, text=YAML):
    path = root / "data.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_boxes_and_polygons(tmp_path):
    path = write_yaml(write_yolo(tmp_path))
    for source in (path, tmp_path):
        data = read_yolo(source)
        assert data.class_names == ["red cell", "platelet"] and not data.notes
        first, second = data.examples
        # Center (40, 10), 20 x 20; and around the points.
        np.testing.assert_allclose(
            first.boxes, [[30, 0, 50, 20], [8, 8, 24, 32]], atol=1e-5
        )
        assert first.classes.tolist() == [1, 0] and first.size == SIZE
        assert second.boxes.shape == (0, 4) and not first.is_crowd.any()
    validation = read_yolo(path, "val", data.class_names)
    assert [each.name for each in validation.examples] == ["val_a.png", "val_b.png"]
    images, truth = next(iter(detection_dataset(data, image_size=20, batch_size=2)))
    assert images.shape == (2, 20, 20, 3)
    np.testing.assert_allclose(truth["boxes"][0, 0], [7.5, 0, 12.5, 5], atol=1e-5)
    refuses("`split` must be one that data.yaml has", read_yolo, path, "test")


# Roboflow's, Ultralytics' lists, a list of images, and folders without a file.
LAYOUTS = {
    "roboflow": (
        ("{}/images", "{}/labels"),
        "train: ../train/images\nval: ../val/images\n\nnc: 2\nnames: ['a', \"b\"]\n",
    ),
    "several": (
        ("images/{}", "labels/{}"),
        "train: [images/train]\nval:\n  - images/val\nnames: {0: a, 1: b}\n",
    ),
    "elsewhere": (
        ("images/{}", "labels/{}"),
        "path: ../datasets/none\ntrain: images/train\nval: images/val\nnc: 2\n",
    ),
    "list": (
        ("images/{}", "labels/{}"),
        "train: train.txt\nval: images/val\nnames:\n- a\n- b\n",
    ),
    "inner": (("images/{}", "labels/{}"), None),
    "outer": (("{}/images", "{}/labels"), None),
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_layouts(tmp_path, kind):
    folders, text = LAYOUTS[kind]
    write_yolo(tmp_path, *folders)
    if text is None:
        (tmp_path / "classes.txt").write_text("a\nb\n")
    else:
        write_yaml(tmp_path, text)
    (tmp_path / "train.txt").write_text("./images/train/train_a.png\n")
    train, val = (read_yolo(tmp_path, split) for split in ("train", "val"))
    names = ["class_0", "class_1"] if kind == "elsewhere" else ["a", "b"]
    assert train.class_names == val.class_names == names
    assert len(train) == (1 if kind == "list" else 2) and len(val) == 2
    assert [len(each.boxes) for each in val.examples] == [2, 0]


def test_a_folder_without_splits(tmp_path):
    write_yolo(tmp_path, "images", "labels", ("all",))
    refuses("write them into classes.txt, one a line", read_yolo, tmp_path)
    (tmp_path / "labels" / "classes.txt").write_text("a\nb\n")
    (tmp_path / "labels" / "all_b.txt").unlink()
    (tmp_path / "labels" / "gone.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    data = read_yolo(tmp_path)
    assert data.class_names == ["a", "b"]
    unlabeled, unused = data.notes
    assert unlabeled.startswith("1 images without a label file")
    assert unused == "not used: 1 label files without an image, such as gone.txt"
    refuses("has no splits", read_yolo, tmp_path, "val")
    with pytest.raises(ValueError, match="the data set's, in its order"):
        read_yolo(tmp_path, class_names=["b", "a"])


def test_a_split_has_the_names_of_the_file_beside(tmp_path):
    write_yolo(tmp_path, "{}/images", "{}/labels")
    write_yaml(tmp_path, "train: train/images\nval: val/images\nnames: [a, b]\n")
    data = read_yolo(tmp_path / "val")
    assert data.class_names == ["a", "b"]
    assert [each.name for each in data.examples] == ["val_a.png", "val_b.png"]


BAD_LINES = {
    "0 0.5 0.5 0.1": "a class and x, y, width and height",
    "0 0.5 0.5 0.1 0.1 0.9": "a class and x, y, width and height",
    "0 0.1 0.1 0.2 0.2 0.3 0.3 0.4": "a class and x, y, width and height",
    "2 0.5 0.5 0.1 0.1": "a class from 0 to 1. Received: 2",
    "0.5 0.5 0.5 0.1 0.1": "a class from 0 to 1",
    "nan 0.5 0.5 0.1 0.1": "a class from 0 to 1",
    "cat 0.5 0.5 0.1 0.1": "consist of numbers",
    "0 40 20 10 10": "fractions of the image's width",
    "0 0.5 nan 0.1 0.1": "fractions of the image's width",
    "0 0.5 0.5 -0.01 0.1": "left < right",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_bad_lines(tmp_path, line):
    path = write_yaml(write_yolo(tmp_path))
    file = tmp_path / "labels" / "train" / "train_b.txt"
    file.write_text(f"\n{line}\n")
    message = rf"train_b\.txt, line 2.*{BAD_LINES[line]}"
    data = named_or_left_out(message, read_yolo, path)
    assert list(data.skipped) == ["train_b.txt, line 2"]


BAD_FILES = {
    "names: [a, b]\nval: images/val\n": "must say where the training images are",
    "train: images/no\nnames: [a, b]\n": "there is none of .*images/no",
    "train: images/train\nnames: [a\n": "must be a list, such as",
    "train: images/train\nnames:\n": "must name the classes",
    "train: images/train\nnames: {0: a, 2: b}\n": "numbers from 0 on",
    "train: images/train\nnames: [a, b]\nnc: 3\n": "must have `nc` names",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_bad_files(tmp_path, text):
    path = write_yaml(write_yolo(tmp_path), text)
    refuses(f"data.yaml.*{BAD_FILES[text]}", read_yolo, path)


def test_other_folders_are_no_yolo(tmp_path):
    write_image(tmp_path / "images" / "a.png", SIZE)
    write_image(tmp_path / "labels" / "a.png", SIZE)
    assert find_yolo(tmp_path) is None
    (tmp_path / "environment.yaml").write_text("name: x\ndependencies:\n  - a\n")
    assert find_yolo(tmp_path) is None
    refuses("must be YOLO's data.yaml, or a folder", read_yolo, tmp_path)
    write_yaml(write_yolo(tmp_path))
    (tmp_path / "labels" / "train" / "train_a.txt").unlink()
    (tmp_path / "labels" / "train" / "train_b.txt").unlink()
    refuses("2 images and no label file", read_yolo, tmp_path)
    write_yaml(tmp_path).rename(tmp_path / "other.yml")
    write_yaml(tmp_path)
    refuses("data.yaml, other.yml", read_yolo, tmp_path)


def test_two_images_of_a_name(tmp_path):
    path = write_yaml(write_yolo(tmp_path))
    write_image(tmp_path / "images" / "train" / "train_b.JPG", SIZE)
    message = "one image of each name.*than train_b.png"
    assert len(named_or_left_out(message, read_yolo, path)) == 2


def test_keypoints_are_left_out(tmp_path):
    path = write_yaml(write_yolo(tmp_path), YAML + "kpt_shape: [2, 2]\n")
    file = tmp_path / "labels" / "train" / "train_a.txt"
    file.write_text("1 0.5 0.25 0.25 0.5 0.1 0.1 0.9 0.9\n")
    (first, _) = read_yolo(path).examples
    np.testing.assert_allclose(first.boxes, [[30, 0, 50, 20]], atol=1e-5)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_are_those_of_the_upright_image(tmp_path, orientation):
    path = write_yaml(write_yolo(tmp_path))
    stored = np.zeros((40, 80, 3), np.uint8)
    stored[4:12, 50:74] = 255
    exif = Image.Exif()
    exif[274] = orientation
    image = Image.fromarray(stored)
    file = tmp_path / "images" / "train" / "train_a.png"
    image.save(file, exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(file)))[..., 0] > 0
    (top, left), (bottom, right) = np.argwhere(upright)[[0, -1]]
    height, width = upright.shape
    x, y = (left + right + 1) / 2 / width, (top + bottom + 1) / 2 / height
    sides = (right + 1 - left) / width, (bottom + 1 - top) / height
    line = f"0 {x} {y} {sides[0]} {sides[1]}\n"
    (tmp_path / "labels" / "train" / "train_a.txt").write_text(line)
    data = read_yolo(path)
    expected = [[left, top, right + 1, bottom + 1]]
    np.testing.assert_allclose(data.examples[0].boxes, expected, atol=1e-4)
    image, boxes, *_ = read_example(data.examples[0], False, False)
    np.testing.assert_array_equal(image[..., 0] > 0, upright)
    np.testing.assert_allclose(boxes, expected, atol=1e-4)


def test_yaml_is_read_as_by_pyyaml(tmp_path):
    yaml = pytest.importorskip("yaml", reason="PyYAML is the reference")
    text = """%s
download: |
  from x import y
  train: no
'val' : "images/v # al"   # a comment
test:
  # none
nc: 4
names: [ 'it''s', "a, b", c d,
         'e:f' ]  # four
roboflow:
  workspace: x
  names: hidden
more:
- "x"
- y z # comment
map:
  0: a b
  '1': "c\\u00e9"
"""
    path = write_yaml(tmp_path, text % "---\ntrain: ../train/images")
    found, expected = _read_yaml(path), yaml.safe_load(path.read_text("utf-8"))
    del expected["download"]
    expected = json.loads(json.dumps(expected))  # Keys become strings.
    assert found == {**expected, "nc": "4", "test": ""}
