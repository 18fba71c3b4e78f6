"""No picture or row is taken from another split, dropped or added without a word."""

import json
import shutil

import numpy as np
import pytest
from cli.finetuning_data import write_boxes
from data.image_sets import (
    SIZES,
    voc_object,
    voc_xml,
    write_image,
    write_mask,
    write_voc,
    write_xml,
)
from data.test_yolo import write_yaml, write_yolo
from parity.folders import CHECKPOINTS
from variations import in_turn

from keras_attn.cli.finetuning.coco_images import find_image_folder
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.finetuning.splits import check_apart

PLAN = ["finetune", "faster_rcnn_resnet50"]


@pytest.fixture
def planned(command, eager_runs):
    """The output of `finetune --plan` on boxes, whose cost is not counted."""

    def run(*given):
        assert command(*PLAN, *given, "--plan") == 0, command.err
        return command.out

    return run


NAMES = [f"{number}.png" for number in range(3)]
# Names of the files and folders of two splits.
LAYOUTS = {
    "beside": ("train.json", "train", "val.json", "val"),
    "coco": (
        "annotations/instances_train2017.json",
        "train2017",
        "annotations/instances_val2017.json",
        "val2017",
    ),
    "inside": ("train.json", "images/train", "val.json", "images/val"),
    "synonym": ("train_coco.json", "train/images", "val_coco.json", "Valid/images"),
    "roboflow": (
        "train/_annotations.coco.json",
        "train",
        "valid/_annotations.coco.json",
        "valid",
    ),
}


@pytest.mark.parametrize("kind", in_turn(LAYOUTS, 2))
def test_each_coco_file_has_the_folder_of_its_name(planned, tmp_path, kind):
    """The same names in both folders, and other pictures."""
    train, ours, val, theirs = (tmp_path / name for name in LAYOUTS[kind])
    write_boxes(train, ours, NAMES)
    write_boxes(val, theirs, NAMES[:2], start=10)
    out = planned(train, "--validation", val)
    assert f"to train on in {ours}, to validate on in {theirs}\n" in out
    assert "3 images with 3 boxes to train on, 2 images to validate on" in out
    assert "not used" not in out and "also training" not in out


def test_a_folder_that_is_gone_is_not_replaced_by_another(command, planned, tmp_path):
    train = write_boxes(tmp_path / "train.json", tmp_path / "train", NAMES)
    val = write_boxes(tmp_path / "val.json", tmp_path / "val", NAMES, start=10)
    other = tmp_path / "pictures"
    (tmp_path / "val").rename(other)
    line = command.refuses(*PLAN, train, "--validation", val, "--plan")
    assert "val.json, image 0: `image_folder` has no file '0.png'" in line
    assert "which lacks 3 of 3 images. --images and --validation-images" in line
    given = [train, "--validation", val, "--validation-images"]
    assert f"to validate on in {other}\n" in planned(*given, other)
    line = command.refuses(*PLAN, *given, tmp_path / "train", "--plan")
    assert "must not be those to train on" in line and "both 3 times" in line
    # The folder of all images, as the user says, and by the name of the other split.
    line = command.refuses(
        *PLAN, train, "--images", tmp_path / "train", "--validation", val, "--plan"
    )
    assert "the same file for both 3 times" in line
    assert "3 of 3 images to validate on" in planned(train, "--validation", train)
    line = command.refuses(*PLAN, train, "--validation-images", other, "--plan")
    assert "--validation-images needs --validation" in line


