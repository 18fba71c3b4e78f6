"""Metadata of an artefact: the ranges of the indices and lengths that it accepts.

JSON: by signature and input name, the smallest index and the first one that is too
large; and by `length of <input name>`, which is not the name of an input, the same for
the length of an input. Each format stores it in its own way:

    SavedModel   assets.extra/keras_attn.json
    LiteRT       keras_attn.json in a ZIP archive appended to the flatbuffer, like
                 LiteRT's own metadata
    ONNX         `keras_attn.index_ranges` in the metadata of each graph

No runtime reads it, and an artefact without it also loads.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_attn.file_reading import parse_json
from keras_attn.indices import IndexRange

if TYPE_CHECKING:
    from keras_attn.export.signatures import Signature

FILE = "keras_attn.json"
MAX_BYTES = 1_000_000

# By signature and input name.
IndexRanges = dict[str, dict[str, IndexRange]]


_LENGTH_OF = "length of "


def to_json(signatures: "Iterable[Signature]") -> str | None:
    """The metadata of an artefact; None if no input has a range."""
    content = {}
    for signature in signatures:
        lengths = signature.length_ranges.items()
        ranges = {_LENGTH_OF + name: allowed for name, allowed in lengths}
        content[signature.name] = {**signature.index_ranges, **ranges}
    content = {name: ranges for name, ranges in content.items() if ranges}
    return json.dumps(content) if content else None


def split(ranges: IndexRanges) -> tuple[IndexRanges, IndexRanges]:
    """The ranges of indices and the ranges of lengths, each by input name."""
    indices: IndexRanges = {}
    lengths: IndexRanges = {}
    for signature, by_name in ranges.items():
        indices[signature], lengths[signature] = {}, {}
        for name, allowed in by_name.items():
            if name.startswith(_LENGTH_OF):
                lengths[signature][name.removeprefix(_LENGTH_OF)] = allowed
            else:
                indices[signature][name] = allowed
    return indices, lengths


def from_json(content: bytes, source: str = FILE) -> IndexRanges:
    """Parses metadata.

    Args:
        content: UTF-8.
        source: Where it is stored, for messages.

    Raises:
        ValueError: If it is not JSON, or has unexpected content.
    """
    ranges = parse_json(content, Path(source))
    if not all(
        isinstance(by_name, dict) and all(map(_is_range, by_name.values()))
        for by_name in ranges.values()
    ):
        raise ValueError(
            f"{source} must hold ranges of indices by signature and input name"
        )
    return {
        signature: {name: (low, high) for name, (low, high) in by_name.items()}
        for signature, by_name in ranges.items()
    }


def _is_range(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    low, high = value
    return type(low) is int and (high is None or type(high) is int)
