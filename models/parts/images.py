"""Shared by image models: the input, convolutions, the head on their features.

Legend: B batch, H and W pixels, D width, C classes.
"""

import keras

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import as_pair, check_pair, check_positive
from keras_attn.layers import Conv2D
from keras_attn.layers.convolution.minimum_image_size import (
    MinimumImageSize,
    is_smaller,
)
from keras_attn.layers.normalization.batch_normalization import BatchNormalization
from keras_attn.models.parts.heads import INITIALIZER, logits_layer


def image_input(image_size, num_channels=3, patch_size: int | tuple[int, int] = 1):
    """The input `images`, (B, H, W, channels), of a fixed size.

    Args:
        image_size: In pixels: one number, or (rows, columns).
        num_channels: Channels of the images.
        patch_size: Pixels of the patches that must fill the images, one number or two.

    Raises:
        ValueError: If `image_size` is not a multiple of `patch_size`.
    """
    height, width = check_pair("image_size", image_size)
    rows, columns = check_pair("patch_size", patch_size)
    if height % rows or width % columns:
        raise ValueError(
            "`image_size` must be a multiple of `patch_size`, rows first: resize or "
            f"crop the images to {max(height - height % rows, rows)} × "
            f"{max(width - width % columns, columns)} pixels, or use patches that fill "
            f"them. Received: image_size={image_size}, patch_size={patch_size}"
        )
    return keras.Input((height, width, num_channels), name="images")


def any_image_input(image_size, num_channels, shrinks_by):
    """The input of a fully convolutional model, whose size may be variable.

    Args:
        image_size: In pixels: one number, or (rows, columns). None, or None as either
            number: any size; a layer `minimum_image_size` then rejects images that are
            too small.
        num_channels: Channels of the images.
        shrinks_by: Factor by which the last map is smaller than the image, rows first.

    Returns:
        The input `images`, (B, H, W, channels), and the tensor for the first layer.

    Raises:
        ValueError: If the last map would be empty at this `image_size`.
    """
    check_large_enough(image_size, shrinks_by)
    sides = image_sides(image_size)
    images = keras.Input((*sides, num_channels), name="images")
    if None not in sides:
        return images, images
    return images, MinimumImageSize(shrinks_by, name="minimum_image_size")(images)


def check_large_enough(image_size, shrinks_by):
    """Raises if the last map would be empty.

    Args:
        image_size: In pixels: one number, or (rows, columns); None for any number.
        shrinks_by: Factor by which the last map is smaller than the image, rows first.

    Raises:
        ValueError: If `image_size` is smaller than `shrinks_by`.
    """
    if is_smaller(image_sides(image_size), shrinks_by):
        raise ValueError(
            f"`image_size` must be at least {tuple(shrinks_by)}, rows first, because "
            "the last map is smaller by these factors. Use larger images or fewer "
            f"stages. Received: image_size={image_size}"
        )


def image_sides(image_size):
    """Rows and columns of pixels; None for any number."""
    sides = (None, None) if image_size is None else as_pair(image_size)
    if sides is None or None not in sides:
        return check_pair("image_size", image_size)
    return tuple(
        None if side is None else check_positive("image_size", side) for side in sides
    )


def classify(features, num_classes, name="classifier"):
    """Logits (B, C) in float32 from features (B, D).

    Args:
        features: A tensor of the model's graph.
        num_classes: C.
        name: Name of the layer.
    """
    logits = logits_layer(num_classes, name, kernel_initializer=INITIALIZER)
    return logits(features)


def classify_pixels(hidden, num_classes, size=1, name="classifier", **options):
    """Logits (B, H, W, C) in float32, under every policy, from a map (B, H, W, D).

    Args:
        hidden: A tensor of the model's graph.
        num_classes: C.
        size: Rows and columns of the kernel.
        name: Name of the layer.
        **options: Further arguments of the convolution.
    """
    return Conv2D(
        num_classes,
        size,
        padding="same",
        data_format="channels_last",
        dtype="float32",
        name=name,
        **options,
    )(hidden)


def convolution(
    width,
    size,
    name,
    *,
    padding="same",
    use_bias=False,
    kernel_initializer: Initializer = "he_normal",
    **options,
):
    """A convolution of maps, by default one before a norm and a ReLU."""
    return Conv2D(
        width,
        size,
        padding=padding,
        use_bias=use_bias,
        kernel_initializer=kernel_initializer,
        data_format="channels_last",
        name=name,
        **options,
    )


def batch_norm(name, gamma_initializer="ones"):
    """A batch norm over all but the channels, the last axis."""
    return BatchNormalization(
        momentum=0.9, epsilon=1e-5, gamma_initializer=gamma_initializer, name=name
    )


def normed_convolution(
    hidden,
    width,
    size,
    name,
    number="",
    *,
    kernel_initializer="he_normal",
    gamma_initializer="ones",
):
    """A convolution without biases, and a batch norm, (B, H, W, D) -> (B, H, W, width).

    Args:
        hidden: A tensor of the model's graph.
        width: Channels of the output.
        size: Rows and columns of the kernel.
        name: The layers are `<name>_conv` and `<name>_norm`.
        number: Suffix of both names.
        kernel_initializer: Initializer of the kernel.
        gamma_initializer: Initializer of the norm's factors.
    """
    conv_name = f"{name}_conv{number}"
    hidden = convolution(width, size, conv_name, kernel_initializer=kernel_initializer)(
        hidden
    )
    return batch_norm(f"{name}_norm{number}", gamma_initializer)(hidden)
