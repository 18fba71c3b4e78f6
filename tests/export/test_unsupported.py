"""What a format lacks is refused by the name of its layer, with what to do."""

import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from keras_attn.export import ExportError, export, load_runner, verify

pytestmark = pytest.mark.shipped
WORDS = np.array([["a"], ["b"], ["zz"]], object)
IDS = np.array([[10], [20], [31]], "int64")
OUTSIDE = "Leave this layer out: compute what it returns before the model, as in a `dat"


def model_of(*stack, shape: Any = (1,), dtype="float32"):
    x = layers.Input(shape, dtype=dtype, name="x")
    y = x
    for layer in stack:
        y = layer(y)
    return keras.Model(x, y)


class OfTensorFlow(layers.Layer):
    """Calls a function of TensorFlow."""

    def __init__(self, function, dtype_of=None, name=None):
        super().__init__(name=name)
        self._function, self._dtype_of = function, dtype_of

    def call(self, x):
        return self._function(x)

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, self._dtype_of or x.dtype)


def vectorization():
    layer = layers.TextVectorization(
        vocabulary=["a", "b"], output_sequence_length=4, name="words"
    )
    return model_of(layer, dtype="string"), WORDS


# A model, its samples, and the formats that lack something.
CASES = {
    "lookup": lambda: (
        model_of(
            layers.StringLookup(vocabulary=["a", "b"], name="words"),
            layers.Embedding(5, 3),
            dtype="string",
        ),
        WORDS,
    ),
    "vectorization": vectorization,
    "hashing": lambda: (
        model_of(layers.Hashing(7, name="words"), dtype="string"),
        WORDS,
    ),
    "integers": lambda: (
        model_of(
            layers.IntegerLookup(vocabulary=[10, 20], name="words"),
            layers.Embedding(5, 3),
            dtype="int64",
        ),
        IDS,
    ),
    "strings": lambda: (
        model_of(
            OfTensorFlow(tf.strings.lower, name="words"),
            OfTensorFlow(tf.strings.length, "int32"),
            dtype="string",
        ),
        WORDS,
    ),
}


@pytest.mark.parametrize("suffix", [".tflite", ".onnx"])
@pytest.mark.parametrize("case", CASES)
def test_strings_and_tables(case, suffix, tmp_path):
    model, sample = CASES[case]()
    with pytest.raises(ExportError) as caught:
        export(model, tmp_path / f"m{suffix}", sample_inputs=sample)
    message = str(caught.value)
    assert "\n" not in message and "`words`" in message and OUTSIDE in message
    title = {".tflite": "LiteRT", ".onnx": "ONNX"}[suffix]
    assert message.startswith(f"{title} has no operators for strings or tables")
    assert list(tmp_path.iterdir()) == []


def test_a_string_that_passes_through(tmp_path):
    model = model_of(layers.Identity(), dtype="string")
    with pytest.raises(ExportError, match="no strings, which the input `x` takes"):
        export(model, tmp_path / "m.onnx", sample_inputs=WORDS)
    report = export(model, tmp_path / "m", sample_inputs=WORDS)
    assert report.error == 0


def test_labels_of_integers_are_looked_up_in_litert(tmp_path):
    lookup = layers.StringLookup(vocabulary=["a", "b"], invert=True, name="labels")
    model, path = model_of(lookup, dtype="int32"), tmp_path / "m.tflite"
    ids = np.array([[1], [0], [2]], "int32")
    assert export(model, path, sample_inputs=ids).error == 0
    [labels] = load_runner(path)({"x": ids}).values()
    assert labels.tolist() == [[b"a"], [b"[UNK]"], [b"b"]]
    with pytest.raises(ExportError, match="in `labels`. Leave this layer out"):
        export(model, tmp_path / "m.onnx", sample_inputs=ids)


