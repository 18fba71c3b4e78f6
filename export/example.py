"""Six lines of Python that call an artefact: the end of its report."""

import json

from keras_attn.checks.indices import IndexRange
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

_LENGTH, _SIDE = 8, 224
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
    load = f"runner = load_runner({json.dumps(path, ensure_ascii=False)})"
    imports = ["import numpy as np", "from keras_attn.export import load_runner"]
    names = list(info.inputs)
    first = info.inputs[names[0]]
    takes_bytes = first.dtype == "uint8" or description.preprocessing is not None
    is_image = names == [IMAGE_BYTES] or (
        signature.name == SERVE
        and len(names) == 1
        and len(first.shape) == 4
        and first.shape[-1] in (1, 3)
        and takes_bytes
    )
    if TEXT in names:
        call = 'runner(["a text", "another text"])'
        before = [imports[1], "", load, ""]
    elif is_image:
        sizes = first.shape[1:3] if first.dtype == "uint8" else (480, 640)
        rows, columns = (size or _SIDE for size in sizes)
        channels = 3 if names == [IMAGE_BYTES] else first.shape[-1]
        shape = (rows, columns, channels)
        made = f'photo = np.zeros({shape}, "uint8")  # or the path of a photo'
        call = "runner([photo])"
        before = [*imports, load, made]
    else:
        arrays = ", ".join(
            f'"{name}": {_array(name, each, signature)}'
            for name, each in info.inputs.items()
        )
        call = "runner" if signature.name == SERVE else f"runner.{PREFILL}"
        call = f"{call}(inputs)"
        before = [*imports, load, f"inputs = {{{arrays}}}"]
    lines = [*before, f"outputs = {call}", _last(info, description)]
    return "\n".join(lines)


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
    open_sizes = [_SIDE] * 3 if len(info.shape) == 4 else [length, _LENGTH, _LENGTH]
    shape = tuple(
        size or (1 if axis == 0 else open_sizes[min(axis, 3) - 1])
        for axis, size in enumerate(info.shape)
    )
    if info.dtype == "string":
        return f'np.full({shape}, "a text")'
    allowed: IndexRange = signature.index_ranges.get(name, (0, None))
    if allowed[0] <= 1 and (allowed[1] is None or allowed[1] > 1):
        return f'np.ones({shape}, "{info.dtype}")'
    return f'np.full({shape}, {allowed[0]}, "{info.dtype}")'
