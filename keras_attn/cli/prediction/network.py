"""MODEL of `keras-attn predict`: in Keras or as an exported file, called alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keras_attn.cli.finetuning.result import NAME, Result, read_result
from keras_attn.cli.opened_model import (
    is_checkpoint,
    load_folder_tokenizer,
    local_model,
    open_model,
)
from keras_attn.export import load_runner
from keras_attn.export.formats import ANY_ARTEFACT, format_at
from keras_attn.export.signature_info import IMAGE_BYTES, PREFILL, SERVE_PAIR, TEXT
from keras_attn.files.reading import read_json
from keras_attn.models.checkpoints.folder import CONFIG
from keras_attn.models.parts.functional import input_structure

_IMAGES = "images"


@dataclass(frozen=True)
class Network:
    """A model that is called with arrays by the names of its inputs.

    Attributes:
        model: The Keras model, or a runner of an exported file.
        shapes: Shape of each input, None where any size is accepted.
        result: What it was fine-tuned to.
        folder: The folder with its tokenizer; None if there is none.
        is_exported: Whether `model` is a runner.
    """

    model: Any
    shapes: Mapping[str, tuple[int | None, ...]]
    result: Result
    folder: Path | None
    is_exported: bool

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> Any:
        """The outputs of a batch: one array, or arrays by name.

        A file that takes one number of rows gets copies of the last row.
        """
        count = len(next(iter(inputs.values())))
        rows = next(iter(self.shapes.values()))[0]
        if rows is not None and count < rows:
            inputs = {
                name: np.concatenate([array, np.repeat(array[-1:], rows - count, 0)])
                for name, array in inputs.items()
            }
        found = self._call(inputs)
        if isinstance(found, Mapping):
            found = {name: np.asarray(value)[:count] for name, value in found.items()}
            if "logits" in found:
                return found["logits"]  # Not what only training needs.
            return next(iter(found.values())) if len(found) == 1 else found
        return np.asarray(found)[:count]

    def _call(self, inputs: Mapping[str, np.ndarray]) -> Any:
        if self.is_exported:
            is_pair = len(inputs) == 2 and self.takes_strings
            return self.model(inputs, SERVE_PAIR) if is_pair else self.model(inputs)
        if isinstance(input_structure(self.model), Mapping):
            return self.model.predict_on_batch(dict(inputs))
        (array,) = inputs.values()
        return self.model.predict_on_batch(array)

    def choose_batch_size(self, batch_size: int) -> int:
        """Rows per batch: as many as a file takes, if it takes one number only."""
        return next(iter(self.shapes.values()))[0] or batch_size

    @property
    def takes_strings(self) -> bool:
        """Whether texts need no tokenizer."""
        return TEXT in self.shapes

    @property
    def image_input(self) -> str:
        """The name of the input of images."""
        return IMAGE_BYTES if IMAGE_BYTES in self.shapes else next(iter(self.shapes))

    def tokenizer(self) -> Any:
        """The tokenizer of the folder.

        Raises:
            ValueError: If there is none.
        """
        return load_folder_tokenizer(self.folder or Path())


def open_network(name: str, finetuned: str | None) -> Network:
    """Opens MODEL.

    Args:
        name: A fine-tuned folder, a checkpoint folder, its name on the hub, or an
            exported file.
        finetuned: `--finetuned`, the fine-tuned folder that a file was exported from,
            or its name on the hub. None = the folder that the file is in.

    Raises:
        ValueError: If it is neither, or if it is not known what its outputs mean.
    """
    path = local_model(name)
    other = None if finetuned is None else local_model(finetuned, "--finetuned")
    if not is_checkpoint(path) and not (path / "model.keras").is_file():
        if format_at(path) is not None:
            return _exported(path, other)
        if path.suffix != ".keras":
            raise ValueError(
                "MODEL must be a folder of `keras-attn finetune`, a checkpoint folder, "
                f"a `.keras` file, or an exported model: {ANY_ARTEFACT}. "
                f"Received: {str(path)!r}"
            )
    folder = other or (path if path.is_dir() else path.parent)
    opened = open_model(path)
    result = read_result(folder) or _guessed(opened.model, path)
    structure = input_structure(opened.model)
    tensors = structure if isinstance(structure, Mapping) else {_IMAGES: structure}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return Network(opened.model, shapes, result, folder, is_exported=False)


def _exported(path: Path, finetuned: Path | None) -> Network:
    runner = load_runner(path)
    first = runner.signatures.get(PREFILL) or next(iter(runner.signatures.values()))
    shapes = {name: info.shape for name, info in first.inputs.items()}
    folder = finetuned or path.resolve().parent
    result = read_result(folder)
    if result is None and is_checkpoint(folder):
        result = _guessed(open_model(folder).model, folder)
    if result is None:
        # A SavedModel that takes texts or files themselves.
        tasks = {TEXT: "text_classification", IMAGE_BYTES: "image_classification"}
        task = next((tasks[name] for name in shapes if name in tasks), None)
        if task is None:
            raise ValueError(
                "--finetuned must be the folder that MODEL was exported from, for its "
                f"classes, tokenizer or preprocessing: {str(folder)!r} has no {NAME}. "
                f"Received: MODEL {str(path)!r} without --finetuned"
            )
        result = Result(task)
    return Network(runner, shapes, result, folder, is_exported=True)


def _check_problem(path: Path, count: int) -> None:
    """Raises if a checkpoint's outputs are not the scores of one class of each row.

    Args:
        path: The model.
        count: Number of its outputs.
    """
    if not (path / CONFIG).is_file():
        return
    kind = read_json(path / CONFIG).get("problem_type")
    if kind == "multi_label_classification" or (kind == "regression" and count > 1):
        raise ValueError(
            f"`problem_type` in {CONFIG} must be None or "
            "'single_label_classification': each row gets one of the classes here. The "
            "outputs of `models.load_checkpoint` are the logits, for any other use. "
            f"Received: problem_type={kind!r}, in {str(path)!r}"
        )


def _guessed(model: Any, path: Path) -> Result:
    """Guesses the task of a model that was not fine-tuned here.

    Raises:
        ValueError: If its outputs are not classes.
    """
    names = set(model.input) if isinstance(model.input, Mapping) else set()
    shape = tuple(getattr(model.output, "shape", ()))
    names_of_classes: Sequence[str] = getattr(model, "class_names", None) or ()
    classes = list(names_of_classes)
    if hasattr(model, "incremental") and names == {"token_ids", "padding_mask"}:
        return Result("completion")
    if len(shape) == 2:
        _check_problem(path, shape[-1])
    if len(shape) == 2 and "token_ids" in names:
        task = "text_regression" if shape[-1] == 1 else "text_classification"
        return Result(task, class_names=classes)
    fields = getattr(model, "preprocessing", None)
    if len(shape) == 2 and len(model.inputs) == 1 and fields is not None:
        channels = model.inputs[0].shape[-1]
        return Result(
            "image_classification",
            class_names=classes,
            preprocessing=fields,
            channels=channels,
        )
    raise ValueError(
        f"MODEL must say what its outputs mean: a folder with {NAME}, a classifier of "
        "texts, one of images with its preprocessing, or a language model. "
        f"Received: {str(path)!r}; `keras-attn finetune` makes one of it"
    )