LATE = [
    (
        ".onnx",
        lambda: model_of(layers.Discretization([0.0, 1.0], name="bins"), shape=(3,)),
        r"ONNX has no equivalent of `Bucketize`, in `bins`. Leave this layer out",
    ),
    (
        ".tflite",
        lambda: model_of(
            layers.CategoryEncoding(5, output_mode="multi_hot", name="bits"),
            shape=(2,),
            dtype="int32",
        ),
        r"no built-in operator for `DenseBincount`.*in `bits`. Leave this layer out",
    ),
    (
        "",
        lambda: model_of(
            OfTensorFlow(
                lambda x: tf.ensure_shape(
                    tf.py_function(lambda v: v * 2, [x], "float32"), x.shape
                ),
                name="in_python",
            )
        ),
        "A file cannot hold a call of Python .*in `in_python`. Build the layer from",
    ),
    (
        ".tflite",
        lambda: model_of(
            OfTensorFlow(
                lambda x: tf.signal.fft(tf.cast(x, "complex64")),
                "complex64",
                name="fourier",
            ),
            shape=(16,),
        ),
        "a Fourier transform only of real numbers .*in `fourier`. Use `tf.signal",
    ),
    (
        ".onnx",
        lambda: model_of(
            layers.Resizing(5, 5, interpolation="bicubic", name="smaller"),
            shape=(13, 17, 3),
        ),
        "not shrink images by bicubic interpolation .*in `smaller`. Use `bilinear`",
    ),
    (
        ".tflite",
        lambda: model_of(
            layers.UpSampling2D(interpolation="bicubic", name="larger"),
            shape=(None, None, 3),
        ),
        "no built-in operator for `ResizeBicubic`.*in `larger`. Build the layer from",
    ),
    (
        ".onnx",
        lambda: keras.Sequential(
            [
                layers.Input(batch_shape=(2, 3, 5)),
                layers.LSTM(3, stateful=True, name="memory"),
            ]
        ),
        "no variables that change from call to call .*in `memory`. Make the state an",
    ),
]


@pytest.mark.parametrize("suffix, build, message", LATE)
def test_other_operators(suffix, build, message, tmp_path):
    with pytest.raises(ExportError) as caught:
        export(build(), tmp_path / f"m{suffix}")
    assert re.search(message, str(caught.value)), caught.value
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_model_with_a_state_is_named(tmp_path):
    recurrent = LATE[-1][1]()
    with pytest.raises(ExportError, match=r"or keeps a state \(`stateful=True`\)"):
        export(recurrent, tmp_path / "m")


ANY_SIZE = {
    "bilinear": lambda: model_of(
        layers.UpSampling2D((2, 3), interpolation="bilinear"), shape=(None, None, 3)
    ),
    "first": lambda: model_of(
        layers.UpSampling2D(2, data_format="channels_first", interpolation="bilinear"),
        shape=(3, None, 7),
    ),
    "nearest": lambda: model_of(layers.UpSampling2D(2), shape=(None, None, 3)),
    "rows": lambda: model_of(layers.TimeDistributed(layers.Dense(3)), shape=(None, 5)),
    "maps": lambda: model_of(
        layers.TimeDistributed(layers.Conv2D(2, 3)),
        layers.TimeDistributed(layers.GlobalMaxPooling2D()),
        layers.Masking(),
        layers.TimeDistributed(layers.Dense(2)),
        shape=(None, 7, 9, 3),
    ),
}


@pytest.mark.parametrize("suffix", ["", ".tflite", ".onnx"])
@pytest.mark.parametrize("case", ANY_SIZE)
def test_layers_that_keras_traces_at_known_sizes_only(case, suffix, tmp_path):
    model, path = ANY_SIZE[case](), tmp_path / f"m{suffix}"
    export(model, path)
    runner = load_runner(path)
    [name] = runner.signatures["serve"].inputs
    random = np.random.default_rng(3)
    for size in (6, 11):
        shape = [1, *(size if side is None else side for side in model.input.shape[1:])]
        x = random.normal(size=shape).astype("float32")
        [found] = runner({name: x}).values()
        np.testing.assert_allclose(found, model(x), atol=1e-5)
    # Keras' layers are as they were.
    assert layers.UpSampling2D.call.__module__.startswith("keras.")
    assert verify(model, path).error is not None


class Asserting(layers.Layer):
    """Its assertion, which files leave out, holds a string."""

    def call(self, x):
        check = tf.debugging.assert_greater(tf.shape(x)[1], 1, message="too short")
        with tf.control_dependencies([check] if check is not None else []):
            return x * 2.0


@pytest.mark.parametrize("suffix", ["", ".tflite", ".onnx"])
def test_messages_of_assertions_are_no_strings_of_the_model(suffix, tmp_path):
    model = model_of(Asserting(), shape=(None, 3))
    assert export(model, tmp_path / f"m{suffix}").error == 0


def test_random_layers_of_training_do_nothing(tmp_path):
    stack = layers.RandomFlip(), layers.RandomRotation(0.2), layers.GaussianNoise(0.1)
    model = model_of(*stack, layers.Rescaling(2.0), shape=(7, 9, 3))
    for suffix in ("", ".tflite", ".onnx"):
        report = export(model, tmp_path / f"m{suffix}")
        assert report.error is not None and report.error < 1e-5
    assert ops.convert_to_numpy(model(np.ones((1, 7, 9, 3)))).max() == 2
