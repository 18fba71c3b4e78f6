"""Whole layers of adapters (`modules_to_save`), beside those of the base."""

from typing import Any

import keras
import numpy as np
import pytest
from parity import folders
from parity.test_peft import (
    ADAPTERS,
    altered,
    base_of,
    check,
    deprecated,
    live,
    randomize,
    read,
)

from keras_attn import models
from keras_attn.layers.adaptation.kept import kept_in
from keras_attn.layers.adaptation.quantized import QuantizedKernel
from keras_attn.models import load_lora, save_lora
from keras_attn.training import adapters_off, enable_lora, merge_lora, set_adapters

CASE = "bert_classifier@saved"
INPUTS, EXPECTED = folders.arrays_of(ADAPTERS / CASE)


def outputs(model):
    return folders.outputs_of(model, INPUTS)["logits"]


def other(tensors):
    """Other values of the tensors of a folder."""
    rng = np.random.default_rng(4)
    return {
        key: rng.normal(0, 0.3, x.shape).astype("float32") for key, x in tensors.items()
    }


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """A folder with other updates, another head, and its outputs on the base."""
    folder = altered(tmp_path_factory.mktemp("b") / "b", CASE, tensors=other)
    model = base_of(CASE)
    base = outputs(model)
    load_lora(model, folder)
    return folder, outputs(model), base


def assert_switches(model, second_outputs, base):
    """Checks the outputs with each adapter, with none, and which weights train."""
    assert np.abs(second_outputs - EXPECTED["logits"]).max() > 0.3
    for name, expected in (
        ("a", EXPECTED["logits"]),
        ("b", second_outputs),
        ("a", EXPECTED["logits"]),
    ):
        set_adapters(model, name)
        np.testing.assert_allclose(outputs(model), expected, atol=1e-5)
        paths = {weight.path for weight in model.trainable_variables}
        assert {"classifier/kernel", "block_1/attention_norm/gamma"} <= paths
        assert not any("/b/" in path for path in paths) or name == "b"
        with adapters_off(model):
            np.testing.assert_allclose(outputs(model), base, atol=1e-6)
        np.testing.assert_allclose(outputs(model), expected, atol=1e-5)
    set_adapters(model, None)
    np.testing.assert_allclose(outputs(model), base, atol=1e-6)
    assert not model.trainable_variables
    with pytest.raises(ValueError, match=r"Only one of `names`.*'classifier'|'embedd"):
        set_adapters(model, ["a", "b"])


def test_each_adapter_has_its_layers_and_the_base_its_own(second, tmp_path):
    folder, second_outputs, base = second
    model: Any = base_of(CASE)
    load_lora(model, ADAPTERS / CASE, name="a")
    load_lora(model, folder, name="b")
    trained = [weight.path for weight in model.trainable_variables]
    # What is off is written with its own layers, and the rest stays as it is.
    for name, path in (("a", ADAPTERS / CASE), ("b", folder)):
        save_lora(model, tmp_path / name, name=name)
        for key, array in read(path)[1].items():
            np.testing.assert_array_equal(read(tmp_path / name)[1][key], array, key)
    assert [weight.path for weight in model.trainable_variables] == trained
    np.testing.assert_allclose(outputs(model), second_outputs, atol=1e-5)
    assert_switches(model, second_outputs, base)

    set_adapters(model, "b")
    model.save(tmp_path / "model.keras")
    loaded: Any = keras.saving.load_model(tmp_path / "model.keras")
    assert [x.path for x in loaded.trainable_variables] == trained
    twin: Any = keras.models.clone_model(model)
    assert [x.path for x in twin.trainable_variables] == trained
    twin.set_weights(model.get_weights())
    for each in (loaded, twin):
        np.testing.assert_allclose(outputs(each), second_outputs, atol=1e-5)
        assert_switches(each, second_outputs, base)

    set_adapters(model, "a")
    models.save_checkpoint(model, tmp_path / "merged")
    np.testing.assert_allclose(
        outputs(models.load_checkpoint(tmp_path / "merged")),
        EXPECTED["logits"],
        atol=1e-5,
    )
    merge_lora(model)
    assert not kept_in(model)
    assert len(model.weights) == len(base_of(CASE).weights)
    check(model, INPUTS, EXPECTED)


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_saved_layers_stay_floats_on_integers_and_train(mode, tmp_path):
    model: Any = base_of(CASE)
    model.quantize(mode, block_size=4 if mode == "int4" else None)
    integers = [x for x in model._flatten_layers() if isinstance(x, QuantizedKernel)]
    base = outputs(model)
    report = load_lora(model, ADAPTERS / CASE)
    tensors = read(ADAPTERS / CASE)[1]
    assert report.num_trained == sum(array.size for array in tensors.values())
    classifier = model.get_layer("classifier")
    for variable, key in (
        (classifier.kernel, "classifier.weight"),
        (
            model.get_layer("block_1").feed_forward.expand.kernel,
            "bert.encoder.layer.1.intermediate.dense.weight",
        ),
    ):
        assert isinstance(variable, keras.Variable) and variable.trainable
        np.testing.assert_array_equal(
            np.transpose(variable), tensors[f"base_model.model.{key}"]
        )
    left = [x for x in model._flatten_layers() if isinstance(x, QuantizedKernel)]
    assert 0 < len(left) < len(integers)
    with adapters_off(model):
        np.testing.assert_allclose(outputs(model), base, atol=1e-5)
    save_lora(model, tmp_path)
    for key, array in read(tmp_path)[1].items():
        np.testing.assert_array_equal(array, tensors[key], key)


