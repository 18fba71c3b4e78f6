"""What a runner knows of an artefact besides its signatures: the indices it takes.

It is JSON, by signature and input name the least index and the first too large one:

    SavedModel   assets.extra/keras_attn.json
    LiteRT       keras_attn.json in a ZIP archive after the flatbuffer, where LiteRT's
                 own metadata keeps its files, too
    ONNX         `keras_attn.index_ranges` in the metadata of each graph

No runtime reads it, and an artefact without it loads all the same.
"""

import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from keras_attn.export.signatures import Signature
from keras_attn.indices import IndexRange

FILE = "keras_attn.json"
ONNX_KEY = "keras_attn.index_ranges"
_MOST_BYTES = 1_000_000

# By signature and input name.
IndexRanges = dict[str, dict[str, IndexRange]]


def write(format: str, path: Path, signatures: Iterable[Signature]) -> None:
    """Adds the metadata to an artefact that was just written."""
    content = {s.name: s.index_ranges for s in signatures if s.index_ranges}
    if not content:
        return
    text = json.dumps(content)
    if format == "saved_model":
        folder = path / "assets.extra"
        folder.mkdir(exist_ok=True)
        (folder / FILE).write_text(text, encoding="utf-8")
    elif format == "litert":
        with zipfile.ZipFile(path, "a") as archive:
            # Without the time of day: the same model gives the same file.
            archive.writestr(zipfile.ZipInfo(FILE), text)
    else:
        _extend_onnx(path, text)


def _extend_onnx(path: Path, text: str) -> None:
    from onnx import ModelProto

    addition = ModelProto()
    addition.metadata_props.add(key=ONNX_KEY, value=text)
    for file in path.glob("*.onnx") if path.is_dir() else [path]:
        # Messages that stand one after the other are one message with all of it.
        with file.open("ab") as opened:
            opened.write(addition.SerializeToString())


def read_saved_model(path: Path) -> IndexRanges | None:
    """The metadata of a SavedModel; None where it has none.

    Raises:
        ValueError: it is damaged.
    """
    file = path / "assets.extra" / FILE
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        return parse(opened.read(_MOST_BYTES))


def read_litert(path: Path) -> IndexRanges | None:
    """The metadata of a `.tflite` file; None where it has none.

    Raises:
        ValueError: it is damaged.
    """
    if not zipfile.is_zipfile(path):
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            if FILE not in archive.namelist():
                return None
            with archive.open(FILE) as opened:
                return parse(opened.read(_MOST_BYTES))
    # `zipfile` raises all of these for damaged archives.
    except (zipfile.BadZipFile, OSError, EOFError, RuntimeError, KeyError) as error:
        raise ValueError(f"its metadata are damaged ({error})") from error


def read_onnx(metadata: Mapping[str, str]) -> IndexRanges | None:
    """The metadata in that of an ONNX graph; None where it has none.

    Raises:
        ValueError: it is damaged.
    """
    return parse(metadata[ONNX_KEY]) if ONNX_KEY in metadata else None


def parse(text: str | bytes) -> IndexRanges:
    """Reads the JSON.

    Raises:
        ValueError: it is none, or holds something else.
    """
    content = parse_json(text)
    if not isinstance(content, dict) or not all(
        isinstance(ranges, dict) and all(map(_is_range, ranges.values()))
        for ranges in content.values()
    ):
        raise ValueError("its metadata hold no ranges of indices by signature and name")
    return {
        signature: {name: (low, high) for name, (low, high) in ranges.items()}
        for signature, ranges in content.items()
    }


def parse_json(text: str | bytes) -> Any:
    """Reads JSON.

    Raises:
        ValueError: it is none.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its metadata are no JSON ({error})") from error


def _is_range(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    low, high = value
    return type(low) is int and (high is None or type(high) is int)
