"""LSTMs that compute weight gradients after the loop, for training on TensorFlow.

TensorFlow differentiates a loop step by step: every step adds a product as large as the
weights to their gradient, and appends a dozen intermediate tensors to lists.

- `lstm` runs a whole sequence, with its gradient written out: each step is one product
  and a few element-wise operations, and the gradient of each weight is one product. The
  inputs of all steps are multiplied before the loop, too.
- `LoopLSTM` is for loops that do more, such as attending: TensorFlow differentiates
  them, but the gradient of each weight is one product after the loop.

    z_t = W x_t + R h_{t-1} + b           i, f, g, o: the parts of z_t, in this order
    c_t = σ(f) c_{t-1} + σ(i) tanh(g)     `activated`: σ(i), σ(f), tanh(g), σ(o)
    h_t = σ(o) tanh(c_t)

Legend: B batch, T steps, D width of the inputs, U units.
"""

from typing import Any

import keras
from keras import ops

from keras_attn.kernels.runtime import is_tensorflow


def has_fast_lstm(cell) -> bool:
    """Whether `lstm` computes the same as a loop over this cell.

    Args:
        cell: A cell of `keras.layers.RNN`.
    """
    return (
        is_tensorflow()
        and type(cell) is keras.layers.LSTMCell
        and cell.activation is keras.activations.tanh
        and cell.recurrent_activation is keras.activations.sigmoid
        and cell.use_bias
        and not (cell.dropout or cell.recurrent_dropout)
        # A quantized cell, or a cell with LoRA, computes different products.
        and isinstance(cell.kernel, keras.Variable)
    )


def lstm(
    cell,
    inputs,
    initial_state,
    mask=None,
    go_backwards=False,
    zero_output_for_mask=False,
):
    """All hidden states of an LSTM, as `keras.backend.rnn` computes them.

    It has no second-order gradient: TensorFlow raises an error for it.

    Args:
        cell: A `keras.layers.LSTMCell` for which `has_fast_lstm` holds.
        inputs: (B, T, D).
        initial_state: h_0 and c_0, (B, U) each.
        mask: (B, T) or (B, T, 1), True or not 0 where a step counts; at all other steps
            the states stay as they are. None = every step counts.
        go_backwards: Whether to begin with the last step. The results are then in the
            order of computation.
        zero_output_for_mask: Whether the results are zeros at every step that does not
            count, instead of the results of the step before.

    Returns:
        h_1 … h_T, (B, T, U), zeros before the first step that counts, and h_T and c_T.
    """
    import tensorflow as tf

    kernel, recurrent, bias = (
        ops.cast(weight, inputs.dtype)
        for weight in (cell.kernel, cell.recurrent_kernel, cell.bias)
    )
    # W x_t + b, one product for all steps.
    from_inputs = tf.matmul(inputs, kernel) + bias  # (B, T, 4 U)
    from_inputs = tf.transpose(from_inputs, (1, 0, 2))  # (T, B, 4 U)
    kept: Any = None
    if mask is not None:
        mask = tf.cast(mask, "bool")
        mask = mask if len(mask.shape) == 3 else tf.expand_dims(mask, -1)
        kept = tf.transpose(mask, (1, 0, 2))  # (T, B, 1)
    if go_backwards:
        from_inputs = tf.reverse(from_inputs, [0])
        kept = None if kept is None else tf.reverse(kept, [0])

    @tf.custom_gradient
    def run(from_inputs, recurrent, h, c):
        activated, states, cell_states = _forward(from_inputs, recurrent, h, c, kept)
        # h_{t-1} and c_{t-1} for every t.
        previous_states = tf.concat([h[None], states[:-1]], 0)
        previous_cell_states = tf.concat([c[None], cell_states[:-1]], 0)

        def gradient(d_states, d_h, d_c):
            d_z, d_first, d_first_cell = _backward(
                activated, recurrent, previous_cell_states, kept, d_states, d_h, d_c
            )
            d_recurrent = tf.einsum("tbu,tbg->ug", previous_states, d_z)
            return _of_first_order(d_z, d_recurrent, d_first, d_first_cell)

        return (states, states[-1], cell_states[-1]), gradient

    initial = map(tf.convert_to_tensor, initial_state)
    results: Any = run(from_inputs, recurrent, *initial)
    states, h, c = results
    if kept is not None:
        # As in Keras, even if the initial state is not zero.
        has_output = kept
        if not zero_output_for_mask:
            has_output = tf.cumsum(tf.cast(kept, "int32")) > 0
        states = tf.where(has_output, states, tf.zeros_like(states))
    states = tf.transpose(states, (1, 0, 2))
    states.set_shape((*inputs.shape[:2], cell.units))
    return states, [h, c]


