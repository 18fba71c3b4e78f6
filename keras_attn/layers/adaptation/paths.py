"""Which layers have kernels, their paths in reports, and names of adapters."""

import re
from collections.abc import Iterable

import keras

from keras_attn.layers.adaptation.kernel_layer import KernelLayer
from keras_attn.layers.adaptation.low_rank import LowRankUpdate


def get_path(layer: keras.layers.Layer) -> str:
    """The path of a layer, or the name of a model."""
    return layer.path or layer.name


def check_adapter_name(name: str) -> None:
    """Raises unless a name can be a part of the paths of weights."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise ValueError(
            "`name` must consist of letters, digits, '_', '.' and '-'. Received: "
            f"name={name!r}"
        )


def not_adaptable(model: keras.layers.Layer) -> dict[str, str]:
    """Path of each layer with weights of two axes that is not a `KernelLayer`, and why.

    Args:
        model: A model, or a layer with layers inside.
    """
    reasons = {}
    for layer in model._flatten_layers():
        is_matrix = any(len(x.shape) > 1 for x in layer._trainable_variables)
        if isinstance(layer, KernelLayer | LowRankUpdate) or not is_matrix:
            continue
        kind = type(layer).__name__
        if hasattr(layer, "recurrent_kernel"):
            reason = "recurrent cells keep their kernels as they are"
        elif type(layer).__module__.startswith("keras.") and (
            keras.saving.get_registered_object(f"keras_attn>{kind}")
        ):
            reason = f"it is a layer of Keras; use keras_attn.layers.{kind}"
        else:
            reason = f"the weights of {kind} are not kernels of products"
        reasons[get_path(layer)] = reason
    return reasons


def report_lines(passed_over: dict[str, str]) -> list[str]:
    """Lines of a report: the paths of each reason."""
    reasons = {}
    for path, reason in passed_over.items():
        reasons.setdefault(reason, []).append(path)
    return [
        f"passed over: {grouped(paths)}: {reason}" for reason, paths in reasons.items()
    ]


def grouped(paths: Iterable[str]) -> str:
    """Paths with the numbers of blocks left out, and how many there are of each."""
    counts = {}
    for path in paths:
        name = re.sub(r"_\d+", "_*", path)
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{n} × {name}" if n > 1 else name for name, n in counts.items())
