"""A recurrent layer for any cell; LSTM cells train faster on TensorFlow."""

import keras
from keras import ops

from keras_attn.kernels.lstm import has_fast_lstm, lstm


@keras.saving.register_keras_serializable("keras_attn")
class Recurrent(keras.layers.RNN):
    """`keras.layers.RNN`, with the gradient of an LSTM written out in training.

    Weights, their names and the results are the same as with `keras.layers.RNN`. The
    layer takes a cell, because `LSTM` and `GRU` select a fused GPU kernel that neither
    XLA nor the exporters support, and because a single step can call the cell directly.

    Args:
        cell: A Keras cell, such as `keras.layers.LSTMCell(U)`.
        **kwargs: As for `keras.layers.RNN`.
    """

    def inner_loop(self, sequences, initial_state, mask, training=False):
        """All steps; see `keras.layers.RNN`."""
        if not (training and not self.unroll and has_fast_lstm(self.cell)):
            return super().inner_loop(sequences, initial_state, mask, training)
        outputs, states = lstm(
            self.cell,
            # The cell may have its own dtype.
            ops.cast(sequences, self.cell.compute_dtype),
            initial_state,
            mask,
            self.go_backwards,
            self.zero_output_for_mask,
        )
        return outputs[:, -1], outputs, states