class LoopLSTM:
    """An LSTM inside a loop over steps, such as the loop of a decoder that attends.

    `bias_per_step` is an input of the loop; each step calls `step`, and `finish` takes
    the stacked third results of `step`. A second-order gradient is an error of
    TensorFlow.

    The loop computes no gradients of weights. The gradient that arrives at
    `bias_per_step`, a broadcast of the bias, is d z_t of every step; from it and the
    inputs given to `finish`, the gradients of both kernels are one product.

    Args:
        cell: A `keras.layers.LSTMCell` for which `has_fast_lstm` holds.
        shape: B and T, which may be tensors.
        dtype: Of all tensors.

    Attributes:
        bias_per_step: b, repeated for every step, (B, T, 4 U).
        input_dim: D + U.
    """

    def __init__(self, cell, shape, dtype):
        import tensorflow as tf

        kernel, recurrent, bias = (
            tf.cast(tf.convert_to_tensor(weight), dtype)
            for weight in (cell.kernel, cell.recurrent_kernel, cell.bias)
        )
        # [x_t; h_{t-1}] of every step, (B, T, D + U), which `finish` sets.
        self._gate_inputs: Any = None
        self._kernel, self._recurrent = kernel, recurrent
        width = cell.kernel.shape[0]
        self.input_dim = width + cell.units

        @tf.custom_gradient
        def bias_that_collects_gradients(kernel, recurrent, bias):
            def gradient(d_z):
                d_weights = tf.einsum("btd,btg->dg", self._gate_inputs, d_z)
                d_bias = tf.reduce_sum(d_z, (0, 1))
                return _of_first_order(d_weights[:width], d_weights[width:], d_bias)

            return tf.broadcast_to(bias, (*shape, bias.shape[0])), gradient

        self.bias_per_step = bias_that_collects_gradients(kernel, recurrent, bias)

    def step(self, inputs, states, bias):
        """One step.

        Args:
            inputs: x_t, (B, D).
            states: h_{t-1} and c_{t-1}, (B, U) each.
            bias: `bias_per_step` at this step, (B, 4 U).

        Returns:
            h_t, [h_t, c_t], and the input of `finish` for this step, (B, D + U).
        """
        import tensorflow as tf

        h, c = states
        # In this order, for the same rounding as in Keras' cell.
        products = _product(inputs, self._kernel) + _product(h, self._recurrent)
        gate_inputs = tf.stop_gradient(tf.concat([inputs, h], axis=-1))
        i, f, g, o = _activate(products + bias)
        c = f * c + i * g
        h = o * tf.tanh(c)
        return h, [h, c], gate_inputs

    def finish(self, gate_inputs):
        """Takes the third result of every step, stacked to (B, T, D + U)."""
        self._gate_inputs = gate_inputs


def _product(inputs, weights):
    """A product with weights whose gradient is computed from `bias_per_step`."""
    import tensorflow as tf

    @tf.custom_gradient
    def product(inputs, weights):
        def gradient(upstream):
            return tf.matmul(upstream, weights, transpose_b=True), None

        return tf.matmul(inputs, weights), gradient

    return product(inputs, weights)


def _of_first_order(*gradients):
    """Gradients that can't be differentiated: the forward pass is a constant there."""
    import tensorflow as tf

    message = "an LSTM has no second-order gradient in training"
    return [tf.raw_ops.PreventGradient(input=x, message=message) for x in gradients]


