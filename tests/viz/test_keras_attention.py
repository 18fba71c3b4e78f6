"""Scores of Keras' own attention layers, as `capture_attention` returns them."""

import keras
import numpy as np
import pytest

from keras_attn.viz import capture_attention

B, T, S, D = 2, 3, 5, 7
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, T, D)).astype("float32")
Z = RNG.normal(size=(B, S, D)).astype("float32")
METHODS = [
    (keras.layers.MultiHeadAttention, "_compute_attention"),
    (keras.layers.GroupQueryAttention, "_compute_attention"),
    (keras.layers.Attention, "_apply_scores"),
    (keras.layers.Softmax, "call"),
]
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


class Slots(keras.layers.Layer):
    """Attention whose softmax is over the queries, as in slot attention."""

    def __init__(self):
        super().__init__(name="slot_attention")
        self.softmax = keras.layers.Softmax(axis=-2)

    def call(self, x):
        return self.softmax(keras.ops.einsum("btd,bsd->bts", x, x)[:, None])


class Broken(keras.layers.MultiHeadAttention):
    """Fails while scores are computed."""

    def _masked_softmax(self, *args, **options):
        raise RuntimeError("broken")


class Called(keras.Model):
    """Calls a layer with the inputs and some options."""

    def __init__(self, layer, **options):
        super().__init__()
        self.layer, self.options = layer, options

    def call(self, inputs):
        if type(self.layer) in (keras.layers.Attention, keras.layers.AdditiveAttention):
            return self.layer(list(inputs), **self.options)
        return self.layer(*inputs, **self.options)


def assert_keras_is_as_before():
    for method in METHODS:
        assert getattr(*method).__module__.startswith("keras."), method


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
    assert_keras_is_as_before()


def test_several_axes_are_one():
    layer = keras.layers.MultiHeadAttention(2, 4, attention_axes=(1, 3))
    model = Called(layer)
    (found,) = capture_attention(model, (GRID, GRID)).values()
    _, scores = layer(GRID, GRID, return_attention_scores=True)
    expected = np.asarray(scores).reshape(B * 2, 2, T * 5, T * 5)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    grid = GRID[:, :, 0]
    (found,) = capture_attention(
        Called(keras.layers.Attention()), (grid, grid)
    ).values()
    assert found.shape == (B, T, 5, 5)


def test_flash_attention_is_off_while_scores_are_recorded(monkeypatch):
    layer = keras.layers.MultiHeadAttention(2, 4)
    model = Called(layer)
    expected = capture_attention(model, (X, Z))
    fused, calls = keras.src.ops.dot_product_attention, []

    def on_a_gpu(*args, flash_attention, **options):
        calls.append(flash_attention)
        return fused(*args, **options)

    monkeypatch.setattr(keras.src.ops, "dot_product_attention", on_a_gpu)
    layer._flash_attention = True
    found = capture_attention(model, (X, Z))
    np.testing.assert_array_equal(found[layer.path], expected[layer.path])
    assert calls == [True]  # The outputs are those of the operator.
    assert layer._flash_attention is True


@pytest.mark.parametrize("kind", ["heads", "groups"])
def test_outputs_are_those_of_a_call_without_a_recorder(kind):
    # A query whose keys are all masked: the fused operator gives the mean of the
    # values, and the computation that returns scores gives zeros.
    first, last = (
        keras.layers.MultiHeadAttention(2, 4, name=f"{i}")
        if kind == "heads"
        else keras.layers.GroupQueryAttention(4, 4, 2, name=f"{i}")
        for i in range(2)
    )
    inputs = keras.Input((T, D))
    mask = np.tril(np.ones((B, T, T), bool), -1)
    middle = first(inputs, inputs, attention_mask=keras.ops.convert_to_tensor(mask))
    model = keras.Model(inputs, last(middle, middle))
    found = capture_attention(model, X)
    assert (found["0"][:, :, 0] == 0).all()
    middle = first(X, X, attention_mask=mask)
    assert np.abs(middle[:, 0]).max() > 0.01
    _, expected = last(middle, middle, return_attention_scores=True)
    np.testing.assert_allclose(found["1"], expected, atol=1e-6)


def test_a_softmax_that_is_not_over_keys_is_not_recorded():
    image, inputs = keras.Input((T, S, D)), keras.Input((T, D))
    classes = keras.layers.Softmax()(image)
    models = {
        "a Softmax of classes": keras.Model(image, classes, name="attention_unet"),
        "a Softmax over queries": keras.Model(inputs, Slots()(inputs)),
    }
    for model, given in zip(models.values(), (GRID[:, :, 0], X), strict=True):
        outer = keras.Sequential([model])
        for each in (model, outer):
            with pytest.raises(ValueError, match="must have an attention layer"):
                capture_attention(each, given)


def test_an_error_leaves_keras_as_it_was():
    model = Called(Broken(2, 4))
    model.built = True
    with pytest.raises(RuntimeError, match="broken"):
        capture_attention(model, (X, Z))
    assert_keras_is_as_before()


def test_a_fit_is_the_same_after_a_capture():
    def fit(captures):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((None,), dtype="int32")
        x = keras.layers.Embedding(11, D, mask_zero=True)(inputs)
        x = keras.layers.MultiHeadAttention(2, 4, dropout=0.5)(x, x)
        model = keras.Model(inputs, x)
        model.compile("sgd", "mse")
        ids = np.array([[1, 2, 0], [3, 4, 5]])
        names = [weight.path for weight in model.weights]
        for _ in range(2):
            if captures:
                (scores,) = capture_attention(model, ids).values()
                assert (scores[0, :, :2, 2] == 0).all()
            model.fit(ids, X, verbose=0)
        assert [weight.path for weight in model.weights] == names
        return model.get_weights()

    for one, other in zip(fit(False), fit(True), strict=True):
        np.testing.assert_array_equal(one, other)
