"""Signatures: the entry points of an artefact, derived from a Keras model.

Shapes: axis 0 of every input is the batch; None is an unknown size.
"""

import inspect
import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_attn.checks.indices import IndexRange, index_range, length_range
from keras_attn.decoding.pair import IncrementalPair
from keras_attn.export.description import Description
from keras_attn.export.shapes import Specs
from keras_attn.export.signature_info import (
    PREFILL,
    SERVE,
    STEP,
    SignatureInfo,
    as_array,
    tensor_infos,
)
from keras_attn.layers.adaptation.quantized import QuantizedKernel
from keras_attn.models.parts.functional import (
    input_structure,
    is_declared,
    output_structure,
    without_training_outputs,
)

_HALF_PRECISION = (tf.float16, tf.bfloat16)


@dataclass(frozen=True)
class Signature:
    """One entry point: named tensors in, named tensors out.

    Attributes:
        name: `serve`, `prefill` or `step`.
        model: The Keras model that it calls.
        inputs: Shape and dtype of each input as Keras declares it, by name.
        arrange: Packs named tensors into the structure that the model is called with.
        name_outputs: Maps the model's outputs to a dictionary by name.
        notes: Changes for the report, such as renamed inputs.
        prompt: For the `prefill` of an encoder-decoder: the input that holds the first
            tokens of the target.
        index_ranges: For inputs that index a table (token ids, positions), by name:
            the smallest index and the first one that is too large.
        length_ranges: The same for the length of an input, its axis 1, if the model
            limits it.
        structure: The names of the inputs, in the structure that the model is called
            with; None if it is called with a dictionary of these names.
    """

    name: str
    model: keras.Model
    inputs: Specs
    arrange: Callable[[dict], Any]
    name_outputs: Callable[[Any], dict]
    notes: tuple[str, ...] = ()
    prompt: str | None = None
    index_ranges: dict[str, IndexRange] = field(default_factory=dict)
    length_ranges: dict[str, IndexRange] = field(default_factory=dict)
    structure: Any = None

    def __call__(self, tensors: Mapping[str, Any]) -> dict:
        """Calls the model in inference mode; half-precision outputs become float32."""
        inputs = {name: tensors[name] for name in self.inputs}
        outputs = self.name_outputs(self.model(self.arrange(inputs), training=False))
        if not outputs:
            raise ValueError(
                "`model` must return at least one tensor. Received: "
                f"model={self.model!r}, which returns none"
            )
        return {name: _full_precision(tensor) for name, tensor in outputs.items()}

    def reference(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Keras' outputs, which an artefact is compared with.

        Computed on the CPU: a GPU's float32 is commonly TF32.
        """
        with tf.device("/CPU:0"):
            outputs = self({k: tf.convert_to_tensor(v) for k, v in inputs.items()})
        return {name: as_array(tensor) for name, tensor in outputs.items()}


@dataclass(frozen=True)
class TracedModel:
    """A traced model, which a format writes to disk.

    Attributes:
        signatures: `[serve]`, `[serve, serve_pair]` or `[prefill, step]`.
        functions: Concrete function of each signature, by name; keyword arguments in,
            a dictionary out.
        specs: Their inputs, by signature name.
        quantization: One of the format's quantizations, or None.
        calibration: `(signature name, inputs)` of representative samples.
        tokenizer: Tokenizer that is called in the functions, if any.
        integers: Of variables that have taken the place of integers in the model: the
            integers, by the id of the variable.
        description: Names of classes and preprocessing, for the metadata.
    """

    signatures: list[Signature]
    functions: dict[str, Any]
    specs: dict[str, Specs]
    quantization: str | None = None
    calibration: Iterable[tuple[str, dict]] = ()
    tokenizer: Any = None
    integers: Mapping[int, QuantizedKernel] = field(default_factory=dict)
    description: Description = Description()

    @property
    def infos(self) -> dict[str, SignatureInfo]:
        """The inputs and outputs of each signature, by its name."""
        return {
            name: SignatureInfo(
                tensor_infos(self.specs[name]),
                tensor_infos(function.structured_outputs),
            )
            for name, function in self.functions.items()
        }


def get_signatures(
    model: Any,
    sample_inputs: Any = None,
    max_length: int | None = None,
) -> list[Signature]:
    """Returns the signatures of a model.

    Args:
        model: A Keras model, a generative one (it has `incremental()`), or an
            `IncrementalPair`.
        sample_inputs: Inputs of a model that does not declare any.
        max_length: For a generative model: the length of its caches. None = the
            model's default.

    Returns:
        `[serve]`, or `[prefill, step]`.

    Raises:
        TypeError: If `model` is not a Keras model.
        ValueError: If `model` is a pair with a different `max_length`.
    """
    pair = get_pair(model, max_length)
    if pair is not None:
        prefill = _declared(PREFILL, pair.prefill)
        if pair.prompt != "token_ids":
            prefill = replace(prefill, prompt=pair.prompt)
        return [prefill, _declared(STEP, pair.step)]
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a `keras.Model` or a `keras_attn.decoding."
            f"IncrementalPair`. Received: model={model!r}"
        )
    _check_call(model)
    if sample_inputs is not None and not model.built:
        model(keras.tree.map_structure(tf.convert_to_tensor, sample_inputs))
    if is_declared(model):
        kept = without_training_outputs(model)
        serve = _declared(SERVE, kept)
        if kept is model:
            return [serve]
        names = ", ".join(f"`{name}`" for name in model.training_outputs)
        note = f"left out, because only training needs it: {names}"
        return [replace(serve, notes=(*serve.notes, note))]
    return [_from_sample(SERVE, model, sample_inputs)]


def _check_call(model: keras.Model) -> None:
    """Raises if a model is called with several arguments that it needs."""
    needed = [
        name
        for name, argument in inspect.signature(model.call).parameters.items()
        if argument.default is argument.empty
        and argument.kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) > 1:
        names = ", ".join(needed)
        raise ValueError(
            "`model.call` must take its inputs in one argument, such as a dictionary: "
            f"export a functional model around it, `keras.Model([{names}], "
            f"model({names}))` of `keras.Input` tensors. Received: call({names})"
        )


def get_pair(model: Any, max_length: int | None) -> IncrementalPair | None:
    """The pair of a generative model, or the pair itself; None for another model.

    Args:
        model: Any model, or a pair.
        max_length: The length of its caches. None = the model's default.

    Raises:
        ValueError: If `model` is a pair with a different `max_length`, or has no such
            length.
    """
    if isinstance(model, IncrementalPair):
        if max_length not in (None, model.max_length):
            raise ValueError(
                "`max_length` is fixed when a pair is made: export the model, or make "
                "the pair with `incremental(max_length=...)`. Received: "
                f"max_length={max_length}, pair.max_length={model.max_length}"
            )
        return model
    if not hasattr(model, "incremental"):
        return None
    if max_length is None:
        return model.incremental()
    if "max_length" not in inspect.signature(model.incremental).parameters:
        raise ValueError(
            "`max_length` is for models whose `incremental()` takes a `max_length`; "
            f"leave it out. Received: max_length={max_length}"
        )
    return model.incremental(max_length=max_length)


def _declared(name: str, model: keras.Model) -> Signature:
    """The signature of a model with symbolic inputs."""
    structure = input_structure(model)
    tensors = keras.tree.flatten(structure)
    is_flat = isinstance(structure, dict) and len(structure) == len(tensors)
    # Callers know the inputs by these keys.
    names, notes = _valid_inputs(
        _path_names(structure) if is_flat else [tensor.name for tensor in tensors]
    )

    outputs = _output_names(model, output_structure(model))
    notes += _renamed(outputs, _valid_names(outputs))
    by_key = _in_order(structure, names, tensors)
    batch = (None,) if _took_its_batch(model) else ()
    specs = Specs(
        {
            key: _spec(key, (*batch, *tensor.shape[len(batch) :]), tensor.dtype)
            for key, tensor in by_key.items()
        }
    )
    indices, lengths = (
        {
            key: found
            for key, tensor in by_key.items()
            if (found := range_of(model, tensor)) is not None
        }
        for range_of in (index_range, length_range)
    )
    named = keras.tree.pack_sequence_as(structure, names)
    signature = _structured(name, model, specs, named, notes)
    return replace(signature, index_ranges=indices, length_ranges=lengths)


def _structured(
    name: str, model: keras.Model, specs: Specs, structure: Any, notes: list[str]
) -> Signature:
    """The signature of a model that is called with a structure of named tensors."""
    names = keras.tree.flatten(structure)

    def arrange(inputs: dict) -> Any:
        return keras.tree.pack_sequence_as(structure, [inputs[name] for name in names])

    namer = _output_namer(model)
    return Signature(
        name, model, specs, arrange, namer, tuple(notes), structure=structure
    )


def _took_its_batch(model: keras.Model) -> bool:
    """Whether the batch size of a model may come from the first batch it was given.

    Keras builds a `Sequential` without `Input` on it, and then takes any other.
    """
    return isinstance(model, keras.Sequential) and not any(
        getattr(layer, "stateful", False) for layer in model.layers
    )


def _from_sample(name: str, model: keras.Model, sample_inputs: Any) -> Signature:
    """The signature of a subclassed model, from a sample of its inputs."""
    if sample_inputs is None:
        raise ValueError(
            "`sample_inputs` is needed: `model` does not declare its inputs (it is "
            "not a functional model). Pass inputs that it can be called with. "
            f"Received: sample_inputs=None, model={model!r}"
        )
    values = keras.tree.flatten(sample_inputs)
    if isinstance(sample_inputs, dict):
        names = _path_names(sample_inputs)
    elif len(values) == 1:
        names = ["inputs"]
    else:
        names = [f"input_{i}" for i in range(len(values))]
    names, notes = _valid_inputs(names)
    specs = Specs()
    for key, value in _in_order(sample_inputs, names, values).items():
        tensor = tf.convert_to_tensor(value)
        # Such a model may depend on the sizes it was called with; only the batch is
        # known to vary.
        specs[key] = _spec(key, (None, *tensor.shape[1:]), tensor.dtype.name)
    named = keras.tree.pack_sequence_as(sample_inputs, names)
    return _structured(name, model, specs, named, notes)


def _output_namer(model: keras.Model) -> Callable[[Any], dict]:
    """Names outputs by dictionary keys, otherwise by layers, otherwise by number."""

    def name_outputs(outputs: Any) -> dict:
        names = _valid_names(_output_names(model, outputs))
        found = _in_order(outputs, names, keras.tree.flatten(outputs))
        # A model may return None in place of an output.
        return {name: leaf for name, leaf in found.items() if leaf is not None}

    return name_outputs


def _output_names(model: keras.Model, outputs: Any) -> list[str]:
    count = len(keras.tree.flatten(outputs))
    is_dict = isinstance(outputs, dict)
    names = _path_names(outputs) if is_dict else _layer_names(model)
    return names if len(names) == count else [f"output_{i}" for i in range(count)]


def _path_names(structure: Any) -> list[str]:
    """A name for each leaf of a dictionary, from the keys that lead to it."""
    paths = [path for path, _ in keras.tree.flatten_with_path(structure)]
    return ["_".join(str(part) for part in path) for path in paths]


def _in_order(structure: Any, names: Sequence[str], leaves: Sequence) -> dict[str, Any]:
    """The leaves by name, in the order in which the structure holds them.

    `names` and `leaves` are in the order of `keras.tree`, which sorts dictionaries.
    """
    numbers = keras.tree.pack_sequence_as(structure, range(len(leaves)))
    order: list[int] = []

    def visit(part: Any) -> None:
        if keras.tree.is_nested(part):
            for inner in part.values() if isinstance(part, Mapping) else part:
                visit(inner)
        else:
            order.append(part)

    visit(numbers)
    return {names[number]: leaves[number] for number in order}


def _layer_names(model: keras.Model) -> list[str]:
    """The names of the layers that compute a model's outputs, where it has them."""
    if isinstance(model, keras.Sequential):
        return [model.layers[-1].name]
    return list(getattr(model, "output_names", ()))


def _valid_names(names: Sequence[str]) -> list[str]:
    """Unique names that every format accepts: identifiers."""
    bases = []
    for name in names:
        base = re.sub(r"\W", "_", name, flags=re.ASCII)
        bases.append(f"_{base}" if base[:1].isdigit() else base)
    return _unique(names, bases, str)


def _unique(
    names: Sequence[str], bases: Sequence[str], key: Callable[[str], str]
) -> list[str]:
    """The bases, numbered where several have the same key.

    Names that are valid stay, so that none of them comes to mean another tensor.
    """
    first: dict[str, int] = {}
    for place, (name, base) in enumerate(zip(names, bases, strict=True)):
        if name == base:
            first.setdefault(key(name), place)
    taken, unique = set(first), []
    for place, base in enumerate(bases):
        candidate, count = base, 1
        while key(candidate) in taken and first.get(key(candidate)) != place:
            candidate, count = f"{base}_{count}", count + 1
        taken.add(key(candidate))
        unique.append(candidate)
    return unique


def _valid_inputs(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names of inputs that every format accepts, and a note for each that changed.

    They are keyword arguments of TensorFlow's functions, which tell them apart without
    regard to case, and take none that begins with an underscore.
    """
    bases = []
    for name in names:
        base = re.sub(r"\W", "_", name, flags=re.ASCII)
        if not base[:1].isalpha():
            base = f"input{base}" if base.startswith("_") else f"input_{base}"
        is_reserved = keyword.iskeyword(base) or base == "self"
        bases.append(f"{base}_" if is_reserved else base)
    valid = _unique(names, bases, str.lower)
    return valid, _renamed(names, valid)


def _renamed(names: Sequence[str], valid: Sequence[str]) -> list[str]:
    """A note for each name that changed."""
    pairs = zip(names, valid, strict=True)
    return [f"`{old}` is renamed `{new}`" for old, new in pairs if old != new]


def _spec(name: str, shape: Sequence[int | None], dtype: str) -> tf.TensorSpec:
    tf_dtype = tf.as_dtype(dtype)
    if tf_dtype in _HALF_PRECISION:
        tf_dtype = tf.float32  # As the layers compute, see `portable_layers`.
    return tf.TensorSpec(tuple(shape), tf_dtype, name=name)


def _full_precision(tensor):
    return tf.cast(tensor, "float32") if tensor.dtype in _HALF_PRECISION else tensor