def _activate(z):
    """σ(i), σ(f), tanh(g) and σ(o), (B, U) each, from z_t, (B, 4 U)."""
    import tensorflow as tf

    i, f, g, o = tf.split(z, 4, axis=-1)
    return tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)


def _forward(from_inputs, recurrent, h, c, kept):
    """The loop over t.

    Args:
        from_inputs: W x_t + b, (T, B, 4 U).
        recurrent: R, (U, 4 U).
        h: h_0, (B, U).
        c: c_0, (B, U).
        kept: bool (T, B, 1) or None.

    Returns:
        σ(i), σ(f), tanh(g) and σ(o), (T, B, 4 U), and all h_t and c_t, (T, B, U).
    """
    import tensorflow as tf

    length, units = tf.shape(from_inputs)[0], h.shape[-1]
    shapes = ((from_inputs.shape[1], 4 * units), h.shape, c.shape)
    arrays: Any = [
        tf.TensorArray(from_inputs.dtype, length, element_shape=shape)
        for shape in shapes
    ]

    def step(t, h, c, *arrays):
        i, f, g, o = _activate(from_inputs[t] + tf.matmul(h, recurrent))
        next_c = f * c + i * g
        next_h = o * tf.tanh(next_c)
        if kept is not None:
            next_h = tf.where(kept[t], next_h, h)
            next_c = tf.where(kept[t], next_c, c)
        values = (tf.concat([i, f, g, o], -1), next_h, next_c)
        written = (array.write(t, x) for array, x in zip(arrays, values, strict=True))
        return t + 1, next_h, next_c, *written

    _, _, _, *arrays = tf.while_loop(
        lambda t, *_: t < length, step, (0, h, c, *arrays), maximum_iterations=length
    )
    return [array.stack() for array in arrays]


def _backward(activated, recurrent, previous, kept, d_states, d_h, d_c):
    """The loop over t from T to 1.

    Args:
        activated: σ(i), σ(f), tanh(g) and σ(o), (T, B, 4 U), from `_forward`.
        recurrent: R.
        previous: c_{t-1} for every t, (T, B, U).
        kept: bool (T, B, 1) or None.
        d_states: Gradient of all h_t, (T, B, U).
        d_h: Gradient of h_T, (B, U).
        d_c: Gradient of c_T, (B, U).

    Returns:
        The gradients of every z_t, (T, B, 4 U), of h_0 and of c_0.
    """
    import tensorflow as tf

    # Terms that do not depend on a later step are computed for all steps at once.
    i, f, g, o = tf.split(activated, 4, axis=-1)
    squashed = tf.tanh(f * previous + i * g)
    # Gradients of c_t from h_t, of z_t from c_t (i, f and g) and from h_t (o), and of
    # c_{t-1} from c_t.
    by_state = o * (1 - squashed * squashed)
    slopes = tf.concat(
        [
            i * (1 - i) * g,
            f * (1 - f) * previous,
            (1 - g * g) * i,
            o * (1 - o) * squashed,
        ],
        axis=-1,
    )
    forget, skipped = f, None
    if kept is not None:
        by_state = tf.where(kept, by_state, tf.zeros_like(by_state))
        slopes = tf.where(kept, slopes, tf.zeros_like(slopes))
        forget = tf.where(kept, forget, tf.ones_like(forget))
        skipped = tf.cast(tf.logical_not(kept), activated.dtype)
    length = tf.shape(activated)[0]
    array = tf.TensorArray(activated.dtype, length, element_shape=activated.shape[1:])

    def step(t, d_h, d_c, array):
        d_h = d_h + d_states[t]
        d_c = d_c + d_h * by_state[t]
        d_z = tf.concat([d_c, d_c, d_c, d_h], axis=-1) * slopes[t]
        before = tf.matmul(d_z, recurrent, transpose_b=True)
        if skipped is not None:
            before = before + d_h * skipped[t]
        return t - 1, before, d_c * forget[t], array.write(t, d_z)

    _, d_h, d_c, array = tf.while_loop(
        lambda t, *_: t >= 0,
        step,
        (length - 1, d_h, d_c, array),
        maximum_iterations=length,
    )
    return array.stack(), d_h, d_c
