"""Of several processes only the first one writes, and all see what it wrote."""

import keras
import numpy as np
import pytest

from keras_attn.distribution import processes
from keras_attn.training import BackupAndResume
from keras_attn.training.history_file import HistoryFile
from keras_attn.viz.callbacks.base import Plots


class Counted(Plots):
    """Draws nothing, and counts how often the model was asked."""

    def __init__(self, log_dir):
        super().__init__(log_dir, every=1, max_examples=1)
        self.count = 0

    def _figures(self):
        self.count += 1
        return iter(())


@pytest.fixture
def second(monkeypatch):
    """Makes this the second process, as far as files are concerned."""
    monkeypatch.setattr(processes, "process_id", lambda: 1)


def train(folder):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    plots = Counted(folder / "logs")
    callbacks = [plots, HistoryFile(folder / "history.csv")]
    callbacks += [BackupAndResume(folder / "backup", delete_checkpoint=False)]
    inputs = np.ones((4, 3), "float32")
    model.fit(inputs, inputs[:, :2], epochs=2, verbose=0, callbacks=callbacks)
    return plots.count


def test_the_first_process_writes(tmp_path):
    assert train(tmp_path) == 3
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["backup", "history.csv", "logs"]


def test_another_process_computes_and_writes_nothing(tmp_path, second):
    assert train(tmp_path) == 3
    assert list(tmp_path.iterdir()) == []


def test_another_process_deletes_nothing(tmp_path, second):
    backup = BackupAndResume(tmp_path)
    backup.path.write_bytes(b"of the first process")
    backup.delete()
    assert backup.path.exists()


def test_without_jax_there_is_one_process():
    if keras.backend.backend() != "jax":
        assert processes.process_count() == 1
    assert processes.process_id() == 0 and processes.is_writer()
    assert processes.device_count() == 1
    processes.check_same("value", "any")
    np.testing.assert_array_equal(
        processes.whole_array(keras.Variable([1.0, 2.0])), [1.0, 2.0]
    )


def test_what_one_process_does_alone_is_not_distributed():
    distribution = keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"])
    keras.distribution.set_distribution(distribution)
    try:
        assert processes.device_count() == 2
        with pytest.raises(KeyError), processes.alone():
            assert keras.distribution.distribution() is None
            raise KeyError
        assert keras.distribution.distribution() is distribution
    finally:
        keras.distribution.set_distribution(None)
