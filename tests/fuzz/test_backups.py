"""Damaged backups raise an error that names the file, and restore nothing."""

import hashlib

import keras
import numpy as np
import pytest
from fuzz.mutations import mutations, rounds
from keras import layers

from keras_attn.training import BackupAndResume
from keras_attn.training.backup import BACKUP_FILE

SECONDS = 20  # Limit of one case, which takes milliseconds.
DIGEST = hashlib.sha256().digest_size


class StatefulCallback(keras.callbacks.Callback):
    """A callback with state of every kind that a backup saves."""

    def __init__(self):
        super().__init__()
        self.best, self.arrays, self.name = None, [], "none"

    def change(self):
        self.best, self.name = 0.5, "changed"
        self.arrays = [np.arange(3.0), np.ones((2, 5), "int32")]


def create(folder):
    """A model, a callback, and the backup before `on_train_begin`."""
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(2), layers.Dropout(0.5, seed=1)]
    )
    model.compile("adam", "mse")
    callback = StatefulCallback()
    backup = BackupAndResume(folder, callbacks=[callback])
    backup.set_model(model)
    backup.set_params({"epochs": 7})
    return model, callback, backup


@pytest.fixture(scope="module")
def backup_bytes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backup")
    model, callback, backup = create(folder)
    model.stop_training = False
    backup.on_train_begin()
    callback.change()
    backup.on_epoch_end(0, {"loss": 0.25, "accuracy": np.float32(0.5)})
    return (folder / BACKUP_FILE).read_bytes()


def values(model):
    return [variable.numpy().tobytes() for variable in model.variables]


def test_an_intact_backup_is_restored(backup_bytes, tmp_path):
    (tmp_path / BACKUP_FILE).write_bytes(backup_bytes)
    model, callback, backup = create(tmp_path)
    backup.on_train_begin()
    assert model._initial_epoch == 1
    assert (callback.best, callback.name) == (0.5, "changed")
    assert [array.shape for array in callback.arrays] == [(3,), (2, 5)]


def test_damaged_backups(backup_bytes, tmp_path, time_limit):
    path = tmp_path / BACKUP_FILE
    model, _, backup = create(tmp_path)
    before = values(model)
    for number, data in enumerate(mutations(backup_bytes, seed=11, count=rounds(60))):
        path.write_bytes(data)
        with time_limit(SECONDS), pytest.raises(ValueError) as found:
            backup.on_train_begin()
        message = str(found.value)
        assert message.startswith("The backup is damaged"), (number, message)
        assert "Delete it" in message and repr(str(path)) in message
        assert values(model) == before


def test_damaged_backups_with_a_valid_checksum(backup_bytes, tmp_path, time_limit):
    path = tmp_path / BACKUP_FILE
    model, _, backup = create(tmp_path)
    # Most mutations change the header, which comes first.
    bodies = mutations(backup_bytes[:-DIGEST], seed=13, count=rounds(60))
    for body in bodies:
        path.write_bytes(body + hashlib.sha256(body).digest())
        with time_limit(SECONDS):
            try:
                backup.on_train_begin()
            except ValueError as error:
                assert str(error).startswith("The backup is "), error
                assert repr(str(path)) in str(error)
