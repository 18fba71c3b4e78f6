"""ViT, hybrid, DeiT and DeiT III checkpoints in timm's naming."""

import math
import re
from typing import Any

import numpy as np

from keras_attn.models.checkpoints.families.timm import (
    check_pooling,
    get_model_args,
    get_num_classes,
    match_architecture,
    timm_family,
    transformer_block,
)
from keras_attn.models.checkpoints.families.vit import positions
from keras_attn.models.checkpoints.mapping import (
    Weight,
    call_builders,
    convolution,
    dense,
    norm,
    same,
    top_arguments,
)
from keras_attn.models.vit import VARIANTS, build_deit3, build_vit, build_vit_hybrid

VIT_ARCHITECTURE = re.compile(
    r"(?P<vit>vit_(?P<size>tiny|small|base|large|huge)_patch(?P<patch>\d{1,3}))"
    r"(_(?P<pixels>\d{1,4}))?"
    r"|(?P<hybrid>vit_base_r50_s16)(_(?P<hybrid_pixels>\d{1,4}))?"
    r"|deit3_(?P<deit3>small|medium|base|large|huge)_patch\d{1,3}"
    r"(_(?P<deit3_pixels>\d{1,4}))?"
    r"|deit_(?P<deit>tiny|small|base)(?P<distilled>_distilled)?_patch16"
    r"(_(?P<deit_pixels>\d{1,4}))?"
)
# timm's argument to ours.
_ARGUMENTS = {
    "img_size": "image_size",
    "patch_size": "patch_size",
    "embed_dim": "hidden_dim",
    "depth": "num_layers",
    "num_heads": "num_heads",
    "in_chans": "num_channels",
    "qkv_bias": "qkv_bias",
}
_POOLINGS = {"token": "token", "avg": "mean"}


def _build(config, task, overrides):
    found = match_architecture(VIT_ARCHITECTURE, config)
    arguments: dict[str, Any] = {"layer_norm_epsilon": 1e-6}
    if found["vit"]:
        builder, pixels = build_vit, found["pixels"]
        arguments["variant"] = found["vit"].removeprefix("vit_")
        if arguments["variant"] not in VARIANTS["vit"]:
            # A patch size that has no name of its own here.
            arguments["variant"] = f"{found['size']}_patch16"
            arguments["patch_size"] = int(found["patch"])
            if found["size"] == "huge":
                arguments["variant"] = "huge_patch14"
    elif found["hybrid"]:
        builder, pixels = build_vit_hybrid, found["hybrid_pixels"]
    elif found["deit3"]:
        builder, pixels = build_deit3, found["deit3_pixels"]
        arguments["variant"] = found["deit3"]
    else:
        builder, pixels = build_vit, found["deit_pixels"]
        arguments["variant"] = f"{found['deit']}_patch16"
    poolings = _POOLINGS
    if found["distilled"]:
        # Without its top it has the second token, and no head to read it.
        arguments["distillation"] = "token" if task == "encoder" else "head"
        poolings = {"token": "token"}
    if pixels:
        arguments["image_size"] = int(pixels)
    arguments["pooling"] = poolings[check_pooling(config, poolings, "token")]
    arguments.update(_vit_model_args(config, builder))
    arguments.update(top_arguments(config, task, get_num_classes))
    return call_builders([builder], [arguments], overrides)


def _vit_model_args(config, builder) -> dict:
    names = dict(_ARGUMENTS)
    given = config.get("model_args")
    if isinstance(given, dict) and "embed_dim" in given:
        names["mlp_ratio"] = "mlp_ratio"
    if builder is build_vit:
        names["class_token"] = "class_token"
    arguments = get_model_args(config, names)
    if "hidden_dim" in arguments:
        ratio = arguments.pop("mlp_ratio", 4)
        arguments["mlp_dim"] = int(ratio * arguments["hidden_dim"])
    return arguments


def _weights(model) -> list[Weight]:
    layers = {layer.name: layer for layer in model.layers}
    tokens = layers["class_token"].num_tokens if "class_token" in layers else 0
    weights = []
    if tokens:
        weights.append(_tokens(layers["class_token"]))
    places = layers["position_embedding"].embeddings.shape[0]
    grid = math.prod(
        size // side
        for size, side in zip(
            layers["patch_embedding"].input.shape[1:3],
            layers["patch_embedding"].patch_size,
            strict=True,
        )
    )
    weights += [
        positions("pos_embed", layers["position_embedding"], model, places - grid),
        *convolution("patch_embed.proj", layers["patch_embedding"].projection),
        *_resnet(layers),
    ]
    index = 0
    while f"block_{index}" in layers:
        weights += _block(f"blocks.{index}", layers[f"block_{index}"])
        index += 1
    # With mean pooling the final norm follows the pooling, under another name.
    pooled = len(layers["final_norm"].output.shape) == 2
    weights += norm("fc_norm" if pooled else "norm", layers["final_norm"])
    for name, key in (("classifier", "head"), ("distillation_classifier", "head_dist")):
        if name in layers:
            weights += dense(key, layers[name])
    return weights


def _tokens(layer) -> Weight:
    """The class token, and perhaps the second one of a distilled DeiT."""
    return Weight(
        ("cls_token", "dist_token")[: layer.num_tokens],
        layer.tokens,
        lambda *arrays: np.concatenate(arrays, axis=1),
        lambda array: np.split(array, layer.num_tokens, axis=1),
    )


def _block(name, block) -> list[Weight]:
    weights = transformer_block(name, block)
    if block.layer_scale is not None:
        weights += [
            same(f"{name}.ls1.gamma", block.attention_scale.gamma),
            same(f"{name}.ls2.gamma", block.feed_forward_scale.gamma),
        ]
    return weights


def _resnet(layers) -> list[Weight]:
    """Of a hybrid: its convolutions and norms."""
    start, weights = "patch_embed.backbone", []
    for name, layer in layers.items():
        if not name.startswith(("stem_", "stage_")) or not layer.weights:
            continue
        key = re.sub(r"stage_(\d+)_block_(\d+)_", r"stages.\1.blocks.\2.", name)
        key = key.replace("stem_", "stem.")
        key = re.sub(r"shortcut$", "downsample.conv", key)
        key = key.replace("shortcut_norm", "downsample.norm")
        # Theirs are numbered from one.
        key = re.sub(r"(conv|norm)_(\d)$", lambda m: f"{m[1]}{int(m[2]) + 1}", key)
        is_norm = key.endswith("norm") or re.search(r"norm\d$", key)
        weights += (norm if is_norm else convolution)(f"{start}.{key}", layer)
    return weights


TIMM_VIT = timm_family(_build, _weights, heads=("head.", "head_dist."))
