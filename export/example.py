"""Six lines of Python that call an artefact: the end of its report."""

import json

from keras_attn.export.description import Description
from keras_attn.export.signature_info import (
    IMAGE_BYTES,
    PREFILL,
    SERVE,
    TEXT,
    SignatureInfo,
    TensorInfo,
)
from keras_attn.export.signatures import Signature

# Open sizes: a length, the sides of an image, and those of a photo.
_LENGTH, _SIDE, _PHOTO = 8, 224, (480, 640)
_SHAPES = "print({name: value.shape for name, value in outputs.items()})"


def write_example(
    path: str, signature: Signature, info: SignatureInfo, description: Description
) -> str:
    """Lines that run as they are, on made-up inputs.

    Args:
        path: Where the artefact is.
        signature: Its first signature.
        info: The shapes of it in the artefact.
        description: What the artefact says besides.
    """
    numpy, loading = "import numpy as np", "from keras_attn.export import load_runner"
    load = f"runner = load_runner({json.dumps(path, ensure_ascii=False)})"
    photo = _photo(info, description) if signature.name == SERVE else None
    if TEXT in info.inputs:
        call = 'runner(["a text", "another text"])'
        before = [loading, "", load, ""]
    elif photo is not None:
        made = f'photo = np.zeros({photo}, "uint8")  # or the path of a photo'
        call = "runner([photo])"
        before = [numpy, loading, load, made]
    else:
        arrays = ", ".join(
            f'"{name}": {_array(name, each, signature)}'
            for name, each in info.inputs.items()
        )
        call = "runner" if signature.name == SERVE else f"runner.{PREFILL}"
        call = f"{call}(inputs)"
        before = [numpy, loading, load, f"inputs = {{{arrays}}}"]
    return "\n".join([*before, f"outputs = {call}", _last(info, description)])


def _photo(info: SignatureInfo, description: Description) -> tuple[int, ...] | None:
    """Rows, columns and channels of a photo; None if no photo is taken as it is."""
    if list(info.inputs) == [IMAGE_BYTES]:
        return (*_PHOTO, 3)
    first = next(iter(info.inputs.values()))
    if len(info.inputs) > 1 or len(first.shape) != 4 or first.shape[-1] not in (1, 3):
        return None
    steps = description.preprocessing
    if first.dtype != "uint8":
        if steps is None:
            return None
        if steps["size"] is not None or steps["crop_size"] is not None:
            return (*_PHOTO, first.shape[-1])
    rows, columns = (size or _SIDE for size in first.shape[1:3])
    return rows, columns, first.shape[-1]


def _last(info: SignatureInfo, description: Description) -> str:
    """The line that prints the outputs: the best classes, if they have names."""
    names = description.class_names
    for name, each in info.outputs.items():
        if names and len(each.shape) == 2 and each.shape[1] == len(names):
            return f'print(runner.decode_predictions(outputs["{name}"], top=3))'
    return _SHAPES


def _array(name: str, info: TensorInfo, signature: Signature) -> str:
    """An expression of an array that the signature takes."""
    low, high = signature.length_ranges.get(name, (0, None))
    length = max(low, min(_LENGTH, _LENGTH if high is None else high - 1))
    is_image = len(info.shape) == 4 and info.shape[-1] in (1, 3)
    open_sizes = [1, *([_SIDE] * 2 if is_image else [length, _LENGTH]), _LENGTH]
    shape = tuple(
        size or open_sizes[min(axis, 3)] for axis, size in enumerate(info.shape)
    )
    if info.dtype == "string":
        return f'np.full({shape}, "a text")'
    least, first_too_large = signature.index_ranges.get(name, (0, None))
    if least <= 1 and (first_too_large is None or first_too_large > 1):
        return f'np.ones({shape}, "{info.dtype}")'
    return f'np.full({shape}, {least}, "{info.dtype}")'
