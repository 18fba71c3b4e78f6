"""ViT, hybrid, DeiT and DeiT III checkpoints in timm's naming."""

import math
import re
from typing import Any

from keras_attn.layers import TransformerEncoderBlock
from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.config import one_or_two
from keras_attn.models.checkpoints.families.timm import architectures as timm
from keras_attn.models.checkpoints.families.vit import get_grid, position_table
from keras_attn.models.checkpoints.mapping import Weight, layers_by_name
from keras_attn.models.deit3 import build_deit3
from keras_attn.models.parts.functional import numbered_names
from keras_attn.models.vit import VARIANTS, build_vit, build_vit_hybrid

ARCHITECTURE = re.compile(
    r"(?P<vit>vit_(?P<size>tiny|small|base|large|huge)_patch(?P<patch>\d{1,3}))"
    # Older names have the training data here, newer ones in a tag.
    r"(_(?P<pixels>\d{1,4}))?(_in21k)?"
    r"|(?P<hybrid>vit_base_r50_s16)(_(?P<hybrid_pixels>\d{1,4}))?(_in21k)?"
    r"|deit3_(?P<deit3>small|medium|base|large|huge)_patch\d{1,3}"
    r"(_(?P<deit3_pixels>\d{1,4}))?(_in21ft1k)?"
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
    "mlp_ratio": "mlp_ratio",
    "qkv_bias": "qkv_bias",
    "drop_path_rate": "stochastic_depth",
    "attn_drop_rate": "attention_dropout",
    "proj_drop_rate": "dropout",
}
# Arguments for which our model has no other value.
_DEFAULTS = {
    "pos_embed": "learn",
    "no_embed_class": False,
    "reg_tokens": 0,
    "pre_norm": False,
    "final_norm": True,
    "qk_norm": False,
    "scale_attn_norm": False,
    "scale_mlp_norm": False,
    "proj_bias": True,
}
# From our names of a hybrid's convolutions and norms to timm's keys.
_RESNET_KEYS = (
    (r"stage_(\d+)_block_(\d+)_", r"stages.\1.blocks.\2."),
    (r"stem_", "stem."),
    (r"shortcut$", "downsample.conv"),
    (r"shortcut_norm", "downsample.norm"),
    # timm counts them from one.
    (r"(conv|norm)_(\d)$", lambda m: f"{m[1]}{int(m[2]) + 1}"),
)
_POOLINGS = {"token": "token", "avg": "mean"}
_EPSILON = 1e-6
# The variants whose width is in timm's names, by ours; the hybrid has one name.
_WIDTHS = {"tiny": 192, "small": 384, "base": 768, "large": 1024, "huge": 1280}


def _build(config, task, overrides):
    name = timm.match_architecture(ARCHITECTURE, config)
    builder, arguments = _from_name(name)
    poolings = _POOLINGS
    if name["distilled"]:
        # Without the top there is a second token, but no head on it.
        arguments["distillation"] = "token" if task == "encoder" else "head"
        poolings = {"token": "token"}
    arguments["layer_norm_epsilon"] = _EPSILON
    arguments["pooling"] = poolings[timm.check_pooling(config, poolings, "token")]
    arguments.update(_model_args(config, builder, arguments))
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


def _model_args(config, builder, arguments) -> dict[str, Any]:
    """The arguments in `model_args`, beside those that the name gives."""
    names = dict(_ARGUMENTS)
    if builder is build_vit_hybrid:
        del names["patch_size"]
    elif builder is build_vit:
        names |= {"class_token": "class_token", "fc_norm": "fc_norm"}
    defaults = _DEFAULTS
    if builder is build_deit3:
        del names["attn_drop_rate"], names["proj_drop_rate"]
        defaults = {**defaults, "no_embed_class": True}
    given = timm.get_model_args(config, names, defaults)
    is_pooled = arguments["pooling"] == "mean"
    if given.pop("fc_norm", is_pooled) != is_pooled:
        expected = "true with `global_pool` avg, otherwise false"
        raise config.error("fc_norm", expected, not is_pooled)
    if {"hidden_dim", "mlp_ratio"} & set(given):
        width = given.get("hidden_dim", _WIDTHS["base"])
        if "hidden_dim" not in given and "variant" in arguments:
            width = builder.sizes[arguments["variant"]]["hidden_dim"]
        given["mlp_dim"] = int(given.pop("mlp_ratio", 4) * width)
    return given


