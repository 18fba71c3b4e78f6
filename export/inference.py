"""Trace a Keras model as every runtime can run it: float32, and without cuDNN."""

import contextlib
from collections.abc import Iterable, Iterator

import keras
import tensorflow as tf

from keras_attn.export.signatures import Signature

_HALVES = ("float16", "bfloat16")


class _Float32Compute(keras.DTypePolicy):
    """Computes in float32, whatever the weights are stored in."""

    def __init__(self, variable_dtype: str):
        super().__init__("float32")
        # A half-precision weight is then cast where it is used, as autocast does.
        self._variable_dtype = variable_dtype


def unique_layers(models: Iterable[keras.Model]) -> list[keras.layers.Layer]:
    """Every layer below the models, themselves included, each once."""
    # Keras' public `layers` skips what lies inside a layer (a cell, a wrapped layer).
    found = {id(layer): layer for m in models for layer in m._flatten_layers()}
    return list(found.values())


def computes_in_half(models: Iterable[keras.Model]) -> bool:
    """Whether any layer computes in float16 or bfloat16."""
    return any(layer.compute_dtype in _HALVES for layer in unique_layers(models))


@contextlib.contextmanager
def inference_mode(models: Iterable[keras.Model]) -> Iterator[None]:
    """While it lasts the models compute in float32, by operations that are everywhere.

    The converters take neither half-precision graphs (tensorflow#46380) nor
    `CudnnRNN` (keras#21799), nor `LayerNormalization` as one operation. Rebuilding the
    model in another dtype would do the same at the price of a second copy of the
    weights, and would break layers that share variables (tied embeddings), so the
    settings are lent and given back.
    """
    with contextlib.ExitStack() as stack:

        def lend(owner, attribute: str, value) -> None:
            stack.callback(setattr, owner, attribute, getattr(owner, attribute))
            setattr(owner, attribute, value)

        for layer in unique_layers(models):
            if layer.compute_dtype in _HALVES:
                # Not `layer.dtype_policy = ...`: its setter may quantize the layer.
                lend(layer, "_dtype_policy", _float32_policy(layer))
            if getattr(layer, "use_cudnn", False) is not False:
                lend(layer, "use_cudnn", False)
            if getattr(layer, "use_fused", False):
                lend(layer, "use_fused", False)
            # A functional model casts its inputs to what they were declared as, and
            # an `ops.cast` between its layers has its dtype written down.
            for tensor in _declared_inputs(layer):
                if tensor.dtype in _HALVES:
                    lend(tensor, "_dtype", "float32")
            for operation in getattr(layer, "operations", ()):
                is_layer = isinstance(operation, keras.layers.Layer)
                if not is_layer and getattr(operation, "dtype", None) in _HALVES:
                    lend(operation, "dtype", "float32")
        yield


@contextlib.contextmanager
def unrolled(models: Iterable[keras.Model]) -> Iterator[None]:
    """While it lasts recurrent layers have no loop; their lengths must be known."""
    with contextlib.ExitStack() as stack:
        for layer in unique_layers(models):
            if getattr(layer, "unroll", None) is False:
                stack.callback(setattr, layer, "unroll", False)
                layer.unroll = True
        yield


def _declared_inputs(layer: keras.layers.Layer) -> list:
    inputs = getattr(layer, "inputs", ()) if isinstance(layer, keras.Model) else ()
    return [tensor for tensor in inputs or () if isinstance(tensor, keras.KerasTensor)]


def _float32_policy(layer: keras.layers.Layer) -> keras.DTypePolicy:
    if layer.quantization_mode is not None:
        return keras.dtype_policies.get(f"{layer.quantization_mode}_from_float32")
    return _Float32Compute(layer.variable_dtype)


def trace(signature: Signature, specs: dict[str, tf.TensorSpec]):
    """Traces one signature at the given shapes.

    Shapes are fixed here and not in a clone: a Keras model called on a tensor of
    static shape computes with static shapes.

    Args:
        signature: What to call.
        specs: Shape and dtype of each input, by name.

    Returns:
        A concrete function, keyword arguments in and a dictionary out.
    """

    def run(**tensors):
        return signature(tensors)

    run.__name__ = signature.name
    # A new `tf.function` each time: one that has seen a looser shape would hand
    # back that trace for a tighter one.
    return tf.function(run, autograph=False).get_concrete_function(**specs)


def reference(signature: Signature, inputs: dict) -> dict:
    """What Keras says: the signature's outputs as NumPy arrays.

    On the CPU, because a GPU's float32 is commonly TF32, which is no reference.
    """
    with tf.device("/CPU:0"):
        outputs = signature({k: tf.convert_to_tensor(v) for k, v in inputs.items()})
    return {name: tensor.numpy() for name, tensor in outputs.items()}
