"""What the examples on CIFAR-10 (Krizhevsky 2009) have in common."""

import argparse
import os
import shutil
import tarfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from keras_attn.data import shuffled_dataset
from keras_attn.training import AdamW, CosineWarmup, augment_batches

IMAGE_SIZE = 32
SHOWN = 5  # Images in a picture.


def new_parser(doc, run_dir):
    """The options of every example on these images.

    Args:
        doc: The script's docstring, whose first line says what it does.
        run_dir: Default of the option of that name.
    """
    parser = argparse.ArgumentParser(
        description=(doc or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--data-dir",
        help="folder with `train` and `val`, each a folder of JPEGs a class, or with "
        "an archive of each, train*.tar and val*.tar; without it, cifar10/ in "
        "$KERAS_ATTN_DATA",
    )
    parser.add_argument("--run-dir", default=run_dir, help="where it all goes")
    parser.add_argument("--batch-size", type=int, default=64, help="images a step")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="at its peak")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order")
    return parser


def load_images(arguments):
    """Images in [-1, 1] with their labels, to learn from and held out, and the names.

    Returns:
        `(images, labels), (images, labels), class_names`, images (N, 32, 32, 3).
    """
    folder = Path(os.environ.get("KERAS_ATTN_DATA", "."))
    folder = Path(arguments.data_dir or folder / "cifar10")
    train, names = _read(folder, "train", arguments.run_dir)
    # The same classes in the same order, or Keras says what is missing.
    validation, _ = _read(folder, "val", arguments.run_dir, class_names=names)
    return train, validation, names


def some(array, count):
    """So many rows, evenly spread: of images class by class as many of each."""
    count = min(count, len(array))
    return array[np.arange(count) * len(array) // max(count, 1)]


def batches(pair, arguments, shuffle=False, augment=False, epoch=None):
    """Batches of images and labels, in a new order each epoch where they are shuffled.

    Args:
        pair: Images (N, 32, 32, 3) and labels (N,).
        arguments: The command line's.
        shuffle: Whether in another order each epoch.
        augment: Whether each image is flipped or not and shifted by up to 4 pixels.
        epoch: `BackupAndResume.epoch`, where training may be resumed.
    """
    dataset = tf.data.Dataset.from_tensor_slices(pair)
    if shuffle:
        dataset = shuffled_dataset(pair, seed=arguments.seed, epoch=epoch)
    dataset = dataset.batch(arguments.batch_size)
    if augment:
        layers = [
            keras.layers.RandomFlip("horizontal"),
            keras.layers.RandomTranslation(0.125, 0.125),
        ]
        dataset = augment_batches(dataset, layers, seed=arguments.seed, epoch=epoch)
    return dataset.prefetch(2)


def fit_classifier(model, train, validation, arguments, **options):
    """Fits logits to labels, and tells how well and how long.

    Args:
        model: Images to logits (B, C).
        train: Batches of images and labels.
        validation: The same, held out.
        arguments: The command line's; of them `epochs` and `learning_rate`.
        **options: Of `model.fit`.

    Returns:
        The share of held-out images told right, and seconds of training an epoch.
    """
    steps = arguments.epochs * int(train.cardinality())
    model.compile(
        AdamW(
            CosineWarmup(arguments.learning_rate, max(steps // 20, 1), steps),
            weight_decay=0.05,
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    watch = Stopwatch()
    options["callbacks"] = [watch, *options.get("callbacks", ())]
    model.fit(train, epochs=arguments.epochs, shuffle=False, **options)
    _, accuracy = model.evaluate(validation, verbose=0)
    return accuracy, watch.seconds_an_epoch()


class Stopwatch(keras.callbacks.Callback):
    """Keeps the seconds of each epoch's steps, without validation and pictures."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        """Begins at zero."""
        self.epochs.append(0.0)

    def on_train_batch_begin(self, batch, logs=None):
        """Starts."""
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        """Stops."""
        self.epochs[-1] += time.perf_counter() - self._began

    def seconds_an_epoch(self):
        """The median, but for the first: it compiles. NaN where nothing was left."""
        return np.median(self.epochs[1:] or self.epochs or [np.nan])


def _read(folder, split, run_dir, class_names=None):
    """Images, labels and class names of a folder of a folder a class."""
    path = folder / split
    if not path.is_dir():
        archives = sorted(folder.glob(f"{split}*.tar"))
        if len(archives) != 1:
            found = ", ".join(archive.name for archive in archives) or "none"
            raise SystemExit(
                f"{folder} must have a folder {split}/ or one archive {split}*.tar; "
                f"found: {found}. Pass --data-dir, or set KERAS_ATTN_DATA to the "
                "folder above cifar10."
            )
        path = _unpack(archives[0], Path(run_dir) / "images" / archives[0].stem)
    dataset = keras.utils.image_dataset_from_directory(
        path,
        class_names=class_names,
        image_size=(IMAGE_SIZE, IMAGE_SIZE),
        batch_size=256,
        shuffle=False,
        verbose=False,
    )
    images, labels = zip(*dataset, strict=True)
    images = np.concatenate(images) / np.float32(127.5) - 1
    return (images, np.concatenate(labels)), dataset.class_names


def _unpack(archive, target):
    """Unpacks classes, or one folder of them, to `target`, beside it first."""
    if not target.is_dir():
        beside = target.with_name(f"{target.name}.part")
        shutil.rmtree(beside, ignore_errors=True)
        with tarfile.open(archive) as file:
            file.extractall(beside, filter="data")
        folders = list(beside.iterdir())
        (folders[0] if len(folders) == 1 else beside).rename(target)
        shutil.rmtree(beside, ignore_errors=True)
    return target
