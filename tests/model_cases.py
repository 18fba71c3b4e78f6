"""Every model of the registry and every head at a tiny size, built once per session.

Sizes are distinct primes, so that swapped axes are noticed: B=2 rows, T=3 target and
S=5 source tokens, U=7 units, E=11 embedding, M=13 maxout, A=17 alignment units, V=19
target and 23 source tokens. Models of blocks: 3 heads of 7, C=29 classes, 31 positions,
37 hidden units. Images: 14 by 21 pixels in patches of 7; for Swin and ConvNeXt 18 by 26
in patches of 2, so that neither windows of 4 nor stages divide the map.
"""

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn import models
from keras_attn.models.parts.detection.detector import Detector

B, T, S, U, E, M, A, V, SOURCE_V = 2, 3, 5, 7, 11, 13, 17, 19, 23
HEADS, D, C, POSITIONS, MLP = 3, 21, 29, 31, 37
TARGETS = [[0, 2], [1, 2]]  # Masked positions: real tokens in every row.

_SEQ2SEQ = {
    "source_vocabulary_size": SOURCE_V,
    "target_vocabulary_size": V,
    "embedding_dim": E,
    "hidden_dim": U,
}
_CAPTIONS = {
    "grid_size": (2, 3),
    "feature_dim": 5,
    "vocabulary_size": V,
    "embedding_dim": E,
}
_BLOCKS = {
    "vocabulary_size": V,
    "num_layers": 2,
    "hidden_dim": D,
    "num_heads": HEADS,
    "mlp_dim": MLP,
}
_CLASSES = {"num_classes": C}
_POSITIONED = {**_BLOCKS, "max_sequence_length": POSITIONS}
_IMAGES = {"image_size": (14, 21), "patch_size": 7}
_VIT = {
    **_IMAGES,
    "num_layers": 2,
    "hidden_dim": D,
    "num_heads": HEADS,
    "mlp_dim": MLP,
    "num_classes": C,
}
_STAGES = {"image_size": (18, 26), "patch_size": 2, "num_classes": C}
_MAE = {
    **{name: size for name, size in _VIT.items() if name != "num_classes"},
    "hidden_dim": 4 * HEADS,
    "decoder_num_layers": 1,
    "decoder_hidden_dim": 4 * U,
    "decoder_num_heads": 2,
    "decoder_mlp_dim": 41,
    # Otherwise every call would mask other patches.
    "noise": True,
}
_SAGAN = {"image_size": 16, "base_dim": 8, "attention_size": 8, "num_classes": C}
# Every anchor and every proposal is a sample, so that no random choice is left.
_ALL = {"num_samples": 10_000, "positive_fraction": 0.5}
_DETECTOR = {
    "num_classes": M,
    "head_dim": A,
    "num_proposals": 19,
    "num_training_proposals": 23,
    "max_detections": E,
    "proposal_options": {**_ALL, "candidates_per_level": 31},
    "detection_options": _ALL,
}
_PYRAMID_DETECTOR = {
    **_DETECTOR,
    "image_size": (51, 79),
    "stem_dim": 3,
    "num_blocks": (1, 1),
    "num_frozen": 0,
    "pyramid_dim": U,
    "anchor_sizes": (7, 13, 29),
}
_CAPTIONER = {
    "vocabulary_size": V,
    "num_layers": 2,
    "num_heads": HEADS,
    "hidden_dim": 4 * HEADS,
    "mlp_dim": MLP,
}
_GRID = {"grid_size": (3, 7), "feature_dim": M}
# One model for all names of the patterns, whose graphs are equal at a tiny size.
GRAPHS = {
    "seq2seq_sutskever": ("seq2seq_sutskever", {**_SEQ2SEQ, "num_layers": 2}),
    "seq2seq_context": ("seq2seq_context", {**_SEQ2SEQ, "maxout_dim": M}),
    "rnnsearch_50": (
        "rnnsearch_*",
        {**_SEQ2SEQ, "attention_dim": A, "maxout_dim": M},
    ),
    "caption_show_and_tell": (
        "caption_show_and_tell",
        {**_CAPTIONS, "hidden_dim": U, "dropout": 0.3},
    ),
    "caption_show_attend_tell": (
        "caption_show_attend_tell",
        {
            **_CAPTIONS,
            "hidden_dim": U,
            "attention_dim": A,
            "initial_dim": M,
            "dropout": 0.3,
        },
    ),
    "listen_attend_spell": (
        "listen_attend_spell",
        {
            "vocabulary_size": V,
            "num_mels": E,
            "listener_dim": U,
            "num_pyramid_layers": 2,
            "embedding_dim": M,
            "hidden_dim": C,
            "num_layers": 2,
            "attention_dim": A,
            "readout_dim": POSITIONS,
            "sampling_probability": 0.0,
        },
    ),
    "listen_attend_walk": (
        "listen_attend_walk",
        {
            "vocabulary_size": V,
            "world_dim": M,
            "num_actions": C,
            "embedding_dim": E,
            "hidden_dim": U,
            "attention_dim": A,
            "dropout": 0.3,
        },
    ),
    "transformer_base": ("transformer_*", {**_BLOCKS, "dropout": 0.1}),
    "bert_base": ("bert_*", _POSITIONED),
    "roberta_base": ("roberta_*", _POSITIONED),
    "xlnet_base": ("xlnet_*", _BLOCKS),
    "xlm_mlm_tlm_xnli15": ("xlm_*", {**_POSITIONED, "num_languages": 2}),
    "gpt_117m": ("gpt_*", _POSITIONED),
    "gpt2_small": ("gpt2_* megatron_*", _POSITIONED),
    "gpt3_small": ("gpt3_*", {**_POSITIONED, "window": 2}),
    "vit_base_patch16": ("vit_tiny_* vit_small_* vit_base_* vit_l* vit_huge_*", _VIT),
    "vit_hybrid_r50_base_patch16": (
        "vit_hybrid_*",
        {
            **{name: size for name, size in _VIT.items() if name != "patch_size"},
            "image_size": (32, 48),
            "num_blocks": (1, 2, 1),
            "stem_dim": 32,
        },
    ),
    "deit3_base": ("deit3_*", _VIT),
    "mae_vit_base": ("mae_vit_*", _MAE),
    "swin_tiny": (
        "swin_*",
        {
            **_STAGES,
            "window_size": 4,
            "hidden_dim": 4 * HEADS,
            "num_blocks": (2, 2),
            "num_heads": (2, HEADS),
            "stochastic_depth": 0.0,
        },
    ),
    "convnext_tiny": (
        "convnext_*",
        {**_STAGES, "hidden_dims": (U, M), "num_blocks": (2, 1)},
    ),
    "resnet18": (
        "resnet18 resnet34",
        {"image_size": (18, 26), "stem_dim": 5, "num_blocks": (2, 1), **_CLASSES},
    ),
    "resnet50": (
        "resnet50 resnet101 resnet152",
        {"image_size": (18, 26), "stem_dim": 5, "num_blocks": (2, 1), **_CLASSES},
    ),
    "vgg16": (
        "vgg*",
        {
            "image_size": (18, 26),
            "hidden_dims": (U, M),
            "num_convs": (1, 2),
            "fully_connected_dims": (E,),
            **_CLASSES,
        },
    ),
    "show_attend_read": (
        "show_attend_read",
        {
            "image_size": (19, 26),
            "stem_dims": (5, U),
            "hidden_dims": (U, U, E, M),
            "num_blocks": (1, 1, 1, 1),
            "vocabulary_size": V,
            "hidden_dim": U,
            "attention_dim": A,
        },
    ),
    "fcn8s_vgg16": (
        "fcn8s_* fcn16s_* fcn32s_*",
        {
            "skips": (3, 2),
            "image_size": (19, 27),
            "hidden_dims": (3, 5, U, 3, E),
            "num_convs": (1, 1, 1, 1, 1),
            "fully_connected_dims": (M,),
            # Maps have 217 x 225 pixels, whose scores JAX enlarges slowly.
            "num_classes": 5,
        },
    ),
    "fcn_resnet50": (
        "fcn_resnet*",
        {
            "image_size": (19, 27),
            "stem_dim": 5,
            "num_blocks": (1, 2),
            **_CLASSES,
            "dilated_stages": (1,),
        },
    ),
    "segnet": (
        "segnet",
        {
            "image_size": (19, 27),
            "hidden_dims": (5, U),
            "num_convs": (2, 1),
            **_CLASSES,
        },
    ),
    "deconvnet_vgg16": (
        "deconvnet_*",
        {
            "image_size": (19, 27),
            "hidden_dims": (5, U),
            "num_convs": (1, 2),
            "fully_connected_dims": (E, M),
            "fully_connected_size": 3,
            **_CLASSES,
        },
    ),
    "unet": (
        "unet",
        {
            "image_size": (18, 22),
            "hidden_dims": (5, U),
            "num_channels": 3,
            "dropout": 0.3,
            **_CLASSES,
        },
    ),
    "sagan_generator_128": ("sagan_generator_*", {**_SAGAN, "latent_dim": M}),
    "sagan_discriminator_128": ("sagan_discriminator_*", _SAGAN),
    "cnn_self_attention": (
        "cnn_self_attention",
        {"image_size": (14, 18), "hidden_dims": (E, A), "num_classes": C},
    ),
    "faster_rcnn_resnet50": ("faster_rcnn_resnet*", _PYRAMID_DETECTOR),
    "mask_rcnn_resnet50": (
        "mask_rcnn_*",
        {**_PYRAMID_DETECTOR, "mask_dim": 5, "num_mask_layers": 1},
    ),
    "faster_rcnn_vgg16": (
        "faster_rcnn_vgg16",
        {
            **_DETECTOR,
            "image_size": (37, 53),
            "hidden_dims": (5, U),
            "num_convs": (1, 2),
            "num_frozen": 0,
            "anchor_sizes": (7, 17),
        },
    ),
    "caption_cnn_transformer": (
        "caption_cnn_transformer",
        {**_CAPTIONER, "grid_size": (2, 5), "feature_dim": U, "dropout": 0.1},
    ),
    "caption_vit_transformer": (
        "caption_vit_transformer",
        {
            **_CAPTIONER,
            "encoder": {k: x for k, x in _VIT.items() if k != "num_classes"},
            "max_sequence_length": POSITIONS,
        },
    ),
    "show_attend_interact": (
        "show_attend_interact",
        {
            "image_size": (19, 23),
            "num_channels": 2,
            "hidden_dims": (5, U),
            "kernel_sizes": (5, 3),
            "strides": (3, 2),
            "attention_dim": A,
            "hidden_dim": M,
            "num_actions": 4,
        },
    ),
    "vqa_ask_attend_answer": (
        "vqa_ask_*",
        {
            **_GRID,
            "vocabulary_size": V,
            "max_question_length": POSITIONS,
            "embedding_dim": E,
            "num_answers": C,
        },
    ),
    "vqa_show_ask_attend_answer": (
        "vqa_show_*",
        {
            **_GRID,
            "vocabulary_size": V,
            "embedding_dim": E,
            "hidden_dim": U,
            "attention_dim": A,
            "classifier_dim": MLP,
            "num_answers": C,
        },
    ),
}
# The model in `GRAPHS` for every name.
GRAPH_OF = {
    name: graph
    for graph, (patterns, _) in GRAPHS.items()
    for pattern in patterns.split()
    for name in models.list_models(pattern)
}
TINY = {name: GRAPHS[graph][1] for name, graph in GRAPH_OF.items()}

