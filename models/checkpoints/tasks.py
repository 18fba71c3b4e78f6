"""Builds the model of a task, and finds the task of a model.

Also what families share: text encoders, image models, BERT's field names.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import keras

from keras_attn.checks.arguments import did_you_mean
from keras_attn.models.checkpoints.config import (
    ACTIVATIONS,
    Config,
    activation_name,
    label_fields,
    one_or_two,
)
from keras_attn.models.checkpoints.mapping import Family, layers_by_name
from keras_attn.models.parts.functional import numbered_names

# An image model without its top, or with it.
IMAGE_TASKS = ("encoder", "classifier")


def call_builders(calls: Sequence[tuple[Callable, dict]], overrides: dict) -> Any:
    """Builds an encoder, and a head on top of it.

    Args:
        calls: The encoder's builder and its arguments from the checkpoint; then, for a
            model with a head, the head's builder, which takes an encoder first, and its
            arguments.
        overrides: Arguments from the caller. Each goes to every builder that has such
            an argument, except that `name` goes only to the last one.

    Returns:
        The model of the last builder.

    Raises:
        TypeError: If an override is not an argument of any builder.
    """
    accepted = [inspect.signature(builder).parameters for builder, _ in calls]
    for name, value in overrides.items():
        if not any(name in names for names in accepted):
            listed = " or ".join(f"`{builder.__name__}`" for builder, _ in calls)
            known = dict.fromkeys(each for names in accepted for each in names)
            raise TypeError(
                f"`{name}` is not an argument of {listed}: "
                f"{did_you_mean(name, known) or 'see `keras-attn describe`. '}"
                f"Received: {name}={value!r}"
            )
    encoder: tuple = ()
    for (builder, arguments), names in zip(calls, accepted, strict=True):
        is_last = builder is calls[-1][0]
        chosen = {
            name: value
            for name, value in overrides.items()
            if name in names and (name != "name" or is_last)
        }
        encoder = (builder(*encoder, **{**arguments, **chosen}),)
    return encoder[0]


def top_arguments(
    config: Config,
    task: str,
    get_num_classes: Callable[[Any], int] = Config.get_num_labels,
) -> dict[str, Any]:
    """The arguments of an image model's builder that concern its top.

    Args:
        config: The checkpoint's.
        task: One of `IMAGE_TASKS`.
        get_num_classes: Maps `config` to the number of classes; called only if the
            model has a top.
    """
    if task == "encoder":
        return {"include_top": False}
    return {"include_top": True, "num_classes": get_num_classes(config)}


def image_task(model: keras.Model) -> str:
    """The task of an image model."""
    return "classifier" if "classifier" in layers_by_name(model) else "encoder"


def head_task(model: keras.Model) -> str | None:
    """The task of an encoder with a head, by the head's layers; None without one."""
    layers = layers_by_name(model)
    for task, layer in (
        ("masked_lm", "masked_lm_logits"),
        ("next_sentence", "next_sentence"),
        ("span_qa", "span"),
        ("sentence_encoder", "sentence_pooling"),
    ):
        if layer in layers:
            return task
    if "classifier" in layers:
        return "classifier" if len(model.output.shape) == 2 else "token_classifier"
    is_encoder = isinstance(model.output, dict) and "sequence_output" in model.output
    return "encoder" if is_encoder else None


def heads_of(builders: ModuleType, family: str) -> dict[str, Callable]:
    """The builders of a family's heads, `build_<family>_<task>`, by their tasks."""
    start = f"build_{family}_"
    return {
        name.removeprefix(start): builder
        for name, builder in vars(builders).items()
        if name.startswith(start)
    }


def text_family(
    model_type: str,
    classes: dict[str, str],
    calls: tuple[Callable, Callable[[Config], dict]],
    heads: dict[str, Callable],
    head_arguments: Callable[[Config, str], dict],
    *,
    head_keys: tuple[str, ...],
    **fields,
) -> Family:
    """The family of a text encoder.

    Args:
        model_type: As in `config.json`.
        classes: Class of transformers to task.
        calls: The builder of the encoder, and the function that reads its arguments.
        heads: Task to the builder of its head.
        head_arguments: Maps a config and a task to the arguments of the head's builder.
        head_keys: As `heads` of `Family`.
        **fields: Further fields of `Family`.
    """

    def build(config, task, overrides):
        build_encoder, arguments = calls
        called = [(build_encoder, arguments(config))]
        if task != "encoder":
            called.append((heads[task], head_arguments(config, task)))
        return call_builders(called, overrides)

    bare = next(name for name, task in classes.items() if task == "encoder")
    # transformers has no sentence encoder: it is saved without its head.
    also = {"sentence_encoder": bare, **fields.pop("also_saved_as", {})}
    return Family(
        model_type=model_type,
        architectures=classes,
        also_saved_as=also,
        tasks=("encoder", *heads),
        heads=head_keys,
        build=build,
        **fields,
    )


