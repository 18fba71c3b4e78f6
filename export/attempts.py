"""Traces a model, fixing more and more shapes until a runtime accepts it.

LiteRT supports most models at any shape, some only at a known batch size (recurrent
layers, shifted windows), a few only at known lengths. What it rejects is known only
after trying, so shapes are fixed in stages, and only where something was rejected.
"""

import contextlib
import enum
import re
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_attn.export.errors import LEAVE_OUT, ExportError, RefusedError
from keras_attn.export.operators import check_operators
from keras_attn.export.plan import Plan
from keras_attn.export.portable_layers import unrolled
from keras_attn.export.portable_operations import (
    enlarged_by_products,
    portable_operations,
)
from keras_attn.export.quantized_weights import integers_for
from keras_attn.export.samples import calibration
from keras_attn.export.shapes import Specs
from keras_attn.export.signature_info import PREFILL, STEP
from keras_attn.export.signatures import Signature, TracedModel

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
    """The unknown sizes of a signature that are fixed."""

    NONE = 0
    BATCH = enum.auto()
    LENGTHS = enum.auto()


class Attempts:
    """The attempts to export a model, the first at the requested shapes.

    Example:
        while True:
            try:
                with attempts.traced() as traced:
                    ...  # Write it, load the artefact.
                break
            except RefusedError as error:
                attempts.make_more_static(error)

    Args:
        plan: What to export.

    Attributes:
        notes: What had to be fixed, and why.
    """

    def __init__(self, plan: Plan):
        self._plan = plan
        self._fixed = {each.name: Sizes.NONE for each in plan.signatures}
        self._specs: dict[str, Specs] = {}
        self.notes: list[str] = []

    @contextlib.contextmanager
    def traced(self) -> Iterator[TracedModel]:
        """Traces every signature at the shapes of this attempt.

        Within this block the models have kernels that the format can write. They are
        traced in operations that files can hold (portable_operations.py), `prefill`
        before `step`, whose state has its lengths; operators that the format has no
        form of are refused; and for int8 the samples to calibrate on are chosen.

        Raises:
            RefusedError: If the format has no form of an operator.
        """
        plan = self._plan
        with integers_for(plan.format, plan.models) as integers:
            products = plan.format.enlarges_by_products
            with enlarged_by_products() if products else contextlib.nullcontext():
                functions = self._trace()
            check_operators(plan.format, plan.signatures, functions)
            cases = ()
            if plan.quantization == "int8" and plan.sample is not None:
                cases = calibration(plan.signatures, self._specs, plan.sample)
            yield TracedModel(
                plan.signatures,
                functions,
                self._specs,
                plan.quantization,
                cases,
                plan.tokenizer,
                integers,
                plan.description,
            )

    def _trace(self) -> dict[str, Any]:
        """The concrete function of each signature, with the sizes fixed for it."""
        functions, specs = {}, {}
        for signature in self._plan.signatures:
            name = signature.name
            specs[name] = self._specs_of(signature, specs, functions)
            # LiteRT cannot calibrate a loop.
            unroll = self._plan.quantization == "int8" and not specs[name].open_lengths
            with unrolled([signature.model]) if unroll else contextlib.nullcontext():
                functions[name] = trace(signature, specs[name])
        self._specs = specs
        return functions

    def _specs_of(
        self, signature: Signature, specs: dict[str, Specs], functions: dict[str, Any]
    ) -> Specs:
        """The inputs of a signature, given what `prefill` takes and returns."""
        plan, fixes = self._plan, self._fixed[signature.name]
        if signature.name != STEP:
            batch = plan.batch_size or (1 if Sizes.BATCH in fixes else None)
            like = plan.sample if Sizes.LENGTHS in fixes else None
            return signature.inputs.fixed(batch, plan.sequence_length, like)
        rows = specs[PREFILL].batch or 1
        batch = rows if Sizes.BATCH in fixes else None
        if plan.num_beams:
            batch = rows * plan.num_beams
        # The state of `step` has the lengths of `prefill`.
        state = {**specs[PREFILL], **functions[PREFILL].structured_outputs}
        return signature.inputs.fixed(batch, like=state)

    def make_more_static(self, error: RefusedError) -> None:
        """Chooses the sizes that the next attempt fixes, given what this one rejected.

        Raises:
            ExportError: If nothing is left to fix; the message names the rejected
                layers.
        """
        note = None
        if self._plan.format.may_need_fixed_shapes and not error.at_any_shape:
            note = self._fix_more(error.signatures or tuple(self._fixed))
            if note is None:
                error.advice = _advice_about_sizes(self._specs) or error.advice
        if note is None:
            raise _with_layers(error, self._plan) from error
        self.notes.append(f"{note}: {error}")

    def _fix_more(self, refused: tuple[str, ...]) -> str | None:
        """Fixes more sizes of the first rejected signature that has any left.

        Returns:
            What it fixes, as a note for the report, or None.
        """
        for name in refused:
            if self._specs[name].has_open_batch:
                self._fixed[name] |= Sizes.BATCH
                batch = (self._specs[PREFILL].batch or 1) if name == STEP else 1
                return f"`{name}` takes a batch of {batch}"
            # A state has the lengths of `prefill`.
            source = PREFILL if name == STEP else name
            is_fixed = Sizes.LENGTHS in self._fixed[source]
            has_open = not is_fixed and self._specs[source].open_lengths
            if has_open and self._plan.sample:
                self._fixed[source] |= Sizes.LENGTHS
                return f"`{source}` takes the lengths of `sample_inputs`"
        return None


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
    with portable_operations():
        return function.get_concrete_function(**specs)


def _advice_about_sizes(specs: dict[str, Specs]) -> str | None:
    """Advice to the caller after a refusal, if sizes are unknown."""
    unknown = sorted(
        {name for inputs in specs.values() for name in inputs.open_lengths}
    )
    if not unknown:
        return None
    names = ", ".join(f"`{name}`" for name in unknown)
    if any(inputs.open_images for inputs in specs.values()):
        return (
            f"Rows and columns of {names} are unknown: pass `sample_inputs`, images of "
            "the size to ship, or, if they are square, `sequence_length`"
        )
    return (
        f"Sizes of {names} are unknown: pass `sequence_length`, or `sample_inputs` of "
        "the lengths to ship"
    )


def _with_layers(error: RefusedError, plan: Plan) -> ExportError:
    """The refusal with the names of the layers, and what the caller may try."""
    names = _layers_at(error.locations, plan)
    text, advice = str(error), error.advice
    if names:
        text += ", in " + ", ".join(f"`{name}`" for name in names)
        layers = [layer for layer in plan.layers if layer.name in names]
        if all(isinstance(layer, _PREPROCESSING) for layer in layers):
            advice = LEAVE_OUT
        elif any(layer.compute_dtype == "float64" for layer in layers):
            advice = 'Build it in float32 (`dtype="float32"`), or export a SavedModel'
    return ExportError(f"{text}. {advice}.")


def _layers_at(locations: Iterable[str], plan: Plan) -> list[str]:
    """The innermost layer of each name scope, each once.

    A scope is `model/block/attention/StridedSlice@function`; TensorFlow appends a
    number to a scope that is opened again.
    """
    tops = {model.name for model in plan.models}
    names = {layer.name for layer in plan.layers} - tops
    found: dict[str, None] = {}
    for location in locations:
        for part in reversed(location.split("@")[0].split("/")):
            known = [n for n in (part, re.sub(r"_\d+$", "", part)) if n in names]
            if known:
                found[known[0]] = None
                break
    return list(found)
