"""Files of every released version load, and give the numbers that they gave then.

`tests/released/write.py` has written them.
"""

import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
from backend import skip_module_without_tensorflow

from keras_attn import data, decoding, models
from keras_attn.export import load_runner

skip_module_without_tensorflow("trains and exports")

ARCHIVES = sorted((Path(__file__).resolve().parent / "released").glob("*.zip"))
# Between processors and versions of the runtimes, which add up in another order.
CLOSE = {"rtol": 0, "atol": 2e-5}


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.stem)
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("released")
    with zipfile.ZipFile(request.param) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def numbers(folder):
    with np.load(folder / "numbers.npz") as file:
        return dict(file)


def part(numbers, name):
    """The arrays of a group, by their names in it."""
    start = f"{name}/"
    return {k.removeprefix(start): x for k, x in numbers.items() if k.startswith(start)}


def test_a_keras_file_predicts_and_goes_on_with_its_training(folder, numbers):
    model = keras.saving.load_model(folder / "classifier.keras")
    texts, expected = part(numbers, "ids"), part(numbers, "keras")
    assert model.class_names == ("bad", "good")
    assert int(model.optimizer.iterations) == 1
    np.testing.assert_allclose(model(texts), expected["classifier"], **CLOSE)
    loss = model.train_on_batch(texts, numbers["labels"])
    np.testing.assert_allclose(loss, expected["loss"], **CLOSE)
    # An update of Adam is a ratio, in which small differences grow.
    np.testing.assert_allclose(model(texts), expected["after"], rtol=0, atol=1e-3)
    assert np.abs(expected["after"] - expected["classifier"]).max() > 0.01


def test_a_checkpoint_folder_with_its_tokenizer(folder, numbers):
    model = models.load_checkpoint(folder / "checkpoint", "classifier")
    tokenizer = data.load_text_tokenizer(folder / "checkpoint")
    texts = tokenizer.encode_batch(numbers["texts"].tolist())
    for name, array in part(numbers, "ids").items():
        np.testing.assert_array_equal(texts[name], array)
    assert model.class_names == ("bad", "good")
    expected = numbers["checkpoint/classifier"]
    np.testing.assert_allclose(model(texts), expected, **CLOSE)


@pytest.mark.parametrize("suffix", ["", ".onnx", ".tflite"])
def test_an_exported_generator(folder, numbers, suffix):
    runner = load_runner(folder / f"generator{suffix}")
    prompts, expected = part(numbers, "prompt"), part(numbers, "generator")
    logits = runner.prefill(prompts)["logits"]
    np.testing.assert_allclose(logits, expected["logits"], **CLOSE)
    answer = decoding.generate(runner, prompts, expected["tokens"].shape[1])
    np.testing.assert_array_equal(answer.token_ids, expected["tokens"])
    assert runner.max_length == 19
    with pytest.raises(ValueError, match=r"inputs\['token_ids'\]"):
        runner.prefill({**prompts, "token_ids": prompts["token_ids"] + 17})
