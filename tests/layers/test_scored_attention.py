import attention_reference as reference
import numpy as np
import pytest
from keras import ops
from layer_contract import B, D, E, F, S, T, assert_close, normal, randomize

from keras_attn.layers import AdditiveAttention, DotProductAttention, ScoredAttention
from keras_attn.layers.attention.dot_product_attention import SCORES


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
    score = reference.score_of(layer)
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
        expected = reference.attend(reference.score_of(layer), query, value, value)[0]
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


def test_the_base_has_no_scores():
    base = ScoredAttention()
    with pytest.raises(NotImplementedError):
        base.project_key(None)
    with pytest.raises(NotImplementedError):
        base.scores(None, None)
    assert base.projects_key
