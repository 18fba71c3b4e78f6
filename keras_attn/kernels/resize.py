"""Bilinear resizing that is right under XLA too.

Legend: B batch, h and w rows and columns, C channels.
"""

from keras import ops

from keras_attn.kernels.runtime import is_compiled_by_xla, is_tensorflow


def resize_bilinear(images, size):
    """Bilinear interpolation between the centers of pixels, without anti-aliasing.

    The center of output row i lies at row `(i + 1/2) · h / H - 1/2` of the image;
    outside its first and last centers the image is extended by its edge values. In
    PyTorch this is `interpolate(mode="bilinear", align_corners=False)`.

    TensorFlow's operation under XLA (2.21) takes a wrong row or column wherever a
    center of the output coincides with a center of the image and the division is
    inexact, such as row 4 of 12 from 4 rows (tensorflow#118344). Where XLA compiles,
    two matrix products take its place. `keras.ops.image.resize` rejects an unknown
    size.

    Args:
        images: (B, h, w, C).
        size: H and W, known or not.

    Returns:
        (B, H, W, C).
    """
    if is_compiled_by_xla():
        return _resize_by_products(images, size)
    if is_tensorflow():
        import tensorflow as tf

        return tf.cast(tf.image.resize(images, size), images.dtype)
    return ops.image.resize(images, size, data_format="channels_last")


def _resize_by_products(images, size):
    batch, rows, columns, channels = ops.shape(images)
    height, width = size
    hidden = ops.reshape(ops.cast(images, "float32"), (batch, rows, columns * channels))
    hidden = ops.matmul(_shares(rows, height), hidden)  # (B, H, w * C)
    hidden = ops.reshape(hidden, (batch, height, columns, channels))
    hidden = ops.matmul(_shares(columns, width), hidden)  # (B, H, W, C)
    return ops.cast(hidden, images.dtype)


def _shares(before, after):
    """Weight of each of `before` rows in each of `after` rows, (after, before)."""
    last = ops.cast(before, "float32") - 1
    scale = ops.cast(before, "float32") / ops.cast(after, "float32")
    centres = (ops.arange(after, dtype="float32") + 0.5) * scale - 0.5
    centres = ops.clip(centres, 0.0, last)
    distances = ops.expand_dims(centres, 1) - ops.arange(before, dtype="float32")
    return ops.maximum(0.0, 1.0 - ops.abs(distances))
