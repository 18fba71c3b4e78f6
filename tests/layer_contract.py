"""Every exported layer in several configurations, and what is asked of all of them.

Sizes are distinct primes, so that an axis is known by its size and swapped axes
cannot pass.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn import layers

B, T, S = 2, 5, 7  # Batch, and the lengths of queries and keys.
D, E, F = 11, 13, 17  # Widths of queries, values and keys.
HEADS, KEY_DIM, VALUE_DIM = 3, 19, 23
UNITS = 29
CACHE = 41  # Positions there is room for in a cache.
REAL = 3  # Positions in front of the padding, of T or of S.
TARGETS = 3  # Places that a query stream asks from.
KNOWN = S + T  # Memory and inputs.
UNKNOWN = (B, T, S, KNOWN, 2 * T)  # Sizes that a model need not know of its inputs.
LENGTHS = (*UNKNOWN, KNOWN + T, 1 + T)  # And of its outputs.

NOT_INSTANTIATED = {
    "ScoredAttention": "abstract: its subclasses say how a score comes about",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer, and one way to call it.

    Args:
        make: Makes the layer.
        inputs: The tensors it is called with: argument to shape.
        static: The other arguments of the call.
        padding: A mask among `inputs` to those of `inputs` that it hides.
        causal_over: An argument whose later positions earlier outputs must not see.
        ids_below: What `inputs` are below, where they are ids.
        stays_float32: Whether outputs are float32 in half precision, too.
    """

    make: Callable[[], keras.layers.Layer]
    inputs: dict
    static: dict = dataclasses.field(default_factory=dict)
    padding: dict = dataclasses.field(default_factory=dict)
    causal_over: str | None = None
    ids_below: int | None = None
    stays_float32: bool = False


def _mha(**options):
    return lambda: layers.MultiHeadAttention(HEADS, KEY_DIM, **options)


def _encoder_block(**options):
    return lambda: layers.TransformerEncoderBlock(
        HEADS, UNITS, key_dim=KEY_DIM, **options
    )


def _decoder_block(**options):
    return lambda: layers.TransformerDecoderBlock(
        HEADS, UNITS, key_dim=KEY_DIM, **options
    )


def _relative(**options):
    return lambda: layers.RelativeMultiHeadAttention(HEADS, KEY_DIM, **options)


def _xlnet_block(**options):
    return lambda: layers.XLNetBlock(HEADS, UNITS, key_dim=KEY_DIM, **options)


def _rnn(cell, attention, **options):
    return lambda: layers.AttentionRNN(cell(UNITS), attention(), **options)


QUERY, VALUE, KEY = (B, T, D), (B, S, E), (B, S, F)
MEMORY = (B, S, D)
# The query stream of two, with all that it can be told.
QUERY_STREAM = {
    "inputs": QUERY,
    "targets": (B, TARGETS, D),
    "target_mapping": (B, TARGETS, T),
    "memory": MEMORY,
    "same_segment": (B, T, KNOWN),
    "permutation_mask": (B, T, T),
    "padding_mask": (B, KNOWN),
}
CONTENT_STREAM = {
    "inputs": QUERY,
    "same_segment": (B, T, T),
    "padding_mask": (B, T),
}
SCORES = {"return_attention_scores": True}
DOT = layers.DotProductAttention
ADDITIVE = layers.AdditiveAttention

IMAGE = (B, 6, 9, 3)
MAP = (B, 8, 9, 15)

