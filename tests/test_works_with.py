"""The programs of `docs/works_with.md`, as they stand, each with its library.

`make test-works-with` installs these libraries. Their own warnings are theirs.
"""

import importlib
import importlib.metadata
import json
import os
import re
import runpy
import signal
import struct
import subprocess
import sys
import time
import tomllib
import urllib.request

import numpy as np
import pytest
import recipes
from extras import needs
from recipes import DOCS, ROOT

PAGE = (DOCS / "works_with.md").read_text("utf-8")
SECTIONS = {
    part.partition("\n")[0]: part for part in re.split(r"^## ", PAGE, flags=re.M)[1:]
}
PROGRAMS = dict(zip(SECTIONS, recipes.recipes_of(DOCS / "works_with.md"), strict=True))
MODULES = {
    "Keras Tuner": "keras_tuner",
    "MLflow": "mlflow",
    "Weights & Biases": "wandb",
    "Hugging Face Datasets": "datasets",
    "TensorFlow Datasets": "tensorflow_datasets",
    "Albumentations": "albumentations",
    "SHAP": "shap",
    "Model Explorer": "model_explorer",
    "Netron": "netron",
}


def with_library(section):
    """Marks the test of a section."""

    def mark(test):
        for each in (
            needs(MODULES[section], "works-with"),
            pytest.mark.extra,
            pytest.mark.filterwarnings("default"),
        ):
            test = each(test)
        return test

    return mark


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Writes a section's program to a new folder, runs it, returns its variables."""
    monkeypatch.chdir(tmp_path)
    # None of them calls home in a test.
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")

    def run_section(section):
        path = tmp_path / "program.py"
        path.write_text(PROGRAMS[section], "utf-8")
        return runpy.run_path(str(path))

    return run_section


def test_each_program_is_short_and_has_a_test():
    assert [*SECTIONS] == [*MODULES]
    for section in SECTIONS:
        lines = [line for line in PROGRAMS[section].splitlines() if line.strip()]
        # A call that goes on in the next line counts once.
        assert len([x for x in lines if not x.startswith("        ")]) <= 15, section


def test_the_page_names_the_versions_that_the_extra_asks_for():
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    rows = re.findall(r"^\| \[.*\| (\S+) ([\d.]+) \| [^|]* \|$", PAGE, re.M)
    assert [f"{name}>={version}" for name, version in rows] == extras["works-with"]


@with_library("Keras Tuner")
def test_keras_tuner(run):
    names = run("Keras Tuner")
    trials = names["tuner"].oracle.get_best_trials(2)
    scores = [trial.score for trial in trials]
    assert len(scores) == 2 and scores[0] >= scores[1]
    best = trials[0].hyperparameters.values
    assert best["num_layers"] in (1, 2)
    assert names["model"].get_layer("patch_embedding").output.shape[-1] in (16, 32)
    assert float(names["model"].optimizer.learning_rate) == pytest.approx(
        best["learning_rate"]
    )


@with_library("MLflow")
def test_mlflow(run, tmp_path):
    mlflow = importlib.import_module("mlflow")

    before = mlflow.get_tracking_uri()
    try:
        names = run("MLflow")
        logged = mlflow.get_run(names["run"].info.run_id).data
    finally:
        mlflow.tensorflow.autolog(disable=True)
        mlflow.set_tracking_uri(before)
    images = names["images"]
    np.testing.assert_array_equal(
        names["loaded"].predict(images, verbose=0),
        names["model"].predict(images, verbose=0),
    )
    history = names["model"].history.history
    assert logged.metrics["loss"] == pytest.approx(history["loss"][-1])
    assert logged.params["epochs"] == "2"
    [requirements] = tmp_path.glob("mlruns/*/models/*/artifacts/requirements.txt")
    version = importlib.metadata.version("keras-attn")
    assert f"keras-attn=={version}" in requirements.read_text("utf-8").split()


def records_of(path):
    """What a `.wandb` file has: records in the format of LevelDB's logs."""
    records = importlib.import_module("wandb.proto.wandb_internal_pb2")

    content = path.read_bytes()
    assert content.startswith(b":W&B")
    start = 7
    while start < len(content):
        # Checksum, length and kind, 1 for one that is whole; in blocks of 32 KiB.
        length, kind = struct.unpack_from("<HB", content, start + 4)
        assert kind == 1 and start + length < 32768
        yield records.Record.FromString(content[start + 7 : start + 7 + length])
        start += 7 + length


@with_library("Weights & Biases")
def test_weights_and_biases(run, tmp_path):
    wandb = importlib.import_module("wandb")

    names = run("Weights & Biases")
    # The file is written by another process, to its end when that one stops.
    wandb.teardown()
    [path] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    losses = [
        json.loads(item.value_json)
        for record in records_of(path)
        for item in record.history.item
        if "epoch/loss" in (item.key, *item.nested_key)
    ]
    assert losses == pytest.approx(names["history"]["loss"])
    assert len(losses) == 2


@with_library("Hugging Face Datasets")
def test_hugging_face_datasets(run):
    names = run("Hugging Face Datasets")
    assert len(names["history"]["loss"]) == 2
    inputs, labels = next(iter(names["batches"]))
    assert inputs["token_ids"].shape == (4, 12)
    # Shuffled rows keep their labels.
    texts = [names["tokenizer"].decode(row) for row in inputs["token_ids"].numpy()]
    assert ["good" in text for text in texts] == (labels.numpy() == 1).tolist()


