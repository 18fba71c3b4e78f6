"""Applies a layer for single images to every frame of a sequence.

Legend: B batch, T frames, … the axes of one frame.
"""

from typing import Any

import keras
from keras import ops

from keras_attn.layers.adaptation.kernel_layer import RestoresAdapters
from keras_attn.layers.adaptation.quantization import Quantizable


@keras.saving.register_keras_serializable("keras_attn")
class PerFrame(Quantizable, RestoresAdapters, keras.layers.Wrapper):
    """`y_bt = layer(x_bt)`, for all frames at once.

    The frames of a batch become one batch of frames, so a convolution runs once. Keras'
    `TimeDistributed` maps the layer over the steps.

    Args:
        layer: A Keras layer without dropout and without state.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, …).

    Returns:
        (B, T, …), the outputs of the layer for each frame.

    Raises:
        TypeError: If `layer` is not a Keras layer.
        ValueError: If `inputs` has fewer than 3 axes.

    Example:
        ```python
        import keras
        import numpy as np
        from keras_attn import layers

        videos = np.random.uniform(size=(2, 5, 32, 48, 3))  # (B, T, H, W, C)
        layers.PerFrame(keras.layers.Conv2D(16, 3))(videos)  # (2, 5, 30, 46, 16)
        ```
    """

    def __init__(self, layer: Any, **kwargs):
        if not isinstance(layer, keras.layers.Layer):
            raise TypeError(
                "`layer` must be a Keras layer, such as `keras.layers.Conv2D`. "
                f"Received: layer={layer!r}"
            )
        super().__init__(layer, **kwargs)

    def build(self, input_shape=None):
        batch, *frame = _without_steps(input_shape)
        if not self.layer.built:
            self.layer.build((batch, *frame))
        self.built = True

    def call(self, inputs):
        _without_steps(inputs.shape)
        batch, steps = ops.shape(inputs)[:2]
        outputs = self.layer(ops.reshape(inputs, (-1, *ops.shape(inputs)[2:])))
        return ops.reshape(outputs, (batch, steps, *ops.shape(outputs)[1:]))

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        # Built in `build`, not here, so that the weights keep their paths.
        layer = {**config.pop("layer"), "build_config": None}
        layer = keras.saving.deserialize_keras_object(
            layer, custom_objects=custom_objects
        )
        return cls(layer, **config)

    def compute_output_shape(self, input_shape):
        batch, *frame = _without_steps(input_shape)
        outputs = self.layer.compute_output_shape((batch, *frame))
        return (batch, input_shape[1], *outputs[1:])


def _without_steps(shape) -> tuple:
    """The shape of a batch of single frames."""
    if shape is None or len(shape) < 3:
        raise ValueError(
            "`inputs` must have the axes (batch, steps, …), at least 3. "
            f"Received: inputs.shape={shape if shape is None else tuple(shape)}"
        )
    return (shape[0], *shape[2:])
