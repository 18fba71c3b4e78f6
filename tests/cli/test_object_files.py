"""Files of boxes as tools write them: what is read, left out and counted."""

import functools
import shutil

import numpy as np
import pytest
from cli import finetuning_data
from cli.finetuning_data import write_boxes
from data.image_sets import voc_object, voc_xml, write_image
from data.test_yolo import write_yaml, write_yolo

from keras_attn.cli.finetuning import objects
from keras_attn.cli.finetuning.kinds import find_kind
from keras_attn.cli.finetuning.objects import ObjectJob
from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.prediction.image_scores import score_objects
from keras_attn.cli.prediction.network import Network
from keras_attn.data import read_coco, read_voc, read_yolo

SIZE = (24, 32)


job_of = functools.partial(finetuning_data.job_of, ObjectJob, "faster_rcnn_resnet50")


def write_coco(folder, change=None, names=None, start=0):
    """Images with a box each in `images/`, and COCO's file of them."""
    return write_boxes(folder / "boxes.json", folder / "images", names, start, change)


def annotation(**values):
    return lambda content: content["annotations"][0].update(values)


def boxes_of(data):
    return {example.name: example.boxes.tolist() for example in data.examples}


def test_boxes_without_width_or_height_are_left_out(tmp_path):
    """Two of COCO's instances_train2017.json; YOLO and VOC as tools write them."""
    path = write_coco(tmp_path / "coco", annotation(bbox=[1, 2, 9.0, 0]))
    with pytest.warns(UserWarning, match="left out 1 files or objects"):
        data = read_coco(path, path.parent / "images", masks=False)
    assert boxes_of(data)["0.png"] == []
    assert list(data.skipped) == ["boxes.json, annotation 0"]
    job = job_of(path)
    assert any(
        "left out: 1 objects: boxes.json, annotation 0 has no width" in note
        for note in job.notes
    )
    yolo = write_yaml(write_yolo(tmp_path / "yolo"))
    label = tmp_path / "yolo" / "labels" / "train" / "train_b.txt"
    label.write_text("0 0.5 0.5 0 0.1\n1 0.5 0.5 0.5 0.5\n")
    with pytest.warns(UserWarning, match=r"train_b\.txt, line 1 has no width"):
        data = read_yolo(yolo)
    assert boxes_of(data)["train_b.png"] == [[20, 10, 60, 30]]
    assert data.examples[1].classes.tolist() == [1]
    voc = write_voc(tmp_path / "voc", voc_object("cat", (17, 5, 16, 19)))
    with pytest.warns(UserWarning, match=r"0\.xml, object 0 has no width"):
        data = read_voc(voc)
    assert boxes_of(data) == {"0": [], "1": [[2, 4, 17, 19]], "2": [[2, 4, 17, 19]]}


def write_voc(root, first=None, names=("Annotations", "JPEGImages")):
    """Three images with a cat each, in folders of these names."""
    for number in range(3):
        write_image(root / names[1] / f"{number}.jpg", SIZE, seed=number)
        found = voc_object("cat", (3, 5, 17, 19))
        content = voc_xml(SIZE, first if first and number == 0 else found)
        path = root / names[0] / f"{number}.xml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return root


def test_repeated_boxes_are_counted(tmp_path):
    """Ultralytics leaves them out; mAP would count the second one as missed."""
    yolo = write_yaml(write_yolo(tmp_path / "yolo"))
    label = tmp_path / "yolo" / "labels" / "train" / "train_b.txt"
    label.write_text("0 0.5 0.5 0.2 0.1\n1 0.5 0.5 0.2 0.1\n0 0.5 0.50 0.2 0.1\n")
    data = read_yolo(yolo)
    assert data.examples[1].classes.tolist() == [0, 1]
    assert data.notes == ["left out: 1 boxes that are repeated in their file"]
    path = write_coco(
        tmp_path / "coco",
        lambda content: content["annotations"].append(content["annotations"][1]),
    )
    notes = job_of(path).notes
    assert "1 boxes are repeated: same image, place and class" in notes


def test_files_in_a_yolo_folder_are_counted(tmp_path):
    """Photos that Pillow cannot read, and a split that data.yaml does not name."""
    yolo = write_yaml(write_yolo(tmp_path))
    (tmp_path / "images" / "train" / "new.heic").write_bytes(b"x")
    yolo.write_text(yolo.read_text().replace("val: images/val\n", ""))
    notes = job_of(yolo).notes
    folder = tmp_path / "images"
    assert f"not used in {folder / 'train'}: 1 file of another kind (.heic 1)" in notes
    assert f"not used: {folder / 'val'}, which data.yaml does not name" in notes


def test_paths_of_windows(tmp_path):
    r"""`images\a.jpg` in data.yaml, in a list of images, and in COCO's file."""
    yolo = write_yaml(write_yolo(tmp_path / "yolo"))
    text = yolo.read_text().replace("images/train", r"images\train")
    yolo.write_text(text.replace("images/val", "val.txt"))
    lines = "images\\val\\val_a.png\r\n.\\images\\val\\val_b.png\r\n"
    (yolo.parent / "val.txt").write_text(lines)
    assert [len(part) for part in job_of(yolo).parts] == [2, 2]
    path = write_coco(tmp_path / "coco", names=("x/0.png", "x/1.png"))
    path.write_text(path.read_text().replace("x/", r"x\\"))
    job = job_of(path)
    assert [part.examples[0].name[:2] for part in job.parts] == ["x/", "x/"]


