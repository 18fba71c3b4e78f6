"""`get_config` of the base class of the layers."""

import json

import keras
import pytest
from keras import ops

from keras_attn.layers.base import BaseLayer


@keras.saving.register_keras_serializable("test_base")
def halved(inputs):
    return ops.multiply(inputs, 0.5)


@keras.saving.register_keras_serializable("test_base")
def twos(shape, dtype=None):
    return 2 * ops.ones(shape, dtype)


class Scale(BaseLayer):
    def __init__(self, units, *, activation="relu", initializer="ones", **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.activation = keras.activations.get(activation)
        self.initializer = keras.initializers.get(initializer)


class Inherits(Scale):
    """Takes the arguments of its base through `**kwargs`."""

    def __init__(self, units, ratio=1.0, **kwargs):
        super().__init__(units, **kwargs)
        self.ratio = ratio


class Lists(Scale):
    """Stores an argument under another name, and so lists its own arguments."""

    def __init__(self, units, percentage, **kwargs):
        super().__init__(units, **kwargs)
        self.ratio = percentage / 100

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "percentage": 100 * self.ratio,
        }


class InheritsGetConfig(Lists):
    def __init__(self, *, sizes=(), **kwargs):
        super().__init__(**kwargs)
        self.sizes = sizes


class TakesNameAndDtype(Scale):
    """Has arguments of `keras.layers.Layer` in its own signature."""

    def __init__(self, units, name=None, dtype=None, **kwargs):
        super().__init__(units, name=name, dtype=dtype, **kwargs)


@pytest.mark.parametrize(
    "layer, expected",
    [
        (Scale(3), {"units": 3, "activation": "relu"}),
        (Inherits(3, 0.5, activation="gelu"), {"ratio": 0.5, "activation": "gelu"}),
        (Lists(3, 25, activation="gelu"), {"percentage": 25.0, "activation": "gelu"}),
        (
            InheritsGetConfig(units=3, percentage=25, sizes=[5, 7]),
            {"percentage": 25.0, "sizes": [5, 7]},
        ),
        (
            TakesNameAndDtype(3, "own", "mixed_bfloat16", trainable=False),
            {"name": "own", "trainable": False},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_config_creates_an_equal_layer(layer, expected):
    config = layer.get_config()
    assert config.items() >= {"units": 3, **expected}.items()
    twin = type(layer).from_config(json.loads(json.dumps(config)))
    assert twin.get_config() == config
    assert twin.dtype_policy == layer.dtype_policy


@pytest.mark.parametrize("activation", [None, "gelu", keras.activations.tanh, halved])
@pytest.mark.parametrize(
    "initializer",
    [None, "he_normal", keras.initializers.Constant(0.25), twos],
)
def test_activations_and_initializers_survive_json(activation, initializer):
    layer = Scale(3, activation=activation, initializer=initializer)
    twin = Scale.from_config(json.loads(json.dumps(layer.get_config())))
    assert twin.activation is layer.activation
    assert type(twin.initializer) is type(layer.initializer)
    if isinstance(layer.initializer, keras.initializers.Initializer):
        assert twin.initializer.get_config() == layer.initializer.get_config()
    else:
        assert twin.initializer is layer.initializer


def test_an_argument_that_is_no_attribute_is_left_out():
    class Forgets(Scale):
        def __init__(self, units, percentage=50, **kwargs):
            super().__init__(units, **kwargs)
            self.ratio = percentage / 100

    config = Forgets(3, 25).get_config()
    assert config["units"] == 3 and "percentage" not in config
    assert Forgets.from_config(config).ratio == 0.5
