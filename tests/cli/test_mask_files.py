"""Masks and pictures as people have them: what stands for a class, what is replaced."""

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cli import finetuning_data
from data.image_sets import write_image, write_mask
from PIL import Image, ImageFilter
from refusals import refuses

from keras_attn.cli.finetuning.kinds import find_kind
from keras_attn.cli.finetuning.mask_classes import mask_classes
from keras_attn.cli.finetuning.pictures import PictureJob
from keras_attn.cli.finetuning.pixels import PixelJob
from keras_attn.cli.finetuning.result import Result, read_result
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.prediction import pictures
from keras_attn.cli.prediction.image_scores import score_pixels
from keras_attn.cli.prediction.network import Network
from keras_attn.cli.prediction.pictures import predict_masks

SIZE = (24, 32)
LABELS = np.zeros(SIZE, int)
LABELS[4:12, 5:20], LABELS[12] = 1, 2


def write_cells(root, table, classes=None, start=0):
    """Three images, masks of the values or colors in a table, and `classes.txt`."""
    for number in range(3):
        write_image(root / "images" / f"{number}.jpg", SIZE, seed=start + number)
        write_mask(root / "masks" / f"{number}.png", np.asarray(table)[LABELS])
    if classes is not None:
        (root / "classes.txt").write_text(classes)
    return root


def classes_of(root):
    settings = Settings("unet", root)
    return mask_classes(settings, find_kind(settings, root))


def job_of(root, kind: Any = PixelJob, model="unet", **options) -> Any:
    return finetuning_data.job_of(kind, model, root, **options)


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_shades_of_gray_are_no_classes(tmp_path, suffix):
    """Smooth edges of a drawing program, and JPEG."""
    write_image(tmp_path / "images" / "a.png", (240, 320))
    pixels = np.zeros((240, 320), "uint8")
    pixels[40:120, 50:200] = 255
    image = Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(12))
    (tmp_path / "masks").mkdir()
    image.save(tmp_path / "masks" / f"a.{suffix}")
    refuses("smooth edges, and JPEG, make shades of gray", classes_of, tmp_path)


COLORS = [(0, 0, 0), (128, 64, 0), (224, 224, 192)]
THREE = ["sky", "tall tree", "edge"]
FILES = {
    "ours": "sky 0 0 0\ntall tree 128 64 0\nedge 224 224 192\n",
    # CamVid's label_colors.txt, Kaggle's class_dict.csv, spreadsheets.
    "first": "0 0 0\tsky\n128 64 0\ttall tree\n224 224 192\t\tedge\n",
    "header": "name,r,g,b\nsky,0,0,0\ntall tree,128,64,0\nedge,224,224,192\n",
    "semicolons": "sky;0;0;0\r\ntall tree; 128; 64; 0\r\nedge;224;224;192\r\n",
    "comment": "# the classes\nsky 0 0 0\ntall tree 128 64 0\nedge 224 224 192\n",
}


@pytest.mark.parametrize("form", FILES)
def test_files_of_classes(tmp_path, form):
    root = write_cells(tmp_path, np.array(COLORS), FILES[form])
    names, palette = classes_of(root)
    assert names == THREE and palette is not None and list(palette) == COLORS
    assert [palette[color] for color in COLORS] == [0, 1, 2]
    np.testing.assert_array_equal(job_of(root).parts[0].read(0)[1], LABELS)


def test_numbers_before_names_are_values(tmp_path):
    """Not parts of the names, in the order of the lines."""
    names, palette = classes_of(write_cells(tmp_path, [7, 3, 9], "9 a\n7 b\n3 c\n"))
    assert names == ["a", "b", "c"] and palette == {9: 0, 7: 1, 3: 2}
    # A number is part of a name where not each line begins with one.
    assert classes_of(write_cells(tmp_path, [0, 1, 1], "3 wheels\nroad\n"))[0] == [
        "3 wheels",
        "road",
    ]


def test_what_does_not_count(tmp_path):
    """VOC's borders, and several values of one class."""
    text = "sky 0 0 0\nignored 224 224 192\ntree 128 64 0\nignored 9 9 9\n"
    root = write_cells(tmp_path / "a", np.array(COLORS), text)
    labels = np.where(LABELS == 2, 255, LABELS)
    job = job_of(root)
    assert job.class_names == ["sky", "tree"]
    np.testing.assert_array_equal(job.parts[0].read(0)[1], labels)
    values = {tuple(color): label for color, label in job.result().mask_values}
    black, edge, tree = COLORS[0], COLORS[2], COLORS[1]
    assert values == {black: 0, edge: 255, tree: 1, (9, 9, 9): 255}
    root = write_cells(tmp_path / "b", [7, 11, 8], "road 7\ncar 11\nroad 8\n")
    assert classes_of(root) == (["road", "car"], {7: 0, 11: 1, 8: 0})
    root = write_cells(tmp_path / "c", [7, 11, 255], "road 7\ncar 11\n")
    refuses("`ignored 255` is what does not count.*255", job_of(root).parts[0].read, 0)
    for text, message in (
        ("road 7\ncar 7\n", "must stand for one class. Received: 7 twice"),
        ("road 7\ncar\n", "2 classes and 1 values"),
        ("road 7\nignored 8\n", "1 classes and 2 values"),
    ):
        (root / "classes.txt").write_text(text)
        refuses(message, classes_of, root)


