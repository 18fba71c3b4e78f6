"""Pictures of a folder, found by words: embeddings that are kept in a file.

Legend: N pictures, h and w rows and columns of a picture, E width of the embeddings.
"""

import io
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_attn.checks.arguments import check_positive
from keras_attn.data.images.image_files import ZippedFile, find_pictures, read_image
from keras_attn.data.images.unused_files import unused_files
from keras_attn.files.reading import MIB, read_bytes, shown
from keras_attn.files.writing import write_atomically

EmbedPictures = Callable[[Sequence[np.ndarray]], np.ndarray]
_FORMAT = "keras_attn picture index 1"
# A million pictures with 512 numbers each.
_MAX_BYTES = 4096 * MIB
_BATCH = 8
# A killed process loses at most what it embedded in this time.
_SECONDS_BETWEEN_WRITES = 60.0
# Two runtimes of one model differ less, two models more.
_SAME_MODEL = 1e-4


class FoundPicture(NamedTuple):
    """A result of `PictureIndex.search`.

    Attributes:
        name: The picture, as in `PictureIndex.names`.
        score: The cosine of the angle between the embeddings of the picture and the
            text, in [-1, 1].
    """

    name: str
    score: float


@dataclass(frozen=True)
class PictureIndex:
    """The pictures of a folder and their embeddings; `index_pictures` makes it.

    Attributes:
        names: Paths of the pictures in the folder or ZIP archive, sorted, with "/"
            between their parts.
        embeddings: float32 (N, E), of length 1.
        skipped: The files that are not pictures, or cannot be read, with reasons.
        num_embedded: How many embeddings were computed anew; the others come from the
            file of the index.
        notes: What is in the folder and no picture by its name, counted.
    """

    names: list[str]
    embeddings: np.ndarray
    skipped: dict[str, str] = field(default_factory=dict)
    num_embedded: int = 0
    notes: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.names)

    def search(self, embedding: np.ndarray, count: int = 5) -> list[FoundPicture]:
        """The pictures that are most similar to a text.

        Args:
            embedding: The embedding of the text, (E,), of length 1.
            count: Maximum number of pictures.

        Returns:
            The best one first; equally good ones in the order of their names.

        Raises:
            ValueError: If the embedding has a different width than the index's.
        """
        check_positive("count", count)
        embedding = np.asarray(embedding, "float32")
        if embedding.shape != self.embeddings.shape[1:]:
            raise ValueError(
                f"`embedding` must have the shape {self.embeddings.shape[1:]} of the "
                f"pictures' embeddings. Received: shape={embedding.shape}"
            )
        scores = self.embeddings @ embedding
        best = np.argsort(-scores, kind="stable")[:count]
        return [FoundPicture(self.names[row], float(scores[row])) for row in best]


def index_pictures(
    folder: str | os.PathLike,
    embed_pictures: EmbedPictures,
    file: str | os.PathLike | None = None,
    *,
    on_progress: Callable[[int, int], object] | None = None,
) -> PictureIndex:
    """Embeds the pictures of a folder, or only those that changed since last time.

    A picture is embedded again if the size or the time of its file changed, and all are
    if `embed_pictures` gives other embeddings than the ones in the index: that is found
    out from one picture, so an exported model may continue the index of its Keras
    model. If it is interrupted, the file keeps what is done; if it is killed, what was
    done until the last minute. A photo is turned upright as its camera recorded.

    Args:
        folder: A folder, with subfolders, or a ZIP archive.
        embed_pictures: From a list of uint8 (h, w, 3) of any sizes to (N, E), of length
            1; `models.picture_encoder` makes it.
        file: Where the index is kept, replaced atomically. None = it is not kept.
        on_progress: Called with the number of pictures that are done, and the number of
            those that have to be embedded.

    Returns:
        The index. A file that is not a picture is left out and listed as `skipped`.

    Raises:
        FileNotFoundError: If `folder` does not exist.
        ValueError: If it has no pictures, if none of them can be read, if `file` exists
            and is not an index, or if `embed_pictures` does not return a finite row for
            each picture.

    Example:
        Needs a checkpoint of CLIP and a folder of photos:

        ```python
        from keras_attn import data, models

        clip = models.load_checkpoint("clip-vit-base-patch32")
        tokenizer = data.load_text_tokenizer("clip-vit-base-patch32")
        embed = models.picture_encoder(clip)
        index = data.index_pictures("photos", embed, "photos.npz")
        (query,) = models.caption_encoder(clip, tokenizer)(["a photo of a red heart"])
        print(index.search(query))
        ```
    """
    root = Path(folder)
    files, others = find_pictures("folder", root)
    pictures = {_name(each, root): each for each in files}
    (probe,) = _checked(embed_pictures([_probe()]), 1)
    known = {} if file is None else _read(Path(file), probe)
    stamps = {name: _stamp(each) for name, each in pictures.items()}
    rows = {
        name: known[name][1]
        for name, stamp in stamps.items()
        if name in known and stamp is not None and known[name][0] == stamp
    }
    is_current = len(rows) == len(known) and list(rows) == list(known)
    missing = [name for name in pictures if name not in rows]
    bad: dict[str, str] = {}

    def write() -> None:
        names = [name for name in pictures if name in rows]
        kept = [stamps[name] for name in names]
        if file is not None and names:
            embeddings = np.array([rows[name] for name in names], "float32")
            _write(Path(file), names, kept, embeddings, probe)

    written = time.monotonic()
    try:
        for start in range(0, len(missing), _BATCH):
            if on_progress is not None:
                on_progress(start, len(missing))
            read = _read_pictures(missing[start : start + _BATCH], pictures, bad)
            if read:
                found = _checked(embed_pictures(list(read.values())), len(read))
                rows.update(zip(read, found, strict=True))
                is_current = False
            is_due = time.monotonic() - written >= _SECONDS_BETWEEN_WRITES
            if is_due and not is_current:
                write()
                written, is_current = time.monotonic(), True
    finally:
        if not is_current:
            write()
    names = [name for name in pictures if name in rows]
    if not names:
        name, reason = next(iter(bad.items()))
        raise ValueError(
            "`folder` must have a picture that can be read. Received: "
            f"folder={str(root)!r} with {len(bad)} bad ones, the first {name!r}: "
            f"{reason}"
        )
    embeddings = np.array([rows[name] for name in names], "float32")
    num_embedded = len(set(names) & set(missing))
    skipped = {_path(name, root): reason for name, reason in others.items()} | bad
    used = [*pictures.values(), default_index_file(root)]
    notes = unused_files(root, used if file is None else [*used, Path(file)])
    return PictureIndex(names, embeddings, skipped, num_embedded, notes)


