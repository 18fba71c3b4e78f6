"""Operations that every file can hold, in place of those that Keras would trace.

Keras computes two layers only where it knows the sizes, as it does in `predict`; the
place of a maximum by operations on bits, which LiteRT and ONNX lack; and a dilated
convolution by moving pixels to the batch and back.

Legend: B batch, T length, H and W pixels, C channels.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import keras
import tensorflow as tf
from keras import layers

from keras_attn.kernels.gather import flat_gathers
from keras_attn.kernels.lean_attention import whole_scores


@contextlib.contextmanager
def portable_operations() -> Iterator[None]:
    """Traces models in operations that every file can hold, within this block."""
    # Not public; Keras 3.16 has them in `backend.ops`.
    from keras.src import backend

    functions = getattr(backend, "ops", backend).numpy

    up_sampling = layers.UpSampling2D.call
    time_distributed = layers.TimeDistributed.call
    convolution = tf.nn.convolution

    def up_sampled(self: Any, inputs: Any):
        is_first = self.data_format == "channels_first"
        sizes = tuple(inputs.shape)[2:] if is_first else tuple(inputs.shape)[1:3]
        if self.interpolation == "nearest" or None not in sizes:
            return up_sampling(self, inputs)
        return _resized(inputs, self.size, self.interpolation, is_first)

    def distributed(self: Any, inputs: Any, training: Any = None, mask: Any = None):
        if inputs.shape[1] is not None:
            return time_distributed(self, inputs, training=training, mask=mask)
        return _in_rows(self.layer, inputs, training, mask)

    def convolved(input: Any, filters: Any, strides: Any, padding: Any, **options: Any):
        if len(input.shape) != 4:
            return convolution(input, filters, strides, padding, **options)
        # One `Conv2D` if it is dilated, too: TensorFlow, which has no gradient for that
        # on a CPU, moves pixels to the batch, with paddings computed at run time.
        return tf.nn.conv2d(input, filters, strides, padding, **options)

    with (
        mock.patch.object(layers.UpSampling2D, "call", up_sampled),
        mock.patch.object(layers.TimeDistributed, "call", distributed),
        mock.patch.object(functions, "argmax", _placed(tf.argmax)),
        mock.patch.object(functions, "argmin", _placed(tf.argmin)),
        mock.patch.object(tf.nn, "convolution", convolved),
        whole_scores(),
        flat_gathers(),
    ):
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


def _placed(find: Callable) -> Callable:
    """`argmax` or `argmin` of TensorFlow, with the arguments of Keras'.

    Keras puts -0.0 before 0.0, which are equal here.
    """

    def place(x: Any, axis: int | None = None, keepdims: bool = False):
        x = tf.convert_to_tensor(x)
        if axis is not None:
            found = find(x, axis=axis, output_type="int32")
            return tf.expand_dims(found, axis) if keepdims else found
        found = find(tf.reshape(x, (-1,)), axis=0, output_type="int32")
        return tf.reshape(found, [1] * x.ndim) if keepdims else found

    return place


def _resized(images, factors, interpolation: str, is_first: bool):
    """Images (B, H, W, C) or (B, C, H, W), enlarged; Keras compares sizes with 0."""
    if is_first:
        images = tf.transpose(images, (0, 2, 3, 1))
    size = tf.shape(images)[1:3] * tf.constant(factors, "int32")
    result = tf.cast(tf.image.resize(images, size, interpolation), images.dtype)
    pairs = zip(images.shape[1:3], factors, strict=True)
    known = [None if side is None else side * factor for side, factor in pairs]
    # Not `tf.ensure_shape`, for which LiteRT has no operator.
    result.set_shape((images.shape[0], *known, images.shape[3]))
    return tf.transpose(result, (0, 3, 1, 2)) if is_first else result


def _in_rows(layer: Any, inputs: Any, training: Any, mask: Any):
    """A layer on (B, T, ...) as on (B · T, ...), whose rows do not see each other.

    `tf.vectorized_map`, Keras' form for an unknown length, gives `Dense` a wrong shape.
    """
    options: dict[str, Any] = {}
    if layer._call_has_mask_arg and mask is not None:
        options["mask"] = _merged(mask)
    if layer._call_has_training_arg:
        options["training"] = training
    rows = layer.call(_merged(inputs), **options)
    sizes = tf.concat([tf.shape(inputs)[:2], tf.shape(rows)[1:]], axis=0)
    result = tf.reshape(rows, sizes)
    result.set_shape((*inputs.shape[:2], *rows.shape[1:]))
    return result


def _merged(tensor):
    """(B, T, ...) -> (B · T, ...)."""
    known = [-1 if size is None else size for size in tensor.shape[2:]]
    if known.count(-1) == 0:
        return tf.reshape(tensor, (-1, *known))
    return tf.reshape(tensor, tf.concat([[-1], tf.shape(tensor)[2:]], axis=0))


def _is_multiple(output_shape, input_shape, factor: int) -> bool:
    """Whether rows and columns are known, and `factor` times the input's."""
    pairs = zip(output_shape[1:3], input_shape[1:3], strict=True)
    return all(
        isinstance(enlarged, int) and size is not None and enlarged == factor * size
        for enlarged, size in pairs
    )
