"""ViT, hybrid, DeiT and DeiT III checkpoints in timm's naming."""

import math
import re
from typing import Any

from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.families.timm import architectures as timm
from keras_attn.models.checkpoints.families.vit import grid_of, position_table
from keras_attn.models.checkpoints.mapping import Weight, layers_of, numbered
from keras_attn.models.vit import VARIANTS, build_deit3, build_vit, build_vit_hybrid

ARCHITECTURE = re.compile(
    r"(?P<vit>vit_(?P<size>tiny|small|base|large|huge)_patch(?P<patch>\d{1,3}))"
    r"(_(?P<pixels>\d{1,4}))?"
    r"|(?P<hybrid>vit_base_r50_s16)(_(?P<hybrid_pixels>\d{1,4}))?"
    r"|deit3_(?P<deit3>small|medium|base|large|huge)_patch\d{1,3}"
    r"(_(?P<deit3_pixels>\d{1,4}))?"
    r"|deit_(?P<deit>tiny|small|base)(?P<distilled>_distilled)?_patch16"
    r"(_(?P<deit_pixels>\d{1,4}))?"
)
# timm's name of each argument to ours.
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
    name = timm.match_architecture(ARCHITECTURE, config)
    builder, arguments = _from_name(name)
    poolings = _POOLINGS
    if name["distilled"]:
        # Without the top there is a second token, but no head on it.
        arguments["distillation"] = "token" if task == "encoder" else "head"
        poolings = {"token": "token"}
    arguments["layer_norm_epsilon"] = 1e-6
    arguments["pooling"] = poolings[timm.check_pooling(config, poolings, "token")]
    arguments.update(_model_args(config, builder))
    arguments.update(tasks.top_arguments(config, task, timm.get_num_classes))
    return tasks.call_builders([(builder, arguments)], overrides)


def _from_name(name) -> tuple[Any, dict[str, Any]]:
    """The builder of an architecture, and the sizes that are in its name."""
    arguments: dict[str, Any] = {}
    if name["vit"]:
        builder, pixels = build_vit, name["pixels"]
        arguments["variant"] = name["vit"].removeprefix("vit_")
        if arguments["variant"] not in VARIANTS["vit"]:
            # A patch size for which we have no variant.
            patch = 14 if name["size"] == "huge" else 16
            arguments["variant"] = f"{name['size']}_patch{patch}"
            arguments["patch_size"] = int(name["patch"])
    elif name["hybrid"]:
        builder, pixels = build_vit_hybrid, name["hybrid_pixels"]
    elif name["deit3"]:
        builder, pixels = build_deit3, name["deit3_pixels"]
        arguments["variant"] = name["deit3"]
    else:
        builder, pixels = build_vit, name["deit_pixels"]
        arguments["variant"] = f"{name['deit']}_patch16"
    if pixels:
        arguments["image_size"] = int(pixels)
    return builder, arguments


def _model_args(config, builder) -> dict[str, Any]:
    names = dict(_ARGUMENTS)
    given = config.get("model_args")
    if isinstance(given, dict) and "embed_dim" in given:
        names["mlp_ratio"] = "mlp_ratio"
    if builder is build_vit:
        names["class_token"] = "class_token"
    arguments = timm.get_model_args(config, names)
    if "hidden_dim" in arguments:
        ratio = arguments.pop("mlp_ratio", 4)
        arguments["mlp_dim"] = int(ratio * arguments["hidden_dim"])
    return arguments


def _weights(model) -> list[Weight]:
    layers, weights = layers_of(model), []
    if "class_token" in layers:
        token = layers["class_token"]
        # DeiT with distillation has two.
        keys = ("cls_token", "dist_token")[: token.num_tokens]
        weights.append(mapping.concatenated(keys, token.tokens, axis=1))
    positions = layers["position_embedding"]
    # In DeiT III the class token has no position.
    num_prefix_tokens = positions.embeddings.shape[0] - math.prod(grid_of(model))
    weights += [
        position_table("pos_embed", positions, model, num_prefix_tokens),
        *mapping.convolution("patch_embed.proj", layers["patch_embedding"].projection),
        *_resnet(layers),
    ]
    for index, name in enumerate(numbered(layers, "block_")):
        weights += _block(f"blocks.{index}", layers[name])
    # With mean pooling the final norm comes after it, under another name.
    is_pooled = len(layers["final_norm"].output.shape) == 2
    weights += mapping.norm("fc_norm" if is_pooled else "norm", layers["final_norm"])
    for name, key in (("classifier", "head"), ("distillation_classifier", "head_dist")):
        if name in layers:
            weights += mapping.dense(key, layers[name])
    return weights


def _block(name, block) -> list[Weight]:
    weights = timm.transformer_block(name, block)
    if block.layer_scale is not None:
        weights += [
            mapping.same(f"{name}.ls1.gamma", block.attention_scale.gamma),
            mapping.same(f"{name}.ls2.gamma", block.feed_forward_scale.gamma),
        ]
    return weights


def _resnet(layers) -> list[Weight]:
    """The convolutions and norms of a hybrid's ResNet."""
    start, weights = "patch_embed.backbone", []
    for name, layer in layers.items():
        if not name.startswith(("stem_", "stage_")) or not layer.weights:
            continue
        key = re.sub(r"stage_(\d+)_block_(\d+)_", r"stages.\1.blocks.\2.", name)
        key = key.replace("stem_", "stem.")
        key = re.sub(r"shortcut$", "downsample.conv", key)
        key = key.replace("shortcut_norm", "downsample.norm")
        # timm counts them from one.
        key = re.sub(r"(conv|norm)_(\d)$", lambda m: f"{m[1]}{int(m[2]) + 1}", key)
        is_norm = key.endswith("norm") or re.search(r"norm\d$", key)
        weights += (mapping.norm if is_norm else mapping.convolution)(
            f"{start}.{key}", layer
        )
    return weights


TIMM_VIT = timm.make_family(_build, _weights, heads=("head.", "head_dist."))
