"""Traces a model, fixing more and more shapes until a runtime accepts it.

LiteRT supports most models at any shape, some only at a known batch size (recurrent
layers, shifted windows), a few only at known lengths. What it rejects is known only
after trying, so shapes are fixed in stages, and only where something was rejected.
"""

import enum
import re
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_attn.export.errors import LEAVE_OUT, ExportError, RefusedError
from keras_attn.export.inference import (
    forms_of_files,
    unique_layers,
    unrolled,
)
from keras_attn.export.samples import Inputs
from keras_attn.export.shapes import (
    Specs,
    batch_of,
    fixed,
    fixed_like,
    open_batch,
    open_images,
    open_lengths,
)
from keras_attn.export.signature_info import PREFILL, STEP
from keras_attn.export.signatures import Signature

# Layers of Keras that prepare data, which a pipeline may do as well.
_PREPROCESSING = (
    keras.layers.CategoryEncoding,
    keras.layers.Discretization,
    keras.layers.HashedCrossing,
    keras.layers.Hashing,
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)


class Sizes(enum.Flag):
    """Which unknown sizes of a signature are fixed."""

    NONE = 0
    BATCH = enum.auto()
    LENGTHS = enum.auto()


@dataclass(frozen=True)
class RequestedShapes:
    """The arguments of `export` that decide about shapes.

    Attributes:
        batch_size: See `export`.
        sequence_length: See `export`.
        num_beams: See `export`.
        sample: The caller's inputs; their lengths are used if lengths must be fixed.
        unroll: Whether to unroll recurrent layers if all lengths are known.
    """

    batch_size: int | None = None
    sequence_length: int | Mapping[str, int] | None = None
    num_beams: int | None = None
    sample: Inputs = field(default_factory=dict)
    unroll: bool = False


class Attempt(NamedTuple):
    """A traced model.

    Attributes:
        functions: Its concrete functions, by signature name: keyword arguments in, a
            dictionary out.
        specs: Their inputs, by signature name.
    """

    functions: dict[str, Any]
    specs: dict[str, Specs]


class Attempts:
    """The attempts to export a model, the first at the requested shapes.

    Example:
        while True:
            functions, specs = attempts.trace()
            try:
                ...  # Write them, load the artefact.
                break
            except RefusedError as error:
                attempts.make_more_static(error)

    Args:
        signatures: `[serve]` or `[prefill, step]`.
        shapes: The shapes to begin with.
        may_make_static: Whether to fix any sizes that were not requested.

    Attributes:
        notes: What had to be fixed, and why.
    """

    def __init__(
        self,
        signatures: list[Signature],
        shapes: RequestedShapes,
        may_make_static: bool,
    ):
        self._signatures = signatures
        self._shapes = shapes
        self._may_make_static = may_make_static
        self._fixed = {each.name: Sizes.NONE for each in signatures}
        self._specs: dict[str, Specs] = {}
        self.notes: list[str] = []

    def trace(self) -> Attempt:
        """Traces every signature at the shapes of this attempt."""
        attempt = _trace_all(self._signatures, self._fixed, self._shapes)
        self._specs = attempt.specs
        return attempt

    def make_more_static(self, error: RefusedError) -> None:
        """Chooses the sizes that the next attempt fixes, given what this one rejected.

        Raises:
            ExportError: If nothing is left to fix; the message names the rejected
                layers.
        """
        note = None
        if self._may_make_static and not error.at_any_shape:
            refused = error.signatures or tuple(self._fixed)
            note = _make_more_static(refused, self._fixed, self._specs, self._shapes)
            if note is None:
                error.advice = _advice_about_sizes(self._specs) or error.advice
        if note is None:
            raise _with_layers(error, [x.model for x in self._signatures]) from error
        self.notes.append(f"{note}: {error}")


def _trace_all(
    signatures: list[Signature], fixes: dict[str, Sizes], shapes: RequestedShapes
) -> Attempt:
    """Traces each signature, with the sizes that are fixed for it."""
    functions, specs = {}, {}
    for signature in signatures:
        name = signature.name
        if name == STEP:
            state = {**specs[PREFILL], **functions[PREFILL].structured_outputs}
            specs[name] = _step_specs(
                signature, state, specs[PREFILL], fixes[name], shapes
            )
        else:
            specs[name] = _prompt_specs(signature, fixes[name], shapes)
        unroll = shapes.unroll and not open_lengths(specs[name])
        with unrolled([signature.model]) if unroll else nullcontext():
            functions[name] = trace(signature, specs[name])
    return Attempt(functions, specs)