CASES = {
    "PatchEmbedding": {
        "linear": Case(
            lambda: layers.PatchEmbedding(UNITS, (3, 9), use_bias=False),
            {"inputs": IMAGE},
        ),
        "padded_map": Case(
            lambda: layers.PatchEmbedding(UNITS, 4, padding="same", flatten=False),
            {"inputs": IMAGE},
        ),
        "left_over": Case(
            lambda: layers.PatchEmbedding(
                UNITS, 4, padding="valid", kernel_initializer="he_normal"
            ),
            {"inputs": IMAGE},
        ),
        "stem": Case(
            lambda: layers.PatchEmbedding(UNITS, 4, stem_dims=[E]),
            {"inputs": (B, 8, 16, 3)},
        ),
    },
    "ClassToken": {
        "one": Case(lambda: layers.ClassToken(initializer="ones"), {"inputs": QUERY}),
        "two": Case(lambda: layers.ClassToken(2), {"inputs": (B, 9, D)}),
    },
    "PatchMerging": {
        "even": Case(lambda: layers.PatchMerging(), {"inputs": (B, 8, 4, D)}),
        "odd": Case(
            lambda: layers.PatchMerging(UNITS, layer_norm_epsilon=1e-3),
            {"inputs": MAP},
        ),
    },
    "RandomPatchMasking": {
        "half": Case(
            lambda: layers.RandomPatchMasking(0.5, seed=3),
            {"inputs": (B, 8, D), "noise": (B, 8)},
        ),
        "prefix": Case(
            lambda: layers.RandomPatchMasking(num_prefix_tokens=1),
            {"inputs": (B, 9, D), "noise": (B, 8)},
        ),
    },
    "PatchUnmasking": {
        "plain": Case(
            lambda: layers.PatchUnmasking(initializer="ones"),
            {"inputs": (B, 3, D), "places": (B, 8)},
        ),
        "prefix": Case(
            lambda: layers.PatchUnmasking(num_prefix_tokens=1),
            {"inputs": (B, 3, D), "places": (B, 8)},
        ),
    },
    "HiddenPatches": {
        "mask": Case(lambda: layers.HiddenPatches(), {"inputs": [(B, 8, D), (B, 8)]}),
    },
    "WindowAttention": {
        "whole": Case(
            lambda: layers.WindowAttention(HEADS, 4, dropout=0.25, seed=3),
            {"inputs": (B, 8, 4, 15)},
        ),
        "shifted_padded": Case(
            lambda: layers.WindowAttention(
                HEADS, 4, shifted=True, kernel_initializer="he_normal"
            ),
            {"inputs": MAP},
        ),
        "larger_than_the_map": Case(
            lambda: layers.WindowAttention(HEADS, 11, shifted=True, use_bias=False),
            {"inputs": MAP},
        ),
    },
    "SwinBlock": {
        "plain": Case(
            lambda: layers.SwinBlock(
                HEADS,
                UNITS,
                4,
                activation="relu",
                layer_norm_epsilon=1e-3,
                attention_bias=False,
                dropout=0.1,
                attention_dropout=0.2,
                stochastic_depth=0.3,
                kernel_initializer="he_normal",
                seed=3,
            ),
            {"inputs": MAP},
        ),
        "shifted": Case(
            lambda: layers.SwinBlock(HEADS, UNITS, 3, shifted=True), {"inputs": MAP}
        ),
    },
    "SelfAttention2D": {
        "plain": Case(
            lambda: layers.SelfAttention2D(kernel_initializer="he_normal"),
            {"inputs": (B, 8, 9, 17)},
        ),
        "spectral": Case(
            lambda: layers.SelfAttention2D(
                E, use_bias=False, spectral_normalization=True
            ),
            {"inputs": MAP},
        ),
    },
    "SpectralNormalization": {
        "dense": Case(
            lambda: layers.SpectralNormalization(
                keras.layers.Dense(UNITS, use_bias=False), power_iterations=3
            ),
            {"inputs": QUERY},
        ),
        "convolution": Case(
            lambda: layers.SpectralNormalization(
                keras.layers.Conv2D(UNITS, 3, use_bias=False), use_bias=False
            ),
            {"inputs": MAP},
        ),
    },
    "ConditionalBatchNormalization": {
        "map": Case(
            lambda: layers.ConditionalBatchNormalization(E, momentum=0.9, epsilon=0.1),
            {"inputs": MAP, "labels": (B,)},
        ),
    },
    "StandardizedConv2D": {
        "strided": Case(
            lambda: layers.StandardizedConv2D(
                UNITS, 3, epsilon=1e-3, strides=2, padding="same"
            ),
            {"inputs": MAP},
        ),
    },
    "LayerScale": {
        "rank_3": Case(lambda: layers.LayerScale(0.1), {"inputs": QUERY}),
    },
    "StochasticDepth": {
        "rank_3": Case(lambda: layers.StochasticDepth(0.25, seed=5), {"inputs": QUERY}),
    },
    "AdditiveAttention": {
        "plain": Case(lambda: ADDITIVE(UNITS), {"query": QUERY, "value": VALUE}),
        "key_bias_padding_scores": Case(
            lambda: ADDITIVE(UNITS, use_bias=True, kernel_initializer="he_normal"),
            {"query": QUERY, "value": VALUE, "key": KEY, "padding_mask": (B, S)},
            SCORES,
            padding={"padding_mask": ("value", "key")},
        ),
        "attention_mask": Case(
            lambda: ADDITIVE(UNITS),
            {"query": QUERY, "value": VALUE, "attention_mask": (B, T, S)},
            SCORES,
        ),
    },
    "DotProductAttention": {
        "dot": Case(
            lambda: DOT("dot"),
            {"query": QUERY, "value": (B, S, D), "padding_mask": (B, S)},
            SCORES,
            padding={"padding_mask": ("value",)},
        ),
        "scaled_dot": Case(
            lambda: DOT(),
            {"query": QUERY, "value": VALUE, "key": (B, S, D)},
        ),
        "general": Case(
            lambda: DOT("general", kernel_initializer="orthogonal"),
            {"query": QUERY, "value": VALUE, "key": KEY, "attention_mask": (B, T, S)},
            SCORES,
        ),
        "linear": Case(
            lambda: DOT("linear"),
            {"query": QUERY, "value": VALUE, "padding_mask": (B, S)},
            SCORES,
            padding={"padding_mask": ("value",)},
        ),
    },
    "MultiHeadAttention": {
        "self": Case(_mha(), {"query": QUERY}),
        "self_padding_scores": Case(
            _mha(value_dim=VALUE_DIM, use_bias=False),
            {"query": QUERY, "padding_mask": (B, T)},
            SCORES,
            padding={"padding_mask": ("query",)},
        ),
        "causal": Case(
            _mha(dropout=0.25, seed=37),
            {"query": QUERY},
            {"use_causal_mask": True, **SCORES},
            causal_over="query",
        ),
        "causal_mask_and_bias": Case(
            _mha(num_key_value_heads=1),
            {
                "query": QUERY,
                "attention_mask": (B, HEADS, T, T),
                "attention_bias": (B, HEADS, T, T),
            },
            {"use_causal_mask": True},
            causal_over="query",
        ),
        "cross": Case(
            _mha(value_dim=VALUE_DIM, output_dim=UNITS, bias_initializer="ones"),
            {"query": QUERY, "value": VALUE, "key": KEY, "padding_mask": (B, S)},
            SCORES,
            padding={"padding_mask": ("value", "key")},
        ),
        "cross_attention_mask": Case(
            _mha(kernel_initializer="he_uniform"),
            {"query": QUERY, "value": VALUE, "attention_mask": (B, T, S)},
        ),
        "grouped_cross": Case(
            lambda: layers.MultiHeadAttention(6, KEY_DIM, num_key_value_heads=3),
            {"query": QUERY, "value": VALUE, "padding_mask": (B, S)},
            SCORES,
            padding={"padding_mask": ("value",)},
        ),
        "grouped_with_value_dim": Case(
            lambda: layers.MultiHeadAttention(
                6, KEY_DIM, value_dim=VALUE_DIM, num_key_value_heads=3
            ),
            {"query": QUERY},
            SCORES,
        ),
        "returns_cache": Case(
            _mha(), {"query": QUERY}, {"return_cache": True, "use_causal_mask": True}
        ),
        "writes_cache": Case(
            _mha(),
            {"query": QUERY, "cache": (B, 2, HEADS, CACHE, KEY_DIM)},
            {"cache_index": 4, "use_causal_mask": True, **SCORES},
        ),
    },
    "TransformerEncoderBlock": {
        "post_norm": Case(
            _encoder_block(),
            {"inputs": QUERY, "padding_mask": (B, T)},
            padding={"padding_mask": ("inputs",)},
        ),
        "pre_norm_scores": Case(
            _encoder_block(
                norm_first=True,
                activation="gelu",
                use_bias=False,
                dropout=0.1,
                attention_dropout=0.2,
                mlp_dropout=0.3,
                layer_norm_epsilon=1e-3,
                stochastic_depth=0.4,
                layer_scale=0.5,
                kernel_initializer="he_normal",
                seed=3,
            ),
            {"inputs": QUERY, "padding_mask": (B, T)},
            SCORES,
            padding={"padding_mask": ("inputs",)},
        ),
        "grouped_mask_and_bias": Case(
            _encoder_block(num_key_value_heads=1),
            {
                "inputs": QUERY,
                "attention_mask": (B, T, T),
                "attention_bias": (B, HEADS, T, T),
            },
        ),
    },
    "TransformerDecoderBlock": {
        "decoder_only": Case(
            _decoder_block(norm_first=True, activation="gelu"),
            {"inputs": QUERY, "padding_mask": (B, T)},
            SCORES,
            padding={"padding_mask": ("inputs",)},
            causal_over="inputs",
        ),
        "window": Case(
            _decoder_block(window=T - 1),
            {"inputs": QUERY, "padding_mask": (B, T)},
            padding={"padding_mask": ("inputs",)},
            causal_over="inputs",
        ),
        "with_encoder": Case(
            _decoder_block(),
            {
                "inputs": QUERY,
                "encoder_outputs": VALUE,
                "encoder_padding_mask": (B, S),
            },
            SCORES,
            padding={"encoder_padding_mask": ("encoder_outputs",)},
            causal_over="inputs",
        ),
        "pre_norm_with_encoder": Case(
            _decoder_block(norm_first=True, num_key_value_heads=1, dropout=0.1),
            {"inputs": QUERY, "encoder_outputs": VALUE},
            causal_over="inputs",
        ),
        "cached": Case(
            _decoder_block(),
            {
                "inputs": QUERY,
                "encoder_outputs": VALUE,
                "cache": (B, 2, HEADS, CACHE, KEY_DIM),
            },
            {"cache_index": 2},
        ),
    },
    "AttentionRNN": {
        "gru_additive": Case(
            _rnn(keras.layers.GRUCell, lambda: ADDITIVE(UNITS + 2)),
            {
                "inputs": QUERY,
                "memory": VALUE,
                "initial_state": (B, UNITS),
                "memory_padding_mask": (B, S),
            },
            SCORES,
            padding={"memory_padding_mask": ("memory",)},
            causal_over="inputs",
        ),
        "lstm_general": Case(
            _rnn(keras.layers.LSTMCell, lambda: DOT("general"), unroll=True),
            {
                "inputs": QUERY,
                "memory": VALUE,
                "initial_state": [(B, UNITS), (B, UNITS)],
            },
            causal_over="inputs",
        ),
        "simple_dot_one_step": Case(
            _rnn(keras.layers.SimpleRNNCell, lambda: DOT("scaled_dot")),
            {
                "inputs": (B, 1, D),
                "memory": (B, S, UNITS),
                "initial_state": (B, UNITS),
            },
            SCORES,
        ),
    },
    "RelativeMultiHeadAttention": {
        "content": Case(
            _relative(dropout=0.25, seed=37),
            CONTENT_STREAM,
            SCORES,
            padding={"padding_mask": ("inputs",)},
        ),
        "query": Case(_relative(kernel_initializer="he_normal"), QUERY_STREAM, SCORES),
        "attention_mask": Case(
            _relative(bias_initializer="ones"),
            {
                "inputs": QUERY,
                "same_segment": (B, T, T),
                "attention_mask": (B, HEADS, T, T),
            },
        ),
    },
    "XLNetBlock": {
        "content": Case(
            _xlnet_block(activation="relu", dropout=0.1, attention_dropout=0.2, seed=3),
            CONTENT_STREAM,
            padding={"padding_mask": ("inputs",)},
        ),
        "query": Case(
            _xlnet_block(layer_norm_epsilon=1e-3, kernel_initializer="he_normal"),
            QUERY_STREAM,
            SCORES,
        ),
    },
    "RelativePositionEncoding": {
        "plain": Case(
            lambda: layers.RelativePositionEncoding(2, max_wavelength=100),
            {"inputs": QUERY},
        ),
        "memory": Case(
            lambda: layers.RelativePositionEncoding(),
            {"inputs": QUERY, "memory": MEMORY},
        ),
    },
    "TargetEmbedding": {
        "targets": Case(
            lambda: layers.TargetEmbedding("ones"),
            {"inputs": QUERY, "target_mapping": (B, TARGETS, T)},
        ),
    },
    "SegmentMemory": {
        "fills": Case(
            lambda: layers.SegmentMemory(UNITS), {"inputs": QUERY, "memory": MEMORY}
        ),
        "forgets": Case(
            lambda: layers.SegmentMemory(S), {"inputs": QUERY, "memory": MEMORY}
        ),
    },
    "CacheRoom": {
        "room": Case(
            lambda: layers.CacheRoom(CACHE), {"inputs": (B, 2, HEADS, T, KEY_DIM)}
        ),
    },
    "TokenEmbedding": {
        "ids": Case(
            lambda: layers.TokenEmbedding(UNITS, D, embeddings_initializer="normal"),
            {"inputs": (B, T)},
            ids_below=UNITS,
        ),
        "reverse": Case(
            lambda: layers.TokenEmbedding(UNITS, D),
            {"inputs": QUERY},
            {"reverse": True},
            stays_float32=True,
        ),
    },
    "OutputBias": {
        "bias": Case(
            lambda: layers.OutputBias("ones"), {"inputs": QUERY}, stays_float32=True
        ),
    },
    "TokenPooling": {
        "first": Case(
            lambda: layers.TokenPooling("first"),
            {"inputs": QUERY, "padding_mask": (B, T)},
        ),
        **{
            pooling: Case(
                lambda pooling=pooling: layers.TokenPooling(pooling),
                {"inputs": QUERY, "padding_mask": (B, T)},
                padding={"padding_mask": ("inputs",)},
            )
            for pooling in ("last", "mean")
        },
    },
    "Dropout": {
        "rank_3": Case(lambda: layers.Dropout(0.5, seed=5), {"inputs": QUERY}),
        "noise_shape": Case(
            lambda: layers.Dropout(0.25, noise_shape=(None, 1, None), seed=5),
            {"inputs": QUERY},
        ),
    },
    "LayerNormalization": {
        "rank_3": Case(lambda: layers.LayerNormalization(), {"inputs": QUERY}),
        "rank_4": Case(
            lambda: layers.LayerNormalization(epsilon=1e-12),
            {"inputs": (B, T, S, D)},
        ),
    },
    "FeedForward": {
        "relu": Case(lambda: layers.FeedForward(UNITS), {"inputs": QUERY}),
        "gelu_rank_4": Case(
            lambda: layers.FeedForward(
                UNITS,
                activation="gelu",
                dropout=0.5,
                use_bias=False,
                kernel_initializer="he_normal",
                seed=5,
            ),
            {"inputs": (B, T, S, D)},
        ),
    },
    "Maxout": {
        "two": Case(lambda: layers.Maxout(), {"inputs": (B, T, 2 * D)}),
        "three": Case(lambda: layers.Maxout(pieces=3), {"inputs": (B, 3 * D)}),
    },
    "SinusoidalPositionEmbedding": {
        "add": Case(
            lambda: layers.SinusoidalPositionEmbedding(max_wavelength=100),
            {"inputs": QUERY},
        ),
        "concatenate_positions": Case(
            lambda: layers.SinusoidalPositionEmbedding("concatenate", position_dim=E),
            {"inputs": QUERY, "positions": (B, T)},
        ),
        "grid_add": Case(
            lambda: layers.SinusoidalPositionEmbedding(), {"inputs": (B, T, S, 22)}
        ),
        "grid_concatenate": Case(
            lambda: layers.SinusoidalPositionEmbedding("concatenate", position_dim=6),
            {"inputs": (B, T, S, D)},
        ),
    },
    "LearnedPositionEmbedding": {
        "add": Case(lambda: layers.LearnedPositionEmbedding(F), {"inputs": QUERY}),
        "first_row": Case(
            lambda: layers.LearnedPositionEmbedding(F, first_row=2),
            {"inputs": QUERY, "positions": (B, T)},
        ),
        "concatenate_positions": Case(
            lambda: layers.LearnedPositionEmbedding(
                F, "concatenate", position_dim=E, embeddings_initializer="normal"
            ),
            {"inputs": QUERY, "positions": (B, T)},
        ),
    },
}

