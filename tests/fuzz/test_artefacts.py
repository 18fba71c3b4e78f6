"""Damaged artefacts: an error names the file, and the process is not affected."""

import json
import os
import shutil
import zipfile
import zlib
from pathlib import Path

import keras
import numpy as np
import pytest
from fuzz.mutations import mutations, rounds
from keras import layers

from keras_attn.decoding import IncrementalPair
from keras_attn.export import ExportError, export, load_runner

SECONDS = 60  # Limit for one case, which takes a fraction of a second.
VOCABULARY = 53
# Number of cases for each file of an artefact.
FILES = {
    "saved": {
        "saved_model.pb": 20,
        "variables/variables.index": 6,
        "variables/variables.data-00000-of-00001": 6,
        "assets.extra/keras_attn.json": 6,
        "assets.extra/keras_attn_order.json": 6,
        "fingerprint.pb": 2,
    },
    "lite.tflite": {"": 60},
    "graph.onnx": {"": 60},
    "pair.onnx": {"prefill.onnx": 20, "weights.data": 5},
}
INPUTS = {
    "serve": {
        "token_ids": np.array([[5, 7, 11], [2, 3, 0]], "int32"),
        "features": np.linspace(-1, 1, 14, dtype="float32").reshape(2, 7),
    },
    "prefill": {"token_ids": np.array([[5, 7, 11], [2, 3, 0]], "int32")},
}


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1)
    token_ids = layers.Input((None,), dtype="int32", name="token_ids")
    features = layers.Input((7,), name="features")
    mean = keras.ops.mean(layers.Embedding(VOCABULARY, 5)(token_ids), axis=1)
    hidden = layers.Dense(11, "gelu")(layers.concatenate([mean, features]))
    inputs = {"token_ids": token_ids, "features": features}
    return keras.Model(inputs, layers.Dense(3, name="scores")(hidden))


def pair():
    """A pair whose embeddings are large enough for `weights.data`."""
    keras.utils.set_random_seed(1)
    embedding = layers.Embedding(VOCABULARY, 29)
    readout = layers.Dense(VOCABULARY)
    token_ids = layers.Input((None,), dtype="int32", name="token_ids")
    state = keras.ops.sum(embedding(token_ids), axis=1)
    prefill = {"logits": readout(state), "state": state}
    token = layers.Input((), dtype="int32", name="token_ids")
    before = layers.Input((29,), name="state")
    after = keras.ops.add(embedding(token), before)
    return IncrementalPair(
        keras.Model({"token_ids": token_ids}, prefill),
        keras.Model(
            {"token_ids": token, "state": before},
            {"logits": readout(after), "state": after},
        ),
    )


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """A folder with one artefact of each kind."""
    folder = tmp_path_factory.mktemp("artefacts")
    for name in FILES:
        export(pair() if name == "pair.onnx" else model, folder / name, verify=False)
    return folder


@pytest.fixture
def copy(folder, tmp_path):
    """`copy(name)`: a fresh copy of an artefact, to damage."""

    def copy(name):
        source, target = folder / name, tmp_path / name
        if source.is_file():
            shutil.copy(source, target)
        else:
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)
        return target

    return copy


def outputs_of(path):
    runner = load_runner(path)
    signature = "prefill" if "prefill" in runner.signatures else "serve"
    return runner(INPUTS[signature], signature)


def load_error(path):
    """The error of loading a damaged artefact; None if it loads.

    It may load and run: a changed weight, shape or operator may still be a model.
    """
    try:
        runner = load_runner(path)
    except (ValueError, FileNotFoundError, ExportError) as error:
        names = [path.name, *(file.name for file in path.rglob("*"))]
        assert any(name in str(error) for name in names), error
        return str(error)
    for signature in set(INPUTS) & set(runner.signatures):
        try:
            runner(INPUTS[signature], signature)
        except (ValueError, ExportError):
            pass
    return None


