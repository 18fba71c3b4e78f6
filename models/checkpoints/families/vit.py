"""ViT, DeiT and ViT-MAE checkpoints: one body under one set of names.

DeiT's has a second token, and MAE's a decoder. What MAE trained is read as a ViT by
`task="encoder"` or `"classifier"`.
"""

import math

import numpy as np

from keras_attn.layers import TransformerEncoderBlock
from keras_attn.models.checkpoints.mapping import (
    ACTIVATIONS,
    IMAGE_TASKS,
    Family,
    Weight,
    activation_name,
    call_builders,
    convolution,
    dense,
    fused,
    get_bool,
    get_choice,
    get_epsilon,
    get_image_size,
    get_num_blocks,
    get_pair,
    get_probability,
    get_size,
    head_weights,
    label_fields,
    linear,
    norm,
    one_or_two,
    same,
    top_arguments,
)
from keras_attn.models.mae import build_mae
from keras_attn.models.vit import build_vit
from keras_attn.ops.patches import resize_positions


def _body_arguments(config):
    return {
        "image_size": get_image_size(config, "image_size", 224),
        "patch_size": get_pair(config, "patch_size", 16),
        "num_channels": get_size(config, "num_channels", 3),
        "num_layers": get_num_blocks(config, "num_hidden_layers", 12),
        "hidden_dim": get_size(config, "hidden_size", 768),
        "num_heads": get_size(config, "num_attention_heads", 12),
        "mlp_dim": get_size(config, "intermediate_size", 3072),
        "activation": get_choice(config, "hidden_act", ACTIVATIONS, "gelu"),
        "layer_norm_epsilon": get_epsilon(config, "layer_norm_eps", 1e-12),
        "qkv_bias": get_bool(config, "qkv_bias", True),
    }


def _vit_arguments(config, task):
    return {
        **_body_arguments(config),
        "dropout": get_probability(config, "hidden_dropout_prob", 0.0),
        "attention_dropout": get_probability(
            config, "attention_probs_dropout_prob", 0.0
        ),
        **top_arguments(config, task),
    }


def _build_vit(config, task, overrides):
    return call_builders([build_vit], [_vit_arguments(config, task)], overrides)


def _build_deit(config, task, overrides):
    with_teacher = "DeiTForImageClassificationWithTeacher"
    has_head = task == "classifier" and with_teacher in (
        config.get("architectures") or ()
    )
    arguments = {
        **_vit_arguments(config, task),
        "distillation": "head" if has_head else "token",
    }
    return call_builders([build_vit], [arguments], overrides)


def _build_mae(config, task, overrides):
    if task != "pretrainer":
        return _build_vit(config, task, overrides)
    arguments = {
        **_body_arguments(config),
        "mask_ratio": get_probability(config, "mask_ratio", 0.75),
        "decoder_num_layers": get_num_blocks(config, "decoder_num_hidden_layers", 8),
        "decoder_hidden_dim": get_size(config, "decoder_hidden_size", 512),
        "decoder_num_heads": get_size(config, "decoder_num_attention_heads", 16),
        "decoder_mlp_dim": get_size(config, "decoder_intermediate_size", 2048),
    }
    return call_builders([build_mae], [arguments], overrides)


def _layers(model):
    return {layer.name: layer for layer in getattr(model, "layers", ())}


def _is_vit(model, num_tokens) -> bool:
    """Whether transformers has a ViT with that many tokens that computes the same."""
    layers = _layers(model)
    body = ("patch_embedding", "class_token", "position_embedding", "block_0")
    if not {*body, "final_norm"} <= set(layers) or "masking" in layers:
        return False
    block = layers["block_0"]
    return (
        isinstance(block, TransformerEncoderBlock)
        and block.layer_scale is None
        and layers["class_token"].num_tokens == num_tokens
        and layers["patch_embedding"].stem_dims is None
        # With another pooling the norm comes behind it.
        and len(layers["final_norm"].output.shape) == 3
    )