ALL = [
    (f"{layer}-{name}", case)
    for layer, cases in CASES.items()
    for name, case in cases.items()
]


def tensors(case, seed=0) -> dict[str, Any]:
    """The inputs of a case as arrays: real keys first, then padding."""
    rng = np.random.default_rng(seed)

    def draw(name, shape):
        if isinstance(shape, list):
            return [draw(name, part) for part in shape]
        if name.endswith("padding_mask"):
            return np.broadcast_to(np.arange(shape[-1]) < REAL, shape).copy()
        if name == "attention_mask":
            # Own position always seen, so that no row is empty.
            return rng.random(shape) < 0.5 + np.eye(*shape[-2:])
        if name == "same_segment":
            return rng.random(shape) < 0.5
        if name == "permutation_mask":
            turn = rng.permuted(np.tile(np.arange(T), (B, 1)), axis=1)
            return turn[:, :, None] > turn[:, None]
        if name == "target_mapping":
            return np.tile(np.eye(T, dtype="float32")[1 : TARGETS + 1], (B, 1, 1))
        if name == "places":
            ranks = np.tile(np.arange(shape[1], dtype="int32"), (shape[0], 1))
            return rng.permuted(ranks, axis=1)
        if name == "hidden":
            return rng.random(shape) < 0.5
        if is_ids(case, name):
            below = case.ids_below or E
            return rng.integers(0, below, shape).astype("int32")
        return rng.uniform(-1, 1, shape).astype("float32")

    return {name: draw(name, shape) for name, shape in case.inputs.items()}


