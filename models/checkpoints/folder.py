"""A checkpoint folder in the Hugging Face layout: reading it, and writing it.

```
config.json                        the model's type and sizes
model.safetensors                  its weights; or, if they are split:
model-00001-of-00003.safetensors   a part of the weights
model.safetensors.index.json       key to the file that contains it
```

A folder is treated as untrusted: nothing is unpickled, only regular files of bounded
size are opened, no path may lead out of the folder, and everything is checked before
the first weight is read.
"""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np

from keras_attn.file_reading import read_json, shown
from keras_attn.models.checkpoints.config import Config
from keras_attn.models.checkpoints.tensors import (
    Tensor,
    TensorFile,
    shards,
    write_tensors,
)

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_LONGEST_NAME = 200
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")


class Folder:
    """A checkpoint folder, open for reading.

    Args:
        path: The folder.

    Attributes:
        config: The fields of `config.json`, bounded by what the files contain.
        shapes: Key to shape, of every tensor in every file.
        dtypes: Key to the format's name of its dtype.

    Raises:
        FileNotFoundError: If the folder, its `config.json` or its weights are missing.
        ValueError: If a file is corrupt, or an index does not match the files.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        if not self.path.is_dir():
            raise FileNotFoundError(
                "`folder` must be the folder of a checkpoint, with config.json and "
                f"*.safetensors. Received: folder={str(path)!r}"
            )
        fields = read_json(self.path / CONFIG)
        self._files = {}
        for name, keys in self._weight_files().items():
            file = TensorFile(self.path / name)
            if keys is not None and keys != set(file.shapes):
                raise ValueError(
                    f"`{INDEX}` must list the keys in its files: it differs from "
                    f"{name} in {preview(keys ^ set(file.shapes))}. "
                    f"Received: folder={str(path)!r}"
                )
            self._files.update(dict.fromkeys(file.shapes, file))
        self.shapes = {key: file.shapes[key] for key, file in self._files.items()}
        self.dtypes = {key: file.dtypes[key] for key, file in self._files.items()}
        self.config = Config(fields, self.shapes)

    def read(self, key: str) -> np.ndarray:
        """Reads the tensor of a key; it is not cached."""
        return self._files[key].read(key)

    def _weight_files(self) -> dict[str, set[str] | None]:
        """File name to its keys according to the index; to None without an index."""
        names = {file.name for file in self.path.glob("*.safetensors")}
        if WEIGHTS in names:
            return {WEIGHTS: None}
        if (self.path / INDEX).exists():
            return self._indexed_files()
        if len(names) == 1:
            return {names.pop(): None}
        if names:
            raise ValueError(
                f"`folder` with several weight files must have {INDEX}. "
                f"Received: {preview(names)}"
            )
        others = sorted(
            file.name for pattern in _PICKLED for file in self.path.glob(pattern)
        )
        fix = ""
        if others:
            fix = (
                f" {preview(others)} can contain code and is never opened here: if you "
                "trust it, convert it to safetensors (in transformers, "
                "`model.save_pretrained(folder)`)."
            )
        raise FileNotFoundError(
            f"`folder` has no *.safetensors.{fix} Received: folder={str(self.path)!r}"
        )

    def _indexed_files(self):
        weight_map = read_json(self.path / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError(
                f"`{INDEX}` must have a `weight_map` from keys to file names. "
                f"Received: weight_map={shown(weight_map)}"
            )
        files: dict[str, set[str] | None] = {}
        for key, name in weight_map.items():
            # A name, not a path: an index must not lead out of its folder.
            if not isinstance(name, str) or not re.fullmatch(
                r"[\w][\w.-]*\.safetensors", name
            ):
                raise ValueError(
                    f"`{INDEX}` must name *.safetensors files in its own folder, not "
                    f"paths. Received: {shown(key)} in {shown(name)}"
                )
            if not (self.path / name).exists():
                raise FileNotFoundError(
                    f"`{INDEX}` names a file that is missing. Received: {name!r}"
                )
            keys = files.setdefault(name, set())
            if keys is not None:
                keys.add(key)
        return files


def write_folder(
    path: str | os.PathLike,
    config: dict,
    tensors: dict[str, Tensor],
    max_shard_bytes: int,
    others: dict[str, dict] | None = None,
) -> None:
    """Writes a checkpoint to a temporary folder, and moves it once it is complete.

    The config and weights of an older checkpoint in the folder are replaced; other
    files are kept. A failure while writing leaves everything unchanged.

    Args:
        path: The folder; created if it is missing.
        config: The content of `config.json`.
        tensors: Key to tensor, in the order of the files.
        max_shard_bytes: Maximum size of a weight file.
        others: The content of each further JSON file by its name.

    Raises:
        NotADirectoryError: If `path` is a file.
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(
            f"`folder` must be a folder, or not exist yet. Received: {str(path)!r}"
        )
    # Renaming is atomic only within a file system, and an existing folder may be a
    # mount point, so the temporary folder is inside it, or next to a new one.
    is_new = not path.exists()
    stage = (path.parent if is_new else path) / f".checkpoint.{os.getpid()}.partial"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    try:
        parts = list(shards(tensors, max_shard_bytes))
        _write_files(stage, {**(others or {}), CONFIG: config}, parts)
    except BaseException:
        shutil.rmtree(stage)
        raise
    if is_new:
        stage.rename(path)
    else:
        _replace_files(stage, path)


def _write_files(folder, texts, parts):
    """Writes the weights, one part per file, their index if needed, and JSON files."""
    files = {WEIGHTS: parts[0]}
    if len(parts) > 1:
        files = {
            f"model-{number:05d}-of-{len(parts):05d}.safetensors": part
            for number, part in enumerate(parts, 1)
        }
        total = sum(tensor.nbytes for part in parts for tensor in part.values())
        texts[INDEX] = {
            "metadata": {"total_size": total},
            "weight_map": {key: name for name, part in files.items() for key in part},
        }
    for name, part in files.items():
        write_tensors(folder / name, part)
    for name, content in texts.items():
        text = json.dumps(content, indent=2, sort_keys=True) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def _replace_files(stage, folder):
    """Replaces the files of an older checkpoint by the written files.

    The old `config.json` is deleted first and the new one moved last. A folder without
    it is not a checkpoint, so a reader in between gets an error, not a mixture.
    """
    (folder / CONFIG).unlink(missing_ok=True)
    written = {file.name for file in stage.iterdir()}
    for file in folder.iterdir():
        is_ours = file.name in (WEIGHTS, INDEX) or _SHARD.fullmatch(file.name)
        if is_ours and file.name not in written:
            file.unlink()
    for name in sorted(written, key=lambda name: name == CONFIG):
        os.replace(stage / name, folder / name)
    stage.rmdir()


def preview(names, most=6):
    """The first few names, for a message."""
    names = sorted(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    # In an untrusted file a name may be as long as the file.
    return ", ".join(name[:_LONGEST_NAME] for name in names[:most]) + more
