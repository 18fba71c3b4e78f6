"""`.keras` files: loaded, built without weights, and refused when they are damaged."""

import os
import zipfile

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.keras_file import build_from_keras_file, load_keras_file
from keras_attn.models.parts.keras_state import undone, without_allocating

BOTH = pytest.mark.parametrize("read", [load_keras_file, build_from_keras_file])


@pytest.fixture(scope="module")
def model():
    model = keras.Sequential([keras.Input((7,)), keras.layers.Dense(3)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture(scope="module")
def content(model, tmp_path_factory):
    """Name of each member of the file to its bytes."""
    file = tmp_path_factory.mktemp("whole") / "model.keras"
    model.save(file)
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def write(content, tmp_path):
    """Writes a file with other members; None removes one."""

    def write(**members):
        changed = {name.replace("_json", ".json"): x for name, x in members.items()}
        file = tmp_path / "model.keras"
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in {**content, **changed}.items():
                if data is not None:
                    archive.writestr(name, data)
        return file

    return write


def refused(read, file):
    with pytest.raises(ValueError, match=r"^model\.keras must be ") as caught:
        read(file)
    assert f"Received: {str(file)!r}" in str(caught.value)
    return str(caught.value)


def test_a_model_and_its_sizes(model, write):
    file = write()
    x = np.ones((2, 7), "float32")
    np.testing.assert_array_equal(load_keras_file(file)(x), model(x))
    with undone(), without_allocating():
        built = build_from_keras_file(file)
    assert built.count_params() == model.count_params() == 24
    assert not built.compiled


class _Halving(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that only the script knows that trained the model."""

    def get_config(self):
        return {}

    def __call__(self, step):
        return 0.5 ** keras.ops.cast(step, "float32")


@BOTH
def test_the_optimizer_is_not_read(read, model, tmp_path):
    model.compile(keras.optimizers.SGD(_Halving()), loss="mse")
    model.save(tmp_path / "model.keras")
    loaded = read(tmp_path / "model.keras")
    assert loaded.count_params() == 24 and not loaded.compiled


@BOTH
def test_a_damaged_archive(read, write):
    file = write()
    whole = file.read_bytes()
    for part in (b"", whole[: len(whole) // 2], b"no archive"):
        file.write_bytes(part)
        line = refused(read, file)
        assert "must be a complete `.keras` file from `model.save`" in line
        assert "this one is damaged (File is not a zip file)" in line
    start = whole.index(b'{"module"')
    file.write_bytes(whole[:start] + b"X" + whole[start + 1 :])
    line = refused(read, file)
    assert "Bad CRC-32" in line or "checksum of config.json is wrong" in line


def test_damaged_weights(write, content):
    file = write()
    whole = file.read_bytes()
    start = whole.index(content["model.weights.h5"]) + 99
    file.write_bytes(whole[:start] + b"XX" + whole[start + 2 :])
    line = refused(load_keras_file, file)
    assert "the checksum of model.weights.h5 is wrong" in line
    with undone(), without_allocating():
        assert build_from_keras_file(file).count_params() == 24
    file = write(**{"model.weights.h5": b"no weights"})
    line = refused(load_keras_file, file)
    assert "a model that Keras can load: Unable to" in line and "opened" not in line


@BOTH
@pytest.mark.parametrize(
    "config, reason",
    [
        (None, "it has no config.json or no model.weights.h5"),
        (b"{", "config.json is not JSON: Expecting property name"),
        (b"\xff", "config.json is not JSON"),
        (b"[" * 100_000, "maximum recursion depth"),
        (b"[]", "config.json is not a JSON object"),
    ],
)
def test_a_damaged_configuration(read, config, reason, write):
    line = refused(read, write(config_json=config))
    assert f"this one is damaged ({reason}" in line


@BOTH
def test_what_is_not_a_model(read, write):
    dense = b'{"module": "keras.layers", "class_name": "Dense", "config": {"units": 3}}'
    line = refused(read, write(config_json=dense))
    assert "a model that Keras can load: it holds a Dense." in line
    unknown = b'{"module": "none", "class_name": "Unknown", "config": {}}'
    line = refused(read, write(config_json=unknown))
    assert "Could not locate class 'Unknown'" in line and "Full object" not in line


@BOTH
def test_what_is_not_a_file(read, tmp_path):
    with pytest.raises(FileNotFoundError, match="has no model.keras"):
        read(tmp_path / "model.keras")
    os.mkfifo(tmp_path / "model.keras")
    assert "must be a regular file" in refused(read, tmp_path / "model.keras")


def test_operations_of_a_file_and_new_ones_may_have_one_name(tmp_path):
    inputs = keras.Input((3,))
    first = ops.add(inputs, 1.0)
    encoder = Functional(inputs, first)
    encoder.save(tmp_path / "encoder.keras")
    encoder = keras.saving.load_model(tmp_path / "encoder.keras")
    # Keras counts names from the start of the process, and the file is from another.
    second, third = ops.multiply(encoder.output, 2.0), ops.multiply(encoder.output, 3.0)
    for tensor in (second, third):
        tensor._keras_history.operation.name = encoder.operations[-1].name
    model = Functional(encoder.input, [second, third])
    assert encoder.operations[-1].name == first._keras_history.operation.name
    assert len({each.name for each in model.operations}) == len(model.operations) == 4
    model.save(tmp_path / "model.keras")
    for each in (model, keras.saving.load_model(tmp_path / "model.keras")):
        found = each(np.ones((2, 3), "float32"))
        np.testing.assert_array_equal(np.array(found), [[[4] * 3] * 2, [[6] * 3] * 2])
