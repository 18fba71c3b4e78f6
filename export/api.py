"""`export` and `verify`.

To follow an export: here all is decided and checked, in a `Plan` with the signatures,
the entry points of the model: `model(inputs, training=False)`, with named tensors in
and out, outputs in float32. Then attempts.py traces them at the requested shapes, open
sizes first; if a runtime refuses, it fixes the batch at 1, then the lengths at those of
`sample_inputs`; formats/<format>.py writes them; and verification.py compares the
result with Keras on the CPU, with the formulas at its head. Without `sample_inputs` the
inputs are normal numbers, small ids and masks, of two sizes if sizes are open. The
modules that these call are named for what they do, such as portable_layers.py, which
makes layers compute in float32 and without fused kernels, as the converters need;
runner.py and runtimes/ run an artefact.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_attn.checks.arguments import (
    check_at_least_zero,
    check_boolean,
    check_positive,
)
from keras_attn.decoding import IncrementalPair
from keras_attn.decoding.pair import MASKS
from keras_attn.docstrings.descriptions import described_as
from keras_attn.export import samples
from keras_attn.export.attempts import Attempts
from keras_attn.export.description import Description, describe
from keras_attn.export.differences import TOLERANCES
from keras_attn.export.errors import ExportError, RefusedError, reraising_interrupts
from keras_attn.export.example import write_example
from keras_attn.export.formats import (
    FORMATS,
    Format,
    check_quantization,
    check_target,
    format_to_write,
)
from keras_attn.export.image_bytes import check_format_of_images, with_image_bytes
from keras_attn.export.plan import Plan
from keras_attn.export.portable_layers import portable_layers
from keras_attn.export.quantized_weights import about_integers
from keras_attn.export.report import ExportReport
from keras_attn.export.runner import Runner, load_runner
from keras_attn.export.shapes import Specs, check_sizes
from keras_attn.export.signature_info import STEP, SignatureInfo, TensorInfo
from keras_attn.export.signatures import Signature, get_signatures
from keras_attn.export.switches import about_choices
from keras_attn.export.text import check_tokenizer, with_tokenizer
from keras_attn.export.verification import Measured, compare
from keras_attn.files.reading import get_file_size
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
    converters do not support half precision; the weights keep their values. Quantized
    weights (`model.quantize`) stay integers in a SavedModel and in ONNX; LiteRT gets
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
            needs `sample_inputs` to calibrate on. For ONNX, if the model has quantized
            weights: `"int8_dynamic"` quantizes activations at run time, and multiplies
            by the integers themselves, which is several times as fast for a token of a
            decoder; None computes in float32, and of int8 kernels the runtime makes
            float32 ones when it loads the file.
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
    signatures = _signatures(
        model,
        file_format,
        sample_inputs,
        max_length,
        tokenizer=tokenizer,
        image_bytes=image_bytes,
        sequence_length=sequence_length,
    )
    _check_generative(signatures, max_length=max_length, num_beams=num_beams)
    if tokenizer is None:
        sequence_length = _input_lengths(signatures[0], sequence_length)
    else:
        sequence_length = None  # The tokenizer truncates and pads.
    description, description_notes = describe(model, has_pixels=not image_bytes)
    plan = Plan(
        file_format,
        signatures,
        quantization,
        _tolerance(tolerance, quantization),
        samples.named(signatures[0], sample_inputs),
        tokenizer,
        batch_size,
        sequence_length,
        num_beams,
        description,
    )
    signature_notes = [note for signature in signatures for note in signature.notes]
    layer_notes = [
        *about_choices(plan.layers),
        *about_integers(plan.layers, file_format, quantization),
        *description_notes,
    ]
    measured = None
    # In float32 and without fused kernels, which the converters do not support; to a
    # work folder, which is renamed to `path` at the end.
    with (
        portable_layers(plan.models) as precision_notes,
        _replacing(path) as partial,
        reraising_interrupts(),
    ):
        notes = (*signature_notes, *precision_notes, *layer_notes)
        attempts = Attempts(plan)
        while True:
            try:
                with attempts.traced() as traced:
                    format_notes = file_format.writer.write(traced, partial)
                if verify:
                    measured = compare(plan, load_runner(partial), traced.specs)
                break
            # The converter, or the runtime in `load_runner` or `compare`, does not
            # support an operator at these shapes.
            except RefusedError as error:
                attempts.make_more_static(error)  # Raises if nothing is left to fix.
        return _report(
            plan,
            path,
            traced.infos,
            measured,
            notes=(*notes, *format_notes, *attempts.notes),
            artefact=partial,
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
        quantization = _inspect(file_format.read_quantization, path)
    check_quantization(file_format, quantization, sample_inputs)
    signatures = _signatures(
        model,
        file_format,
        sample_inputs,
        None if isinstance(model, IncrementalPair) else runner.max_length,
        tokenizer=tokenizer,
        image_bytes=image_bytes,
        sequence_length=sequence_length,
    )
    specs = {each.name: _artefact_specs(each, runner) for each in signatures}
    plan = Plan(
        file_format,
        signatures,
        quantization,
        _tolerance(tolerance, quantization),
        samples.named(signatures[0], sample_inputs),
        description=Description(runner.class_names, runner.preprocessing),
    )
    with portable_layers(plan.models):
        try:
            measured = compare(plan, runner, specs)
        except ExportError as error:
            raise ExportError(f"{path.name}: {error}") from error
    return _report(plan, path, runner.signatures, measured, artefact=path)


def _signatures(
    model: Any,
    format: Format,
    sample_inputs: Any,
    max_length: int | None,
    *,
    tokenizer: Any,
    image_bytes: bool,
    sequence_length: int | Mapping[str, int] | None,
) -> list[Signature]:
    """The signatures of a model, from texts or the bytes of images if asked for."""
    if check_boolean("image_bytes", image_bytes):
        others = {"tokenizer": tokenizer, "sequence_length": sequence_length}
        for name, value in others.items():
            if value is not None:
                raise ValueError(
                    f"`{name}` must be None if `image_bytes` is True, which takes "
                    f"images. Received: {name}={value!r}"
                )
        check_format_of_images(format)
    if tokenizer is not None:
        check_tokenizer(tokenizer, format, model)
    # Texts and files are not inputs of the model itself.
    is_own = tokenizer is None and not image_bytes
    signatures = get_signatures(model, sample_inputs if is_own else None, max_length)
    if image_bytes:
        return [with_image_bytes(signatures[0], model)]
    if tokenizer is not None:
        return with_tokenizer(signatures[0], model, tokenizer, sequence_length)
    return signatures


def _report(
    plan: Plan,
    path: Path,
    signatures: Mapping[str, SignatureInfo],
    measured: Measured | None,
    *,
    artefact: Path,
    notes: tuple[str, ...] = (),
) -> ExportReport:
    """The report of an artefact, which is at `path` or will be moved there."""
    report = ExportReport(
        path=str(path),
        format=plan.format.name,
        quantization=plan.quantization,
        bytes=get_file_size(artefact),
        operators=_inspect(plan.format.writer.count_operators, artefact),
        inputs={name: _texts(info.inputs) for name, info in signatures.items()},
        outputs={name: _texts(info.outputs) for name, info in signatures.items()},
        not_compared={name: list(info.outputs) for name, info in signatures.items()},
        notes=notes,
        example=write_example(
            str(path),
            plan.signatures[0],
            signatures[plan.signatures[0].name],
            plan.description,
        ),
    )
    if measured is None:
        return report
    agreements, tokens = measured.agreements.items(), measured.next_tokens
    return replace(
        report,
        max_abs_diff=measured.max_abs_diff,
        error=None if measured.error is None else measured.error.value,
        error_measure=None if measured.error is None else measured.error.measure,
        tolerance=None if measured.error is None else plan.tolerance,
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


def _tolerance(tolerance: float | None, quantization: str | None) -> float:
    """The tolerance, with its default."""
    if tolerance is None:
        tolerance = TOLERANCES[quantization]
    return check_at_least_zero("tolerance", tolerance)


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
    """The description that a format reads from an artefact."""
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
    return Specs(
        {
            name: tf.TensorSpec(info.inputs[name].shape, spec.dtype, name=name)
            for name, spec in signature.inputs.items()
        }
    )


def _texts(tensors: Mapping[str, TensorInfo]) -> dict[str, str]:
    return {name: str(info) for name, info in tensors.items()}
