"""Additive attention to the locations of a map, each scored with its neighbors.

Legend: B batch, T query length, H rows, W columns and C channels of the map, S = H · W
locations, A units.
"""

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import (
    check_matches,
    check_pair,
    check_positive,
    check_rank,
)
from keras_attn.layers import recorder
from keras_attn.layers.adaptation.keras_layers import Conv2D
from keras_attn.layers.attention.attention_checks import check_is_mask
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.initializers import independent_copy
from keras_attn.layers.output_specs import caches_output_specs
from keras_attn.layers.projection import add_projection
from keras_attn.ops import additive_scores, attention_weights, project_neighborhoods

_AXES = "(batch, rows, columns, channels)"


@keras.saving.register_keras_serializable("keras_attn")
@caches_output_specs
class AdditiveAttention2D(BaseLayer):
    """Additive attention over a map; a location's score also depends on its neighbors.

        e_ij = wᵀ tanh(Σ_pq U_pq v_{i+p, j+q} + W q_t)
        α = softmax(e), over all locations
        g_t = Σ_ij α_ij v_ij

    The sum over p and q is a convolution of the map: with `kernel_size=3` each location
    is scored from itself and its 8 neighbors. `W`, `U` and `w` are the kernels of
    `query` and `key`, and `score_vector`; in the paper `W_h`, `W_v` with `W̃`, and
    `w_e`.

    Args:
        units: A, the width of the hidden layer.
        kernel_size: Rows and columns of locations that a score depends on, one number
            or two; 1 scores each location by itself.
        use_bias: Whether to add a bias inside the tanh. The paper has none.
        kernel_initializer: For the three weights.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        query: (B, T, Dq), the decoder states.
        value: (B, H, W, C), the map.
        projected_key: From an earlier call, to avoid computing it again.
        padding_mask: (B, H, W), True = a real location. Padding gets no attention, and
            counts as zeros in the scores of its neighbors.
        return_attention_scores: Whether to return the probabilities as well.
        return_projected_key: Whether to return the projected key as well.

    Returns:
        The glimpses g, (B, T, C); with `return_attention_scores=True` also the
        probabilities, (B, T, S), row after row of the map; with
        `return_projected_key=True` finally the sums over p and q, (B, H, W, A), for the
        next call.

    Raises:
        ValueError: If `query` does not have 3 axes, `value` does not have 4 axes, or
            `padding_mask` has the wrong shape.

    Masking:
        A query whose locations are all masked gets a glimpse of zeros.

    Example:
        ```python
        import numpy as np
        from keras_attn import layers

        states, maps = np.random.normal(size=(2, 5, 32)), np.ones((2, 6, 8, 16))
        attention = layers.AdditiveAttention2D(units=64)
        glimpses, scores = attention(states, maps, return_attention_scores=True)
        scores.shape  # (2, 5, 48): one for each place of 6 × 8.
        ```

    Reference:
        Li et al. 2019, "Show, Attend and Read", equations 3 to 5 (arXiv:1811.00751).
    """

    def __init__(
        self,
        units: int,
        kernel_size: int | tuple[int, int] = 3,
        *,
        use_bias: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = check_positive("units", units)
        self.kernel_size = check_pair("kernel_size", kernel_size)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, query_shape, value_shape):
        check_rank("query", query_shape, 3, "(batch, length, width)")
        check_rank("value", value_shape, 4, _AXES)

        self.query = add_projection(self, "query", query_shape, self.units, False)
        self.key = Conv2D(
            self.units,
            self.kernel_size,
            padding="same",
            use_bias=self.use_bias,
            kernel_initializer=independent_copy(self.kernel_initializer, "key"),
            dtype=self.dtype_policy,
            name="key",
        )
        self.key.build(value_shape)
        self.score_vector = self.add_weight(
            name="score_vector",
            shape=(self.units, 1),
            initializer=independent_copy(self.kernel_initializer, "score_vector"),
        )

    def call(
        self,
        query,
        value,
        *,
        projected_key=None,
        padding_mask=None,
        return_attention_scores=False,
        return_projected_key=False,
    ):
        check_rank("query", query, 3, "(batch, length, width)")
        check_rank("value", value, 4, _AXES)
        key, mask = value, None
        if padding_mask is not None:
            axes = "(batch, rows, columns)"
            check_rank("padding_mask", padding_mask, 3, axes)
            check_matches("padding_mask", padding_mask.shape, value.shape[:3], axes)
            check_is_mask("padding_mask", padding_mask)
            real = ops.expand_dims(ops.cast(padding_mask, "bool"), -1)
            key = ops.multiply(value, ops.cast(real, value.dtype))
            mask = ops.swapaxes(_flattened(real), 1, 2)  # (B, 1, S)
        if projected_key is None:
            projected_key = project_neighborhoods(
                key, self.key.adapted_kernel, self.key.bias
            )
        scores = additive_scores(
            self.query.project(query),
            _flattened(projected_key),
            self.score_vector,
        )
        weights = attention_weights(scores, mask)
        glimpses = ops.matmul(ops.cast(weights, value.dtype), _flattened(value))
        if recorder.is_recording():
            recorder.record(self, ops.expand_dims(weights, 1))
        outputs = [glimpses]
        if return_attention_scores:
            outputs.append(weights)
        if return_projected_key:
            outputs.append(projected_key)
        return glimpses if len(outputs) == 1 else tuple(outputs)


def _flattened(maps):
    """(B, H, W, C) -> (B, S, C)."""
    batch, rows, columns, channels = ops.shape(maps)
    return ops.reshape(maps, (batch, rows * columns, channels))
