"""Relative attention in chunks of queries is that of all scores at once."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.kernels import lean_attention as lean
from keras_attn.kernels import query_chunks
from keras_attn.kernels.dropout import RandomDropout, dropout
from keras_attn.layers.attention.relative_attention import RelativeMultiHeadAttention
from keras_attn.ops import relative

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
# Without compilation JAX compiles each operation of a chunk by itself.
WAYS = ("eager", "graph", "xla") if ON_TENSORFLOW else ("xla",)
B, N, H = 2, 3, 5
NAMES = ("query", "key", "value", "position_key", "content_bias", "position_bias")
NAMES += ("segment_bias", "segment_embedding")


@pytest.fixture(autouse=True)
def chunks_of_four(monkeypatch):
    monkeypatch.setattr(query_chunks, "_CHUNK_SIZE", 4)


def inputs_of(queries, keys):
    """The tensors with gradients, by name; the queries are the last of the keys."""
    shapes = [(B, N, queries, H), (B, N, keys, H), (B, N, keys, H)]
    shapes += [(1, N, queries + keys, H), *[(N, H)] * 3, (2, N, H)]
    rng = np.random.default_rng(1)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


def masks_of(queries, keys):
    rng = np.random.default_rng(2)
    mask = rng.random((B, 1, queries, keys)) < 0.6
    mask[1, :, queries // 2] = False  # A query whose keys are all masked.
    return rng.random((B, queries, keys)) < 0.5, mask


def attended(inputs, way, in_chunks, monkeypatch, **options):
    """The outputs, and the gradients of a random combination of them."""
    monkeypatch.setattr(lean, "_CHUNKED_PAIRS", 0 if in_chunks else 10**9)
    above = np.random.default_rng(3).normal(size=inputs[0].shape).astype("float32")

    def function(*inputs):
        tensors = dict(zip(NAMES, inputs, strict=True))
        outputs, weights = relative.relative_attention(
            **tensors, **options, return_weights=not in_chunks
        )
        assert (weights is None) == in_chunks
        return ops.sum(outputs * above), outputs

    if ON_TENSORFLOW:
        import tensorflow as tf

        def call(*inputs) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                loss, outputs = function(*inputs)
            zero = tf.UnconnectedGradients.ZERO
            return [outputs, *tape.gradient(loss, inputs, unconnected_gradients=zero)]

        if way != "eager":
            call = tf.function(call, jit_compile=way == "xla", autograph=False)
        return call(*map(tf.constant, inputs))
    import jax

    numbers = tuple(range(len(inputs)))
    compute: Any = jax.jit(jax.value_and_grad(function, numbers, has_aux=True))
    (_, outputs), gradients = compute(*inputs)
    return [outputs, *gradients]


CASES = [
    (queries, keys, is_masked, way)
    for queries, keys in [(1, 1), (4, 4), (9, 9), (6, 13)]
    for is_masked in (False, True)
    for way in WAYS
]


@pytest.mark.parametrize(
    "queries, keys, is_masked, way",
    [
        case
        if case[:3] == (6, 13, True) or (case[0] == 9 and case[3] == "eager")
        else pytest.param(*case, marks=pytest.mark.variation)
        for case in CASES
    ],
)
def test_chunks_change_nothing(queries, keys, is_masked, way, monkeypatch):
    inputs, options = inputs_of(queries, keys), {}
    if is_masked:
        segments, mask = masks_of(queries, keys)
        options = {"same_segment": segments, "mask": mask}
    expected = attended(inputs, WAYS[0], False, monkeypatch, **options)
    found = attended(inputs, way, True, monkeypatch, **options)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_a_mask_of_keys_is_one_for_all_queries(monkeypatch):
    inputs = inputs_of(9, 9)
    mask = np.arange(9)[None, None, None] < np.array([9, 4])[:, None, None, None]
    expected = attended(inputs, WAYS[0], False, monkeypatch, mask=mask)
    found = attended(inputs, WAYS[-1], True, monkeypatch, mask=mask)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_dropout_is_the_same_in_both_passes(monkeypatch):
    """The loss is linear in the values, so their gradients give it back."""
    seed = ops.convert_to_tensor([1, 2], "uint32")
    given = RandomDropout(lambda x: dropout(x, 0.5, seed), 0.5, lambda: seed)
    inputs = inputs_of(40, 40)
    outputs, _, _, of_values, *_ = attended(
        inputs, WAYS[-1], True, monkeypatch, dropout=given
    )
    above = np.random.default_rng(3).normal(size=inputs[0].shape)
    loss = np.sum(np.asarray(outputs) * above)
    np.testing.assert_allclose(np.sum(np.asarray(of_values) * inputs[2]), loss, 1e-4)
    plain = attended(inputs, WAYS[-1], True, monkeypatch)[0]
    assert np.max(np.abs(np.asarray(outputs) - np.asarray(plain))) > 0.1
    # Other units in each chunk: equal queries get unlike outputs.
    alike = [np.broadcast_to(inputs[0][:, :, :1], inputs[0].shape), *inputs[1:]]
    alike[3] = np.zeros_like(inputs[3])
    rows = np.asarray(attended(alike, WAYS[-1], True, monkeypatch, dropout=given)[0])
    assert not np.allclose(rows[:, :, :4], rows[:, :, 4:8])


def test_the_layer_attends_in_chunks_unless_asked_for_scores(monkeypatch):
    layer = RelativeMultiHeadAttention(2, 4, seed=0)
    inputs = np.random.default_rng(0).normal(size=(2, 9, 6)).astype("float32")
    calls = []
    original = relative.attend_in_chunks

    def counted(*args, **kwargs):
        calls.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(relative, "attend_in_chunks", counted)
    monkeypatch.setattr(lean, "_CHUNKED_PAIRS", 0)
    expected, _ = layer(inputs, return_attention_scores=True)
    assert not calls
    np.testing.assert_allclose(layer(inputs), expected, atol=1e-6)
    assert len(calls) == 1
    with lean.whole_scores():
        layer(inputs)
    assert len(calls) == 1


@pytest.mark.skipif(not ON_TENSORFLOW, reason="reads TensorFlow's graph")
def test_no_tensor_has_a_score_for_every_pair(monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(lean, "_CHUNKED_PAIRS", 0)
    monkeypatch.setattr(query_chunks, "_CHUNK_SIZE", 8)
    length = 64

    def gradients(*inputs) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            tensors = dict(zip(NAMES, inputs, strict=True))
            outputs, _ = relative.relative_attention(**tensors, return_weights=False)
        zero = tf.UnconnectedGradients.ZERO
        return tape.gradient(outputs, inputs, unconnected_gradients=zero)

    traced: Any = tf.function(gradients, autograph=False)
    inputs = map(tf.constant, inputs_of(length, length))
    graph = traced.get_concrete_function(*inputs).graph
    graphs = [graph]
    for each in graphs:  # Grows.
        graphs += [
            each._get_function(name).graph
            for name in each._functions
            if each._get_function(name).graph not in graphs
        ]
    shapes = {
        tuple(x.shape)
        for each in graphs
        for operation in each.get_operations()
        for x in operation.outputs
        if x.shape.rank
    }
    assert (B, N, 8, length) in shapes
    assert not any(shape.count(length) > 1 for shape in shapes)
