"""The folder of a run: what it holds of this run, and whether that can go on."""

import hashlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keras_attn.cli.finetuning.job import Job
from keras_attn.cli.finetuning.result import NAME as RESULT_FILE
from keras_attn.cli.finetuning.result import Result, read_result
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.finetuning.source import Source
from keras_attn.cli.runs import (
    check_is_free,
    claim,
    extend,
    holds_run,
    is_interrupted,
    read_settings,
)
from keras_attn.cli.terminal import say
from keras_attn.data.images.yolo_layout import YAML_SUFFIXES, yolo_folders
from keras_attn.data.text.sentencepiece import MODEL_FILES
from keras_attn.distribution.processes import is_writer
from keras_attn.files.hub import local_folder
from keras_attn.files.hub_names import get_hub_name, is_hub_name

# Besides what every run writes. The tokenizer's depend on its kind.
_FILES = ("README.md", "adapters", "config.json", "model.safetensors", RESULT_FILE)
_FILES += ("vocab.txt", "vocab.json", "merges.txt", "tokenizer.json")
_FILES += ("tokenizer_config.json", *MODEL_FILES)
# Options that name files.
_DATA = ("data", "validation", "images", "validation_images", "masks", "classes")


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run before it is trained.

    Attributes:
        path: `--run-dir`.
        identity: The settings of the run, with what identifies its model and data.
        result: Of the complete run in the folder; None if there is none.
        epochs: Epochs of the complete run, if this one continues it; 0 otherwise.
        is_new: Whether no such run was started in the folder.
    """

    path: Path
    identity: dict[str, Any]
    result: Result | None
    epochs: int
    is_new: bool

    def claim(self) -> None:
        """Claims the folder for this run, in this process.

        Raises:
            ValueError: As `runs.claim`.
        """
        if self.epochs:
            self._extend()
        claim(self.path, self.identity)
        if is_interrupted(self.path):
            say(f"Resuming the interrupted run in {self.path}.")

    def _extend(self) -> None:
        """Lets a complete run go on: its result says how far it was when that began."""
        if read_settings(self.path) == self.identity:
            return
        if self.result is not None and is_writer():
            replace(self.result, epochs=self.epochs).save(self.path)
            # Of a process that was killed right after it wrote the result.
            shutil.rmtree(self.path / "backup", ignore_errors=True)
        extend(self.path, self.identity)


def find_run(job: Job) -> RunFolder:
    """Reads the state of a run in a folder.

    Args:
        job: What the run learns.

    Raises:
        ValueError: If it holds another run, or files that this one would replace; or
            the complete run cannot go on.
    """
    folder, identity = job.settings.run_dir, _identity(job.settings, job.source)
    found, result = read_settings(folder), read_result(folder)
    epochs = 0
    if found is not None and result is not None:
        epochs = _epochs_before(job, identity, found, result)
    is_new = not epochs and not holds_run(folder, identity)
    if is_new:
        check_is_free(folder, *_FILES)
    return RunFolder(folder, identity, result, epochs, is_new)


def _epochs_before(
    job: Job, identity: dict[str, Any], found: dict[str, Any], result: Result
) -> int:
    """The epochs of a complete run that this one continues; 0 if it is a new one."""
    settings = job.settings
    before = result.epochs or found["epochs"]
    if before >= settings.epochs or {**found, "epochs": settings.epochs} != identity:
        return 0
    if before < found["epochs"] and found != identity:
        return 0  # It was continued before, to another end.
    if settings.quantize is not None or job.kind.task == "preference":
        what = "--quantize" if settings.quantize is not None else "preferences"
        raise ValueError(
            f"--epochs cannot be raised after a run with {what}, whose base is not in "
            "its folder; choose another --run-dir. "
            f"Received: --epochs {settings.epochs} after {before}"
        )
    return before


def _identity(settings: Settings, source: Source) -> dict[str, Any]:
    """The settings of a run, with what identifies its model and data."""
    found = {
        "command": "finetune",
        **settings.identity(),
        "model": source.name,
        "model_bytes": source.size,
    }
    if settings.tokenizer is not None and is_hub_name(settings.tokenizer):
        # With the commit, as of the model.
        path = local_folder(settings.tokenizer, "tokenizer")
        found["tokenizer"] = get_hub_name(path)
    for name in _DATA:
        path = getattr(settings, name)
        if path is not None:
            found[f"{name}_digest"] = _digest(path)
            if path.suffix.lower() in YAML_SUFFIXES:
                found[f"{name}_files"] = [_digest(each) for each in yolo_folders(path)]
    return found


def _digest(path: Path) -> str:
    """A short hash of a table's content, or of a folder's names and sizes."""
    found = hashlib.sha256()
    if path.is_dir():
        for each in sorted(path.rglob("*")):
            if each.is_file():
                name = each.relative_to(path).as_posix()
                found.update(f"{name}\0{each.stat().st_size}\n".encode())
    else:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256")
    return found.hexdigest()[:16]
