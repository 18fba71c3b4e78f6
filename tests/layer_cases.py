"""Test cases: every exported layer in several configurations, one table."""

import image_layer_cases
import image_text_layer_cases
import keras_layer_cases
import recurrent_layer_cases
from layer_contract import (
    CACHE,
    HEADS,
    KEY_DIM,
    KNOWN,
    TARGETS,
    UNITS,
    VALUE_DIM,
    B,
    Case,
    D,
    E,
    F,
    S,
    T,
)

from keras_attn import layers

NOT_INSTANTIATED = {
    "ScoredAttention": "abstract: its subclasses define the scores",
}


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


QUERY, VALUE, KEY = (B, T, D), (B, S, E), (B, S, F)
MEMORY = (B, S, D)
# The query stream, with all arguments that layer and block have.
QUERY_STREAM = {
    "inputs": QUERY,
    "targets": (B, TARGETS, D),
    "target_mapping": (B, TARGETS, T),
    "memory": MEMORY,
    "same_segment": (B, T, KNOWN),
    "padding_mask": (B, KNOWN),
}
CONTENT_STREAM = {"inputs": QUERY, "same_segment": (B, T, T), "padding_mask": (B, T)}
SELF, CROSS = {"query": QUERY}, {"query": QUERY, "value": VALUE}
CROSS_PADDED = {**CROSS, "padding_mask": (B, S)}
CROSS_MASKED = {**CROSS, "attention_mask": (B, T, S)}
KEYED_PADDED = {**CROSS, "key": KEY, "padding_mask": (B, S)}
TOKENS, MAPS = {"inputs": QUERY}, {"inputs": (B, T, S, D)}
PADDED = {"inputs": QUERY, "padding_mask": (B, T)}
SCORES = {"return_attention_scores": True}
DOT = layers.DotProductAttention
ADDITIVE = layers.AdditiveAttention

