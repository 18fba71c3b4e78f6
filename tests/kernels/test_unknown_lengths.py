"""Where a graph learns the lengths when it runs, it chooses the form of attention."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.kernels import blocked_attention as blocks
from keras_attn.kernels import lean_attention as lean
from keras_attn.kernels import query_chunks
from keras_attn.kernels.dropout import RandomDropout, dropout
from keras_attn.layers import MultiHeadAttention, RelativeMultiHeadAttention
from keras_attn.ops import relative, scaled_dot_product_attention

if keras.backend.backend() != "tensorflow":
    pytest.skip("the graphs are TensorFlow's", allow_module_level=True)

import tensorflow as tf

pytestmark = pytest.mark.compiled
B, N, G, H, V, C = 2, 6, 3, 5, 7, 8
# On both sides of the number of pairs from which there are blocks.
LENGTHS = [(5, 7), (19, 21)]
WAYS = ("graph", "xla")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(lean, "_UNKNOWN_PAIRS", 15**2)
    monkeypatch.setattr(blocks, "_BLOCK_SIZE", C)
    monkeypatch.setattr(query_chunks, "_CHUNK_SIZE", C)
    blocks._passes.cache_clear()


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def inputs_of(queries, keys, batch=B):
    """Queries, keys, values, a bias, a mask and a mask of padding."""
    random = np.random.default_rng(1)
    floats = [(batch, N, queries, H), (batch, G, keys, H)]
    floats += [(batch, G, keys, V), (1, N, queries, keys)]
    masks = [(batch, 1, queries, keys), (batch, keys)]
    return [
        *(tf.constant(normal(*shape, seed=seed)) for seed, shape in enumerate(floats)),
        *(tf.constant(random.random(shape) > 0.3) for shape in masks),
    ]


def attended(*inputs, asks=False, is_causal=True, dropout=None):
    query, key, value, bias, mask, padding = inputs
    return scaled_dot_product_attention(
        query,
        key,
        value,
        bias=bias,
        mask=mask,
        padding_mask=padding,
        is_causal=is_causal,
        dropout=dropout,
        return_weights=asks,
    )[0]


def gradients_of(function, inputs, order=1):
    """The outputs, and the gradients of a function of them, of any order."""
    floats = inputs[:4]
    if order == 0:
        outputs = function(*inputs)
        return [outputs, tf.reduce_sum(tf.sin(outputs))]
    with tf.GradientTape() as tape:
        tape.watch(floats)
        outputs, *_, last = gradients_of(function, inputs, order - 1)
        if order > 1:
            last = tf.reduce_sum(tf.square(last))
    return [outputs, *tape.gradient(last, floats)]


def traced(function, way):
    """A graph of a function of `inputs_of`, for any batch and any lengths."""
    floats = (None, N, None, H), (None, G, None, H), (None, G, None, V)
    floats = *floats, (1, N, None, None)
    masks = (None, 1, None, None), (None, None)
    specifications = [tf.TensorSpec(shape, tf.float32) for shape in floats]
    specifications += [tf.TensorSpec(shape, tf.bool) for shape in masks]
    call: Any = tf.function(
        function,
        input_signature=specifications,
        jit_compile=way == "xla",
        autograph=False,
    )
    return call


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", [1, 2])
def test_both_forms_are_the_attention_of_all_scores(way, order):
    call = traced(lambda *inputs: gradients_of(attended, inputs, order), way)
    for lengths in LENGTHS:
        inputs = inputs_of(*lengths)
        expected = gradients_of(
            lambda *inputs: attended(*inputs, asks=True), inputs, order
        )
        for one, other in zip(call(*inputs), expected, strict=True):
            scale = max(1.0, float(np.abs(other).max()))
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("way", WAYS)
def test_dropout_is_the_same_in_both_passes(way):
    """The loss is linear in the values, so their gradients give it back."""
    seed = tf.constant([3, 5], tf.uint32)
    drop = RandomDropout(lambda x: dropout(x, 0.4, seed), 0.4, lambda: seed)

    def function(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs[2])
            loss = tf.reduce_sum(attended(*inputs, dropout=drop))
        return loss, tape.gradient(loss, inputs[2])

    call = traced(function, way)
    for lengths in LENGTHS:
        inputs = inputs_of(*lengths)
        loss, gradient = call(*inputs)
        np.testing.assert_allclose(np.sum(gradient * inputs[2]), loss, rtol=1e-4)
        assert abs(float(loss) - float(np.sum(attended(*inputs, asks=True)))) > 0.1


def test_no_tensor_has_a_score_for_every_pair(monkeypatch):
    shapes = []
    product = ops.matmul

    def spy(*inputs):
        result = product(*inputs)
        tf.numpy_function(
            lambda shape: shapes.append(tuple(shape)), [tf.shape(result)], []
        )
        return result

    monkeypatch.setattr(ops, "matmul", spy)
    inputs = inputs_of(5 * C, 5 * C)
    function = traced(lambda *inputs: gradients_of(attended, inputs), "graph")
    function(*inputs)
    # Pairs up to the diagonal: two products forward, five backward. Of groups of two
    # heads the queries are side by side.
    assert len(shapes) == 15 * 7
    assert max(max(shape[2:]) for shape in shapes) <= 2 * C
    shapes.clear()
    function(*inputs_of(5, 7))
    assert len(shapes) == 2 and (B, G, 10, 7) in shapes


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables.*segment")
@pytest.mark.parametrize("kind", [MultiHeadAttention, RelativeMultiHeadAttention])
def test_a_model_attends_in_parts_after_its_second_length(kind, monkeypatch):
    """Keras traces anew for a second length, and not for a third."""
    parts = []

    def spied(attend):
        def spy(*inputs, **options):
            parts.append(inputs[0])
            return attend(*inputs, **options)

        return spy

    monkeypatch.setattr(lean, "_CHUNKED_PAIRS", 15**2)
    monkeypatch.setattr(lean, "blocked_attention", spied(lean.blocked_attention))
    monkeypatch.setattr(relative, "attend_in_chunks", spied(relative.attend_in_chunks))
    inputs = keras.Input((None, 12))
    layer = kind(3, 4, dropout=0.1)
    model = keras.Model(inputs, layer(inputs))
    assert not parts  # Only shapes are computed.
    for length in (5, 7, 19, 9, 23):
        rows = normal(2, length, 12, seed=length)
        expected, _ = layer(rows, return_attention_scores=True)
        found = model.predict(rows, verbose=0)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert len(parts) == 1
    model.compile("sgd", "mse")
    for length in (5, 7, 19):
        rows = normal(2, length, 12, seed=length)
        assert np.isfinite(model.fit(rows, rows, verbose=0).history["loss"][0])
    assert len(parts) == 2


@pytest.mark.parametrize("lengths", LENGTHS)
def test_an_empty_batch(lengths):
    inputs = inputs_of(*lengths, batch=0)
    assert attended(*inputs).shape == (0, N, lengths[0], V)
    for way in WAYS:
        call = traced(lambda *inputs: gradients_of(attended, inputs), way)
        outputs, *gradients = call(*inputs)
        assert outputs.shape == (0, N, lengths[0], V)
        assert not np.any(gradients[-1])


def test_dropout_has_no_second_order_gradients(monkeypatch):
    monkeypatch.setattr(lean, "_PAIRS", dict.fromkeys(lean._PAIRS, 0))
    seed = tf.constant([3, 5], tf.uint32)
    drop = RandomDropout(lambda x: dropout(x, 0.4, seed), 0.4, lambda: seed)
    with pytest.raises(ValueError, match="Second-order gradients .*: dropout=0.4"):
        gradients_of(lambda *x: attended(*x, dropout=drop), inputs_of(19, 21), 2)
