import math
from typing import Any

import attention_reference as reference
import keras
import numpy as np
import pytest
from attention_reference import array_of
from keras import ops
from layer_contract import B, D, E, F, S, T, assert_close, gradients, normal, randomize

from keras_attn.layers import AdditiveAttention, DotProductAttention, ScoredAttention
from keras_attn.layers.attention.dot_product_attention import SCORES


def score_of(layer):
    """The paper's score of two vectors, with the weights of a built layer."""
    weights = reference.weights_of(layer)
    if isinstance(layer, AdditiveAttention):
        w, u = weights["query/kernel"], weights["key/kernel"]
        v, b = weights["score_vector"][:, 0], weights.get("key/bias", 0.0)
        return lambda q, k: v @ np.tanh(q @ w + k @ u + b)
    kernel: Any = weights.get("projection/kernel")
    return {
        "dot": lambda q, k: q @ k,
        "scaled_dot": lambda q, k: q @ k / math.sqrt(len(q)),
        "general": lambda q, k: q @ kernel @ k,
        "linear": lambda q, k: np.concatenate([q, k]) @ kernel[:, 0],
    }[layer.score]


def make(name):
    if name in SCORES:
        return DotProductAttention(name)
    return AdditiveAttention(7, use_bias=name == "additive_biased")


every_score = pytest.mark.parametrize("name", ["additive", "additive_biased", *SCORES])


@every_score
def test_computes_the_papers_equations(name):
    layer = make(name)
    width = D if name in ("dot", "scaled_dot") else F
    query, value = normal(B, T, D), normal(B, S, E, seed=1)
    key = normal(B, S, width, seed=2)
    padding = np.arange(S) < np.array([[S], [3]])
    mask = np.random.default_rng(3).random((B, T, S)) < 0.7
    mask[0, 1] = False
    layer(query, value, key)
    randomize(layer)
    score = score_of(layer)
    assert_close(
        layer(query, value, key, return_attention_scores=True),
        reference.attend(score, query, key, value),
    )
    both = padding[:, None] & mask
    context, weights = layer(
        query,
        value,
        key,
        padding_mask=padding,
        attention_mask=mask,
        return_attention_scores=True,
    )
    assert_close(
        (context, weights), reference.attend(score, query, key, value, mask=both)
    )
    # A query whose keys are all masked.
    assert not ops.convert_to_numpy(context)[0, 1].any()
    assert not ops.convert_to_numpy(weights)[0, 1].any()
    # Without a key, scores are computed from the values.
    if width != D:
        layer = make(name)
        layer(query, value)
        randomize(layer)
        expected = reference.attend(score_of(layer), query, value, value)[0]
        assert_close(layer(query, value), expected)


@every_score
def test_a_projected_key_gives_the_same_outputs(name):
    layer = make(name)
    query, value, key = normal(B, T, D), normal(B, S, E, seed=1), normal(B, S, D)
    expected = layer(query, value, key, return_attention_scores=True)
    projected = layer.project_key(ops.convert_to_tensor(key))
    found = layer(query, value, projected_key=projected, return_attention_scores=True)
    assert_close(found, expected, atol=1e-6)
    assert layer.projects_key == (name not in ("dot", "scaled_dot"))
    if not layer.projects_key:
        assert_close(projected, key, atol=0)
    # One query at a time, as in decoding.
    one = layer.attend(ops.convert_to_tensor(query[:, 2:3]), value, projected)
    assert_close(one, [output[:, 2:3] for output in expected], atol=1e-6)


def test_dot_product_by_hand():
    ln3 = math.log(3)
    query = np.array([[[1.0, 0.0]]], "float32")
    value = np.array([[[ln3, 4.0], [0.0, 8.0]]], "float32")
    context, weights = DotProductAttention("dot")(
        query, value, return_attention_scores=True
    )
    assert_close(weights, np.array([[[0.75, 0.25]]]), atol=1e-6)
    assert_close(context, np.array([[[0.75 * ln3, 5.0]]]), atol=1e-6)


def test_additive_by_hand():
    layer = AdditiveAttention(1)
    query, value = np.array([[[1.0]]]), np.array([[[2.0], [-1.0]]])
    layer(query, value)
    # v, W and U.
    layer.set_weights([np.array([[2.0]]), np.array([[0.5]]), np.array([[1.0]])])
    scores = 2 * np.tanh([2.5, -0.5])  # v tanh(W q + U k)
    first = 1 / (1 + math.exp(scores[1] - scores[0]))
    found = layer(query, value, return_attention_scores=True)
    expected = np.array([[[2 * first - (1 - first)]]]), np.array([[[first, 1 - first]]])
    assert_close(found, expected)


def test_linear_scores_do_not_depend_on_the_query():
    layer = DotProductAttention("linear")
    _, weights = layer(
        normal(B, T, D), normal(B, S, E, seed=1), return_attention_scores=True
    )
    weights = ops.convert_to_numpy(weights)
    np.testing.assert_allclose(weights, weights[:, :1] + 0 * weights, atol=1e-6)
    assert weights.std(axis=-1).min() > 1e-3


