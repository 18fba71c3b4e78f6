"""The names, shapes and dtypes of an artefact's inputs and outputs.

Runners read them from the artefact, so nothing here needs TensorFlow or Keras.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

SERVE, PREFILL, STEP = "serve", "prefill", "step"
# The inputs of a SavedModel with a tokenizer, and its signature for pairs.
SERVE_PAIR = "serve_pair"
TEXT, TEXT_PAIR = "text", "text_pair"
# The input of a SavedModel that decodes image files.
IMAGE_BYTES = "image_bytes"


@dataclass(frozen=True)
class TensorInfo:
    """Shape and dtype of one input or output.

    Attributes:
        shape: Sizes; None where any size is accepted.
        dtype: NumPy's name of the dtype.
    """

    shape: tuple[int | None, ...]
    dtype: str

    def __str__(self) -> str:
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype} ({sizes})"


@dataclass(frozen=True)
class SignatureInfo:
    """The inputs and outputs of one signature, by name.

    Attributes:
        inputs: Shape and dtype of each input.
        outputs: Shape and dtype of each output.
    """

    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]


def tensor_infos(specs: Mapping[str, Any]) -> dict[str, TensorInfo]:
    """Shapes and dtypes of TensorFlow specs or tensors, by name."""
    return {
        name: TensorInfo(tuple(spec.shape), spec.dtype.name)
        for name, spec in specs.items()
    }


def as_array(tensor: Any) -> np.ndarray:
    """The values of a TensorFlow tensor, which gives one string as plain bytes."""
    value = tensor.numpy()
    return np.asarray(value, object) if isinstance(value, bytes) else value
