"""Shared by the families in torchvision's naming: their `config.json`."""

from collections.abc import Callable, Mapping
from typing import Any

from keras_attn.models.checkpoints.config import MAX_CLASSES, Config


def get_num_classes(config: Config, default: int) -> int:
    """Number of classes of the head."""
    return config.get_size("num_classes", default, MAX_CLASSES)


def get_model_args(
    config: Config, getters: Mapping[str, Callable], field: str = "model_args"
) -> dict[str, Any]:
    """The builder's arguments in `model_args` of `config.json`.

    Args:
        config: The checkpoint's.
        getters: Name of each possible argument to the method of `Config` that reads it.
        field: The field to read instead of `model_args`.

    Raises:
        ValueError: If an argument is unknown, or a value is not of the right kind.
    """
    given = config.nested_known(field, config.get(field, {}), getters)
    return {name: getters[name](given, name, None) for name in given}


def changed(sizes: Mapping[str, Any], published: Mapping[str, Any]) -> dict[str, Any]:
    """The field `model_args`, with the sizes that differ from the published ones."""
    given = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in sizes.items()
        if published[name] != value
    }
    return {"model_args": given} if given else {}