def is_ids(case, name):
    """Whether an input of a case holds whole numbers."""
    return name in ("positions", "places", "labels") or (
        name == "inputs" and case.ids_below is not None
    )


def symbols(case, known):
    """The inputs of a case as `keras.Input`s, batch and lengths known or not."""
    if "cache" in case.inputs and keras.config.backend() == "jax":
        known = True  # JAX can't tell whether an unknown length fits into the cache.

    def symbol(name, shape):
        if isinstance(shape, list):
            return [symbol(f"{name}_{i}", part) for i, part in enumerate(shape)]
        axes = shape if known else [None if n in UNKNOWN else n for n in shape]
        if len(shape) == 5:  # A cache: its second axis is two, and no batch.
            axes = (axes[0], shape[1], *axes[2:])
        is_mask = name.endswith(("_mask", "same_segment", "hidden"))
        dtype = "bool" if is_mask else None
        dtype = "int32" if is_ids(case, name) else dtype
        return keras.Input(batch_shape=tuple(axes), dtype=dtype, name=name)

    return {name: symbol(name, shape) for name, shape in case.inputs.items()}


def functional(case, layer, known=False):
    """The layer of a case as a functional model of its inputs."""
    inputs = symbols(case, known)
    return keras.Model(inputs, layer(**inputs, **case.static))


