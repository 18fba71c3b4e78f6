"""The feature pyramid network.

Legend: B batch, R and S rows and columns of a map, C channels, D width.
"""

import keras
import numpy as np
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import check_positive
from keras_attn.layers.adaptation.keras_layers import Conv2D
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.initializers import independent_copy


@keras.saving.register_keras_serializable("keras_attn")
class FeaturePyramid(BaseLayer):
    """`P_l = conv(Q_l)`, `Q_l = W_l C_l + enlarge(Q_{l+1})`: maps of one width.

    W_l is a 1 × 1 convolution, conv a 3 × 3 convolution. A map is enlarged to the rows
    and columns of the next finer map by nearest-neighbor interpolation, for any ratio
    of their sizes.

    Args:
        units: D, channels of all outputs.
        extra_level: Whether to add a map of every second row and column of the coarsest
            map.
        kernel_initializer: Initializer of each kernel.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: Maps (B, R, S, C), a list from the finest to the coarsest, with known
            sizes but B.

    Returns:
        A list of maps (B, R, S, D) of the same sizes, and the extra map if there is
        one.

    Raises:
        ValueError: If `inputs` is not a list of maps.

    Reference:
        Lin et al. 2017, "Feature Pyramid Networks for Object Detection", section 3
        (arXiv:1612.03144).
    """

    def __init__(
        self,
        units: int = 256,
        *,
        extra_level: bool = True,
        kernel_initializer: Initializer = "he_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = check_positive("units", units)
        self.extra_level = extra_level
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, inputs_shape):
        check_maps(inputs_shape)

        def convolution(size, name):
            return Conv2D(
                self.units,
                size,
                padding="same",
                data_format="channels_last",
                kernel_initializer=independent_copy(self.kernel_initializer, name),
                dtype=self.dtype_policy,
                name=name,
            )

        levels = range(len(inputs_shape))
        self.inner = [convolution(1, f"inner_{level}") for level in levels]
        self.outer = [convolution(3, f"outer_{level}") for level in levels]
        for inner, outer, shape in zip(
            self.inner, self.outer, inputs_shape, strict=True
        ):
            inner.build(shape)
            outer.build((*shape[:-1], self.units))

    def call(self, inputs):
        maps, coarser = [], None
        for level in reversed(range(len(inputs))):
            hidden = self.inner[level](inputs[level])
            if coarser is not None:
                hidden = hidden + _enlarged(coarser, hidden.shape[1:3])
            coarser = hidden
            maps.insert(0, self.outer[level](hidden))
        if self.extra_level:
            maps.append(
                ops.max_pool(maps[-1], 1, strides=2, data_format="channels_last")
            )
        return maps

    def compute_output_shape(self, inputs_shape):
        shapes = [(*shape[:-1], self.units) for shape in inputs_shape]
        if self.extra_level:
            batch, rows, columns, width = shapes[-1]
            shapes.append((batch, -(-rows // 2), -(-columns // 2), width))
        return shapes


def check_maps(shapes):
    """Raises unless `shapes` are the shapes of a list of maps of known sizes."""
    is_list = isinstance(shapes, list | tuple) and all(
        isinstance(shape, list | tuple) and len(shape) == 4 for shape in shapes
    )
    if not is_list or any(None in shape[1:] for shape in shapes):
        raise ValueError(
            "`inputs` must be a list of maps, (batch, rows, columns, channels) each, "
            f"with known sizes except the batch. Received: shapes {shapes}"
        )


def _enlarged(inputs, size):
    """A map (B, R, S, D) resized to `size` by nearest-neighbor interpolation."""
    for axis, (old, new) in enumerate(
        zip(inputs.shape[1:3], size, strict=True), start=1
    ):
        if old != new:
            inputs = ops.take(inputs, np.arange(new) * old // new, axis=axis)
    return inputs
