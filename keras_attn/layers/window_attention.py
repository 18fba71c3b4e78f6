"""Self-attention within windows of a map.

Legend: B batch, R rows and S columns of tokens, w the side of a window, T = w² its
places, L windows on a map, N heads, H head size, D width.
"""

import functools

import keras
import numpy as np
from keras import ops

from keras_attn.checks import check_fraction, check_positive, check_rank
from keras_attn.layers import recorder
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.initializers import fork
from keras_attn.ops import MASKED, project, scaled_dot_product_attention
from keras_attn.ops.windows import (
    cyclic_shift,
    relative_position_rows,
    shifted_window_mask,
    window_merge,
    window_partition,
)


@keras.saving.register_keras_serializable("keras_attn")
class WindowAttention(BaseLayer):
    """`softmax(q kᵀ / √H + b) v` within each window, b by the relative position.

    A shifted layer rolls the map by half a window first, so that its windows lie across
    the edges of its neighbours'; places that meet only because they came round the
    edge of the map do not see each other. The map is padded with zeros below and to
    the right until windows fill it, and what is padded is seen, as in published models.
    A window that is larger than the map is as large as its smaller side, and is not
    shifted.

    Args:
        num_heads: N.
        window_size: w.
        shifted: Whether the map is rolled by half a window.
        use_bias: Whether the projection to queries, keys and values has a bias.
        dropout: Probability in [0, 1) of dropping an attention probability.
        kernel_initializer: For the projection kernels.
        seed: Seed of the dropout.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, R, S, D), with known R and S, D a multiple of N.
        return_attention_scores: Whether to return the probabilities as well.

    Returns:
        (B, R, S, D), and if asked for the probabilities, (B, L·N, T, T): window by
        window, row by row of the rolled map, and the heads of each.

    Raises:
        ValueError: for a map of another rank or of unknown size, or a width that heads
            don't divide.

    Reference:
        Liu et al. 2021, "Swin Transformer: Hierarchical Vision Transformer using
        Shifted Windows", section 3.2 (arXiv:2103.14030).
    """

    def __init__(
        self,
        num_heads,
        window_size,
        *,
        shifted=False,
        use_bias=True,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = check_positive("num_heads", num_heads)
        self.window_size = check_positive("window_size", window_size)
        self.shifted = shifted
        self.use_bias = use_bias
        self.dropout = check_fraction("dropout", dropout)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        self._dropout = Dropout(
            dropout, seed=seed, dtype=self.dtype_policy, name="dropout"
        )

    def build(self, inputs_shape):
        if None in inputs_shape[1:3]:
            raise ValueError(
                "Windows need a map of known size: build the model for one "
                f"`image_size`. Received: inputs.shape={tuple(inputs_shape)}"
            )
        width, heads = inputs_shape[-1], self.num_heads
        if width % heads:
            raise ValueError(
                "The width must be a multiple of `num_heads`. "
                f"Received: width={width}, num_heads={heads}"
            )
        self.query_key_value_kernel = self.add_weight(
            name="query_key_value_kernel",
            shape=(width, 3 * width),
            initializer=self._draw_fused,
        )
        self.query_key_value_bias = None
        if self.use_bias:
            self.query_key_value_bias = self.add_weight(
                name="query_key_value_bias", shape=(3 * width,), initializer="zeros"
            )
        self.output_kernel = self.add_weight(
            name="output_kernel",
            shape=(width, width),
            initializer=fork(self.kernel_initializer, "output"),
        )
        self.output_bias = self.add_weight(
            name="output_bias", shape=(width,), initializer="zeros"
        )
        distances = (2 * self.window_size - 1) ** 2
        self.position_bias = self.add_weight(
            name="position_bias",
            shape=(distances, heads),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        )

    def _draw_fused(self, shape, dtype):
        width = shape[0]
        drawn = [
            fork(self.kernel_initializer, part)((width, width), dtype=dtype)
            for part in ("query", "key", "value")
        ]
        return ops.concatenate(drawn, axis=1)

    def grid(self, size):
        """How windows lie on a map.

        Args:
            size: (R, S).

        Returns:
            The side of a window, the size of the padded map, and the shift.
        """
        window, shift = self.window_size, 0
        if min(size) <= window:
            window = min(size)
        elif self.shifted:
            shift = window // 2
        padded = tuple(-(-length // window) * window for length in size)
        return window, padded, shift

    def call(self, inputs, return_attention_scores=False, training=None):
        check_rank("inputs", inputs, 4, "(batch, rows, columns, width)")
        size, width = tuple(inputs.shape[1:3]), inputs.shape[3]
        window, padded, shift = self.grid(size)
        if padded != size:
            below, right = padded[0] - size[0], padded[1] - size[1]
            inputs = ops.pad(inputs, ((0, 0), (0, below), (0, right), (0, 0)))
        windows = window_partition(cyclic_shift(inputs, shift), window)  # (B·L, T, D)
        count = padded[0] * padded[1] // window**2
        queries, keys, values = self._project(windows, count)
        dropout = None
        if self.dropout and training:
            dropout = functools.partial(self._dropout, training=True)
        heads, weights = scaled_dot_product_attention(
            queries,
            keys,
            values,
            bias=self._bias(window, padded, shift, count),
            dropout=dropout,
        )
        if recorder.is_recording():
            recorder.record(self, weights)
        merged = self._merge(heads, count, width)
        outputs = cyclic_shift(window_merge(merged, window, padded), -shift)
        if padded != size:
            outputs = outputs[:, : size[0], : size[1]]
        return (outputs, weights) if return_attention_scores else outputs

    def _project(self, windows, count):
        """Queries, keys and values of L = `count` windows, each (B, L·N, T, H)."""
        fused = project(windows, self.query_key_value_kernel, self.query_key_value_bias)
        _, places, width = windows.shape
        heads, size = self.num_heads, width // self.num_heads
        cut = ops.reshape(fused, (-1, count, places, 3, heads, size))
        parts = ops.transpose(cut, (3, 0, 1, 4, 2, 5))  # (3, B, L, N, T, H)
        return [
            ops.reshape(part, (-1, count * heads, places, size))
            for part in ops.unstack(parts, 3, axis=0)
        ]

    def _merge(self, heads, count, width):
        """(B, L·N, T, H) -> (B·L, T, D), projected."""
        places = heads.shape[2]
        cut = (-1, count, self.num_heads, places, width // self.num_heads)
        merged = ops.transpose(ops.reshape(heads, cut), (0, 1, 3, 2, 4))
        merged = ops.reshape(merged, (-1, places, width))
        return project(merged, self.output_kernel, self.output_bias)

    def _bias(self, window, padded, shift, count):
        """What is added to the scores, (1, L·N, T, T)."""
        rows = relative_position_rows(window, self.window_size)
        places, heads = len(rows), self.num_heads
        bias = ops.take(self.position_bias, rows.reshape(-1), axis=0)  # (T·T, N)
        bias = ops.reshape(ops.transpose(bias), (1, heads, places, places))
        bias = ops.cast(bias, "float32")
        if shift:
            visible = shifted_window_mask(padded, window, shift)[:, None]
            hidden = np.where(visible, np.float32(0), np.float32(MASKED))
            bias = ops.add(bias, hidden)  # (L, N, T, T)
        else:
            bias = ops.tile(bias, (count, 1, 1, 1))
        return ops.reshape(bias, (1, count * heads, places, places))

    def compute_output_shape(self, inputs_shape):
        return inputs_shape
