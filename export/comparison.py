"""Compare the outputs of an artefact with those of Keras."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from keras_attn.export.detections import are_detections, in_pairs
from keras_attn.export.errors import ExportError
from keras_attn.export.runner import Runner
from keras_attn.export.samples import Case, Inputs
from keras_attn.export.signatures import Signature
from keras_attn.export.switches import Probe

# Default tolerances. None: for `_pointwise`; the others: for `_root_mean_square`.
TOLERANCES = {None: 1e-4, "float16": 1e-2, "int8_dynamic": 0.1, "int8": 0.2}
# Larger values represent infinity (masked logits) and are left out of the scale.
_MASKED = 1e6
_TIMED_CALLS = 5
# Takes |found - want| and |want|; returns the error and its name.
_Measure = Callable[[np.ndarray, np.ndarray], tuple[float, str]]


@dataclass(frozen=True)
class Measured:
    """Result of a comparison; see `ExportReport` for the attributes."""

    max_abs_diff: float
    latency_ms: dict[str, float]
    top1_agreement: dict[str, float] = field(default_factory=dict)


def compare(
    runner: Runner,
    signatures: list[Signature],
    cases: Iterable[Case],
    tolerance: float,
    quantization: str | None,
    probe: Probe | None = None,
) -> Measured:
    """Runs an artefact on samples and compares every output with Keras.

    Detections are compared in pairs, not by position; see `in_pairs`.

    Args:
        runner: The artefact in its stock runtime.
        signatures: The same signatures in Keras.
        cases: `(signature name, inputs)` to run.
        tolerance: Largest error allowed, see `TOLERANCES`.
        quantization: Quantization of the artefact.
        probe: For a model with max unpooling: compares what differs with Keras again,
            given the artefact's choices between equal maxima.

    Returns:
        The largest difference, and the median latency of each signature.

    Raises:
        ExportError: An output is missing, has another shape, or exceeds `tolerance`.
    """
    by_name = {signature.name: signature for signature in signatures}
    measure = _pointwise if quantization is None else _root_mean_square
    largest = 0.0
    firsts: dict[str, dict] = {}
    for name, inputs in cases:
        firsts.setdefault(name, inputs)
        difference = _compare_case(
            runner, by_name[name], inputs, tolerance, measure, probe
        )
        largest = max(largest, difference)
    return Measured(largest, _latencies(runner, firsts))


def _compare_case(
    runner: Runner,
    signature: Signature,
    inputs: Inputs,
    tolerance: float,
    measure: _Measure,
    probe: Probe | None,
) -> float:
    """Returns the largest difference of the outputs for one sample; see `compare`."""
    name = f"`{signature.name}`"
    found = runner(inputs, signature.name)
    expected = signature.reference(inputs)
    if set(found) != set(expected):
        raise ExportError(
            f"{name} must return {sorted(expected)}; the {runner.format} "
            f"artefact returns {sorted(found)}"
        )
    given_choices = False
    if probe is not None and not _all_close(found, expected, tolerance):
        expected = probe.reference(signature, inputs, found)
        given_choices = True
    unpaired = dict(expected) if are_detections(expected) else None
    if unpaired is not None:
        found, expected = in_pairs(name, found, expected, tolerance)
    largest = 0.0
    for output in list(expected):
        where = f"output `{output}` of {name}"
        # Popped to free memory: caches are large.
        got, want = found.pop(output), expected.pop(output)
        is_box = unpaired is not None and output == "boxes" and measure is _pointwise
        of_output = _of_boxes if is_box else measure
        try:
            difference = _compare_output(where, got, want, tolerance, of_output)
        except ExportError:
            if given_choices:
                raise
            # Is Keras itself the cause, because it draws random numbers?
            second = signature.reference(inputs)
            if unpaired is not None:
                second, first = in_pairs(name, second, unpaired, 1.0)
                want = first[output]
            _check_repeats(where, second[output], want, tolerance)
            raise
        largest = max(largest, difference)
    return largest


def _all_close(found: dict, expected: dict, tolerance: float) -> bool:
    """Whether no single value differs by more than the tolerance."""
    try:
        for name, want in expected.items():
            _compare_output(name, found[name], want, tolerance, _pointwise)
    except ExportError:
        return False
    return True


def _check_repeats(
    where: str, second: np.ndarray, want: np.ndarray, tolerance: float
) -> None:
    """Raises if Keras itself returns another output at the second call."""
    try:
        _compare_output(where, second, want, tolerance, _pointwise)
    except ExportError as error:
        raise ExportError(
            f"{where} differs between calls of the Keras model itself, which uses "
            "random numbers at inference, so it cannot be compared. Make them an input "
            "(as `noise=True` does in a masked autoencoder), or export with "
            "`verify=False`"
        ) from error


def top1_agreement(
    runner: Runner, signature: Signature, batches: Iterable[Case], count: int
) -> dict[str, float]:
    """Share of samples, or of pixels, for which artefact and Keras predict one class.

    Args:
        runner: The artefact in its stock runtime.
        signature: The same signature in Keras.
        batches: The samples; the last batch may be padded with repeated rows.
        count: Number of samples.

    Returns:
        Share in [0, 1], by name of each output that may hold class scores: (B, C), or
        (B, H, W, C) for images (B, H, W, channels). Low-resolution score maps are
        recognized by the output's name.
    """
    agreed: dict[str, list[np.ndarray]] = {}
    for name, inputs in batches:
        expected = signature.reference(inputs)
        if are_detections(expected):
            return {}
        sizes = [value.shape[1:3] for value in inputs.values() if value.ndim == 4]
        scores = {
            key: want for key, want in expected.items() if _is_scores(key, want, sizes)
        }
        if not scores:
            return {}
        found = runner(inputs, name)
        for key, want in scores.items():
            same = found[key].argmax(-1) == want.argmax(-1)
            agreed.setdefault(key, []).append(same)
    return {
        key: float(np.mean(np.concatenate(same)[:count]))
        for key, same in agreed.items()
    }


def _is_scores(key: str, want: np.ndarray, image_sizes: list[tuple[int, ...]]) -> bool:
    """Whether an output may hold class scores, of samples or of pixels."""
    is_named = key in ("logits", "classifier")
    is_map = want.ndim == 4 and (is_named or want.shape[1:3] in image_sizes)
    is_float = np.issubdtype(want.dtype, np.floating)
    return (want.ndim == 2 or is_map) and want.shape[-1] > 1 and is_float


def _compare_output(
    where: str,
    found: np.ndarray,
    want: np.ndarray,
    tolerance: float,
    measure: _Measure,
) -> float:
    """Returns the largest difference of one output; raises if it is too large."""
    if found.shape != want.shape:
        raise ExportError(
            f"{where} has the shape {found.shape}; in Keras it has {want.shape}"
        )
    if not np.issubdtype(want.dtype, np.floating):
        return _compare_exact(where, found, want, tolerance)
    found, want = found.astype(np.float64), want.astype(np.float64)
    # Equal infinities agree, and so do two NaNs.
    same = (found == want) | (np.isnan(found) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        diff = np.where(same, 0.0, np.abs(found - want))
    diff = np.where(np.isnan(diff), np.inf, diff)
    error, meaning = measure(diff, np.abs(want))
    if error > tolerance:
        raise ExportError(
            f"{where} differs from Keras by {diff.max():.3g} (max abs diff); its "
            f"{meaning} is {error:.3g}, which is more than `tolerance`={tolerance:g}"
        )
    return float(diff.max(initial=0.0))


def _pointwise(diff: np.ndarray, magnitude: np.ndarray) -> tuple[float, str]:
    """The largest difference, absolute below 1 and relative above.

    Float32 arithmetic differs only in order, so every single value must be close.
    """
    allowed = np.maximum(np.nan_to_num(magnitude, posinf=1.0), 1.0)
    return float((diff / allowed).max(initial=0.0)), "difference, relative above 1,"


def _of_boxes(diff: np.ndarray, magnitude: np.ndarray) -> tuple[float, str]:
    """The largest difference, relative to the largest side of a box.

    A side is a sum of numbers as large as the image, and so is its rounding error.
    """
    return _pointwise(diff, np.full_like(magnitude, magnitude.max(initial=0.0)))


def _root_mean_square(diff: np.ndarray, magnitude: np.ndarray) -> tuple[float, str]:
    """The root mean square of the differences, relative to that of the output.

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
    return error, "root mean square error relative to the output"


def _compare_exact(
    where: str, found: np.ndarray, want: np.ndarray, tolerance: float
) -> float:
    """Integers and booleans: `tolerance` is the share that may differ."""
    unequal = float(np.mean(found != want)) if want.size else 0.0
    if unequal > tolerance:
        raise ExportError(
            f"{where} is {want.dtype} and {unequal:.1%} of its values differ from "
            f"Keras, which is more than `tolerance`={tolerance:g}"
        )
    return 0.0 if unequal == 0 else float(np.abs(found - want.astype(float)).max())


def _latencies(runner: Runner, firsts: dict[str, dict]) -> dict[str, float]:
    """Median milliseconds per call of each signature, on the inputs by its name."""
    latencies = {}
    for name, inputs in firsts.items():
        # Warm-up: the last comparison may have been of another shape.
        runner(inputs, name)
        times = []
        for _ in range(_TIMED_CALLS):
            start = time.perf_counter()
            runner(inputs, name)
            times.append(time.perf_counter() - start)
        latencies[name] = round(1000 * statistics.median(times), 4)
    return latencies
