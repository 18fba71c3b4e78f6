"""Settings of layers with which every runtime can compute them.

Float32, no fused kernels, names that a graph can have, and, where a runtime asks for
it, loops unrolled. What layers compute is unchanged up to rounding.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator

import keras

_HALF_PRECISION = ("float16", "bfloat16")
_IN_FLOAT32 = "computes in float32: the converters do not support half precision"


class _Float32Compute(keras.DTypePolicy):
    """Computes in float32, for weights of any dtype."""

    def __init__(self, variable_dtype: str):
        super().__init__("float32")
        # A half-precision weight is then cast where it is used.
        self._variable_dtype = variable_dtype


def unique_layers(models: Iterable[keras.Model]) -> list[keras.layers.Layer]:
    """Every layer of the models, at any depth, themselves included; each once."""
    # Keras' public `layers` skips layers inside a layer (a cell, a wrapped layer).
    found = {id(layer): layer for m in models for layer in m._flatten_layers()}
    return list(found.values())


@contextlib.contextmanager
def portable_layers(models: list[keras.Model]) -> Iterator[list[str]]:
    """Makes the models compute in float32, without fused kernels, within this block.

    The converters support neither half-precision graphs (tensorflow#46380) nor
    `CudnnRNN` (keras#21799) nor `LayerNormalization` as one operation. Rebuilding the
    model in a different dtype would need a second copy of the weights and break shared
    variables (tied embeddings), so settings are changed and restored.

    Yields:
        The report's notes on what was changed.
    """
    with contextlib.ExitStack() as stack:

        def set_until_exit(owner, attribute: str, value) -> None:
            stack.callback(setattr, owner, attribute, getattr(owner, attribute))
            setattr(owner, attribute, value)

        notes: list[str] = []
        for variable in (variable.value for m in models for variable in m.variables):
            # A SavedModel restores it under this name, `dense/bias:0`.
            name, colon, number = variable.name.rpartition(":")
            if _scope(name) != name and hasattr(variable, "_handle_name"):
                set_until_exit(variable, "_handle_name", _scope(name) + colon + number)
        for layer in unique_layers(models):
            scope = _scope(layer.name)
            if scope != layer.name:
                set_until_exit(layer, "name", scope)
            if layer.compute_dtype in _HALF_PRECISION:
                # Not `layer.dtype_policy = ...`: its setter may quantize the layer.
                set_until_exit(layer, "_dtype_policy", _float32_policy(layer))
                notes = [_IN_FLOAT32]
            for fused in ("use_cudnn", "use_fused"):
                if getattr(layer, fused, False):
                    set_until_exit(layer, fused, False)
            # A functional model casts its inputs to their declared dtypes, and an
            # `ops.cast` between its layers has its own dtype.
            for tensor in _declared_inputs(layer):
                if tensor.dtype in _HALF_PRECISION:
                    set_until_exit(tensor, "_dtype", "float32")
            for operation in getattr(layer, "operations", ()):
                is_layer = isinstance(operation, keras.layers.Layer)
                dtype = getattr(operation, "dtype", None)
                if not is_layer and dtype in _HALF_PRECISION:
                    set_until_exit(operation, "dtype", "float32")
        yield notes


@contextlib.contextmanager
def unrolled(models: Iterable[keras.Model]) -> Iterator[None]:
    """Unrolls the recurrent layers of the models, whose lengths must be known."""
    with contextlib.ExitStack() as stack:
        for layer in unique_layers(models):
            if getattr(layer, "unroll", None) is False:
                stack.callback(setattr, layer, "unroll", False)
                layer.unroll = True
        yield


def _scope(name: str) -> str:
    """A layer's name as a name scope of a graph, which takes no other characters."""
    scope = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name)
    return scope if re.match("[A-Za-z0-9.]", scope) else f"layer{scope}"


def _declared_inputs(layer: keras.layers.Layer) -> list:
    inputs = getattr(layer, "inputs", ()) if isinstance(layer, keras.Model) else ()
    return [tensor for tensor in inputs or () if isinstance(tensor, keras.KerasTensor)]


def _float32_policy(layer: keras.layers.Layer) -> keras.DTypePolicy:
    if layer.quantization_mode is not None:
        return keras.dtype_policies.get(f"{layer.quantization_mode}_from_float32")
    return _Float32Compute(layer.variable_dtype)
