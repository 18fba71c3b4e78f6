"""The committed checkpoints, and altered copies of them, without our own reader."""

import importlib.util
import json
from pathlib import Path

import keras
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

CHECKPOINTS = Path(__file__).parent / "checkpoints"
TOLERANCE = 1e-5


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


def config_of(folder):
    """What `config.json` says."""
    return json.loads((folder / "config.json").read_text())


def altered(folder, case, config=None, tensors=None):
    """Writes a committed checkpoint with other fields or tensors.

    Args:
        folder: Where to.
        case: Which one.
        config: Fields to set; None takes one out.
        tensors: A function of the dictionary of tensors that gives another.

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
    arrays = {key: np.ascontiguousarray(array) for key, array in arrays.items()}
    save_file(arrays, folder / "model.safetensors")
    return folder


def outputs_of(model, inputs):
    """A model's outputs by name, as NumPy arrays; a single one is `logits`."""
    found = model({name: inputs[name] for name in model.input})
    if not isinstance(found, dict):
        found = {"logits": found}
    return {name: keras.ops.convert_to_numpy(x) for name, x in found.items()}


def same_weights(model, other):
    """Compares the weights of two models, one by one."""
    assert len(model.weights) == len(other.weights) > 0
    for one, two in zip(model.weights, other.weights, strict=True):
        assert one.path.split("/")[0] == two.path.split("/")[0]
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(two)
        )


def compare(found, expected, real):
    """Compares all outputs at real tokens; what padding gives means nothing."""
    assert set(found) == set(expected)
    for name, array in expected.items():
        ours = found[name]
        assert ours.shape == array.shape
        if array.shape[:2] == real.shape:
            ours, array = ours[real], array[real]
        # A mistake would show: neighbours differ by far more than the tolerance.
        assert np.std(array) > 0.05
        np.testing.assert_allclose(ours, array, atol=TOLERANCE, rtol=1e-5)


def make_cases(script, monkeypatch, needs=("transformers",)):
    """What a script that writes checkpoints would write today.

    Args:
        script: A module of this folder.
        monkeypatch: Of the test.
        needs: What it imports; the test is skipped where one is not installed.

    Returns:
        Case to what the script writes of it.
    """
    for name in needs:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed; see {script}.py")
    # The scripts import each other by their bare names.
    monkeypatch.syspath_prepend(str(CHECKPOINTS.parent))
    return importlib.import_module(f"parity.{script}").make_cases()


def compare_with_committed(case, tensors, arrays):
    """Compares a case that was made again with the one that is committed.

    Args:
        case: Its name.
        tensors: Key to the weight, in any precision.
        arrays: Name to the array, inputs and outputs.
    """
    with np.load(CHECKPOINTS / case / "expected.npz") as file:
        for name, array in file.items():
            np.testing.assert_allclose(array, arrays[name], rtol=0, atol=1e-5)
    for key, array in tensors_of(CHECKPOINTS / case).items():
        np.testing.assert_array_equal(
            np.asarray(tensors[key]).astype(array.dtype), array, err_msg=key
        )
