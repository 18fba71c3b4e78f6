"""What an artefact says about its inputs and outputs, besides names and shapes.

JSON, `keras_attn_description.json` beside the other metadata (`metadata.py`), and for
ONNX the same text as `keras_attn.description` in each graph:

    class_names      the name of each class, in the order of the logits
    preprocessing    how images become inputs: the arguments of `ImagePreprocessing`

What is unknown is left out. LiteRT files also have `labels.txt`, a class a line, and
say for other tools what it is (`formats/litert_metadata.py`). Runners need neither
TensorFlow nor Keras for it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_attn.files.reading import parse_json

FILE = "keras_attn_description.json"
LABELS_FILE = "labels.txt"
MAX_BYTES = 16_000_000
# The arguments of `ImagePreprocessing`.
STEPS = (
    *("size", "crop_size", "resample", "crop_offset"),
    *("covers", "passes", "scale", "mean", "std"),
)


class Description(NamedTuple):
    """The content of the file.

    Attributes:
        class_names: The name of each class; None if they are unknown.
        preprocessing: The arguments of `ImagePreprocessing`; None if they are unknown.
    """

    class_names: tuple[str, ...] | None = None
    preprocessing: dict[str, Any] | None = None

    def to_json(self) -> str | None:
        """The text of the file; None if nothing is known."""
        known = {name: x for name, x in self._asdict().items() if x is not None}
        return json.dumps(known, ensure_ascii=False) if known else None

    def to_lines(self) -> str | None:
        """The text of `labels.txt`; None if the classes are unknown."""
        if self.class_names is None:
            return None
        # A name in several lines would shift those after it.
        return "".join(f"{' '.join(name.split())}\n" for name in self.class_names)


def describe(model: Any, *, has_pixels: bool = True) -> tuple[Description, list[str]]:
    """What a model says, and notes on what it does not.

    Args:
        model: Any model; one of ours has `class_names` and `preprocessing`.
        has_pixels: Whether the artefact takes what `preprocessing` returns.
    """
    # An artefact is read without Keras.
    from keras_attn.models.parts.preprocessing import image_preprocessing

    steps, notes = None, []
    if has_pixels and getattr(model, "preprocessing", None) is not None:
        try:
            config = image_preprocessing(model).get_config()
            steps = {name: config[name] for name in STEPS}
        except ValueError as error:
            notes.append(f"the model's `preprocessing` is not in the artefact: {error}")
    names: Any = getattr(model, "class_names", None)
    names = names.tolist() if hasattr(names, "tolist") else names
    # A model of somebody else may have anything by this name.
    are_names = isinstance(names, Sequence) and not isinstance(names, str)
    if not are_names or not all(isinstance(name, str) for name in names):
        names = None
    return Description(None if names is None else tuple(names), steps), notes


def from_json(content: bytes | None, source: str = FILE) -> Description:
    """Parses a description.

    Args:
        content: UTF-8; None for an artefact that has none.
        source: Where it is stored, for messages.

    Raises:
        ValueError: If it is not JSON, or has unexpected content.
    """
    if content is None:
        return Description()
    found = parse_json(content, Path(source))
    names, steps = found.get("class_names"), found.get("preprocessing")
    if names is not None and not (
        isinstance(names, list) and all(isinstance(name, str) for name in names)
    ):
        raise ValueError(f"{source} must hold `class_names` as a list of strings")
    if steps is not None and not (isinstance(steps, dict) and set(steps) == {*STEPS}):
        raise ValueError(f"{source} must hold `preprocessing` with {', '.join(STEPS)}")
    return Description(None if names is None else tuple(names), steps)