def test_whole_numbers_with_a_point(tmp_path):
    """As json.dumps writes the columns of pandas' tables."""

    def change(content):
        for image in content["images"]:
            image.update({name: float(image[name]) for name in ("id", "height")})
        for each in content["annotations"]:
            each.update(image_id=float(each["image_id"]), category_id=3.0)
        content["categories"][0]["id"] = 3.0

    path = write_coco(tmp_path, change)
    data = read_coco(path, tmp_path / "images", masks=False)
    assert data.category_ids == [3, 7] and len(boxes_of(data)) == 3


def test_categories_are_found_by_their_names(tmp_path):
    """A second COCO file has other numbers, or lacks a category."""
    path = write_coco(tmp_path / "train")

    def change(content):
        content["categories"] = [{"id": 1, "name": "ring"}, {"id": 2, "name": "cell"}]
        for number, each in enumerate(content["annotations"]):
            each["category_id"] = 1 + number

    other = write_coco(tmp_path / "val", change, ("a.png", "b.png"), start=9)
    first, second = job_of(path, validation=other).parts
    assert first.class_names == second.class_names == ["cell", "ring"]
    assert [each.classes.tolist() for each in second.examples] == [[1], [0]]
    assert second.category_ids == [2, 1]

    def lack(content):
        content["categories"].pop()

    other = write_coco(tmp_path / "less", lack, ("a.png", "b.png"), start=9)
    job = job_of(path, validation=other)
    assert job.parts[1].category_ids == [3, -1]
    assert "no example to validate on of: ring" in job.notes

    def rename(content):
        content["categories"][0]["name"] = "star"

    other = write_coco(tmp_path / "more", rename, ("a.png", "b.png"), start=9)
    with pytest.raises(ValueError, match="annotation 0 must have a `category_id` from"):
        job_of(path, validation=other)


def test_crowds_are_neither_learned_nor_counted(tmp_path, capsys, monkeypatch):
    """COCO's own mAP leaves out what is found in a crowd."""
    pytest.importorskip("pycocotools", reason="the extra `eval` is not installed")

    def change(content):
        crowd = {"id": 9, "image_id": 0, "category_id": 3, "iscrowd": 1}
        content["annotations"].append(crowd | {"bbox": [16, 0, 16, 24]})

    path = write_coco(tmp_path, change, ("0.png",))

    def detect(inputs):
        boxes = np.array([[[1, 2, 10, 10], [17, 2, 30, 20]]], "float32")
        scores = np.array([[0.8, 0.9]], "float32")
        return {"boxes": boxes, "scores": scores, "classes": np.zeros((1, 2), "int32")}

    names = ["cell", "ring"]
    result = Result("detection", names, image_size=[*SIZE], normalize="unit")
    network = Network(detect, {"images": (None, *SIZE, 3)}, result, None, True)
    settings = Settings("model", path)
    kind = find_kind(settings, path)
    found = score_objects(network, settings, kind, 3, 0.5)
    assert found.figures["map"] == pytest.approx(1)
    # What is not used or learned is said.
    said = capsys.readouterr().err
    assert "1 boxes of crowds: nothing is learned or counted there" in said
    shutil.copy(tmp_path / "images" / "0.png", tmp_path / "images" / "1.png")
    path = write_coco(tmp_path, change, ("0.png", "1.png"))
    job = job_of(path)
    assert job.lines()[0].startswith("1 images with 1 boxes to train on, 1 images")
    crowds = []
    monkeypatch.setattr(
        objects,
        "detection_dataset",
        lambda *_, **given: crowds.append(given["crowds"]),
    )
    job.batches(None)
    assert crowds == [False, True]  # To train on, and to validate on.


@pytest.mark.parametrize("names", [("annotations", "images"), ("", "")])
def test_other_folders_of_voc_files(tmp_path, names):
    """Kaggle's annotations/ and images/; Roboflow's files side by side, per split."""
    root = write_voc(tmp_path / "train", names=names)
    other = write_voc(tmp_path / "valid", names=names)
    for number, path in enumerate(sorted(other.rglob("*.jpg"))):
        write_image(path, SIZE, seed=20 + number)
    (root / names[1] / "new.heic").write_bytes(b"x")
    job = job_of(root, validation=other)
    assert job.kind.layout == "voc" and list(map(len, job.parts)) == [3, 3]
    assert f"not used in {root / names[1]}: 1 file of another kind (.heic 1)" in (
        job.notes
    )
    assert list(map(len, job_of(root).parts)) == [2, 1]


def test_voc_files_that_count_from_zero(tmp_path):
    """As CVAT writes them: where a box begins at pixel 0, none is moved by a pixel."""
    root = write_voc(tmp_path / "a", voc_object("cat", ("0.00", 5, 17, 19)))
    job = job_of(root)
    found = {x.name: x.boxes.tolist() for part in job.parts for x in part.examples}
    assert found["0"] == [[0, 5, 17, 19]] and found["1"] == [[3, 5, 17, 19]]
    assert any("boxes are counted from pixel 0, at which" in note for note in job.notes)
    root = write_voc(tmp_path / "b", voc_object("cat", (10, 1, 17, 19)))
    job = job_of(root)
    found = {x.name: x.boxes.tolist() for part in job.parts for x in part.examples}
    assert found["0"] == [[9, 0, 17, 19]] and not any("pixel 0" in x for x in job.notes)