SCORES = ("additive", "dot", "scaled_dot", "general", "linear")
_ENCODER_HEADS = {
    "masked_lm": {},
    "next_sentence": {},
    "classifier": _CLASSES,
    "token_classifier": _CLASSES,
    "span_qa": {},
    "sentence_encoder": {},
}
# The other heads are those of BERT on another encoder; parity tests cover them all.
_OWN_HEADS = {name: _ENCODER_HEADS[name] for name in ("masked_lm", "classifier")}
_BERT_HEADS = {
    **_ENCODER_HEADS,
    "masked_lm-positions": {"masked_positions": True},
    "pretrainer": {},
    "sentence_encoder-first": {"pooling": "first", "normalize": False},
}
_XLNET_HEADS = {
    **{name: own for name, own in _ENCODER_HEADS.items() if name != "masked_lm"},
    "permutation_lm": {},
    "permutation_lm-content": {"two_stream": False},
}
_GPT_HEADS = {"encoder": {}, "classifier": _CLASSES, "token_classifier": _CLASSES}


@dataclass(frozen=True)
class Case:
    """A model under test.

    Attributes:
        name: Registry name of the model, or of the encoder under the head.
        options: Arguments of the model's builder besides the tiny sizes.
        head: Builder of the head; None for the model itself.
        head_options: Arguments of `head`.
    """

    name: str
    options: dict = field(default_factory=dict)
    head: Callable[..., Any] | None = None
    head_options: dict = field(default_factory=dict)


