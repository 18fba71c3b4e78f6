"""U-Net: a contracting path, an expanding path, and skips between maps of equal size.

    build_unet  images -> logits of each pixel, on its own encoder or any backbone

How the maps for the skips are found in a backbone: `models/parts/backbones/skips.py`.

Legend: B batch, H and W pixels, C classes.
Layers: `stage_0_conv_0`, `stage_0_conv_1`, `stage_0_pooling`, …, with dropout
`stage_3_dropout` and `stage_4_dropout`; the decoder's have the number of the stage
whose map they use: `decoder_3_upsampling`, `decoder_3_crop` where sizes differ or are
unknown, `decoder_3_conv_0`, `decoder_3_conv_1`, `decoder_2_upsampling`, …;
`classifier`. With a variable image size, `minimum_image_size` comes first. On a
backbone: the layers of the backbone, and for each halving, starting from the last,
`decoder_4_upsampling`, `decoder_4_concatenation`, `decoder_4_conv_0`,
`decoder_4_norm_0`, `decoder_4_relu_0`, `decoder_4_conv_1`, …, `decoder_3_upsampling`,
…; `classifier`.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import keras
from keras import ops
from keras.layers import Concatenate, MaxPooling2D, ReLU, UpSampling2D

from keras_attn.checks.argument_types import AnySize, MayBeEmpty, Probability
from keras_attn.layers import (
    Conv2D,
    CropLike,
    MinimumImageSize,
    TransposedConv2D,
    UpsampleLike,
)
from keras_attn.layers.dropout import Dropout
from keras_attn.models.catalog.arguments import checks_arguments
from keras_attn.models.catalog.cards import Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT, with_sizes
from keras_attn.models.parts.backbones.skips import find_skips
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.images import (
    any_image_input,
    classify_pixels,
    image_sides,
    normed_convolution,
)
from keras_attn.ops.pooling import Padding

# Ronneberger et al. 2015, figure 1; dropout as published with it.
VARIANTS = {
    "base": {
        "hidden_dims": (64, 128, 256, 512, 1024),
        "padding": "valid",
        "num_channels": 1,
        "dropout": 0.5,
    },
}
CARDS = model_cards(
    "unet",
    {"base": 31_030_658},
    training=Training(
        "ISBI 2012, 30 images",
        "sections 4 and 5",
        hardware="Titan",
        devices=1,
        hours=10,
    ),
    scores=[
        scored("ISBI 2012 warping error", "", "table 1", {"base": 0.000353}),
        scored("ISBI 2012 Rand error", "", "table 1", {"base": 0.0382}),
    ],
    title="U-Net: skips between maps of one size",
    paper="Ronneberger et al. 2015, arXiv:1505.04597",
    task="semantic segmentation",
    inputs={"images": "(B, H, W, 1) float, gray; in [0, 1]"},
    outputs={"logits": "(B, H - 184, W - 184, C) float32, one score per pixel"},
)


@registered(CARDS)
@checks_arguments
def build_unet(
    variant: str = "base",
    *,
    backbone: keras.Model | None = None,
    image_size: AnySize = None,
    num_classes: int = 2,
    hidden_dims: Sequence[int] = FROM_VARIANT,
    padding: Padding = FROM_VARIANT,
    num_channels: int = FROM_VARIANT,
    dropout: Probability = FROM_VARIANT,
    decoder_dims: Annotated[Sequence[int], MayBeEmpty()] | None = None,
    skip_layers: Sequence[str] | None = None,
    name: str = "unet",
) -> Functional:
    """An encoder, and a decoder that enlarges its last map, aided by the earlier maps.

    Without a `backbone`, the network of the paper. Its convolutions are `"valid"`: they
    use no pixel outside the image, so the output is smaller than the image by 184
    pixels, 92 on each side, and only some sizes have even maps at every halving: 188,
    204, 220, …, 572 and so on in steps of 16. To get an output of the image's size,
    mirror the border (`keras_attn.tiling.predict_tiles` does). With `"same"`, maps are
    padded with zeros, every size works, and the output has the size of the image: odd
    maps are padded where they are pooled, and cropped where they are enlarged.

    With a `backbone`, the decoder of segmentation-models-pytorch's `Unet` on the
    backbone's last map of each size: each map is enlarged by repetition, concatenated
    with the next larger map, and passed through two convolutions with batch norms. The
    model has the backbone's input, shares its layers, and its output has the size of
    the image. Where the backbone's convolutions have cropped the border ("valid", as in
    InceptionV3 and Xception), enlarged maps are extended or cropped on all sides.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        backbone: A functional Keras model of images (B, H, W, channels): from
            `keras.applications`, from this library, or your own. A head is left out.
        image_size: In pixels: one number, or (rows, columns). None = images of any
            size, which may differ between batches; either number may also be None. On a
            backbone: the size of its input.
        num_classes: C.
        hidden_dims: Channels of each stage, without a backbone.
        padding: `"valid"` or `"same"`, without a backbone.
        num_channels: Channels of the images, without a backbone.
        dropout: Probability of dropping a unit at the end of the last two stages,
            without a backbone.
        decoder_dims: On a backbone: channels after each enlargement, starting from the
            smallest map. Default: 16 at the size of the image, twice as many at each
            smaller size: (256, 128, 64, 32, 16) for a smallest map of 1 / 32.
        skip_layers: On a backbone: names of the layers whose maps to use, in any order;
            the decoder begins with the smallest map. Default: the last map of each size
            on which everything after it depends.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels) to logits (B, H, W, C), with
        `padding="valid"` (B, H - 184, W - 184, C).

    Raises:
        TypeError: If `backbone` is not a functional Keras model.
        ValueError: If the maps would be odd or empty at this `image_size`, an argument
            does not apply to this kind of encoder, a size is not a positive integer, or
            the maps of `backbone` are not found.

    Reference:
        Ronneberger et al. 2015, "U-Net: Convolutional Networks for Biomedical Image
        Segmentation" (arXiv:1505.04597).
    """
    own = {
        "image_size": image_size,
        "hidden_dims": hidden_dims,
        "padding": padding,
        "num_channels": num_channels,
        "dropout": dropout,
    }
    of_backbone = {"decoder_dims": decoder_dims, "skip_layers": skip_layers}
    if backbone is None:
        _refuse(of_backbone, "are for a U-Net on a `backbone`")
        return _build_own(variant, num_classes=num_classes, name=name, **own)
    _refuse(own, "are determined by the `backbone`")
    return _build_on(backbone, num_classes, decoder_dims, skip_layers, name)


def _refuse(arguments, reason):
    given = {
        name: value
        for name, value in arguments.items()
        if value is not None and value is not FROM_VARIANT
    }
    if given:
        names = ", ".join(f"`{name}`" for name in arguments)
        received = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ValueError(f"{names} {reason}: leave them out. Received: {received}")


@with_sizes(VARIANTS)
def _build_own(
    variant="base",
    *,
    image_size=None,
    num_classes,
    hidden_dims=FROM_VARIANT,
    padding=FROM_VARIANT,
    num_channels=FROM_VARIANT,
    dropout=FROM_VARIANT,
    name,
):
    """The network of the paper; see `build_unet`."""
    halvings = len(hidden_dims) - 1
    images, hidden = _image_input(image_size, num_channels, halvings, padding)
    maps = []
    for stage, width in enumerate(hidden_dims):
        hidden = _convolutions(hidden, width, padding, f"stage_{stage}")
        if dropout and stage >= halvings - 1:
            hidden = Dropout(dropout, name=f"stage_{stage}_dropout")(hidden)
        if stage < halvings:
            maps.append(hidden)
            hidden = MaxPooling2D(
                padding=padding,
                data_format="channels_last",
                name=f"stage_{stage}_pooling",
            )(hidden)
    # Rows and columns of a skip that "valid" convolutions cropped from each side of
    # the enlarged map.
    margin = 4
    for stage in reversed(range(halvings)):
        hidden = TransposedConv2D(
            hidden_dims[stage],
            2,
            2,
            kernel_initializer="he_normal",
            name=f"decoder_{stage}_upsampling",
        )(hidden)
        skip, crop = maps[stage], f"decoder_{stage}_crop"
        if padding == "valid":
            skip = CropLike(margin, name=crop)(skip, hidden)
            margin = 2 * margin + 8
        elif None in skip.shape[1:3] or hidden.shape[1:3] != skip.shape[1:3]:
            hidden = CropLike(name=crop)(hidden, skip)
        hidden = ops.concatenate([skip, hidden], axis=-1)
        hidden = _convolutions(hidden, hidden_dims[stage], padding, f"decoder_{stage}")
    return Functional(images, classify_pixels(hidden, num_classes), name=name)


def _image_input(image_size, num_channels, halvings, padding):
    """The input, and the tensor for the first layer; see `any_image_input`."""
    if padding == "same":
        return any_image_input(image_size, num_channels, (1, 1))
    step = 2**halvings
    # Two convolutions remove 4 rows and columns from each map.
    least = _least_size(halvings)
    sides: Any = image_sides(image_size)
    if any(
        side is not None and (side < least or (side - least) % step) for side in sides
    ):
        raise ValueError(
            f"`image_size` must be {least} plus a multiple of {step}, so that each map "
            "that is halved has an even number of rows and columns, and no map is "
            'empty: pad the images, or use padding="same". '
            f"Received: image_size={image_size}"
        )
    images = keras.Input((*sides, num_channels), name="images")
    if None not in sides:
        return images, images
    layer = MinimumImageSize(least, step, name="minimum_image_size")
    return images, layer(images)


def _least_size(halvings):
    """Rows of the smallest image with a non-empty output."""
    step = 2**halvings
    lost = 4 * (step - 1)
    # From n rows of the last map before its convolutions, the image has
    # `step * n + lost` rows, and the output `step * (n - 4) - lost`.
    rows = 4 + lost // step + 1
    return step * rows + lost


def _convolutions(hidden, width, padding, name):
    """Two 3 × 3 convolutions, each followed by a ReLU."""
    for index in range(2):
        hidden = Conv2D(
            width,
            3,
            padding=padding,
            activation="relu",
            kernel_initializer="he_normal",
            data_format="channels_last",
            name=f"{name}_conv_{index}",
        )(hidden)
    return hidden


def _build_on(backbone, num_classes, decoder_dims, skip_layers, name):
    """A decoder on the maps of another model; see `build_unet`."""
    maps, lacking = find_skips(backbone, skip_layers)
    last = max(maps)
    dims = tuple(16 * 2**i for i in reversed(range(last)))
    dims = dims if decoder_dims is None else tuple(decoder_dims)
    if len(dims) != last:
        raise ValueError(
            "`decoder_dims` must have one number for each halving of the backbone's "
            f"smallest map, {last}. Received: decoder_dims={decoder_dims}"
        )
    images = backbone.inputs[0]
    hidden, missing = maps[last], 1
    lacks = last in lacking  # Whether the map has lost its border.
    for scale, width in zip(reversed(range(last)), dims, strict=True):
        layer_name = f"decoder_{scale}"
        skip = maps.get(scale)
        upsampling = f"{layer_name}_upsampling"
        if skip is None and scale:
            # No map gives the size; the next one does.
            layer = UpSampling2D(data_format="channels_last", name=upsampling)
            hidden = layer(hidden)
            missing = 2 * missing + 1
        else:
            reference = images if skip is None else skip
            centered = lacks or scale in lacking
            layer = UpsampleLike(missing, centered, name=upsampling)
            hidden = layer(hidden, reference)
            missing, lacks = 1, scale in lacking
        if skip is not None:
            # Named, like all layers here: the backbone may have a layer "concatenate".
            layer = Concatenate(axis=-1, name=f"{layer_name}_concatenation")
            hidden = layer([hidden, skip])
        hidden = _normed_convolutions(hidden, width, layer_name)
    return Functional(images, classify_pixels(hidden, num_classes, 3), name=name)


def _normed_convolutions(hidden, width, name):
    """Two 3 × 3 convolutions, each followed by a batch norm and a ReLU."""
    for index in range(2):
        hidden = normed_convolution(
            hidden, width, 3, name, f"_{index}", kernel_initializer="he_uniform"
        )
        hidden = ReLU(name=f"{name}_relu_{index}")(hidden)
    return hidden
