"""Means over the tokens that a mask selects; values of other tokens may be NaN.

Legend: B sequences, T tokens.
"""

from typing import Any

from keras import ops

from keras_attn.checks.arguments import check_rank, fits
from keras_attn.kernels.precision import at_least_float32


def masked(name: str, values, mask) -> tuple[Any, Any]:
    """Values that are 0 where the mask is, and the mask as booleans.

    Args:
        name: Name of the values, for the message.
        values: (B, T).
        mask: (B, T), booleans or numbers.

    Returns:
        Both (B, T), the values float32 or wider. Masked values have no gradient.

    Raises:
        ValueError: If the shapes are not the same, (B, T).
    """
    values, mask = map(ops.convert_to_tensor, (values, mask))
    check_rank(name, values, 2, "(batch, length)")
    if not fits(mask.shape, values.shape, empty_axes=(0, 1)):
        raise ValueError(
            f"`mask` must have the shape of `{name}`, (batch, length). Received: "
            f"mask.shape={tuple(mask.shape)}, {name}.shape={tuple(values.shape)}"
        )
    mask = ops.cast(mask, "bool")
    return ops.where(mask, at_least_float32(values), 0.0), mask


def masked_mean(values, mask, axis=None) -> Any:
    """The mean of what counts, of masked values; 0 where nothing does.

    Args:
        values: 0 or any finite number where the mask is False.
        mask: Booleans of the same shape.
        axis: As of `ops.mean`.
    """
    weights = ops.cast(mask, values.dtype)
    count = ops.maximum(ops.sum(weights, axis=axis), 1.0)
    return ops.sum(values * weights, axis=axis) / count


def per_sequence(name: str, values, like) -> Any:
    """One number per row of `like`, in its dtype.

    Args:
        name: Name of the values, for the message.
        values: (B,).
        like: (B, T).

    Raises:
        ValueError: If `values` are not (B,).
    """
    values = ops.convert_to_tensor(values)
    if not fits(values.shape, like.shape[:1], empty_axes=(0,)):
        raise ValueError(
            f"`{name}` must have one number per sequence, ({like.shape[0]},). "
            f"Received: {name}.shape={tuple(values.shape)}"
        )
    return ops.cast(values, like.dtype)
