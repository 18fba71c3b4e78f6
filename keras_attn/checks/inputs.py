"""Checks of inputs other than indices: length, real rows, finite numbers, pixels.

They are made where shapes and values are known: in eager calls, in arrays given to
`predict`, `fit` and `evaluate`, in `generate`, and before an artefact runs. A compiled
graph contains none of them. `checks/indices.py` checks indices.

Legend: B batch, T length.
"""

from collections.abc import Mapping

import numpy as np

from keras_attn.checks.indices import IndexRange, known_values

# Masks of real positions, and the inputs that each may belong to.
MASKED_INPUTS = {
    "padding_mask": ("token_ids", "features", "waveform"),
    "decoder_padding_mask": ("decoder_token_ids",),
    "region_padding_mask": ("region_features",),
}


def check_length(name: str, shape, allowed: IndexRange) -> None:
    """Raises if axis 1 of an input is too short or too long, as far as it is known.

    Args:
        name: Name of the input, for the message.
        shape: Its static shape, (B, T, …); None for an unknown axis.
        allowed: The minimum T and the first one that is too large.

    Raises:
        ValueError: If it is. The message names the input, its shape and the limit.
    """
    low, high = allowed
    length = shape[1]
    # While JAX traces, an unknown length is a symbol.
    if not isinstance(length, int):
        return
    if high is not None and length >= high:
        raise ValueError(
            f"`{name}` must have a length of at most {high - 1}, padding included, the "
            "number of positions of the model: shorten it, or build the model with "
            f"more. Received: {name}.shape={tuple(shape)}"
        )
    if length < low:
        raise ValueError(
            f"`{name}` must have a length of at least {low}, one window of the model: "
            f"leave out shorter inputs. Received: {name}.shape={tuple(shape)}"
        )


def check_finite(name: str, values) -> None:
    """Raises for a number that is NaN or infinite; symbolic tensors are not checked.

    Raises:
        ValueError: If there is such a number. The message names the input, the number
            and its index.
    """
    array = known_values(values)
    if array is None or array.dtype.kind != "f":
        return
    # A sum reads the array once and allocates no second array; it may overflow, though.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum()):
            return
    wrong = np.argwhere(~np.isfinite(array))
    if not len(wrong):
        return
    first = tuple(int(axis) for axis in wrong[0])
    raise ValueError(
        f"`{name}` must be finite numbers. Received: {array[first]} at index {first}, "
        f"{len(wrong)} such numbers"
    )


def check_same_rows(shapes: Mapping[str, tuple]) -> None:
    """Raises unless all inputs have the same number of rows.

    Keras 3.15 fails in its own message if the inputs are a dictionary.

    Args:
        shapes: The static shape of each input, by name.

    Raises:
        ValueError: If the numbers differ. The message names all.
    """
    rows = {name: shape[0] for name, shape in shapes.items() if shape}
    if len({number for number in rows.values() if isinstance(number, int)}) > 1:
        raise ValueError(
            f"All inputs must have the same number of rows. Received: {rows}"
        )


def check_bytes(name: str, values) -> None:
    """Raises for a number that 8 bits cannot hold; symbolic tensors are not checked.

    A cast would make a black image of pixels from 0 to 1.

    Args:
        name: Name of the input, for the message.
        values: Pixels.

    Raises:
        ValueError: If they are booleans, or not whole numbers from 0 to 255.
    """
    array = known_values(values)
    if array is None or array.dtype == np.uint8:
        return
    received = f"{name} of dtype {array.dtype}"
    if array.dtype.kind in "fiu":
        is_byte = (array == np.rint(array)) & (array >= 0) & (array <= 255)
        if is_byte.all():
            return
        received = f"{name} from {array.min():.4g} to {array.max():.4g}"
    raise ValueError(
        f"`{name}` must be whole numbers from 0 to 255, as they are in an image file. "
        f"Received: {received}"
    )


