"""A recurrent decoder that attends to a memory before every step.

Legend: B batch, T target length, S memory length, D width of the inputs, M width of
the memory, U units of the cell.
"""

from typing import Literal, get_args

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import check_choice, check_fraction, check_rank
from keras_attn.kernels.precision import at_least_float32
from keras_attn.layers import recorder
from keras_attn.layers.attention.attention_checks import check_padding_mask
from keras_attn.layers.attention.scored_attention import ScoredAttention
from keras_attn.layers.initializers import independent_copy
from keras_attn.layers.output_specs import caches_output_specs
from keras_attn.layers.recurrent.recurrent_attention import (
    CellStep,
    RecurrentAttention,
    as_list,
    first_states,
    run_loop,
)
from keras_attn.ops import (
    both_masks,
    merge_masks,
    most_probable_places,
    project,
    sampled_places,
)

# What hard attention does outside training.
Inference = Literal["mean", "most_probable"]


@keras.saving.register_keras_serializable("keras_attn")
@caches_output_specs
class AttentionRNN(RecurrentAttention):
    """`c_t = attention(s_{t-1}, memory)`, `s_t = cell([x_t; c_t], s_{t-1})`.

    Soft attention averages the memory, `c_t = Σ_j α_tj h_j`. Hard attention, in
    training, samples one location with the probabilities α_t, `c_t = h_j`. Sampling is
    not differentiable; `AttentionObjective` adds the REINFORCE gradient estimator.

    Args:
        cell: A Keras cell, such as `keras.layers.GRUCell(U)`. Its first state is the
            query. Dropout belongs before or after the layer, not in the cell.
        attention: An `AdditiveAttention` or `DotProductAttention`.
        unroll: Whether to unroll the loop if T is known.
        gate: Whether contexts are multiplied by a gate computed from the state,
            `β_t = σ(wᵀ s_{t-1} + b)`; `contexts` are then the products.
        hard: Whether attention is hard.
        mean_rate: Probability that an example uses soft attention, a mean of the
            memory, for the whole sequence in training.
        inference: What hard attention does outside training: "mean" averages like soft
            attention, "most_probable" takes the most probable location.
        seed: Seed of the sampled locations.
        kernel_initializer: For the weights of the gate.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, D); with teacher forcing, the embedded previous target tokens.
        memory: (B, S, M), the encoder's annotations.
        initial_state: s_0, (B, U), or a list of them for a cell with several states.
        memory_padding_mask: (B, S), True = a real position.
        projected_memory: From an earlier call, to avoid computing it at every step.
        return_attention_scores: Whether to return the probabilities.
        return_places: Whether to return the weights that the memory was multiplied by:
            with hard attention the chosen locations, the places looked at.
        training: Whether hard attention samples.

    Returns:
        A dictionary of

        - `states`: s_1 … s_T, (B, T, U),
        - `previous_states`: s_0 … s_{T-1}, (B, T, U), the queries,
        - `contexts`: c_1 … c_T, (B, T, M),
        - `final_state`: a list of the cell's states after step T,
        - `projected_memory`: for the next call,
        - `attention_scores`: with `return_attention_scores`, (B, 1, T, S), α, the
          probabilities,
        - `places`: with `return_places`, (B, 1, T, S), the weights of the memory in the
          contexts: α, or one-hot vectors of the chosen locations.

    Raises:
        TypeError: If `cell` or `attention` has an unsupported type.
        ValueError: If `cell` has dropout, an input has the wrong number of axes,
            `initial_state` has fewer tensors than the cell has states, or an argument
            is out of range.

    Masking:
        The Keras mask of the memory is used as a `memory_padding_mask`. The mask of the
        inputs is not needed and not passed on: padding comes after all real steps, and
        the loss leaves it out.

    Example:
        ```python
        decoder = AttentionRNN(keras.layers.GRUCell(64), AdditiveAttention(64))
        decoded = decoder(embedded, annotations, initial_state)
        ```

    Reference:
        Bahdanau et al. 2015, section 3.1 and A.1.2 (arXiv:1409.0473). The gate and hard
        attention: Xu et al. 2015, sections 4.1 and 4.2.1 (arXiv:1502.03044).
    """

    def __init__(
        self,
        cell: keras.layers.Layer,
        attention: ScoredAttention,
        *,
        unroll: bool = False,
        gate: bool = False,
        hard: bool = False,
        mean_rate: float = 0.5,
        inference: Inference = "mean",
        seed: int | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(cell, attention, unroll=unroll, **kwargs)
        self.gate = gate
        self.hard = hard
        self.mean_rate = check_fraction("mean_rate", mean_rate)
        check_choice("inference", inference, get_args(Inference))
        self.inference = inference
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        if hard:
            self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, inputs_shape, memory_shape):
        batch, _, width = inputs_shape
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
        return_places=False,
        training=None,
        memory_mask=None,  # The Keras mask of `memory`, which Keras passes.
    ):
        first_state = self._check_call(inputs, memory, initial_state)
        check_padding_mask(
            "memory_padding_mask", memory_padding_mask, inputs.shape[0], memory.shape[1]
        )
        check_padding_mask("memory_mask", memory_mask, inputs.shape[0], memory.shape[1])
        mask = merge_masks(
            padding_mask=both_masks(memory_padding_mask, memory_mask), per_head=False
        )
        if projected_memory is None:
            projected_memory = self.attention.project_key(memory)
        samples_locations = self.hard and bool(training)
        uniforms, is_soft = (
            self._random_numbers(inputs, memory) if samples_locations else (None, None)
        )

        def attend(queries, uniforms=None):
            """The contexts, α = softmax(e) for the scores e, and the memory's weights.

            A masked position gets α = 0; if all are masked, c = 0. The memory's weights
            are what the output named `places` holds.
            """
            context, probabilities = self.attention.attend(
                queries, memory, projected_memory, mask
            )
            # Soft attention: the weights are the probabilities. Hard attention replaces
            # them with the sampled or the most probable locations, one-hot.
            memory_weights = probabilities
            if uniforms is not None:
                one_hot = sampled_places(probabilities, uniforms)
                memory_weights = ops.where(is_soft, probabilities, one_hot)
            elif self.hard and not training and self.inference == "most_probable":
                memory_weights = most_probable_places(probabilities)
            if memory_weights is not probabilities:
                context = ops.matmul(ops.cast(memory_weights, memory.dtype), memory)
            if self.gate:
                gates = project(queries, self.gate_kernel, self.gate_bias)
                context = ops.multiply(context, ops.sigmoid(gates))
            return context, probabilities, memory_weights

        step = _AttentionStep(
            self.cell, attend, inputs.shape[-1], samples_locations, training
        )
        outputs, final_state = self._run(step, inputs, first_state, uniforms)
        units, width = as_list(self.cell.state_size)[0], memory.shape[-1]
        states = outputs[..., :units]
        queries = ops.expand_dims(first_state[0], 1)
        if inputs.shape[1] != 1:
            queries = ops.concatenate([queries, states[:, :-1]], axis=1)
        results = {
            "states": states,
            "previous_states": queries,
            "contexts": outputs[..., units : units + width],
            "final_state": final_state,
            "projected_memory": projected_memory,
        }
        if return_attention_scores or return_places or recorder.is_recording():
            # Computed again for all steps at once, so that the loop has no scores among
            # its outputs when they are not needed.
            _, probabilities, memory_weights = attend(queries)
            probabilities = ops.expand_dims(probabilities, 1)
            recorder.record(self, probabilities)
            if return_attention_scores:
                results["attention_scores"] = probabilities
            if return_places:
                if samples_locations:
                    # The locations sampled in the loop: with probabilities that are
                    # computed again, rounding might select different ones.
                    sampled = outputs[..., units + width :]
                    sampled = ops.cast(sampled, memory_weights.dtype)
                    memory_weights = ops.where(is_soft, memory_weights, sampled)
                results["places"] = ops.expand_dims(memory_weights, 1)
        return results

    def _random_numbers(self, inputs, memory):
        """Random numbers (B, T, S), and which rows attend softly, (B, 1, 1)."""
        # Drawn before the loop: inside it, a seed could not advance.
        batch, length = ops.shape(inputs)[0], ops.shape(inputs)[1]
        uniforms = keras.random.uniform(
            (batch, length, ops.shape(memory)[1]),
            dtype="float32",
            seed=self.seed_generator,
        )
        chances = keras.random.uniform(
            (batch, 1, 1), dtype="float32", seed=self.seed_generator
        )
        return uniforms, chances < self.mean_rate

    def _check_call(self, inputs, memory, initial_state):
        """The initial states of the cell, as a list."""
        check_rank("inputs", inputs, 3, "(batch, length, width)")
        check_rank("memory", memory, 3, "(batch, memory length, width)")
        return first_states(self.cell, initial_state, inputs.dtype)

    def _run(self, step, inputs, first_state, uniforms):
        """`[s_t; c_t]` of every step, (B, T, U + M), and the states after step T.

        With random numbers `uniforms`, (B, T, S), the memory's weights are appended to
        each output: (B, T, U + M + S).
        """
        if uniforms is not None:
            inputs = at_least_float32(inputs)
            uniforms = ops.cast(uniforms, inputs.dtype)
            inputs = ops.concatenate([inputs, uniforms], axis=-1)
        if inputs.shape[1] == 1:
            # A step of incremental decoding needs no loop operation.
            outputs, final_state = step(ops.squeeze(inputs, 1), first_state)
            return ops.expand_dims(outputs, 1), final_state
        # Random numbers in half precision would be too coarse.
        autocast = uniforms is None
        # `keras.layers.RNN` around the step.
        return run_loop(self, step, inputs, first_state, autocast=autocast)

    def compute_mask(self, inputs, previous_mask=None):
        return None


