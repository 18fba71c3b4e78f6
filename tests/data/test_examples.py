"""What holds for all data sets of examples: threads, seeds, runs that are killed."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from backend import skip_module_without_tensorflow
from data.image_sets import write_image, write_mask, write_voc
from refusals import refuses_in_epoch

from keras_attn.data import (
    ElasticDeformation,
    RandomColors,
    RandomMirror,
    RandomScaleAndCrop,
    detection_dataset,
    read_segmentation,
    read_voc,
    segmentation_dataset,
)
from keras_attn.data.pipelines.examples import without_bad
from keras_attn.training import BackupAndResume

skip_module_without_tensorflow("tf.data feeds TensorFlow")

RNG = np.random.default_rng(0)


def write_set(folder, count=7):
    for number in range(count):
        write_image(folder / "image" / f"{number}.png", (17, 19), seed=number)
        labels = RNG.integers(0, 3, (17, 19))
        write_mask(folder / "mask" / f"{number}.png", labels)
    return read_segmentation(folder / "image", folder / "mask", list("abc"))


def batches_of(data, epoch, **options):
    return segmentation_dataset(
        data,
        batch_size=2,
        augmentations=[RandomMirror(), ElasticDeformation(2.0), RandomColors()],
        normalize="unit",
        shuffle=True,
        epoch=epoch,
        **options,
    )


@pytest.mark.runs
def test_the_number_of_threads_changes_nothing(tmp_path):
    data = write_set(tmp_path)
    voc = read_voc(write_voc(tmp_path))
    found = []
    for threads in (1, 7):
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        options.threading.max_intra_op_parallelism = threads
        labeled = batches_of(data, 2).with_options(options)
        boxes = detection_dataset(
            voc,
            image_size=13,
            batch_size=2,
            augmentations=[RandomScaleAndCrop(13)],
            shuffle=True,
            epoch=5,
        ).with_options(options)
        found.append([*labeled.as_numpy_iterator(), *boxes.as_numpy_iterator()])
    for one, other in zip(*found, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)


def test_epochs_are_counted_if_none_is_given(tmp_path):
    data = write_set(tmp_path)
    dataset = batches_of(data, None)
    first, second = (next(dataset.as_numpy_iterator())[0] for _ in range(2))
    assert (first != second).any()


def test_a_bad_file_is_replaced_by_one_of_the_same_epoch(tmp_path):
    write_set(tmp_path, 5)
    images = tmp_path / "image"
    with pytest.warns(UserWarning, match="Left out while reading"):
        data = read_segmentation(
            images, tmp_path / "mask", list("abc"), on_error="skip"
        )
        (images / "3.png").write_bytes(b"no image")
        for epoch in (None, 2):
            dataset = segmentation_dataset(
                data, batch_size=1, shuffle=True, epoch=epoch, normalize="unit"
            )
            orders = []
            for _ in range(2):
                found = [image.numpy().tobytes() for image, _ in dataset]
                # The order begins again.
                assert len(found) == 5 and len(set(found)) == 4
                assert found[4] == found[0]
                orders.append(found)
            assert (orders[0] == orders[1]) == (epoch is not None)
    for file in images.iterdir():
        file.write_bytes(b"no image")
    dataset = segmentation_dataset(data, batch_size=1, normalize="unit").repeat()
    refuses_in_epoch("must be readable. .* 5 b", dataset)


def test_a_pipeline_of_bad_files_of_one_name_ends():
    rows = tf.data.Dataset.range(3).repeat().map(lambda row: (row, row < 0))
    message = "At least one image in here must be readable. Received: 3 bad ones"
    refuses_in_epoch(message, without_bad(rows, 3, "here"))


class KilledError(Exception):
    """Ends a run as a signal would."""


class Kill(keras.callbacks.Callback):
    """Ends the run after the second batch of an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self.killed_epoch = epoch
        self.now = -1

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.now, batch) == (self.killed_epoch, 1):
            raise KilledError


def train(data, folder, *callbacks):
    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [keras.Input((17, 19, 3)), keras.layers.Dropout(0.2), keras.layers.Conv2D(3, 3)]
    )
    model.add(keras.layers.ZeroPadding2D(1))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    backup = BackupAndResume(folder)
    model.fit(
        batches_of(data, backup.epoch),
        epochs=4,
        shuffle=False,
        verbose=0,
        callbacks=[backup, *callbacks],
    )
    return model.get_weights()


@pytest.mark.runs
def test_a_run_that_is_killed_in_the_middle_of_an_epoch(tmp_path):
    data = write_set(tmp_path / "data")
    whole = train(data, tmp_path / "whole")
    for epoch in (1, 3):
        with pytest.raises(KilledError):
            train(data, tmp_path / "killed", Kill(epoch))
    for one, other in zip(whole, train(data, tmp_path / "killed"), strict=True):
        np.testing.assert_array_equal(one, other)
