"""Image files inside a TensorFlow graph: from bytes to the inputs of a model.

Legend: B batch, H and W rows and columns of the processed images.
"""

from collections.abc import Callable

import tensorflow as tf


def decode_images(
    contents: tf.Tensor, preprocessing: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Decodes files and makes them images of one size, also in a SavedModel.

    Every file becomes red, green and blue with 8 bits each: gray is repeated, a palette
    is looked up, transparency is ignored, 16 bits are reduced to the upper 8, and of an
    animation the first image counts, as Pillow's `convert("RGB")` does for all but 16
    bits. The orientation that a camera recorded is not applied.

    Args:
        contents: The bytes of JPEG, PNG, BMP or GIF files, strings (B,).
        preprocessing: What makes all images one size: an `ImagePreprocessing` that
            returns images of a known size, or a function from uint8 (1, h, w, 3) to
            float32 (1, H, W, 3).

    Returns:
        float32 (B, H, W, 3).

    Raises:
        ValueError: If `contents` are not strings of shape (B,), or `preprocessing`
            returns images of unknown size.
        tf.errors.InvalidArgumentError: When the graph runs, if the bytes are not an
            image.

    Example:
        ```python
        layer = models.image_preprocessing(encoder)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def serve(image_bytes):
            return encoder(decode_images(image_bytes, layer))

        module = tf.Module()
        module.encoder, module.serve = encoder, serve
        tf.saved_model.save(module, "folder", {"serve": serve})
        ```
    """
    contents = tf.convert_to_tensor(contents)
    if contents.dtype != tf.string or contents.shape.rank != 1:
        raise ValueError(
            "`contents` must be strings of shape (B,), the bytes of one file each. "
            f"Received: contents of shape {contents.shape}, dtype {contents.dtype.name}"
        )
    probe = tf.TensorSpec([1, None, None, 3], tf.uint8)
    traced = tf.function(preprocessing, input_signature=[probe])
    spec = traced.get_concrete_function().structured_outputs
    shape = tf.TensorShape(spec.shape)[1:]
    if not shape.is_fully_defined():
        raise ValueError(
            "`preprocessing` must return images of a known size, as with a `crop_size` "
            f"or a `size` of two numbers. Received: images of shape {shape}"
        )

    def jpeg(content: tf.Tensor) -> tf.Tensor:
        # As Pillow does; TensorFlow's default differs in one of four values.
        return tf.io.decode_jpeg(content, 3, dct_method="INTEGER_ACCURATE")

    def other(content: tf.Tensor) -> tf.Tensor:
        return tf.io.decode_image(content, 3, expand_animations=False)

    def decode(content: tf.Tensor) -> tf.Tensor:
        image = tf.cond(
            tf.io.is_jpeg(content), lambda: jpeg(content), lambda: other(content)
        )
        image = tf.ensure_shape(image, [None, None, 3])
        return tf.ensure_shape(preprocessing(image[None])[0], shape)

    return tf.map_fn(
        decode, contents, fn_output_signature=tf.TensorSpec(shape, spec.dtype)
    )
