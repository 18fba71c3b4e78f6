"""What the command line of `keras-attn finetune` says."""

import ast
import json
import shlex
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Settings:
    """The arguments and options of `keras-attn finetune`, by their names.

    Attributes:
        model: MODEL, a name or a path.
        data: DATA.
        run_dir: Where everything is written.
        task: One of `kinds.TASKS`; None = from the data.
        validation: Data to validate on; None = a part of DATA.
        validation_fraction: The part.
        text_column: Column of the texts; None = the usual names.
        pair_column: Column of the second texts.
        label_column: Column of the labels.
        prompt_column: Column of the prompts.
        header: Whether the first line of a table names its columns.
        tokenizer: Folder of the tokenizer, if MODEL has none.
        max_length: Tokens per row.
        images: Folder of the images.
        validation_images: Folder of the images of `validation`.
        masks: Folder of the masks.
        classes: File with the names of the classes.
        image_size: Rows and columns of the model's images.
        pixels: Value range of images; None = as MODEL says.
        augment: Whether images are mirrored at random.
        augmentation: What else changes images at random; None = mirroring.
        epochs: Passes over the data.
        batch_size: Rows per step.
        learning_rate: The largest one; None = the task's.
        patience: Epochs without improvement before training stops; None = never.
        precision: Keras' dtype policy.
        class_weights: "balanced" weighs each class the same, also of pixels.
        lora: Rank of the low-rank updates; None = everything trains.
        lora_targets: Kernels that get updates.
        quantize: Kind of integers of the fixed kernels.
        save_adapters: Whether to save the low-rank updates alone, too.
        override: `NAME=VALUE`, arguments of the model's builder.
        seed: Seed of everything random.
    """

    model: str
    data: Path
    run_dir: Path
    task: str | None = None
    validation: Path | None = None
    validation_fraction: float = 0.1
    text_column: str | None = None
    pair_column: str | None = None
    label_column: str | None = None
    prompt_column: str | None = None
    header: bool = True
    tokenizer: Path | None = None
    max_length: int = 128
    images: Path | None = None
    validation_images: Path | None = None
    masks: Path | None = None
    classes: Path | None = None
    image_size: str | None = None
    pixels: str | None = None
    augment: bool = True
    augmentation: str | None = None
    epochs: int = 3
    batch_size: int = 16
    learning_rate: float | None = None
    patience: int | None = None
    precision: str = "float32"
    class_weights: str | None = None
    lora: int | None = None
    lora_targets: str | None = None
    quantize: str | None = None
    save_adapters: bool = False
    override: list[str] = field(default_factory=list)
    seed: int = 0

    @property
    def command(self) -> str:
        """The command line, for the model card."""
        words = ["keras-attn", "finetune", self.model, str(self.data)]
        for each in fields(self):
            value, name = getattr(self, each.name), each.name.replace("_", "-")
            if each.name in ("model", "data") or value in (each.default, None, []):
                continue
            if isinstance(value, bool):
                words.append(f"--{name}" if value else f"--no-{name}")
                continue
            for one in value if isinstance(value, list) else [value]:
                words += [f"--{name}", str(one)]
        return shlex.join(words)

    @property
    def sides(self) -> tuple[int, int] | None:
        """Rows and columns of `image_size`, which is "224" or "144x192".

        Raises:
            ValueError: If it is neither.
        """
        if self.image_size is None:
            return None
        return sides_of("--image-size", self.image_size)

    @property
    def overrides(self) -> dict[str, Any]:
        """The arguments of the builder; values are JSON, Python's, or else text.

        Raises:
            ValueError: If one is not of the form `NAME=VALUE`.
        """
        found: dict[str, Any] = {}
        for each in self.override:
            name, equals, value = each.partition("=")
            if not equals or not name.isidentifier():
                raise ValueError(
                    "--override must be NAME=VALUE, an argument of the model's "
                    f"builder. Received: --override {each!r}"
                )
            found[name] = _value(value)
        return found

    def identity(self) -> dict[str, Any]:
        """What the run consists of, to be compared when it is resumed."""
        return {
            each.name: value if isinstance(value, int | float | list) else str(value)
            for each in fields(self)
            if each.name not in ("run_dir", "save_adapters")
            and (value := getattr(self, each.name)) is not None
        }


def sides_of(option: str, text: str) -> tuple[int, int]:
    """Rows and columns of an option, which is "224" or "144x192".

    Args:
        option: Its name.
        text: Its value.

    Raises:
        ValueError: If it is neither.
    """
    parts = text.lower().split("x")
    is_size = all(part.isascii() and part.isdigit() and int(part) for part in parts)
    if len(parts) > 2 or not is_size:
        raise ValueError(
            f"{option} must be one number, or rows and columns such as 144x192. "
            f"Received: {option} {text!r}"
        )
    return int(parts[0]), int(parts[-1])


def _value(text: str) -> Any:
    """`2`, `[2, 3]`, `false` as in JSON, `False`, `None` as in Python, or a text."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text
