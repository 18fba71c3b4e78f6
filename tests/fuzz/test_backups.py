"""Damaged backups of a training: an error that names the file, and nothing restored."""

import hashlib

import keras
import numpy as np
import pytest
from fuzz.mutations import mutations, rounds
from keras import layers

from keras_attn.training import BackupAndResume
from keras_attn.training.backup import BACKUP_FILE

SECONDS = 20  # Of one case, which takes some milliseconds.
DIGEST = hashlib.sha256().digest_size


class Remembering(keras.callbacks.Callback):
    """With state of every kind that a backup keeps."""

    def __init__(self):
        super().__init__()
        self.best, self.arrays, self.name = None, [], "none"

    def change(self):
        self.best, self.name = 0.5, "changed"
        self.arrays = [np.arange(3.0), np.ones((2, 5), "int32")]


def begin(folder):
    """A model, and its backup before `on_train_begin`."""
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(2), layers.Dropout(0.5, seed=1)]
    )
    model.compile("adam", "mse")
    remembering = Remembering()
    backup = BackupAndResume(folder, callbacks=[remembering])
    backup.set_model(model)
    backup.set_params({"epochs": 7})
    return model, remembering, backup


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backup")
    model, remembering, backup = begin(folder)
    model.stop_training = False
    backup.on_train_begin()
    remembering.change()
    backup.on_epoch_end(0, {"loss": 0.25, "accuracy": np.float32(0.5)})
    return (folder / BACKUP_FILE).read_bytes()


def values(model):
    return [variable.numpy().tobytes() for variable in model.variables]


def test_the_whole_file_is_restored(state, tmp_path):
    (tmp_path / BACKUP_FILE).write_bytes(state)
    model, remembering, backup = begin(tmp_path)
    backup.on_train_begin()
    assert model._initial_epoch == 1
    assert (remembering.best, remembering.name) == (0.5, "changed")
    assert [array.shape for array in remembering.arrays] == [(3,), (2, 5)]


def test_damaged_backups(state, tmp_path, time_limit):
    path = tmp_path / BACKUP_FILE
    model, _, backup = begin(tmp_path)
    before = values(model)
    for number, data in enumerate(mutations(state, seed=11, count=rounds(60))):
        path.write_bytes(data)
        with time_limit(SECONDS), pytest.raises(ValueError) as found:
            backup.on_train_begin()
        message = str(found.value)
        assert message.startswith("The backup is damaged"), (number, message)
        assert "Delete it" in message and repr(str(path)) in message
        assert values(model) == before


def test_damaged_backups_of_a_right_checksum(state, tmp_path, time_limit):
    path = tmp_path / BACKUP_FILE
    model, _, backup = begin(tmp_path)
    # The header comes first: most cases change something in it.
    bodies = mutations(state[:-DIGEST], seed=13, count=rounds(60))
    for body in bodies:
        path.write_bytes(body + hashlib.sha256(body).digest())
        with time_limit(SECONDS):
            try:
                backup.on_train_begin()
            except ValueError as error:
                assert str(error).startswith("The backup is "), error
                assert repr(str(path)) in str(error)
