"""What the families of checkpoints in timm's naming share; they are read, not written.

Their `config.json` names an `architecture`, such as `vit_base_patch16_224`, which says
all sizes but those that `model_args` has beside it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from keras_attn.file_reading import shown
from keras_attn.models.checkpoints.config import Config
from keras_attn.models.checkpoints.mapping import (
    IMAGE_TASKS,
    MAX_CLASSES,
    Family,
    Weight,
    dense,
    get_bool,
    get_depths,
    get_image_size,
    get_num_blocks,
    get_number,
    get_pair,
    get_probability,
    get_size,
    get_sizes,
    linear,
    norm,
)

# How an argument of any family is read; the others are sizes.
_GETTERS: dict[str, Callable[..., Any]] = {
    "img_size": get_image_size,
    "patch_size": get_pair,
    "depth": get_num_blocks,
    "depths": get_depths,
    "dims": get_sizes,
    "qkv_bias": get_bool,
    "class_token": get_bool,
    "mlp_ratio": get_number,
    "ls_init_value": get_number,
    "drop_path_rate": get_probability,
}


def is_timm(config: dict) -> bool:
    """Whether a `config.json` is timm's."""
    return "model_type" not in config and isinstance(config.get("architecture"), str)


def match_architecture(pattern: re.Pattern, config: dict) -> dict[str, Any]:
    """What the name of an architecture says; empty for one of another family.

    A tag, as in `convnext_tiny.fb_in1k`, says what it was trained on, and no sizes.
    """
    matched = pattern.fullmatch(config["architecture"].partition(".")[0])
    return matched.groupdict() if matched else {}


def get_num_classes(config: Config) -> int:
    """Classes of the head."""
    return get_size(config, "num_classes", 1000, MAX_CLASSES)


def default_task(config: dict) -> str:
    """The task of a `config.json`: without classes there is no head."""
    return "classifier" if config.get("num_classes", 1000) else "encoder"


def check_pooling(config: dict, known: Mapping, default: str) -> str:
    """What the head reads, in timm's word.

    Raises:
        ValueError: unless it is one of `known`.
    """
    pooling = config.get("global_pool", default)
    if not isinstance(pooling, str) or pooling not in known:
        raise ValueError(
            f"`global_pool` in config.json must be one of {', '.join(known)}. "
            f"Received: global_pool={shown(pooling)}"
        )
    return pooling


def get_model_args(config: Config, names: Mapping[str, str]) -> dict[str, Any]:
    """What `model_args` in `config.json` says.

    Args:
        config: What it says.
        names: timm's arguments to ours, of all that we compute.

    Returns:
        Values by our names.

    Raises:
        ValueError: for an argument that is not among them.
    """
    given = config.get("model_args") or {}
    if not isinstance(given, dict) or not set(given) <= set(names):
        unknown = sorted(set(given) - set(names)) if isinstance(given, dict) else given
        raise ValueError(
            f"`model_args` in config.json are supported of {', '.join(names)} alone. "
            f"Received: model_args={shown(unknown)}"
        )
    given = config.inner(given)
    return {
        names[name]: _read_argument(given, name)
        for name, value in given.items()
        # What is null is as the architecture says.
        if value is not None
    }


def _read_argument(given, name):
    """One of `model_args`, checked."""
    # Swin's has a number of heads for each stage.
    is_list = name == "num_heads" and isinstance(given[name], list)
    get: Any = get_sizes if is_list else _GETTERS.get(name, get_size)
    return get(given, name, None)


def transformer_block(name: str, block) -> list[Weight]:
    """The weights of a block of ViT or Swin that both have.

    Args:
        name: timm's, such as `blocks.0`.
        block: A layer with attention and a feed-forward network, each after a norm.
    """
    attention, feed_forward = block.attention, block.feed_forward
    return [
        *norm(f"{name}.norm1", block.attention_norm),
        # Queries, keys and values are one kernel there, too.
        *linear(
            f"{name}.attn.qkv",
            attention.query_key_value_kernel,
            attention.query_key_value_bias,
        ),
        *linear(f"{name}.attn.proj", attention.output_kernel, attention.output_bias),
        *norm(f"{name}.norm2", block.feed_forward_norm),
        *dense(f"{name}.mlp.fc1", feed_forward.expand),
        *dense(f"{name}.mlp.fc2", feed_forward.contract),
    ]


def timm_family(
    build: Callable, weights: Callable, heads: tuple[str, ...], **options
) -> Family:
    """A family that is read and never written.

    Args:
        build: As of `Family`.
        weights: As of `Family`.
        heads: As of `Family`.
        **options: Other fields of `Family`.
    """
    return Family(
        model_type="timm",
        architectures={},
        saved_as={},
        tasks=IMAGE_TASKS,
        bare="",
        prefix="",
        heads=heads,
        build=build,
        task_of=lambda model: None,
        config=lambda model: {},
        weights=weights,
        default_task=default_task,
        **options,
    )
