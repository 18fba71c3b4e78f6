"""Folders of images per class: what is read, and what is refused or left out."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from backend import skip_module_without_tensorflow
from data.image_sets import truncate, write_image
from refusals import refuses, refuses_in_epoch

from keras_attn.data import RandomMirror, image_class_dataset, read_image_classes
from keras_attn.layers import ImagePreprocessing

skip_module_without_tensorflow("tf.data feeds TensorFlow")

FILES = ["dog/ä 1.png", "dog/deep/b.jpg", "cat/a.png", "cat/.hidden.png"]


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "Bilder für 漢字"
    for number, name in enumerate(FILES):
        write_image(root / name, (7 + number, 11), seed=number)
    (root / "cat" / "notes.txt").write_text("no image")
    (root / ".cache").mkdir()
    return root


def names_of(data):
    return [path.name for path in data.paths]


def test_folders_are_classes(folder):
    data = read_image_classes(folder)
    assert data.class_names == ["cat", "dog"]
    assert names_of(data) == ["a.png", "b.jpg", "ä 1.png"]
    np.testing.assert_array_equal(data.classes, [0, 1, 1])
    part = data.subset([2, 0])
    assert names_of(part) == ["ä 1.png", "a.png"] and part.classes.tolist() == [1, 0]
    # A class may be missing where others are validated.
    data = read_image_classes(folder, ["dog", "bird", "cat"])
    assert data.class_names == ["dog", "bird", "cat"]
    assert data.classes.tolist() == [2, 0, 0]


def test_files_that_are_not_used_are_counted(folder):
    write_image(folder / "over.PNG", (3, 3))
    (folder / "cat" / "Thumbs.db").write_bytes(b"x")
    write_image(folder / "cat" / ".ipynb_checkpoints" / "a-checkpoint.png", (3, 3))
    unused, deeper = read_image_classes(folder).notes
    assert unused == (
        f"not used in {folder}: 1 image, 2 files of other kinds (.db 1, .txt 1), "
        "2 hidden files"
    )
    assert deeper == "in subfolders of their class: 1 images"


@pytest.mark.parametrize("name", ["Dog", "dog ", "DOG"])
def test_classes_that_differ_in_case_or_blanks(folder, name):
    write_image(folder / name / "a.png", (3, 3))
    refuses("one class in two ways.*' and 'dog|'dog' and", read_image_classes, folder)
    for letter in "aA":
        write_image(folder.parent / "letters" / letter / "a.png", (3, 3))
    assert read_image_classes(folder.parent / "letters").class_names == ["A", "a"]


def test_batches(folder):
    data = read_image_classes(folder)
    layer = ImagePreprocessing((5, 3), scale=1 / 255)
    batches = image_class_dataset(data, layer, batch_size=2)
    assert int(batches.cardinality()) == 2
    (images, classes), (last, _) = batches
    assert images.shape == (2, 5, 3, 3) and last.shape == (1, 5, 3, 3)
    assert classes.numpy().tolist() == [0, 1] and classes.dtype == tf.int32
    pixels = data.paths[0].read_bytes()
    expected = layer(tf.io.decode_png(pixels)[None])
    np.testing.assert_allclose(images[:1], expected, rtol=1e-6)
    # The order and the mirrors are those of the epoch.
    epochs = [
        image_class_dataset(
            data,
            lambda images: images[:, :5],
            batch_size=3,
            augmentations=[RandomMirror(1.0)],
            shuffle=True,
            epoch=epoch,
        )
        for epoch in (0, 1, 2, 3)
    ]
    orders = {tuple(next(iter(each))[1].numpy().tolist()) for each in epochs}
    assert len(orders) > 1
    mirrored, classes = next(iter(epochs[0]))
    place = classes.numpy().tolist().index(0)
    expected = tf.io.decode_png(pixels)[:5, ::-1]
    np.testing.assert_array_equal(mirrored[place], tf.cast(expected, tf.float32))


def test_bad_files(folder):
    truncate(folder / "dog" / "ä 1.png")
    refuses("ä 1.png must be a complete", read_image_classes(folder).check)
    data = read_image_classes(folder, on_error="skip")
    with pytest.warns(UserWarning, match="left out 1 files"):
        assert names_of(data.check()) == ["a.png", "b.jpg"]
    batches = image_class_dataset(
        read_image_classes(folder), lambda images: images[:, :5], batch_size=3
    )
    refuses_in_epoch("ä 1.png", batches)


def test_folders_that_are_refused(folder, tmp_path):
    refuses(r"one of the classes \['dog'\].*cat", read_image_classes, folder, ["dog"])
    (folder / "bird").mkdir()
    refuses("must have images.*bird.*has none", read_image_classes, folder)
    with pytest.raises(ValueError, match="a subfolder per class.*without subfolders"):
        read_image_classes(folder / "cat")
    refuses("must be an existing folder", read_image_classes, tmp_path / "none")
    data = read_image_classes(folder / "dog")
    assert data.class_names == ["deep"]
    with pytest.raises(ValueError, match="`channels` must be 1 or 3"):
        image_class_dataset(data, ImagePreprocessing(5), batch_size=3, channels=2)
    with pytest.raises(ValueError, match="an empty data set"):
        image_class_dataset(data.subset([]), ImagePreprocessing(5), batch_size=3)


def test_what_has_no_class_or_is_no_image_is_listed(folder):
    (folder / "cover.webp").write_bytes(b"")
    data = read_image_classes(folder)
    reasons = {Path(name).name: reason for name, reason in data.skipped.items()}
    assert set(reasons) == {"notes.txt", "cover.webp"}
    assert "cover.webp must be in the folder of its class" in reasons["cover.webp"]
    assert "notes.txt must be a picture, .jpg" in reasons["notes.txt"]