def _task_of(model):
    return "classifier" if "classifier" in _layers(model) else "encoder"


def _vit_task(model):
    return _task_of(model) if _is_vit(model, 1) else None


def _deit_task(model):
    if not _is_vit(model, 2):
        return None
    with_teacher = "distillation_classifier" in _layers(model)
    return "distilled_classifier" if with_teacher else _task_of(model)


def _mae_task(model):
    return "pretrainer" if "masking" in _layers(model) else None


def _body_config(model) -> dict:
    part = model.get_layer
    block, patches = part("block_0"), part("patch_embedding")
    _, height, width, channels = patches.input.shape
    count = sum(name.startswith("block_") for name in _layers(model))
    return {
        "image_size": one_or_two((height, width)),
        "patch_size": one_or_two(patches.patch_size),
        "num_channels": channels,
        "hidden_size": patches.hidden_dim,
        "num_hidden_layers": count,
        "num_attention_heads": block.num_heads,
        "intermediate_size": block.mlp_dim,
        "hidden_act": activation_name(block.activation),
        "layer_norm_eps": block.layer_norm_epsilon,
        "qkv_bias": block.qkv_bias,
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": block.attention_dropout,
    }


def _vit_config(model) -> dict:
    config = _body_config(model)
    if "classifier" in _layers(model):
        config.update(label_fields(model.get_layer("classifier").units))
    return config


def _mae_config(model) -> dict:
    part, layers = model.get_layer, _layers(model)
    block = part("decoder_block_0")
    return {
        **_body_config(model),
        "mask_ratio": part("masking").mask_ratio,
        # A choice of the loss, which the model does not know: what `MaskedPatchLoss`
        # does by default, the better target of He et al. 2022, section 3.
        "norm_pix_loss": True,
        "decoder_hidden_size": part("decoder_embedding").units,
        "decoder_num_hidden_layers": sum(
            name.startswith("decoder_block_") for name in layers
        ),
        "decoder_num_attention_heads": block.num_heads,
        "decoder_intermediate_size": block.mlp_dim,
    }


def positions(key: str, layer, model, num_prefix_tokens) -> Weight:
    """A table of positions, which may be that of another, square grid in the file.

    Args:
        key: Of the tensor, (1, P + T, D).
        layer: A `LearnedPositionEmbedding`.
        model: Its `patch_embedding` says what its grid is.
        num_prefix_tokens: P.
    """
    patches = model.get_layer("patch_embedding")
    grid = [
        size // side
        for size, side in zip(patches.input.shape[1:3], patches.patch_size, strict=True)
    ]
    rows, width = layer.embeddings.shape

    def read(array):
        table = array[0]
        if len(table) == rows:
            return table
        side = math.isqrt(len(table) - num_prefix_tokens)
        # Files of halves would have the new ones rounded to halves.
        table = table.astype("float32")
        return resize_positions(table, (side, side), grid, num_prefix_tokens)

    def resizes(shape):
        if len(shape) != 3 or (shape[0], shape[2]) != (1, width):
            return False
        places = shape[1] - num_prefix_tokens
        return places > 0 and math.isqrt(places) ** 2 == places

    return Weight(
        (key,),
        layer.embeddings,
        read,
        lambda array: (array[None],),
        resizes=resizes,
    )


def _blocks(model, start, first) -> list[Weight]:
    """The blocks `first + "0"`, …, of which `start` is the name."""
    layers, weights, index = _layers(model), [], 0
    while f"{first}{index}" in layers:
        block, name = layers[f"{first}{index}"], f"{start}.{index}"
        attention, feed_forward = block.attention, block.feed_forward
        weights += [
            *norm(f"{name}.layernorm_before", block.attention_norm),
            *fused(
                f"{name}.attention.attention",
                ("query", "key", "value"),
                attention.query_key_value_kernel,
                attention.query_key_value_bias,
            ),
            *linear(
                f"{name}.attention.output.dense",
                attention.output_kernel,
                attention.output_bias,
            ),
            *norm(f"{name}.layernorm_after", block.feed_forward_norm),
            *dense(f"{name}.intermediate.dense", feed_forward.expand),
            *dense(f"{name}.output.dense", feed_forward.contract),
        ]
        index += 1
    return weights


