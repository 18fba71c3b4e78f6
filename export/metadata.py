"""Metadata of an artefact: what its inputs accept, and the order of its tensors.

The ranges of indices and lengths, JSON: by signature and input name, the smallest index
and the first one that is too large; and by `length of <input name>`, which is not the
name of an input, the same for the length of an input. Each format stores it in its own
way:

    SavedModel   assets.extra/keras_attn.json
    LiteRT       keras_attn.json in a ZIP archive appended to the flatbuffer, like
                 LiteRT's own metadata
    ONNX         `keras_attn.index_ranges` in the metadata of each graph

The order of inputs and outputs, which TensorFlow sorts by name, JSON: by signature, the
names of its `inputs` and `outputs`. A graph of ONNX has an order of its own; the others
store it as `keras_attn_order.json` beside the first file. Names of classes and the
preprocessing of images: `description.py`. Digests: `seals.py`.

No runtime reads them, and an artefact without them also loads.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_attn.checks.indices import IndexRange
from keras_attn.export import description
from keras_attn.export.signature_info import SignatureInfo, TensorInfo
from keras_attn.files.reading import parse_json

if TYPE_CHECKING:
    from keras_attn.export.signatures import Signature, TracedModel

FILE = "keras_attn.json"
ORDER_FILE = "keras_attn_order.json"
# The files of all formats but ONNX, and the bytes that each has at most.
FILES = {
    FILE: 1_000_000,
    ORDER_FILE: 1_000_000,
    description.FILE: description.MAX_BYTES,
}

# By signature and input name.
IndexRanges = dict[str, dict[str, IndexRange]]
# By signature: the names of its `inputs` and `outputs`.
Order = dict[str, dict[str, list[str]]]


_LENGTH_OF = "length of "


def to_json(signatures: "Iterable[Signature]") -> str | None:
    """The metadata of an artefact; None if no input has a range."""
    content = {}
    for signature in signatures:
        lengths = signature.length_ranges.items()
        ranges = {_LENGTH_OF + name: allowed for name, allowed in lengths}
        if ranges := {**signature.index_ranges, **ranges}:
            content[signature.name] = ranges
    return json.dumps(content) if content else None


def make_files(traced: "TracedModel") -> dict[str, str]:
    """The texts of the metadata's files, by their names; none has no content."""
    texts = {
        FILE: to_json(traced.signatures),
        ORDER_FILE: json.dumps(get_order(traced)),
        description.FILE: traced.description.to_json(),
    }
    return {name: text for name, text in texts.items() if text is not None}


def get_order(traced: "TracedModel") -> Order:
    """The order in which the model takes its inputs and returns its outputs."""
    return {
        signature.name: {
            "inputs": list(signature.inputs),
            "outputs": list(traced.functions[signature.name].structured_outputs),
        }
        for signature in traced.signatures
    }


def in_order(
    signatures: Mapping[str, SignatureInfo], content: bytes | None
) -> dict[str, SignatureInfo]:
    """Signatures with their inputs and outputs in the order of the model.

    Args:
        signatures: The signatures by name, as a runtime lists their tensors.
        content: `ORDER_FILE`, UTF-8; None if the artefact has none: then nothing is
            changed.

    Raises:
        ValueError: If it is not JSON, or has other names than the signatures.
    """
    if content is None:
        return dict(signatures)
    order = parse_json(content, Path(ORDER_FILE))
    return {
        name: SignatureInfo(
            _sorted(info.inputs, order, name, "inputs"),
            _sorted(info.outputs, order, name, "outputs"),
        )
        for name, info in signatures.items()
    }


def _sorted(
    tensors: Mapping[str, TensorInfo], order: Any, signature: str, kind: str
) -> dict[str, TensorInfo]:
    names: Any = order.get(signature)
    names = names.get(kind) if isinstance(names, dict) else None
    names = names if isinstance(names, list) else [None]
    if len(names) != len(tensors) or set(map(str, names)) != set(tensors):
        raise ValueError(
            f"{ORDER_FILE} must hold the names of the {kind} of `{signature}`"
        )
    return {name: tensors[name] for name in names}


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
