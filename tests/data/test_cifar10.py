"""Images in class folders, or in archives of them, as CIFAR-10 is published."""

import itertools
import tarfile

import keras
import numpy as np
import pytest

from keras_attn.data import load_cifar10


def write_images(folder, classes="ab", count=2):
    """Writes images of one gray level each: 10 per class, 1 per image."""
    for (number, name), index in itertools.product(enumerate(classes), range(count)):
        path = folder / name / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.full((32, 32, 3), 10 * number + index)
        keras.utils.save_img(path, pixels, scale=False)


def test_folders_and_archives_have_the_same_images(tmp_path):
    for split in ("train", "val"):
        write_images(tmp_path / "folders" / split)
        (tmp_path / "archives").mkdir(exist_ok=True)
        with tarfile.open(tmp_path / "archives" / f"{split}_few.tar", "w") as archive:
            # As in the public archives, there is one folder around the classes.
            archive.add(tmp_path / "folders" / split, "images")
    kept = tmp_path / "kept"
    found = [load_cifar10(tmp_path / x, kept) for x in ("folders", "archives")]
    # Extracted once.
    (tmp_path / "archives" / "val_few.tar").write_bytes(b"")
    found.append(load_cifar10(tmp_path / "archives", kept))
    for train, validation, names in found:
        assert names == ["a", "b"]
        for images, labels in (train, validation):
            assert images.shape == (4, 32, 32, 3) and images.dtype == np.float32
            np.testing.assert_allclose(
                images[:, 0, 0, 0], np.array([0, 1, 10, 11]) / 127.5 - 1, rtol=1e-6
            )
            assert labels.tolist() == [0, 0, 1, 1]


def test_what_is_missing_is_said(tmp_path):
    write_images(tmp_path / "train")
    with pytest.raises(FileNotFoundError, match=r"`data_dir` must have.*val/.*: none"):
        load_cifar10(tmp_path, tmp_path / "kept")
    write_images(tmp_path / "val", classes="bc")
    with pytest.raises(ValueError, match="class"):
        load_cifar10(tmp_path, tmp_path / "kept")
