import keras
import numpy as np
import pytest
from backend import skip_module_without_tensorflow
from matplotlib.patches import Rectangle
from viz.figures import panels

from keras_attn.viz import plot_receptive_field, receptive_field
from keras_attn.viz.drawing.plots import figure_to_array

skip_module_without_tensorflow("gradients by TensorFlow")

H, W = 41, 53
IMAGES = np.random.default_rng(0).normal(size=(3, H, W, 3)).astype("float32")


def build():
    """Sees 3, 5, then 6 pixels (pooling), then 10, and 26 with a dilation of 4."""
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((H, W, 3))
    for name in ("one", "two"):
        x = keras.layers.Conv2D(5, 3, padding="same", activation="relu", name=name)(x)
    x = keras.layers.AveragePooling2D(2, name="pool")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Conv2D(7, 3, padding="same", name="three")(x)
    x = keras.layers.Conv2D(7, 3, padding="same", dilation_rate=4, name="four")(x)
    flat = keras.layers.GlobalAveragePooling2D(name="flat")(x)
    dead = keras.layers.Rescaling(0.0, name="dead")(x)
    return keras.Model(inputs, [x, flat, dead], name="little")


MODEL = build()


@pytest.mark.parametrize(
    ("layer", "place", "rows", "columns"),
    [
        ("one", (20, 30), (19, 22), (29, 32)),
        ("two", (20, 30), (18, 23), (28, 33)),
        ("pool", (10, 15), (18, 24), (28, 34)),
        ("three", (10, 15), (16, 26), (26, 36)),
        ("four", (10, 13), (8, 34), (14, 40)),
        # Cut off at the border of the image.
        ("four", (0, 25), (0, 14), (38, 53)),
    ],
)
def test_fields_are_those_that_are_counted_by_hand(layer, place, rows, columns):
    field = receptive_field(MODEL, IMAGES, layer, place)
    assert field.shape == (H, W) and (field >= 0).all()
    seen = np.zeros((H, W), bool)
    seen[slice(*rows), slice(*columns)] = True
    assert not field[~seen].any()
    # Each border of the field has some influence.
    inside = field[slice(*rows), slice(*columns)]
    for border in (inside[0], inside[-1], inside[:, 0], inside[:, -1]):
        assert border.any()


def test_values_are_gradients():
    kernel = np.random.default_rng(1).normal(size=(3, 3, 1, 1)).astype("float32")
    model = keras.Sequential(
        [keras.Input((5, 7, 1)), keras.layers.Conv2D(1, 3, padding="same")]
    )
    model.layers[0].set_weights([kernel, np.zeros(1)])
    field = receptive_field(model, IMAGES[:2, :5, :7, :1])
    # The middle of 5 x 7.
    np.testing.assert_allclose(field[1:4, 2:5], np.abs(kernel[..., 0, 0]), rtol=1e-6)
    assert not field[0].any() and not field[:, 6].any()


def test_the_field_is_the_mean_of_those_of_the_images():
    alone = [receptive_field(MODEL, image[None], "three", (10, 13)) for image in IMAGES]
    assert np.abs(alone[0] - alone[1]).max() > 1e-3
    together = receptive_field(MODEL, IMAGES, "three", (10, 13))
    np.testing.assert_allclose(together, np.mean(alone, axis=0), rtol=1e-4, atol=1e-6)


def test_the_plot():
    figure = plot_receptive_field(MODEL, IMAGES, "four", (10, 13))
    image, heat = panels(figure)
    for ax in (image, heat):
        (frame,) = (each for each in ax.patches if isinstance(each, Rectangle))
        assert frame.get_xy() == (13.5, 7.5)
        assert (frame.get_width(), frame.get_height()) == (26, 26)
    assert heat.get_xlabel() == "26 × 26 of 41 × 53 pixels"
    assert figure.get_suptitle() == "What one location of little, four sees"
    assert np.asarray(heat.images[0].get_array()).max() == 1
    assert figure_to_array(figure).std() > 1
    figure = plot_receptive_field(MODEL, IMAGES[..., :3], "dead", title="none $")
    assert panels(figure)[1].get_xlabel() == "no pixel has any influence"
    assert figure.get_suptitle() == "none $"
    figure_to_array(figure)


def test_arguments_that_are_refused(monkeypatch):
    for layer, message in [
        (None, r"must name a layer.*layer=None, with an output of shape \["),
        ("flat", r"output is a map.*shape \(3, 7\)"),
        ("five", r"`layer` must be the name of a layer.*'four'.*layer='five'"),
    ]:
        with pytest.raises(ValueError, match=message):
            receptive_field(MODEL, IMAGES, layer)
    for place in [(20, 0), (0, 26), (-1, 0)]:
        with pytest.raises(ValueError, match=r"a row and a column of the map of \(20"):
            receptive_field(MODEL, IMAGES, "four", place)
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="need the TensorFlow backend.*'jax'"):
        receptive_field(MODEL, IMAGES, "four")
