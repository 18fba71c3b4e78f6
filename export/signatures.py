"""What an artefact offers: its signatures, read from a Keras model.

Shapes: axis 0 of every input is the batch; None is an unknown size.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import tensorflow as tf

from keras_attn.decoding.pair import IncrementalPair
from keras_attn.indices import IndexRange, index_range

SERVE, PREFILL, STEP = "serve", "prefill", "step"
_HALVES = (tf.float16, tf.bfloat16)


@dataclass(frozen=True)
class Signature:
    """One entry point: named tensors in, named tensors out.

    Attributes:
        name: `serve`, `prefill` or `step`.
        model: The Keras model behind it.
        inputs: Shape and dtype of each input as Keras declares it, by name.
        arrange: Puts named tensors in the structure that the model is called with.
        name_outputs: Names what the model returns.
        notes: What was changed on the way (names, for instance).
        prompt: Of an encoder-decoder's `prefill`: the input with the target's first
            tokens, beside the source.
        index_ranges: By name, of an input that indexes a table (token ids, positions):
            the least index and the first that is too large.
    """

    name: str
    model: keras.Model
    inputs: dict[str, tf.TensorSpec]
    arrange: Callable[[dict], Any]
    name_outputs: Callable[[Any], dict]
    notes: tuple[str, ...] = ()
    prompt: str | None = None
    index_ranges: dict[str, IndexRange] = field(default_factory=dict)

    def __call__(self, tensors: Mapping[str, Any]) -> dict:
        """Calls the model in inference mode; half-precision outputs become float32."""
        inputs = {name: tensors[name] for name in self.inputs}
        outputs = self.name_outputs(self.model(self.arrange(inputs), training=False))
        return {name: _full_precision(tensor) for name, tensor in outputs.items()}


def signatures_of(
    model: Any, sample_inputs: Any = None, max_length: int | None = None
) -> list[Signature]:
    """Reads the signatures of a model.

    Args:
        model: A Keras model, a generative one (it has `incremental()`), or an
            `IncrementalPair`.
        sample_inputs: What to learn the inputs from where the model does not say.
        max_length: Of a generative model: the length of its caches. None is the
            model's own.

    Returns:
        `[serve]`, or `[prefill, step]`.

    Raises:
        TypeError: for no Keras model.
        ValueError: for a pair of another `max_length`.
    """
    if not isinstance(model, IncrementalPair) and hasattr(model, "incremental"):
        model = _pair_of(model, max_length)
    if isinstance(model, IncrementalPair):
        if max_length not in (None, model.max_length):
            raise ValueError(
                "`max_length` is fixed when a pair is made: export the model, or make "
                "the pair by `incremental(max_length=...)`. Received: "
                f"max_length={max_length}, of the pair max_length={model.max_length}"
            )
        prefill = _declared(PREFILL, model.prefill)
        if model.prompt != "token_ids":
            prefill = replace(prefill, prompt=model.prompt)
        return [prefill, _declared(STEP, model.step)]
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a `keras.Model` or a `keras_attn.decoding."
            f"IncrementalPair`. Received: model={model!r}"
        )
    if sample_inputs is not None and not model.built:
        model(keras.tree.map_structure(tf.convert_to_tensor, sample_inputs))
    if is_declared(model):
        return [_declared(SERVE, model)]
    return [_observed(SERVE, model, sample_inputs)]


def _pair_of(model: Any, max_length: int | None) -> IncrementalPair:
    """The pair of a generative model, with caches of a length where it has caches."""
    if max_length is None:
        return model.incremental()
    if "max_length" not in inspect.signature(model.incremental).parameters:
        raise ValueError(
            "`max_length` needs a model whose `incremental()` takes one; leave it out. "
            f"Received: max_length={max_length}"
        )
    return model.incremental(max_length=max_length)


def is_declared(model: keras.Model) -> bool:
    """Whether the model's inputs are symbolic tensors, as in the functional API."""
    inputs = getattr(model, "inputs", None)
    return bool(inputs) and all(isinstance(x, keras.KerasTensor) for x in inputs)