def _heads(name, family, table):
    return {
        f"{family}_{head}": Case(
            name,
            head=getattr(models, f"build_{family}_{head.partition('-')[0]}"),
            head_options=options,
        )
        for head, options in table.items()
    }


# Everything under test: the graphs, variations by builder options, and the heads.
CASES = {
    **{name: Case(name) for name in GRAPHS},
    **{
        f"rnnsearch_50-{score}": Case("rnnsearch_50", {"score": score})
        for score in SCORES[1:]
    },
    "rnnsearch_50-scores": Case(
        "rnnsearch_50", {"return_attention_scores": True, "dropout": 0.3}
    ),
    "caption_show_and_tell-context": Case(
        "caption_show_and_tell", {"image_as": "context"}
    ),
    "caption_show_attend_tell-scores": Case(
        "caption_show_attend_tell", {"return_attention_scores": True}
    ),
    "caption_show_attend_tell-hard": Case(
        "caption_show_attend_tell",
        {"attention": "hard", "seed": 1},
    ),
    "listen_attend_spell-sampling": Case(
        "listen_attend_spell",
        {
            "sampling_probability": 0.5,
            "num_pyramid_layers": 1,
            "return_attention_scores": True,
        },
    ),
    "listen_attend_walk-scores": Case(
        "listen_attend_walk", {"return_attention_scores": True}
    ),
    "transformer_base-pre_norm": Case("transformer_base", {"norm_first": True}),
    "caption_cnn_transformer-scores": Case(
        "caption_cnn_transformer", {"return_attention_scores": True, "norm_first": True}
    ),
    "xlm_mlm_tlm_xnli15-positions": Case("xlm_mlm_tlm_xnli15", {"position_ids": True}),
    "xlnet_base-memory": Case("xlnet_base", {"memory_length": S}),
    "vit_base_patch16-features": Case("vit_base_patch16", {"include_top": False}),
    "vit_base_patch16-mean": Case(
        "vit_base_patch16", {"pooling": "mean", "class_token": False}
    ),
    "vit_base_patch16-stem": Case(
        "vit_base_patch16",
        {"stem_dims": (5, 11), "patch_size": 4, "image_size": (8, 12)},
    ),
    "vit_base_patch16-no_qkv_bias": Case("vit_base_patch16", {"qkv_bias": False}),
    "swin_tiny-features": Case("swin_tiny", {"include_top": False}),
    "convnext_tiny-features": Case("convnext_tiny", {"include_top": False}),
    "convnext_tiny-any_size": Case("convnext_tiny", {"image_size": None}),
    "convnext_tiny-any_size_features": Case(
        "convnext_tiny", {"image_size": (None, None), "include_top": False}
    ),
    "resnet50-any_size_features": Case(
        "resnet50", {"image_size": None, "include_top": False}
    ),
    "resnet50-dilated": Case(
        "resnet50", {"dilated_stages": (1,), "frozen_norms": True, "num_frozen": 1}
    ),
    "vgg16-any_size_features": Case(
        "vgg16", {"image_size": None, "include_top": False}
    ),
    "show_attend_read-any_width": Case(
        "show_attend_read",
        {
            "image_size": (19, None),
            "widths": False,
            "return_attention_scores": True,
        },
    ),
    "fcn8s_vgg16-any_size": Case("fcn8s_vgg16", {"image_size": None, "skips": (3,)}),
    "fcn8s_vgg16-32s": Case("fcn8s_vgg16", {"skips": ()}),
    "fcn_resnet50-any_size": Case(
        "fcn_resnet50", {"image_size": None, "auxiliary_head": False}
    ),
    "segnet-any_size": Case("segnet", {"image_size": None}),
    "deconvnet_vgg16-any_size": Case("deconvnet_vgg16", {"image_size": None}),
    "vqa_ask_attend_answer-scores": Case(
        "vqa_ask_attend_answer",
        {"return_attention_scores": True, "return_word_correlations": True},
    ),
    "vqa_ask_attend_answer-one_hop": Case("vqa_ask_attend_answer", {"num_hops": 1}),
    "vqa_show_ask_attend_answer-scores": Case(
        "vqa_show_ask_attend_answer", {"return_attention_scores": True}
    ),
    "show_attend_interact-scores": Case(
        "show_attend_interact", {"return_attention_scores": True}
    ),
    "unet-same_any_size": Case("unet", {"image_size": None, "padding": "same"}),
    **_heads("bert_base", "bert", _BERT_HEADS),
    **_heads("roberta_base", "roberta", _OWN_HEADS),
    **_heads("xlnet_base", "xlnet", _XLNET_HEADS),
    **_heads("xlm_mlm_tlm_xnli15", "xlm", _OWN_HEADS),
    **_heads("gpt2_small", "gpt", _GPT_HEADS),
}
SEQ2SEQ = [
    case
    for case, made in CASES.items()
    if made.name.startswith(("rnnsearch", "seq2seq"))
]
# Cases by the kind of their inputs.
TEXT = [
    case
    for case, made in CASES.items()
    if "padding_mask" in models.describe(made.name).inputs
]
IMAGES = [case for case in CASES if case not in TEXT]
_DENSE = ("fcn", "segnet", "deconvnet", "unet", "faster_rcnn", "mask_rcnn")
# Models of pixels and of boxes, and all other models of images.
DENSE = [case for case in IMAGES if case.startswith(_DENSE)]
WHOLE_IMAGES = [case for case in IMAGES if case not in DENSE]
# Models that continue a prompt.
DECODERS = [
    case
    for case, made in CASES.items()
    if made.head is None
    and made.name.startswith(
        (
            *("rnnsearch", "seq2seq", "listen", "transformer", "gpt", "caption"),
            "show_attend_read",
        )
    )
]
# One of each kind of recurrent decoder.
KINDS = ("seq2seq_sutskever", "seq2seq_context", "rnnsearch_50")


