"""Sinusoidal encoding of relative positions, for Transformer-XL and XLNet.

Legend: B batch, T tokens, M memory length, S = M + T keys, R = T + S distances,
D width.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_positive_or_none, check_rank
from keras_attn.layers.base import BaseLayer
from keras_attn.ops.relative import relative_distances, relative_sinusoids


def encode_distances(
    inputs, memory=None, *, max_distance=None, max_wavelength: float = 10_000, dtype
):
    """Sinusoids of the distances between all tokens and all keys.

    Args:
        inputs: (B, T, D).
        memory: (B, M, D), or None.
        max_distance: Larger distances count as this distance. None = no limit.
        max_wavelength: w; wavelengths run from 2π to 2πw positions.
        dtype: Dtype of the result.

    Returns:
        (1, R, D), for the distances S, S-1, …, 1-T.
    """
    length = key_length = ops.shape(inputs)[1]
    if memory is not None:
        key_length = ops.shape(memory)[1] + length
    distances = relative_distances(length, key_length)
    if max_distance is not None:
        distances = ops.clip(distances, -max_distance, max_distance)
    table = relative_sinusoids(distances, inputs.shape[-1], max_wavelength)
    return ops.expand_dims(ops.cast(table, dtype), 0)


@keras.saving.register_keras_serializable("keras_attn")
class RelativePositionEncoding(BaseLayer):
    """Sinusoids of the distances between all tokens and all keys.

    Args:
        max_distance: Larger distances count as this distance. Default: no limit.
        max_wavelength: w; wavelengths run from 2π to 2πw positions.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, D).
        memory: (B, M, D), the hidden states of the segments before the inputs.

    Returns:
        (1, R, D), for the distances S, S-1, …, 1-T.

    Raises:
        ValueError: If `inputs` or `memory` does not have 3 axes.

    Reference:
        Dai et al. 2019, "Transformer-XL", section 3.3 (arXiv:1901.02860).
    """

    def __init__(
        self,
        max_distance: int | None = None,
        *,
        max_wavelength: float = 10_000,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.max_distance = check_positive_or_none("max_distance", max_distance)
        self.max_wavelength = max_wavelength

    def call(self, inputs, memory=None):
        shapes = [x.shape for x in (inputs, memory) if x is not None]
        self.compute_output_shape(*shapes)  # Checks the shapes.
        return encode_distances(
            inputs,
            memory,
            max_distance=self.max_distance,
            max_wavelength=self.max_wavelength,
            dtype=self.compute_dtype,
        )

    def compute_output_shape(self, inputs_shape, memory_shape=None):
        check_rank("inputs", inputs_shape, 3, "(batch, length, width)")
        lengths = [inputs_shape[1], inputs_shape[1]]
        if memory_shape is not None:
            check_rank("memory", memory_shape, 3, "(batch, memory length, width)")
            lengths.append(memory_shape[1])
        distances = None if None in lengths else sum(lengths)
        return (1, distances, inputs_shape[-1])
