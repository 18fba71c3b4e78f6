"""A signature that takes the bytes of image files, which it decodes and preprocesses.

Legend: B batch.
"""

from dataclasses import replace
from typing import Any

import tensorflow as tf

from keras_attn.data.images.image_bytes import decode_images
from keras_attn.export.formats import Format
from keras_attn.export.shapes import Specs
from keras_attn.export.signature_info import IMAGE_BYTES
from keras_attn.export.signatures import SERVE, Signature
from keras_attn.models import image_preprocessing


def check_format_of_images(format: Format) -> None:
    """Raises unless a format can decode files of images."""
    if not format.takes_strings:
        raise ValueError(
            "`image_bytes` is only for SavedModels: other formats cannot decode image "
            "files. Leave it out, export `models.with_preprocessing(model)`, and pass "
            f"pixels. Received: image_bytes=True, format={format.name!r}"
        )


def with_image_bytes(serve: Signature, model: Any) -> Signature:
    """The signature of a model of images, from the bytes of their files.

    Args:
        serve: Its signature that takes images.
        model: A model of one input, images, with `preprocessing`.

    Returns:
        `serve`, which takes `image_bytes`, strings (B,).

    Raises:
        ValueError: If the model takes other inputs, or has no `preprocessing` that can
            be computed.
    """
    shapes = [tuple(spec.shape) for spec in serve.inputs.values()]
    if serve.name != SERVE or len(shapes) != 1 or len(shapes[0]) != 4:
        raise ValueError(
            "`model` must take one input, images (B, H, W, 3), if `image_bytes` is "
            f"True. Received: signature `{serve.name}` with the inputs "
            f"{dict(zip(serve.inputs, shapes, strict=True))}"
        )
    layer = image_preprocessing(model)
    (name,) = serve.inputs

    def arrange(tensors: dict) -> Any:
        return serve.arrange({name: decode_images(tensors[IMAGE_BYTES], layer)})

    spec = tf.TensorSpec([None], tf.string, name=IMAGE_BYTES)
    inputs = Specs({IMAGE_BYTES: spec})
    return replace(serve, inputs=inputs, arrange=arrange, structure=None)
