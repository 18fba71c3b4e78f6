"""VGG: a deep stack of 3 × 3 convolutions, then fully connected layers.

    build_vgg  images -> logits, or the features of each stage

Legend: B batch, H and W pixels, C classes.
Layers: as in `models/parts/backbones/vgg.py`; `flatten`, `fully_connected_0`,
`fully_connected_0_dropout`, `fully_connected_1`, …, `classifier`. If `image_size` is
None, `minimum_image_size` comes first.
"""

from collections.abc import Sequence
from typing import Annotated

from keras import ops
from keras.layers import Flatten

from keras_attn.checks.argument_types import AnySize, MayBeEmpty, Probability
from keras_attn.layers import Dense
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.initializers import normal
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.backbones.vgg import VGG16, vgg
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.heads import logits_layer
from keras_attn.models.parts.images import (
    any_image_input,
)

VARIANTS = {"16": VGG16}
CARDS = model_cards(
    "vgg{variant}",
    {"16": 138_357_544},
    training=Training(
        "ImageNet",
        "sections 3.1 and 3.3",
        images=370_000 * 256,
        hardware="TITAN Black",
        devices=4,
    ),
    scores=[
        scored(
            "ImageNet top-1",
            "at 224",
            "torchvision's first weights",
            {"16": 71.6},
        )
    ],
    title="VGG{variant}: a deep stack of 3 × 3 convolutions",
    paper="Simonyan and Zisserman 2015, arXiv:1409.1556",
    # torchvision's `ImageClassification(crop_size=224)`, for its first weights.
    **tasks.image_classification(tasks.IMAGENET, "bilinear", 0.875),
)


@registered(CARDS, VARIANTS)
def build_vgg(
    variant: str = "16",
    *,
    image_size: AnySize = 224,
    num_classes: int = 1000,
    include_top: bool = True,
    hidden_dims: Sequence[int] = FROM_VARIANT,
    num_convs: Sequence[int] = FROM_VARIANT,
    fully_connected_dims: Annotated[Sequence[int], MayBeEmpty()] = FROM_VARIANT,
    num_channels: int = 3,
    dropout: Probability = 0.5,
    name: str = "vgg",
) -> Functional:
    """Stages of 3 × 3 convolutions with max pooling, then fully connected layers.

    A map with an odd number of rows or columns is cropped at the bottom and on the
    right where it is pooled.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        image_size: In pixels: one number, or (rows, columns). Without the top, one or
            both may be None for any size. The first fully connected layer has weights
            for each location of the last map, so with the top the size is fixed;
            `convolutionize(model)` gives a model for larger images.
        num_classes: C.
        include_top: Whether the model outputs logits (True) or features (False).
        hidden_dims: Channels of each stage.
        num_convs: Convolutions of each stage.
        fully_connected_dims: Units of each fully connected layer before the last.
        num_channels: Channels of the images.
        dropout: Probability of dropping a unit of a fully connected layer.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels) to logits (B, C); without the top, to
        a dictionary of the maps `stage_0`, …, (B, rows, columns, width), the first of
        the size of the images and each of the others half as large as the one before,
        taken before pooling; and `pooled_output`, the mean of the last map after
        pooling.

    Raises:
        ValueError: If `hidden_dims` and `num_convs` differ in length, the last map
            would be empty at this `image_size`, or `image_size` is unknown with the
            top.

    Reference:
        Simonyan and Zisserman 2015, "Very Deep Convolutional Networks for Large-Scale
        Image Recognition" (arXiv:1409.1556).
    """
    images, hidden = any_image_input(
        image_size, num_channels, [2 ** len(hidden_dims)] * 2
    )
    if include_top and None in images.shape[1:3]:
        raise ValueError(
            "`image_size` must be given with `include_top=True`, because the first "
            "fully connected layer has weights for each location of the last map. For "
            "any size, pass a model of one size to `keras_attn.models.convolutionize`, "
            "or use `include_top=False`. "
            f"Received: image_size={image_size}"
        )
    maps = vgg(hidden, hidden_dims=hidden_dims, num_convs=num_convs)
    last = maps[f"pooled_{len(hidden_dims) - 1}"]
    if not include_top:
        stages = {name: map for name, map in maps.items() if name.startswith("stage_")}
        outputs = {**stages, "pooled_output": ops.mean(last, axis=(1, 2))}
        return Functional(images, outputs, name=name)
    hidden = Flatten(data_format="channels_last", name="flatten")(last)
    for index, units in enumerate(fully_connected_dims):
        hidden = Dense(
            units,
            activation="relu",
            kernel_initializer=normal(0.01),
            name=f"fully_connected_{index}",
        )(hidden)
        hidden = Dropout(dropout, name=f"fully_connected_{index}_dropout")(hidden)
    logits = logits_layer(num_classes, "classifier", kernel_initializer=normal(0.01))
    return Functional(images, logits(hidden), name=name)
