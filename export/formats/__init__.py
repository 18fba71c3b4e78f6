"""The file formats of artefacts: one module each, and one row of `FORMATS` each.

`export`, `verify` and `load_runner` read this table. To add a format, write its module
and add its row.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from keras_attn.export.formats import litert, onnx, saved_model
from keras_attn.export.metadata import IndexRanges
from keras_attn.export.signatures import SignatureInfo, TracedModel

Arrays = dict[str, np.ndarray]


class Engine(Protocol):
    """A stock runtime with one artefact loaded.

    Attributes:
        format: Name of the format.
        signatures: Inputs and outputs of each signature, by its name.
        index_ranges: See `Runner`; None if the artefact has no such metadata.
    """

    format: str
    signatures: dict[str, SignatureInfo]
    index_ranges: IndexRanges | None

    def call(self, signature: str, inputs: Arrays, in_place: bool) -> Arrays:
        """Runs one signature on checked inputs; several threads may call it at once.

        Args:
            signature: Its name.
            inputs: Arrays by name.
            in_place: See `Runner.step`.

        Returns:
            Arrays by output name, which no later call writes to.
        """
        ...


@dataclass(frozen=True)
class Format:
    """One file format.

    Attributes:
        name: Its name in arguments and reports.
        description: What an artefact is on disk, for messages.
        suffix: Suffix of `path` that selects it.
        recognizes: Whether a path holds an artefact of this format, damaged or not, and
            nothing else.
        write: Writes a traced model to a path, or over an earlier attempt; returns
            notes for the report.
        count_operators: Counts each operator of an artefact.
        load: Loads an artefact into the stock runtime.
        quantizations: What it can be quantized to.
        takes_strings: Whether it has string tensors and tokenizer operators.
        may_need_fixed_shapes: Whether it supports some operators only at known sizes,
            see `shape_fallback`.
    """

    name: str
    description: str
    suffix: str
    recognizes: Callable[[Path], bool]
    write: Callable[[TracedModel, Path], Iterable[str]]
    count_operators: Callable[[Path], dict[str, int]]
    load: Callable[[Path], Engine]
    quantizations: tuple[str, ...] = ()
    takes_strings: bool = False
    may_need_fixed_shapes: bool = False


def _format(module, load, description: str, suffix: str, **features) -> Format:
    """The format that a module of this folder reads and writes.

    Args:
        module: The module, whose functions have the names of the attributes.
        load: As in `Format`, like all that follow.
        description: As in `Format`.
        suffix: As in `Format`.
        **features: The attributes with defaults.
    """
    return Format(
        name=module.__name__.rpartition(".")[2],
        description=description,
        suffix=suffix,
        recognizes=module.recognizes,
        write=module.write,
        count_operators=module.count_operators,
        load=load,
        **features,
    )


FORMATS = {
    format.name: format
    for format in (
        _format(
            saved_model,
            saved_model.SavedModelEngine,
            "a SavedModel folder",
            "",
            takes_strings=True,
        ),
        _format(
            litert,
            litert.LiteRTEngine,
            "a `.tflite` file",
            ".tflite",
            quantizations=litert.QUANTIZATIONS,
            may_need_fixed_shapes=True,
        ),
        _format(onnx, onnx.OnnxEngine, "an `.onnx` file or folder", ".onnx"),
    )
}
_NAMES = tuple(FORMATS)
ANY_ARTEFACT = ", ".join(format.description for format in FORMATS.values())


def format_to_write(path: Path, name: str | None) -> Format:
    """The format with this name, or if it is None, with the suffix of `path`."""
    if name is not None:
        if name not in FORMATS:
            raise ValueError(
                f"`format` must be one of {_NAMES}, or None to select it by the "
                f"suffix of `path`. Received: format={name!r}"
            )
        return FORMATS[name]
    for format in FORMATS.values():
        if path.suffix == format.suffix:
            return format
    raise ValueError(
        f"`path` must name one of: {ANY_ARTEFACT}; for any other suffix pass "
        f"`format`, one of {_NAMES}. Received: path={str(path)!r}"
    )


def format_at(path: Path) -> Format | None:
    """The format of the artefact at `path`; None for anything else.

    A folder with other files in it is not an artefact: it is neither loaded nor
    replaced.
    """
    return next((f for f in FORMATS.values() if f.recognizes(path)), None)


def check_target(path: Path, format: Format) -> None:
    """Refuses a target that cannot be written, or that holds something else."""
    if not path.parent.is_dir():
        raise ValueError(
            "`path` must be in a folder that exists; make it first. "
            f"Received: path={str(path)!r}"
        )
    if os.path.lexists(path) and format_at(path) != format:
        raise ValueError(
            f"`path` exists and is not a {format.name} artefact, so it is not "
            "replaced; remove it or choose another name. "
            f"Received: path={str(path)!r}"
        )


def check_quantization(
    format: Format, quantization: str | None, sample_inputs: Any
) -> None:
    """Refuses a quantization that the format does not have."""
    if quantization is None:
        return
    known = [name for f in FORMATS.values() for name in f.quantizations]
    if quantization not in known:
        raise ValueError(
            f"`quantization` must be None or one of {known}. "
            f"Received: quantization={quantization!r}"
        )
    if quantization not in format.quantizations:
        supported = [
            f.name for f in FORMATS.values() if quantization in f.quantizations
        ]
        raise ValueError(
            f"`quantization` is only for the formats {supported}. "
            f"Received: quantization={quantization!r}, format={format.name!r}"
        )
    if quantization == "int8" and sample_inputs is None:
        raise ValueError(
            '`sample_inputs` must be given for `quantization="int8"`, to calibrate on. '
            "Received: sample_inputs=None"
        )
