"""ViT, hybrid and DeiT III checkpoints in timm's naming; they are read, not written.

Their `config.json` names an `architecture`, such as `vit_base_patch16_224`, which says
all sizes but those that `model_args` has beside it.
"""

import math
import re
from typing import Any

from keras_attn.file_reading import shown
from keras_attn.models.checkpoints.mapping import (
    IMAGE_TASKS,
    MAX_CLASSES,
    Family,
    Weight,
    call_builders,
    convolution,
    dense,
    get_bool,
    get_image_size,
    get_num_blocks,
    get_number,
    get_pair,
    get_size,
    linear,
    norm,
    same,
    top_arguments,
    transposed,
)
from keras_attn.models.checkpoints.vit import positions
from keras_attn.models.vit import VARIANTS, build_deit3, build_vit, build_vit_hybrid

_ARCHITECTURE = re.compile(
    r"(?P<vit>vit_(?P<size>tiny|small|base|large|huge)_patch(?P<patch>\d{1,3}))"
    r"(_(?P<pixels>\d{1,4}))?"
    r"|(?P<hybrid>vit_base_r50_s16)(_(?P<hybrid_pixels>\d{1,4}))?"
    r"|deit3_(?P<deit3>small|medium|base|large|huge)_patch\d{1,3}"
    r"(_(?P<deit3_pixels>\d{1,4}))?"
)
# timm's argument to ours, and how it is read.
_ARGUMENTS = {
    "img_size": ("image_size", get_image_size),
    "patch_size": ("patch_size", get_pair),
    "embed_dim": ("hidden_dim", get_size),
    "depth": ("num_layers", get_num_blocks),
    "num_heads": ("num_heads", get_size),
    "in_chans": ("num_channels", get_size),
}
_POOLINGS = {"token": "token", "avg": "mean"}


def is_timm(config: dict) -> bool:
    """Whether a `config.json` is timm's."""
    return "model_type" not in config and isinstance(config.get("architecture"), str)


def _build(config, task, overrides):
    matched = _ARCHITECTURE.fullmatch(config["architecture"])
    if matched is None:
        raise ValueError(
            "`architecture` in config.json must be a plain ViT, vit_base_r50_s16 or "
            "DeiT III of timm, such as vit_base_patch16_224. "
            f"Received: architecture={shown(config['architecture'])}"
        )
    found = matched.groupdict()
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
    else:
        builder, pixels = build_deit3, found["deit3_pixels"]
        arguments["variant"] = found["deit3"]
    if pixels:
        arguments["image_size"] = int(pixels)
    pooling = config.get("global_pool", "token")
    if not isinstance(pooling, str) or pooling not in _POOLINGS:
        raise ValueError(
            f"`global_pool` in config.json must be one of {', '.join(_POOLINGS)}. "
            f"Received: global_pool={shown(pooling)}"
        )
    arguments["pooling"] = _POOLINGS[pooling]
    arguments.update(_model_args(config, builder))
    arguments.update(top_arguments(config, task, _get_num_classes))
    return call_builders([builder], [arguments], overrides)


def _get_num_classes(config):
    return get_size(config, "num_classes", 1000, MAX_CLASSES)


def _model_args(config, builder) -> dict:
    """What `model_args` says, by our names."""
    given = config.get("model_args") or {}
    if not isinstance(given, dict):
        raise ValueError(
            "`model_args` in config.json must be an object. "
            f"Received: model_args={shown(given)}"
        )
    given = config.inner(given)
    arguments: dict[str, Any] = {
        ours: get(given, theirs, 1)
        for theirs, (ours, get) in _ARGUMENTS.items()
        if theirs in given
    }
    for name in _ARGUMENTS:
        given.pop(name, None)
    if "mlp_ratio" in given and "hidden_dim" in arguments:
        ratio = get_number(given, "mlp_ratio", 4.0)
        arguments["mlp_dim"] = int(ratio * arguments["hidden_dim"])
        del given["mlp_ratio"]
    elif "hidden_dim" in arguments:
        arguments["mlp_dim"] = 4 * arguments["hidden_dim"]
    if builder is build_vit and "class_token" in given:
        arguments["class_token"] = get_bool(given, "class_token", True)
        del given["class_token"]
    if given:
        raise ValueError(
            f"`model_args` in config.json are supported of {', '.join(_ARGUMENTS)}, "
            "mlp_ratio (with embed_dim) and class_token alone. "
            f"Received: model_args={shown(sorted(given))}"
        )
    return arguments


def _weights(model) -> list[Weight]:
    layers = {layer.name: layer for layer in model.layers}
    tokens = layers["class_token"].num_tokens if "class_token" in layers else 0
    weights = []
    if tokens:
        weights.append(same("cls_token", layers["class_token"].tokens))
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
    # Where the mean is taken, the norm behind it has another name.
    pooled = len(layers["final_norm"].output.shape) == 2
    weights += norm("fc_norm" if pooled else "norm", layers["final_norm"])
    if "classifier" in layers:
        weights += dense("head", layers["classifier"])
    return weights


def _block(name, block) -> list[Weight]:
    attention, feed_forward = block.attention, block.feed_forward
    weights = [
        *norm(f"{name}.norm1", block.attention_norm),
        # Queries, keys and values are one kernel there, too.
        transposed(f"{name}.attn.qkv.weight", attention.query_key_value_kernel),
        same(f"{name}.attn.qkv.bias", attention.query_key_value_bias),
        *linear(f"{name}.attn.proj", attention.output_kernel, attention.output_bias),
        *norm(f"{name}.norm2", block.feed_forward_norm),
        *dense(f"{name}.mlp.fc1", feed_forward.expand),
        *dense(f"{name}.mlp.fc2", feed_forward.contract),
    ]
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


TIMM = Family(
    model_type="timm",
    architectures={},
    saved_as={},
    tasks=IMAGE_TASKS,
    bare="",
    prefix="",
    heads=("head.",),
    build=_build,
    task_of=lambda model: None,
    config=lambda model: {},
    weights=_weights,
    default_task=lambda config: (
        "classifier" if config.get("num_classes", 1000) else "encoder"
    ),
)
