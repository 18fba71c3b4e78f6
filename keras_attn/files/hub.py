"""Folders by name, from the Hugging Face Hub: `hf://owner/name[@revision]`.

`local_folder` turns a name into a folder of the client's cache. What a folder is read
for decides which files are downloaded: never pickled weights, nor other runtimes'
copies (`onnx/`). Each file is compared with the hub's checksums before it is read for
the first time: SHA-256 for weights, Git's own for small files. The client compares only
sizes. Files that were compared are noted in its cache, by their times.

Of the client's own settings all hold: `HF_TOKEN` or `hf auth login`, `HF_HOME`,
`HF_ENDPOINT`, `HF_HUB_OFFLINE`.
"""

import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from keras_attn.extras import requires_extra
from keras_attn.files.hub_errors import in_our_words
from keras_attn.files.hub_names import PREFIX, is_hub_name, parse_hub_name
from keras_attn.files.reading import read_json
from keras_attn.files.writing import write_atomically

Kind = Literal["checkpoint", "tokenizer", "preprocessing", "adapter"]
_JSON = re.compile(r"[\w.-]+\.json")
_INDEX = re.compile(r"[\w.-]+\.index(\.[\w-]+)?\.json")
_SHARD = re.compile(r"model(\.[\w-]+)?-\d{5}-of-\d{5}\.safetensors")
_VOCABULARY = re.compile(
    r"vocab\.txt|merges\.txt|spiece\.model|sentencepiece\.bpe\.model|tokenizer\.model"
)
# Modules of sentence-transformers.
_MODULE = re.compile(r"\d+_[A-Z]\w*/(config\.json|model\.safetensors)")
_PICKLED = re.compile(r"[\w.-]+\.(bin|pt|pth|ckpt|pkl|h5|msgpack)")
_CONFIG, _OPEN_CLIP_CONFIG = "config.json", "open_clip_config.json"
_WEIGHTS, _OPEN_CLIP_WEIGHTS = "model.safetensors", "open_clip_model.safetensors"
_KERAS_FILE, _KERAS_WEIGHTS = "model.keras", "model.weights.h5"
_PREPROCESSING = {
    _CONFIG,
    _OPEN_CLIP_CONFIG,
    "preprocessor_config.json",
    "processor_config.json",
}
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_CONTENT: dict[Kind, str] = {
    "checkpoint": "config.json and *.safetensors",
    "tokenizer": "a tokenizer",
    "preprocessing": "preprocessor_config.json or config.json",
    "adapter": f"{_ADAPTER[0]} and {_ADAPTER[1]}",
}
_CHECKSUM = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def local_folder(folder: str | os.PathLike, kind: Kind = "checkpoint") -> Path:
    """The folder on this machine, downloaded if it is a name on the hub.

    A transfer begins with its size on standard error. Files that are there already are
    not downloaded again. A revision that is a commit needs no connection then; of a
    branch the hub is asked for the newest commit, and if it cannot be reached, the one
    that was seen last is used.

    Args:
        folder: A folder, which is returned as it is, or `hf://owner/name[@revision]`.
        kind: What is read: `"checkpoint"` (weights as safetensors, settings, the
            tokenizer), `"tokenizer"`, `"preprocessing"` (of images) or `"adapter"`
            (LoRA).

    Raises:
        ValueError: If the name is malformed, or a file differs from the hub's checksum;
            it is removed from the cache.
        FileNotFoundError: If the hub has no such repository, revision or file.
        PermissionError: If the repository is not public, or asks for an agreement.
        ConnectionError: If the hub cannot be reached, or a transfer broke off, and the
            cache lacks a file.
        ImportError: If the client is not installed.
    """
    if not is_hub_name(folder):
        return Path(folder)
    repository, revision = parse_hub_name(folder)
    with requires_extra("hub", f"`{os.fspath(folder)}`"):
        from huggingface_hub import HfApi
    name = f"{PREFIX}{repository}" + ("" if revision is None else f"@{revision}")
    with in_our_words(name):
        found = HfApi().resolve_revision(repository, revision=revision)
        return _Snapshot(name, repository, found).get(kind)


