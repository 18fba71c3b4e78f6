"""LoRA, and integers in place of the kernels that it leaves fixed."""

import tempfile
from typing import Any

import keras

from keras_attn.cli.finetuning.settings import Settings
from keras_attn.layers.adaptation.lora import LoRAReport, enable_lora, kernel_parts
from keras_attn.models import save_lora
from keras_attn.models.checkpoints.saving import can_be_saved

_USUAL = ("query", "value")


def check_adaptation(settings: Settings) -> None:
    """Raises for options that make no sense together.

    Raises:
        ValueError: If there are targets without a rank, or integers that would have to
            train.
    """
    if settings.lora_targets is not None and settings.lora is None:
        raise ValueError(
            "--lora-targets needs --lora RANK. "
            f"Received: --lora-targets {settings.lora_targets!r}"
        )
    if settings.save_adapters and settings.lora is None:
        raise ValueError(
            "--save-adapters needs --lora RANK. Received: --save-adapters alone"
        )
    if settings.quantize is not None and settings.lora is None:
        raise ValueError(
            "--quantize needs --lora RANK: kernels of integers do not train, low-rank "
            f"updates of them do. Received: --quantize {settings.quantize}"
        )


def check_saving(model: Any) -> None:
    """Raises if the updates of a model cannot be saved alone, before they are trained.

    Raises:
        ValueError: If it has no counterpart in transformers.
    """
    with tempfile.TemporaryDirectory() as folder:
        save_lora(model, folder)


def quantize(model: Any, mode: str) -> str:
    """Turns the kernels of a model into integers.

    Args:
        model: A model.
        mode: `--quantize`.

    Returns:
        What was reached.

    Raises:
        ValueError: If only Keras' own way is there, which reaches little.
    """
    check_quantizable(model, mode)
    return str(model.quantize(mode))


def check_quantizable(model: Any, mode: str) -> None:
    """Raises if only Keras' own way is there, which reaches little.

    Args:
        model: A model.
        mode: `--quantize`.

    Raises:
        ValueError: If it cannot be quantized.
    """
    if type(model).quantize is keras.Model.quantize:
        raise ValueError(
            f"--quantize {mode} is not available for this model: Keras' own "
            "`quantize` passes over attention, and none of ours is there. "
            f"Received: a {type(model).__name__}"
        )


def adapt(model: Any, settings: Settings, new_layers: list[str]) -> LoRAReport:
    """Gives a model low-rank updates; everything else but its new layers is fixed.

    Args:
        model: A model.
        settings: The command line, with `--lora`.
        new_layers: Names of layers that train as a whole.

    Raises:
        ValueError: If the updates are to be saved alone, and no layout has them.
    """
    if settings.save_adapters and not can_be_saved(model):
        raise ValueError(
            "--save-adapters needs a model with a counterpart in transformers, whose "
            f"names PEFT reads. Received: {settings.model!r}"
        )
    targets: Any = _USUAL
    if settings.lora_targets is not None:
        targets = [part.strip() for part in settings.lora_targets.split(",")]
        targets = "all" if targets == ["all"] else targets
    else:
        names = {part.path.rsplit("/", 1)[-1] for part in kernel_parts(model)}
        if not set(_USUAL) <= names:
            targets = "all"
    return enable_lora(
        model,
        settings.lora or 1,
        targets=targets,
        also_train=new_layers,
        seed=settings.seed,
    )
