"""MODEL: a name, a checkpoint folder or a `.keras` file, with the head of a task."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from keras_attn import models
from keras_attn.cli.finetuning.result import NAME as RESULT
from keras_attn.cli.finetuning.result import read_result
from keras_attn.cli.opened_model import (
    find_model,
    is_checkpoint,
    is_translator,
    load_folder_tokenizer,
    open_checkpoint,
)
from keras_attn.cli.terminal import working
from keras_attn.files.hub_names import get_hub_name
from keras_attn.files.reading import get_file_size
from keras_attn.models.catalog.registry import entry
from keras_attn.models.checkpoints.description import get_class_names
from keras_attn.models.checkpoints.families import get_family
from keras_attn.models.checkpoints.folder import Folder
from keras_attn.models.checkpoints.loading import build_from_checkpoint
from keras_attn.models.checkpoints.tasks import call_builders
from keras_attn.models.parts.keras_file import build_from_keras_file, load_keras_file
from keras_attn.models.parts.keras_state import undone, without_allocating

_WITHOUT_A_CHECKPOINT = {"frozen_norms": False, "num_frozen": 0}


@dataclass(frozen=True)
class Source:
    """The source of a model.

    Attributes:
        name: MODEL as it was given; of a folder on the hub with its commit.
        path: The folder or the file; None for a name of `keras-attn list`.
        overrides: Arguments of the builder, from `--override`.
    """

    name: str
    path: Path | None
    overrides: dict[str, Any]

    @property
    def is_pretrained(self) -> bool:
        """Whether there are weights to begin with."""
        return self.path is not None

    @property
    def has_own_policy(self) -> bool:
        """Whether its precision was chosen when it was saved, by Keras."""
        return self.path is not None and not is_checkpoint(self.path)

    @property
    def size(self) -> int:
        """Bytes of its weights, which identify it when a run is resumed."""
        if self.path is None or self.path.is_file():
            return 0 if self.path is None else get_file_size(self.path)
        # Not what was exported to the folder since.
        weights = [*self.path.glob("*.safetensors"), *self.path.glob("*.keras")]
        return sum(map(get_file_size, weights))

    @property
    def class_names(self) -> list[str] | None:
        """The classes of the checkpoint."""
        if self.path is None or not is_checkpoint(self.path):
            return None
        return get_class_names(Folder(self.path).config)

    @property
    def predicts_numbers(self) -> bool:
        """Whether it has a head whose output is a number in the unit of its labels."""
        result = None if self.path is None else read_result(self.path)
        if result is not None or self.path is None or not is_checkpoint(self.path):
            return result is not None and result.task == "text_regression"
        config = Folder(self.path).config
        names = config.get("architectures") or ()
        is_classifier = any("SequenceClassification" in str(name) for name in names)
        return is_classifier and config.get_num_labels() == 1

    @property
    def reads_texts(self) -> bool:
        """Whether an input is the ids of tokens; True if the folder does not say."""
        if self.path is None:
            return "token_ids" in entry(self.name).card.inputs
        try:
            with undone(), without_allocating():
                if is_checkpoint(self.path):
                    model = build_from_checkpoint(self.path)
                else:
                    model = self._sketch_of_file()
        except (TypeError, ValueError):
            return True
        return isinstance(model.input, dict) and "token_ids" in model.input

    @property
    def is_language_model(self) -> bool:
        """Whether it continues a text."""
        if self.path is None:
            return entry(self.name).card.task == "language model"
        if is_checkpoint(self.path):
            return "causal_lm" in get_family(Folder(self.path).config).tasks
        with undone(), without_allocating():
            return hasattr(self._sketch_of_file(), "incremental")

    @property
    def has_masks(self) -> bool:
        """Whether it is a detector that predicts masks."""
        if self.path is None:
            return "masks" in entry(self.name).card.outputs
        if is_checkpoint(self.path):
            config = Folder(self.path).config
            default = get_family(config).default_task
            return default is not None and default(config) == "instance_segmenter"
        with undone(), without_allocating():
            return bool(getattr(self._sketch_of_file(), "has_masks", False))

    def tokenizer(self, folder: str | None) -> Any:
        """The tokenizer.

        Args:
            folder: `--tokenizer`; None = the one of the checkpoint.

        Raises:
            ValueError: If there is none.
        """
        if folder is None and (self.path is None or not self.path.is_dir()):
            raise ValueError(
                "--tokenizer, the folder of a tokenizer, must be given if MODEL is a "
                f"name or a file. Received: MODEL {self.name!r}"
            )
        tokenizer = load_folder_tokenizer(folder or self.path or Path())
        if not hasattr(tokenizer, "convention"):
            raise ValueError(
                "--tokenizer must be of a pretrained model: WordPiece, SentencePiece "
                f"or byte-level BPE. Received: a {type(tokenizer).__name__}"
            )
        return tokenizer

    def load(self, head: str, options: dict[str, Any]) -> Any:
        """The model with its weights; a new head's are drawn at random.

        Args:
            head: The task of a checkpoint, such as "classifier".
            options: Arguments of the builders that follow from the data. Those that a
                builder does not take are left out.
        """
        if self.path is None:
            return self._create(head, options)
        if not is_checkpoint(self.path):
            with working("Loading the model"):
                return load_keras_file(self._file())
        return open_checkpoint(self.path, head, **self._for_checkpoint(options))

    def sketch(self, head: str, options: dict[str, Any]) -> Any:
        """The same model without its weights; call it in a graph."""
        if self.path is None:
            return self._create(head, options)
        if not is_checkpoint(self.path):
            return self._sketch_of_file()
        return build_from_checkpoint(self.path, head, **self._for_checkpoint(options))

    def _for_checkpoint(self, options: dict[str, Any]) -> dict[str, Any]:
        names = ("num_classes", "image_size")
        known = {name: options[name] for name in names if name in options}
        return {**known, **self.overrides}

    def _create(self, head: str, options: dict[str, Any]) -> Any:
        """A model by its name, with a head on top if it is an encoder of texts."""
        found = entry(self.name)
        calls: list[tuple[Callable, dict]] = [(found.builder, {})]
        name = f"{getattr(found.builder, '__name__', '')}_{head}"
        if hasattr(models, name):
            calls.append((getattr(models, name), {}))
        options = {**_WITHOUT_A_CHECKPOINT, **options}
        for builder, arguments in calls:
            accepted = inspect.signature(builder).parameters
            arguments.update({k: v for k, v in options.items() if k in accepted})
        calls[0][1]["variant"] = found.variant
        return call_builders(calls, self.overrides)

    def _sketch_of_file(self) -> keras.Model:
        return build_from_keras_file(self._file())

    def _file(self) -> Path:
        path = self.path or Path()
        if self.overrides:
            raise ValueError(
                "--override is for names and checkpoint folders; a model saved by "
                f"Keras has its sizes. Received: MODEL {self.name!r}"
            )
        return path / "model.keras" if path.is_dir() else path


def find_source(name: str, overrides: dict[str, Any]) -> Source:
    """The source that MODEL means.

    Args:
        name: MODEL.
        overrides: `--override`.

    Raises:
        ValueError: If it is neither a name nor something that has a model.
    """
    path = find_model(name, None)
    if path is not None:
        is_ours = path.suffix == ".keras" or (path / "model.keras").is_file()
        if is_translator(path) or not (is_checkpoint(path) or is_ours):
            raise ValueError(
                "MODEL must be a name from `keras-attn list`, a checkpoint folder "
                "(config.json, *.safetensors) or its name (hf://owner/name), a "
                f"`.keras` file, or a folder of `keras-attn finetune` ({RESULT}). "
                f"Received: {name!r}"
            )
    if path is not None:
        # With the commit, so that a run that is resumed begins with the same weights.
        name = get_hub_name(path) or name
    return Source(name, path, overrides)
