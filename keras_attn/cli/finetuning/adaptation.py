"""LoRA, and quantization of the kernels that it leaves fixed."""

import tempfile
from typing import Any

import keras

from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.terminal import working
from keras_attn.layers.adaptation.lora import enable_lora, kernel_parts
from keras_attn.models import save_lora
from keras_attn.models.checkpoints.saving import can_be_saved

_USUAL = ("query", "value")


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
            f"--quantize {mode} is not available for this model: it has no layers of "
            "this library, and Keras' own `quantize` skips attention. Received: a "
            f"{type(model).__name__}"
        )


def adapt(
    model: Any, settings: Settings, new_layers: list[str], *, is_sketch: bool = False
) -> list[str]:
    """With `--lora`, gives a model LoRA weights; only they and new layers train.

    Args:
        model: A model.
        settings: The command line.
        new_layers: Names of layers that train as a whole.
        is_sketch: Whether it has no weights: what would be quantized is only checked.

    Returns:
        What was done, for the user; nothing without `--lora`.

    Raises:
        ValueError: If the LoRA weights are to be saved by themselves, and no layout has
            them; or the kernels cannot be quantized.
    """
    if settings.lora is None:
        return []
    done = []
    if settings.quantize is not None:
        check_quantizable(model, settings.quantize)
        if not is_sketch:
            with working("Quantizing"):
                done.append(str(model.quantize(settings.quantize)))
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
    report = enable_lora(
        model, settings.lora, targets=targets, also_train=new_layers, seed=settings.seed
    )
    if settings.save_adapters and not is_sketch:
        # What cannot be saved by itself is refused now, not after training.
        with tempfile.TemporaryDirectory() as folder:
            save_lora(model, folder)
    return [*done, str(report)]
