"""`export` and `verify`: plan, write, compare, and only then keep."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from keras_attn.checks import check_positive
from keras_attn.decoding import IncrementalPair
from keras_attn.decoding.pair import MASKS
from keras_attn.export import metadata, samples
from keras_attn.export import shape_fallback as ladder
from keras_attn.export.comparison import (
    TOLERANCES,
    Measured,
    compare,
    top1_agreement,
)
from keras_attn.export.errors import ExportError, RefusedError
from keras_attn.export.files import check_target, format_for, replacing, size_of
from keras_attn.export.formats import litert, onnx, saved_model
from keras_attn.export.inference import (
    computes_in_half,
    inference_mode,
    unique_layers,
)
from keras_attn.export.interrupts import interrupts_kept
from keras_attn.export.report import ExportReport
from keras_attn.export.runner import Runner, TensorInfo, infos, load_runner
from keras_attn.export.shapes import Specs, check_sizes
from keras_attn.export.signatures import STEP, Signature, signatures_of
from keras_attn.export.text import with_tokenizer

# Of a batch, where artefact and Keras are asked which class they choose.
_AGREEMENT_ROWS = 32


def export(
    model: Any,
    path: str | PathLike,
    *,
    format: str | None = None,
    quantization: str | None = None,
    batch_size: int | None = None,
    sequence_length: int | Mapping[str, int] | None = None,
    max_length: int | None = None,
    num_beams: int | None = None,
    sample_inputs: Any = None,
    tokenizer: Any = None,
    tolerance: float | None = None,
    verify: bool = True,
) -> ExportReport:
    """Ships a Keras model, and proves that what was shipped computes the same.

    A plain model offers the signature `serve` (a SavedModel also `serving_default`,
    for stock tools). A generative model, one with `incremental()`, or an
    `IncrementalPair` offers `prefill` and `step`: in one SavedModel or `.tflite`, and
    for ONNX in a folder with one graph each; weights are stored once.

    The artefact computes in float32 even if the model does not, because the
    converters take no half-precision graphs; its weights are the model's own.

    Args:
        model: Any built `keras.Model`, or an `IncrementalPair`.
        path: Where to write: `*.tflite`, `*.onnx`, or no suffix for a SavedModel
            folder. An artefact of the same format that stands there is replaced;
            anything else is not.
        format: `"saved_model"`, `"litert"` or `"onnx"`, where the suffix does not say.
        quantization: For LiteRT. None keeps float32; `"float16"` halves the weights;
            `"int8_dynamic"` stores the weights in 8 bits and computes activations as
            it goes; `"int8"` computes in 8 bits throughout, where LiteRT can, and
            needs `sample_inputs` to calibrate on.
        batch_size: Fixes axis 0 of every input. None leaves it open. The batch of
            `step` stays open where the format allows it, unless `num_beams` fixes it:
            beam search needs several rows for each row of the prompt.
        sequence_length: Fixes every other unknown axis, of all inputs or by input
            name. None leaves them open. A number leaves the target of an
            encoder-decoder one token, its start, to decode from. The state of `step`
            follows from `prefill`.
        max_length: Of a generative model: the most tokens that prompt and continuation
            have together, which is the length of its key/value caches. A step reads
            all of them, so a short one is faster. None is that of the model's
            `incremental()`: all its positions, or 256 where they have no end.
        num_beams: Of a generative model: fixes the batch of `step` at `batch_size` ×
            `num_beams`, for runtimes that need static shapes. `generate` then takes
            strategies with as many beams alone: `Beam(num_beams)`, or for 1 `Greedy()`
            and `Sample()`. None leaves it open.
        sample_inputs: Inputs to verify (and calibrate) with: a dictionary by input
            name, or what the model is called with. None makes some up, seeded. A
            model that is not functional needs them to say what its inputs are.
        tokenizer: A `WordPieceTokenizer` or `SentencePieceTokenizer` to put in front,
            for a SavedModel: `serve` then takes `text`, strings (B,), and
            `serve_pair`, where the model tells segments apart, `text` and
            `text_pair`. Rows are padded to the longest of a batch and cut at the
            model's positions; a `sequence_length` fixes both. What loads it needs
            tensorflow and tensorflow-text alone. `sample_inputs` are texts.
        tolerance: Largest error allowed. In float32 it is the difference of each
            value, absolute below 1 and relative above; None is 1e-4. Quantized it is
            the root mean square of the differences relative to that of the output;
            None is 0.01 for `"float16"`, 0.1 for `"int8_dynamic"`, 0.2 for `"int8"`.
        verify: Whether to run the artefact and compare. Without it an artefact may
            not even load.

    Returns:
        An `ExportReport`. Its `notes` say what was fixed or renamed.

    Raises:
        ValueError: An argument is wrong, or contradicts another.
        TypeError: `model` is no Keras model.
        ExportError: The model cannot be shipped so, the artefact disagrees with Keras,
            or the disk refused. Whatever stood at `path` still stands.
        ImportError: `keras-attn[export]` is not installed.
        KeyboardInterrupt: Ctrl-C, even where a converter swallows it. Whatever stood
            at `path` still stands.
    """
    _require_tensorflow()
    path = Path(path)
    format = format_for(path, format)
    _check_quantization(format, quantization, sample_inputs)
    check_sizes(batch_size, sequence_length)
    _check_beams(num_beams, batch_size)
    tolerance = TOLERANCES[quantization] if tolerance is None else tolerance
    check_target(path, format)
    if tokenizer is None:
        signatures = signatures_of(model, sample_inputs, max_length)
    else:
        signatures = with_tokenizer(model, tokenizer, format, sequence_length)
        sequence_length = None
    _check_generative(signatures, max_length=max_length, num_beams=num_beams)
    models = [signature.model for signature in signatures]
    prompt = signatures[0].prompt
    has_source = prompt not in (None, "token_ids")
    if has_source and isinstance(sequence_length, int):
        sequence_length = dict.fromkeys(signatures[0].inputs, sequence_length)
        for name in {prompt, MASKS.get(prompt)} & set(sequence_length):
            sequence_length[name] = 1
    sample = None
    if sample_inputs is not None:
        sample = samples.named(signatures[0], sample_inputs)
    notes = [note for signature in signatures for note in signature.notes]
    if computes_in_half(models):
        notes.append("computed in float32: the converters take no half precision")

    def attempt(functions: dict, specs: dict, place: Path) -> Measured | None:
        """Writes one artefact at `place` and compares it with Keras."""
        if format == "saved_model":
            saved_model.write(functions, models, place, tokenizer)
        elif format == "onnx":
            notes.extend(onnx.write(signatures, functions, place))
        else:
            feed = ()
            if quantization == "int8" and sample is not None:
                feed = samples.calibration(signatures, specs, sample)
            litert.write(functions, models, place, quantization, feed)
        metadata.write(format, place, signatures)
        if not verify:
            return None
        cases = samples.cases(signatures, specs, sample)
        runner = load_runner(place)
        measured = compare(runner, signatures, cases, tolerance, quantization)
        return _with_agreement(measured, runner, signatures, specs, sample)

    with inference_mode(models), replacing(path) as place, interrupts_kept():
        try:
            climbed = ladder.climb(
                signatures,
                partial(attempt, place=place),
                batch_size,
                sequence_length,
                sample,
                may_fix=format == "litert",
                unroll=quantization == "int8",
                num_beams=num_beams,
            )
        except RefusedError as error:
            raise _explained(error, models) from error
        operators, size = _operators(format, place), size_of(place)
    measured = climbed.result
    return ExportReport(
        path=str(path),
        format=format,
        quantization=quantization,
        bytes=size,
        operators=operators,
        inputs={name: _texts(infos(specs)) for name, specs in climbed.specs.items()},
        outputs={
            name: _texts(infos(function.structured_outputs))
            for name, function in climbed.functions.items()
        },
        max_abs_diff=measured.max_abs_diff if measured else None,
        tolerance=tolerance if measured else None,
        top1_agreement=measured.top1_agreement if measured else {},
        latency_ms=measured.latency_ms if measured else {},
        notes=(*notes, *climbed.notes),
    )


def verify(
    model: Any,
    path: str | PathLike,
    *,
    sample_inputs: Any = None,
    tokenizer: Any = None,
    sequence_length: int | None = None,
    tolerance: float | None = None,
    quantization: str | None = None,
) -> ExportReport:
    """Runs an existing artefact in its stock runtime and compares it with Keras.

    Args:
        model: The model it was exported from.
        path: The artefact.
        sample_inputs: As in `export`.
        tokenizer: That it was exported with.
        sequence_length: That it was exported with beside a tokenizer; without one the
            artefact says it itself.
        tolerance: As in `export`.
        quantization: What it was quantized to, which sets the default tolerance.

    Returns:
        An `ExportReport`.

    Raises:
        ValueError: An argument is wrong, or the artefact is of another model.
        ExportError: The artefact disagrees with Keras, with the numbers.
        ImportError: `keras-attn[export]` is not installed.
    """
    _require_tensorflow()
    path = Path(path)
    runner = load_runner(path)
    _check_quantization(runner.format, quantization, sample_inputs)
    tolerance = TOLERANCES[quantization] if tolerance is None else tolerance
    if tokenizer is None:
        is_pair = isinstance(model, IncrementalPair)
        max_length = None if is_pair else runner.max_length
        signatures = signatures_of(model, sample_inputs, max_length)
    else:
        signatures = with_tokenizer(model, tokenizer, runner.format, sequence_length)
    models = [signature.model for signature in signatures]
    specs = {s.name: _artefact_specs(s, runner) for s in signatures}
    sample = None
    if sample_inputs is not None:
        sample = samples.named(signatures[0], sample_inputs)
    with inference_mode(models):
        cases = samples.cases(signatures, specs, sample)
        try:
            measured = compare(runner, signatures, cases, tolerance, quantization)
            measured = _with_agreement(measured, runner, signatures, specs, sample)
        except ExportError as error:
            raise ExportError(f"{path.name}: {error}") from error
    return ExportReport(
        path=str(path),
        format=runner.format,
        quantization=quantization,
        bytes=size_of(path),
        operators=_operators(runner.format, path),
        inputs={name: _texts(info.inputs) for name, info in runner.signatures.items()},
        outputs={
            name: _texts(info.outputs) for name, info in runner.signatures.items()
        },
        max_abs_diff=measured.max_abs_diff,
        tolerance=tolerance,
        top1_agreement=measured.top1_agreement,
        latency_ms=measured.latency_ms,
    )


def _with_agreement(measured, runner, signatures, specs, sample) -> Measured:
    """Adds on how many of the caller's samples artefact and Keras choose the same."""
    if sample is None or len(signatures) > 1:
        return measured
    batches = samples.calibration(signatures, specs, sample, most=_AGREEMENT_ROWS)
    count = max(len(value) for value in sample.values())
    shares = top1_agreement(runner, signatures[0], batches, count)
    return replace(measured, top1_agreement=shares)