@with_library("TensorFlow Datasets")
def test_tensorflow_datasets(run, tmp_path):
    import keras

    rng = np.random.default_rng(0)
    for index in range(8):
        path = tmp_path / "photos/train" / ("cat", "dog")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = rng.integers(0, 256, (32, 32, 3))
        keras.utils.save_img(path, picture, scale=False)
    names = run("TensorFlow Datasets")
    images, _ = names["batches"].element_spec
    assert images.shape.as_list() == [None, None, None, 3]
    assert np.isfinite(names["history"]["loss"]).all()
    assert names["model"].output.shape == (None, 2)


@with_library("Albumentations")
def test_albumentations(run):
    names = run("Albumentations")
    batches = list(names["batches"])
    assert [images.shape for images, _ in batches] == [(4, 48, 48, 3)] * 2
    for _, targets in batches:
        boxes, real = targets["boxes"].numpy(), targets["classes"].numpy() >= 0
        assert real.any(1).all() and not boxes[~real].any()
        assert (boxes[real][:, :2] < boxes[real][:, 2:]).all()
        assert boxes.min() >= 0 and boxes.max() <= 48
    # A white rectangle, and the box around it after it was turned.
    image, boxes = np.zeros((48, 48, 3), "float32"), np.zeros((2, 4), "float32")
    boxes[0] = 17, 13, 34, 24
    image[13:24, 17:34] = 255
    moved = 0
    for _ in range(7):
        picture, found, classes = names["changed"](image, boxes, np.array([5, -1]))
        assert found.dtype == "float32" and classes.tolist() == [5, -1]
        rows, columns = np.nonzero(picture[..., 0] > 127)
        edges = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        np.testing.assert_allclose(found[0], edges, atol=2)
        moved += np.abs(found[0] - boxes[0]).max() > 2
    assert moved > 3


@with_library("SHAP")
def test_shap(run):
    names = run("SHAP")
    found, texts = names["found"], names["texts"][:2]
    outputs = names["logits"](texts)
    for index, text in enumerate(texts):
        assert [word.strip() for word in found.data[index]] == text.split()
        total = found.values[index].sum(0) + found.base_values[index]
        np.testing.assert_allclose(total, outputs[index], atol=1e-5)
    # They differ in their second word, and so do its values above all.
    assert outputs.argmax(1).tolist() == [0, 1]
    differences = found.values[1] - found.values[0]
    assert np.abs(differences[:, 1]).argmax() == 1


def fetched(address, data=None):
    request = urllib.request.Request(address, data)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def namespaces(address, path, adapter):
    """Those of a file's operations, as the page asks Model Explorer for them."""
    command = {
        "cmdId": "convert",
        "extensionId": adapter,
        "modelPath": str(path),
        "settings": {},
        "deleteAfterConversion": False,
    }
    url = f"{address}/apipost/v1/send_command"
    collections = json.loads(fetched(url, json.dumps(command).encode()))
    graphs = [x for each in collections["graphCollections"] for x in each["graphs"]]
    return {node["namespace"] for graph in graphs for node in graph["nodes"]}


@with_library("Model Explorer")
def test_model_explorer(tmp_path):
    """As a user sees it, in a process that Ctrl+C ends."""
    (tmp_path / "program.py").write_text(PROGRAMS["Model Explorer"], "utf-8")
    with subprocess.Popen(
        [sys.executable, "-u", "program.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "BROWSER": "true"},
    ) as process:
        try:
            assert process.stdout is not None
            printed = []
            for line in process.stdout:
                printed.append(line)
                if line.startswith("http://"):
                    break
            address = re.sub(r"/\?.*|\s", "", printed[-1])
            assert b"<html" in fetched(address), printed
            for path, adapter in (
                ("vit.tflite", "builtin_tflite_flatbuffer"),
                ("vit/saved_model.pb", "builtin_tf_direct"),
            ):
                # The layers' names are the hierarchy.
                opened = namespaces(address, tmp_path / path, adapter)
                assert any("block_0" in name for name in opened), path
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()


def shown_by_netron(address):
    """What the page of an address reads its model from."""
    url = "http://{}:{}".format(*address)
    [path] = re.findall('name="file" content="(.*?)"', fetched(url).decode())
    return fetched(url + path)


def stopped(address):
    """Stops a server of Netron, which takes it a moment."""
    netron = importlib.import_module("netron")

    netron.stop(address)
    until = time.monotonic() + 10
    while netron.status(address):
        assert time.monotonic() < until
        time.sleep(0.05)


@with_library("Netron")
def test_netron(run, tmp_path):
    netron = importlib.import_module("netron")

    names = run("Netron")
    assert shown_by_netron(names["address"]) == (tmp_path / "vit.onnx").read_bytes()
    for name in ("vit.keras", "vit.tflite"):
        stopped(names["address"])
        address = netron.start(name, names["address"], browse=False)
        assert shown_by_netron(address) == (tmp_path / name).read_bytes()
    stopped(address)
