"""The layers of image models, each in several configurations."""

from typing import Any

import keras
from layer_contract import BLOCK_OPTIONS, HEADS, KNOWN, UNITS, B, Case, D, E, S, T

from keras_attn import layers

QUERY = (B, T, D)
IMAGE = (B, 6, 9, 3)
MAP = (B, 8, 9, 15)
PYRAMID = [(B, 17, 13, 3), (B, 9, 8, 3)]
BOXES = (B, 6, 4)
# Which map of the pyramid a box reads.
LEVELS: dict[str, Any] = {"strides": [4, 8], "canonical_size": 16, "canonical_level": 2}
# 13 proposals and 3 classes beside the background.
DETECTIONS = {
    "inputs": (B, 13, 4),
    "deltas": (B, 13, 16),
    "proposals": (B, 13, 4),
    "num_proposals": (B,),
}
QUERY_MAP = (B, T, 7, 3)

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
        "cropped": Case(
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
    "MinimumImageSize": {
        "not_square": Case(lambda: layers.MinimumImageSize((6, 5)), {"inputs": IMAGE}),
        "steps": Case(lambda: layers.MinimumImageSize(3, (3, 2)), {"inputs": IMAGE}),
    },
    "ImagePreprocessing": {
        "any_size": Case(
            lambda: layers.ImagePreprocessing(
                6,
                crop_size=(4, 9),
                resample="bilinear",
                crop_offset="round",
                passes="columns_first",
                mean=[0.5, 0.25, 1.0],
                std=[0.5, 2.0, 1.0],
            ),
            {"inputs": (B, T, S, 3)},
            stays_float32=True,
            pixels=True,
        ),
        "squashed": Case(
            lambda: layers.ImagePreprocessing((8, 5), scale=1.0),
            {"inputs": IMAGE},
            stays_float32=True,
            pixels=True,
        ),
    },
    "ResizeLike": {
        "larger": Case(
            layers.ResizeLike, {"inputs": (B, T, 7, D), "reference": (B, 11, 19, 1)}
        ),
        "smaller": Case(layers.ResizeLike, {"inputs": MAP, "reference": QUERY_MAP}),
    },
    "CropLike": {
        "offset": Case(
            lambda: layers.CropLike(2), {"inputs": MAP, "reference": QUERY_MAP}
        ),
        "same_size": Case(layers.CropLike, {"inputs": MAP, "reference": (B, 8, 9, 3)}),
    },
    "MaxPoolWithIndices": {
        "odd_columns": Case(layers.MaxPoolWithIndices, {"inputs": (B, KNOWN, T, 3)}),
        "padded": Case(
            lambda: layers.MaxPoolWithIndices((2, 3), padding="same"),
            {"inputs": (B, KNOWN, T, 3)},
        ),
        "known_size": Case(
            lambda: layers.MaxPoolWithIndices(3, padding="same"), {"inputs": MAP}
        ),
    },
    "MaxUnpool2D": {
        "odd_columns": Case(
            layers.MaxUnpool2D,
            {
                "inputs": (B, 6, 2, 3),
                "indices": (B, 6, 2, 3),
                "reference": (B, KNOWN, T, 1),
            },
        ),
        "padded": Case(
            lambda: layers.MaxUnpool2D((3, 2), padding="same"),
            {"inputs": (B, 3, 5, 15), "indices": (B, 3, 5, 15), "reference": MAP},
        ),
    },
    "UpsampleLike": {
        "any_size": Case(
            layers.UpsampleLike,
            {"inputs": (B, T, 7, D), "reference": (B, 10, KNOWN, 1)},
        ),
        "missing": Case(
            lambda: layers.UpsampleLike(3), {"inputs": MAP, "reference": (B, 19, 17, 1)}
        ),
        "centered": Case(
            lambda: layers.UpsampleLike(centered=True),
            {"inputs": (B, T, 7, D), "reference": (B, 19, KNOWN, 1)},
        ),
    },
    "TransposedConv2D": {
        "gaps": Case(
            lambda: layers.TransposedConv2D(
                UNITS, (1, 2), (3, 2), output_padding=(2, 1), use_bias=False
            ),
            {"inputs": MAP},
        ),
        "any_size": Case(
            lambda: layers.TransposedConv2D(
                E,
                4,
                2,
                padding=(1, 0),
                output_padding=(0, 1),
                activation="relu",
                kernel_initializer="he_normal",
                bias_initializer="ones",
            ),
            {"inputs": (B, T, 7, D)},
        ),
    },
    "AdditiveAttention2D": {
        "neighbours": Case(
            lambda: layers.AdditiveAttention2D(UNITS),
            {"query": QUERY, "value": (B, 3, 4, E), "padding_mask": (B, 3, 4)},
            {"return_attention_scores": True},
            hides=False,
        ),
        "places": Case(
            lambda: layers.AdditiveAttention2D(
                UNITS, (1, 2), use_bias=True, kernel_initializer="he_normal"
            ),
            {"query": QUERY, "value": (B, S, T, E)},
        ),
        "projected": Case(
            lambda: layers.AdditiveAttention2D(UNITS, 1),
            {"query": QUERY, "value": (B, 4, 3, E)},
            {"return_projected_key": True},
        ),
    },
    "ColumnMask": {
        "any_width": Case(layers.ColumnMask, {"widths": (B,), "images": (B, T, S, 3)})
    },
    "ClassToken": {
        "one": Case(lambda: layers.ClassToken(initializer="ones"), {"inputs": QUERY}),
        "two": Case(lambda: layers.ClassToken(2), {"inputs": (B, 9, D)}),
    },
    "PatchMerging": {
        "even": Case(layers.PatchMerging, {"inputs": (B, 8, 4, D)}),
        "odd": Case(
            lambda: layers.PatchMerging(UNITS, layer_norm_epsilon=1e-3), {"inputs": MAP}
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
        "mask": Case(layers.HiddenPatches, {"inputs": [(B, 8, D), (B, 8)]})
    },
    "WindowAttention": {
        "no_padding": Case(
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
                attention_bias=False,
                stochastic_depth=0.3,
                **BLOCK_OPTIONS,
            ),
            {"inputs": MAP},
        ),
        "shifted": Case(
            lambda: layers.SwinBlock(HEADS, UNITS, 3, shifted=True), {"inputs": MAP}
        ),
    },
    "AttentionPooling": {
        "plain": Case(
            lambda: layers.AttentionPooling(HEADS), {"inputs": (B, 4, 3, 15)}
        ),
        "narrower": Case(
            lambda: layers.AttentionPooling(
                HEADS,
                E,
                kernel_initializer="he_normal",
                embeddings_initializer="he_normal",
            ),
            {"inputs": (B, 6, 1, 15)},  # Scores of S positions.
            {"return_attention_scores": True},
        ),
    },
    "ProbePooling": {
        "plain": Case(lambda: layers.ProbePooling(1, UNITS), {"inputs": QUERY}),
        "scores": Case(
            lambda: layers.ProbePooling(
                HEADS,
                UNITS,
                activation="quick_gelu",
                layer_norm_epsilon=1e-3,
                kernel_initializer="he_normal",
                probe_initializer="he_normal",
            ),
            {"inputs": (B, T, 15)},
            {"return_attention_scores": True},
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
        )
    },
    "StandardizedConv2D": {
        "strided": Case(
            lambda: layers.StandardizedConv2D(
                UNITS, 3, epsilon=1e-3, strides=2, padding="same"
            ),
            {"inputs": MAP},
        )
    },
    "FeaturePyramid": {
        "odd": Case(
            lambda: layers.FeaturePyramid(UNITS), {"inputs": [*PYRAMID, (B, 4, 3, 6)]}
        ),
        "no_extra_level": Case(
            lambda: layers.FeaturePyramid(
                E, extra_level=False, kernel_initializer="he_normal"
            ),
            {"inputs": PYRAMID},
        ),
    },
    "ROIAlign": {
        "one_map": Case(
            lambda: layers.ROIAlign(
                (3, 4), strides=[4], sampling_ratio=3, aligned=True
            ),
            {"inputs": MAP, "boxes": BOXES},
        ),
        "pyramid": Case(
            lambda: layers.ROIAlign(3, **LEVELS), {"inputs": PYRAMID, "boxes": BOXES}
        ),
    },
    "ROIPool": {
        "one_map": Case(
            lambda: layers.ROIPool((3, 4), strides=[4]), {"inputs": MAP, "boxes": BOXES}
        ),
        "pyramid": Case(
            lambda: layers.ROIPool(3, **LEVELS), {"inputs": PYRAMID, "boxes": BOXES}
        ),
    },
    "RegionProposal": {
        "pyramid": Case(
            lambda: layers.RegionProposal(
                [[8], [16]],
                [4, (8, 7)],
                (67, 51),
                num_proposals=19,
                candidates_per_level=31,
                kernel_initializer="he_normal",
                seed=3,
            ),
            {"inputs": PYRAMID},
            stays_float32=True,
            ranks=True,
        ),
        "fewer_boxes_than_proposals": Case(
            lambda: layers.RegionProposal(
                [[8, 16]], [8], 64, aspect_ratios=[1.0], num_proposals=293
            ),
            {"inputs": [MAP]},
            stays_float32=True,
            ranks=True,
        ),
    },
    "SelectDetections": {
        "classes": Case(
            lambda: layers.SelectDetections(
                (61, 83),
                max_detections=11,
                max_candidates=23,
                bounding_box_format="xywh",
            ),
            DETECTIONS,
            stays_float32=True,
            ranks=True,
        ),
        "any_class": Case(
            lambda: layers.SelectDetections(
                (61, 83),
                any_class=True,
                class_distributions=True,
                score_threshold=0.0,
                seed=3,
            ),
            DETECTIONS,
            stays_float32=True,
            ranks=True,
        ),
    },
    "SelectMasks": {
        "one": Case(
            lambda: layers.SelectMasks(aligned=False),
            {"inputs": (B, 6, 3, 4, E), "classes": (B, 6)},
            stays_float32=True,
        )
    },
    "LayerScale": {"rank_3": Case(lambda: layers.LayerScale(0.1), {"inputs": QUERY})},
    "StochasticDepth": {
        "rank_3": Case(lambda: layers.StochasticDepth(0.25, seed=5), {"inputs": QUERY})
    },
}
