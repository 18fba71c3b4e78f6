"""Runs an artefact in its stock runtime and compares its outputs with Keras'.

`compare` makes samples (the caller's, or random ones), runs each in both, pairs
detections, and compares output by output, where y is the artefact's and k is Keras':

    float32     max |y - k| / max(|k|, 1) ≤ tolerance; of boxes, / max(k, 1)
    quantized   rms(y - k) / rms(k) ≤ tolerance
    integers, booleans and strings: the share of y ≠ k ≤ tolerance

Two NaNs are left out; infinities must be equal. differences.py computes these.
"""

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from keras_attn.export import samples
from keras_attn.export.agreement import Agreement, top1_agreement
from keras_attn.export.detections import are_detections, in_pairs
from keras_attn.export.differences import (
    Difference,
    Error,
    Measure,
    all_close,
    check_repeats,
    compare_output,
    of_boxes,
    pointwise,
    root_mean_square,
)
from keras_attn.export.errors import ExportError
from keras_attn.export.perplexity import NextTokens, next_tokens
from keras_attn.export.plan import Plan
from keras_attn.export.runner import Runner
from keras_attn.export.samples import Case, Inputs
from keras_attn.export.shapes import Specs
from keras_attn.export.signature_info import PREFILL, STEP
from keras_attn.export.signatures import Signature
from keras_attn.export.switches import Probe, probing

_TIMED_CALLS = 5
# Rows per batch for `top1_agreement`.
_AGREEMENT_ROWS = 32
_NO_DETECTIONS = (
    "boxes, scores, classes and masks were not compared: neither the model nor the "
    "artefact detects anything in the samples; pass `sample_inputs` with objects that "
    "the model detects"
)
_PASS_OTHERS = "pass other `sample_inputs`"


@dataclass(frozen=True)
class Measured:
    """The result of a comparison.

    Attributes:
        max_abs_diff: The largest difference of two values, over all outputs; None if
            nothing was compared.
        error: The largest error that was compared with the tolerance; None if nothing
            was compared.
        latency_ms: Median time of one call, by signature.
        not_compared: The outputs of each signature of which no value was compared.
        agreements: The classes that both predict, by output.
        next_tokens: The tokens that both predict, of a generative model.
        notes: What could not be compared, and why.
    """

    max_abs_diff: float | None
    error: Error | None
    latency_ms: dict[str, float]
    not_compared: dict[str, list[str]] = field(default_factory=dict)
    agreements: dict[str, Agreement] = field(default_factory=dict)
    next_tokens: NextTokens | None = None
    notes: tuple[str, ...] = ()


def compare(plan: Plan, runner: Runner, specs: dict[str, Specs]) -> Measured:
    """Compares an artefact with the model that it was exported from.

    Args:
        plan: What was exported.
        runner: The artefact in its stock runtime.
        specs: The artefact's inputs, by signature and name.

    Raises:
        ExportError: As in `compare_cases`.
    """
    signatures, sample = plan.signatures, plan.sample
    # One batch, random or the caller's; if sizes are unknown, a second one of a
    # different size; and two steps after each prompt.
    cases = samples.cases(signatures, specs, sample)
    # None, except for models with max unpooling; see `switches.py`.
    with probing(plan, specs) as probe:
        measured = compare_cases(
            runner, signatures, cases, plan.tolerance, plan.quantization, probe
        )
    if sample is None:
        return measured
    if [each.name for each in signatures] == [PREFILL, STEP]:
        found = next_tokens(runner, signatures, specs, sample)
        return replace(measured, next_tokens=found)
    if len(signatures) > 1:
        return measured
    batches = samples.calibration(signatures, specs, sample, max_batch=_AGREEMENT_ROWS)
    count = max(len(value) for value in sample.values())
    agreements = top1_agreement(runner, signatures[0], batches, count)
    return replace(measured, agreements=agreements)


