"""CIFAR-10 as folders of images, or as archives of them."""

import os
import shutil
import tarfile
from pathlib import Path

import keras
import numpy as np

_SIDE = 32
Split = tuple[np.ndarray, np.ndarray]


def load_cifar10(
    data_dir: str | os.PathLike, extracted_to: str | os.PathLike
) -> tuple[Split, Split, list[str]]:
    """Reads the images of CIFAR-10, or others like them, into memory.

    Args:
        data_dir: Folder with `train` and `val`, each with one folder of JPEGs per
            class, or with the archives `train*.tar` and `val*.tar` of such folders.
        extracted_to: Folder to which an archive is extracted, unless it was before.

    Returns:
        The training and the validation images, float32 (N, 32, 32, 3) in [-1, 1], each
        with labels (N,); and the names of the classes.

    Raises:
        FileNotFoundError: If `data_dir` has neither.
        ValueError: If the splits have different classes.

    Reference:
        Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    folder, extracted = Path(data_dir), Path(extracted_to)
    train, names = _load_split(folder, "train", extracted)
    # Keras raises an error unless the classes are the same, in the same order.
    validation, _ = _load_split(folder, "val", extracted, class_names=names)
    return train, validation, names


def _load_split(folder: Path, split: str, extracted: Path, class_names=None):
    """Images and labels of a split, and the names of its classes."""
    path = folder / split
    if not path.is_dir():
        archives = sorted(folder.glob(f"{split}*.tar"))
        if len(archives) != 1:
            found = ", ".join(archive.name for archive in archives) or "none"
            raise FileNotFoundError(
                f"`data_dir` must have a folder {split}/ or one archive {split}*.tar. "
                f"Received: data_dir={str(folder)!r} with the archives: {found}"
            )
        path = _extract(archives[0], extracted / archives[0].stem)
    dataset = keras.utils.image_dataset_from_directory(
        path,
        class_names=class_names,
        image_size=(_SIDE, _SIDE),
        batch_size=256,
        shuffle=False,
        verbose=False,
    )
    images, labels = zip(*dataset, strict=True)
    images = np.concatenate(images) / np.float32(127.5) - 1
    return (images, np.concatenate(labels)), dataset.class_names


def _extract(archive: Path, target: Path) -> Path:
    """Extracts an archive of class folders, or of one folder of them, to `target`."""
    if not target.is_dir():
        partial = target.with_name(f"{target.name}.part")
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(archive) as file:
            file.extractall(partial, filter="data")
        folders = list(partial.iterdir())
        (folders[0] if len(folders) == 1 else partial).rename(target)
        shutil.rmtree(partial, ignore_errors=True)
    return target
