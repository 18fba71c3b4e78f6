"""Data, options and training that the examples on CIFAR-10 (Krizhevsky 2009) share."""

import shutil
import tarfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from options import add_training_options, data_folder, new_parser

from keras_attn.data import augment_batches, shuffled_dataset
from keras_attn.training import AdamW, CosineWarmup

IMAGE_SIZE = 32
NUM_SHOWN = 5  # Images in a figure.


def image_parser(doc, run_dir, epochs):
    """The options of every example on these images.

    Args:
        doc: Docstring of the script.
        run_dir: Default of `--run-dir`.
        epochs: Default of `--epochs`.
    """
    parser = new_parser(doc, run_dir)
    parser.add_argument(
        "--data-dir",
        help="folder with `train` and `val`, each with one folder of JPEGs per class, "
        "or with the archives train*.tar and val*.tar; if omitted, cifar10/ in "
        "$KERAS_ATTN_DATA",
    )
    add_training_options(parser, epochs=epochs, batch_size=64, learning_rate=1e-3)
    return parser


def load_images(arguments):
    """Training and held-out images in [-1, 1] with labels, and the class names.

    Returns:
        `(images, labels), (images, labels), class_names`, images (N, 32, 32, 3).
    """
    folder = Path(arguments.data_dir or data_folder("cifar10"))
    train, names = _load_split(folder, "train", arguments.run_dir)
    # Keras raises an error unless the classes are the same, in the same order.
    validation, _ = _load_split(folder, "val", arguments.run_dir, class_names=names)
    return train, validation, names


def preview(array, count):
    """Evenly spaced rows: the same number per class if rows are sorted by class."""
    count = min(count, len(array))
    return array[np.arange(count) * len(array) // max(count, 1)]


def batches(pair, arguments, shuffle=False, augment=False, epoch=None):
    """Batches of images and labels.

    Args:
        pair: Images (N, 32, 32, 3) and labels (N,).
        arguments: Command-line arguments.
        shuffle: Whether to shuffle, in a new order each epoch.
        augment: Whether to flip images randomly and shift them by up to 4 pixels.
        epoch: `BackupAndResume.epoch` of a training that can be resumed.
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
    """Trains a classifier; returns its accuracy and its seconds per epoch.

    Args:
        model: From images to logits (B, C).
        train: Batches of images and labels.
        validation: Held-out batches of images and labels.
        arguments: Command-line arguments with `epochs` and `learning_rate`.
        **options: Arguments of `model.fit`.

    Returns:
        The accuracy on held-out images, and the seconds of training per epoch.
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
    return accuracy, watch.seconds_per_epoch()


class Stopwatch(keras.callbacks.Callback):
    """Measures the seconds of each epoch's steps, without validation and callbacks."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        """Resets the time."""
        self.epochs.append(0.0)

    def on_train_batch_begin(self, batch, logs=None):
        """Starts the clock."""
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        """Stops the clock."""
        self.epochs[-1] += time.perf_counter() - self._start

    def seconds_per_epoch(self):
        """The median without the first epoch, which compiles; NaN without epochs."""
        return np.median(self.epochs[1:] or self.epochs or [np.nan])


def _load_split(folder, split, run_dir, class_names=None):
    """Images, labels and class names of a split: one folder per class."""
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
        path = _extract(archives[0], run_dir / "images" / archives[0].stem)
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


def _extract(archive, target):
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
