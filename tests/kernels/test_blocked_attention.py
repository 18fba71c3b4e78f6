"""Attention in blocks is the attention of all scores at once, and holds few of them."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.kernels import blocked_attention as blocks
from keras_attn.kernels import lean_attention as lean
from keras_attn.kernels.dropout import dropout, fold_in
from keras_attn.layers import MultiHeadAttention
from keras_attn.layers.recorder import record_attention_scores
from keras_attn.ops import scaled_dot_product_attention

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
B, N, H, V, C = 2, 6, 5, 7, 8
# Without compilation JAX compiles each operation of a block by itself.
WAYS = ("eager", "graph", "xla") if ON_TENSORFLOW else ("xla",)
# Lengths of queries and keys around the size of a block, and of several blocks.
LENGTHS = [(1, 1), (1, 19), (7, 8), (8, 7), (8, 8), (9, 17), (24, 24), (25, 23)]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def inputs_of(queries, keys, groups=N, dtype="float32"):
    shapes = (B, N, queries, H), (B, groups, keys, H), (B, groups, keys, V)
    arrays = [normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    return [ops.cast(array, dtype) for array in arrays]


def outputs_and_gradients(function, inputs, way=WAYS[0]):
    """The outputs, and the gradients of a random combination of them."""
    above = normal(*inputs[0].shape[:3], V, seed=9)

    def loss_of(outputs):
        return ops.sum(ops.cast(outputs, "float32") * above)

    if ON_TENSORFLOW:
        import tensorflow as tf

        def call(*inputs) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = function(*inputs)
                loss = loss_of(outputs)
            return [outputs, *tape.gradient(loss, inputs)]

        if way != "eager":
            call = tf.function(call, jit_compile=way == "xla", autograph=False)
        found = call(*inputs)
    else:
        import jax

        def loss_and_outputs(inputs):
            outputs = function(*inputs)
            return loss_of(outputs), outputs

        compute: Any = jax.value_and_grad(loss_and_outputs, has_aux=True)
        (_, outputs), gradients = (jax.jit(compute) if way == "xla" else compute)(
            inputs
        )
        found = [outputs, *gradients]
    return [ops.convert_to_numpy(ops.cast(x, "float32")) for x in found]


def check(inputs, way=WAYS[0], atol=1e-5, block_size: int | None = C, **options):
    """Compares both forms; with a bias as the fourth input."""

    def in_blocks(query, key, value, bias=None):
        given = options if bias is None else {**options, "bias": bias}
        return blocks.blocked_attention(
            query, key, value, scale=0.37, block_size=block_size, **given
        )

    def at_once(query, key, value, bias=None):
        return scaled_dot_product_attention(
            query, key, value, scale=0.37, bias=bias, **options
        )[0]

    expected = outputs_and_gradients(at_once, inputs)
    found = outputs_and_gradients(in_blocks, inputs, way)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)
    return found


@pytest.mark.parametrize("queries, keys", LENGTHS)
def test_any_length(queries, keys):
    for is_causal in (False, True):
        check(inputs_of(queries, keys), is_causal=is_causal)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    "length", [1500, pytest.param(8192, marks=pytest.mark.variation)]
)
def test_a_long_sequence(length, is_causal):
    """In blocks of the size that users get."""
    tensors = [tensor[:1, :1] for tensor in inputs_of(length, length)]
    check(tensors, WAYS[-1], block_size=None, is_causal=is_causal)


@pytest.mark.parametrize("queries, keys", [(5, 33), (33, 5), (33, 41)])
def test_blocks_are_no_larger_than_needed(queries, keys, monkeypatch):
    for name in ("_BLOCK_SIZE", "_COMPILED_BLOCK_SIZE"):
        monkeypatch.setattr(blocks, name, 16)
    # Of 33 and 41 in three blocks; 5 in one of eight.
    assert [blocks._block_size(x, 16) for x in (5, 33, 41)] == [8, 16, 16]
    assert [blocks._block_size(x, 256) for x in (577, 1024, 257)] == [200, 256, 136]
    check(inputs_of(queries, keys, 2), block_size=None, is_causal=True)


@pytest.mark.each_value
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("groups", [N, 2, 1])
def test_masks_and_groups_in_every_way(groups, way):
    queries, keys = 19, 21
    padding = np.random.default_rng(1).random((B, keys)) > 0.3
    padding[0] = False  # No query of this row attends to any key.
    mask = np.random.default_rng(2).random((B, 1, queries, keys)) > 0.2
    options = {"padding_mask": padding, "mask": mask, "is_causal": True}
    outputs, *gradients = check(inputs_of(queries, keys, groups), way, **options)
    assert not outputs[0].any()
    assert not any(gradient[0].any() for gradient in gradients)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "shape", [(B, N, 19, 21), (1, N, 19, 21), (1, 1, 19, 1), (B, N, 1, 21)]
)
@pytest.mark.compiled
def test_the_gradient_of_a_bias(shape, way):
    inputs = [*inputs_of(19, 21, 3), ops.convert_to_tensor(normal(*shape, seed=5))]
    check(inputs, way, is_causal=True)


@pytest.mark.parametrize("shape", [(1, 1, C, 1), (1, N, 1, 1)])
def test_a_bias_of_each_query_is_not_one_of_the_keys(shape):
    """`keras.ops.add` confuses them where there are as many of both."""
    inputs = inputs_of(C, C if shape[1] == 1 else N)
    bias = normal(*shape, seed=5)
    expected = outputs_and_gradients(
        lambda *inputs: scaled_dot_product_attention(*inputs, scale=0.37)[0], inputs
    )
    found = check([*inputs, ops.convert_to_tensor(bias)])
    for one, other in zip(found, expected, strict=False):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_half_precision():
    inputs = inputs_of(19, 21, 3, "bfloat16")
    check(inputs, atol=0.06, is_causal=True)
    assert blocks.blocked_attention(*inputs, scale=1.0).dtype == inputs[0].dtype


def test_scores_of_any_size_do_not_overflow():
    query, key, value = inputs_of(19, 21)
    # Scores of some hundreds have roundings of 1e-5 each, and exponentials above 1e38.
    found = check([query * 300, key, value], atol=1e-2)
    assert all(np.isfinite(each).all() for each in found)


@pytest.mark.parametrize("way", WAYS)
def test_dropout_drops_the_same_in_both_passes(way):
    """Of the whole scores the same probabilities are dropped as of the blocks."""
    rate, seed, length = 0.3, ops.convert_to_tensor([5, 11], "uint32"), 2 * C

    def kept(weights):
        def of(i, j):
            ones = ops.ones((B, N, C, C))
            return dropout(ones, rate, fold_in(seed, 2 * i + j))

        rows = [ops.concatenate([of(i, 0), of(i, 1)], -1) for i in (0, 1)]
        factors = ops.concatenate(rows, 2)
        share = float(ops.mean(ops.cast(ops.equal(factors, 0), "float32")))
        assert share == pytest.approx(rate, abs=0.05)
        return ops.multiply(weights, factors)

    def in_blocks(*inputs):
        options = {"rate": rate, "seed": seed, "block_size": C}
        return blocks.blocked_attention(*inputs, scale=0.37, **options)

    def at_once(*inputs):
        return scaled_dot_product_attention(*inputs, scale=0.37, dropout=kept)[0]

    inputs = inputs_of(length, length)
    if ON_TENSORFLOW:
        expected = outputs_and_gradients(at_once, inputs)
    else:  # Under JAX' gradient `kept` has no numbers.
        expected = [at_once(*inputs)]
    found = outputs_and_gradients(in_blocks, inputs, way)
    for one, other in zip(found, expected, strict=False):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_seeds_of_blocks_and_of_calls_differ():
    """A generator of Keras counts its calls in the second integer."""
    seeds = [
        ops.convert_to_tensor([first, call], "uint32")
        for first in (3, 4)
        for call in (0, 1)
    ]
    found = {
        tuple(map(int, ops.convert_to_numpy(fold_in(seed, index))))
        for seed in seeds
        for index in range(50)
    }
    assert len(found) == 200


def test_no_tensor_has_a_score_for_every_pair(monkeypatch):
    shapes = []
    product = ops.matmul

    def spy(*inputs):
        result = product(*inputs)
        shapes.append(tuple(result.shape))
        return result

    def attend(*inputs):
        options = {"scale": 1.0, "is_causal": True, "block_size": C}
        return blocks.blocked_attention(*inputs, **options)

    monkeypatch.setattr(ops, "matmul", spy)
    outputs_and_gradients(attend, inputs_of(5 * C, 5 * C))
    assert shapes and max(max(shape[2:]) for shape in shapes) == C
    if ON_TENSORFLOW:  # On JAX a loop is traced once.
        # Pairs up to the diagonal: two products forward, five backward.
        assert len(shapes) == 15 * 7


@pytest.fixture
def short(monkeypatch):
    """Blocks are used from 17 tokens on, and counted."""
    calls = []
    attend = blocks.blocked_attention

    def spy(*inputs, **options):
        calls.append(options)
        return attend(*inputs, block_size=C, **options)

    monkeypatch.setattr(lean, "_PAIRS", dict.fromkeys(lean._PAIRS, 17**2))
    monkeypatch.setattr(lean, "blocked_attention", spy)
    return calls


def test_a_layer_uses_blocks_if_scores_are_not_requested(short):
    layer, inputs = MultiHeadAttention(3, 4, dropout=0.2), normal(B, 17, 12)
    output = layer(inputs, use_causal_mask=True)
    assert short.pop()["is_causal"]
    layer(inputs, training=True)
    assert short.pop()["rate"] == 0.2
    with record_attention_scores() as scores:
        recorded = layer(inputs, use_causal_mask=True)
    asked, same = layer(inputs, use_causal_mask=True, return_attention_scores=True)
    layer(inputs[:, :16])
    layer(inputs, cache=(normal(B, 3, 2, 4), normal(B, 3, 2, 4)))
    with lean.whole_scores():
        layer(inputs)
    assert not short
    for other in (recorded, asked):
        np.testing.assert_allclose(output, other, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(scores[layer.path], same)


def test_masks_of_keras_reach_the_blocks(short):
    layer, inputs = MultiHeadAttention(3, 4), normal(B, 17, 12)
    mask = np.arange(17) < [[9], [17]]
    attention_mask = np.random.default_rng(0).random((17, 17)) > 0.2
    options = {"mask": mask, "attention_mask": attention_mask}
    found = layer(inputs, **options)
    assert short.pop()["padding_mask"] is not None
    expected, _ = layer(inputs, return_attention_scores=True, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.compiled
@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_fit_in_blocks_is_the_same(short, jit_compile):
    def fit(asks):
        inputs = keras.Input((17, 12))
        layer = MultiHeadAttention(3, 4, seed=1)
        outputs = layer(inputs, return_attention_scores=asks)
        model = keras.Model(inputs, outputs[0] if asks else outputs)
        for index, weight in enumerate(model.weights):
            weight.assign(normal(*weight.shape, seed=index))
        model.compile("sgd", "mse", jit_compile=jit_compile)
        rows = normal(5, 17, 12), normal(5, 17, 12, seed=1)
        # The last batch is smaller.
        history = model.fit(*rows, batch_size=2, epochs=2, shuffle=False, verbose=0)
        return history.history["loss"], model.get_weights()

    (losses, weights), (expected, same) = fit(False), fit(True)
    assert short
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for one, other in zip(weights, same, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.skipif(not ON_TENSORFLOW, reason="exporters need TensorFlow")
@pytest.mark.shipped
def test_files_keep_the_plain_form(short, tmp_path):
    from keras_attn.export import export

    inputs = keras.Input((17, 12), name="inputs")
    model = keras.Model(inputs, MultiHeadAttention(3, 4)(inputs))
    model(normal(B, 17, 12))
    assert short
    for name in ("model.tflite", "model.onnx"):
        report = export(model, tmp_path / name, batch_size=B)
        assert not any("while" in x.lower() or x == "Loop" for x in report.operators)