def test_scaling_keeps_the_softmax_of_wide_vectors_from_saturating():
    query, value = normal(1, 50, 1024), normal(1, 50, 1024, seed=1)

    def largest(score):
        layer = DotProductAttention(score)
        _, weights = layer(query, value, return_attention_scores=True)
        return ops.convert_to_numpy(weights).max(axis=-1).mean()

    assert largest("dot") > 0.9
    assert largest("scaled_dot") < 0.3


def test_kernels_are_initialized_independently_within_glorots_bound():
    layer = AdditiveAttention(101)
    layer.build((None, None, 97), (None, None, 97))
    query, key = array_of(layer.query.kernel), array_of(layer.key.kernel)
    assert np.abs(query - key).max() > 0.1
    bound = math.sqrt(6 / (97 + 101))
    for kernel in (query, key):
        assert 0.97 * bound < np.abs(kernel).max() <= bound


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("score", ["dot", "additive"])
def test_agrees_with_keras(score, masked):
    query, value = normal(B, T, D), normal(B, S, D, seed=1)
    padding = np.arange(S) < np.array([[S], [3]]) if masked else None
    if score == "dot":
        ours, theirs = DotProductAttention("dot"), keras.layers.Attention()
    else:
        # Keras' layer has no projections: ours are identities, and its scale is `v`.
        ours, theirs = AdditiveAttention(D), keras.layers.AdditiveAttention()
    theirs_found = theirs(
        [query, value],
        mask=[None, padding] if masked else None,
        return_attention_scores=True,
    )
    ours(query, value)
    if score == "additive":
        scale = np.random.default_rng(2).normal(size=D)
        theirs.set_weights([scale])
        ours.set_weights([scale[:, None], np.eye(D), np.eye(D)])
        theirs_found = theirs(
            [query, value],
            mask=[None, padding] if masked else None,
            return_attention_scores=True,
        )
    found = ours(query, value, padding_mask=padding, return_attention_scores=True)
    assert_close(found, theirs_found)
    if score == "additive":
        # The gradient of its scale is that of our `v`.
        call = {"return_attention_scores": True}
        (of_scale,) = gradients(
            theirs,
            inputs=[query, value],
            mask=[None, padding] if masked else None,
            **call,
        ).values()
        of_ours = gradients(
            ours, query=query, value=value, padding_mask=padding, **call
        )
        (of_vector,) = [g for path, g in of_ours.items() if "score_vector" in path]
        np.testing.assert_allclose(of_vector[:, 0], of_scale, atol=1e-4)


def test_half_precision_scores_of_ten_thousand():
    for dtype in ("float16", "bfloat16"):
        layer = DotProductAttention("dot", dtype=dtype)
        query = np.full((1, 2, 4), 50.0)
        context, weights = layer(query, query, return_attention_scores=True)
        assert_close(weights, np.full((1, 2, 2), 0.5), atol=0)
        assert_close(context, query, atol=0)
        assert keras.backend.standardize_dtype(weights.dtype) == "float32"


@pytest.mark.parametrize("score", ["dot", "scaled_dot"])
def test_unequal_widths_are_refused(score):
    message = (
        f"`score='{score}'` needs queries and keys of the same width: project one of "
        "them, or use score='general'. Received: query width=11, key width=13"
    )
    with pytest.raises(ValueError, match=message):
        DotProductAttention(score)(normal(B, T, D), normal(B, S, E))
    with pytest.raises(ValueError, match="query width=11, key width=17"):
        DotProductAttention(score)(normal(B, T, D), normal(B, S, D), normal(B, S, F))


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="`units` must be a positive.*units=0"):
        AdditiveAttention(0)
    with pytest.raises(
        ValueError, match="`score` must be one of 'dot', 'scaled_dot', .*score='cosine'"
    ):
        DotProductAttention("cosine")  # pyright: ignore[reportArgumentType]
    base = ScoredAttention()
    with pytest.raises(NotImplementedError):
        base.project_key(None)
    with pytest.raises(NotImplementedError):
        base.scores(None, None)
    assert base.projects_key


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"query": normal(B, D)}, r"`query` must have 3 axes, .*query.shape=\(2, 11\)"),
        ({"value": normal(B, D)}, r"`value` must have 3 axes, .*value.shape=\(2, 11\)"),
        (
            {"padding_mask": np.ones((B, 1, S))},
            r"`padding_mask` must have 2 axes, .*padding_mask.shape=\(2, 1, 7\)",
        ),
        (
            {"padding_mask": np.ones((B, T))},
            r"`padding_mask` must have the shape \(batch, key length\) = \(2, 7\)."
            r" Received: padding_mask.shape=\(2, 5\)",
        ),
        (
            {"attention_mask": np.ones((T, S))},
            r"`attention_mask` must have 3 axes.*shape=\(5, 7\)",
        ),
        (
            {"attention_mask": np.ones((B, S, T))},
            r"`attention_mask` must have the shape \(batch, query length, key length\)"
            r" = \(2, 5, 7\). Received: attention_mask.shape=\(2, 7, 5\)",
        ),
    ],
)
@pytest.mark.parametrize("name", ["additive", "general"])
def test_wrong_shapes_are_refused(name, changed, message):
    call = {"query": normal(B, T, D), "value": normal(B, S, D)}
    layer = make(name)
    layer(**call)
    with pytest.raises(ValueError, match=message):
        layer(**{**call, **changed})
