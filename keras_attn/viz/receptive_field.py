"""The part of the image that a location of a feature map sees.

Legend: B images, H and W pixels, h and w size of a feature map, C channels.
"""

from typing import cast

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from keras_attn.viz.drawing.panels import add_frame, check_images
from keras_attn.viz.drawing.plots import TEXT_COLOR, add_title, new_figure

_HEAT = "magma"
_SIDE_INCHES = 3.4
_STRIP = 0.22  # Size of the profiles, as a share of the map.


def receptive_field(
    model: keras.Model,
    images,
    layer: str | None = None,
    place: tuple[int, int] | None = None,
) -> np.ndarray:
    """Measures how much each pixel influences one location of a feature map.

    `|∂ Σ_c z[place, c] g_c / ∂ x|`, summed over the channels of the image and averaged
    over images, with random signs g, so that channels do not cancel in the same way
    everywhere. The model runs with `training=False`.

    Args:
        model: Any functional or sequential Keras model of images, one input.
        images: (B, H, W, channels), inputs of the model; random ones work as well. More
            images leave fewer gaps where units are inactive.
        layer: Name of a layer of the model, whose output is a map (B, h, w, C). None =
            the model's output.
        place: Row and column on the map. None = its middle.

    Returns:
        Nonnegative float32 (H, W); pixels without influence have the value 0.

    Raises:
        ValueError: If the backend is not TensorFlow, the output is not a map, `layer`
            is unknown, or `place` is outside the map.

    Reference:
        Luo et al. 2016, "Understanding the Effective Receptive Field in Deep
        Convolutional Neural Networks" (arXiv:1701.04128).
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "Gradients with respect to the image need the TensorFlow backend. "
            f"Received: backend={keras.backend.backend()!r}"
        )
    if layer is not None:
        names = [each.name for each in model.layers]
        if layer not in names:
            raise ValueError(
                f"`layer` must be the name of a layer of the model, one of {names}. "
                f"Received: layer={layer!r}"
            )
        model = keras.Model(model.inputs, model.get_layer(layer).output)
    pixels = tf.cast(tf.convert_to_tensor(images), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(pixels)
        output = model(pixels, training=False)
        is_map = isinstance(output, tf.Tensor) and output.shape.rank == 4
        if not is_map:
            found = keras.tree.map_structure(lambda x: tuple(x.shape), output)
            raise ValueError(
                "`layer` must name a layer whose output is a map (B, h, w, C). "
                f"Received: layer={layer!r}, with an output of shape {found}"
            )
        _, height, width, channels = cast(tf.Tensor, output).shape.as_list()
        row, column = _check_place(place, (height, width))
        signs = np.random.default_rng(0).choice([-1.0, 1.0], channels)
        total = tf.reduce_sum(output[:, row, column] * tf.cast(signs, output.dtype))
    # Zeros where nothing connects the image and the map.
    zero = tf.UnconnectedGradients.ZERO
    gradient = tape.gradient(total, [pixels], unconnected_gradients=zero)[0]
    return np.abs(np.asarray(gradient)).sum(-1).mean(0).astype("float32")


def plot_receptive_field(
    model: keras.Model,
    images,
    layer: str | None = None,
    place: tuple[int, int] | None = None,
    *,
    title: str | None = None,
) -> Figure:
    """Draws the first image, and the part that a location of a feature map sees.

    The frame encloses all pixels with any influence (the receptive field). The colors
    show how strong the influence is (the effective receptive field, usually much
    smaller), and the curves its sums over rows and columns.

    Args:
        model: See `receptive_field`.
        images: See `receptive_field`.
        layer: See `receptive_field`.
        place: See `receptive_field`.
        title: Title of the figure. None names the layer.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: As for `receptive_field`, or if `images` do not have 1 or 3
            channels.

    Example:
        ```python
        import keras
        import numpy as np
        from keras_attn import viz

        noise = np.random.normal(size=(2, 96, 96, 3))
        vgg = keras.applications.VGG16(weights=None, include_top=False)
        viz.plot_receptive_field(vgg, noise, layer="block3_conv3")
        ```
    """
    shown = check_images(images)[0]
    field = receptive_field(model, images, layer, place)
    height, width = field.shape
    inches = _SIDE_INCHES * height / width
    figure = new_figure(
        2.3 * _SIDE_INCHES, inches * (1 + _STRIP) + 0.7, layout="constrained"
    )
    grid = figure.add_gridspec(
        2, 3, width_ratios=[1, 1, _STRIP], height_ratios=[_STRIP, 1]
    )
    image, heat = figure.add_subplot(grid[1, 0]), figure.add_subplot(grid[1, 1])
    above = figure.add_subplot(grid[0, 1], sharex=heat)
    beside = figure.add_subplot(grid[1, 2], sharey=heat)
    image.imshow(shown.clip(0, 1))
    # The square root also shows weak influence.
    heat.imshow(np.sqrt(field / max(field.max(), 1e-30)), cmap=_HEAT, vmin=0, vmax=1)
    above.fill_between(np.arange(width), field.sum(0), color="#b5367a", lw=0)
    beside.fill_betweenx(np.arange(height), field.sum(1), color="#b5367a", lw=0)
    for axis in (above, beside):
        axis.set_axis_off()
    rows, columns = np.flatnonzero(field.any(1)), np.flatnonzero(field.any(0))
    label = "no pixel has any influence"
    if rows.size:
        size = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
        label = f"{size[0]} × {size[1]} of {height} × {width} pixels"
        for axis, color in ((image, "#b5367a"), (heat, "white")):
            box = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
            add_frame(axis, box, color=color, ls="--")
    heat.set_xlabel(label, fontsize=8, color=TEXT_COLOR)
    for axis in (image, heat):
        axis.tick_params(labelsize=6, length=2, labelcolor=TEXT_COLOR)
    name = model.name if layer is None else f"{model.name}, {layer}"
    add_title(figure, f"What one location of {name} sees" if title is None else title)
    return figure


def _check_place(place, size) -> tuple[int, int]:
    if place is None:
        return size[0] // 2, size[1] // 2
    row, column = place
    if not (0 <= row < size[0] and 0 <= column < size[1]):
        raise ValueError(
            f"`place` must be a row and a column of the map of {tuple(size)}. "
            f"Received: place={place!r}"
        )
    return row, column
