"""A recurrent decoder that attends to a memory before every step.

    once      k_j = attention.project_key(h_j)                                (B, S, …)
    step t    e_tj = attention.scores(s_{t-1}, k_j)                           (B, 1, S)
              α_t = softmax(e_t), 0 where the memory is padding               (B, 1, S)
              c_t = Σ_j α_tj h_j, times the gate if there is one              (B, 1, M)
              s_t = cell([x_t; c_t], s_{t-1})                                    (B, U)

s_{t-1} is the cell's first state. e, α and c are the `attend` of every attention layer,
of which `scores` is the only part that differs. The loop is `keras.layers.RNN` around
`AttentionStep`, below.

Legend: B batch, T target length, S memory length, D width of the inputs, M width of
the memory, U units of the cell.
"""

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import check_rank
from keras_attn.layers import recorder
from keras_attn.layers.attention.attention_checks import check_padding_mask
from keras_attn.layers.attention.scored_attention import ScoredAttention
from keras_attn.layers.initializers import independent_copy
from keras_attn.layers.output_specs import caches_output_specs
from keras_attn.layers.recurrent.cell_loop import (
    CellStep,
    RecurrentAttention,
    as_list,
    first_states,
    run_loop,
)
from keras_attn.ops import both_masks, merge_masks, project