def default_index_file(folder: str | os.PathLike) -> Path:
    """The path at which commands keep the index of pictures.

    Args:
        folder: The folder, which then has the file in it, or the ZIP archive, which has
            it beside it.
    """
    folder = Path(folder)
    if folder.is_dir():
        return folder / ".keras-attn-search.npz"
    return folder.with_name(f".{folder.name}.keras-attn-search.npz")


def _name(picture: Path | ZippedFile, root: Path) -> str:
    if isinstance(picture, ZippedFile):
        return picture.member
    return picture.relative_to(root).as_posix()


def _path(name: str, root: Path) -> str:
    """The name of a file that is not a picture, relative to the root."""
    return Path(name).relative_to(root).as_posix() if root.is_dir() else name


def _stamp(picture: Path | ZippedFile) -> list[int] | None:
    """Numbers that differ once a file has changed; None if it cannot be found."""
    if isinstance(picture, ZippedFile):
        return picture.checksum()
    try:
        status = picture.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def _read_pictures(names, pictures, skipped) -> dict[str, np.ndarray]:
    """The pictures by name, without those that are added to `skipped`."""
    read = {}
    for name in names:
        try:
            read[name] = read_image(pictures[name])
        except (ValueError, OSError) as error:
            skipped[name] = str(error)
    return read


def _probe() -> np.ndarray:
    """The picture by whose embedding a model is recognized, uint8 (61, 97, 3)."""
    rows, columns = np.mgrid[:61, :97]
    waves = (np.sin(rows / 3 + 2 * c) * np.cos(columns / (5 + c)) for c in range(3))
    return np.stack([127.5 + 127 * wave for wave in waves], axis=-1).astype("uint8")


def _checked(embeddings, count: int) -> np.ndarray:
    embeddings = np.asarray(embeddings, "float32")
    if embeddings.ndim != 2 or len(embeddings) != count:
        raise ValueError(
            f"`embed_pictures` must return a row for each picture, ({count}, E). "
            f"Received: shape={embeddings.shape}"
        )
    if not np.isfinite(embeddings).all():
        raise ValueError(
            "`embed_pictures` must return finite numbers. Received: NaN or infinity"
        )
    return embeddings


def _write(file: Path, names, stamps, embeddings, probe) -> None:
    content = io.BytesIO()
    about = json.dumps({"format": _FORMAT, "names": names, "stamps": stamps})
    np.savez(
        content,
        about=np.frombuffer(about.encode(), "uint8"),
        embeddings=embeddings,
        probe=probe,
    )
    write_atomically(file, content.getvalue())


def _read(file: Path, probe: np.ndarray) -> dict[str, tuple[list[int], np.ndarray]]:
    """Stamp and embedding of each picture; empty if the file does not exist.

    Empty too if the index is of a different model.
    """
    if not file.exists():
        return {}
    content = read_bytes(file, _MAX_BYTES)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            about = json.loads(arrays["about"].tobytes())
            embeddings, theirs = arrays["embeddings"], arrays["probe"]
        if about["format"] != _FORMAT:
            raise ValueError(f"format={shown(about['format'])}")
        names, stamps = about["names"], about["stamps"]
        if embeddings.dtype != np.float32 or not np.isfinite(embeddings).all():
            raise ValueError("embeddings that are not finite float32")
        if embeddings.shape != (len(names), *theirs.shape) or theirs.ndim != 1:
            raise ValueError(f"shapes {embeddings.shape} and {theirs.shape}")
        rows = zip(stamps, embeddings, strict=True)
        known = dict(zip(names, rows, strict=True))
    # What NumPy, zipfile and JSON raise for damaged content.
    except Exception as error:
        raise ValueError(
            f"{file.name} must be an index that `index_pictures` wrote; remove the "
            "file to have it made again, or choose a different one. Received: "
            f"{str(file)!r}: {error}"
        ) from error
    is_same = theirs.shape == probe.shape
    return known if is_same and np.abs(theirs - probe).max() < _SAME_MODEL else {}
