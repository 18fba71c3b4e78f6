"""The committed checkpoints, and altered copies, without our own reader or writer."""

import importlib
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


def check_refused(folder, case, fields, message):
    """Asserts that a committed checkpoint with other fields cannot be loaded.

    Args:
        folder: The folder to write.
        case: Name of the committed case.
        fields: Fields of `config.json` to set; those that are None are removed.
        message: A pattern of the message.
    """
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


def same_layers(model, other, names):
    """Asserts that the weights of some layers of two models are equal."""
    for name in names:
        layers = (each.get_layer(name).weights for each in (model, other))
        for one, two in zip(*layers, strict=True):
            np.testing.assert_array_equal(one, two, err_msg=one.path)


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


def at_real_tokens(arrays, real):
    """The arrays with a first row per token without padding, where all is arbitrary."""
    return {
        name: array[real] if array.shape[:2] == real.shape else array
        for name, array in arrays.items()
    }


def compare(found, expected, inputs, rtol=1e-5, atol=TOLERANCE, scaled=False):
    """Asserts that all expected outputs agree, at real tokens if they are of tokens.

    Args:
        found: Our outputs by name.
        expected: Those of another library, some of ours.
        inputs: Our inputs.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        scaled: Whether it is that of numbers up to 1.
    """
    assert set(expected) <= set(found)
    if "padding_mask" in inputs:
        real = inputs["padding_mask"].astype(bool)
        found, expected = (at_real_tokens(x, real) for x in (found, expected))
    for name, array in expected.items():
        # A mistake would be visible: outputs vary by far more than the tolerance.
        assert np.std(array) > 0.05
        scale = max(1.0, np.abs(array).max()) if scaled else 1.0
        np.testing.assert_allclose(
            found[name], array, rtol=rtol, atol=atol * scale, err_msg=name
        )


def run_script(name, needs=("transformers",)):
    """A module of this folder that computes references.

    Args:
        name: Its name.
        needs: Packages that it imports; the test is skipped if one is not installed.
    """
    if is_installed("torch") and is_installed():
        # First: transformers would import it, from its folder, without the shim.
        load_torchvision()
    for package in needs:
        if not is_installed(package):
            pytest.skip(f"{package} is not installed; see {name}.py")
    return importlib.import_module(name)


def same_arrays(committed, computed, atol=5e-6):
    """Asserts that what PyTorch computes now is what a file has.

    Args:
        committed: Path of the file.
        computed: The arrays of today by name.
        atol: Tolerance of numbers up to 1.
    """
    with np.load(committed) as file:
        assert set(file) == set(computed)
        for name, array in file.items():
            # PyTorch's convolutions add up in another order without AVX-512.
            largest = np.abs(array.astype("float64")).max(initial=1.0)
            np.testing.assert_allclose(
                computed[name], array, rtol=0, atol=atol * largest, err_msg=name
            )