class _AttentionStep(CellStep):
    """One step, attention and then the cell.

    Args:
        cell: The Keras cell.
        attend: A function from queries (B, 1, U) and random numbers (B, 1, S) or None
            to contexts (B, 1, M), probabilities and the memory's weights (B, 1, S).
        input_dim: D.
        samples_locations: Whether random numbers follow the inputs, and the memory's
            weights the outputs.
        training: Passed on to the cell.
    """

    def __init__(self, cell, attend, input_dim, samples_locations, training):
        super().__init__(cell)
        self.attend = attend
        self.input_dim = input_dim
        self.samples_locations = samples_locations
        self.training = training

    def call(self, inputs, states):
        """From x_t, (B, D), and the states to `[s_t; c_t]` and the next states."""
        uniforms = None
        if self.samples_locations:
            uniforms = ops.expand_dims(inputs[:, self.input_dim :], 1)
            inputs = ops.cast(inputs[:, : self.input_dim], self.compute_dtype)
        query = ops.expand_dims(states[0], 1)
        context, _, memory_weights = self.attend(query, uniforms)
        context = ops.squeeze(context, 1)
        cell_inputs = ops.concatenate([inputs, context], axis=-1)
        output, states = self.cell(cell_inputs, states, training=self.training)
        outputs = [output, context]
        if self.samples_locations:
            weights = ops.squeeze(memory_weights, 1)
            outputs.append(ops.cast(weights, output.dtype))
        return ops.concatenate(outputs, axis=-1), as_list(states)
