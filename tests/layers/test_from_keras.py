"""`MultiHeadAttention` has every argument of Keras' layer, with the same numbers."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_contract import B, D, E, S, T, assert_close, gradients, normal

from keras_attn.layers import MultiHeadAttention
from keras_attn.layers.recorder import record_attention_scores

N, H = 2, 3
F = 11
QUERY, VALUE, KEY = normal(B, T, D), normal(B, S, E, seed=1), normal(B, S, F, seed=2)
# On JAX, Keras 3.15 does not support another `value_dim`.
VALUE_DIM = H if keras.config.backend() == "jax" else 4
MASK = np.random.default_rng(3).random((B, T, S)) < 0.7
MASK[:, :, 0] = True

# What differs from Keras' defaults, and the arguments of the call.
CASES = {
    "plain": ({}, {}),
    "value_dim": ({"value_dim": VALUE_DIM}, {}),
    "without_bias": ({"use_bias": False}, {}),
    "output_shape": ({"output_shape": 5}, {}),
    "output_shape_of_two_axes": ({"output_shape": (4, 5)}, {}),
    "gate": ({"use_gate": True}, {}),
    "window": ({"sliding_window": 2}, {}),
    "causal_window": ({"sliding_window": 3}, {"use_causal_mask": True}),
    "causal": ({}, {"use_causal_mask": True}),
    "attention_mask": ({}, {"attention_mask": MASK}),
    "value_mask": ({}, {"value_mask": np.arange(S) < np.array([[S], [3]])}),
    "key_mask": ({}, {"key_mask": np.arange(S) < np.array([[4], [S]])}),
    "both_masks": (
        {},
        {
            "value_mask": np.arange(S) < np.array([[S], [3]]),
            "key_mask": np.arange(S) > np.array([[1], [0]]),
            "attention_mask": MASK,
        },
    ),
}


def keras_layer(call, options, seed=4):
    """Keras' layer with random weights, also of the biases."""
    layer = keras.layers.MultiHeadAttention(N, H, **options)
    layer(*call)
    draw = np.random.default_rng(seed)
    for weight in layer.weights:
        weight.assign(draw.normal(0, 0.5, weight.shape))
    return layer


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_keras(case):
    options, call = CASES[case]
    theirs = keras_layer((QUERY, VALUE, KEY), options)
    ours = MultiHeadAttention.from_keras(theirs)
    inputs = {"query": QUERY, "value": VALUE, "key": KEY, **call}
    for scores in (False, True):
        found = ours(**inputs, return_attention_scores=scores)
        assert_close(found, theirs(**inputs, return_attention_scores=scores))
    by_path = {
        path.split(f"{theirs.name}/")[-1].replace("attention_output", "output"): value
        for path, value in gradients(theirs, **inputs).items()
    }
    for path, value in gradients(ours, **inputs).items():
        expected = by_path[path.split(f"{ours.name}/")[-1]]
        np.testing.assert_allclose(
            value, expected.reshape(value.shape), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("case", ["plain", "gate", "window", "output_shape", "causal"])
def test_self_attention_has_one_kernel_of_the_same_numbers(case):
    options, call = CASES[case]
    theirs = keras_layer((QUERY, QUERY, QUERY), options)
    ours = MultiHeadAttention.from_keras(theirs, self_attention=True, name="mine")
    assert ours.name == "mine" and ours.is_self_attention
    assert_close(
        ours(QUERY, return_attention_scores=True, **call),
        theirs(QUERY, QUERY, return_attention_scores=True, **call),
    )
    slopes = gradients(theirs, query=QUERY, value=QUERY, **call)
    parts = [
        slopes[f"{theirs.name}/{part}/kernel"].reshape(D, -1)
        for part in ("query", "key", "value")
    ]
    found = gradients(ours, query=QUERY, **call)["mine/query_key_value/kernel"]
    assert_close(found[:, : 3 * N * H], np.concatenate(parts, 1), atol=1e-4)


@pytest.mark.parametrize("axes", [None, (1,), (2,), (-2,), (1, 2), 1])
@pytest.mark.parametrize("masked", [False, True])
def test_inputs_of_four_axes(axes, masked):
    rows, columns = 3, 4
    query, value = normal(B, rows, columns, D), normal(B, rows, columns, E, seed=1)
    theirs = keras_layer((query, value, value), {"attention_axes": axes})
    ours = MultiHeadAttention.from_keras(theirs)
    # Keras keeps the axes that it found when it was built.
    assert ours.attention_axes == theirs.attention_axes
    call = {"query": query, "value": value}
    _, scores = theirs(**call, return_attention_scores=True)
    if masked:
        # Of the axes that are attended over, twice.
        sizes = scores.shape[-2 * len(theirs.attention_axes) :]
        mask = np.random.default_rng(5).random((B, *sizes)) < 0.7
        mask[(..., *[0] * len(theirs.attention_axes))] = True
        call["attention_mask"] = mask
    assert_close(
        ours(**call, return_attention_scores=True),
        theirs(**call, return_attention_scores=True),
    )
    assert_close(ours(**call), theirs(**call))


def test_axes_may_be_counted_from_the_end():
    inputs = normal(B, 3, 4, D)
    layers = [MultiHeadAttention(N, H, attention_axes=axes) for axes in (1, -3)]
    for layer in layers:
        layer(inputs)
    layers[1].set_weights(layers[0].get_weights())
    assert_close(layers[1](inputs), layers[0](inputs))


def test_five_axes_in_any_order():
    """Keras' own softmax does not take so many."""
    inputs = normal(B, 3, 4, 2, D)
    moved = np.moveaxis(inputs, 1, 3)
    layers = [MultiHeadAttention(N, H, attention_axes=axes) for axes in (1, 3)]
    layers[0](inputs)
    layers[1](moved)
    layers[1].set_weights(layers[0].get_weights())
    assert_close(layers[0](inputs), np.moveaxis(layers[1](moved), 3, 1))


def test_keras_masks_of_four_axes():
    rows, columns = 3, 4
    query = normal(B, rows, columns, D)
    theirs = keras_layer((query, query), {"attention_axes": 2})
    ours = MultiHeadAttention.from_keras(theirs, self_attention=True)
    real = np.random.default_rng(6).random((B, rows, columns)) < 0.6
    real[..., 0] = True
    expected = theirs(query, query, value_mask=real, return_attention_scores=True)
    assert_close(ours(query, mask=real, return_attention_scores=True), expected)
    masked = ops.where(real[..., None], query, 0)
    found = ours(keras.layers.Masking()(masked))
    wanted = theirs(masked, masked, value_mask=real)
    assert_close(found, wanted)


def test_scores_of_four_axes_are_recorded_as_of_sequences():
    layer = MultiHeadAttention(N, H, attention_axes=2)
    with record_attention_scores() as scores:
        layer(normal(B, 3, 4, D))
    assert [x.shape for x in scores.values()] == [(B * 3, N, 4, 4)]


def test_regularizers_and_constraints_are_those_of_keras():
    options = {
        "kernel_regularizer": keras.regularizers.L2(0.1),
        "bias_regularizer": "l1",
        "activity_regularizer": keras.regularizers.L1(0.3),
        "kernel_constraint": keras.constraints.MaxNorm(0.5),
        "bias_constraint": "non_neg",
        "use_gate": True,
    }
    theirs = keras_layer((QUERY, VALUE, KEY), options)
    ours = MultiHeadAttention.from_keras(theirs)
    for layer in (ours, theirs):
        layer(QUERY, VALUE, KEY)
    losses = [sum(float(x) for x in layer.losses) for layer in (ours, theirs)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    for weight in ours.weights:
        kind = keras.constraints.MaxNorm if weight.name == "kernel" else None
        kind = kind or keras.constraints.NonNeg
        assert isinstance(weight.constraint, kind), weight.path


@pytest.mark.parametrize(
    "options",
    [
        {"output_shape": (4, 5), "sliding_window": 2, "use_gate": True},
        {
            "kernel_regularizer": "l2",
            "activity_regularizer": "l1",
            "kernel_constraint": "max_norm",
            "bias_constraint": "non_neg",
            "bias_regularizer": "l1",
        },
        {"attention_axes": (2,)},
    ],
    ids=["sizes", "regularizers", "axes"],
)
def test_a_file_keeps_the_arguments(options, tmp_path):
    shape = (3, 4, D) if "attention_axes" in options else (T, D)
    inputs = keras.Input(shape)
    layer = MultiHeadAttention(N, H, 4, name="attention", **options)
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    again = loaded.get_layer("attention")
    assert again.get_config() == layer.get_config()
    batch = normal(B, *shape)
    assert_close(loaded(batch), model(batch))
    assert len(again.losses) == len(layer.losses)


def test_a_window_counts_the_positions_of_a_cache():
    layer = MultiHeadAttention(N, H, sliding_window=2)
    whole, scores = layer(QUERY, use_causal_mask=True, return_attention_scores=True)
    _, pair = layer(QUERY[:, :3], use_causal_mask=True, return_cache=True)
    rest, _, _ = layer(
        QUERY[:, 3:], use_causal_mask=True, cache=pair, return_attention_scores=True
    )
    assert_close(rest, ops.convert_to_numpy(whole)[:, 3:])
    far = np.abs(np.subtract.outer(np.arange(T), np.arange(T))) >= 2
    assert not ops.convert_to_numpy(scores)[:, :, far].any()


FOUR = normal(B, 2, 3, D)


def quantized():
    """Keras' layer with quantized weights."""
    layer = keras_layer((QUERY, QUERY), {})
    layer.query_dense.quantize("int8")
    return layer


def mha(**options):
    return MultiHeadAttention(N, H, **options)


def converted(layer, **options):
    return MultiHeadAttention.from_keras(layer, **options)


UNBUILT = keras.layers.MultiHeadAttention(N, H)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mha(flash_attention=True), "must be None.*flash_attention=True"),
        (lambda: mha(attention_axes=()), r"must be an axis .*attention_axes=\(\)"),
        (lambda: mha(sliding_window=0), "`sliding_window` must be a positive integer"),
        (lambda: mha(output_shape=()), "`output_shape` must be a positive integer"),
        (lambda: converted(UNBUILT), "`layer` must be built: call it once"),
        (lambda: converted(quantized()), "quantize the new layer"),
        (lambda: mha(attention_axes=2)(QUERY), r"must be different .*_axes=\(2,\)"),
        (lambda: mha(attention_axes=(1, -3))(FOUR), r"different .*_axes=\(1, -3\)"),
        (lambda: mha()(FOUR, VALUE), "`value` must have as many axes as `query`"),
        (
            lambda: converted(keras_layer((QUERY, VALUE), {}), self_attention=True),
            "`self_attention` needs one width",
        ),
        (
            lambda: mha()(FOUR, padding_mask=np.ones((B, 6))),
            "no mask but an `attention_mask`.*Received: `padding_mask`",
        ),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_another_layer_is_refused():
    with pytest.raises(TypeError, match="`layer` must be a `keras.layers.Multi"):
        MultiHeadAttention.from_keras(keras.layers.Attention())  # pyright: ignore[reportArgumentType]
