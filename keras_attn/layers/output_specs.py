"""A cache of output shapes and dtypes, shared by layers of equal configuration.

To get the symbolic outputs of a layer, Keras traces its `call`. That takes half the
time of creating a model, although the blocks of a model are alike.
"""

import dataclasses
import functools
import json

import keras
from keras import tree

_MAX_CACHED = 1024
_cached_specs: dict = {}


@dataclasses.dataclass(frozen=True)
class _Spec:
    """Properties of a symbolic tensor, which would itself keep its model alive."""

    shape: tuple
    dtype: str
    sparse: bool
    ragged: bool


def caches_output_specs(layer_class):
    """Class decorator: layers of equal configuration are traced once.

    `compute_output_spec` traces `call` for the first such layer, and caches the shapes
    and dtypes for the others. The key is the configuration without name and seed, the
    shapes of the weights, and the arguments. A layer is not cached if its outputs may
    depend on more: on code that is neither Keras' nor keras_attn's (a subclass, an
    activation), or on a layer that is built in `call`.

    Args:
        layer_class: A subclass of `keras.layers.Layer`.

    Returns:
        The same class.
    """
    trace = layer_class.compute_output_spec

    @functools.wraps(trace)
    def compute_output_spec(self, *args, **kwargs):
        key = _key(self, args, kwargs)
        known = _cached_specs.get(key)
        if known is not None:
            return tree.map_structure(_make_tensor, known)
        outputs = trace(self, *args, **kwargs)
        if key is not None:
            if len(_cached_specs) >= _MAX_CACHED:
                _cached_specs.clear()
            _cached_specs[key] = tree.map_structure(_make_spec, outputs)
        return outputs

    layer_class.compute_output_spec = compute_output_spec
    return layer_class


def _key(layer, args, kwargs):
    """Everything that the output specs depend on; None if that is unknown."""
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
        arguments = tree.map_structure(_make_spec, (args, kwargs))
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
    """Whether a layer runs user code, which its configuration does not describe."""
    return _is_foreign(layer) or any(
        callable(value) and _is_foreign(value) for value in vars(layer).values()
    )


def _is_foreign(value):
    module = getattr(value, "__module__", None) or ""
    return module.split(".")[0] not in ("keras", "keras_attn")


def _make_spec(value):
    """The spec of a symbolic tensor; numbers and strings as they are."""
    if isinstance(value, keras.KerasTensor):
        return _Spec(tuple(value.shape), value.dtype, value.sparse, value.ragged)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"Not a symbolic tensor or a plain setting: {value!r}")


def _make_tensor(spec):
    if not isinstance(spec, _Spec):
        return spec
    return keras.KerasTensor(
        spec.shape, dtype=spec.dtype, sparse=spec.sparse, ragged=spec.ragged
    )
