"""Folders of images and masks: what is read, and what is refused or left out."""

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from backend import skip_module_without_tensorflow
from data.image_sets import FOLDER, NAMES, SIZES, truncate, write_image, write_mask
from PIL import Image
from refusals import named_or_left_out, refuses, refuses_in_epoch

from keras_attn.data import read_segmentation, segmentation_dataset

skip_module_without_tensorflow("tf.data feeds TensorFlow")

CLASSES = ["sky", "road", "car"]
COLORS = [(0, 0, 0), (128, 64, 128), (64, 0, 128)]
RNG = np.random.default_rng(0)
LABELS = {name: RNG.integers(0, 3, SIZES[name]) for name in NAMES}


def write_set(folder, as_written=lambda labels: labels, palette=None, channels=3):
    root = folder / FOLDER
    for number, name in enumerate(NAMES):
        write_image(root / "image" / f"{name}.png", SIZES[name], channels, number)
        write_mask(root / "mask" / f"{name}.png", as_written(LABELS[name]), palette)
    return root / "image", root / "mask"


def labels_of(data):
    return {
        path.stem: data.read(index)[1] for index, (path, _) in enumerate(data.pairs)
    }


def with_void(labels):
    written = labels.copy()
    written[0] = 11
    written[1] = 255
    return written


@pytest.mark.parametrize("kind", ["numbers", "void", "values", "indices", "colors"])
def test_kinds_of_masks(tmp_path, kind):
    expected: dict = LABELS
    options: dict[str, Any] = {}
    if kind == "numbers":
        folders = write_set(tmp_path)
    elif kind == "void":
        folders = write_set(tmp_path, with_void)
        expected = {name: labels.copy() for name, labels in LABELS.items()}
        for labels in expected.values():
            labels[:2] = 255
        options = {"void": (11,)}
    elif kind == "values":
        folders = write_set(tmp_path, lambda labels: labels * 127)
        options = {"palette": {0: 0, 254: 2, 127: 1}}
    elif kind == "indices":  # A palette image, whose colors do not matter.
        folders = write_set(tmp_path, palette=COLORS)
    else:
        folders = write_set(tmp_path, palette=COLORS)
        options = {"palette": np.array(COLORS, np.uint8)}
    found = labels_of(read_segmentation(*folders, CLASSES, **options))
    assert set(found) == set(NAMES)
    for name, labels in found.items():
        assert labels.dtype == np.int32
        np.testing.assert_array_equal(labels, expected[name])


def test_colors_may_be_ignored_or_share_a_class(tmp_path):
    folders = write_set(tmp_path, palette=COLORS)
    palette = {COLORS[0]: 0, COLORS[1]: 0}
    data = read_segmentation(*folders, ["all"], palette=palette, void=[COLORS[2]])
    for name, labels in labels_of(data).items():
        expected = np.where(LABELS[name] == 2, 255, 0)
        np.testing.assert_array_equal(labels, expected)


def test_a_batch(tmp_path):
    folders = write_set(tmp_path)
    data = read_segmentation(*folders, CLASSES)
    assert [image.stem for image, _ in data.pairs] == sorted(NAMES)
    dataset = segmentation_dataset(data, batch_size=2, image_size=(31, 43))
    assert int(dataset.cardinality()) == 2
    (images, labels), _ = list(dataset.as_numpy_iterator())
    assert images.shape == (2, 31, 43, 3) and labels.shape == (2, 31, 43)
    np.testing.assert_array_equal(labels[1], LABELS["eins 1"])
    np.testing.assert_array_equal(images[1], np.asarray(Image.open(data.pairs[1][0])))
    # 37 x 41 becomes 31 x 34, and padding is ignored.
    assert (labels[0, :, 34:] == 255).all() and (labels[0, :, :34] < 3).all()
    assert (images[0, :, 34:] == 0).all()

    gray = read_segmentation(*folders, CLASSES, names=["zwei"], channels=1)
    dataset = segmentation_dataset(gray, batch_size=1, normalize="unit")
    ((images, labels),) = dataset.as_numpy_iterator()
    assert images.shape == (1, 29, 23, 1) and images.max() <= 1
    np.testing.assert_array_equal(labels[0], LABELS["zwei"])