def _weights(model) -> list[Weight]:
    layers, weights = layers_by_name(model), []
    if "class_token" in layers:
        token = layers["class_token"]
        # DeiT with distillation has two.
        keys = ("cls_token", "dist_token")[: token.num_tokens]
        weights.append(mapping.concatenated(keys, token.tokens, axis=1))
    positions = layers["position_embedding"]
    # In DeiT III the class token has no position.
    num_prefix_tokens = positions.embeddings.shape[0] - math.prod(get_grid(model))
    weights += [
        position_table("pos_embed", positions, model, num_prefix_tokens),
        *mapping.convolution("patch_embed.proj", layers["patch_embedding"].projection),
        *mapping.resnet_weights(layers, _RESNET_KEYS, "patch_embed.backbone."),
    ]
    for index, name in enumerate(numbered_names(layers, "block_")):
        weights += _block(f"blocks.{index}", layers[name])
    # With mean pooling the final norm comes after it, under a different name.
    is_pooled = len(layers["final_norm"].output.shape) == 2
    weights += mapping.norm("fc_norm" if is_pooled else "norm", layers["final_norm"])
    named = {"classifier": "head", "distillation_classifier": "head_dist"}
    return weights + mapping.head_weights(model, named)


def _block(name, block) -> list[Weight]:
    weights = timm.transformer_block(name, block)
    if block.layer_scale is not None:
        weights += [
            mapping.same(f"{name}.ls1.gamma", block.attention_scale.gamma),
            mapping.same(f"{name}.ls2.gamma", block.feed_forward_scale.gamma),
        ]
    return weights


def _find_kind(model) -> str | None:
    """Which of timm's models equals ours: the start of its name."""
    layers, blocks = (
        layers_by_name(model),
        numbered_names(layers_by_name(model), "block_"),
    )
    needed = {"patch_embedding", "position_embedding", "block_0", "final_norm"}
    is_stack = all(isinstance(layers[x], TransformerEncoderBlock) for x in blocks)
    if not is_stack or not timm.computes_as_timm(model, needed, blocks, _EPSILON):
        return None
    token, block = layers.get("class_token"), layers["block_0"]
    num_tokens = token.num_tokens if token else 0
    rows = layers["position_embedding"].embeddings.shape[0]
    num_prefix_tokens = rows - math.prod(get_grid(model))
    is_pooled = len(layers["final_norm"].output.shape) == 2
    if "stem_conv" in layers:
        return "hybrid" if _is_published_hybrid(layers) else None
    if layers["patch_embedding"].stem_dims is not None or not block.norm_first:
        return None
    if block.layer_scale is not None:
        return "deit3" if (num_tokens, num_prefix_tokens) == (1, 0) else None
    if num_prefix_tokens != num_tokens:
        return None
    if num_tokens < 2:
        return "vit"
    # timm's distilled model has both heads or none.
    has_heads = ["classifier" in layers, "distillation_classifier" in layers]
    return "deit" if len(set(has_heads)) == 1 and not is_pooled else None


def _is_published_hybrid(layers) -> bool:
    """Whether the ResNet has the sizes that the name implies."""
    (sizes,) = VARIANTS["hybrid"].values()
    counts = tuple(map(len, mapping.stages_of(layers, "_conv_0")))
    found = layers["stem_conv"].filters, counts
    return found == (sizes["stem_dim"], sizes["num_blocks"])


def _config(model) -> dict[str, Any]:
    layers, kind = layers_by_name(model), _find_kind(model)
    block, patches = layers["block_0"], layers["patch_embedding"]
    width, patch_size = block.attention_norm.gamma.shape[0], patches.patch_size
    arguments = {
        "img_size": list(model.inputs[0].shape[1:3]),
        "embed_dim": width,
        "depth": len(numbered_names(layers, "block_")),
        "num_heads": block.num_heads,
        "mlp_ratio": timm.ratio(block.mlp_dim, width),
        "qkv_bias": block.qkv_bias,
    }
    if kind != "hybrid":
        arguments["patch_size"] = one_or_two(patch_size)
    is_pooled = len(layers["final_norm"].output.shape) == 2
    if kind == "vit":
        arguments["class_token"] = "class_token" in layers
    size = next((name for name, each in _WIDTHS.items() if each == width), "base")
    name = {
        "vit": f"vit_{size}_patch{14 if size == 'huge' else 16}_224",
        # Neither has all the widths.
        "deit": f"deit_{'base' if width > 768 else size}_distilled_patch16_224",
        "deit3": f"deit3_{'small' if size == 'tiny' else size}_patch"
        f"{14 if size == 'huge' else 16}_224",
        "hybrid": "vit_base_r50_s16_224",
    }[str(kind)]
    return timm.make_fields(model, name, "avg" if is_pooled else "token", arguments)


TIMM_VIT = timm.make_family(
    _build,
    _weights,
    heads=("head.", "head_dist."),
    is_ours=lambda model: _find_kind(model) is not None,
    config=_config,
)
