"""Self-attention within shifted windows of a feature map.

    the map is padded with zeros to R and S, multiples of w
    s = ⌊w/2⌋ in shifted windows, otherwise 0
    X'[i, j] = X[(i + s) mod R, (j + s) mod S]        `cyclic_shift`        (B, R, S, D)
    window (i // w, j // w), token (i % w, j % w)     `window_partition`     (B·L, T, D)
    y = softmax(q kᵀ / √H + b + m) v, y W + bias      `_attend`, by window   (B·L, T, D)
    back to the map, shifted by -s, without padding   `window_merge`        (B, R, S, D)

Windows, and the tokens in each, are in row-major order. For two tokens of a window, at
(i, j) and (i', j'),

    b = position_bias[(i - i' + w - 1)(2w - 1) + (j - j' + w - 1)]   a column per head
    m = 0 if `2 [i ≥ R - s] + [j ≥ S - s]`, with i and j in X', is the same for both,
        otherwise -1e9: what was rolled around an edge is no neighbor

On a map smaller than a window, windows are as large as its smaller side; w of
`position_bias` stays that of the layer.

`ops/windows.py` has these as functions of arrays.

Legend: B batch, R rows and S columns of the padded map, w window size, T = w² tokens of
a window, L windows of a map, N heads, H head size, D width.
"""

import keras
import numpy as np
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import check_fraction, check_positive, check_rank
from keras_attn.kernels.precision import at_least_float32
from keras_attn.layers import recorder
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.dropout import dropout_function, make_dropout
from keras_attn.layers.projection import add_projection
from keras_attn.ops import MASKED, scaled_dot_product_attention
from keras_attn.ops.windows import (
    cyclic_shift,
    relative_position_rows,
    shifted_window_mask,
    window_merge,
    window_partition,
)


