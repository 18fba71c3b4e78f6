"""A recurrent layer for any cell, and one that runs it in both directions."""

import keras
from keras import ops
from keras.src.backend.common import global_state

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

    def __init__(self, cell, **kwargs):
        super().__init__(cell, **kwargs)
        # Keras 3.16 says that its own does not, and warns about each mask.
        self.supports_masking = True

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


# Where Keras keeps what a file that is read has shared so far.
_SHARED = ("shared_objects/id_to_obj_map", "shared_objects/id_to_config_map")


@keras.saving.register_keras_serializable("keras_attn")
class Bidirectional(keras.layers.Bidirectional):
    """`keras.layers.Bidirectional`, with layers of its own when it is loaded.

    It copies the layer that it is given by its configuration. While a file is read,
    Keras takes objects with the same `id` for one object that is shared. The layer that
    was copied is deleted, and the next one may get its `id`: then one direction got
    parts of another model layer. So nothing is shared while copies are made.

    Args:
        layer: A recurrent layer, which is copied for each direction.
        **kwargs: As for `keras.layers.Bidirectional`.
    """

    def __init__(self, layer: keras.layers.Layer, **kwargs):
        shared = {name: global_state.get_global_attribute(name) for name in _SHARED}
        for name in _SHARED:
            global_state.set_global_attribute(name, None)
        try:
            super().__init__(layer, **kwargs)
        finally:
            for name, value in shared.items():
                global_state.set_global_attribute(name, value)
        self.supports_masking = True  # As in `Recurrent`.
