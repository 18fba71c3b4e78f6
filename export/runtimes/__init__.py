"""The stock runtimes that run artefacts: one module per format, with the same name.

Each has `recognizes(path)` and `Engine(path)`. None imports TensorFlow unless its
runtime is TensorFlow, so that a `.tflite` or `.onnx` file runs without it.
"""

from pathlib import Path
from typing import Protocol

import numpy as np

from keras_attn.export.description import Description
from keras_attn.export.metadata import IndexRanges
from keras_attn.export.signature_info import SignatureInfo

Arrays = dict[str, np.ndarray]


class Engine(Protocol):
    """A stock runtime with one artefact loaded.

    Attributes:
        format: Name of the format.
        signatures: Inputs and outputs of each signature, by its name.
        index_ranges: See `Runner`; None if the artefact has no such metadata.
        description: Its names of classes and preprocessing, empty if it has none.
    """

    format: str
    signatures: dict[str, SignatureInfo]
    index_ranges: IndexRanges | None
    description: Description

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


class Runtime(Protocol):
    """A module of this folder."""

    def recognizes(self, path: Path) -> bool:
        """Whether a path holds an artefact of this format and nothing else.

        Also True if the artefact is damaged.
        """
        ...

    def Engine(self, path: Path) -> Engine:  # noqa: N802
        """Loads an artefact; raises a `RefusedError` if the runtime rejects it."""
        ...