def _require_tensorflow() -> None:
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "Export needs Keras on TensorFlow: set KERAS_BACKEND=tensorflow and load "
            f"the model there. Received: backend={keras.backend.backend()!r}"
        )


def _check_quantization(
    format: str, quantization: str | None, sample_inputs: Any
) -> None:
    if quantization is None:
        return
    if quantization not in litert.QUANTIZATIONS:
        raise ValueError(
            f"`quantization` must be None or one of {litert.QUANTIZATIONS}. "
            f"Received: quantization={quantization!r}"
        )
    if format != "litert":
        raise ValueError(
            "`quantization` is for LiteRT (`.tflite`) alone. "
            f"Received: quantization={quantization!r}, format={format!r}"
        )
    if quantization == "int8" and sample_inputs is None:
        raise ValueError(
            '`sample_inputs` must be given for `quantization="int8"`, to calibrate on. '
            "Received: sample_inputs=None"
        )


def _check_beams(num_beams: int | None, batch_size: int | None) -> None:
    if num_beams is None:
        return
    check_positive("num_beams", num_beams)
    if batch_size is None:
        raise ValueError(
            "`num_beams` fixes the batch of `step` at `batch_size` × `num_beams`, so "
            f"give `batch_size` too. Received: num_beams={num_beams}, batch_size=None"
        )


