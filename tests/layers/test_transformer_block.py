import re

import attention_reference as reference
import numpy as np
import pytest
from attention_reference import array_of
from keras import ops
from layer_contract import (
    B,
    D,
    E,
    S,
    T,
    assert_close,
    built_on,
    normal,
)

from keras_attn.layers import TransformerDecoderBlock, TransformerEncoderBlock

HEADS, KEY_DIM, MLP = 3, 7, 29
ACTIVATIONS = {"relu": reference.relu, "gelu": reference.gelu}


class Expected:
    """A block by the paper's equations, with the weights of a block of ours."""

    def __init__(self, block):
        self.block = block
        self.weights = {
            w.path.split("/", 1)[1]: array_of(w).astype("float64")
            for w in block.weights
            if "seed_generator" not in w.path
        }

    def norm(self, name, x):
        gamma, beta = (self.weights[f"{name}/{part}"] for part in ("gamma", "beta"))
        return reference.layer_norm(x, gamma, beta, self.block.layer_norm_epsilon)

    def residual(self, name, x, layer):
        if self.block.norm_first:
            return x + layer(self.norm(name, x))
        return self.norm(name, x + layer(x))

    def attention(self, name, query, value=None, **options):
        attention = getattr(self.block, name)
        weights = reference.multi_head_weights(attention)
        heads, groups = attention.num_heads, attention.num_key_value_heads
        value = query if value is None else value
        outputs, self.scores = reference.multi_head(
            query, value, value, weights, heads, groups, **options
        )
        return outputs

    def feed_forward(self, x):
        expand, contract = (f"feed_forward/{part}" for part in ("expand", "contract"))
        weights = self.weights
        biases = [weights.get(f"{part}/bias", 0.0) for part in (expand, contract)]
        activation = ACTIVATIONS[self.block.activation.__name__]
        hidden = activation(x @ weights[f"{expand}/kernel"] + biases[0])
        return hidden @ weights[f"{contract}/kernel"] + biases[1]


def per_head(mask):
    return np.broadcast_to(mask, (B, HEADS, *mask.shape[-2:]))


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_encoder_matches_the_equations(norm_first, activation, use_bias):
    block = TransformerEncoderBlock(
        HEADS,
        MLP,
        key_dim=KEY_DIM,
        norm_first=norm_first,
        activation=activation,
        use_bias=use_bias,
        layer_norm_epsilon=1e-2,
    )
    inputs = normal(B, T, D)
    built_on(block, inputs)
    padding = np.arange(T) < np.array([[3], [T]])
    bias = normal(B, HEADS, T, T, seed=1)
    mask = np.random.default_rng(2).random((B, T, T)) < 0.8
    both = per_head((mask & padding[:, None])[:, None])
    expected = Expected(block)

    def attend(x):
        return expected.attention("attention", x, mask=both, bias=bias)

    hidden = expected.residual("attention_norm", inputs, attend)
    outputs = expected.residual("feed_forward_norm", hidden, expected.feed_forward)
    found = block(
        inputs,
        padding_mask=padding,
        attention_mask=mask,
        attention_bias=bias,
        return_attention_scores=True,
    )
    assert_close(found, (outputs, expected.scores))