def build(case, **overrides):
    """A new model of a case, initialized as usual."""
    made = CASES[case]
    sizes = {**TINY[made.name], **made.options, **overrides}
    model = models.create(made.name, **sizes)
    return model if made.head is None else made.head(model, **made.head_options)


def create(case, **overrides):
    """A new model of a case with larger random weights.

    Initial biases are zero and Glorot kernels are small; in tests of numbers both must
    have an effect.
    """
    return randomize(build(case, **overrides))


@functools.cache
def _built(case):
    """The model of a case, and its initial weights at seed 1."""
    # Not in the precision of the test that happens to need it first.
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    try:
        model, weights = seeded(case, 1)
    finally:
        keras.config.set_dtype_policy(policy)
    return randomize(model), weights


def seeded(case, seed):
    """A new model of a case built with a seed, and its initial weights by path."""
    keras.utils.set_random_seed(seed)
    model = build(case)
    return model, {weight.path: numpy(weight) for weight in model.weights}


def tiny(case):
    """The model of a case, built once: tests must not train or change it."""
    return _built(case)[0]


def initial_weights(case):
    """The initial weights of `tiny(case)` at seed 1, by path."""
    return _built(case)[1]


def digest(weights):
    """A checksum of arrays by name."""
    checksum = hashlib.sha256()
    for name, values in weights.items():
        checksum.update(name.encode() + values.tobytes())
    return checksum.hexdigest()


