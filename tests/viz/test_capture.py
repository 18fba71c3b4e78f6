import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from viz.attention_model import DotAttention, make_model

from keras_attn.viz import capture_attention

INPUTS = {
    "token_ids": np.arange(14, dtype="int32").reshape(2, 7) % 11,
    "decoder_token_ids": np.arange(10, dtype="int32").reshape(2, 5) % 11,
}


def test_scores_are_those_of_the_layer():
    value = np.random.default_rng(0).normal(size=(2, 7, 3)).astype("float32")
    query = np.random.default_rng(1).normal(size=(2, 5, 3)).astype("float32")
    inputs = [keras.Input((None, 3)), keras.Input((None, 3))]
    model = keras.Model(inputs, DotAttention(name="dot")(*inputs))
    scores = capture_attention(model, [query, value])
    exponents = np.exp(query @ value.transpose(0, 2, 1))
    expected = exponents / exponents.sum(-1, keepdims=True)
    assert list(scores) == ["dot"]
    np.testing.assert_allclose(scores["dot"], expected[:, None], atol=1e-6)


def test_layers_come_in_the_order_of_their_calls():
    scores = capture_attention(make_model("b", "a", heads=3), INPUTS)
    assert [(path, each.shape) for path, each in scores.items()] == [
        ("b", (2, 3, 5, 7)),
        ("a", (2, 3, 5, 7)),
    ]


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_scores_are_float32_arrays_under_every_policy(policy, set_policy):
    set_policy(policy)
    (scores,) = capture_attention(make_model("attention"), INPUTS).values()
    assert isinstance(scores, np.ndarray)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores.sum(-1), 1.0, atol=0.02)


def test_it_works_before_and_after_predict_compiled_the_model():
    model = make_model("attention")
    before = capture_attention(model, INPUTS)["attention"]
    model.predict(INPUTS, verbose=0)
    np.testing.assert_array_equal(capture_attention(model, INPUTS)["attention"], before)


def test_dropout_is_off():
    model = make_model("one", "two", dropout=0.9)
    first, second = (capture_attention(model, INPUTS)["two"] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_a_model_that_was_never_called_is_built_first():
    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__(name="subclassed")
            self.attention = DotAttention(name="attention")

        def call(self, x):
            return self.attention(x, x)

    scores = capture_attention(Subclassed(), np.ones((2, 5, 3), "float32"))
    assert list(scores) == ["subclassed/attention"]
    np.testing.assert_allclose(scores["subclassed/attention"], 0.2, atol=1e-6)


def test_a_model_without_attention_is_refused():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5, name="d")])
    match = r"`model` must have an attention layer.*Received: model='seq.*\['d'\]"
    with pytest.raises(ValueError, match=match):
        capture_attention(model, np.ones((2, 3)))


def test_only_a_model_is_accepted():
    with pytest.raises(TypeError, match=r"`model` must be a `keras.Model`.*function"):
        capture_attention(lambda inputs: inputs, INPUTS)


def test_a_missing_input_is_named():
    with pytest.raises(ValueError, match="decoder_token_ids"):
        capture_attention(make_model("a"), {"token_ids": INPUTS["token_ids"]})


def test_symbols_are_refused():
    match = "`inputs` must be concrete values, neither"
    symbols = {name: keras.Input((None,), dtype="int32") for name in INPUTS}
    with pytest.raises(ValueError, match=match):
        capture_attention(make_model("a"), symbols)
    model = make_model("a")
    compiled = tf.function(lambda x: ops.shape(capture_attention(model, x)["a"]))
    with pytest.raises(ValueError, match=match):
        compiled(INPUTS)
