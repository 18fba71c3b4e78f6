"""Compare what an artefact computes with what Keras computes."""

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from keras_attn.export.errors import ExportError
from keras_attn.export.inference import reference
from keras_attn.export.runner import Runner
from keras_attn.export.samples import Case
from keras_attn.export.signatures import Signature

# What each quantization is allowed; see `_pointwise` and `_root_mean_square`.
TOLERANCES = {None: 1e-4, "float16": 1e-2, "int8_dynamic": 0.1, "int8": 0.2}
# Larger values stand for minus infinity (masked logits) and say nothing of the scale.
_MASKED = 1e6
_TIMED_CALLS = 5


@dataclass(frozen=True)
class Measured:
    """What a comparison found: the largest difference, and the time of a call."""

    max_abs_diff: float
    latency_ms: dict[str, float]
    top1_agreement: dict[str, float] = field(default_factory=dict)


def compare(
    runner: Runner,
    signatures: list[Signature],
    cases: Iterable[Case],
    tolerance: float,
    quantization: str | None,
) -> Measured:
    """Runs an artefact on samples and compares every output with Keras.

    Args:
        runner: The artefact in its stock runtime.
        signatures: The Keras side.
        cases: `(signature name, inputs)` to run, in turn.
        tolerance: Largest error allowed, see `_pointwise` and `_root_mean_square`.
        quantization: What the artefact was quantized to.

    Returns:
        The largest difference, and the median latency of each signature.

    Raises:
        ExportError: An output is missing, has another shape, or differs by more.
    """
    by_name = {signature.name: signature for signature in signatures}
    largest = 0.0
    firsts: dict[str, dict] = {}
    for name, inputs in cases:
        firsts.setdefault(name, inputs)
        found = runner(inputs, name)
        expected = reference(by_name[name], inputs)
        if set(found) != set(expected):
            raise ExportError(
                f"`{name}` must give {sorted(expected)}; the {runner.format} artefact "
                f"gives {sorted(found)}"
            )
        for output in list(expected):
            where = f"output `{output}` of `{name}`"
            # Taken out of both: with caches they are large.
            got, want = found.pop(output), expected.pop(output)
            try:
                worst = _compare_output(where, got, want, tolerance, quantization)
            except ExportError:
                again = reference(by_name[name], inputs)[output]
                _check_repeats(where, again, want, tolerance)
                raise
            largest = max(largest, worst)
    return Measured(largest, _latencies(runner, firsts))


def _check_repeats(
    where: str, again: np.ndarray, want: np.ndarray, tolerance: float
) -> None:
    """Raises where Keras' own output is another one at the second call."""
    try:
        _compare_output(where, again, want, tolerance, None)
    except ExportError as error:
        raise ExportError(
            f"{where} is different at each call of the Keras model itself, which draws "
            "random numbers in inference, so nothing can be compared with it. Make "
            "them an input (a masked autoencoder takes `noise=True`), or export with "
            "`verify=False`"
        ) from error


def top1_agreement(
    runner: Runner, signature: Signature, batches: Iterable[Case], count: int
) -> dict[str, float]:
    """In how many samples the largest number is where Keras has it.

    Args:
        runner: The artefact in its stock runtime.
        signature: The Keras side.
        batches: The samples, the last of them perhaps filled up.
        count: How many there are.

    Returns:
        Of each output (B, C) that may be the scores of classes, the share of samples
        for which artefact and Keras choose the same.
    """
    agreed: dict[str, list[np.ndarray]] = {}
    for name, inputs in batches:
        expected = reference(signature, inputs)
        choices = {key: want for key, want in expected.items() if _is_choice(want)}
        if not choices:
            return {}
        found = runner(inputs, name)
        for key, want in choices.items():
            same = found[key].argmax(-1) == want.argmax(-1)
            agreed.setdefault(key, []).append(same)
    return {
        key: float(np.mean(np.concatenate(same)[:count]))
        for key, same in agreed.items()
    }