# Otherwise boxes would be outside of the image, and probabilities 0 or 1.
_SMALL_LAYERS = ("region_proposal", "box_deltas", "class_logits")
_SMALL_LAYERS += ("attention_embedding", "evidence_embedding")


def randomize(model, seed=0, scale=0.6):
    """Resamples every weight of a model from N(0, scale²); variances are positive.

    Kernels of convolutions, and of maps that are flattened, are smaller: their sums are
    long, and softmax would be one-hot.
    """
    rng = np.random.default_rng(seed)
    weights = []
    for weight in model.weights:
        value = rng.normal(0, scale, weight.shape)
        if np.prod(weight.shape[:-1]) > 300 or len(weight.shape) == 4:
            value *= 2 / np.sqrt(np.prod(weight.shape[:-1]))
        if any(layer in weight.path for layer in _SMALL_LAYERS):
            value *= 0.1
        if weight.name == "moving_variance":
            value = np.abs(value) + 0.1
        weights.append(value.astype("float32"))
    model.set_weights(weights)
    return model


def varied(case, **overrides):
    """A decoder that does not repeat one token, and depends on positions."""
    model = randomize(create(case, **overrides), seed=1, scale=0.1)
    for weight in model.weights:
        if weight.path.endswith("gamma"):
            weight.assign(1.0 + 3 * weight.value)
        elif "position_embedding" in weight.path:
            weight.assign(3 * weight.value)
    return model