def test_images_that_no_file_names_are_counted(planned, tmp_path):
    train = write_boxes(tmp_path / "train.json", tmp_path / "images", NAMES)
    val = write_boxes(tmp_path / "val.json", tmp_path / "images", ["a.png"], start=7)
    shutil.copy(tmp_path / "images" / "0.png", tmp_path / "images" / "a.png")
    write_image(tmp_path / "images" / "new.JPG", (24, 32))
    (tmp_path / "images" / "Thumbs.db").write_bytes(b"x")
    (tmp_path / "images" / ".hidden.png").write_bytes(b"x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "images" / "more").symlink_to(tmp_path / "elsewhere")
    out = planned(train, "--validation", val)
    assert (
        f"not used in {tmp_path / 'images'}: 1 image, 1 file of another kind "
        "(.db 1), 1 hidden file, 1 link to folders" in out
    )
    assert "1 of 1 images to validate on are also training images" in out


def test_the_folder_of_a_file_is_found_by_its_content(tmp_path):
    """Where several folders may be meant."""
    path = write_boxes(tmp_path / "boxes.json", tmp_path / "train", ["a.png"])
    assert find_image_folder(path) == tmp_path / "train"
    # Names with a folder in them.
    path = write_boxes(tmp_path / "val.json", tmp_path, ["val/a.png"])
    assert find_image_folder(path) == tmp_path
    path = write_boxes(tmp_path / "test.json", tmp_path / "images", ["b.png"])
    (tmp_path / "test").mkdir()
    assert find_image_folder(path) == tmp_path / "images"
    (tmp_path / "images" / "b.png").unlink()
    assert find_image_folder(path) == tmp_path / "test"
    text = json.dumps({"images": [{"file_name": "x" * 3000}] * 700})
    path.write_text(text + '{"file_name": "\\u00e9.png"}')
    write_image(tmp_path / "image" / "é.png", (3, 3))
    assert find_image_folder(path) == tmp_path / "image"


def test_voc_lists_are_the_splits(command, planned, tmp_path):
    root = write_voc(tmp_path)
    for name in ("vier", "fünf"):
        write_image(root / "JPEGImages" / f"{name}.png", SIZES["zwei"], seed=9)
        objects = voc_object("cat", (1, 1, 9, 9))
        write_xml(root, name, voc_xml(SIZES["zwei"], objects))
    write_image(root / "JPEGImages" / "new.png", (5, 5))
    sets = root / "ImageSets" / "Main"
    # Without val.txt a part of train.txt is held out, and nothing else is read.
    out = planned(root)
    assert "1 images with 1 boxes to train on, 1 images to validate" in out
    assert "not used: 3 images with annotations that are not in train.txt" in out
    assert "JPEGImages: 1 image" in out
    assert "no example to validate on of: cat" in out
    (sets / "val.txt").write_text("vier\n", encoding="utf-8")
    out = planned(root)
    assert "2 images with 1 boxes to train on, 1 images to validate" in out
    assert "not used: 2 images with annotations that are not in train.txt and" in out
    (sets / "val.txt").write_text("vier\ndrei\n", encoding="utf-8")
    line = command.refuses(*PLAN, root, "--plan")
    assert "must not be those to train on" in line and "drei.png" in line
    # Other data to validate on: those of the list of DATA are still the ones to learn.
    other = tmp_path / "other"
    shutil.copytree(root, other)
    (other / "ImageSets" / "Main" / "val.txt").write_text("fünf\n", encoding="utf-8")
    out = planned(root, "--validation", other)
    assert "2 images with 1 boxes to train on, 1 images to validate" in out
    (sets / "train.txt").unlink()
    out = planned(root)
    assert "3 images with 3 boxes to train on, 2 images to validate" in out


@pytest.mark.runs
def test_yolo_folders_are_learned(command, planned, tmp_path):
    path = write_yaml(write_yolo(tmp_path, splits=("train", "val", "test")))
    path.write_text(path.read_text() + "test: images/test\n")
    for data in (path, tmp_path):
        out = planned(data)
        assert "detection, because data.yaml is YOLO's" in out
        assert "2 images with 2 boxes to train on, 2 images to validate on" in out
        assert "2 classes: red cell, platelet" in out
        assert "not used: the split test" in out
    out = planned(path, "--validation", path)
    assert "2 images with 2 boxes to train on, 2 images to validate on" in out
    shutil.copy(tmp_path / "images/train/train_a.png", tmp_path / "images/val/c.png")
    out = planned(path)
    assert "1 of 3 images to validate on are also training images" in out
    assert "1 images without a label file" in out
    text = path.read_text()
    path.write_text(text.replace("val: images/val", "val: images/train"))
    assert "2 of 2 images to validate on are also training images" in planned(path)
    (tmp_path / "val.txt").write_text("images/train/train_a.png\nimages/val/c.png\n")
    path.write_text(text.replace("val: images/val", "val: val.txt"))
    line = command.refuses(*PLAN, path, "--plan")
    assert "must not be those to train on" in line and "both 1 times" in line
    path.write_text(text)
    for option in ("--images", "--masks", "--classes"):
        given = path if option == "--classes" else tmp_path / "images"
        line = command.refuses(*PLAN, path, option, given, "--plan")
        assert f"{option} has no meaning for this data" in line
    names = ["mask_rcnn_resnet50", path, "--task", "instance_segmentation", "--plan"]
    line = command.refuses("finetune", *names)
    assert "needs COCO's JSON" in line and "data.yaml is YOLO's" in line


VIT = ["finetune", CHECKPOINTS / "vit_classifier"]


def test_folders_of_splits_are_no_classes(command, tmp_path):
    for folders in ("val/cat test/cat", "Train/cat Valid/cat", "test/a valid/b x/c"):
        root = tmp_path / folders.replace("/", "_")
        for number, folder in enumerate(folders.split()):
            write_image(root / folder / "a.png", (9, 9), seed=number)
        line = command.refuses(*VIT, root, "--plan")
        assert "must be the training images: pass the folder inside" in line
    # Flat folders have no classes; a train among cars is one.
    for folders, is_class in (("train test", False), ("car train bus", True)):
        root = tmp_path / folders
        for number, folder in enumerate(folders.split()):
            for name in "ab":
                write_image(root / folder / f"{name}.png", (9, 9), seed=number)
        assert command(*VIT, root, "--plan") == (0 if is_class else 2)
    assert "3 folders, a class each" in command.out


def test_classes_and_files_that_splits_lack(command, tmp_path, eager_runs):
    for number, name in enumerate(["cat/a", "cat/b", "cat/c", "dog/a", "dog/b"]):
        write_image(tmp_path / "train" / f"{name}.png", (9, 9), seed=number)
    (tmp_path / "val" / "cat").mkdir(parents=True)
    shutil.copy(tmp_path / "train/cat/b.png", tmp_path / "val/cat/new.png")
    (tmp_path / "val" / "cat" / "a.avi").write_bytes(b"x")
    given = [*VIT, tmp_path / "train", "--validation", tmp_path / "val", "--plan"]
    assert command(*given) == 0
    assert "no example to validate on of: dog" in command.out
    assert "1 of 1 images to validate on are also training images" in command.out
    assert f"not used in {tmp_path / 'val'}: 1 file of another kind" in command.out
    (tmp_path / "val" / "cat" / "new.png").unlink()
    link = tmp_path / "val" / "cat" / "link.png"
    link.symlink_to(tmp_path / "train" / "cat" / "a.png")
    line = command.refuses(*given)
    assert "must not be those to train on" in line and "link.png" in line
    for option in ("--images", "--validation-images"):
        line = command.refuses(*given, option, tmp_path / "val")
        assert f"{option} has no meaning for this data" in line
    # A link inside of one folder repeats an example; what is held out has its content.
    link.unlink()
    for number in range(9):
        link = tmp_path / "train" / "dog" / f"link{number}.png"
        link.symlink_to(tmp_path / "train" / "dog" / "a.png")
    assert command(*VIT, tmp_path / "train", "--plan") == 0
    assert "images to validate on are also training images" in command.out


def test_masks_are_validated_on_the_folders_beside(command, tmp_path, eager_runs):
    """SegNet's layout, and splits in both folders."""
    for root, places in (
        ("camvid", ("train trainannot", "val valannot", "test testannot")),
        ("split", ("images/train masks/train", "images/valid masks/valid")),
    ):
        for number, place in enumerate(places):
            images, masks = place.split()
            for name in ("a", "b"):
                file = f"{name}.png"
                write_image(tmp_path / root / images / file, (12, 20), seed=number)
                labels = np.arange(240).reshape(12, 20) % 2
                write_mask(tmp_path / root / masks / file, labels)
        given = ["finetune", "unet", tmp_path / root, "--plan"]
        given += ["--override", "padding=same"]
        assert command(*given) == 0, command.err
        assert "2 images to train on, 2 to validate on" in command.out
        images, masks = places[1].split()
        assert f"images in {tmp_path / root / images}, masks in" in command.out
    write_image(tmp_path / "split" / "masks" / "valid" / "c.png", (12, 20))
    assert command(*given) == 0
    assert f"{tmp_path / 'split/masks/valid'}: 1 image" in command.out


def test_rows_of_both_splits_are_counted(command, tmp_path, bert, eager_runs):
    train, val = tmp_path / "train.csv", tmp_path / "val.csv"
    train.write_text("text,label\nbad,x\ngood,y\nmany,z\n")
    val.write_text("text,label\ngood,y\ngreat,x\nbad,y\n")
    given = ["finetune", bert, train, "--plan", "--validation"]
    assert command(*given, val) == 0
    assert "2 of 3 rows to validate on are also training rows" in command.out
    assert "no example to validate on of: z" in command.out
    assert command(*given, train) == 0
    assert "3 of 3 rows to validate on are also training rows" in command.out
    val.write_text("text,label\ngreat,x\n")
    assert command(*given, val) == 0 and "also training" not in command.out
    val.write_text("text,label\ngreat,X\n")
    assert "must be one of" in command.refuses(*given, val)
    train.write_text("text,label\nbad,xx\ngood,XX\nmany,z\n")
    assert "one class in two ways" in command.refuses(*given[:-1])
    train.write_text("text;label\nbad;1,5\n;\ngood;2\n\nso;3\n")
    assert command(*given[:-1]) == 0
    assert "text_regression, because train.csv, separated by ;, has" in command.out
    assert "left out: 2 empty rows, first train.csv, line 3" in command.out
    line = command.refuses("finetune", bert, tmp_path, "--plan")
    assert "pass its path, and another one as --validation" in line
    assert "with train.csv, val.csv" in line
    line = command.refuses(*given[:-1], "--images", tmp_path)
    assert "--images has no meaning for this data" in line


def test_contents_are_compared_as_a_whole(tmp_path):
    rng = np.random.default_rng(0)
    body = rng.bytes(10_000)
    for name, content in {"a": b"x" + body, "b": b"y" + body, "c": b"x" + body}.items():
        (tmp_path / name).write_bytes(content)
    a, b, c = (tmp_path / name for name in "abc")
    settings = Settings("model", tmp_path)
    assert check_apart(settings, [a], [b], are_held_out=True) == []
    (note,) = check_apart(settings, [a], [b, c], are_held_out=False)
    assert note == "1 of 2 images to validate on are also training images"
    missing = tmp_path / "none"
    assert check_apart(settings, [a, missing], [missing], are_held_out=True) == []
