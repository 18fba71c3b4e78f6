"""Shared by the families in timm's naming: their `config.json`, and `make_family`.

Its `architecture`, such as `vit_base_patch16_224`, gives every size except those that
`model_args` overrides; we write all of them there.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_attn.files.reading import shown
from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.config import MAX_CLASSES, Config
from keras_attn.models.checkpoints.mapping import Family, Weight, layers_by_name

# The `model_type` of a timm model that transformers has saved.
WRAPPER = "timm_wrapper"
# How an entry of `model_args` is read, for every family; the others are sizes.
_GETTERS: dict[str, Callable[..., Any]] = {
    "img_size": Config.get_image_size,
    "patch_size": Config.get_pair,
    "depth": Config.get_num_blocks,
    "depths": Config.get_depths,
    "dims": Config.get_sizes,
    "qkv_bias": Config.get_bool,
    "class_token": Config.get_bool,
    "fc_norm": Config.get_bool,
    "mlp_ratio": Config.get_number,
    "ls_init_value": Config.get_number,
    "drop_path_rate": Config.get_probability,
    "attn_drop_rate": Config.get_probability,
    "proj_drop_rate": Config.get_probability,
}
# Arguments that change no output of a trained model at the size of its images: how it
# starts, what is dropped while it trains at places where ours drops nothing, other
# sizes.
_IDLE = {
    *("drop_rate", "pos_drop_rate", "patch_drop_rate"),
    *("weight_init", "fix_init", "head_init_scale"),
    *("dynamic_img_size", "dynamic_img_pad", "strict_img_size"),
}


def match_architecture(pattern: re.Pattern, config: Config) -> dict[str, Any]:
    """The groups of the architecture's name; empty if the pattern does not match.

    A tag, as in `convnext_tiny.fb_in1k`, names the training data and no sizes.
    """
    matched = pattern.fullmatch(config["architecture"].partition(".")[0])
    return matched.groupdict() if matched else {}


def merge_repeated(config: Config) -> None:
    """Moves the fields that `model_args` repeats to the top of the configuration.

    timm's `save_for_hf` writes them in both places.

    Raises:
        ValueError: If the two differ.
    """
    if not isinstance(config.get("model_args"), dict):
        return
    arguments = config["model_args"] = dict(config["model_args"])
    for name in ("num_classes", "global_pool"):
        value = arguments.pop(name, None)
        if value is not None and config.setdefault(name, value) != value:
            raise ValueError(
                f"`{name}` in config.json must equal `{name}` in `model_args`. "
                f"Received: {name}={shown(config[name])}, in `model_args` "
                f"{shown(value)}"
            )


def get_num_classes(config: Config) -> int:
    """Number of classes of the head."""
    return config.get_size("num_classes", 1000, MAX_CLASSES)


def check_pooling(config: Config, known: Mapping[str, str], default: str) -> str:
    """The pooling before the head, by timm's name.

    Without classes it may be "", none: our features then use the default.

    Raises:
        ValueError: If the pooling is not one of `known`.
    """
    pooling = config.get("global_pool", default)
    if pooling == "" and config.get("num_classes") == 0:
        return default
    if not isinstance(pooling, str) or pooling not in known:
        raise config.error("global_pool", f"one of {', '.join(known)}", pooling)
    return pooling


def get_model_args(
    config: Config, names: Mapping[str, str], defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments in `model_args` of `config.json`, by our names.

    Args:
        config: The checkpoint's.
        names: timm's name of each supported argument to ours.
        defaults: What our model computes, by timm's name of each further argument.

    Raises:
        ValueError: If an argument is not supported.
    """
    found: Any = config.get("model_args") or {}
    defaults = defaults or {}
    if isinstance(found, dict):
        found = {
            name: value
            for name, value in found.items()
            # timm leaves out what is null, too.
            if value is not None
            and name not in _IDLE
            and (name in names or value != defaults.get(name))
        }
    only = [f"{name}={value!r}" for name, value in defaults.items()]
    given = config.nested_known("model_args", found, names, *only)
    return {names[name]: _read_argument(given, name) for name in given}


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
        *mapping.dense(f"{name}.attn.qkv", attention.query_key_value),
        *mapping.attention_output(f"{name}.attn.proj", attention),
        *mapping.norm(f"{name}.norm2", block.feed_forward_norm),
        *mapping.dense(f"{name}.mlp.fc1", feed_forward.expand),
        *mapping.dense(f"{name}.mlp.fc2", feed_forward.contract),
    ]