def layer_names(model):
    """The names of a model's layers, without those of its inputs."""
    return {
        layer.name
        for layer in model.layers
        if not isinstance(layer, keras.layers.InputLayer)
    }


def dropout_rates(model):
    """The rate of every layer of Keras' `Dropout`, by its name."""
    return {
        layer.name: layer.rate
        for layer in model.layers
        if isinstance(layer, keras.layers.Dropout)
    }


def make_inputs(batch=B, source=S, target=T, seed=1, padded=True):
    """Inputs of an encoder-decoder; all rows but the first end in padding."""
    rng = np.random.default_rng(seed)
    lengths = np.full(batch, source)
    if padded:
        lengths[1:] = source - 2
    mask = np.arange(source) < lengths[:, None]
    token_ids = rng.integers(1, V, (batch, source)).astype("int32")
    return {
        "token_ids": np.where(mask, token_ids, 0).astype("int32"),
        "padding_mask": mask,
        "decoder_token_ids": rng.integers(1, V, (batch, target)).astype("int32"),
    }


def image_shape(shape):
    """The shape with odd sizes in place of None, which patches do not divide."""
    if len(shape) == 4:  # Frames.
        return [T, *shape[1:]]
    return [size or (19, 27)[axis] for axis, size in enumerate(shape)]