# A white pixel is at most 3 after any usual normalization, and 255 before.
MOST_NORMALIZED = 16.0
# Boxes as shares of an image, by their input, and the mask of those that are real.
BOX_SHARES = {"region_boxes": "region_padding_mask"}
# By how much a detector's boxes may reach beyond their image.
_OVERSHOOT = 0.05


def check_normalized(name: str, values) -> None:
    """Raises for images as they are in files, given to a model of normalized ones.

    Only numbers that no normalization gives are refused: whole numbers of an integer
    type other than 0 and 1, and floats from 0 to far above what white becomes. Numbers
    in [0, 1] may be any image, and a dark image in [0, 255] cannot be told from one.

    Args:
        name: Name of the input, for the message.
        values: Images; symbolic tensors are not checked.

    Raises:
        ValueError: If they are such pixels.
    """
    array = known_values(values)
    if array is None or array.dtype.kind not in "fiu" or not array.size:
        return
    low, high = array.min(), array.max()
    most = MOST_NORMALIZED if array.dtype.kind == "f" else 1
    if low < 0 or high <= most:
        return
    raise ValueError(
        f"`{name}` must be normalized as the images that the model learned from, such "
        "as divided by 255, or from -1 to 1 (`describe` says how; "
        "`models.image_preprocessing` does it for a checkpoint). "
        f"Received: {name} of dtype {array.dtype}, from {low:g} to {high:g}"
    )


def check_box_shares(name: str, values, mask=None) -> None:
    """Raises for boxes that are not shares of their image, or turned round.

    Args:
        name: Name of the input, for the message.
        values: Boxes (B, R, 4), left, top, right and bottom; symbolic ones are not
            checked.
        mask: (B, R), True or 1 = a real box; None = all are.

    Raises:
        ValueError: If a real box reaches out of [0, 1], or its right or bottom lies
            before its left or top. The message names its index.
    """
    boxes, is_real = known_values(values), None
    if boxes is None or boxes.ndim != 3 or boxes.shape[-1] != 4:
        return
    if mask is not None:
        is_real = known_values(mask)
    is_outside = (boxes < -_OVERSHOOT) | (boxes > 1 + _OVERSHOOT)
    is_turned = (boxes[..., 2:] < boxes[..., :2] - 1e-4).any(-1)
    for is_wrong, expected in (
        (is_outside.any(-1), "shares of the image's width and height, in [0, 1]"),
        (is_turned, "left, top, right and bottom, in this order"),
    ):
        if is_real is not None and is_real.shape == is_wrong.shape:
            is_wrong &= is_real != 0
        if is_wrong.any():
            first = tuple(int(axis) for axis in np.argwhere(is_wrong)[0])
            box = [round(float(side), 4) for side in boxes[first]]
            raise ValueError(
                f"`{name}` must be {expected}. Received: {box} at index {first}"
            )


def check_rows(name: str, mask, minimum: int = 1) -> None:
    """Raises for a row of only padding; symbolic tensors are not checked.

    A model would produce an answer for it without any input.

    Args:
        name: Name of the mask, for the message.
        mask: (B, T), True or 1 = real.
        minimum: Minimum number of real positions in each row, such as one window of
            samples.

    Raises:
        ValueError: If a row has fewer real positions. The message names the mask and
            the rows.
    """
    array = known_values(mask)
    if array is None or array.ndim != 2:
        return
    short = np.flatnonzero((array != 0).sum(axis=1) < minimum).tolist()
    if not short:
        return
    if minimum == 1:
        position = "region" if "region_padding_mask" in name else "token"
        raise ValueError(
            f"`{name}` must have at least one real {position} in every row. "
            f"Received: only padding in rows {short}"
        )
    raise ValueError(
        f"`{name}` must have at least {minimum} real positions in every row, one "
        f"window of the model. Received: fewer in rows {short}"
    )


def smallest_rows(lengths: Mapping[str, IndexRange], mask: str) -> int:
    """The minimum number of real positions in each row of a mask.

    Args:
        lengths: The lengths that inputs may have, by name.
        mask: Name of a mask.
    """
    masked = MASKED_INPUTS.get(mask, ())
    return max((lengths[name][0] for name in masked if name in lengths), default=1)