@keras.saving.register_keras_serializable("keras_attn")
@caches_output_specs
class AttentionRNN(RecurrentAttention):
    """`c_t = attention(s_{t-1}, memory)`, `s_t = cell([x_t; c_t], s_{t-1})`.

    Attention is soft: it averages the memory, `c_t = Σ_j α_tj h_j`. For hard attention
    there is `HardAttentionRNN`.

    Args:
        cell: A Keras cell, such as `keras.layers.GRUCell(U)`. Its first state is the
            query. Dropout belongs before or after the layer, not in the cell.
        attention: An `AdditiveAttention` or `DotProductAttention`.
        unroll: Whether to unroll the loop if T is known.
        gate: Whether contexts are multiplied by a gate computed from the state,
            `β_t = σ(wᵀ s_{t-1} + b)`; `contexts` are then the products.
        kernel_initializer: For the weights of the gate.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, D); with teacher forcing, the embedded previous target tokens.
        memory: (B, S, M), the encoder's annotations.
        initial_state: s_0, (B, U), or a list of them for a cell with several states.
        memory_padding_mask: (B, S), True = a real position.
        projected_memory: From an earlier call, to avoid computing it at every step.
        return_attention_scores: Whether to return the probabilities.
        training: Passed on to the cell.

    Returns:
        A dictionary of

        - `states`: s_1 … s_T, (B, T, U),
        - `previous_states`: s_0 … s_{T-1}, (B, T, U), the queries,
        - `contexts`: c_1 … c_T, (B, T, M),
        - `final_state`: a list of the cell's states after step T,
        - `projected_memory`: for the next call,
        - `attention_scores`: with `return_attention_scores`, (B, 1, T, S), α, the
          probabilities.

    Raises:
        TypeError: If `cell` or `attention` has an unsupported type.
        ValueError: If `cell` has dropout, an input has the wrong number of axes,
            or `initial_state` has fewer tensors than the cell has states.

    Masking:
        The Keras mask of the memory is used as a `memory_padding_mask`. The mask of the
        inputs is not needed and not passed on: padding comes after all real steps, and
        the loss leaves it out.

    Example:
        ```python
        import keras
        import numpy as np
        from keras_attn import layers

        annotations, embedded = np.random.normal(size=(2, 7, 48)), np.ones((2, 5, 32))
        cell, attention = keras.layers.GRUCell(64), layers.AdditiveAttention(64)
        decoder = layers.AttentionRNN(cell, attention)
        decoded = decoder(embedded, annotations, np.zeros((2, 64)))
        ```

    Reference:
        Bahdanau et al. 2015, section 3.1 and A.1.2 (arXiv:1409.0473). The gate: Xu et
        al. 2015, section 4.2.1 (arXiv:1502.03044).
    """

    def __init__(
        self,
        cell: keras.layers.Layer,
        attention: ScoredAttention,
        *,
        unroll: bool = False,
        gate: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(cell, attention, unroll=unroll, **kwargs)
        self.gate = gate
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, inputs_shape, memory_shape):
        batch, width = inputs_shape[0], inputs_shape[-1]
        units = as_list(self.cell.state_size)[0]
        # A shared cell or attention may already be built.
        if not self.attention.built:
            self.attention.build((batch, None, units), memory_shape)
        if not self.cell.built:
            self.cell.build((batch, width + memory_shape[-1]))
        if self.gate:
            self.gate_kernel = self.add_weight(
                name="gate_kernel",
                shape=(units, 1),
                initializer=independent_copy(self.kernel_initializer, "gate_kernel"),
            )
            self.gate_bias = self.add_weight(
                name="gate_bias", shape=(1,), initializer="zeros"
            )

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
        memory_mask=None,  # The Keras mask of `memory`, which Keras passes.
    ):
        masks = {"memory_padding_mask": memory_padding_mask, "memory_mask": memory_mask}
        first_state, projected_memory, attend = self._prepare(
            inputs, memory, initial_state, masks, projected_memory
        )
        step = AttentionStep(self, attend, training)
        outputs, final_state = self._run(step, inputs, first_state)
        results = self._results(outputs, memory, first_state, final_state)
        results["projected_memory"] = projected_memory
        if return_attention_scores or recorder.is_recording():
            scores = self._scores(attend, results["previous_states"])
            if return_attention_scores:
                results["attention_scores"] = scores
        return results

    def _prepare(self, inputs, memory, initial_state, masks, projected_memory):
        """The cell's first states, the projected memory, and soft attention to it."""
        check_rank("inputs", inputs, 3, "(batch, length, width)")
        check_rank("memory", memory, 3, "(batch, memory length, width)")
        first_state = first_states(self.cell, initial_state, inputs.dtype)
        batch, length = inputs.shape[0], memory.shape[1]
        for name, mask in masks.items():
            check_padding_mask(name, mask, batch, length)
        mask = merge_masks(padding_mask=both_masks(*masks.values()), per_head=False)
        if projected_memory is None:
            projected_memory = self.attention.project_key(memory)

        def attend(queries):
            """From (B, T, U) to c, (B, T, M), and α, (B, T, S); if all is masked, 0."""
            return self.attention.attend(queries, memory, projected_memory, mask)

        return first_state, projected_memory, attend

    def _run(self, step, inputs, first_state, **options):
        """`[s_t; c_t]` of every step, (B, T, U + M), and the states after step T."""
        if inputs.shape[1] == 1:
            # A step of incremental decoding needs no loop operation.
            outputs, final_state = step(ops.squeeze(inputs, 1), first_state)
            return ops.expand_dims(outputs, 1), final_state
        # `keras.layers.RNN` around the step.
        return run_loop(self, step, inputs, first_state, **options)

    def _results(self, outputs, memory, first_state, final_state):
        """The outputs of the loop by name."""
        units, width = as_list(self.cell.state_size)[0], memory.shape[-1]
        states = outputs[..., :units]
        queries = ops.expand_dims(first_state[0], 1)
        if outputs.shape[1] != 1:
            queries = ops.concatenate([queries, states[:, :-1]], axis=1)
        return {
            "states": states,
            "previous_states": queries,
            "contexts": outputs[..., units : units + width],
            "final_state": final_state,
        }

    def _scores(self, attend, queries):
        """α of all steps, (B, 1, T, S), which are recorded.

        Computed again for all steps at once, so that the loop has no scores among its
        outputs when they are not needed.
        """
        _, probabilities = attend(queries)
        scores = ops.expand_dims(probabilities, 1)
        recorder.record(self, scores)
        return scores

    def gated(self, contexts, queries):
        """The contexts times `β = σ(wᵀ s + b)`; as they are without a gate.

        Args:
            contexts: (B, T, M).
            queries: s, (B, T, U).
        """
        if not self.gate:
            return contexts
        gates = project(queries, self.gate_kernel, self.gate_bias)
        return ops.multiply(contexts, ops.sigmoid(gates))

    def compute_mask(self, inputs, previous_mask=None):
        return None


class AttentionStep(CellStep):
    """One step, attention and then the cell.

    Args:
        layer: The `AttentionRNN`, which has the cell and perhaps a gate.
        attend: A function from queries (B, 1, U) to contexts (B, 1, M) and weights.
        training: Passed on to the cell.
    """

    def __init__(self, layer, attend, training):
        super().__init__(layer.cell)
        self.gated = layer.gated
        self.attend = attend
        self.training = training

    def call(self, inputs, states):
        """From x_t, (B, D), and the states to `[s_t; c_t]` and the next states."""
        queries = ops.expand_dims(states[0], 1)
        contexts, _ = self.attend(queries)
        return self.advance(inputs, queries, contexts, states)

    def advance(self, inputs, queries, contexts, states):
        """The cell's step, with a context (B, 1, M) of the queries (B, 1, U)."""
        context = ops.squeeze(self.gated(contexts, queries), 1)
        cell_inputs = ops.concatenate([inputs, context], axis=-1)
        output, states = self.cell(cell_inputs, states, training=self.training)
        return ops.concatenate([output, context], axis=-1), as_list(states)
