"""The file formats of artefacts: one row of `FORMATS` each.

`export`, `verify` and `load_runner` read this table. A format has two modules with its
name, which `Format` imports when first needed: `formats/<name>.py` writes it,
`runtimes/<name>.py` runs it. To add a format, write both, and add their imports and its
row.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_attn.export.runtimes import Runtime


@dataclass(frozen=True)
class Format:
    """One file format.

    Attributes:
        name: Its name in arguments and reports, and the name of its two modules.
        title: Its name in messages.
        description: What an artefact is on disk, for messages.
        suffix: Suffix of `path` that selects it.
        quantizations: What it can be quantized to.
        takes_strings: Whether it has string tensors and tokenizer operators.
        has_label_tables: Whether it looks up strings by integers, if it has no other
            strings.
        takes_complex: Whether it has complex numbers.
        shrinks_by_cubic: Whether its runtime shrinks images by bicubic interpolation,
            or its converter says that it does not.
        keeps_state: Whether it has variables that a call may change.
        takes_integers: Whether it computes with quantized weights as Keras does; if
            not, the traced model has their numbers.
        may_need_fixed_shapes: Whether it supports some operators only at known sizes,
            see `attempts.py`.
        enlarges_by_products: Whether its runtime computes a transposed convolution
            without overlaps faster as a product, see `enlarged_by_products`.
    """

    name: str
    title: str
    description: str
    suffix: str
    quantizations: tuple[str, ...] = ()
    takes_strings: bool = False
    has_label_tables: bool = False
    takes_complex: bool = False
    shrinks_by_cubic: bool = True
    keeps_state: bool = False
    takes_integers: bool = False
    may_need_fixed_shapes: bool = False
    enlarges_by_products: bool = False

    def read_quantization(self, path: Path) -> str | None:
        """The quantization that the tensors of an artefact show; None for float32."""
        return self.writer.read_quantization(path) if self.quantizations else None

    @property
    def runtime(self) -> Runtime:
        """The module that runs it, imported when first needed."""
        match self.name:
            case "saved_model":
                from keras_attn.export.runtimes import saved_model as runtime
            case "litert":
                from keras_attn.export.runtimes import litert as runtime
            case _:
                from keras_attn.export.runtimes import onnx as runtime
        return runtime

    @property
    def writer(self) -> Any:
        """The module that writes it, imported when first needed.

        It has `write(traced, path)`, which writes a `TracedModel` to a path, or over an
        earlier attempt, and returns notes for the report; `count_operators(path)`, each
        by its name; and `read_quantization(path)` if there are `quantizations`.
        """
        match self.name:
            case "saved_model":
                from keras_attn.export.formats import saved_model as writer
            case "litert":
                from keras_attn.export.formats import litert as writer
            case _:
                from keras_attn.export.formats import onnx as writer
        return writer


FORMATS = {
    format.name: format
    for format in (
        Format(
            "saved_model",
            "a SavedModel",
            "a SavedModel folder",
            "",
            takes_strings=True,
            takes_complex=True,
            keeps_state=True,
            takes_integers=True,
        ),
        Format(
            "litert",
            "LiteRT",
            "a `.tflite` file",
            ".tflite",
            has_label_tables=True,
            quantizations=("float16", "int8_dynamic", "int8"),
            may_need_fixed_shapes=True,
            enlarges_by_products=True,
        ),
        Format(
            "onnx",
            "ONNX",
            "an `.onnx` file or folder",
            ".onnx",
            shrinks_by_cubic=False,
            quantizations=("int8_dynamic",),
        ),
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

    A folder that contains other files is not an artefact: it is neither loaded nor
    replaced.
    """
    return next((f for f in FORMATS.values() if f.runtime.recognizes(path)), None)


def check_target(path: Path, format: Format) -> None:
    """Rejects a target that cannot be written, or that holds something else."""
    if not path.parent.is_dir():
        raise ValueError(
            "`path` must be in an existing folder; create it first. "
            f"Received: path={str(path)!r}"
        )
    if os.path.lexists(path) and format_at(path) != format:
        raise ValueError(
            f"`path` exists and is not a {format.name} artefact, so it is not "
            "replaced; remove it or choose a different name. "
            f"Received: path={str(path)!r}"
        )


def check_quantization(
    format: Format, quantization: str | None, sample_inputs: Any
) -> None:
    """Rejects a quantization that the format does not have."""
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
            '`sample_inputs` must be given for `quantization="int8"`, which is '
            "accurate only for inputs like those that it is calibrated on. "
            "Received: sample_inputs=None"
        )