def _prompt_specs(signature: Signature, fixes: Sizes, shapes: RequestedShapes) -> Specs:
    """Inputs of `serve` or `prefill`."""
    batch = shapes.batch_size or (1 if Sizes.BATCH in fixes else None)
    specs = fixed(signature.inputs, None, shapes.sequence_length)
    if Sizes.LENGTHS in fixes:
        specs = fixed_like(specs, _sample_shapes(shapes))
    return fixed(specs, batch)


def _step_specs(
    signature: Signature,
    state: Mapping[str, Any],
    prompt: Specs,
    fixes: Sizes,
    shapes: RequestedShapes,
) -> Specs:
    """Inputs of `step`: its state has the lengths that `prefill` takes and returns."""
    rows = batch_of(prompt) or 1
    batch = rows if Sizes.BATCH in fixes else None
    if shapes.num_beams:
        batch = rows * shapes.num_beams
    state_shapes = {name: value.shape for name, value in state.items()}
    return fixed(fixed_like(signature.inputs, state_shapes), batch)


def trace(signature: Signature, specs: Specs):
    """Traces one signature at the given shapes.

    A Keras model that is called on a tensor of static shape computes with static
    shapes, so it need not be cloned to fix them.

    Args:
        signature: What to call.
        specs: Shape and dtype of each input, by name.

    Returns:
        A concrete function, keyword arguments in and a dictionary out.
    """

    def run(**tensors):
        return signature(tensors)

    run.__name__ = signature.name
    # A new `tf.function` each time: one that was traced at an unknown size would
    # return that trace for a known size.
    function = tf.function(run, autograph=False)
    with forms_of_files():
        return function.get_concrete_function(**specs)


def _make_more_static(
    refused: tuple[str, ...],
    fixes: dict[str, Sizes],
    specs: dict[str, Specs],
    shapes: RequestedShapes,
) -> str | None:
    """Fixes more sizes of the first rejected signature that has any left.

    Returns:
        What it fixes, as a note for the report, or None.
    """
    for name in refused:
        if open_batch(specs[name]):
            fixes[name] |= Sizes.BATCH
            batch = (batch_of(specs[PREFILL]) or 1) if name == STEP else 1
            return f"`{name}` takes a batch of {batch}"
        # A state has the lengths of `prefill`.
        source = PREFILL if name == STEP else name
        can_fix = Sizes.LENGTHS not in fixes[source] and open_lengths(specs[source])
        if can_fix and _sample_shapes(shapes):
            fixes[source] |= Sizes.LENGTHS
            return f"`{source}` takes the lengths of `sample_inputs`"
    return None


def _sample_shapes(shapes: RequestedShapes) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in shapes.sample.items()}


def _advice_about_sizes(specs: dict[str, Specs]) -> str | None:
    """What the caller may do about a refusal, if sizes are unknown."""
    unknown = sorted(
        {name for inputs in specs.values() for name in open_lengths(inputs)}
    )
    if not unknown:
        return None
    names = ", ".join(f"`{name}`" for name in unknown)
    if any(open_images(inputs) for inputs in specs.values()):
        return (
            f"Rows and columns of {names} are unknown: pass `sample_inputs`, images of "
            "the size to ship, or, if they are square, `sequence_length`"
        )
    return (
        f"Sizes of {names} are unknown: pass `sequence_length`, or `sample_inputs` of "
        "the lengths to ship"
    )


def _with_layers(error: RefusedError, models: Iterable[keras.Model]) -> ExportError:
    """The refusal with the names of the layers, and what the caller may try."""
    models = list(models)
    names = _layers_at(error.locations, models)
    text, advice = str(error), error.advice
    if names:
        text += ", in " + ", ".join(f"`{name}`" for name in names)
        layers = [layer for layer in unique_layers(models) if layer.name in names]
        if all(isinstance(layer, _PREPROCESSING) for layer in layers):
            advice = LEAVE_OUT
        elif any(layer.compute_dtype == "float64" for layer in layers):
            advice = 'Build it in float32 (`dtype="float32"`), or export a SavedModel'
    return ExportError(f"{text}. {advice}.")


def _layers_at(locations: Iterable[str], models: Iterable[keras.Model]) -> list[str]:
    """The innermost layer of each name scope, each once.

    A scope is `model/block/attention/StridedSlice@function`; TensorFlow appends a
    number to a scope that is opened again.
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