def test_masks_in_the_transparency(tmp_path):
    """White everywhere, opaque where the object is, as tools that cut out write."""
    pixels = np.full((*SIZE, 4), 255, "uint8")
    pixels[..., 3] = 255 * (LABELS == 1)
    root = write_cells(tmp_path, [0, 255, 0])
    Image.fromarray(pixels).save(root / "masks" / "0.png")
    refuses("0.png must say by its colors which class", classes_of, root)
    # Black where it is transparent: the colors say the same.
    pixels[LABELS != 1, :3] = 0
    Image.fromarray(pixels).save(root / "masks" / "0.png")
    assert classes_of(root)[0] == ["background", "foreground"]


def network_of(names, labels, **given):
    """Predicts the same labels for each image."""
    logits = np.eye(len(names), dtype="float32")[labels][None]
    result = Result("segmentation", names, **given)
    shapes = {"images": (None, None, None, 3)}
    return Network(lambda inputs: logits, shapes, result, None, is_exported=True)


def test_other_data_have_their_own_order_of_classes(tmp_path):
    """`classes.txt` of --validation, and of the data of `keras-attn evaluate`."""
    root = write_cells(tmp_path / "train", [0, 255, 0], "cell 255\nback 0\n")
    other = write_cells(tmp_path / "val", [5, 9, 5], "back 5\ncell 9\n", start=9)
    job = job_of(root, validation=other)
    cells = (LABELS != 1).astype(int)  # 0 = cell.
    for part in job.parts:
        np.testing.assert_array_equal(part.read(0)[1], cells)
    network = network_of(["cell", "back"], cells, mask_values=job.result().mask_values)
    settings = Settings("model", other)

    def accuracy(data):
        kind = find_kind(settings, data)
        given = replace(settings, data=data)
        return score_pixels(network, given, kind, 0).figures["pixel_accuracy"]

    assert accuracy(other) == accuracy(root) == 1
    (other / "classes.txt").write_text("back 5\nring 9\n")
    message = r"must have the classes \['cell', 'back'\].*\['back', 'ring'\]"
    refuses(message, accuracy, other)
    refuses(message, job_of, root, validation=other)
    # Without a file: as the masks that the model learned from.
    (root / "classes.txt").unlink()
    assert accuracy(root) == 1
    # Names alone: the numbers are those of the lines.
    back = write_cells(tmp_path / "names", [0, 1, 255], "back\ncell\n")
    assert accuracy(back) == 1
    network.result.save(tmp_path)
    assert read_result(tmp_path) == network.result


def test_files_of_others_are_not_replaced(tmp_path):
    """The true masks, in the folder of which the found ones are written."""
    root = write_cells(tmp_path, [0, 255, 0])
    network = network_of(["back", "cell"], (LABELS == 1).astype(int))
    images, masks = [str(root / "images")], root / "masks"
    before = (masks / "0.png").read_bytes()
    with pytest.raises(ValueError, match="--masks must not have other files.*0.png"):
        list(predict_masks(network, images, folder=masks))
    with pytest.raises(ValueError, match="--save-images must not have other files"):
        list(predict_masks(network, images, folder=None, drawn=masks))
    assert (masks / "0.png").read_bytes() == before
    # Its own files are.
    found = root / "found"
    for _ in range(2):
        assert len(list(predict_masks(network, images, folder=found))) == 3
    np.testing.assert_array_equal(np.asarray(Image.open(found / "1.png")), LABELS == 1)
    assert sorted(x.name for x in found.iterdir()) == ["0.png", "1.png", "2.png"]


def test_a_killed_process_leaves_whole_masks(tmp_path, monkeypatch):
    """The file that was being written is as it was before."""
    root = write_cells(tmp_path, [0, 255, 0])
    network = network_of(["back", "cell"], (LABELS == 1).astype(int))
    images, found = [str(root / "images" / "0.jpg")], root / "found"
    list(predict_masks(network, images, folder=found))
    before = (found / "0.png").read_bytes()

    def killed(image, target, *_, **__):
        half = image.tobytes()[:99]
        target.write_bytes(half) if hasattr(target, "stem") else target.write(half)
        raise KeyboardInterrupt

    monkeypatch.setattr(pictures.Image.Image, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        list(predict_masks(network, images, folder=found))
    assert (found / "0.png").read_bytes() == before


def test_folders_of_systems_are_no_classes(tmp_path):
    """`__MACOSX` of an archive, and Synology's small pictures in `@eaDir`."""
    for number, name in enumerate(["cat/a", "cat/b", "dog/a", "dog/b"]):
        write_image(tmp_path / f"{name}.png", (9, 9), seed=number)
    write_image(tmp_path / "cat" / "@eaDir" / "a.png" / "SYNOPHOTO_THUMB_M.jpg", (3, 3))
    (tmp_path / "__MACOSX" / "cat").mkdir(parents=True)
    (tmp_path / "__MACOSX" / "cat" / "._a.png").write_bytes(b"x")
    job = job_of(tmp_path, PictureJob, "vit_base_patch16")
    assert job.class_names == ["cat", "dog"] and sum(map(len, job.parts)) == 4
    assert f"not used in {tmp_path}: 2 hidden files" in job.notes


def test_an_image_in_two_classes_is_counted(tmp_path):
    for number, name in enumerate(["cat/a", "cat/b", "dog/a", "dog/b"]):
        write_image(tmp_path / f"{name}.png", (9, 9), seed=number)
    shutil.copy(tmp_path / "cat" / "a.png", tmp_path / "dog" / "c.png")
    shutil.copy(tmp_path / "cat" / "b.png", tmp_path / "cat" / "c.png")
    job = job_of(tmp_path, PictureJob, "vit_base_patch16")
    first, second = tmp_path / "cat" / "a.png", tmp_path / "dog" / "c.png"
    assert f"1 images are in two classes, such as {first} and {second}" in job.notes