def inputs_for(model, batch=B, length=S, target=T, seed=1, padded=True) -> dict:
    """Inputs of any model, by name; all rows but the first end in padding."""
    rng = np.random.default_rng(seed)
    names = {tensor.name for tensor in model.inputs}
    if names & {"images", "noise", "gray"} and "decoder_token_ids" not in names:
        return {
            tensor.name: rng.integers(0, C, batch).astype("int32")
            if tensor.name == "labels"
            else rng.normal(size=(batch, *image_shape(tensor.shape[1:]))).astype(
                "float32"
            )
            for tensor in model.inputs
        }
    positions = np.tile(np.arange(length, dtype="int32"), (batch, 1))
    targets = np.resize(np.array(TARGETS, "int32"), (batch, 2))
    order = (2 * positions + 3) % length  # An order of prediction: 3 0 2 4 1.
    inputs = {
        **make_inputs(batch, length, target, seed, padded),
        "decoder_padding_mask": np.ones((batch, target), bool),
        "segment_ids": rng.integers(0, 2, (batch, length)).astype("int32"),
        "language_ids": rng.integers(0, 2, (batch, length)).astype("int32"),
        "position_ids": positions,
        "masked_positions": targets,
        "permutation_mask": order[:, :, None] > order[:, None],
        "target_mapping": np.eye(length, dtype="float32")[targets],
    }
    for tensor in model.inputs:
        if tensor.name == "world_state":  # One per step, or that of a single step.
            sizes = (target,) * (len(tensor.shape) - 2) + tensor.shape[-1:]
            world = rng.normal(size=(batch, *sizes))
            inputs["world_state"] = world.astype("float32")
    memory = rng.normal(size=(batch, 4, D)).astype("float32")
    for tensor in model.inputs:
        if tensor.name in ("images", "features"):
            # Frames of speech have one axis before their width, maps have two.
            sizes = image_shape(tensor.shape[1:])
            sizes = (length, sizes[-1]) if len(sizes) == 2 else sizes
            values = rng.normal(size=(batch, *sizes))
            inputs[tensor.name] = values.astype("float32")
            widths = [sizes[1], *(batch - 1) * [sizes[1] // 2]]
            inputs["widths"] = np.array(widths, "int32")
    return {
        tensor.name: memory
        if tensor.name.startswith("memory_")
        else inputs[tensor.name]
        for tensor in model.inputs
    }


def learns_from_words(model):
    """Whether a model's own loss needs words as labels: hard attention."""
    return any(getattr(layer, "hard", False) for layer in model.layers)


def is_detector(model):
    """Whether a model learns from boxes, by losses of its own."""
    return isinstance(model, Detector)


def truth_for(model, batch=B) -> dict:
    """Objects to detect: some rows have fewer, the second row has none."""
    rng = np.random.default_rng(5)
    height, width = model.input.shape[1:3]
    corners = rng.uniform(0, 0.5, (batch, 3, 2)) * [width, height]
    sizes = rng.uniform(0.2, 0.5, (batch, 3, 2)) * [width, height]
    classes = rng.integers(0, M, (batch, 3)).astype("int32")
    classes[0, 2] = -1
    classes[1] = -1
    truth = {
        "boxes": np.concatenate([corners, corners + sizes], axis=-1).astype("float32"),
        "classes": classes,
    }
    if model.has_masks:
        masks = rng.random((batch, 3, height, width)) < 0.5
        truth["masks"] = masks.astype("int32")
    return truth


def numpy(tensor) -> Any:
    """A tensor of any backend, or a dictionary of tensors, as NumPy arrays."""
    if isinstance(tensor, dict):
        return {name: numpy(value) for name, value in tensor.items()}
    return np.asarray(ops.convert_to_numpy(tensor))


def given(model, inputs):
    """Inputs as the model takes them: a dictionary, or a single array."""
    if isinstance(model.input, dict):
        return inputs
    (single,) = inputs.values()
    return single


def eager_outputs_of(model, inputs, **call) -> dict[str, Any]:
    """The outputs of an eager call by name; a single output is called `logits`."""
    outputs = numpy(model(given(model, inputs), **call))
    return outputs if isinstance(outputs, dict) else {"logits": outputs}


def outputs_of(model, inputs, **call) -> dict[str, Any]:
    """The outputs by name; a single output is called `logits`.

    Eager on TensorFlow. JAX compiles each operation of an eager call by itself, which
    takes several times as long as the call compiled as a whole.
    """
    if keras.backend.backend() != "jax":
        return eager_outputs_of(model, inputs, **call)
    outputs = numpy(
        _compiled_on_jax(model, *call.items())(
            [variable.value for variable in model.trainable_variables],
            [variable.value for variable in model.non_trainable_variables],
            given(model, inputs),
        )
    )
    return outputs if isinstance(outputs, dict) else {"logits": outputs}


# A test calls one or two models; an entry keeps its model.
@functools.lru_cache(maxsize=2)
def _compiled_on_jax(model, *call):
    import jax

    def outputs(trainable, fixed, inputs):
        return model.stateless_call(trainable, fixed, inputs, **dict(call))[0]

    return jax.jit(outputs)


def logits_of(model, inputs) -> Any:
    """The logits of an eager call, (B, T, V)."""
    return outputs_of(model, inputs, training=False)["logits"]
