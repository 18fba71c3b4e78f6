"""`finetuned.json`: what `keras-attn predict` has to know besides the model.

It is written last, so a folder that has it holds a complete run.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from keras_attn.files.reading import read_json
from keras_attn.files.writing import write_atomically

NAME = "finetuned.json"


@dataclass(frozen=True)
class Result:
    """Task and settings of a fine-tuned model.

    Attributes:
        task: One of `kinds.TASKS`.
        class_names: The classes in the order of the model's outputs.
        columns: The columns of the table that it learned from: `text`, `second`,
            `label`, `prompt`.
        max_length: Tokens per row.
        image_size: Rows and columns of the inputs; None = as in the files.
        channels: Channels of the images.
        normalize: Normalization of `segmentation_dataset` and `detection_dataset`.
        aligned_masks: How masks of objects are pasted; see `ops.paste_masks`.
        preprocessing: Fields of transformers' `preprocessor_config.json`.
        mask_values: Pairs of what stands for a class in masks, a number or a color, and
            the class, if a file says so; 255 is what is ignored.
        label_scale: `mean` and `deviation` of the numbers that it learned from, which
            training scaled to 0 and 1; its outputs are in their own unit.
        is_pretrained: Whether it had weights before it learned from these data.
        epochs: Passes over the data; None in a folder of an earlier version.
        figures: What was measured on the validation data.
    """

    task: str
    class_names: list[str] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)
    max_length: int | None = None
    image_size: list[int] | None = None
    channels: int = 3
    normalize: str | None = None
    aligned_masks: bool = True
    preprocessing: dict[str, Any] | None = None
    mask_values: list[list[Any]] | None = None
    label_scale: dict[str, float] | None = None
    is_pretrained: bool = True
    epochs: int | None = None
    figures: dict[str, float] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Writes the file."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"
        write_atomically(folder / NAME, text.encode())


def _types_of(annotation: Any) -> tuple[type, ...]:
    """The classes of a value, such as list and None of `list[int] | None`."""
    is_union = isinstance(annotation, UnionType)
    parts = get_args(annotation) if is_union else (annotation,)
    return tuple(get_origin(part) or part for part in parts)


_TYPES = {name: _types_of(each) for name, each in get_type_hints(Result).items()}


def read_result(folder: Path) -> Result | None:
    """The file of a folder; None if it has none.

    Raises:
        ValueError: If it is not what `save` writes.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    found = read_json(path)
    wrong = [
        name
        for name, types in _TYPES.items()
        if name in found and not isinstance(found[name], types)
    ]
    if wrong or not isinstance(found.get("task"), str):
        raise ValueError(
            f"{NAME} must be as `keras-attn finetune` wrote it. "
            f"Received: {str(path)!r} with another {', '.join(wrong or ['task'])}"
        )
    return Result(**{name: found[name] for name in _TYPES if name in found})