def test_normalized_padding_is_zero(tmp_path):
    data = read_segmentation(*write_set(tmp_path), CLASSES, names=["eins 1"])
    options: Any = {"batch_size": 1, "image_size": 43, "normalize": "imagenet"}
    ((images, _),) = segmentation_dataset(data, **options)
    pixels = np.asarray(Image.open(data.pairs[0][0])) / 255
    mean, deviation = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    np.testing.assert_allclose(images[0, :31], (pixels - mean) / deviation, atol=1e-5)
    assert (images[0, 31:].numpy() == 0).all()


def test_an_order_per_epoch_and_augmentations_per_image(tmp_path):
    data = read_segmentation(*write_set(tmp_path), CLASSES)

    def noise(example, seed):
        value = tf.random.stateless_uniform([], seed)
        return {**example, "image": tf.fill([5, 7, 3], value)}

    def values(epoch, shuffle=True, seed=3):
        dataset = segmentation_dataset(
            data,
            batch_size=1,
            image_size=(5, 7),
            augmentations=[lambda x, _: {**x, "labels": x["labels"][:5, :7]}, noise],
            shuffle=shuffle,
            seed=seed,
            epoch=epoch,
        )
        found = [float(images[0, 0, 0, 0]) for images, _ in dataset]
        assert len(set(found)) == len(NAMES)
        return found

    orders = [values(epoch) for epoch in range(5)]
    assert orders[1] == values(1)
    assert len({min(order) for order in orders}) == 5  # Other numbers in each epoch.
    # An image has its numbers whatever its place.
    assert sorted(orders[2]) == sorted(values(2, shuffle=False))
    # The smallest number moves with its image.
    assert len({order.index(min(order)) for order in orders}) > 1
    assert values(2, seed=5) != orders[2]
    epoch = tf.Variable(tf.constant(4, tf.int64))
    assert values(epoch) == orders[4]


BAD_MASKS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "labels": (np.full(SIZES["zwei"], 3), {}, r"from 0 to 2, or 255.*\[3\]"),
    "size": (np.zeros((23, 29)), {}, r"of zwei\.png must have its size.*\(29, 23\)"),
    "value": (
        np.full(SIZES["zwei"], 128),
        {"palette": {0: 0, 1: 1, 2: 2}},
        r"the values in `palette` and `void`.*\[128\]",
    ),
}


@pytest.mark.parametrize("kind", BAD_MASKS)
def test_bad_masks(tmp_path, kind):
    folders = write_set(tmp_path)
    labels, options, message = BAD_MASKS[kind]
    write_mask(folders[1] / "zwei.png", labels)
    check_refused(folders, message, **options)


def check_refused(folders, message, **options):
    images, masks = folders
    data = read_segmentation(images, masks, CLASSES, names=["zwei"], **options)
    refuses(message, data.read, 0)


def must_be_large(example, seed):
    """An augmentation that fails on what stands in for a bad image."""
    check = tf.debugging.assert_greater(tf.shape(example["image"])[0], 20)
    with tf.control_dependencies([check]):
        return {**example, "image": tf.identity(example["image"])}


