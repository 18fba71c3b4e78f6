"""Images for models that write or answer: a grid of features, one per location.

Legend: B batch, H and W pixels, h and w rows and columns of the grid, C channels.
"""

from typing import Any

import keras

from keras_attn.checks.arguments import check_pair, check_positive
from keras_attn.models.parts.backbones.skips import check_backbone
from keras_attn.models.parts.functional import sequence_inputs


def places_and_text(names, backbone, grid_size, feature_dim):
    """The inputs of a model of an image and a text, and the locations of the image.

    Args:
        names: Names of the inputs of the text, as for `sequence_inputs`.
        backbone: As in `grid_input`.
        grid_size: As in `grid_input`.
        feature_dim: As in `grid_input`.

    Returns:
        `images` or `features`, and the inputs (B, T) of the text, by name; and one
        vector per location, (B, h · w, C), row by row, from the layer `places`.
    """
    image, grid = grid_input(backbone, grid_size, feature_dim)
    places = keras.layers.Reshape((-1, grid.shape[-1]), name="places")(grid)
    return {**image, **sequence_inputs(*names)}, places


def grid_input(backbone, grid_size, feature_dim):
    """The input of a model that looks at an image, and the grid that it looks at.

    Args:
        backbone: A functional Keras model from images (B, H, W, channels) to a map, or
            to several, of which the last is used: from `keras.applications` with
            `include_top=False`, from this library, or your own. It becomes the layer
            `backbone`. None = the model takes precomputed features.
        grid_size: h and w of the input `features`, one number or two, without a
            backbone.
        feature_dim: C of the input `features`, without a backbone.

    Returns:
        The input, `images` (B, H, W, channels) or `features` (B, h, w, C), in a
        dictionary by its name; and the grid, (B, h, w, C).

    Raises:
        TypeError: If `backbone` is not a functional Keras model.
        ValueError: If `backbone` has other inputs or does not output a map, or a size
            is not a positive integer.
    """
    if backbone is None:
        size = check_pair("grid_size", grid_size)
        check_positive("feature_dim", feature_dim)
        features: Any = keras.Input((*size, feature_dim), name="features")
        return {"features": features}, features
    _check(backbone)
    shape = tuple(backbone.inputs[0].shape)[1:]
    images: Any = keras.Input(shape, dtype=backbone.inputs[0].dtype, name="images")
    # From the same layers, so that what is frozen in the backbone is frozen here.
    encoder = keras.Model(backbone.inputs[0], _last_map(backbone), name="backbone")
    return {"images": images}, encoder(images)


def read_grid(layers, inputs):
    """The grid (B, h, w, C) of new inputs, for `prefill` of a model with `grid_input`.

    Args:
        layers: Layers of the model by name.
        inputs: The new inputs by name: `features`, or `images`.
    """
    if "backbone" in layers:
        return layers["backbone"](inputs["images"])
    return inputs["features"]


def _check(backbone):
    check_backbone(backbone)
    if _last_map(backbone) is None:
        shapes = [tuple(tensor.shape) for tensor in backbone.outputs]
        raise ValueError(
            "`backbone` must return a map (batch, rows, columns, channels): build it "
            "with include_top=False, or cut it before its pooling by "
            "`keras.Model(model.input, model.get_layer(…).output)`. "
            f"Received: backbone={backbone!r} with outputs of {shapes}"
        )


def _last_map(backbone):
    """The last output with rows, columns and channels, or None."""
    maps = [tensor for tensor in backbone.outputs if len(tensor.shape) == 4]
    return maps[-1] if maps else None
