"""Image files inside a TensorFlow graph: from bytes to the inputs of a model.

Legend: B batch, H and W rows and columns of the processed images.
"""

from collections.abc import Callable

import tensorflow as tf

from keras_attn.data.images.upright import turn_upright

# Where a BMP file has the size of its header, the bits of a pixel, the compression, and
# the bytes of red, green and blue; and where a PNG file has its bits and kind of color.
_BMP_HEADER, _BMP_BITS, _BMP_COMPRESSION, _BMP_MASKS = 14, 28, 30, 54
_PNG_KIND, _DEEP_GRAY = 24, b"\x10\x00"


def decode_images(
    contents: tf.Tensor, preprocessing: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Decodes files and makes them images of one size, also in a SavedModel.

    Every file becomes red, green and blue with 8 bits each, as the readers of image
    files in this package have it: gray is repeated, a palette is looked up,
    transparency is ignored, one channel of 16 bits is divided by 257 and rounded,
    colors of 16 bits are reduced to their upper 8, and of an animation the first image
    counts. A photo is turned upright by the orientation in its EXIF data; one that is
    only in XMP is not read.

    Args:
        contents: The bytes of JPEG, PNG, BMP, WebP or GIF files, strings (B,).
        preprocessing: What makes all images one size: an `ImagePreprocessing` that
            returns images of a known size, or a function from uint8 (1, h, w, 3) to
            float32 (1, H, W, 3).

    Returns:
        float32 (B, H, W, 3).

    Raises:
        ValueError: If `contents` are not strings of shape (B,), or `preprocessing`
            returns images of unknown size.
        tf.errors.InvalidArgumentError: When the graph runs, if the bytes are not an
            image, as of a TIFF file, or are of a BMP file that is compressed, has 16
            bits or fewer than 8 per pixel, or colors in another order.

    Example:
        ```python
        import numpy as np
        import tensorflow as tf
        from keras_attn import data, layers

        resize = layers.ImagePreprocessing((32, 32))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def serve(image_bytes):
            return data.decode_images(image_bytes, resize)

        serve([tf.io.encode_png(np.zeros((48, 64, 3), "uint8"))])  # (1, 32, 32, 3)
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
        image = tf.case(
            [
                (tf.io.is_jpeg(content), lambda: jpeg(content)),
                (_starts(content, 0, b"BM"), lambda: _bmp(content)),
                (_is_deep_gray(content), lambda: _deep_gray(content)),
            ],
            default=lambda: other(content),
            exclusive=True,
        )
        image = tf.ensure_shape(image, [None, None, 3])
        image = tf.ensure_shape(turn_upright(image, content), [None, None, 3])
        return tf.ensure_shape(preprocessing(image[None])[0], shape)

    return tf.map_fn(
        decode, contents, fn_output_signature=tf.TensorSpec(shape, spec.dtype)
    )


def _starts(content: tf.Tensor, place: int, expected: bytes) -> tf.Tensor:
    # `substr` fails where a file is too short.
    padded = content + b"\0" * (place + len(expected))
    return tf.strings.substr(padded, place, len(expected)) == expected


def _is_deep_gray(content: tf.Tensor) -> tf.Tensor:
    is_png = _starts(content, 0, b"\x89PNG")
    return is_png & _starts(content, _PNG_KIND, _DEEP_GRAY)


def _deep_gray(content: tf.Tensor) -> tf.Tensor:
    pixels = tf.io.decode_png(content, 3, dtype=tf.uint16)
    # Half of 257 is not a whole number, so nothing lies in the middle.
    return tf.cast((tf.cast(pixels, tf.int32) + 128) // 257, tf.uint8)


def _bmp(content: tf.Tensor) -> tf.Tensor:
    """An image of 8, 24 or 32 bits per pixel; TensorFlow refuses others.

    TensorFlow takes indices of a palette for gray, and any bytes for uncompressed ones.
    """
    padded = content + b"\0" * (_BMP_MASKS + 12)
    data = tf.cast(tf.io.decode_raw(padded, tf.uint8), tf.int32)
    header = data[_BMP_HEADER] + 256 * data[_BMP_HEADER + 1]
    bits, compression = data[_BMP_BITS], data[_BMP_COMPRESSION]
    masks = data[_BMP_MASKS : _BMP_MASKS + 12]
    usual = [0, 0, 255, 0, 0, 255, 0, 0, 255, 0, 0, 0]
    is_usual = (compression == 3) & tf.reduce_all(masks == usual)
    check = tf.debugging.Assert(
        (header >= 40) & ((compression == 0) | is_usual),
        ["A BMP image must be uncompressed, with colors in their usual order."],
    )
    with tf.control_dependencies([check]):
        content = tf.identity(content)

    def of_palette() -> tf.Tensor:
        start = _BMP_HEADER + header
        entries = tf.reshape(
            tf.concat([data[start:], tf.zeros(1024, tf.int32)], 0)[:1024], [256, 4]
        )
        # Blue, green, red, unused.
        colors = tf.cast(tf.reverse(entries[:, :3], [1]), tf.uint8)
        indices = tf.cast(tf.io.decode_bmp(content)[..., 0], tf.int32)
        return tf.gather(colors, indices)

    return tf.cond(
        bits == 8,
        of_palette,
        lambda: tf.io.decode_image(content, 3, expand_animations=False),
    )