def test_bad_files_in_the_middle_of_an_epoch(tmp_path):
    folders = write_set(tmp_path)
    write_mask(folders[1] / "eins 1.png", np.full(SIZES["eins 1"], 3))
    truncate(folders[0] / "zwei.png")
    batches: dict[str, Any] = {"batch_size": 1, "image_size": 17}
    batches["augmentations"] = [must_be_large]
    read, strict = [], read_segmentation(*folders, CLASSES)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"eins 1\.png must have"):
        for images, _ in segmentation_dataset(strict, **batches):
            read.append(images)
    assert len(read) == 1

    data = read_segmentation(*folders, CLASSES, on_error="skip")
    dataset = segmentation_dataset(data, **batches)
    with pytest.warns(UserWarning, match="Left out while reading") as warned:
        images = [image for image, _ in dataset.as_numpy_iterator()]
    # The only one that is left fills the epoch.
    assert len(images) == 3
    np.testing.assert_array_equal(images[1], images[0])
    # Counted, but reported once; a second epoch gives no warning at all.
    assert len(warned) == 1
    assert len(list(dataset)) == 3
    assert sorted(data.skipped) == ["eins 1.png", "zwei.png"]
    assert "labels from 0 to 2" in data.skipped["eins 1.png"]
    with pytest.warns(UserWarning, match="Images and masks: left out 2 files"):
        assert [path.stem for path, _ in data.check().pairs] == ["drei"]
    refuses(r"eins 1\.png must have labels", strict.check)


def test_colors_outside_of_the_palette(tmp_path):
    folders = write_set(tmp_path, palette=COLORS)
    write_mask(folders[1] / "zwei.png", LABELS["zwei"], [*COLORS[:2], (1, 2, 3)])
    message = r"the colors in `palette` and `void`.*\(1, 2, 3\)"
    check_refused(folders, message, palette=COLORS)


def test_colors_where_numbers_are_expected(tmp_path):
    folders = write_set(tmp_path)
    write_image(folders[1] / "zwei.png", SIZES["zwei"])
    check_refused(folders, "Colors need `palette`.*--classes.*mode 'RGB'")


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "cut mask", "bomb"])
def test_corrupt_files(tmp_path, damage):
    folders = write_set(tmp_path)
    path = folders["mask" in damage] / "zwei.png"
    message = r"zwei\.png must be a complete JPEG, PNG, BMP, TIFF,"
    if "cut" in damage:
        truncate(path)
    elif damage == "bomb":
        # A header that claims many pixels, with its checksum.
        content = path.read_bytes()
        header = b"IHDR" + struct.pack(">II", 9300, 9000) + content[24:29]
        checksum = struct.pack(">I", zlib.crc32(header))
        path.write_bytes(content[:12] + header + checksum + content[33:])
        message = r"zwei\.png must have at most 80000000 pixels.*9300 x 9000"
    else:
        path.write_bytes(b"" if damage == "empty" else b"no image" * 100)
    check_refused(folders, message)


def test_a_file_that_vanishes_and_sixteen_bits(tmp_path):
    folders = write_set(tmp_path)
    data = read_segmentation(*folders, CLASSES)
    (folders[1] / "eins 1.png").unlink()
    refuses_in_epoch(r"no eins 1\.png", segmentation_dataset(data, batch_size=1))
    image = Image.fromarray(np.full(SIZES["drei"], 257 * 9, np.uint16))
    image.save(folders[0] / "drei.png")
    assert (data.read(0)[0] == 9).all()
    Image.fromarray(np.zeros(SIZES["drei"], np.float32)).save(
        folders[0] / "drei.png", "TIFF"
    )
    refuses(r"8 bits per channel, or of 16.*mode 'F'", data.read, 0)


def test_files_that_are_not_used_are_counted(tmp_path):
    images, masks = tmp_path / "images", tmp_path / "masks"
    for folder, names in ((images, "a .b"), (masks, "a b c/d")):
        for name in names.split():
            write_mask(folder / f"{name}.png", np.zeros((3, 5)))
    write_mask(images / "deep" / "a.png", np.zeros((3, 5)))
    ours, theirs = read_segmentation(images, masks, ["x", "y"]).notes
    assert ours == f"not used in {images}: 1 image, 1 hidden file"
    assert theirs == f"not used in {masks}: 2 images"
    assert not read_segmentation(images, masks, ["x", "y"], names=["a"]).notes