@pytest.mark.parametrize(
    "name, file, count",
    [(name, file, n) for name, files in FILES.items() for file, n in files.items()],
)
def test_damaged_file_is_refused_or_runs(folder, copy, name, file, count, time_limit):
    expected = outputs_of(folder / name)
    data = (folder / name / file if file else folder / name).read_bytes()
    seed = zlib.crc32(f"{name}/{file}".encode())
    refused = 0
    for damaged in mutations(data, seed, rounds(count)):
        path = copy(name)
        (path / file if file else path).write_bytes(damaged)
        with time_limit(SECONDS):
            refused += load_error(path) is not None
    # TensorFlow does not need the fingerprint, and weights may have any value.
    assert refused or file in ("fingerprint.pb", "weights.data")
    # The process is not affected.
    found = outputs_of(folder / name)
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)


@pytest.mark.parametrize(
    "name, file", [(name, file) for name, files in FILES.items() for file in files]
)
@pytest.mark.parametrize("kind", ["missing", "empty", "folder", "fifo"])
def test_file_is_missing_or_not_a_regular_file(copy, time_limit, name, file, kind):
    path = copy(name)
    target = path / file if file else path
    target.unlink()
    if kind == "empty":
        target.write_bytes(b"")
    elif kind == "folder":
        target.mkdir()
    elif kind == "fifo":
        os.mkfifo(target)
    with time_limit(SECONDS):
        error = load_error(path)
    # Not needed to load.
    optional = file == "fingerprint.pb" or file.startswith("assets.extra/")
    assert error is not None or (optional and kind != "fifo")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not JSON",
        "[" * 100_000,
        "7",
        "[]",
        '{"serve": 1}',
        '{"serve": {"token_ids": [0]}}',
        '{"serve": {"token_ids": [0, "53"]}}',
        '{"serve": {"token_ids": [true, 53]}}',
        '{"serve": {"token_ids": [0, 1e400]}}',
    ],
)
@pytest.mark.parametrize("name", ["saved", "lite.tflite", "graph.onnx"])
def test_invalid_metadata(copy, name, text):
    path = copy(name)
    if name == "saved":
        (path / "assets.extra" / "keras_attn.json").write_text(text)
    elif name == "lite.tflite":
        content = path.read_bytes()
        path.write_bytes(content[: content.index(b"PK\x03\x04")])
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("keras_attn.json", text)
    else:
        add_properties(path, {"keras_attn.index_ranges": text})
    with pytest.raises(ExportError, match=f"cannot load {name}: keras_attn.*must"):
        load_runner(path)


@pytest.mark.parametrize("text", ["7", '["scores"]', '{"scores": 7}'])
def test_invalid_output_names(copy, text):
    path = copy("graph.onnx")
    add_properties(path, {"keras_attn.output_names": text})
    with pytest.raises(
        ExportError, match="cannot load graph.onnx: .*keras_attn.output_names"
    ):
        load_runner(path)


def add_properties(path: Path, properties):
    """Adds or overwrites metadata of an ONNX graph."""
    import onnx

    model = onnx.load(path)
    kept = {entry.key: entry.value for entry in model.metadata_props}
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {**kept, **properties})
    onnx.save(model, path)


def test_artefact_without_metadata_loads(copy):
    for name in ("saved", "lite.tflite", "graph.onnx"):
        expected, path = outputs_of(copy(name)), copy(name)
        assert load_runner(path).index_ranges["serve"]["token_ids"] == (0, VOCABULARY)
        if name == "saved":
            shutil.rmtree(path / "assets.extra")
        elif name == "lite.tflite":
            content = path.read_bytes()
            path.write_bytes(content[: content.index(b"PK\x03\x04")])
        else:
            import onnx

            graph = onnx.load(path)
            [entry] = [
                e for e in graph.metadata_props if e.key == "keras_attn.index_ranges"
            ]
            assert set(json.loads(entry.value)) == {"serve"}
            graph.metadata_props.remove(entry)
            onnx.save(graph, path)
        runner = load_runner(path)
        assert runner.index_ranges == {"serve": {"token_ids": (0, None)}}
        for key, value in outputs_of(path).items():
            np.testing.assert_array_equal(value, expected[key])


def test_tensors_outside_the_folder_are_not_read(copy, tmp_path):
    import onnx

    path = copy("pair.onnx")
    (path / "weights.data").rename(tmp_path / "weights.data")
    graph = onnx.load(path / "prefill.onnx", load_external_data=False)
    for tensor in graph.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../weights.data"
    (path / "prefill.onnx").write_bytes(graph.SerializeToString())
    with pytest.raises(ExportError, match="cannot load prefill.onnx: .*escapes"):
        load_runner(path)
