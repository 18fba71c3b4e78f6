"""From a task to a model, by our builders; and from a model back to its task."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_attn.models.checkpoints.config import Config
from keras_attn.models.checkpoints.mapping import layers_of

# An image model without its top, or with it.
IMAGE_TASKS = ("encoder", "classifier")


def call_builders(calls: Sequence[tuple[Callable, dict]], overrides: dict) -> Any:
    """Builds an encoder, and a head on top of it.

    Args:
        calls: The encoder's builder and its arguments from the checkpoint; then, for a
            model with a head, the same of the head, whose builder takes an encoder
            first.
        overrides: Arguments from the caller. Each goes to every builder that has such
            an argument, except that `name` goes to the last one only.

    Returns:
        The model of the last builder.

    Raises:
        TypeError: for an override that none of the builders has.
    """
    accepted = [inspect.signature(builder).parameters for builder, _ in calls]
    for name, value in overrides.items():
        if not any(name in names for names in accepted):
            listed = " or ".join(f"`{builder.__name__}`" for builder, _ in calls)
            raise TypeError(
                f"`{name}` is not an argument of {listed}. Received: {name}={value!r}"
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
    return "classifier" if "classifier" in layers_of(model) else "encoder"


def head_task(model: keras.Model) -> str | None:
    """The task of an encoder with a head, by the head's layers; None for no such."""
    layers = layers_of(model)
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
