"""The committed checkpoints, and altered copies, without our own reader or writer."""

import importlib.util
import json
import struct
from pathlib import Path

import keras
import numpy as np
import pytest
from parity.torchvision_shim import is_installed, load_torchvision
from safetensors import safe_open
from safetensors.numpy import save_file

from keras_attn.models import load_checkpoint

CHECKPOINTS = Path(__file__).parent / "checkpoints"
TOLERANCE = 1e-5


def cases_of(*families):
    """The committed cases whose names begin with one of these words, sorted."""
    names = sorted(folder.name for folder in CHECKPOINTS.iterdir())
    return [name for name in names if name.split("_")[0] in families]


def bytes_of(cases):
    """Total size of the files of some cases."""
    files = [file for case in cases for file in (CHECKPOINTS / case).iterdir()]
    return sum(file.stat().st_size for file in files)


def arrays_of(folder):
    """Our inputs, and the outputs of transformers, by name."""
    with np.load(folder / "expected.npz") as file:
        arrays = dict(file)
    return tuple(
        {
            key.removeprefix(start): array
            for key, array in arrays.items()
            if key.startswith(start)
        }
        for start in ("input_", "output_")
    )


def tensors_of(folder):
    """Every tensor of every file."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            tensors.update({key: file.get_tensor(key) for key in file.keys()})
    return tensors


def split_header(data):
    """The JSON header of a safetensors file and the bytes after it, from its bytes."""
    (length,) = struct.unpack("<Q", data[:8])
    return data[8 : 8 + length], data[8 + length :]


def with_header(header, data):
    """The bytes of a safetensors file."""
    return struct.pack("<Q", len(header)) + header + data


def config_of(folder):
    """The fields of `config.json`."""
    return json.loads((folder / "config.json").read_text())


def altered(folder, case, config=None, tensors=None):
    """Writes a committed checkpoint with other fields or tensors.

    Args:
        folder: The folder to write.
        case: Name of the committed case.
        config: Fields to set; those that are None are removed.
        tensors: A function from the dictionary of tensors to another.

    Returns:
        `folder`.
    """
    folder.mkdir(exist_ok=True)
    fields = {**config_of(CHECKPOINTS / case), **(config or {})}
    fields = {key: value for key, value in fields.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(fields))
    arrays = tensors_of(CHECKPOINTS / case)
    if tensors is not None:
        arrays = tensors(arrays)
    arrays = {key: np.copy(array, order="C") for key, array in arrays.items()}
    save_file(arrays, folder / "model.safetensors")
    return folder


def check_refused(folder, case, fields, message, keeps_args=False):
    """Asserts that a committed checkpoint with other fields cannot be loaded.

    Args:
        folder: The folder to write.
        case: Name of the committed case.
        fields: Fields of `config.json` to set; those that are None are removed.
        message: A pattern of the message.
        keeps_args: Whether `model_args` among the fields are added to those of the
            case, and do not replace them.
    """
    if keeps_args and "model_args" in fields:
        own = config_of(CHECKPOINTS / case)["model_args"]
        fields = {"model_args": {**own, **fields["model_args"]}}
    with pytest.raises(ValueError, match=message):
        load_checkpoint(altered(folder, case, fields))


def outputs_of(model, inputs):
    """A model's outputs by name, as NumPy arrays; a single one is `logits`."""
    if isinstance(model.input, dict):
        found = model({name: inputs[name] for name in model.input})
    else:
        (tensor,) = model.inputs
        found = model(inputs[tensor.name])
    if not isinstance(found, dict):
        found = {"logits": found}
    return {name: keras.ops.convert_to_numpy(x) for name, x in found.items()}


def same_weights(model, other):
    """Asserts that the weights of two models are equal."""
    assert len(model.weights) == len(other.weights) > 0
    for one, two in zip(model.weights, other.weights, strict=True):
        assert one.path.split("/")[0] == two.path.split("/")[0]
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(two)
        )


def same_tensors(case, folder, ignored=()):
    """Asserts that a folder has the tensors of a committed case.

    Args:
        case: Name of the committed case.
        folder: The folder.
        ignored: Parts of keys that only the committed case has.
    """
    expected = {
        key: array
        for key, array in tensors_of(CHECKPOINTS / case).items()
        if not any(part in key for part in ignored)
    }
    found = tensors_of(folder)
    assert set(found) == set(expected)
    for key, array in expected.items():
        assert found[key].dtype == array.dtype
        np.testing.assert_array_equal(found[key], array, err_msg=key)


def compare(found, expected, real):
    """Asserts that all outputs at real tokens agree; those at padding are arbitrary."""
    assert set(found) == set(expected)
    for name, array in expected.items():
        ours = found[name]
        assert ours.shape == array.shape
        if array.shape[:2] == real.shape:
            ours, array = ours[real], array[real]
        # A mistake would be visible: outputs vary by far more than the tolerance.
        assert np.std(array) > 0.05
        np.testing.assert_allclose(ours, array, atol=TOLERANCE, rtol=1e-5)


def make_cases(script, monkeypatch, needs=("transformers",)):
    """The cases of a script that writes checkpoints, computed now.

    Args:
        script: Name of a module in this folder.
        monkeypatch: The test's fixture.
        needs: Packages that it imports; the test is skipped if one is not installed.

    Returns:
        The result of the script's `make_cases`.
    """
    find = importlib.util.find_spec
    if "torchvision" in needs and is_installed():
        # First: transformers would import it, from its folder, without the shim.
        load_torchvision()
        find = is_installed
    for name in needs:
        if not find(name):
            pytest.skip(f"{name} is not installed; see {script}.py")
    # The scripts import each other as top-level modules.
    monkeypatch.syspath_prepend(str(CHECKPOINTS.parent))
    return importlib.import_module(f"parity.{script}").make_cases()


def assert_as_committed(committed, computed, name=""):
    """Asserts that an array that PyTorch computes now is the committed one.

    Args:
        committed: The array of the file.
        computed: The array of today.
        name: What it is, for the message.
    """
    # PyTorch's convolutions add up in another order on a processor without AVX-512.
    largest = np.abs(committed.astype("float64")).max(initial=1.0)
    np.testing.assert_allclose(
        computed, committed, rtol=0, atol=5e-6 * largest, err_msg=name
    )


def compare_with_committed(case, tensors, arrays):
    """Asserts that a case computed now equals the committed one.

    Args:
        case: Name of the case.
        tensors: Key to the weight, in any precision.
        arrays: Inputs and outputs, as in `expected.npz`.
    """
    with np.load(CHECKPOINTS / case / "expected.npz") as file:
        assert set(file) == set(arrays)
        for name, array in file.items():
            assert_as_committed(array, arrays[name], name)
    for key, array in tensors_of(CHECKPOINTS / case).items():
        np.testing.assert_array_equal(
            np.asarray(tensors[key]).astype(array.dtype), array, err_msg=key
        )
