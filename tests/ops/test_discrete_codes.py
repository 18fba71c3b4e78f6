"""Relaxed codes, their prior, schedules and pixels, against values derived by hand."""

import numpy as np
import pytest
from keras import ops

import keras_attn.ops as attn

V = 7


def numpy(tensor):
    return np.asarray(ops.convert_to_numpy(tensor))


def test_gumbel_softmax():
    rng = np.random.default_rng(0)
    logits, uniform = rng.normal(size=(3, V)), rng.random((3, V))
    noisy = (logits - np.log(-np.log(uniform))) / 0.3
    expected = np.exp(noisy) / np.exp(noisy).sum(-1, keepdims=True)
    got = numpy(attn.gumbel_softmax(logits, uniform, 0.3))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_gumbel_softmax_of_extreme_random_numbers_is_finite():
    uniform = np.array([[0.0, 1.0 - 2**-24, 0.5]], "float32")
    got = numpy(attn.gumbel_softmax(np.zeros((1, 3), "float32"), uniform, 1.0))
    assert np.isfinite(got).all()
    assert got.argmax() == 1


def test_most_probable_codes():
    logits = np.array([[0.0, 2.0, 2.0], [-0.0, -1.0, -5.0]], "float32")
    codes = numpy(attn.most_probable_codes(logits))
    assert codes.tolist() == [1, 0]
    assert codes.dtype == np.int32


def test_divergence_from_uniform():
    logits = np.log([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]])
    expected = [0.5 * np.log(1.5) + 0.5 * np.log(0.75), 0.0]
    got = numpy(attn.divergence_from_uniform(logits))
    np.testing.assert_allclose(got, expected, atol=1e-6)
    # One-hot: log V.
    got = numpy(attn.divergence_from_uniform(np.array([500.0, *[0.0] * (V - 1)])))
    np.testing.assert_allclose(got, np.log(V), rtol=1e-6)


@pytest.mark.parametrize(
    "step, expected",
    [(0, 1.0), (50_000, 0.75 * 15 / 16 + 1 / 16), (75_000, 17 / 32), (150_000, 1 / 16)],
)
def test_the_published_temperature(step, expected):
    got = numpy(attn.cosine_annealing(step, 1.0, 1 / 16, 150_000))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_annealing_ends():
    values = [numpy(attn.cosine_annealing(s, 0.0, 6.6, 5000)) for s in (0, 2500, 9000)]
    np.testing.assert_allclose(values, [0.0, 3.3, 6.6], rtol=1e-5, atol=1e-6)


def test_pixels():
    images = np.array([0.0, 0.25, 1.0], "float32")
    mapped = numpy(attn.map_pixels(images))
    np.testing.assert_allclose(mapped, [0.1, 0.3, 0.9], rtol=1e-6)
    np.testing.assert_allclose(numpy(attn.unmap_pixels(mapped)), images, atol=1e-6)
    assert numpy(attn.unmap_pixels(np.array([0.01, 0.99]))).tolist() == [0.0, 1.0]


def test_tokens_in_order():
    tokens = np.array([[5, 6, 7], [8, 9, 4], [1, 2, 3]], "int32")
    mask = np.array([[1, 1, 1], [0, 1, 1], [1, 0, 1]], bool)
    found, is_real = map(numpy, attn.tokens_in_order(tokens, mask, 4))
    assert is_real.sum(1).tolist() == [3, 2, 2]
    rows = [row[real].tolist() for row, real in zip(found, is_real, strict=True)]
    assert rows == [[5, 6, 7], [9, 4], [1, 3]]
    found, is_real = map(numpy, attn.tokens_in_order(tokens, mask, 2))
    assert found.tolist() == [[5, 6], [9, 4], [1, 3]]
    assert is_real.all()