CASES = {
    **image_layer_cases.CASES,
    **image_text_layer_cases.CASES,
    **keras_layer_cases.CASES,
    **recurrent_layer_cases.CASES,
    "AdditiveAttention": {
        "plain": Case(lambda: ADDITIVE(UNITS), CROSS),
        "key_bias_padding_scores": Case(
            lambda: ADDITIVE(UNITS, use_bias=True, kernel_initializer="he_normal"),
            KEYED_PADDED,
            SCORES,
        ),
        "attention_mask": Case(lambda: ADDITIVE(UNITS), CROSS_MASKED, SCORES),
    },
    "DotProductAttention": {
        "dot": Case(
            lambda: DOT("dot"),
            {"query": QUERY, "value": (B, S, D), "padding_mask": (B, S)},
            SCORES,
        ),
        "scaled_dot": Case(DOT, {"query": QUERY, "value": VALUE, "key": (B, S, D)}),
        "general": Case(
            lambda: DOT("general", kernel_initializer="orthogonal"),
            {"query": QUERY, "value": VALUE, "key": KEY, "attention_mask": (B, T, S)},
            SCORES,
        ),
        "linear": Case(lambda: DOT("linear"), CROSS_PADDED, SCORES),
    },
    "MLPDotAttention": {
        "key_padding_scores": Case(
            lambda: layers.MLPDotAttention(UNITS, kernel_initializer="he_normal"),
            KEYED_PADDED,
            SCORES,
        ),
        "attention_mask": Case(lambda: layers.MLPDotAttention(UNITS), CROSS_MASKED),
    },
    "MultiHeadAttention": {
        "self": Case(_mha(), SELF),
        "self_padding_scores": Case(
            _mha(value_dim=VALUE_DIM, use_bias=False),
            {"query": QUERY, "padding_mask": (B, T)},
            SCORES,
        ),
        "causal": Case(
            _mha(dropout=0.25, seed=37),
            SELF,
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
            _mha(value_dim=VALUE_DIM, output_shape=UNITS, bias_initializer="ones"),
            KEYED_PADDED,
            SCORES,
        ),
        "cross_attention_mask": Case(
            _mha(kernel_initializer="he_uniform"), CROSS_MASKED
        ),
        "grouped_cross": Case(
            lambda: layers.MultiHeadAttention(6, KEY_DIM, num_key_value_heads=3),
            CROSS_PADDED,
            SCORES,
        ),
        "grouped_with_value_dim": Case(
            lambda: layers.MultiHeadAttention(
                6, KEY_DIM, value_dim=VALUE_DIM, num_key_value_heads=3
            ),
            SELF,
            SCORES,
        ),
        "qkv_bias": Case(_mha(qkv_bias=False, bias_initializer="ones"), SELF),
        "cross_qkv_bias": Case(_mha(use_bias=False, qkv_bias=True), CROSS),
        "returns_cache": Case(
            _mha(), SELF, {"return_cache": True, "use_causal_mask": True}
        ),
        "writes_cache": Case(
            _mha(),
            {"query": QUERY, "cache": [(B, HEADS, CACHE, KEY_DIM)] * 2},
            {"cache_index": 4, "use_causal_mask": True, **SCORES},
        ),
        "follows_cache": Case(
            lambda: layers.MultiHeadAttention(
                6, KEY_DIM, value_dim=VALUE_DIM, num_key_value_heads=3
            ),
            {"query": QUERY, "cache": [(B, 3, S, KEY_DIM), (B, 3, S, VALUE_DIM)]},
            {"use_causal_mask": True, **SCORES},
        ),
    },
    "TransformerEncoderBlock": {
        "post_norm": Case(_encoder_block(), PADDED),
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
            PADDED,
            SCORES,
        ),
        "grouped_mask_and_bias": Case(
            _encoder_block(num_key_value_heads=1, qkv_bias=False),
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
            PADDED,
            SCORES,
            causal_over="inputs",
        ),
        "window": Case(_decoder_block(window=T - 1), PADDED, causal_over="inputs"),
        "with_encoder": Case(
            _decoder_block(),
            {"inputs": QUERY, "encoder_outputs": VALUE, "encoder_padding_mask": (B, S)},
            SCORES,
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
                "cache": [(B, HEADS, CACHE, KEY_DIM)] * 2,
            },
            {"cache_index": 2},
        ),
        "follows_cache": Case(
            _decoder_block(window=3),
            {"inputs": QUERY, "cache": [(B, HEADS, S, KEY_DIM)] * 2},
        ),
    },
    "RelativeMultiHeadAttention": {
        "content": Case(_relative(dropout=0.25, seed=37), CONTENT_STREAM, SCORES),
        "attention_mask": Case(
            _relative(bias_initializer="ones"),
            {
                "inputs": QUERY,
                "same_segment": (B, T, T),
                "attention_mask": (B, HEADS, T, T),
            },
        ),
        "query": Case(
            _relative(kernel_initializer="he_normal"),
            {**QUERY_STREAM, "attention_mask": (B, T, KNOWN)},
            SCORES,
        ),
    },
    "XLNetBlock": {
        "content": Case(
            _xlnet_block(activation="relu", dropout=0.1, attention_dropout=0.2, seed=3),
            CONTENT_STREAM,
        ),
        "query": Case(
            _xlnet_block(layer_norm_epsilon=1e-3, kernel_initializer="he_normal"),
            {**QUERY_STREAM, "permutation_mask": (B, T, T)},
            SCORES,
        ),
    },
    "RelativePositionEncoding": {
        "plain": Case(
            lambda: layers.RelativePositionEncoding(2, max_wavelength=100), TOKENS
        ),
        "memory": Case(
            layers.RelativePositionEncoding, {"inputs": QUERY, "memory": MEMORY}
        ),
    },
    "TargetEmbedding": {
        "targets": Case(
            lambda: layers.TargetEmbedding("ones"),
            {"inputs": QUERY, "target_mapping": (B, TARGETS, T)},
        )
    },
    "SegmentMemory": {
        "fills": Case(
            lambda: layers.SegmentMemory(UNITS), {"inputs": QUERY, "memory": MEMORY}
        ),
        "forgets": Case(
            lambda: layers.SegmentMemory(S), {"inputs": QUERY, "memory": MEMORY}
        ),
    },
    "PadCache": {
        "room": Case(lambda: layers.PadCache(CACHE), {"inputs": (B, HEADS, T, KEY_DIM)})
    },
    "TokenEmbedding": {
        "ids": Case(
            lambda: layers.TokenEmbedding(UNITS, D, embeddings_initializer="normal"),
            {"inputs": (B, T)},
            ids_below=UNITS,
        ),
        "reverse": Case(
            lambda: layers.TokenEmbedding(UNITS, D),
            TOKENS,
            {"reverse": True},
            stays_float32=True,
        ),
    },
    "OutputBias": {
        "bias": Case(lambda: layers.OutputBias("ones"), TOKENS, stays_float32=True)
    },
    "PositionWeightedSum": {
        "plain": Case(lambda: layers.PositionWeightedSum(T), TOKENS),
        "padding": Case(
            lambda: layers.PositionWeightedSum(KNOWN, kernel_initializer="he_normal"),
            PADDED,
        ),
    },
    "WordGuidedAttention": {
        "plain": Case(
            layers.WordGuidedAttention,
            {"query": QUERY, "value": VALUE, "key": (B, S, D)},
        ),
        "padding_scores": Case(
            layers.WordGuidedAttention,
            {"query": QUERY, "value": VALUE, "key": (B, S, D), "padding_mask": (B, T)},
            SCORES,
        ),
    },
    "GlimpseAttention": {
        "plain": Case(
            lambda: layers.GlimpseAttention(UNITS), {"query": (B, D), "value": VALUE}
        ),
        "dropout_scores": Case(
            lambda: layers.GlimpseAttention(
                UNITS, 3, dropout=0.3, kernel_initializer="he_normal", seed=5
            ),
            {"query": (B, D), "value": VALUE},
            SCORES,
        ),
    },
    "TokenPooling": {
        how: Case(
            lambda how=how: layers.TokenPooling(how),
            PADDED,
            hides=how != "first",  # Padding is never the first token here.
        )
        for how in ("first", "last", "mean", "max", "mean_sqrt_length", "weighted_mean")
    },
    "Dropout": {
        "rank_3": Case(lambda: layers.Dropout(0.5, seed=5), TOKENS),
        "noise_shape": Case(
            lambda: layers.Dropout(0.25, noise_shape=(None, 1, None), seed=5), TOKENS
        ),
    },
    "BatchNormalization": {
        "maps": Case(layers.BatchNormalization, MAPS),
        "no_weights": Case(
            lambda: layers.BatchNormalization(center=False, scale=False, epsilon=1e-5),
            MAPS,
        ),
        "rank_3": Case(layers.BatchNormalization, TOKENS),
    },
    "LayerNormalization": {
        "rank_3": Case(layers.LayerNormalization, TOKENS),
        "rank_4": Case(lambda: layers.LayerNormalization(epsilon=1e-12), MAPS),
    },
    "FeedForward": {
        "relu": Case(lambda: layers.FeedForward(UNITS), TOKENS),
        "gelu_rank_4": Case(
            lambda: layers.FeedForward(
                UNITS,
                activation="gelu",
                dropout=0.5,
                use_bias=False,
                kernel_initializer="he_normal",
                seed=5,
            ),
            MAPS,
        ),
    },
    "Maxout": {
        "two": Case(layers.Maxout, {"inputs": (B, T, 2 * D)}),
        "three": Case(lambda: layers.Maxout(pieces=3), {"inputs": (B, 3 * D)}),
    },
    "SinusoidalPositionEmbedding": {
        "add": Case(
            lambda: layers.SinusoidalPositionEmbedding(max_wavelength=100), TOKENS
        ),
        "concatenate_positions": Case(
            lambda: layers.SinusoidalPositionEmbedding("concatenate", position_dim=E),
            {"inputs": QUERY, "positions": (B, T)},
        ),
        "grid_add": Case(layers.SinusoidalPositionEmbedding, {"inputs": (B, T, S, 22)}),
        "grid_concatenate": Case(
            lambda: layers.SinusoidalPositionEmbedding("concatenate", position_dim=6),
            MAPS,
        ),
    },
    "LearnedPositionEmbedding": {
        "add": Case(lambda: layers.LearnedPositionEmbedding(F), TOKENS),
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