class _Snapshot:
    """A repository at one commit.

    Args:
        name: As it was asked for, for messages.
        repository: Owner and name.
        revision: The client's `ResolvedRevision`.
    """

    def __init__(self, name: str, repository: str, revision: Any):
        from huggingface_hub import HfApi, constants

        self._api = HfApi()
        self._name, self._repository, self._commit = name, repository, revision.resolved
        folder = f"models--{repository.replace('/', '--')}"
        cache = Path(constants.HF_HUB_CACHE).expanduser()
        self._path = cache / folder / "snapshots" / self._commit
        self._notes = cache / folder / "keras_attn" / f"{self._commit}.json"

    def get(self, kind: Kind) -> Path:
        """The folder with all files of a kind, each compared with its checksum."""
        sizes = self._list_files()
        wanted = self._choose(kind, sizes)
        missing = [x for x in wanted if _get_time(self._path / x) is None]
        if missing:
            self._announce(sum(sizes[x] for x in missing), len(missing))
        self._fetch(wanted)
        return self._path

    def _list_files(self) -> dict[str, int]:
        """Name to size of each file of the repository."""
        from huggingface_hub import RepoFile, get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError

        where = {"repo_id": self._repository, "revision": self._commit}
        try:
            found = get_cached_repo_tree(**where)
        except CachedRepoTreeNotFoundError:
            found = self._api.list_repo_tree(**where, recursive=True)
        return {each.path: each.size for each in found if isinstance(each, RepoFile)}

    def _fetch(self, names: list[str]) -> None:
        """Downloads files that are not there, and compares what is new here."""
        if not self._find_new(names):
            return
        if any(_get_time(self._path / x) is None for x in names):
            self._api.snapshot_download(
                self._repository, revision=self._commit, allow_patterns=names
            )
        # Before they are compared: a file that is written meanwhile is compared again.
        times = {x: _get_time(self._path / x) for x in names}
        wrong = [x for x in self._find_new(names) if not self._is_right(x)]
        for name in wrong:
            path = self._path / name
            # In the cache it is a link to a file, or to a link to one.
            for each in (path.resolve(), _get_blob(path), path):
                each.unlink(missing_ok=True)
        if wrong:
            raise ValueError(
                "`folder` must have the bytes that the hub has checksums of; the "
                "transfer was damaged. The files were removed from the cache: try "
                f"again. Received: folder={self._name!r} with other bytes in "
                f"{_preview(wrong)}"
            )
        content = json.dumps({**self._read_notes(), **times}).encode()
        # In a cache that cannot be written to they are compared each time.
        with contextlib.suppress(OSError):
            write_atomically(self._notes, content)

    def _find_new(self, names: list[str]) -> list[str]:
        """The files that are not there, or were written since they were compared."""
        noted, times = self._read_notes(), {x: _get_time(self._path / x) for x in names}
        return [x for x in names if times[x] is None or times[x] != noted.get(x)]

    def _is_right(self, name: str) -> bool:
        """Whether a file is there and has the hub's checksum."""
        path = self._path / name
        # The client calls a file in its cache by the checksum.
        checksum = _get_blob(path).name
        if not _CHECKSUM.fullmatch(checksum):  # On a system without links.
            (entry,) = self._api.get_paths_info(
                self._repository, name, revision=self._commit
            )
            checksum = entry.lfs.sha256 if entry.lfs else entry.blob_id
        try:
            return _compute_checksum(path, is_of_git=len(checksum) == 40) == checksum
        except FileNotFoundError:
            return False

    def _choose(self, kind: Kind, names: Iterable[str]) -> list[str]:
        """The files to download."""
        names = set(names)
        wanted = {
            name
            for name in names
            if _JSON.fullmatch(name) or _VOCABULARY.fullmatch(name)
        }
        if kind == "adapter":
            wanted = names & {*_ADAPTER} if _ADAPTER[1] in names else set()
        elif kind == "preprocessing":
            wanted = names & _PREPROCESSING
        elif kind == "tokenizer":
            wanted -= {name for name in wanted if _INDEX.fullmatch(name)}
        else:
            wanted |= self._choose_weights(names)
            wanted |= {name for name in names if _MODULE.fullmatch(name)}
        if not wanted:
            advice = _advise(names) if kind == "adapter" else ""
            raise FileNotFoundError(
                f"`folder` must hold {_CONTENT[kind]}.{advice} "
                f"Received: folder={self._name!r}, which has {_preview(names)}"
            )
        return sorted(wanted)

    def _choose_weights(self, names: set[str]) -> set[str]:
        """The weight files, as `models.load_checkpoint` chooses them in a folder."""
        found = {x for x in names if "/" not in x and x.endswith(".safetensors")}
        found -= {_ADAPTER[1]}
        if _OPEN_CLIP_WEIGHTS in found and self._is_open_clip(names, found):
            return {_OPEN_CLIP_WEIGHTS}
        found -= {_OPEN_CLIP_WEIGHTS}
        if _WEIGHTS in found:
            return {_WEIGHTS}
        if shards := {name for name in found if _SHARD.fullmatch(name)}:
            return shards
        if found or _KERAS_FILE in names:
            return found or {_KERAS_FILE}
        if _KERAS_WEIGHTS in names:
            raise ValueError(
                f"`folder` was saved by `model.save`: read it by "
                f"`keras.saving.load_model({self._name!r})`. "
                f"Received: folder={self._name!r}"
            )
        raise FileNotFoundError(
            f"`folder` has no *.safetensors.{_advise(names)} "
            f"Received: folder={self._name!r}"
        )

    def _is_open_clip(self, names: set[str], weights: set[str]) -> bool:
        """Whether open_clip's weights are read, not transformers' of the same folder.

        They are if the other configuration is timm's, which has no `model_type`.
        """
        if _OPEN_CLIP_CONFIG not in names or _CONFIG not in names:
            return _OPEN_CLIP_CONFIG in names
        if len(weights) == 1:
            return True
        self._fetch([_CONFIG])
        return "model_type" not in read_json(self._path / _CONFIG)

    def _announce(self, size: int, count: int) -> None:
        files = "1 file" if count == 1 else f"{count} files"
        cache = self._path.parents[2]
        text = f"Downloading {self._name}: {files}, {_spell_bytes(size)}, to {cache}"
        print(text, file=sys.stderr, flush=True)

    def _read_notes(self) -> dict[str, Any]:
        """Name to time of modification of the files that were compared."""
        try:
            return read_json(self._notes)
        except (OSError, ValueError):
            return {}


