"""Artefacts keep the model's order of inputs and outputs, which TensorFlow sorts."""

import zipfile
from typing import Any

import keras
import numpy as np
import pytest
from export_formats import SUFFIXES
from keras import layers

from keras_attn.export import ExportError, export, load_runner, metadata

pytestmark = pytest.mark.shipped


def dense(tensor, units, name):
    return layers.Dense(units, name=name)(tensor)


def lists(zeta, alpha):
    return [zeta, alpha], [dense(zeta, 2, "z"), dense(alpha, 3, "a")]


def dictionaries(zeta, alpha):
    inputs = {"zeta": zeta, "alpha": alpha}
    return inputs, {"second": dense(zeta, 2, "z"), "first": dense(alpha, 3, "a")}


def nested(zeta, alpha):
    outputs = {"z": [dense(zeta, 2, "y"), dense(alpha, 3, "x")], "b": alpha}
    return [{"zeta": zeta}, [alpha]], outputs


def one_output(zeta, alpha):
    return [zeta, alpha], layers.Concatenate(name="joined")([zeta, alpha])


# The order of `model(inputs)`, which is not that of the names.
OUTPUTS = {
    lists: ["z", "a"],
    dictionaries: ["second", "first"],
    nested: ["z_0", "z_1", "b"],
    one_output: ["joined"],
}


@pytest.fixture(scope="module")
def model():
    """`model(build)`: the functional model of a function above, built once."""
    made: dict[Any, keras.Model] = {}

    def build(function):
        if function not in made:
            zeta, alpha = (layers.Input((n,), name=k) for k, n in INPUTS.items())
            made[function] = keras.Model(*function(zeta, alpha))
        return made[function]

    return build


INPUTS = {"zeta": 3, "alpha": 5}


def arrays(normal):
    return {name: normal(2, size) for name, size in INPUTS.items()}


@pytest.mark.parametrize("suffix", SUFFIXES.values())
@pytest.mark.parametrize("build", OUTPUTS, ids=lambda build: build.__name__)
def test_order_is_that_of_the_model(build, suffix, model, normal, tmp_path):
    path = tmp_path / f"m{suffix}"
    report = export(model(build), path)
    runner = load_runner(path)
    info = runner.signatures["serve"]
    assert list(info.inputs) == list(report.inputs["serve"]) == ["zeta", "alpha"]
    assert list(info.outputs) == list(report.outputs["serve"]) == OUTPUTS[build]
    inputs = arrays(normal)
    found = runner(dict(reversed(inputs.items())))
    assert list(found) == OUTPUTS[build]
    structure: Any = keras.tree.pack_sequence_as(
        model(build).input, [inputs[x.name] for x in model(build).inputs]
    )
    expected = model(build)(structure)
    values = expected.values() if isinstance(expected, dict) else [expected]
    for value, want in zip(found.values(), flattened(values), strict=True):
        np.testing.assert_allclose(value, want, atol=1e-5)


def flattened(values):
    for value in values:
        yield from flattened(value) if isinstance(value, list) else [value]


def test_stock_runtimes_number_tensors_in_this_order(model, normal, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from ai_edge_litert.interpreter import Interpreter

    for build, inputs in ((lists, arrays(normal)), (dictionaries, arrays(normal))):
        for suffix in (".onnx", ".tflite"):
            export(model(build), tmp_path / f"m{suffix}")
        session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
        assert [value.name for value in session.get_inputs()] == list(INPUTS)
        assert [value.name for value in session.get_outputs()] == OUTPUTS[build]
        sizes = [value.shape[-1] for value in session.run(None, inputs)]
        assert sizes == [2, 3]
        interpreter = Interpreter(str(tmp_path / "m.tflite"))
        details = interpreter.get_input_details(), interpreter.get_output_details()
        shapes = [[int(each["shape"][-1]) for each in part] for part in details]
        assert shapes == [[3, 5], [2, 3]]


@pytest.mark.parametrize("suffix", SUFFIXES.values())
def test_order_of_a_decoder(suffix, build, tmp_path):
    pair = build("attention_pair")
    path = tmp_path / f"m{suffix}"
    export(pair, path)
    signatures = load_runner(path).signatures
    assert list(signatures["prefill"].inputs) == ["token_ids", "padding_mask"]
    assert list(signatures["prefill"].outputs) == ["logits", "memory", "last"]
    inputs = ["token_ids", "padding_mask", "memory", "last"]
    assert list(signatures["step"].inputs) == inputs
    assert list(signatures["step"].outputs) == ["logits", "last"]


def test_artefacts_without_an_order_load(model, tmp_path):
    """As older versions wrote them."""
    export(model(lists), tmp_path / "m")
    (tmp_path / "m" / "assets.extra" / metadata.ORDER_FILE).unlink()
    assert set(load_runner(tmp_path / "m").signatures["serve"].inputs) == set(INPUTS)
    export(model(lists), tmp_path / "m.tflite")
    content = (tmp_path / "m.tflite").read_bytes()
    with zipfile.ZipFile(tmp_path / "m.tflite") as archive:
        start = archive.infolist()[0].header_offset
    (tmp_path / "old.tflite").write_bytes(content[:start])
    runner = load_runner(tmp_path / "old.tflite")
    assert set(runner.signatures["serve"].outputs) == {"z", "a"}


@pytest.mark.parametrize("text", ["[]", "{}", '{"serve": {"inputs": ["zeta", 1]}}'])
def test_a_damaged_order_is_named(text, model, tmp_path):
    export(model(lists), tmp_path / "m")
    (tmp_path / "m" / "assets.extra" / metadata.ORDER_FILE).write_text(text)
    with pytest.raises(ExportError, match="keras_attn_order.json"):
        load_runner(tmp_path / "m")


class Described(keras.Model):
    """A model that does not declare its inputs, which are nested."""

    def call(self, inputs):
        left, right = inputs["pair of x"]
        return {"out": left - right, "all": inputs["a"] * 2.0}


def test_samples_in_the_structure_of_the_model(model, normal, tmp_path):
    sample = {"pair of x": [normal(2, 3), normal(2, 3)], "a": normal(2, 5)}
    report = export(Described(), tmp_path / "m.onnx", sample_inputs=sample)
    assert list(report.inputs["serve"]) == ["pair_of_x_0", "pair_of_x_1", "a"]
    assert list(report.outputs["serve"]) == ["out", "all"]
    found = load_runner(tmp_path / "m.onnx")(
        {
            "pair_of_x_0": sample["pair of x"][0],
            "pair_of_x_1": sample["pair of x"][1],
            "a": sample["a"],
        }
    )
    np.testing.assert_allclose(found["out"], np.subtract(*sample["pair of x"]))
    inputs = arrays(normal)
    for given in ([{"zeta": inputs["zeta"]}, [inputs["alpha"]]], inputs):
        export(model(nested), tmp_path / "n.onnx", sample_inputs=given)
