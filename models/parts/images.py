"""What all models of images share: their input, and the head over their features.

Legend: B batch, H and W pixels, D width, C classes.
"""

from typing import Any

import keras
from keras.layers import Dense

from keras_attn.checks import check_pair, check_positive
from keras_attn.layers import MinimumImageSize
from keras_attn.models.parts.heads import INITIALIZER
from keras_attn.models.parts.registry import ModelCard

# What images are scaled by before a model of a public checkpoint sees them: in [0, 1],
# minus a mean, by a deviation, for red, green and blue.
HALF = "[-1, 1]: in [0, 1], mean and deviation 0.5"
IMAGENET = (
    "in [0, 1], minus the mean (0.485, 0.456, 0.406), by the deviation "
    "(0.229, 0.224, 0.225)"
)


def image_input(image_size, num_channels=3):
    """The input `images`, (B, H, W, channels), of one size.

    Args:
        image_size: Pixels, one number or two, rows first.
        num_channels: Of the images.
    """
    height, width = check_pair("image_size", image_size)
    check_positive("num_channels", num_channels)
    return keras.Input((height, width, num_channels), name="images")


def any_image_input(image_size, num_channels, shrinks_by):
    """The input of a fully convolutional model, and what its first layer reads.

    Args:
        image_size: Pixels, one number or two, rows first. None, or None of two: any
            number, and a layer `minimum_image_size` refuses images that are too small.
        num_channels: Of the images.
        shrinks_by: How many times smaller the last map is, rows first.

    Returns:
        The input `images`, (B, H, W, channels), and the same tensor, checked.

    Raises:
        ValueError: for a size of which nothing would be left in the last map.
    """
    check_large_enough(image_size, shrinks_by)
    check_positive("num_channels", num_channels)
    sides = _sides(image_size)
    images = keras.Input((*sides, num_channels), name="images")
    if None not in sides:
        return images, images
    return images, MinimumImageSize(shrinks_by, name="minimum_image_size")(images)


def check_large_enough(image_size, shrinks_by):
    """Raises where nothing would be left of an image.

    Args:
        image_size: Pixels, one number or two, rows first; None for any number.
        shrinks_by: How many times smaller the last map is, rows first.

    Raises:
        ValueError: for fewer pixels than that.
    """
    sizes = zip(_sides(image_size), shrinks_by, strict=True)
    if any(size is not None and size < factor for size, factor in sizes):
        raise ValueError(
            f"`image_size` must be at least {tuple(shrinks_by)}, rows first: the last "
            "map is that many times smaller. Take larger images or fewer stages. "
            f"Received: image_size={image_size}"
        )


def _sides(image_size):
    """Rows and columns of pixels, None for any number."""
    is_pair = isinstance(image_size, list | tuple) and len(image_size) == 2
    sides: Any = image_size if is_pair else (image_size, image_size)
    if None not in sides:
        return check_pair("image_size", image_size)
    return tuple(
        None if side is None else check_positive("image_size", side) for side in sides
    )


def classify(features, num_classes, name="classifier"):
    """Logits (B, C) in float32 from features (B, D).

    Args:
        features: A tensor of the model's graph.
        num_classes: C.
        name: Of the layer.
    """
    return Dense(
        check_positive("num_classes", num_classes),
        kernel_initializer=INITIALIZER,
        # In float32 whatever the policy: a softmax follows.
        dtype="float32",
        name=name,
    )(features)


def image_card(name, family, title, paper, year, parameters, pixels, notes=""):
    """The card of a classifier of 1,000 classes.

    Args:
        name: Of the registry.
        family: File of `models/`.
        title: One line.
        paper: Authors, year, arXiv id.
        year: Of publication.
        parameters: Published count.
        pixels: What values images have.
        notes: What else the paper reports.
    """
    return ModelCard(
        name=name,
        family=family,
        title=title,
        paper=paper,
        year=year,
        task="image classification",
        parameters=parameters,
        inputs={"images": f"(B, H, W, 3) float, red, green, blue; {pixels}"},
        outputs={"logits": "(B, C) float32, a score a class"},
        notes=notes,
    )