@keras.saving.register_keras_serializable("keras_attn")
class WindowAttention(BaseLayer):
    """`softmax(q kᵀ / √H + b) v` in each window, with relative position biases b.

    Shifted windows connect neighboring windows of the previous layer: the feature map
    is rolled up and left by ⌊w/2⌋ tokens, partitioned, attended, and rolled back. Rows
    and columns that wrapped around form regions of their own, and a token attends only
    within its region.

    A map (B, R, S, D) becomes windows (B·L, T, D) and their heads (B, L·N, T, H): each
    window counts as a head, so that one bias, (1, L·N, T, T), to which the mask is
    added, serves every image.

    The map is padded with zeros below and to the right to a multiple of the window
    size; the padding is attended to, as in published models. If the window is at
    least as large as the map's smaller side, that side is its size, and it is not
    shifted.

    Args:
        num_heads: N.
        window_size: w.
        shifted: Whether to shift the windows by half a window.
        use_bias: Whether the projection of queries, keys and values has a bias.
        dropout: Probability in [0, 1) of dropping an attention probability.
        kernel_initializer: For each of the projection kernels.
        seed: Seed of the dropout.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, R, S, D), with known R and S, D a multiple of N.
        return_attention_scores: Whether to return the probabilities as well.

    Returns:
        (B, R, S, D). With `return_attention_scores` also the probabilities,
        (B, L·N, T, T): the windows of the shifted map in row-major order, and within
        each window its heads.

    Raises:
        ValueError: If `inputs` does not have 4 axes or has an unknown size, or its
            width is not a multiple of `num_heads`.

    Reference:
        Liu et al. 2021, "Swin Transformer: Hierarchical Vision Transformer using
        Shifted Windows", section 3.2 (arXiv:2103.14030).
    """

    def __init__(
        self,
        num_heads: int,
        window_size: int,
        *,
        shifted: bool = False,
        use_bias: bool = True,
        dropout: float = 0.0,
        kernel_initializer: Initializer = "glorot_uniform",
        seed: int | None = None,
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
        self._dropout = make_dropout(self)

    def build(self, inputs_shape):
        if None in inputs_shape[1:3]:
            raise ValueError(
                "Windows need a feature map of known size: build the model for one "
                f"`image_size`. Received: inputs.shape={tuple(inputs_shape)}"
            )
        width, heads = inputs_shape[-1], self.num_heads
        if width % heads:
            raise ValueError(
                "The width must be a multiple of `num_heads`. "
                f"Received: width={width}, num_heads={heads}"
            )
        self.query_key_value = add_projection(
            self,
            "query_key_value",
            inputs_shape,
            {"query": width, "key": width, "value": width},
            self.use_bias,
        )
        self.output_projection = add_projection(self, "output", inputs_shape, width)
        self.position_bias = self.add_weight(
            name="position_bias",
            shape=((2 * self.window_size - 1) ** 2, heads),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        )

    def grid(self, size):
        """The partition of a feature map into windows.

        Args:
            size: (R, S).

        Returns:
            The window size, the size of the padded map, and the shift.
        """
        window, shift = self.window_size, 0
        if min(size) <= window:
            window = min(size)
        elif self.shifted:
            shift = window // 2
        padded = tuple(-(-length // window) * window for length in size)
        return window, padded, shift

    def call(self, inputs, return_attention_scores=False, training=None):
        self.compute_output_shape(inputs.shape)  # Checks the shape.
        size = rows, columns = tuple(inputs.shape[1:3])
        window, padded, shift = self.grid(size)
        if padded != size:
            below, right = padded[0] - rows, padded[1] - columns
            inputs = ops.pad(inputs, ((0, 0), (0, below), (0, right), (0, 0)))
        windows = window_partition(cyclic_shift(inputs, shift), window)  # (B·L, T, D)
        outputs, weights = self._attend(windows, window, padded, shift, training)
        recorder.record(self, weights)
        outputs = cyclic_shift(window_merge(outputs, window, padded), -shift)
        if padded != size:
            outputs = outputs[:, :rows, :columns]
        return (outputs, weights) if return_attention_scores else outputs

    def _attend(self, windows, window, padded, shift, training):
        """Multi-head attention within windows: (B·L, T, D) and (B, L·N, T, T)."""
        num_windows = padded[0] * padded[1] // window**2
        queries, keys, values = self._project_inputs(windows, num_windows)
        heads, weights = scaled_dot_product_attention(
            queries,
            keys,
            values,
            bias=self._bias_and_mask(window, padded, shift, num_windows),
            dropout=dropout_function(self._dropout, training),
        )
        # (B, L·N, T, H) -> (B·L, N, T, H)
        heads = ops.reshape(heads, (-1, self.num_heads, *heads.shape[2:]))
        return self.output_projection.merge_heads(heads), weights

    def _project_inputs(self, windows, num_windows):
        """Queries, keys and values, each (B, L·N, T, H)."""
        _, length, width = windows.shape
        heads = self.num_heads
        parts = self.query_key_value.heads(windows, (heads, heads, heads))
        shape = (-1, num_windows * heads, length, width // heads)
        return [ops.reshape(part, shape) for part in parts]

    def _bias_and_mask(self, window, padded, shift, num_windows):
        """The bias plus the additive mask (-1e9) of shifted windows, (1, L·N, T, T)."""
        # The row of `position_bias` for each pair of tokens, (T, T).
        table_rows = relative_position_rows(window, self.window_size)
        length, heads = len(table_rows), self.num_heads
        bias = ops.take(self.position_bias, table_rows.reshape(-1), axis=0)  # (T·T, N)
        bias = ops.reshape(ops.transpose(bias), (1, heads, length, length))
        bias = at_least_float32(bias)
        if shift:
            visible = shifted_window_mask(padded, window, shift)  # (L, T, T)
            visible = visible[:, None]
            masked = np.where(visible, np.float32(0), np.float32(MASKED))
            bias = ops.add(bias, masked)  # (L, N, T, T)
        else:
            bias = ops.tile(bias, (num_windows, 1, 1, 1))
        return ops.reshape(bias, (1, num_windows * heads, length, length))

    def compute_output_shape(self, inputs_shape):
        check_rank("inputs", inputs_shape, 4, "(batch, rows, columns, width)")
        return inputs_shape