def _check_generative(signatures: list[Signature], **arguments: int | None) -> None:
    if len(signatures) == 2 and signatures[1].name == STEP:
        return
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(
                f"`{name}` is for generative models, which have `prefill` and `step`; "
                f"leave it out for this one. Received: {name}={value}"
            )


def _explained(error: RefusedError, models: Iterable[keras.Model]) -> ExportError:
    """The refusal, with the layers it comes from and what may mend it."""
    layers = _layers_at(error.locations, models)
    text = str(error)
    if layers:
        text += ", in " + ", ".join(f"`{layer}`" for layer in layers)
    return ExportError(f"{text}. {error.mend}.")


def _layers_at(locations: Iterable[str], models: Iterable[keras.Model]) -> list[str]:
    """Layers by the name scopes they open, innermost first known, each once.

    A scope is `model/block/attention/StridedSlice@function`; TensorFlow appends a
    number to a scope that it opens again.
    """
    tops = {model.name for model in models}
    names = {layer.name for layer in unique_layers(models)} - tops
    found: dict[str, None] = {}
    for location in locations:
        for part in reversed(location.split("@")[0].split("/")):
            known = [n for n in (part, re.sub(r"_\d+$", "", part)) if n in names]
            if known:
                found[known[0]] = None
                break
    return list(found)


def _operators(format: str, path: Path) -> dict[str, int]:
    counters = {
        "saved_model": saved_model.operators,
        "litert": litert.operators,
        "onnx": onnx.operators,
    }
    try:
        return counters[format](path)
    # What three parsers say to a damaged file has no base class but this.
    except Exception as error:
        raise ExportError(
            f"{path} cannot be read, so it is damaged: {error!r}"
        ) from error


def _artefact_specs(signature: Signature, runner: Runner) -> Specs:
    """The shapes an artefact takes, once its names are those of the model."""
    info = runner.signatures.get(signature.name)
    held = {name: sorted(found.inputs) for name, found in runner.signatures.items()}
    if info is None or set(info.inputs) != set(signature.inputs):
        raise ValueError(
            f"`path` must hold the signature `{signature.name}` with the inputs "
            f"{sorted(signature.inputs)}; was it exported from this model? "
            f"Received: {held}"
        )
    return {
        name: tf.TensorSpec(info.inputs[name].shape, spec.dtype, name=name)
        for name, spec in signature.inputs.items()
    }


def _texts(tensors: Mapping[str, TensorInfo]) -> dict[str, str]:
    return {name: str(info) for name, info in tensors.items()}
