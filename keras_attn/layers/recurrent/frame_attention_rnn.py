"""A recurrent layer that attends to a new map, such as a video frame, at every step.

Legend: B batch, T steps, P locations of a map, C channels, A width of the projected
map, U units of the cell.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_rank
from keras_attn.layers import recorder
from keras_attn.layers.output_specs import caches_output_specs
from keras_attn.layers.recurrent.cell_loop import (
    CellStep,
    RecurrentAttention,
    as_list,
    first_states,
    run_loop,
)


@keras.saving.register_keras_serializable("keras_attn")
@caches_output_specs
class FrameAttentionRNN(RecurrentAttention):
    """`c_t = attention(s_{t-1}, v_t)`, `s_t = cell(c_t, s_{t-1})`.

    `AttentionRNN` reads one memory at all steps; here each step has its own memory, the
    locations `v_t1 … v_tP` of the map of its frame.

    Args:
        cell: A Keras cell, such as `keras.layers.LSTMCell(U)`. Its first state is the
            query.
        attention: An `AdditiveAttention` or `DotProductAttention`.
        unroll: Whether to unroll the loop if T is known.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        memory: v, (B, T, P, C).
        initial_state: s_0, (B, U), or a list of them for a cell with several states.
            None = zeros.
        return_attention_scores: Whether to return the probabilities.

    Returns:
        A dictionary of

        - `states`: s_1 … s_T, (B, T, U),
        - `final_state`: a list of the cell's states after step T,
        - `attention_scores`: α, (B, 1, T, P), with `return_attention_scores`.

    Raises:
        TypeError: If `cell` or `attention` has an unsupported type.
        ValueError: If `cell` has dropout, `memory` does not have 4 axes, or
            `initial_state` has fewer tensors than the cell has states.

    Masking:
        A padded step comes after all real steps, so it changes none of them; the loss
        leaves it out.

    Example:
        ```python
        import keras
        import numpy as np
        from keras_attn import layers

        maps = np.random.normal(size=(2, 5, 48, 16))  # Five frames of 6 × 8 places.
        cell, attention = keras.layers.LSTMCell(64), layers.AdditiveAttention(64)
        states = layers.FrameAttentionRNN(cell, attention)(maps)["states"]  # (2, 5, 64)
        ```

    Reference:
        Sorokin et al. 2015, "Deep Attention Recurrent Q-Network", soft attention
        (arXiv:1512.01693).
    """

    def build(self, memory_shape):
        check_rank("memory", memory_shape, 4, "(batch, steps, locations, width)")
        batch, _, places, width = memory_shape
        units = as_list(self.cell.state_size)[0]
        if not self.attention.built:
            self.attention.build((batch, None, units), (batch, places, width))
        if not self.cell.built:
            self.cell.build((batch, width))

    def call(self, memory, initial_state=None, *, return_attention_scores=False):
        check_rank("memory", memory, 4, "(batch, steps, locations, width)")
        batch, steps, places = ops.shape(memory)[:3]
        if initial_state is None:
            initial_state = [
                ops.zeros((batch, size), memory.dtype)
                for size in as_list(self.cell.state_size)
            ]
        first_state = first_states(self.cell, initial_state, memory.dtype)
        projected = self.attention.project_key(memory)  # (B, T, P, A)
        states, final_state = self._run(memory, projected, first_state)
        results = {"states": states, "final_state": final_state}
        if return_attention_scores or recorder.is_recording():
            # Computed again for all steps at once, as in `AttentionRNN`.
            queries = ops.expand_dims(first_state[0], 1)
            if memory.shape[1] != 1:
                queries = ops.concatenate([queries, states[:, :-1]], axis=1)
            _, weights = self.attention.attend(
                ops.reshape(queries, (-1, 1, states.shape[-1])),
                ops.reshape(memory, (-1, places, memory.shape[-1])),
                ops.reshape(projected, (-1, places, projected.shape[-1])),
            )
            weights = ops.reshape(weights, (batch, 1, steps, places))
            recorder.record(self, weights)
            if return_attention_scores:
                results["attention_scores"] = weights
        return results

    def _run(self, memory, projected, first_state):
        """s_1 … s_T, (B, T, U), and the states after step T."""
        both = ops.concatenate([memory, projected], axis=-1)
        cell = _FrameCell(self.cell, self.attention, memory.shape[-1], both.shape[-1])
        if memory.shape[1] == 1:
            # A single step, such as a robot's, needs no loop operation.
            output, final_state = cell(both[:, 0], first_state)
            return ops.expand_dims(output, 1), final_state
        batch, steps, places = ops.shape(memory)[:3]
        # A Keras loop takes vectors: (B, T, P · (C + A)).
        frames = ops.reshape(both, (batch, steps, places * both.shape[-1]))
        return run_loop(self, cell, frames, first_state)


class _FrameCell(CellStep):
    """One step, attention to a frame and then the cell.

    Args:
        cell: The Keras cell.
        attention: The attention.
        width: C.
        total: C + A.
    """

    def __init__(self, cell, attention, width, total):
        super().__init__(cell)
        self.attention = attention
        self.width = width
        self.total = total

    def call(self, inputs, states):
        """From a frame, (B, P, C + A) or flat, and the states to the next states."""
        frame = ops.reshape(inputs, (ops.shape(inputs)[0], -1, self.total))
        context, _ = self.attention.attend(
            ops.expand_dims(states[0], 1),
            frame[..., : self.width],
            frame[..., self.width :],
        )
        output, states = self.cell(ops.squeeze(context, 1), states)
        return output, as_list(states)