def _get_time(path: Path) -> int | None:
    """When a file was last written, in nanoseconds; None if it is not there."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _get_blob(path: Path) -> Path:
    """What a file of a snapshot is a link to; itself where the system has no links."""
    try:
        return path.parent / os.readlink(path)
    except OSError:
        return path


def _compute_checksum(path: Path, is_of_git: bool) -> str:
    """A file's SHA-256, or Git's SHA-1 of it."""
    with path.open("rb") as file:
        if not is_of_git:
            return hashlib.file_digest(file, "sha256").hexdigest()
        head = b"blob %d\0" % path.stat().st_size
        return hashlib.sha1(head + file.read(), usedforsecurity=False).hexdigest()


def _advise(names: Iterable[str]) -> str:
    """What to do with a repository that has weights, but none that can be read."""
    if pickled := [name for name in names if _PICKLED.fullmatch(name)]:
        return (
            f" {_preview(pickled)} can contain code and is never opened here: if you "
            "trust it, convert it to safetensors (in transformers, "
            "`model.save_pretrained(folder)`)."
        )
    return " It has an adapter: load its base." if _ADAPTER[1] in names else ""


def _preview(names: Iterable[str], most: int = 6) -> str:
    names = sorted(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "no files"


def _spell_bytes(count: int) -> str:
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"
