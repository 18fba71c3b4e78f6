"""Scores of Keras' own attention layers, as `capture_attention` returns them."""

import keras
import numpy as np
import pytest

from keras_attn.layers import keras_attention
from keras_attn.viz import capture_attention

B, T, S, D = 2, 3, 5, 7
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, T, D)).astype("float32")
Z = RNG.normal(size=(B, S, D)).astype("float32")
GRID = RNG.normal(size=(B, T, 2, 5, D)).astype("float32")


class Subclass(keras.layers.MultiHeadAttention):
    """Calls `_compute_attention` itself, by names, as KerasHub's with a cache does."""

    def call(self, query, value, key=None, return_attention_scores=False):
        outputs, scores = self._compute_attention(
            query=self._query_dense(query),
            key=self._key_dense(value),
            value=self._value_dense(value),
            return_attention_scores=return_attention_scores,
        )
        outputs = self._output_dense(outputs)
        return (outputs, scores) if return_attention_scores else outputs


class Grouped(keras.layers.Layer):
    """Attention of groups of heads with a `Softmax` layer, as KerasHub's Gemma."""

    def __init__(self):
        super().__init__(name="my_attention")
        self.softmax = keras.layers.Softmax()

    def call(self, query, value, return_attention_scores=False):
        scores = keras.ops.einsum("btd,bsd->bts", query, value)
        scores = keras.ops.tile(scores[:, None, None], (1, 2, 3, 1, 1))
        scores = self.softmax(scores)
        outputs = keras.ops.einsum("bngts,bsd->btd", scores, value)
        return (outputs, scores) if return_attention_scores else outputs


class Called(keras.Model):
    """Calls a layer with the inputs and some options."""

    def __init__(self, layer, **options):
        super().__init__()
        self.layer, self.options = layer, options

    def call(self, inputs):
        if type(self.layer) in (keras.layers.Attention, keras.layers.AdditiveAttention):
            return self.layer(list(inputs), **self.options)
        return self.layer(*inputs, **self.options)


@pytest.mark.parametrize(
    "layer, options",
    [
        (keras.layers.MultiHeadAttention(2, 4), {}),
        (keras.layers.MultiHeadAttention(2, 4, dropout=0.5), {"use_causal_mask": True}),
        (keras.layers.MultiHeadAttention(2, 4, use_gate=True), {}),
        (keras.layers.GroupQueryAttention(4, 6, 3), {"use_causal_mask": True}),
        (keras.layers.Attention(use_scale=True), {}),
        (keras.layers.AdditiveAttention(), {}),
        (Subclass(2, 4), {}),
        (Grouped(), {}),
    ],
    ids=["heads", "causal", "gate", "groups", "dot", "additive", "subclass", "softmax"],
)
def test_scores_are_those_that_the_layer_returns(layer, options):
    model = Called(layer, **options)
    before = np.asarray(model((X, Z)))
    found = capture_attention(model, (X, Z))
    model.options = {**options, "return_attention_scores": True}
    outputs, scores = model((X, Z))
    scores = np.asarray(scores).reshape(B, -1, T, S)
    assert list(found) == [layer.path]
    np.testing.assert_allclose(found[layer.path], scores, atol=1e-6)
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)
    assert scores.std() > 0.01
    # Without a recorder the layer is as before.
    np.testing.assert_allclose(before, outputs, atol=1e-5)
    for owner, name in keras_attention._RECORDING:
        assert getattr(owner, name).__module__.startswith("keras.")


def test_several_axes_are_one():
    layer = keras.layers.MultiHeadAttention(2, 4, attention_axes=(1, 3))
    model = Called(layer)
    (found,) = capture_attention(model, (GRID, GRID)).values()
    _, scores = layer(GRID, GRID, return_attention_scores=True)
    expected = np.asarray(scores).reshape(B * 2, 2, T * 5, T * 5)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_flash_attention_is_off_while_scores_are_recorded():
    layer = keras.layers.MultiHeadAttention(2, 4)
    model = Called(layer)
    expected = capture_attention(model, (X, Z))
    layer._flash_attention = True  # As on a GPU that has the operator.
    found = capture_attention(model, (X, Z))
    np.testing.assert_array_equal(found[layer.path], expected[layer.path])
    assert layer._flash_attention is True
