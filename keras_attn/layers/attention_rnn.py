"""A recurrent decoder that looks at a memory before every step.

Legend: B batch, T target length, S memory length, D width of the inputs, M width of
the memory, U units of the cell.
"""

import keras
from keras import ops

from keras_attn.checks import check_rank
from keras_attn.layers import recorder
from keras_attn.layers.output_specs import caches_output_specs
from keras_attn.layers.scored_attention import ScoredAttention, merge_row_masks


@keras.saving.register_keras_serializable("keras_attn")
@caches_output_specs
class AttentionRNN(keras.layers.Layer):
    """`c_t = attention(s_{t-1}, memory)`, `s_t = cell([x_t; c_t], s_{t-1})`.

    Args:
        cell: A Keras cell, such as `keras.layers.GRUCell(U)`. The first of its states
            is what looks at the memory. Dropout belongs around the layer, not in the
            cell.
        attention: An `AdditiveAttention` or `DotProductAttention`.
        unroll: Whether the loop is unrolled, where T is known.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, D), with teacher forcing the previous target tokens.
        memory: (B, S, M), what is looked at: the encoder's annotations.
        initial_state: s_0, (B, U), or a list of them for a cell with several states.
        memory_padding_mask: (B, S), True = a real position.
        projected_memory: From an earlier call, to save computing it at every step.
        return_attention_scores: Whether to return the probabilities.

    Returns:
        A dictionary of

        - `states`: s_1 … s_T, (B, T, U),
        - `previous_states`: s_0 … s_{T-1}, (B, T, U), those that looked,
        - `contexts`: c_1 … c_T, (B, T, M),
        - `final_state`: a list of the cell's states after step T,
        - `projected_memory`: for the next call,
        - `attention_scores`: (B, 1, T, S), if asked for.

    Raises:
        TypeError: for a cell or an attention of another kind.
        ValueError: for a cell with dropout, an input of another rank, or an
            `initial_state` without all of the cell's states.

    Masking:
        A Keras mask that arrives with the memory counts as `memory_padding_mask`. One
        that arrives with the inputs ends here: padding comes last, so that no real
        step sees it, and the loss leaves it out.

    Example:
        ```python
        decoder = AttentionRNN(keras.layers.GRUCell(64), AdditiveAttention(64))
        decoded = decoder(embedded, annotations, initial_state)
        ```

    Reference:
        Bahdanau et al. 2015, section 3.1 and A.1.2 (arXiv:1409.0473).
    """

    def __init__(self, cell, attention, *, unroll=False, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        stacked = isinstance(cell, keras.layers.StackedRNNCells)
        if stacked or not hasattr(cell, "state_size"):
            raise TypeError(
                "`cell` must be a single Keras recurrent cell, such as "
                f"`keras.layers.GRUCell`. Received: cell={cell!r}"
            )
        if not isinstance(attention, ScoredAttention):
            raise TypeError(
                "`attention` must be an AdditiveAttention or a DotProductAttention. "
                f"Received: attention={attention!r}"
            )
        if getattr(cell, "dropout", 0) or getattr(cell, "recurrent_dropout", 0):
            raise ValueError(
                "`cell` must have no dropout of its own; put a `Dropout` layer in "
                f"front of the inputs. Received: cell.dropout={cell.dropout}, "
                f"cell.recurrent_dropout={cell.recurrent_dropout}"
            )
        self.cell = cell
        self.attention = attention
        self.unroll = unroll

    def build(self, inputs_shape, memory_shape):
        batch, _, width = inputs_shape
        units = _as_list(self.cell.state_size)[0]
        # A part that is shared may have been built elsewhere.
        if not self.attention.built:
            self.attention.build((batch, None, units), memory_shape)
        if not self.cell.built:
            self.cell.build((batch, width + memory_shape[-1]))

    def call(
        self,
        inputs,
        memory,
        initial_state,
        *,
        memory_padding_mask=None,
        projected_memory=None,
        return_attention_scores=False,
        training=None,
        memory_mask=None,
    ):
        check_rank("inputs", inputs, 3, "(batch, length, width)")
        check_rank("memory", memory, 3, "(batch, memory length, width)")
        first_state = [
            ops.cast(state, inputs.dtype) for state in _as_list(initial_state)
        ]
        if len(first_state) != len(_as_list(self.cell.state_size)):
            raise ValueError(
                "`initial_state` must hold one tensor for each state of the cell. "
                f"Received: {len(first_state)} of "
                f"{len(_as_list(self.cell.state_size))} states"
            )
        mask = merge_row_masks(
            (inputs.shape[0], None, memory.shape[1]),
            {"memory_padding_mask": memory_padding_mask, "memory_mask": memory_mask},
        )
        if projected_memory is None:
            projected_memory = self.attention.project_key(memory)

        def look(queries):
            return self.attention.attend(queries, memory, projected_memory, mask)

        loop_cell = _LookingCell(self.cell, look, memory.shape[-1], training)
        if inputs.shape[1] == 1:
            # One step of incremental decoding: no loop, so nothing that a device has
            # to run as one.
            outputs, final_state = loop_cell(ops.squeeze(inputs, 1), first_state)
            outputs = ops.expand_dims(outputs, 1)
        else:
            loop = keras.layers.RNN(
                loop_cell,
                return_sequences=True,
                return_state=True,
                # While JAX traces, an unknown length is a symbol, and no None.
                unroll=self.unroll and isinstance(inputs.shape[1], int),
                dtype=self.dtype_policy,
                name="loop",
            )
            outputs, *final_state = loop(inputs, initial_state=first_state)
        units = _as_list(self.cell.state_size)[0]
        states, contexts = outputs[..., :units], outputs[..., units:]
        looked = ops.expand_dims(first_state[0], 1)
        if inputs.shape[1] != 1:
            looked = ops.concatenate([looked, states[:, :-1]], axis=1)
        results = {
            "states": states,
            "previous_states": looked,
            "contexts": contexts,
            "final_state": final_state,
            "projected_memory": projected_memory,
        }
        if return_attention_scores or recorder.is_recording():
            # All steps look again here at once, so that the loop carries no scores
            # that nobody asked for.
            scores = ops.expand_dims(look(looked)[1], 1)
            if recorder.is_recording():
                recorder.record(self, scores)
            if return_attention_scores:
                results["attention_scores"] = scores
        return results

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def get_config(self):
        return {
            **super().get_config(),
            "cell": keras.saving.serialize_keras_object(self.cell),
            "attention": keras.saving.serialize_keras_object(self.attention),
            "unroll": self.unroll,
        }

    @classmethod
    def from_config(cls, config):
        config, parts = dict(config), {}
        for name in ("cell", "attention"):
            # Built with the whole, the weights get the paths that they had.
            part = {**config.pop(name), "build_config": None}
            parts[name] = keras.saving.deserialize_keras_object(part)
        return cls(**parts, **config)


class _LookingCell:
    """`cell` with a look in front of it; what `keras.layers.RNN` needs, no more.

    Args:
        cell: The Keras cell.
        look: From queries (B, 1, U) to contexts (B, 1, M) and probabilities.
        context_dim: M.
        training: Passed on to the cell.
    """

    def __init__(self, cell, look, context_dim, training):
        self.cell = cell
        self.look = look
        self.training = training
        self.state_size = _as_list(cell.state_size)
        self.output_size = self.state_size[0] + context_dim
        self.compute_dtype = cell.compute_dtype

    def call(self, inputs, states):
        """(B, D) and the states to `[s_t; c_t]`, (B, U + M), and the new states."""
        context, _ = self.look(ops.expand_dims(states[0], 1))
        context = ops.squeeze(context, 1)
        joined = ops.concatenate([inputs, context], axis=-1)
        output, states = self.cell(joined, states, training=self.training)
        return ops.concatenate([output, context], axis=-1), _as_list(states)

    __call__ = call


def _as_list(state):
    return list(state) if isinstance(state, (list, tuple)) else [state]
