"""The steps of every attention layer lead to what the layer returns."""

import inspect
from typing import Any

import keras
import layer_cases
import numpy as np
import pytest
from attention_reference import softmax
from layer_contract import HEADS, KEY_DIM, D, E, S, T, built, built_on, flat, normal
from layer_contract import tensors as tensors_of
from viz.figures import panels, tick_labels

from keras_attn import layers
from keras_attn.viz import AttentionSteps, attention_steps, plot_attention_layer
from keras_attn.viz.layer_steps import explain_call, explain_orders
from keras_attn.viz.layer_steps.captured import capture_calls
from keras_attn.viz.layer_steps.kinds import KINDS

CASES = [
    pytest.param(case, id=f"{name}-{variant}")
    for name, cases in layer_cases.CASES.items()
    if issubclass(getattr(layers, name), tuple(KINDS))
    for variant, case in cases.items()
    if "cache" not in case.inputs
]
# The other layers that attend.
BLOCKS = [
    name
    for name, cases in layer_cases.CASES.items()
    if not issubclass(getattr(layers, name), tuple(KINDS))
    and "return_attention_scores"
    in inspect.signature(getattr(layers, name).call).parameters
]
X, Z = normal(T, D), normal(S, E, seed=1)


def first_of(case):
    """The arguments of a call of a case, of its first example."""
    rows = {x: np.asarray(tensor)[:1] for x, tensor in tensors_of(case).items()}
    return {**rows, **case.static}


def values_of(axes):
    """The masked array that axes show."""
    return np.ma.asarray(axes.images[0].get_array())


def softmax_of(steps):
    hidden = np.where(steps.mask, steps.scores, -np.inf)
    return np.apply_along_axis(softmax, -1, hidden)


@pytest.fixture(scope="module")
def attention():
    return built_on(layers.MultiHeadAttention(HEADS, KEY_DIM), X[None])


def test_every_attention_layer_has_a_case():
    shown = {type(case.values[0].make()) for case in CASES}
    assert {parent for each in shown for parent in each.__mro__} >= set(KINDS)


