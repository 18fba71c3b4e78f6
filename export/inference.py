"""Settings under which a Keras model can be traced for every runtime."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import keras
import tensorflow as tf

from keras_attn.export.keras_forms import keras_forms
from keras_attn.kernels.gather import flat_gathers
from keras_attn.kernels.lean_attention import whole_scores

_HALF_PRECISION = ("float16", "bfloat16")


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


def about_precision(layers: Iterable[keras.layers.Layer]) -> list[str]:
    """The report's notes on layers that compute in float16 or bfloat16."""
    if not any(layer.compute_dtype in _HALF_PRECISION for layer in layers):
        return []
    return ["computes in float32: the converters do not support half precision"]


@contextlib.contextmanager
def inference_mode(models: Iterable[keras.Model]) -> Iterator[None]:
    """Makes the models compute in float32, with operations that every runtime has.

    The converters support neither half-precision graphs (tensorflow#46380) nor
    `CudnnRNN` (keras#21799) nor `LayerNormalization` as one operation. Rebuilding the
    model in a different dtype would need a second copy of the weights and break shared
    variables (tied embeddings), so settings are changed and restored.
    """
    with contextlib.ExitStack() as stack:

        def set_until_exit(owner, attribute: str, value) -> None:
            stack.callback(setattr, owner, attribute, getattr(owner, attribute))
            setattr(owner, attribute, value)

        models = list(models)
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
            if getattr(layer, "use_cudnn", False) is not False:
                set_until_exit(layer, "use_cudnn", False)
            if getattr(layer, "use_fused", False):
                set_until_exit(layer, "use_fused", False)
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
        yield


@contextlib.contextmanager
def unrolled(models: Iterable[keras.Model]) -> Iterator[None]:
    """Unrolls the recurrent layers of the models, whose lengths must be known."""
    with contextlib.ExitStack() as stack:
        for layer in unique_layers(models):
            if getattr(layer, "unroll", None) is False:
                stack.callback(setattr, layer, "unroll", False)
                layer.unroll = True
        yield


@contextlib.contextmanager
def forms_of_files() -> Iterator[None]:
    """Within this block layers compute by operations that the runtimes have."""
    with (
        dilated_in_one_operation(),
        keras_forms(),
        whole_scores(),
        flat_gathers(),
    ):
        yield


@contextlib.contextmanager
def dilated_in_one_operation() -> Iterator[None]:
    """Traces a dilated convolution of images as one `Conv2D`.

    TensorFlow, which has no gradient for it on a CPU, moves pixels to the batch and
    back, with paddings that are computed at run time if sizes are unknown.
    """
    convolution = tf.nn.convolution

    def in_one(input: Any, filters: Any, strides: Any, padding: Any, **options: Any):
        if len(input.shape) != 4:
            return convolution(input, filters, strides, padding, **options)
        return tf.nn.conv2d(input, filters, strides, padding, **options)

    with mock.patch.object(tf.nn, "convolution", in_one):
        yield


@contextlib.contextmanager
def enlarged_by_products() -> Iterator[None]:
    """Traces a transposed convolution without overlaps as a product.

    If its strides are its kernel's size, each pixel of the result comes from one pixel:
    its channels are a product, and `DepthToSpace` arranges them. LiteRT takes 2.4 to 3
    times as long for its own operator (2 × 2, XNNPACK, AVX2).
    """
    convolution = tf.nn.conv_transpose

    def as_product(
        input: Any, filters: Any, output_shape: Any, strides: Any, **options: Any
    ):
        sizes, pair = tuple(filters.shape), keras.tree.flatten(strides)
        step = pair[0]
        # Paddings, dilations and rows of zeros give the output another size or order.
        is_plain = (
            len(sizes) == 4
            and {step} == {*sizes[:2], *pair}
            and step > 1
            and options.get("data_format") == "NHWC"
            and {*keras.tree.flatten(options.get("dilations", 1))} == {1}
            and options.get("padding") in ("VALID", "SAME")
            and _is_multiple(output_shape, input.shape, step)
        )
        if not is_plain:
            return convolution(input, filters, output_shape, strides, **options)
        # (r, r, O, I) -> (1, 1, I, r · r · O).
        kernel = tf.transpose(filters, (3, 0, 1, 2))
        kernel = tf.reshape(kernel, (1, 1, sizes[3], step * step * sizes[2]))
        return tf.nn.depth_to_space(tf.nn.conv2d(input, kernel, 1, "VALID"), step)

    with mock.patch.object(tf.nn, "conv_transpose", as_product):
        yield


def _scope(name: str) -> str:
    """A layer's name as a name scope of a graph, which takes no other characters."""
    scope = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name)
    return scope if re.match("[A-Za-z0-9.]", scope) else f"layer{scope}"


def _is_multiple(output_shape, input_shape, factor: int) -> bool:
    """Whether rows and columns are known, and `factor` times the input's."""
    pairs = zip(output_shape[1:3], input_shape[1:3], strict=True)
    return all(
        isinstance(enlarged, int) and size is not None and enlarged == factor * size
        for enlarged, size in pairs
    )


def _declared_inputs(layer: keras.layers.Layer) -> list:
    inputs = getattr(layer, "inputs", ()) if isinstance(layer, keras.Model) else ()
    return [tensor for tensor in inputs or () if isinstance(tensor, keras.KerasTensor)]


def _float32_policy(layer: keras.layers.Layer) -> keras.DTypePolicy:
    if layer.quantization_mode is not None:
        return keras.dtype_policies.get(f"{layer.quantization_mode}_from_float32")
    return _Float32Compute(layer.variable_dtype)