def _is_choice(want: np.ndarray) -> bool:
    """Whether an output may be the scores of classes, a row an example."""
    return (
        want.ndim == 2 and want.shape[1] > 1 and np.issubdtype(want.dtype, np.floating)
    )


def _compare_output(
    where: str,
    found: np.ndarray,
    want: np.ndarray,
    tolerance: float,
    quantization: str | None,
) -> float:
    """Returns the largest difference of one output, or raises with the numbers."""
    if found.shape != want.shape:
        raise ExportError(
            f"{where} has the shape {found.shape}; Keras gives {want.shape}"
        )
    if not np.issubdtype(want.dtype, np.floating):
        return _compare_exact(where, found, want, tolerance)
    found, want = found.astype(np.float64), want.astype(np.float64)
    # Equal infinities, and NaN where Keras gives NaN, are agreement.
    same = (found == want) | (np.isnan(found) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        diff = np.where(same, 0.0, np.abs(found - want))
    diff = np.where(np.isnan(diff), np.inf, diff)
    error, measure = (_pointwise if quantization is None else _root_mean_square)(
        diff, np.abs(want)
    )
    if error > tolerance:
        raise ExportError(
            f"{where} differs from Keras by {diff.max():.3g} (max abs diff); its "
            f"{measure} is {error:.3g}, which is more than `tolerance`={tolerance:g}"
        )
    return float(diff.max(initial=0.0))


def _pointwise(diff: np.ndarray, magnitude: np.ndarray) -> tuple[float, str]:
    """The worst difference, absolute below 1 and relative above.

    Float32 arithmetic in another order: no value has an excuse to be far off.
    """
    allowed = np.maximum(np.nan_to_num(magnitude, posinf=1.0), 1.0)
    return float((diff / allowed).max(initial=0.0)), "difference, relative above 1,"


def _root_mean_square(diff: np.ndarray, magnitude: np.ndarray) -> tuple[float, str]:
    """The root mean square of the differences, in units of the output's own.

    A quantized model errs in proportion to the largest values inside it, whatever the
    size of its outputs: the small probabilities of a large vocabulary must be measured
    by their own size, and one outlier does not make a model wrong.
    """
    ordinary = magnitude < _MASKED
    scale = np.sqrt(np.mean(magnitude[ordinary] ** 2)) if ordinary.any() else 0.0
    error = np.sqrt(np.mean(diff[ordinary] ** 2)) if ordinary.any() else 0.0
    error = error / scale if scale else error
    # What stands for infinity has to stand for it still.
    masked = diff[~ordinary] / np.nan_to_num(magnitude[~ordinary], posinf=1.0)
    error = max(float(error), float(masked.max(initial=0.0)))
    return error, "root mean square error relative to the output"


def _compare_exact(
    where: str, found: np.ndarray, want: np.ndarray, tolerance: float
) -> float:
    """Indices and masks agree or not: `tolerance` is the share that may not."""
    unequal = float(np.mean(found != want)) if want.size else 0.0
    if unequal > tolerance:
        raise ExportError(
            f"{where} is {want.dtype} and {unequal:.1%} of its values differ from "
            f"Keras, which is more than `tolerance`={tolerance:g}"
        )
    return 0.0 if unequal == 0 else float(np.abs(found - want.astype(float)).max())


def _latencies(runner: Runner, firsts: dict[str, dict]) -> dict[str, float]:
    """Median milliseconds of a call of each signature, on the inputs by its name."""
    latencies = {}
    for name, inputs in firsts.items():
        # The comparison may have left the runtime allocated for another shape.
        runner(inputs, name)
        times = []
        for _ in range(_TIMED_CALLS):
            start = time.perf_counter()
            runner(inputs, name)
            times.append(time.perf_counter() - start)
        latencies[name] = round(1000 * statistics.median(times), 4)
    return latencies
