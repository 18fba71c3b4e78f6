"""The signatures and samples of an export, checked before anything is traced."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from keras_attn.export.description import Description
from keras_attn.export.formats import Format
from keras_attn.export.portable_layers import unique_layers
from keras_attn.export.samples import Inputs
from keras_attn.export.signatures import Signature


@dataclass(frozen=True)
class Plan:
    """The arguments of `export` or `verify`, and what follows from them.

    Attributes:
        format: The format of the artefact.
        signatures: `[serve]`, `[serve, serve_pair]` or `[prefill, step]`.
        quantization: One of the format's quantizations, or None.
        tolerance: Largest error allowed, with its default.
        sample: The caller's inputs of the first signature, by name; None = random ones.
        tokenizer: Tokenizer that the signatures call, if any.
        batch_size: See `export`.
        sequence_length: Fixes unknown lengths of the first signature, for all inputs
            or by input name.
        num_beams: See `export`.
        description: Names of classes and preprocessing, for the metadata.
    """

    format: Format
    signatures: list[Signature]
    quantization: str | None
    tolerance: float
    sample: Inputs | None
    tokenizer: Any = None
    batch_size: int | None = None
    sequence_length: int | Mapping[str, int] | None = None
    num_beams: int | None = None
    description: Description = Description()

    @property
    def models(self) -> list[keras.Model]:
        """The Keras model of each signature."""
        return [signature.model for signature in self.signatures]

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """Every layer of the models, at any depth, themselves included; each once."""
        return unique_layers(self.models)
