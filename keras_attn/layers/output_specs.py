"""Shapes and dtypes of a layer's outputs, traced once for layers that are alike.

To know what a layer returns for a symbol Keras traces its `call`, which is half of the
time that a model takes to create; and the blocks of a model are alike.
"""

import dataclasses
import functools
import json

import keras
from keras import tree

_MAX_REMEMBERED = 1024
_remembered: dict = {}


@dataclasses.dataclass(frozen=True)
class _Spec:
    """What is known of a symbolic tensor, which itself would keep its model alive."""

    shape: tuple
    dtype: str
    sparse: bool
    ragged: bool


def caches_output_specs(layer_class):
    """Decorates a layer class: layers of equal configuration are traced once.

    `compute_output_spec` traces `call` for the first of them, and remembers the shapes
    and dtypes for the others. They depend on the configuration but for name and seed,
    on the shapes of the weights, and on the arguments. A layer is traced each time
    where something in it may depend on more: on code that is neither Keras' nor
    keras_attn's (a subclass, an activation), or on a layer that `call` builds.

    Args:
        layer_class: A subclass of `keras.layers.Layer`.

    Returns:
        The same class.
    """
    trace = layer_class.compute_output_spec

    @functools.wraps(trace)
    def compute_output_spec(self, *args, **kwargs):
        key = _key(self, args, kwargs)
        known = _remembered.get(key)
        if known is not None:
            return tree.map_structure(_tensor_of, known)
        outputs = trace(self, *args, **kwargs)
        if key is not None:
            if len(_remembered) >= _MAX_REMEMBERED:
                _remembered.clear()
            _remembered[key] = tree.map_structure(_spec_of, outputs)
        return outputs

    layer_class.compute_output_spec = compute_output_spec
    return layer_class


def _key(layer, args, kwargs):
    """All that the outputs' shapes and dtypes depend on; None where that is unknown."""
    from keras.src.backend.common.variables import get_autocast_scope

    inner = layer._flatten_layers(include_self=False)
    if _has_foreign_code(layer) or not all(
        part.built and not _has_foreign_code(part) for part in inner
    ):
        return None
    config = layer.get_config()
    for name in ("name", "seed", "trainable"):
        config.pop(name, None)
    try:
        arguments = tree.map_structure(_spec_of, (args, kwargs))
        settings = json.dumps(config)
    except TypeError:
        return None
    scope = get_autocast_scope()
    return (
        type(layer),
        settings,
        repr(arguments),
        tuple((tuple(weight.shape), weight.dtype) for weight in layer.weights),
        None if scope is None else scope.dtype,
        keras.config.floatx(),
        keras.config.image_data_format(),
    )


def _has_foreign_code(layer):
    """Whether a configuration may say too little of a layer: of a user's own code."""
    return _is_foreign(layer) or any(
        callable(value) and _is_foreign(value) for value in vars(layer).values()
    )


def _is_foreign(value):
    module = getattr(value, "__module__", None) or ""
    return module.split(".")[0] not in ("keras", "keras_attn")


def _spec_of(value):
    """What is known of a tensor; a number or a string is known as it is."""
    if isinstance(value, keras.KerasTensor):
        return _Spec(tuple(value.shape), value.dtype, value.sparse, value.ragged)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"A symbolic call takes symbols and settings. Received: {value!r}")


def _tensor_of(spec):
    if not isinstance(spec, _Spec):
        return spec
    return keras.KerasTensor(
        spec.shape, dtype=spec.dtype, sparse=spec.sparse, ragged=spec.ragged
    )
