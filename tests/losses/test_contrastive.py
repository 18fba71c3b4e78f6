"""The losses of CLIP and SigLIP in chunks: values, gradients, memory, accuracies."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops
from model_cases import numpy

from keras_attn.losses import clip_loss, siglip_loss
from keras_attn.metrics import retrieval_hits

BACKEND = keras.backend.backend()
PAIRS, WIDTH = 13, 5
SCALARS = {clip_loss: (14.0,), siglip_loss: (10.0, -3.0)}
every_loss = pytest.mark.parametrize("loss", SCALARS)


def embeddings(pairs=PAIRS, seed=0):
    """Images and texts of length 1."""
    both = np.random.default_rng(seed).normal(size=(2, pairs, WIDTH))
    return (both / np.linalg.norm(both, axis=-1, keepdims=True)).astype("float32")


def expected(loss, x, y, scale, bias=0.0):
    """The loss and the gradients of x, y, the scale and the bias, in float64."""
    x, y = x.astype("float64"), y.astype("float64")
    similarities, own = x @ y.T, np.eye(len(x))
    logits = scale * similarities + bias
    if loss is clip_loss:
        rows = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        columns = np.exp(logits) / np.exp(logits).sum(0)
        value = -np.mean(np.log(np.diag(rows) * np.diag(columns))) / 2
        slopes = ((rows + columns) / 2 - own) / len(x)
    else:
        signs = 2 * own - 1
        value = np.log1p(np.exp(-signs * logits)).sum() / len(x)
        slopes = -signs / (1 + np.exp(signs * logits)) / len(x)
    scalars = (slopes * similarities).sum(), slopes.sum()
    gradients = scale * slopes @ y, scale * slopes.T @ x, *scalars
    return value, gradients[: 2 + len(SCALARS[loss])]


def with_gradients(function, *inputs) -> Any:
    """The value of a function and its gradients, on JAX compiled."""
    if BACKEND == "jax":
        import jax

        arguments = tuple(range(len(inputs)))
        return jax.jit(jax.value_and_grad(function, argnums=arguments))(*inputs)
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = function(*inputs)
    return value, tape.gradient(value, inputs)


def check(found, loss, x, y):
    """The value and the gradients of a loss, with the scalars of `SCALARS`."""
    value, gradients = expected(loss, x, y, *SCALARS[loss])
    np.testing.assert_allclose(numpy(found[0]), value, rtol=1e-6)
    for got, gradient in zip(found[1], gradients, strict=True):
        largest = np.abs(gradient).max()
        np.testing.assert_allclose(numpy(got), gradient, rtol=0, atol=1e-6 * largest)


@every_loss
# All rows at once, a whole number of chunks or not, and a row at a time.
@pytest.mark.parametrize("chunk_size", [None, 13, 5, 1])
def test_chunks_have_the_loss_and_the_gradients_of_the_matrix(loss, chunk_size):
    x, y = embeddings()
    inputs = [ops.convert_to_tensor(part) for part in (x, y, *SCALARS[loss])]
    found = with_gradients(
        lambda *parts: 3 * loss(*parts, chunk_size=chunk_size), *inputs
    )
    check([found[0] / 3, [gradient / 3 for gradient in found[1]]], loss, x, y)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="traces a `tf.function`")
@every_loss
@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_number_of_pairs_may_be_unknown(loss, jit_compile):
    import tensorflow as tf

    shapes = [(None, WIDTH)] * 2 + [()] * len(SCALARS[loss])
    step = tf.function(
        lambda *parts: with_gradients(lambda *p: loss(*p, chunk_size=4), *parts),
        input_signature=[tf.TensorSpec(shape) for shape in shapes],
        jit_compile=jit_compile,
        autograph=False,
    )
    for pairs in (PAIRS, 3):
        x, y = embeddings(pairs)
        check(step(x, y, *SCALARS[loss]), loss, x, y)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="reads a TensorFlow graph")
@every_loss
def test_no_tensor_has_a_row_and_a_column_for_each_pair(loss):
    import tensorflow as tf

    size = 4
    shapes = [(PAIRS, WIDTH)] * 2 + [()] * len(SCALARS[loss])
    graph = (
        tf.function(
            lambda *parts: (
                with_gradients(lambda *p: loss(*p, chunk_size=size), *parts),
                retrieval_hits(*parts[:2], chunk_size=size),
            ),
            autograph=False,
        )
        .get_concrete_function(*(tf.TensorSpec(shape) for shape in shapes))
        .graph
    )
    functions = [graph, *(f.graph for f in graph._functions.values())]
    tensors = [
        tensor
        for function in functions
        for operation in function.get_operations()
        for tensor in operation.outputs
    ]
    numbers = {tuple(t.shape) for t in tensors if t.shape.rank is not None}
    assert (size, PAIRS) in numbers and (PAIRS, PAIRS) not in numbers


def test_an_almost_certain_pair_has_a_loss_of_its_own_size():
    # Logits of 100 have digits of 1e-5, and the loss is 1e-5.
    x = np.eye(PAIRS, dtype="float32")
    y = np.where(x > 0, 1.0, 0.86).astype("float32")
    value = numpy(clip_loss(x, y, 100.0, chunk_size=5))
    logits = 100 * x.astype("float64") @ y.astype("float64").T
    value_of_row = np.log1p((PAIRS - 1) * np.exp(logits[0, 1] - logits[0, 0]))
    np.testing.assert_allclose(value, value_of_row, rtol=1e-2)


def test_half_precision_is_computed_in_float32():
    x, y = (ops.cast(part, "bfloat16") for part in embeddings())
    rounded = [numpy(ops.cast(part, "float32")) for part in (x, y)]
    for loss, scalars in SCALARS.items():
        found = loss(x, y, *scalars)
        assert keras.backend.standardize_dtype(found.dtype) == "float32"
        np.testing.assert_allclose(
            numpy(found), expected(loss, *rounded, *scalars)[0], rtol=1e-6
        )


@pytest.mark.parametrize("chunk_size", [64, 5, 1])
def test_a_pair_is_found_if_it_is_most_similar(chunk_size):
    x, y = embeddings()
    y[::2] = x[::2]  # These are found.
    similarities, own = x @ y.T, np.arange(PAIRS)
    for found, axis in zip(
        retrieval_hits(x, y, chunk_size=chunk_size), (1, 0), strict=True
    ):
        hits = similarities.argmax(axis) == own
        assert 0 < hits.sum() < PAIRS
        np.testing.assert_array_equal(numpy(found), hits)


@pytest.mark.parametrize("chunk_size", [64, 2])
def test_of_equal_pairs_the_first_is_found(chunk_size):
    same = np.eye(WIDTH, dtype="float32")[[0, 1, 0, 1, 0]]
    for found in retrieval_hits(same, same, chunk_size=chunk_size):
        assert numpy(found).tolist() == [True, True, False, False, False]


def test_wrong_arguments_are_named():
    x, y = embeddings()
    for loss, scalars in {**SCALARS, retrieval_hits: ()}.items():
        with pytest.raises(ValueError, match="`chunk_size` must be a positive integer"):
            loss(x, y, *scalars, chunk_size=0)
        with pytest.raises(ValueError, match=r"`image_embeddings` .* \(pairs, width\)"):
            loss(x[0], y, *scalars)
        with pytest.raises(ValueError, match="`text_embeddings` must have 2 axes"):
            loss(x, y[0], *scalars)
        with pytest.raises(ValueError, match=r"the same shape.*text_.*=\(12, 5"):
            loss(x, y[1:], *scalars)
