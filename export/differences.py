"""The difference of two arrays, and the tolerance for it."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from keras_attn.export.errors import ExportError

# Default tolerances. None: for `pointwise`; the others: for `root_mean_square`.
TOLERANCES = {None: 1e-4, "float16": 1e-2, "int8_dynamic": 0.1, "int8": 0.2}
# Larger values represent infinity (masked logits) and are left out of the scale.
_MASKED = 1e6


class Error(NamedTuple):
    """A measure of difference that is compared with a tolerance.

    Attributes:
        value: The error.
        measure: What it is, for messages and the report.
    """

    value: float
    measure: str


class Difference(NamedTuple):
    """The difference between an artefact's output and Keras'.

    Attributes:
        max_abs_diff: The largest difference of two values.
        error: What was compared with the tolerance.
        num_values: Number of values compared.
        num_nans: Number of values that are NaN in both, and so were not compared.
    """

    max_abs_diff: float
    error: Error
    num_values: int
    num_nans: int = 0


# Takes |found - want| and |want|.
Measure = Callable[[np.ndarray, np.ndarray], Error]


def compare_output(
    where: str,
    found: np.ndarray,
    want: np.ndarray,
    tolerance: float,
    measure: Measure,
) -> Difference:
    """Compares one output of an artefact with Keras'.

    Args:
        where: Name of the output, for messages.
        found: The artefact's output.
        want: The output of Keras.
        tolerance: Largest error allowed; for integers, booleans and strings, the share
            that may differ.
        measure: How the error of floats is measured.

    Returns:
        The difference.

    Raises:
        ExportError: If the shapes differ, or the error is too large.
    """
    if found.shape != want.shape:
        raise ExportError(
            f"{where} has the shape {found.shape}; in Keras it has {want.shape}"
        )
    if not np.issubdtype(want.dtype, np.inexact):
        return _compare_exact(where, found, want, tolerance)
    found, want = _parts(found), _parts(want)
    # Two NaNs do not disagree, but nothing is known of the artefact by them.
    is_nan = np.isnan(found) & np.isnan(want)
    found, want = found[~is_nan], want[~is_nan]
    with np.errstate(invalid="ignore"):
        # Equal infinities agree.
        diff = np.where(found == want, 0.0, np.abs(found - want))
    diff = np.where(np.isnan(diff), np.inf, diff)
    error = measure(diff, np.abs(want))
    if error.value > tolerance:
        raise ExportError(
            f"{where} differs from Keras by {diff.max():.3g} (max abs diff); its "
            f"{error.measure} is {error.value:.3g}, which is more than "
            f"`tolerance`={tolerance:g}"
        )
    largest = float(diff.max(initial=0.0))
    return Difference(largest, error, want.size, int(is_nan.sum()))


def all_close(
    found: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], tolerance: float
) -> bool:
    """Whether no single value of any output differs by more than the tolerance."""
    try:
        for name, of_keras in want.items():
            compare_output(name, found[name], of_keras, tolerance, pointwise)
    except ExportError:
        return False
    return True


def check_repeats(
    where: str, second: np.ndarray, first: np.ndarray, tolerance: float
) -> None:
    """Raises if Keras itself returns a different output at the second call."""
    try:
        compare_output(where, second, first, tolerance, pointwise)
    except ExportError as error:
        raise ExportError(
            f"{where} differs between calls of the Keras model itself, which uses "
            "random numbers at inference, or keeps a state (`stateful=True`), so it "
            "cannot be compared. Make them an input (as `noise=True` does in a masked "
            "autoencoder), or export with `verify=False`"
        ) from error


def _parts(array: np.ndarray) -> np.ndarray:
    """Real numbers in float64: of complex ones, their real and imaginary parts."""
    if np.iscomplexobj(array):
        array = np.stack([array.real, array.imag], axis=-1)
    return array.astype(np.float64)


def pointwise(diff: np.ndarray, magnitude: np.ndarray) -> Error:
    """The largest difference, absolute below 1 and relative above.

    Float32 arithmetic differs only in order, so every single value must be close.
    """
    allowed = np.maximum(np.nan_to_num(magnitude, posinf=1.0), 1.0)
    largest = float((diff / allowed).max(initial=0.0))
    return Error(largest, "difference (relative above 1)")


def of_boxes(diff: np.ndarray, magnitude: np.ndarray) -> Error:
    """The largest difference, relative to the largest side of a box.

    A side is a sum of numbers as large as the image, and so is its rounding error.
    """
    return pointwise(diff, np.full_like(magnitude, magnitude.max(initial=0.0)))


def root_mean_square(diff: np.ndarray, magnitude: np.ndarray) -> Error:
    """The root mean square of the differences, relative to the output's.

    The error of a quantized model is proportional to its largest values. Relative to
    the output it also measures the small probabilities of a large vocabulary, and a
    single outlier does not fail the model.
    """
    ordinary = magnitude < _MASKED
    scale = np.sqrt(np.mean(magnitude[ordinary] ** 2)) if ordinary.any() else 0.0
    error = np.sqrt(np.mean(diff[ordinary] ** 2)) if ordinary.any() else 0.0
    error = error / scale if scale else error
    # Values that represent infinity must still do so.
    masked = diff[~ordinary] / np.nan_to_num(magnitude[~ordinary], posinf=1.0)
    error = max(float(error), float(masked.max(initial=0.0)))
    return Error(error, "root mean square error relative to the output")


def _compare_exact(
    where: str, found: np.ndarray, want: np.ndarray, tolerance: float
) -> Difference:
    """Integers, booleans and strings: `tolerance` is the share that may differ."""
    unequal = float(np.mean(found != want)) if want.size else 0.0
    if unequal > tolerance:
        raise ExportError(
            f"{where} is {want.dtype} and {unequal:.1%} of its values differ from "
            f"Keras, which is more than `tolerance`={tolerance:g}"
        )
    largest = 0.0
    if unequal:
        is_number = np.issubdtype(want.dtype, np.integer)
        # Two booleans or strings that differ are as far apart as 0 and 1.
        largest = float(np.abs(found - want.astype(float)).max()) if is_number else 1.0
    error = Error(unequal, "share of different values")
    return Difference(largest, error, want.size)