@pytest.mark.parametrize("case", CASES)
def test_steps_lead_to_what_the_layer_returns(case):
    layer = built(case)
    call = first_of(case)
    steps = explain_call(layer, call)
    output = flat(layer(**call))[0].reshape(steps.output.shape)
    np.testing.assert_allclose(steps.output, output, atol=1e-6, rtol=1e-6)
    scale = max(1, np.abs(steps.scores).max())
    np.testing.assert_allclose(steps.weights, softmax_of(steps), atol=1e-6 * scale)
    np.testing.assert_allclose(steps.weights @ steps.values, steps.mixed, atol=1e-5)
    heads, queries, keys = steps.scores.shape
    assert steps.queries.shape[0] == steps.keys.shape[0] == heads == len(steps.heads)
    assert steps.keys.shape[1] == steps.values.shape[1] == keys
    assert steps.mixed.shape == (heads, queries, steps.values.shape[2])
    for pair in [(0, 0, 0), (heads - 1, queries - 1, keys // 2)]:
        details = steps.details(*pair)
        numbers = [number for _, number in details]
        assert sum(numbers) == pytest.approx(steps.scores[pair], abs=1e-9)
        for name, values in steps.terms.items():
            own = [number for term, number in details if term.startswith(name)]
            assert sum(own) == pytest.approx(values[pair], abs=1e-9)
    assert [panel.name for panel in steps.panels()][-1] == "Y"


@pytest.mark.parametrize("name", BLOCKS)
def test_a_layer_with_attention_inside_names_it(name):
    layer = built(next(iter(layer_cases.CASES[name].values())))
    inside = ".* inside it: .*attention.* of type "
    with pytest.raises(
        ValueError, match=f"`layer` must be an attention.*{inside}{name}"
    ):
        attention_steps(layer, X)


def test_details_are_products_of_coordinates(attention):
    steps = attention_steps(attention, X)
    assert isinstance(steps, AttentionSteps)
    expected = steps.queries[2, 1] * steps.keys[2, 3] / np.sqrt(KEY_DIM)
    names, numbers = zip(*steps.details(2, 1, 3), strict=True)
    np.testing.assert_allclose(numbers, expected)
    assert names[0] == "q · k / √H [0]" and len(names) == KEY_DIM
    panels = {panel.name: panel for panel in steps.panels()}
    assert panels["E"].meaning == f"q · k / √H, H = {KEY_DIM}"
    chosen = steps.of_heads([2])
    assert chosen.details(0, 1, 3) == steps.details(2, 1, 3)
    np.testing.assert_array_equal(chosen.scores, steps.scores[2:])
    for place, name in [((3, 0, 0), "head"), ((0, -1, 0), "query"), ((0, 0, 5), "key")]:
        with pytest.raises(ValueError, match=f"`{name}` must be from 0 to "):
            steps.details(*place)


def test_masks_are_combined(attention):
    padding = [True, True, True, True, False]
    pairs = np.ones((HEADS, T, T), bool)
    pairs[1, :, 0] = False
    steps = attention_steps(attention, X, mask=("causal", padding, pairs))
    expected = np.tri(T, dtype=bool) & padding & pairs
    np.testing.assert_array_equal(steps.mask, expected)
    np.testing.assert_array_equal(steps.weights[~expected], 0)
    # No key is left: zeros, as in the layer.
    np.testing.assert_array_equal(steps.weights[1, 0], 0)


def test_another_result_of_the_layer_is_an_error():
    class Doubled(layers.MultiHeadAttention):
        def call(self, query, value=None, key=None, *others, **options):
            return 2 * super().call(query, value, key, *others, **options)

    class Hot(layers.DotProductAttention):
        def attend(self, query, value, projected_key, mask=None):
            return super().attend(2 * query, value, projected_key, mask)

    with pytest.raises(ValueError, match="its own outputs differ from its steps by"):
        attention_steps(built_on(Doubled(HEADS, KEY_DIM), X[None]), X)
    with pytest.raises(ValueError, match="its own probabilities differ"):
        attention_steps(Hot("dot"), X, X)


def test_an_own_score_is_one_term():
    class Nearness(layers.ScoredAttention):
        def project_key(self, key):
            return key

        def scores(self, query, projected_key):
            far = query[:, :, None] - projected_key[:, None]
            return -keras.ops.sum(far**2, axis=-1)

    steps = attention_steps(Nearness(), X, X)
    assert list(steps.terms) == ["score"]
    expected = -((X[2] - X[4]) ** 2).sum()
    assert steps.details(0, 2, 4) == [("score", pytest.approx(expected, rel=1e-5))]


def test_what_an_order_does(attention):
    call, order = {"query": X[None]}, [2, 0, 4, 1, 3]
    found = explain_orders(attention, call, order)
    assert found.effect.startswith("Y is permuted alike: largest difference ")
    assert found.permuted is not None
    np.testing.assert_allclose(
        found.permuted.weights, found.steps.weights[:, order][..., order], atol=1e-6
    )
    causal = explain_orders(attention, {**call, "use_causal_mask": True}, order)
    assert causal.effect.startswith("Y is not only permuted, because places count")
    padded = {**call, "padding_mask": np.arange(T)[None] < 4}
    assert "alike" in explain_orders(attention, padded, order).effect
    probe = layers.ProbePooling(1, 7)
    found = explain_orders(probe, {"inputs": X[None]}, order)
    assert found.effect.startswith("Y stays the same: largest difference ")
    relative = built_on(layers.RelativeMultiHeadAttention(HEADS, KEY_DIM), X[None])
    assert "places count" in explain_orders(relative, {"inputs": X[None]}, order).effect


def test_wrong_inputs(attention):
    block = built_on(layers.TransformerEncoderBlock(HEADS, 7, key_dim=KEY_DIM), X[None])
    window = layers.WindowAttention(1, 2)
    cases = [
        (keras.layers.Dense(3), {}, "`layer` must be an attention layer"),
        (keras.layers.MultiHeadAttention(1, 2), {}, "`layers.MultiHeadAttention.from_"),
        (block, {}, f"layers inside it: {block.name}/attention"),
        (window, {"query": X}, r"`query` must be one example, \(rows, columns"),
        (window, {"query": X[None], "mask": "causal"}, "`mask` must be None: a Window"),
        (attention, {"query": normal(2, T, D)}, "or a batch of one"),
        (layers.ProbePooling(1, 7), {"value": Z}, "`value` must be None"),
        (attention, {"mask": np.ones(4, bool)}, '`mask` must be "causal", 5 values'),
        (attention, {"mask": np.ones((5, 4), bool)}, "a mask of shape"),
        (attention, {"mask": "casual"}, "Received: mask='casual'"),
        (attention, {"mask": [0, 1, 1, 1, -1]}, "True or 1 where to attend"),
        (attention, {"cache": ()}, "`cache` must be a pair"),
        (attention, {"query": np.full((T, D), np.nan)}, "`query` must be finite"),
        (
            attention,
            {"mask": "causal", "attention_mask": np.ones((1, T, T), bool)},
            "`attention_mask` must be None if `mask` is one",
        ),
    ]
    for layer, call, message in cases:
        with pytest.raises(ValueError, match=message):
            attention_steps(layer, **{"query": X, **call})
    cache = attention(X[None], return_cache=True)[1]
    with pytest.raises(ValueError, match="`cache` must be None to show the steps"):
        attention_steps(attention, X, cache=cache)
    for wrong in ([0, 1], [0, 1, 2, 3, 3], [1.0, 0, 2, 3, 4]):
        with pytest.raises(ValueError, match="`permutation` must have each number"):
            plot_attention_layer(attention, X, permutation=wrong)
    content = layers.RelativeMultiHeadAttention(HEADS, KEY_DIM)
    targets = {"targets": X[None, :1], "target_mapping": np.eye(T)[None, :1]}
    with pytest.raises(ValueError, match="`permutation` must be None for a call"):
        plot_attention_layer(content, X, permutation=range(T), **targets)
    wrong_labels: list[Any] = [["a"], "abcde", range(5), 5]
    for labels in wrong_labels:
        with pytest.raises(ValueError, match="`labels` must be 5 texts"):
            plot_attention_layer(attention, X, labels=labels)
    wrong_heads: list[Any] = [[], [3], [-1], [0.0], 1, "1"]
    for heads in wrong_heads:
        with pytest.raises(ValueError, match="`heads` must be numbers from 0 to 2"):
            plot_attention_layer(attention, X, heads=heads)


def test_half_precision_is_compared_as_such(attention):
    half = layers.MultiHeadAttention(HEADS, KEY_DIM, dtype="mixed_float16")
    built_on(half, X[None])
    steps = attention_steps(half, X)
    exact = attention_steps(attention, X)
    np.testing.assert_allclose(steps.weights, exact.weights, atol=0.02)


def test_the_figure_has_every_step_of_every_head():
    layer = built_on(layers.MultiHeadAttention(2, 4, value_dim=3), X[None, :3])
    labels, order = ["[START]", "Big", "c$t"], [2, 0, 1]
    figure = plot_attention_layer(
        layer, X[:3], mask="causal", permutation=order, labels=labels, title="a $ b"
    )
    steps = attention_steps(layer, X[:3], mask="causal")
    permuted = attention_steps(layer, X[:3][order], mask="causal")
    maps = [ax for ax in panels(figure) if len(values_of(ax)) > 1]  # Not the bars.
    drawn = [values_of(ax) for ax in maps]
    expected = []
    for panel, other in zip(steps.panels(), permuted.panels(), strict=True):
        for array in (panel.array, other.array):
            expected += list(array if array.ndim == 3 else array[None])
    assert len(drawn) == len(expected)
    for values in expected:
        shown = [each for each in drawn if each.shape == values.shape]
        assert any(np.allclose(np.where(x.mask, values, x), values) for x in shown)
    texts = [text.get_text() for text in figure.texts]
    assert {"X   3 × 11", "A   3 × 3", "V   3 × 3", "Y   3 × 11"} <= set(texts)
    assert "head 1" in texts and texts.count("→") == 10
    assert any("because places count here" in text for text in texts)
    first = maps[0]  # X is too wide for numbers, A is not.
    assert tick_labels(first.yaxis) == labels and not first.texts
    scores = [ax for ax in maps if np.ma.count_masked(values_of(ax)) == 3]
    assert len(scores) == 8 and all(len(ax.texts) == 6 for ax in scores)
    assert figure.get_suptitle() == "a $ b"


def test_labels_of_up_to_32_tokens_can_be_read():
    layer = layers.DotProductAttention("dot")
    for count, labelled in ((32, True), (33, False)):
        tokens = [f"token{number}" for number in range(count)]
        figure = plot_attention_layer(
            layer, normal(count, 2), normal(7, 2), labels=tokens
        )
        scores = next(ax for ax in panels(figure) if values_of(ax).shape == (count, 7))
        assert tick_labels(scores.yaxis) == tokens * labelled
        height = scores.get_position().height * figure.get_figheight()
        assert (height / count >= 7 / 72) == labelled  # The size of the letters.


def test_calls_of_a_model_are_captured():
    inputs = keras.Input((T, D))
    x = layers.TransformerEncoderBlock(1, 7, name="block_0")(inputs)
    x = layers.TransformerDecoderBlock(1, 7, name="block_1")(x, inputs)
    outputs = layers.ProbePooling(1, 7, name="pooling")(x)
    model = keras.Model(inputs, outputs)
    before = flat(model(X[None]))
    calls = capture_calls(model, X[None])
    assert [call.layer.path for call in calls] == [
        "block_0/attention",
        "block_1/self_attention",
        "block_1/cross_attention",
        "pooling",
    ]
    for layer, arguments in calls:
        assert explain_call(layer, arguments).scores.shape[2] == T
        assert "call" not in vars(layer)
    assert calls[1].arguments["use_causal_mask"]
    np.testing.assert_array_equal(flat(model(X[None])), before)