def _tokens(prefix, layer) -> Weight:
    """The class token, and perhaps DeiT's second one."""
    names = ("cls_token", "distillation_token")[: layer.num_tokens]
    return Weight(
        tuple(f"{prefix}embeddings.{name}" for name in names),
        layer.tokens,
        lambda *arrays: np.concatenate(arrays, axis=1),
        lambda array: np.split(array, layer.num_tokens, axis=1),
    )


def _weights(model, prefix) -> list[Weight]:
    part = model.get_layer
    token = part("class_token")
    return [
        _tokens(prefix, token),
        positions(
            f"{prefix}embeddings.position_embeddings",
            part("position_embedding"),
            model,
            token.num_tokens,
        ),
        *convolution(
            f"{prefix}embeddings.patch_embeddings.projection",
            part("patch_embedding").projection,
        ),
        *_blocks(model, f"{prefix}encoder.layer", "block_"),
        *norm(f"{prefix}layernorm", part("final_norm")),
    ]


def _vit_weights(model):
    return _weights(model, "vit.") + head_weights(model, {"classifier": "classifier"})


def _deit_weights(model):
    named = {"classifier": "classifier"}
    if "distillation_classifier" in _layers(model):
        named = {
            "classifier": "cls_classifier",
            "distillation_classifier": "distillation_classifier",
        }
    return _weights(model, "deit.") + head_weights(model, named)


def _mae_weights(model):
    if "masking" not in _layers(model):
        return _vit_weights(model)
    part = model.get_layer
    return [
        *_weights(model, "vit."),
        *dense("decoder.decoder_embed", part("decoder_embedding")),
        same("decoder.mask_token", part("unmasking").token),
        positions(
            "decoder.decoder_pos_embed", part("decoder_position_embedding"), model, 1
        ),
        *_blocks(model, "decoder.decoder_encoder.layer", "decoder_block_"),
        *norm("decoder.decoder_norm", part("decoder_norm")),
        *dense("decoder.decoder_pred", part("decoder_prediction")),
    ]


VIT = Family(
    model_type="vit",
    architectures={
        "ViTModel": "encoder",
        "ViTForImageClassification": "classifier",
    },
    saved_as={"encoder": "ViTModel", "classifier": "ViTForImageClassification"},
    tasks=IMAGE_TASKS,
    bare="ViTModel",
    prefix="vit.",
    heads=("vit.pooler.", "classifier."),
    build=_build_vit,
    task_of=_vit_task,
    config=_vit_config,
    weights=_vit_weights,
)
DEIT = Family(
    model_type="deit",
    architectures={
        "DeiTModel": "encoder",
        "DeiTForImageClassification": "classifier",
        "DeiTForImageClassificationWithTeacher": "classifier",
    },
    saved_as={
        "encoder": "DeiTModel",
        "classifier": "DeiTForImageClassification",
        "distilled_classifier": "DeiTForImageClassificationWithTeacher",
    },
    tasks=IMAGE_TASKS,
    bare="DeiTModel",
    prefix="deit.",
    heads=(
        "deit.pooler.",
        "classifier.",
        "cls_classifier.",
        "distillation_classifier.",
    ),
    build=_build_deit,
    task_of=_deit_task,
    config=_vit_config,
    weights=_deit_weights,
)
VIT_MAE = Family(
    model_type="vit_mae",
    architectures={
        "ViTMAEForPreTraining": "pretrainer",
        "ViTMAEModel": "encoder",
    },
    saved_as={"pretrainer": "ViTMAEForPreTraining"},
    tasks=("pretrainer", *IMAGE_TASKS),
    bare="ViTMAEModel",
    prefix="vit.",
    heads=("decoder.", "classifier."),
    build=_build_mae,
    task_of=_mae_task,
    config=_mae_config,
    weights=_mae_weights,
)