def compare_cases(
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
        probe: For a model with max unpooling: compares an output that differs with
            Keras again, given the artefact's choices between equal maxima.

    Returns:
        The largest difference and error of what was compared, what was not, and the
        median latency of each signature.

    Raises:
        ExportError: If an output is missing, has the wrong shape, or its error exceeds
            `tolerance`.
    """
    by_name = {signature.name: signature for signature in signatures}
    measure = pointwise if quantization is None else root_mean_square
    differences: dict[tuple[str, str], list[Difference]] = {}
    firsts: dict[str, dict] = {}
    detecting: set[str] = set()
    for name, inputs in cases:
        firsts.setdefault(name, inputs)
        signature = by_name[name]
        by_output, are_boxes = _compare_case(
            runner, signature, inputs, tolerance, measure, probe
        )
        if are_boxes:
            detecting.add(name)
        for output, difference in by_output.items():
            differences.setdefault((name, output), []).append(difference)
    compared = [x for each in differences.values() for x in each if x.num_values]
    not_compared: dict[str, list[str]] = {}
    notes: list[str] = []
    for (name, output), each in differences.items():
        if not any(difference.num_values for difference in each):
            not_compared.setdefault(name, []).append(output)
        notes += _notes_about(name, output, each)
    if any("boxes" in not_compared.get(name, ()) for name in detecting):
        notes = [_NO_DETECTIONS]
    for name, info in runner.signatures.items():
        if name not in by_name:
            not_compared[name] = list(info.outputs)
            notes.append(
                f"signature `{name}` was not compared: it is not one of the model's"
            )
    return Measured(
        max((each.max_abs_diff for each in compared), default=None),
        max((x.error for x in compared), key=lambda error: error.value, default=None),
        _latencies(runner, firsts),
        not_compared,
        notes=tuple(notes),
    )


def _notes_about(name: str, output: str, differences: list[Difference]) -> list[str]:
    """The report's note on an output that was not compared as a whole."""
    compared = sum(each.num_values for each in differences)
    nans = sum(each.num_nans for each in differences)
    shown = f"output `{output}` of `{name}`"
    if not compared and not nans:
        return [f"{shown} was not compared: it has no values; {_PASS_OTHERS}"]
    if not compared:
        return [
            f"{shown} was not compared: all its values are NaN, in Keras and in the "
            f"artefact; {_PASS_OTHERS}"
        ]
    if nans:
        return [
            f"{shown}: {nans} of {compared + nans} values were not compared, because "
            "they are NaN in Keras and in the artefact"
        ]
    return []


def _compare_case(
    runner: Runner,
    signature: Signature,
    inputs: Inputs,
    tolerance: float,
    measure: Measure,
    probe: Probe | None,
) -> tuple[dict[str, Difference], bool]:
    """The difference of each output for one sample, and whether it is of detections."""
    name = f"`{signature.name}`"
    found = runner(inputs, signature.name)
    expected = signature.reference(inputs)
    if set(found) != set(expected):
        raise ExportError(
            f"{name} must return {sorted(expected)}; the {runner.format} "
            f"artefact returns {sorted(found)}"
        )
    given_choices = False
    if probe is not None and not all_close(found, expected, tolerance):
        expected = probe.reference(signature, inputs, found)
        given_choices = True
    unpaired = dict(expected) if are_detections(expected) else None
    if unpaired is not None:
        found, expected = in_pairs(name, found, expected, tolerance)
    differences = {}
    for output in list(expected):
        where = f"output `{output}` of {name}"
        # Popped to free memory: caches are large.
        found_output, expected_output = found.pop(output), expected.pop(output)
        is_box = unpaired is not None and output == "boxes" and measure is pointwise
        of_output = of_boxes if is_box else measure
        try:
            differences[output] = compare_output(
                where, found_output, expected_output, tolerance, of_output
            )
        except ExportError:
            if given_choices:
                raise
            # Keras itself may be the cause, if it draws random numbers.
            second = signature.reference(inputs)
            if unpaired is not None:
                second, first = in_pairs(name, second, unpaired, 1.0)
                expected_output = first[output]
            check_repeats(where, second[output], expected_output, tolerance)
            raise
    return differences, unpaired is not None


def _latencies(runner: Runner, firsts: dict[str, dict]) -> dict[str, float]:
    """Median milliseconds per call of each signature, on the inputs by its name."""
    latencies = {}
    for name, inputs in firsts.items():
        # Warm-up: the last comparison may have had a different shape.
        runner(inputs, name)
        times = []
        for _ in range(_TIMED_CALLS):
            start = time.perf_counter()
            runner(inputs, name)
            times.append(time.perf_counter() - start)
        latencies[name] = round(1000 * statistics.median(times), 4)
    return latencies
