"""What the families of timm's naming share: their `config.json`, and `make_family`.

Its `architecture`, such as `vit_base_patch16_224`, gives every size except those that
`model_args` overrides.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from keras_attn.file_reading import shown
from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.config import MAX_CLASSES, Config
from keras_attn.models.checkpoints.mapping import Family, Weight

# How an entry of `model_args` is read, for every family; the others are sizes.
_GETTERS: dict[str, Callable[..., Any]] = {
    "img_size": Config.get_image_size,
    "patch_size": Config.get_pair,
    "depth": Config.get_num_blocks,
    "depths": Config.get_depths,
    "dims": Config.get_sizes,
    "qkv_bias": Config.get_bool,
    "class_token": Config.get_bool,
    "mlp_ratio": Config.get_number,
    "ls_init_value": Config.get_number,
    "drop_path_rate": Config.get_probability,
}


def match_architecture(pattern: re.Pattern, config: Config) -> dict[str, Any]:
    """The groups of the architecture's name; empty if the pattern does not match.

    A tag, as in `convnext_tiny.fb_in1k`, names the training data and no sizes.
    """
    matched = pattern.fullmatch(config["architecture"].partition(".")[0])
    return matched.groupdict() if matched else {}


def get_num_classes(config: Config) -> int:
    """Number of classes of the head."""
    return config.get_size("num_classes", 1000, MAX_CLASSES)


def check_pooling(config: Config, known: Mapping[str, str], default: str) -> str:
    """The pooling before the head, by timm's name.

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
    """The arguments in `model_args` of `config.json`, by our names.

    Args:
        config: The checkpoint's.
        names: timm's name of each supported argument to ours.

    Raises:
        ValueError: for an argument that is not supported.
    """
    given = config.get("model_args") or {}
    if not isinstance(given, dict) or not set(given) <= set(names):
        unknown = sorted(set(given) - set(names)) if isinstance(given, dict) else given
        raise ValueError(
            f"`model_args` in config.json may only have {', '.join(names)}. "
            f"Received: model_args={shown(unknown)}"
        )
    given = config.nested(given)
    return {
        names[name]: _read_argument(given, name)
        for name, value in given.items()
        # null means the size of the architecture.
        if value is not None
    }


def _read_argument(given: Config, name: str) -> Any:
    # Swin's `num_heads` has one number per stage.
    is_list = name == "num_heads" and isinstance(given[name], list)
    getter: Any = _GETTERS.get(name, Config.get_size)
    if is_list:
        getter = Config.get_sizes
    return getter(given, name, None)


def transformer_block(name: str, block) -> list[Weight]:
    """The weights that a block of ViT and one of Swin both have.

    Args:
        name: timm's name of the block, such as `blocks.0`.
        block: A layer with attention and a feed-forward network, each after a norm.
    """
    attention, feed_forward = block.attention, block.feed_forward
    return [
        *mapping.norm(f"{name}.norm1", block.attention_norm),
        # timm also has queries, keys and values in one kernel.
        *mapping.linear(
            f"{name}.attn.qkv",
            attention.query_key_value_kernel,
            attention.query_key_value_bias,
        ),
        *mapping.linear(
            f"{name}.attn.proj", attention.output_kernel, attention.output_bias
        ),
        *mapping.norm(f"{name}.norm2", block.feed_forward_norm),
        *mapping.dense(f"{name}.mlp.fc1", feed_forward.expand),
        *mapping.dense(f"{name}.mlp.fc2", feed_forward.contract),
    ]


def make_family(
    build: Callable, weights: Callable, heads: tuple[str, ...], **fields
) -> Family:
    """A family that is read and never written.

    Args:
        build: As in `Family`, like all that follow.
        weights: Every weight of a model.
        heads: Prefixes of the keys of heads.
        **fields: Further fields of `Family`.
    """
    return Family(
        model_type="timm",
        architectures={},
        tasks=tasks.IMAGE_TASKS,
        prefix="",
        heads=heads,
        build=build,
        task_of=lambda model: None,
        config=lambda model: {},
        weights=weights,
        # Without classes there is no head.
        default_task=lambda config: (
            "classifier" if config.get("num_classes", 1000) else "encoder"
        ),
        **fields,
    )