@pytest.mark.parametrize("has_encoder", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_decoder_matches_the_equations(norm_first, has_encoder):
    block = TransformerDecoderBlock(
        HEADS, MLP, key_dim=KEY_DIM, norm_first=norm_first, num_key_value_heads=1
    )
    inputs = normal(B, T, D)
    encoded = normal(B, S, E, seed=1) if has_encoder else None
    built_on(block, *([inputs, encoded] if has_encoder else [inputs]))
    padding = np.arange(T) < np.array([[T], [3]])
    encoder_padding = np.arange(S) < np.array([[3], [S]])
    mask = (np.random.default_rng(2).random((T, T)) < 0.8) | np.eye(T, dtype=bool)
    seen = per_head((padding[:, None] & mask & np.tri(T, dtype=bool))[:, None])
    expected = Expected(block)
    hidden = expected.residual(
        "self_attention_norm",
        inputs,
        lambda x: expected.attention("self_attention", x, mask=seen),
    )
    scores = [expected.scores]
    if has_encoder:
        source = per_head(np.repeat(encoder_padding[:, None, None], T, axis=2))
        hidden = expected.residual(
            "cross_attention_norm",
            hidden,
            lambda x: expected.attention("cross_attention", x, encoded, mask=source),
        )
        scores.append(expected.scores)
    outputs = expected.residual("feed_forward_norm", hidden, expected.feed_forward)
    found = block(
        inputs,
        encoded,
        padding_mask=padding,
        attention_mask=mask,
        encoder_padding_mask=encoder_padding if has_encoder else None,
        return_attention_scores=True,
    )
    assert_close(found, (outputs, *scores))


def test_key_dim_defaults_to_the_width_per_head():
    block = built_on(TransformerEncoderBlock(3, MLP), normal(B, T, 21))
    assert block.attention.key_dim == 7
    message = (
        "The width must be a multiple of `num_heads`, or `key_dim` given. "
        "Received: width=11, num_heads=3"
    )
    for block in (TransformerEncoderBlock(3, MLP), TransformerDecoderBlock(3, MLP)):
        with pytest.raises(ValueError, match=message):
            block(normal(B, T, D))


def test_every_option_reaches_the_sub_layers():
    block = TransformerDecoderBlock(
        6,
        MLP,
        key_dim=KEY_DIM,
        num_key_value_heads=3,
        activation="gelu",
        layer_norm_epsilon=1e-3,
        dropout=0.1,
        attention_dropout=0.2,
        mlp_dropout=0.3,
        use_bias=False,
        kernel_initializer="zeros",
        seed=5,
        dtype="mixed_bfloat16",
    )
    block(normal(B, T, D), normal(B, S, E))
    for name in ("self_attention", "cross_attention"):
        attention = getattr(block, name)
        config = attention.get_config()
        assert (config["num_heads"], config["num_key_value_heads"]) == (6, 3)
        assert (config["dropout"], config["use_bias"], config["seed"]) == (
            0.2,
            False,
            5,
        )
        assert not array_of(attention.output_projection.kernel).any()
        assert attention.dtype_policy.name == "mixed_bfloat16"
    config = block.feed_forward.get_config()
    assert (config["dropout"], config["use_bias"], config["seed"]) == (0.3, False, 5)
    assert config["activation"] == "gelu"
    assert not array_of(block.feed_forward.expand.kernel).any()
    assert block.cross_attention_norm.epsilon == 1e-3


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("groups", [None, 1])
def test_incremental_decoding_matches_one_call(groups, norm_first):
    block = TransformerDecoderBlock(
        HEADS, MLP, key_dim=KEY_DIM, num_key_value_heads=groups, norm_first=norm_first
    )
    inputs, encoded = normal(B, T, D), normal(B, S, E, seed=1)
    built_on(block, inputs, encoded)
    padding = np.arange(S) < np.array([[3], [S]])
    options = {"encoder_padding_mask": padding, "return_attention_scores": True}
    outputs, self_scores, cross_scores = block(inputs, encoded, **options)
    garbage = list(1e3 * normal(2, B, groups or HEADS, S, KEY_DIM, seed=2))
    # The prompt attends to the encoder's outputs, each later step to their cache.
    first, _, _, cache, cross_cache = block(
        inputs[:, :2], encoded, cache=garbage, cache_index=0, **options
    )
    assert_close(first, outputs[:, :2])
    for part in cross_cache:
        assert tuple(part.shape) == (B, groups or HEADS, S, KEY_DIM)
    for index in range(2, T):
        step, own, cross, cache, same = block(
            inputs[:, index : index + 1],
            cache=cache,
            cache_index=ops.convert_to_tensor(index),
            cross_cache=cross_cache,
            **options,
        )
        now = slice(index, index + 1)
        assert_close(step, outputs[:, now])
        assert_close(own[..., :T], self_scores[:, :, now])
        assert_close(cross, cross_scores[:, :, now])
        assert_close(same, cross_cache, atol=0)


def test_wrong_calls_are_rejected():
    message = (
        "`encoder_outputs` must be given in every call or in none, as in the first "
        "call. Received: encoder_outputs="
    )
    block = TransformerDecoderBlock(HEADS, MLP, key_dim=KEY_DIM)
    block(normal(B, T, D), normal(B, S, E))
    with pytest.raises(ValueError, match=f"{message}None"):
        block(normal(B, T, D))
    block = TransformerDecoderBlock(HEADS, MLP, key_dim=KEY_DIM)
    block(normal(B, T, D))
    with pytest.raises(ValueError, match=re.escape(f"{message}(2, 7, 13)")):
        block(normal(B, T, D), normal(B, S, E))


@pytest.mark.parametrize("padded", ["nowhere", "left", "between"])
def test_a_window_is_counted_in_real_tokens(padded):
    window, length = 3, 7
    real = np.ones((1, length), bool)
    real[0, {"nowhere": [], "left": [0, 1], "between": [2, 4]}[padded]] = False
    mask = None if padded == "nowhere" else real
    block = TransformerDecoderBlock(HEADS, MLP, key_dim=KEY_DIM, window=window)
    inputs = normal(1, length, D)
    built_on(block, inputs)
    expected = ops.convert_to_numpy(block(inputs, padding_mask=mask))[0]
    tokens = np.flatnonzero(real[0])
    for index, position in enumerate(tokens):
        other = inputs.copy()
        other[:, position] = -other[:, position]
        found = ops.convert_to_numpy(block(other, padding_mask=mask))[0]
        changed = np.abs(found - expected)[tokens].max(-1) > 1e-4
        attends = [index <= query < index + window for query in range(len(tokens))]
        assert changed.tolist() == attends
    # Incremental decoding has the same window.
    cache = list(np.zeros((2, 1, HEADS, length, KEY_DIM), "float32"))
    for position in range(length):
        so_far = real & (np.arange(length) <= position)
        output, cache = block(
            inputs[:, position : position + 1],
            padding_mask=so_far if mask is not None else None,
            cache=cache,
            cache_index=position,
        )
        if real[0, position]:
            np.testing.assert_allclose(
                ops.convert_to_numpy(output)[0, 0],
                expected[position],
                rtol=0,
                atol=1e-5,
            )