def image_family(model_type: str, bare: str, classifier: str, **fields) -> Family:
    """The family of an image model, with or without its top.

    Args:
        model_type: As in `config.json`, and the prefix of the keys.
        bare: transformers' class of the model without its top.
        classifier: transformers' class of the model with its top.
        **fields: Further fields of `Family`.
    """
    return Family(
        model_type=model_type,
        architectures={bare: "encoder", classifier: "classifier"},
        tasks=IMAGE_TASKS,
        prefix=f"{model_type}.",
        **{"heads": ("classifier.",), **fields},
    )


def label_arguments(
    config: Config, dropout: str, otherwise: str | None = None
) -> dict[str, Any]:
    """The arguments of a classifier's builder.

    Args:
        config: The checkpoint's.
        dropout: The field with the probability of dropping a feature.
        otherwise: The field that has it if the first is missing or null.
    """
    if otherwise and config.get(dropout) is None:
        dropout = otherwise
    return {
        "num_classes": config.get_num_labels(),
        "dropout": config.get_probability(dropout, 0.1),
    }


def classifier_fields(layers: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `config.json` of a classifier's layers; none without one."""
    layer = layers.get("classifier")
    return {} if layer is None else label_fields(layer.units)


def patch_arguments(config: Config, patch_size: int) -> dict[str, Any]:
    """The arguments of images and their patches, whose default size is given."""
    return {
        "image_size": config.get_image_size("image_size", 224),
        "patch_size": config.get_pair("patch_size", patch_size),
        "num_channels": config.get_size("num_channels", 3),
    }


def patch_fields(layers: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `config.json` that `patch_arguments` reads."""
    patches = layers["patch_embedding"]
    _, *sides, channels = patches.input.shape
    fields = {"patch_size": one_or_two(patches.patch_size), "num_channels": channels}
    # The format cannot say "any size"; transformers accepts any size anyway.
    return fields if None in sides else {**fields, "image_size": one_or_two(sides)}


def dropout_arguments(config: Config, default: float) -> dict[str, Any]:
    """The probabilities of dropping, for configs with the names that BERT gave them."""
    return {
        "dropout": config.get_probability("hidden_dropout_prob", default),
        "attention_dropout": config.get_probability(
            "attention_probs_dropout_prob", default
        ),
    }


def block_arguments(
    config: Config, activation: str = "gelu", epsilon: float = 1e-12
) -> dict[str, Any]:
    """The arguments of the blocks, for configs with the names that BERT gave them.

    Args:
        config: The checkpoint's.
        activation: transformers' default of `hidden_act`.
        epsilon: transformers' default of `layer_norm_eps`.
    """
    return {
        "num_layers": config.get_num_blocks("num_hidden_layers", 12),
        "hidden_dim": config.get_size("hidden_size", 768),
        "num_heads": config.get_size("num_attention_heads", 12),
        "mlp_dim": config.get_size("intermediate_size", 3072),
        "activation": config.get_choice("hidden_act", ACTIVATIONS, activation),
        "layer_norm_epsilon": config.get_epsilon("layer_norm_eps", epsilon),
    }


def block_fields(
    layers: Mapping[str, Any],
    start: str = "block_",
    activations: Mapping[str, Any] = ACTIVATIONS,
) -> dict[str, Any]:
    """The fields of `config.json` that `block_arguments` reads.

    Args:
        layers: The layers of a model by name.
        start: What the names of the blocks begin with.
        activations: transformers' names of activations, the first of each is written.
    """
    block = layers[f"{start}0"]
    return {
        "hidden_size": block.feed_forward_norm.gamma.shape[0],
        "num_hidden_layers": len(numbered_names(layers, start)),
        "num_attention_heads": block.num_heads,
        "intermediate_size": block.mlp_dim,
        "hidden_act": activation_name(block.activation, activations),
        "layer_norm_eps": block.layer_norm_epsilon,
    }
