"""A checkpoint folder in the Hugging Face layout: reading it, and writing it.

```
config.json                        the model's type and sizes
model.safetensors                  its weights; or, if they are split:
model-00001-of-00003.safetensors   a part of the weights
model.safetensors.index.json       key to the file that contains it
```

open_clip's is in the same form, with a name of its own for each of its two files, which
may stand beside these.

A folder is treated as untrusted: nothing is unpickled, only regular files of bounded
size are opened, no path may lead out of the folder, and everything is checked before
the first weight is read.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_attn.files.hub_names import check_is_local
from keras_attn.files.reading import read_json, shown
from keras_attn.files.writing import make_work_folder, remove_leftovers
from keras_attn.models.checkpoints.config import Config
from keras_attn.models.checkpoints.tensors import (
    Index,
    Tensor,
    TensorFile,
    shards,
    write_tensors,
)


class Files(NamedTuple):
    """Names of the files of a checkpoint.

    Attributes:
        config: Of the configuration.
        weights: Of the weights, if they are not split.
        can_be_split: Whether the weights may be in several files, with an index.
    """

    config: str
    weights: str
    can_be_split: bool = True


FILES = Files("config.json", "model.safetensors")
OPEN_CLIP_FILES = Files(
    "open_clip_config.json", "open_clip_model.safetensors", can_be_split=False
)
CONFIG, WEIGHTS, _ = FILES
# Of PEFT, whose folders `load_lora` reads.
ADAPTER_FILES = Files(
    "adapter_config.json", "adapter_model.safetensors", can_be_split=False
)
INDEX = "model.safetensors.index.json"
_INDEX_OF_VARIANT = "model.safetensors.index.*.json"
_NO_BASE = (
    "`folder` has an adapter of PEFT and no model: load its base, and then "
    "`models.load_lora(model, folder)`."
)
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
        names, fields = read_config(self.path)
        # Key to the file, and to its key in it.
        self._files: dict[str, tuple[TensorFile, str]] = {}
        for name, keys in self._weight_files(names).items():
            file = TensorFile(self.path / name)
            if keys is not None and keys != set(file.shapes):
                raise ValueError(
                    f"`{INDEX}` must list the keys in its files: it differs from "
                    f"{name} in {preview(keys ^ set(file.shapes))}. "
                    f"Received: folder={str(path)!r}"
                )
            self._files |= {key: (file, key) for key in file.shapes}
        self.shapes = {key: file.shapes[key] for key, (file, _) in self._files.items()}
        self.dtypes = {key: file.dtypes[key] for key, (file, _) in self._files.items()}
        self.config = Config(fields, self.shapes, names.config)

    def read(self, key: str) -> np.ndarray:
        """Reads the tensor of a key; it is not cached.

        Raises:
            ValueError: If a number of it is NaN or infinite.
        """
        file, name = self._files[key]
        return _finite(key, file.read(name))

    def read_part(self, key: str, index: Index) -> np.ndarray:
        """Reads a part of the tensor of a key; it is not cached.

        Raises:
            ValueError: As in `read`, of the part.
        """
        file, name = self._files[key]
        return _finite(key, file.read_part(name, index))

    def add_file(self, path: Path, prefix: str) -> None:
        """Adds the tensors of a further file.

        Args:
            path: The file.
            prefix: What their keys begin with from now on.

        Raises:
            FileNotFoundError: If it is missing.
        """
        if not path.exists():
            raise FileNotFoundError(
                f"`folder` must have {path.parent.name}/{path.name}; files that can "
                "contain code (*.bin) are never opened. "
                f"Received: folder={str(self.path)!r}"
            )
        file = TensorFile(path)
        for key, shape in file.shapes.items():
            self._files[prefix + key] = file, key
            self.shapes[prefix + key] = shape
            self.dtypes[prefix + key] = file.dtypes[key]

    @property
    def has_adapter(self) -> bool:
        """Whether the folder also has an adapter of PEFT."""
        return _has_adapter(self.path)

    def _weight_files(self, files: Files) -> dict[str, set[str] | None]:
        """File name to its keys according to the index; to None without an index."""
        names = {file.name for file in self.path.glob("*.safetensors")}
        names.discard(ADAPTER_FILES.weights)
        if files.weights in names:
            return {files.weights: None}
        if files is FILES:
            names.discard(OPEN_CLIP_FILES.weights)
        elif names:
            names = {name for name in names if name.startswith("open_clip")}
        # `save_pretrained(variant="fp16")` puts the variant into the names.
        indices = [INDEX, *(x.name for x in self.path.glob(_INDEX_OF_VARIANT))]
        indices = [name for name in indices if (self.path / name).exists()]
        if files.can_be_split and (INDEX in indices or len(indices) == 1):
            return self._indexed_files(indices[0])
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
        fix = f" {_NO_BASE}" if self.has_adapter else ""
        if others:
            fix = (
                f" {preview(others)} can contain code and is never opened here: if you "
                "trust it, convert it to safetensors (in transformers, "
                "`model.save_pretrained(folder)`)."
            )
        raise FileNotFoundError(
            f"`folder` has no *.safetensors.{fix} Received: folder={str(self.path)!r}"
        )

    def _indexed_files(self, index):
        weight_map = read_json(self.path / index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError(
                f"`{index}` must have a `weight_map` from keys to file names. "
                f"Received: weight_map={shown(weight_map)}"
            )
        files: dict[str, set[str] | None] = {}
        for key, name in weight_map.items():
            # A name, not a path: an index must not lead out of its folder.
            if not isinstance(name, str) or not re.fullmatch(
                r"[\w][\w.-]*\.safetensors", name
            ):
                raise ValueError(
                    f"`{index}` must name *.safetensors files in its own folder, not "
                    f"paths. Received: {shown(key)} in {shown(name)}"
                )
            if not (self.path / name).exists():
                raise FileNotFoundError(
                    f"`{index}` names a file that is missing. Received: {name!r}"
                )
            keys = files.setdefault(name, set())
            if keys is not None:
                keys.add(key)
        return files


def read_config(path: Path) -> tuple[Files, dict]:
    """The names of the files to read, and the fields of the configuration.

    Of two checkpoints in one folder, transformers' is read; timm's may have only the
    image tower.

    Args:
        path: The folder.

    Raises:
        FileNotFoundError: If there is no configuration.
    """
    has_open_clip = (path / OPEN_CLIP_FILES.config).exists()
    has_config = has_open_clip or (path / CONFIG).exists()
    if not has_config and _has_adapter(path):
        raise FileNotFoundError(f"{_NO_BASE} Received: folder={str(path)!r}")
    if (path / CONFIG).exists() or not has_open_clip:
        fields = read_json(path / CONFIG)
        if "model_type" in fields or not has_open_clip:
            return FILES, fields
    return OPEN_CLIP_FILES, read_json(path / OPEN_CLIP_FILES.config)


def _has_adapter(path: Path) -> bool:
    return (path / ADAPTER_FILES.config).is_file()


def _finite(key, array):
    if not np.isfinite(array).all():
        raise ValueError(
            "The weights must be finite; the training may have diverged. "
            f"Received: NaN or infinity in `{key}`"
        )
    return array


def write_folder(
    path: str | os.PathLike,
    config: dict,
    tensors: dict[str, Tensor],
    max_shard_bytes: int,
    others: dict[str, Any] | None = None,
    files: Files = FILES,
    apart: dict[str, dict[str, Tensor]] | None = None,
) -> None:
    """Writes a checkpoint to a temporary folder, and moves it once it is complete.

    The config and weights of an older checkpoint in the folder are replaced; other
    files are kept. A failure while writing leaves everything unchanged.

    Args:
        path: The folder; created if it is missing.
        config: The content of `config.json`.
        tensors: Key to tensor, in the order of the files.
        max_shard_bytes: Maximum size of a weight file, where it can be split.
        others: The content of each further JSON file by its path in the folder.
        files: Names of the files.
        apart: The tensors of each further weight file, by its path in the folder.

    Raises:
        ValueError: If `path` is a name on the hub.
        NotADirectoryError: If `path` is a file.
    """
    check_is_local(path, "folder")
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(
            f"`folder` must be a folder, or not exist yet. Received: {str(path)!r}"
        )
    # Renaming is atomic only within a file system, and an existing folder may be a
    # mount point, so the temporary folder is inside it, or next to a new one.
    is_new = not path.exists()
    target = path if is_new else path / "checkpoint"
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    work, lock = make_work_folder(target)
    try:
        # The work folder itself is only for its owner to read.
        stage = work / "folder"
        stage.mkdir()
        try:
            parts = [tensors]
            if files.can_be_split:
                parts = list(shards(tensors, max_shard_bytes))
            texts = {**(others or {}), files.config: config}
            _write_files(stage, texts, parts, files.weights, apart or {})
        except BaseException:
            shutil.rmtree(work)
            raise
        if is_new:
            stage.rename(path)
        else:
            _replace_files(stage, path, files)
        shutil.rmtree(work)
    finally:
        if lock is not None:
            os.close(lock)


def _write_files(folder, texts, parts, weights, apart):
    """Writes the weights, one part per file, their index if needed, and JSON files."""
    for name in (*texts, *apart):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    files = {weights: parts[0]}
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
    for name, part in {**files, **apart}.items():
        write_tensors(folder / name, part)
    for name, content in texts.items():
        text = json.dumps(content, indent=2, sort_keys=True) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def _replace_files(stage, folder, files):
    """Replaces the files of an older checkpoint by the written files.

    The old configuration is deleted first and the new one moved last. A folder without
    it is not a checkpoint, so a reader in between gets an error, not a mixture.
    """
    (folder / files.config).unlink(missing_ok=True)
    found = (file for file in stage.rglob("*") if file.is_file())
    written = {str(file.relative_to(stage)) for file in found}
    for file in folder.iterdir():
        is_old = file.name in (WEIGHTS, INDEX) or _SHARD.fullmatch(file.name)
        if files.can_be_split and is_old and file.name not in written:
            file.unlink()
    for name in sorted(written, key=lambda name: name == files.config):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(stage / name, folder / name)


def preview(names, most=6):
    """The first few names, for a message."""
    names = sorted(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    # In an untrusted file a name may be as long as the file.
    return ", ".join(name[:_LONGEST_NAME] for name in names[:most]) + more