def computes_as_timm(
    model: keras.Model, needed: set[str], parts: list[str], epsilon: float
) -> bool:
    """Whether a model has these layers, and timm's activation and epsilon.

    Args:
        model: Any model.
        needed: Names of layers that it must have, `final_norm` among them.
        parts: Names of the layers whose activation must be GELU.
        epsilon: What its final norm must add to the variance.
    """
    layers = layers_by_name(model)
    if not needed <= set(layers) or "masking" in layers:
        return False
    is_gelu = all(layers[name].activation is keras.activations.gelu for name in parts)
    return is_gelu and layers["final_norm"].epsilon == epsilon


def ratio(mlp_dim: int, hidden_dim: int) -> float:
    """The `mlp_ratio`; timm rounds its product with the width down."""
    exact = mlp_dim / hidden_dim
    # The product may be rounded to just below the integer.
    return exact if int(exact * hidden_dim) == mlp_dim else (mlp_dim + 0.5) / hidden_dim


def closest(variants: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, Any]) -> str:
    """The variant that matches the most of these sizes; the first in case of a tie."""

    def likeness(name):
        return sum(variants[name][size] == value for size, value in sizes.items())

    return max(variants, key=likeness)


def make_fields(
    model: keras.Model, architecture: str, global_pool: str, model_args: dict
) -> dict[str, Any]:
    """The fields of `config.json`, as timm's `save_for_hf` writes them.

    Args:
        model: The model.
        architecture: The name of a function of timm.
        global_pool: The pooling, by timm's name.
        model_args: The sizes, by timm's names.
    """
    layers = layers_by_name(model)
    classes = layers["classifier"].units if "classifier" in layers else 0
    height, width, channels = model.inputs[0].shape[1:]
    repeated = {"num_classes": classes, "global_pool": global_pool}
    # timm replaces the size that is fixed by `img_size`.
    size = [channels, height or 224, width or 224]
    return {
        "architecture": architecture,
        **repeated,
        "num_features": layers["final_norm"].gamma.shape[0],
        "model_args": {**model_args, **repeated, "in_chans": channels},
        "pretrained_cfg": {
            "input_size": size,
            "fixed_input_size": "img_size" in model_args,
            "num_classes": classes,
        },
    }


def _default_task(config: Config) -> str:
    """Without classes the model has no head, nor in transformers' bare model."""
    is_bare = config.get("architectures") == ["TimmWrapperModel"]
    has_head = config.get("num_classes", 1000) and not is_bare
    return "classifier" if has_head else "encoder"


def make_family(
    build: Callable,
    weights: Callable,
    heads: tuple[str, ...],
    is_ours: Callable[[keras.Model], bool],
    **fields,
) -> Family:
    """A family of image models.

    Args:
        build: As in `Family`, like all the arguments below except `is_ours`.
        weights: Every weight of a model.
        heads: Prefixes of the keys of heads.
        is_ours: Whether timm has an equivalent of a model.
        **fields: Further fields of `Family`.
    """
    return Family(
        model_type="timm",
        library="timm",
        also_saved_as=dict.fromkeys(tasks.IMAGE_TASKS, "timm"),
        tasks=tasks.IMAGE_TASKS,
        heads=heads,
        build=build,
        find_task=lambda model: tasks.image_task(model) if is_ours(model) else None,
        weights=weights,
        # In transformers the model is inside another one.
        renames=((r"^timm_model\.", ""),),
        default_task=_default_task,
        **fields,
    )
