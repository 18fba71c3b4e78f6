"""The layers of models of images and texts, each in several configurations."""

from layer_contract import BLOCK_OPTIONS, KEY_DIM, UNITS, B, Case, D, E, S, T

from keras_attn import layers

QUERY = (B, T, D)
STREAMS = {"regions": (B, S, E), "tokens": QUERY}
SCORES = {"return_attention_scores": True}

CASES = {
    "CoAttentionBlock": {
        "regions": Case(
            lambda: layers.CoAttentionBlock(2, 2 * KEY_DIM, UNITS, 13, **BLOCK_OPTIONS),
            {**STREAMS, "region_padding_mask": (B, S)},
        ),
        "tokens": Case(
            lambda: layers.CoAttentionBlock(2, 2 * KEY_DIM, UNITS, 13),
            {**STREAMS, "padding_mask": (B, T)},
            SCORES,
        ),
    },
    "GlobalRegion": {
        "regions": Case(
            layers.GlobalRegion,
            {"features": (B, S, E), "boxes": (B, S, 4), "region_padding_mask": (B, S)},
            hides=False,
        )
    },
    "EndTokenPooling": {
        "largest": Case(layers.EndTokenPooling, {"inputs": QUERY, "token_ids": (B, T)}),
        "first_of_id": Case(
            lambda: layers.EndTokenPooling(3), {"inputs": QUERY, "token_ids": (B, T)}
        ),
    },
    "SimilarityLogits": {
        "scale": Case(
            lambda: layers.SimilarityLogits(2.0),
            {"inputs": (B, D), "others": (3, D)},
            stays_float32=True,
        ),
        "bias": Case(
            lambda: layers.SimilarityLogits(
                0.5, max_scale=None, initial_bias=-1.0, dtype="float32"
            ),
            {"inputs": (B, D), "others": (3, D)},
            stays_float32=True,
        ),
    },
    "CaptionEmbedding": {
        "padded": Case(
            lambda: layers.CaptionEmbedding(
                E, UNITS, 2 * T, embeddings_initializer="he_normal"
            ),
            {"token_ids": (B, T), "padding_mask": (B, T)},
        )
    },
    "ImageCodeEmbedding": {
        "whole": Case(
            lambda: layers.ImageCodeEmbedding(
                E, UNITS, (2, S), embeddings_initializer="he_normal"
            ),
            {"codes": (B, T)},
        ),
        "positions": Case(
            lambda: layers.ImageCodeEmbedding(E, UNITS, (2, S)),
            {"codes": (B, T), "positions": (B, T)},
        ),
    },
    "TextImageMask": {
        kind: Case(
            lambda kind=kind: layers.TextImageMask(kind, 3, 2, window_size=3),
            {"query_positions": (B, T), "key_positions": (B, S)},
        )
        for kind in ("row", "column", "convolutional")
    },
    "GumbelSoftmax": {
        "annealed": Case(
            lambda: layers.GumbelSoftmax(
                temperature=0.75,
                final_temperature=0.25,
                temperature_steps=3,
                kl_weight=2.0,
                kl_steps=5,
                seed=3,
            ),
            {"inputs": QUERY},
            stays_float32=True,
        )
    },
    "CodeProjection": {
        "codes": Case(
            lambda: layers.CodeProjection(E, UNITS, kernel_initializer="he_normal"),
            {"inputs": (B, S, T)},
            ids_below=E,
        ),
        "weights": Case(lambda: layers.CodeProjection(D, UNITS), {"inputs": QUERY}),
    },
}