def test_folders_that_do_not_match(tmp_path):
    images, masks = write_set(tmp_path)
    (masks / "zwei.png").unlink()
    given = (read_segmentation, images, masks, CLASSES)
    message = r"`mask_folder` has no zwei\.png"
    assert len(named_or_left_out(message, *given)) == 2
    with pytest.raises(FileNotFoundError, match=r"`image_folder` has no vier\.png"):
        read_segmentation(images, masks, CLASSES, names=["vier"])
    message = "must have files of the same names"
    refuses(message, *given, names=["vier"], on_error="skip")
    refuses("'drei' twice in `names`", *given, names=["drei", "drei"])
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / ".hidden.png").write_bytes(b"")
    message = "`image_folder` must be a folder with images"
    refuses(message, read_segmentation, empty, masks, CLASSES)
    message = "`mask_folder` must be an existing folder"
    refuses(message, read_segmentation, images, empty / "x", CLASSES)
    write_image(masks / "drei.bmp", (3, 5))
    refuses(r"one image of each name.*drei\.bmp and drei", *given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_names": "x" * 256}, "at most 255 names, .* are ignored.*256 names"),
        ({"palette": COLORS[:2]}, "must have 3 colors, one for each class"),
        ({"palette": [COLORS[0]] * 3}, "must have 3 colors, one for each class"),
        ({"palette": {COLORS[0]: 3}}, "map to classes from 0 to 2, or 255"),
        ({"palette": {COLORS[0]: 0, 7: 1}}, "must consist of colors"),
        ({"palette": {(0, 0, 256): 0}}, "must consist of colors"),
        ({"palette": {}}, "must consist of colors"),
        ({"void": [COLORS[0]]}, "`void` must be numbers without a `palette`"),
        ({"channels": 4}, "`channels` must be 1 or 3"),
        ({"on_error": "stop"}, "`on_error` must be one of"),
        ({"class_names": []}, "`class_names` must be a positive integer"),
    ],
)
def test_invalid_arguments(tmp_path, options, message):
    folders = write_set(tmp_path)
    refuses(message, read_segmentation, *folders, **{"class_names": CLASSES, **options})


def test_invalid_arguments_of_the_dataset(tmp_path):
    folders = write_set(tmp_path)
    data = read_segmentation(*folders, CLASSES, channels=1)
    for options, message in [
        ({"normalize": "imagenet"}, "For gray images `normalize` must be"),
        ({"normalize": "torch"}, "`normalize` must be one of None, 'unit', 'imagenet'"),
        ({"image_size": 0}, "`image_size` must be a positive integer"),
    ]:
        refuses(message, segmentation_dataset, data, batch_size=1, **options)
    with pytest.raises(ValueError, match="`batch_size` must be a positive integer"):
        segmentation_dataset(data, batch_size=0)
    data.pairs.clear()
    refuses("`data` must have images", segmentation_dataset, data, batch_size=1)


@pytest.mark.data
@pytest.mark.skipif(
    "KERAS_ATTN_DATA" not in os.environ, reason="KERAS_ATTN_DATA is not set"
)
def test_camvid_and_membranes():
    root = Path(os.environ["KERAS_ATTN_DATA"])
    camvid = root / "camvid"
    names = [str(number) for number in range(11)]
    data = read_segmentation(camvid / "val", camvid / "valannot", names, void=(11,))
    assert len(data) == 101
    images, labels = next(iter(segmentation_dataset(data, batch_size=101)))
    assert images.shape == (101, 180, 240, 3)
    assert set(np.unique(labels)) == {*range(11), 255}

    membranes = root / "isbi_membrane"
    data = read_segmentation(
        membranes / "image",
        membranes / "label",
        ["membrane", "cell"],
        palette={0: 0, 255: 1},
        channels=1,
    )
    assert len(data) == 25
    images, labels = next(iter(segmentation_dataset(data, batch_size=25)))
    assert images.shape == (25, 512, 512, 1) and set(np.unique(labels)) == {0, 1}
