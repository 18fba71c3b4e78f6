"""`export` and `verify`.

To follow an export: signatures.py lists the entry points of a model, attempts.py traces
them at the requested shapes, formats/<format>.py writes them, and verification.py
compares the result with Keras. The modules that these call are named for what they do;
runner.py and runtimes/ run an artefact.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_attn.checks.arguments import check_boolean, check_positive
from keras_attn.decoding import IncrementalPair
from keras_attn.decoding.pair import MASKS
from keras_attn.docstrings.options import described_as
from keras_attn.export import samples
from keras_attn.export.attempts import Attempts, RequestedShapes
from keras_attn.export.errors import ExportError, RefusedError, reraising_interrupts
from keras_attn.export.formats import (
    FORMATS,
    Format,
    check_quantization,
    check_target,
    format_to_write,
)
from keras_attn.export.image_bytes import with_image_bytes
from keras_attn.export.inference import (
    computes_in_half,
    enlarged_by_products,
    inference_mode,
    is_discontinuous,
)
from keras_attn.export.integer_kernels import (
    check_integers,
    integers_for,
    notes_about_integers,
)
from keras_attn.export.operators import check_operators
from keras_attn.export.report import ExportReport
from keras_attn.export.runner import Runner, load_runner
from keras_attn.export.shapes import Specs, check_sizes
from keras_attn.export.signature_info import (
    STEP,
    SignatureInfo,
    TensorInfo,
    tensor_infos,
)
from keras_attn.export.signatures import Signature, TracedModel, signatures_of
from keras_attn.export.text import with_tokenizer
from keras_attn.export.verification import Measured, Verification
from keras_attn.files.reading import size_of
from keras_attn.files.writing import replacing
from keras_attn.kernels.runtime import require_tensorflow


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
    image_bytes: bool = False,
    tolerance: float | None = None,
    verify: bool = True,
) -> ExportReport:
    """Exports a Keras model, and verifies that the artefact gives the same outputs.

    A plain model has the signature `serve` (a SavedModel also has `serving_default`,
    for stock tools). A generative model, one with `incremental()`, or an
    `IncrementalPair` has `prefill` and `step`: in one SavedModel or `.tflite` file, and
    for ONNX in a folder with one graph each. Weights are stored once. Outputs that only
    training needs, such as an auxiliary head's (`training_outputs` of the model), are
    left out.

    The artefact computes in float32 even if the model does not, because the
    converters do not support half precision; the weights keep their values. Kernels of
    integers (`model.quantize`) stay integers in a SavedModel and in ONNX; LiteRT gets
    their numbers, to which `quantization` applies. The report's notes say what was
    done.

    Args:
        model: Any built `keras.Model`, or an `IncrementalPair`.
        path: Where to write: `*.tflite`, `*.onnx`, or no suffix for a SavedModel
            folder. An existing artefact of the same format is replaced; anything else
            is not.
        format: `"saved_model"`, `"litert"` or `"onnx"`. None = selected by the suffix.
        quantization: For LiteRT. None keeps float32; `"float16"` halves the weights;
            `"int8_dynamic"` stores the weights in 8 bits and quantizes activations at
            run time; `"int8"` computes in 8 bits throughout, where LiteRT can, and
            needs `sample_inputs` to calibrate on. For ONNX, if the model has kernels
            of integers: `"int8_dynamic"` quantizes activations at run time, and
            multiplies by the integers themselves, which is several times as fast for
            a token of a decoder; None computes in float32, and of int8 kernels the
            runtime makes float32 ones when it loads the file.
        batch_size: Fixes axis 0 of every input. None leaves it open. The batch of
            `step` stays open if the format allows it, unless `num_beams` fixes it:
            beam search needs several rows for each row of the prompt.
        sequence_length: Fixes every other unknown axis, for all inputs or by input
            name. None leaves them open. A number applies to the source of an
            encoder-decoder; its target then has one token, the start token. The state
            of `step` has the lengths of `prefill`.
        max_length: For a generative model: the maximum number of tokens in the prompt
            and its continuation, which is the length of its key/value caches. A step
            reads all of them, so shorter caches are faster. None is the default of
            `incremental()`: the number of positions, or 256 if it is unlimited.
        num_beams: For a generative model: fixes the batch of `step` at `batch_size` ×
            `num_beams`, for runtimes that need static shapes. `generate` then accepts
            only strategies with this number of beams: `Beam(num_beams)`, or for a value
            of 1, `Greedy()` and `Sample()`. None leaves it open.
        sample_inputs: Inputs to verify (and calibrate) with: a dictionary by input
            name, or what the model is called with. None = random inputs, with a fixed
            seed. Required if the model is not functional, to know its inputs.
        tokenizer: A `WordPieceTokenizer`, `SentencePieceTokenizer` or `CLIPTokenizer`
            to include, for a SavedModel: `serve` then takes `text`, strings (B,), and
            `serve_pair`, if the model has `segment_ids`, `text` and `text_pair`. Rows
            are padded to the longest of a batch (of SigLIP, to all positions) and
            truncated to its `max_length`, or the model's positions; a `sequence_length`
            fixes both. Loading it requires only tensorflow and tensorflow-text.
            `sample_inputs` are texts.
        image_bytes: Whether the artefact, a SavedModel, also decodes and preprocesses
            images: `serve` then takes `image_bytes`, strings (B,), the bytes of JPEG,
            PNG, BMP or GIF files of any size. The model's `preprocessing` says how; see
            `models.image_preprocessing`. For the other formats export
            `models.with_preprocessing(model)`.
        tolerance: Largest error allowed. In float32 it is the difference of each
            value, absolute below 1 and relative above; None is 1e-4. With max
            unpooling, Keras takes the locations of maxima that the artefact chose, if
            the maxima are equal up to this tolerance. For a quantized artefact it is
            the root mean square of the differences relative to the root mean square of
            the output; None is 0.01 for `"float16"`, 0.1 for `"int8_dynamic"`, 0.2 for
            `"int8"`.
        verify: Whether to run the artefact and compare it with Keras. Without
            verification, an artefact may not even load.

    Returns:
        An `ExportReport`. Its `notes` say what was fixed or renamed.

    Raises:
        ValueError: If an argument is wrong, or contradicts another.
        TypeError: If `model` is not a Keras model.
        ExportError: If the model cannot be exported with these arguments, the artefact
            disagrees with Keras, or it could not be written. `path` is unchanged.
        ImportError: If `keras-attn[export]` is not installed.
        KeyboardInterrupt: If Ctrl-C is pressed, even if a converter suppresses it.
            `path` is unchanged.
    """
    require_tensorflow("Export")
    path = Path(path)
    file_format = format_to_write(path, format)
    check_quantization(file_format, quantization, sample_inputs)
    check_sizes(batch_size, sequence_length)
    _check_beams(num_beams, batch_size)
    check_target(path, file_format)
    _check_image_bytes(
        image_bytes, tokenizer=tokenizer, sequence_length=sequence_length
    )
    if image_bytes:
        signatures = with_image_bytes(model, file_format)
    elif tokenizer is None:
        signatures = signatures_of(model, sample_inputs, max_length)
        sequence_length = _input_lengths(signatures[0], sequence_length)
    else:
        signatures = with_tokenizer(model, tokenizer, file_format, sequence_length)
        sequence_length = None  # The tokenizer truncates and pads.
    _check_generative(signatures, max_length=max_length, num_beams=num_beams)
    verification = Verification(signatures, sample_inputs, quantization, tolerance)
    models = [signature.model for signature in signatures]
    check_integers(file_format, quantization, models)
    shapes = RequestedShapes(
        batch_size,
        sequence_length,
        num_beams,
        sample=verification.sample or {},
        unroll=quantization == "int8",
    )
    attempts = Attempts(signatures, shapes, file_format.may_need_fixed_shapes)
    notes = [note for signature in signatures for note in signature.notes]
    notes += _notes_about(models)
    measured = None
    # In float32 and without fused kernels, which the converters do not support; to a
    # work folder, which is renamed to `path` at the end.
    with inference_mode(models), _replacing(path) as partial, reraising_interrupts():
        while True:
            try:
                with integers_for(file_format, models) as integers:
                    with _forms_for(file_format):
                        functions, specs = attempts.trace()
                    check_operators(file_format, signatures, functions)
                    calibration = ()
                    if quantization == "int8" and verification.sample is not None:
                        calibration = samples.calibration(
                            signatures, specs, verification.sample
                        )
                    traced = TracedModel(
                        signatures,
                        functions,
                        quantization,
                        calibration,
                        tokenizer,
                        integers,
                    )
                    format_notes = file_format.write(traced, partial)
                if verify:
                    measured = verification.run(
                        load_runner(partial), specs, file_format
                    )
                break
            # The converter, or the runtime in `load_runner` or `run`, does not support
            # an operator at these shapes.
            except RefusedError as error:
                attempts.make_more_static(error)  # Raises if nothing is left to fix.
        return _report(
            path,
            file_format,
            verification,
            {name: _info(specs[name], functions[name]) for name in functions},
            measured,
            artefact=partial,
            notes=(
                *notes,
                *notes_about_integers(models, file_format, quantization),
                *format_notes,
                *attempts.notes,
            ),
        )


@described_as(export)
def verify(
    model: Any,
    path: str | PathLike,
    *,
    sample_inputs: Any = None,
    tokenizer: Any = None,
    image_bytes: bool = False,
    sequence_length: int | None = None,
    tolerance: float | None = None,
    quantization: str | None = None,
) -> ExportReport:
    """Runs an existing artefact in its stock runtime and compares it with Keras.

    Args:
        model: The model that it was exported from.
        path: The artefact.
        tokenizer: The tokenizer that it was exported with.
        image_bytes: Whether it takes the bytes of image files.
        sequence_length: The `sequence_length` that it was exported with, if with a
            tokenizer; otherwise it is read from the artefact.
        quantization: Its quantization, which sets how the error is measured, and the
            default tolerance. None reads it from the artefact.

    Returns:
        An `ExportReport`.

    Raises:
        ValueError: If an argument is wrong, or the artefact belongs to a different
            model.
        ExportError: If the artefact disagrees with Keras; the message says by how much.
        ImportError: If `keras-attn[export]` is not installed.
    """
    require_tensorflow("Export")
    path = Path(path)
    runner = load_runner(path)
    file_format = FORMATS[runner.format]
    if quantization is None:
        quantization = _inspect(file_format.quantization_of, path)
    check_quantization(file_format, quantization, sample_inputs)
    _check_image_bytes(
        image_bytes, tokenizer=tokenizer, sequence_length=sequence_length
    )
    if image_bytes:
        signatures = with_image_bytes(model, file_format)
    elif tokenizer is None:
        is_pair = isinstance(model, IncrementalPair)
        max_length = None if is_pair else runner.max_length
        # An older artefact may have the outputs that only training needs.
        extra = set(getattr(model, "training_outputs", ()))
        has_extra = any(extra & set(x.outputs) for x in runner.signatures.values())
        signatures = signatures_of(model, sample_inputs, max_length, has_extra)
    else:
        signatures = with_tokenizer(model, tokenizer, file_format, sequence_length)
    specs = {s.name: _artefact_specs(s, runner) for s in signatures}
    verification = Verification(signatures, sample_inputs, quantization, tolerance)
    with inference_mode(signature.model for signature in signatures):
        try:
            measured = verification.run(runner, specs, file_format)
        except ExportError as error:
            raise ExportError(f"{path.name}: {error}") from error
    return _report(
        path, file_format, verification, runner.signatures, measured, artefact=path
    )


def _report(
    path: Path,
    format: Format,
    verification: Verification,
    signatures: Mapping[str, SignatureInfo],
    measured: Measured | None,
    *,
    artefact: Path,
    notes: tuple[str, ...] = (),
) -> ExportReport:
    """The report of an artefact, which is at `path` or will be moved there."""
    report = ExportReport(
        path=str(path),
        format=format.name,
        quantization=verification.quantization,
        bytes=size_of(artefact),
        operators=_inspect(format.count_operators, artefact),
        inputs={name: _texts(info.inputs) for name, info in signatures.items()},
        outputs={name: _texts(info.outputs) for name, info in signatures.items()},
        not_compared={name: list(info.outputs) for name, info in signatures.items()},
        notes=notes,
    )
    if measured is None:
        return report
    agreements, tokens = measured.agreements.items(), measured.next_tokens
    return replace(
        report,
        max_abs_diff=measured.max_abs_diff,
        error=None if measured.error is None else measured.error.value,
        error_measure=None if measured.error is None else measured.error.measure,
        tolerance=None if measured.error is None else verification.tolerance,
        not_compared=measured.not_compared,
        top1_agreement={name: each.share for name, each in agreements}
        | ({} if tokens is None else {"logits": tokens.agreement}),
        class_agreement={
            name: each.by_class for name, each in agreements if each.is_map
        },
        perplexity={} if tokens is None else tokens.perplexity,
        latency_ms=measured.latency_ms,
        notes=(*notes, *measured.notes),
    )


def _info(specs: Specs, function: Any) -> SignatureInfo:
    """The inputs and outputs of a concrete function."""
    return SignatureInfo(tensor_infos(specs), tensor_infos(function.structured_outputs))


def _notes_about(models: list) -> list[str]:
    """What the report says about the models themselves."""
    notes = []
    if computes_in_half(models):
        notes.append(
            "computes in float32: the converters do not support half precision"
        )
    if is_discontinuous(models):
        notes.append(
            "single values may differ: if two maxima are equal up to rounding, the "
            "artefact may choose a different one from Keras; for the comparison, Keras "
            "uses the artefact's choices"
        )
    return notes


def _forms_for(format: Format) -> contextlib.AbstractContextManager[None]:
    """Within this block models are traced in the forms that the format runs fastest."""
    return (
        enlarged_by_products()
        if format.enlarges_by_products
        else contextlib.nullcontext()
    )


def _input_lengths(
    signature: Signature, sequence_length: int | Mapping[str, int] | None
) -> int | Mapping[str, int] | None:
    """Applies one number to the source of an encoder-decoder, 1 to its target."""
    if signature.prompt in (None, "token_ids") or not isinstance(sequence_length, int):
        return sequence_length
    lengths = dict.fromkeys(signature.inputs, sequence_length)
    for name in {signature.prompt, MASKS.get(signature.prompt)} & set(lengths):
        lengths[name] = 1
    return lengths


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """`replacing`, with errors of the file system as `ExportError`."""
    try:
        with replacing(path) as partial:
            yield partial
    except OSError as error:
        raise ExportError(
            f"`path` could not be written ({error.strerror or error}); nothing was "
            f"left on disk. Received: path={str(path)!r}"
        ) from error


def _check_beams(num_beams: int | None, batch_size: int | None) -> None:
    if num_beams is None:
        return
    check_positive("num_beams", num_beams)
    if batch_size is None:
        raise ValueError(
            "`num_beams` fixes the batch of `step` at `batch_size` × `num_beams`, so "
            f"pass `batch_size` too. Received: num_beams={num_beams}, batch_size=None"
        )


def _check_image_bytes(image_bytes: bool, **others: Any) -> None:
    if not check_boolean("image_bytes", image_bytes):
        return
    for name, value in others.items():
        if value is not None:
            raise ValueError(
                f"`{name}` must be None if `image_bytes` is True: there is no text. "
                f"Received: {name}={value!r}"
            )


def _check_generative(signatures: list[Signature], **arguments: int | None) -> None:
    if len(signatures) == 2 and signatures[1].name == STEP:
        return
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(
                f"`{name}` is only for generative models, which have `prefill` and "
                f"`step`; leave it out. Received: {name}={value}"
            )


def _inspect(read: Callable[[Path], Any], path: Path) -> Any:
    """What a format reads from an artefact."""
    try:
        return read(path)
    # For damaged files, the parsers raise errors of every type.
    except Exception as error:
        raise ExportError(
            f"{path} cannot be read, so it is damaged: {error!r}"
        ) from error


def _artefact_specs(signature: Signature, runner: Runner) -> Specs:
    """The shapes of an artefact's inputs; raises if they are not the model's."""
    info = runner.signatures.get(signature.name)
    if info is None or set(info.inputs) != set(signature.inputs):
        inputs = {name: sorted(info.inputs) for name, info in runner.signatures.items()}
        raise ValueError(
            f"`path` must have the signature `{signature.name}` with the inputs "
            f"{sorted(signature.inputs)}; was it exported from this model? "
            f"Received: {inputs}"
        )
    return {
        name: tf.TensorSpec(info.inputs[name].shape, spec.dtype, name=name)
        for name, spec in signature.inputs.items()
    }


def _texts(tensors: Mapping[str, TensorInfo]) -> dict[str, str]:
    return {name: str(info) for name, info in tensors.items()}