def built(case, seed=1):
    """The layer of a case, called once, all its weights drawn at random."""
    layer = case.make()
    layer(**tensors(case), **case.static)
    randomize(layer, seed)
    return layer


def randomize(layer, seed=1):
    """Draws every trainable weight, biases too, so that none can go unnoticed."""
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_variables:
        weight.assign(rng.uniform(-0.5, 0.5, weight.shape))


def flat(outputs):
    """The tensors of a nested output, as arrays."""
    return [
        np.asarray(ops.convert_to_numpy(ops.cast(output, "float32")))
        for output in keras.tree.flatten(outputs)
    ]


def assert_close(actual, expected, atol=1e-5):
    """Compares nested outputs, tensor by tensor."""
    actual, expected = flat(actual), flat(expected)
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=atol, rtol=atol)


def gradients(layer, **call) -> dict[str, Any]:
    """The gradient of a fixed random sum of the outputs, for every weight.

    Returns:
        Path of the trainable weight to its gradient as an array, or None.
    """

    def loss(outputs):
        rng = np.random.default_rng(7)
        total = ops.zeros(())
        for output in keras.tree.flatten(outputs):
            factors = rng.normal(size=output.shape).astype("float32")
            total += ops.sum(ops.cast(output, "float32") * factors)
        return total

    variables = layer.trainable_variables
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            total = loss(layer(**call))
        found = tape.gradient(total, [variable.value for variable in variables])
    else:
        import jax

        fixed = [variable.value for variable in layer.non_trainable_variables]
        found = jax.grad(
            lambda trained: loss(layer.stateless_call(trained, fixed, **call)[0])
        )([variable.value for variable in variables])
    return {
        variable.path: None if gradient is None else ops.convert_to_numpy(gradient)
        for variable, gradient in zip(variables, found, strict=True)
    }