def input_structure(model: keras.Model) -> Any:
    """Symbolic inputs as the model is called with them."""
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def _declared(name: str, model: keras.Model) -> Signature:
    structure = input_structure(model)
    tensors = keras.tree.flatten(structure)
    if isinstance(structure, dict) and not any(
        keras.tree.is_nested(value) for value in structure.values()
    ):
        # `keras.tree` flattens a dictionary in the order of its sorted keys, and
        # the keys are what the model's callers know.
        tensors = list(structure.values())
        names, packed = list(structure), list(structure)
    else:
        names, packed = [tensor.name for tensor in tensors], None
    names, notes = _usable(names)

    def arrange(inputs: dict) -> Any:
        values = [inputs[key] for key in names]
        if packed is not None:
            return dict(zip(packed, values, strict=True))
        return keras.tree.pack_sequence_as(structure, values)

    specs = {
        key: _spec(key, tensor.shape, tensor.dtype)
        for key, tensor in zip(names, tensors, strict=True)
    }
    ranges = {
        key: found
        for key, tensor in zip(names, tensors, strict=True)
        if (found := index_range(model, tensor)) is not None
    }
    return Signature(
        name,
        model,
        specs,
        arrange,
        _output_namer(model),
        tuple(notes),
        index_ranges=ranges,
    )


def _observed(name: str, model: keras.Model, sample_inputs: Any) -> Signature:
    """The signature of a subclassed model, from inputs it has been called with."""
    if sample_inputs is None:
        raise ValueError(
            "`sample_inputs` is needed: `model` does not say what its inputs are "
            "(it is not a functional model). Pass what you would call it with. "
            f"Received: sample_inputs=None, model={model!r}"
        )
    values = keras.tree.flatten(sample_inputs)
    if isinstance(sample_inputs, dict):
        names = list(sample_inputs)
        values = list(sample_inputs.values())
    elif len(values) == 1:
        names = ["inputs"]
    else:
        names = [f"input_{i}" for i in range(len(values))]
    names, notes = _usable(names)

    def arrange(inputs: dict) -> Any:
        ordered = [inputs[key] for key in names]
        if isinstance(sample_inputs, dict):
            return dict(zip(sample_inputs, ordered, strict=True))
        return keras.tree.pack_sequence_as(sample_inputs, ordered)

    specs = {}
    for key, value in zip(names, values, strict=True):
        tensor = tf.convert_to_tensor(value)
        # A model that declares nothing may compute with the sizes it sees: of these
        # the batch alone is known to vary.
        specs[key] = _spec(key, (None, *tensor.shape[1:]), tensor.dtype.name)
    return Signature(name, model, specs, arrange, _output_namer(model), tuple(notes))


def _output_namer(model: keras.Model) -> Callable[[Any], dict]:
    """Dictionaries keep their keys; otherwise layers name them, or a number."""

    def name_outputs(outputs: Any) -> dict:
        leaves = keras.tree.flatten(outputs)
        if isinstance(outputs, dict):
            paths = [path for path, _ in keras.tree.flatten_with_path(outputs)]
            names = ["_".join(str(part) for part in path) for path in paths]
        else:
            names = _layer_names(model)
        if len(names) != len(leaves):
            names = [f"output_{i}" for i in range(len(leaves))]
        return dict(zip(_usable(names)[0], leaves, strict=True))

    return name_outputs


def _layer_names(model: keras.Model) -> list[str]:
    """The names of the layers that a model's outputs come from, where it has them."""
    if isinstance(model, keras.Sequential):
        return [model.layers[-1].name]
    return list(getattr(model, "output_names", ()))


def _usable(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names every format takes, all different, and a note for each that changed.

    TensorFlow signatures are keyword arguments, so a name must be an identifier.
    """
    usable: list[str] = []
    for name in names:
        base = re.sub(r"\W", "_", name, flags=re.ASCII)
        base = f"_{base}" if base[:1].isdigit() else base
        candidate, count = base, 1
        while candidate in usable:
            candidate, count = f"{base}_{count}", count + 1
        usable.append(candidate)
    pairs = zip(names, usable, strict=True)
    return usable, [f"`{old}` is named `{new}`" for old, new in pairs if old != new]


def _spec(name: str, shape: Sequence[int | None], dtype: str) -> tf.TensorSpec:
    tf_dtype = tf.as_dtype(dtype)
    # Half-precision is computed in float32 (see `inference_mode`), inputs included.
    return tf.TensorSpec(
        tuple(shape), tf.float32 if tf_dtype in _HALVES else tf_dtype, name=name
    )


def _full_precision(tensor):
    return tf.cast(tensor, tf.float32) if tensor.dtype in _HALVES else tensor
