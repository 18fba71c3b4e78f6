"""Models whose names, structures or dtypes are unusual ship in every format."""

from typing import Any

import keras
import numpy as np
import pytest
from export_formats import SUFFIXES
from keras import layers, ops

from keras_attn.export import export, load_runner, verify
from keras_attn.export.formats import onnx_weights

pytestmark = pytest.mark.shipped


def given(name, size=3, dtype=None):
    return layers.Input((size,), name=name, dtype=dtype)


def similar():
    """A name that is valid stays, so that it never means another input."""
    spaced, plain, accent = given("my x"), given("my_x"), given("größe")
    difference = layers.Dense(2, name="größe der x")(spaced - 2 * plain)
    outputs = [difference, layers.Dense(2, name="x y")(accent)]
    model = keras.Model([spaced, plain, accent], outputs, name="ein modell é")
    return model, ["my_x_1", "my_x", "gr__e"], ["gr__e_der_x", "x_y"]


def reserved():
    tensors = [given(name) for name in ("class", "self", "in", "_y", "1")]
    a, b, c, d, e = tensors
    model = keras.Model(tensors, layers.Dense(2, name="return")(a - b + c * d - e))
    names = ["class_", "self_", "in_", "input_y", "input_1"]
    return model, names, ["return"]


def cases():
    """TensorFlow makes the names of inputs lower case."""
    small, large = given("x"), given("X", 4)
    dense = layers.Dense(2, name="Y")(large)
    model = keras.Model([large, small], {"Y": dense, "y": small, "x": large})
    return model, ["X", "x_1"], ["Y", "y", "x"]


def slashes():
    a, b = given("x 1"), given("x_1", 4)
    outputs = {"y/1": layers.Dense(2)(a), "y 1": layers.Dense(3)(b), "y_1": a}
    model = keras.Model({"x 1": a, "x_1": b}, outputs)
    return model, ["x_1_1", "x_1"], ["y_1_2", "y_1_1", "y_1"]


def weights():
    """Names that the exporter gives to weights."""
    a, b = given("weight_0"), given("Weight_1")
    hidden = layers.Dense(5, name="weight_2")(a)
    model = keras.Model([b, a], [layers.Dense(2, name="weight_3")(hidden), b])
    return model, ["Weight_1", "weight_0"], ["weight_3", "Weight_1"]


def places():
    """Keras' `argmax` of floats uses operations that LiteRT and ONNX lack."""
    x = given("x", 5)
    outputs = {
        "first": ops.argmax(x, -1),
        "last": ops.argmin(x, axis=1, keepdims=True),
        "of_all": ops.argmax(x),
        "is_positive": x > 0,
        "mean": ops.mean(x),
    }
    return keras.Model(x, outputs), ["x"], list(outputs)


def shared():
    inner = keras.Sequential([given("i"), layers.Dense(3)], name="inner")
    a, b = given("a"), given("b", dtype="int32")
    keep = given("keep", dtype="bool")
    twice = inner(inner(a)) - inner(ops.cast(b, "float32"))
    outputs = [ops.where(keep, twice, 0.0), (inner(a), {"b": b})]
    model = keras.Model((a, {"b": b, "a": keep}), outputs)
    return model, ["a", "b", "keep"], None


def halves():
    a, b = given("a", dtype="bfloat16"), given("b", dtype="float16")
    outputs = {
        "first": layers.Dense(2, dtype="bfloat16")(a),
        "b": layers.Dense(3, dtype="mixed_float16")(b),
        "a": a,
    }
    return keras.Model({"b": b, "a": a}, outputs), ["b", "a"], list(outputs)


class Inner(keras.Model):
    def __init__(self):
        super().__init__(name="inner")
        self.project = layers.Dense(3)

    def call(self, inputs):
        return self.project(inputs)


class Outer(keras.Model):
    """Subclassed, with another in it, a dictionary in, and None among its outputs."""

    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def call(self, inputs, training=False):
        first = self.inner(inputs["im 1"])
        return {"z": first, "none": None, "a": [inputs["im/1"], first * 2.0]}


def subclassed():
    return Outer(), ["im_1", "im_1_1"], ["z", "a_0", "a_1"]


MODELS = [similar, reserved, cases, slashes, weights, places, shared, halves]


@pytest.mark.parametrize("suffix", SUFFIXES.values())
@pytest.mark.parametrize("build", [*MODELS, subclassed], ids=lambda f: f.__name__)
def test_it_ships_and_its_names_are_said(build, suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_weights, "_SMALLEST_LIFTED", 1)
    keras.utils.set_random_seed(1)
    model, inputs, outputs = build()
    path, sample = tmp_path / f"m{suffix}", None
    if build is subclassed:
        sample = {"im 1": np.ones((2, 3), "float32"), "im/1": np.zeros((2, 4))}
    report = export(model, path, sample_inputs=sample)
    assert report.error is not None and report.not_compared == {}
    signature = load_runner(path).signatures["serve"]
    assert list(signature.inputs) == list(report.inputs["serve"]) == inputs
    assert list(signature.outputs) == list(report.outputs["serve"])
    assert outputs in (None, list(signature.outputs))
    if build is similar:
        assert "`my x` is renamed `my_x_1`" in report.notes
        assert "`größe der x` is renamed `gr__e_der_x`" in report.notes
        assert model.get_layer("größe der x").name == "größe der x"
    assert verify(model, path, sample_inputs=sample).error is not None


class Nothing(keras.Model):
    def call(self, inputs):
        return ()


def test_a_model_that_returns_nothing(tmp_path):
    x: Any = np.ones((2, 3), "float32")
    with pytest.raises(ValueError, match="must return at least one tensor"):
        export(Nothing(), tmp_path / "m.onnx", sample_inputs=x)