def test_what_an_adapter_has_is_not_rounded_later():
    model: Any = base_of(CASE)
    load_lora(model, ADAPTERS / CASE)
    set_adapters(model, None)
    report = model.quantize("int8")
    for path in ("classifier", "block_1/feed_forward/expand"):
        assert report.passed_over[path] == "an adapter has it as a whole"
    set_adapters(model, "default")
    check(model, INPUTS, EXPECTED, 0.05)


def test_training_moves_what_is_on_and_nothing_else():
    model: Any = base_of(CASE)
    before = outputs(model)
    load_lora(model, ADAPTERS / CASE, name="a")
    enable_lora(model, 2, targets="query", also_train="classifier", name="b")
    # The head of the base is where the second begins.
    np.testing.assert_allclose(outputs(model), before, atol=1e-6)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1.0), loss)
    model.fit(INPUTS, np.array([0, 1, 2]), epochs=2, verbose=0)
    assert np.abs(outputs(model) - before).max() > 0.01
    learned = outputs(model)
    with adapters_off(model):
        np.testing.assert_allclose(outputs(model), before, atol=1e-6)
    set_adapters(model, "a")
    check(model, INPUTS, EXPECTED)
    set_adapters(model, "b")
    np.testing.assert_array_equal(outputs(model), learned)


def test_two_classifiers_live_on_one_base():
    encoder = models.load_checkpoint(
        folders.CHECKPOINTS / "bert_classifier", task="encoder"
    )
    heads: Any = [models.build_bert_classifier(encoder, num_classes=x) for x in (3, 4)]
    base = [outputs(model) for model in heads]
    expected = []
    for seed, (name, model) in enumerate(zip("ab", heads, strict=True)):
        enable_lora(model, 2, also_train="classifier", name=name)
        randomize(model, seed)
        expected.append(outputs(model))
    for index, name in enumerate("ab"):
        set_adapters(heads[index], name)
        np.testing.assert_allclose(outputs(heads[index]), expected[index], atol=1e-6)
        with adapters_off(heads[index]):
            found = outputs(heads[index])
            np.testing.assert_allclose(found, base[index], atol=1e-6)


@pytest.mark.parity
@deprecated
def test_two_adapters_of_peft(tmp_path):
    references = live()
    import peft  # pyright: ignore[reportMissingImports]

    options: Any = {"r": 2, "task_type": "SEQ_CLS", "modules_to_save": ["LayerNorm"]}
    theirs = peft.get_peft_model(
        references.base_of(CASE), peft.LoraConfig(**options), "first"
    )
    theirs.add_adapter("second", peft.LoraConfig(**options))
    model = base_of(CASE)
    for seed, name in enumerate(("first", "second")):
        theirs.set_adapter(name)
        references.randomize(theirs.eval(), seed)
        theirs.save_pretrained(tmp_path, selected_adapters=[name])
        load_lora(model, tmp_path / name, name=name)
    for name in ("first", "second", "first"):
        theirs.set_adapter(name)
        set_adapters(model, name)
        check(model, INPUTS, references.outputs_of(theirs, INPUTS))
        with theirs.disable_adapter(), adapters_off(model):
            check(model, INPUTS, references.outputs_of(theirs, INPUTS))
