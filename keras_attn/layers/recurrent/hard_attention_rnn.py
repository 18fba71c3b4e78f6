"""Hard attention of a recurrent decoder: it looks at one location in each step.

Legend: B batch, T target length, S memory length, D width of the inputs, M width of
the memory, U units of the cell.
"""

from typing import Literal, get_args

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import check_choice, check_fraction
from keras_attn.docstrings.descriptions import described_as
from keras_attn.kernels.precision import at_least_float32
from keras_attn.layers import recorder
from keras_attn.layers.attention.scored_attention import ScoredAttention
from keras_attn.layers.recurrent.attention_rnn import AttentionRNN, AttentionStep
from keras_attn.layers.recurrent.cell_loop import as_list
from keras_attn.ops import most_probable_places, sampled_places

# What hard attention does outside training.
Inference = Literal["mean", "most_probable"]


@keras.saving.register_keras_serializable("keras_attn")
@described_as(AttentionRNN)
class HardAttentionRNN(AttentionRNN):
    """An `AttentionRNN` whose context, in training, is one location of the memory.

    The location is sampled with the probabilities α_t, `c_t = h_j`. Sampling is not
    differentiable; `AttentionObjective` adds the REINFORCE gradient estimator.

    Args:
        mean_rate: Probability that an example uses soft attention, a mean of the
            memory, for the whole sequence in training.
        inference: What the layer does outside training: "mean" averages like soft
            attention, "most_probable" takes the most probable location.
        seed: Seed of the sampled locations.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        return_attention_scores: Whether to return the probabilities and the places.
        training: Whether to sample.

    Returns:
        The dictionary of an `AttentionRNN`; with `return_attention_scores` also
        `places`, (B, 1, T, S), the weights of the memory in the contexts: one-hot
        vectors of the locations, or α where attention was soft.

    Raises:
        TypeError: As `AttentionRNN`.
        ValueError: As `AttentionRNN`; or if `mean_rate` or `inference` is none of its
            values.

    Reference:
        Xu et al. 2015, sections 4.1 and 4.2.1 (arXiv:1502.03044).
    """

    def __init__(
        self,
        cell: keras.layers.Layer,
        attention: ScoredAttention,
        *,
        unroll: bool = False,
        gate: bool = False,
        mean_rate: float = 0.5,
        inference: Inference = "mean",
        seed: int | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(
            cell,
            attention,
            unroll=unroll,
            gate=gate,
            kernel_initializer=kernel_initializer,
            **kwargs,
        )
        self.mean_rate = check_fraction("mean_rate", mean_rate)
        check_choice("inference", inference, get_args(Inference))
        self.inference = inference
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

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
        first_state, projected_memory, attend_softly = self._prepare(
            inputs, memory, initial_state, masks, projected_memory
        )
        uniforms, is_soft = (
            self._random_numbers(inputs, memory) if training else (None, None)
        )

        def attend(queries, uniforms=None):
            """The contexts, and the weights of the memory in them."""
            _, probabilities = attend_softly(queries)
            if uniforms is None:
                places = self._places(probabilities)
            else:
                one_hot = sampled_places(probabilities, uniforms)
                places = ops.where(is_soft, probabilities, one_hot)
            return ops.matmul(ops.cast(places, memory.dtype), memory), places

        if training:
            # Random numbers in half precision would be too coarse.
            drawn = at_least_float32(inputs)
            drawn = ops.concatenate([drawn, ops.cast(uniforms, drawn.dtype)], axis=-1)
            step = _SamplingStep(self, attend, inputs.shape[-1])
            outputs, final_state = self._run(step, drawn, first_state, autocast=False)
        else:
            step = AttentionStep(self, attend, training)
            outputs, final_state = self._run(step, inputs, first_state)
        results = self._results(outputs, memory, first_state, final_state)
        results["projected_memory"] = projected_memory
        if return_attention_scores or recorder.is_recording():
            scores = self._scores(attend_softly, results["previous_states"])
            if not training:
                places = self._places(scores)
            else:
                # The locations sampled in the loop: with probabilities that are
                # computed again, rounding might select different ones.
                before = as_list(self.cell.state_size)[0] + memory.shape[-1]
                sampled = ops.cast(outputs[..., before:], scores.dtype)
                sampled = ops.expand_dims(sampled, 1)
                places = ops.where(ops.expand_dims(is_soft, 1), scores, sampled)
            if return_attention_scores:
                results |= {"attention_scores": scores, "places": places}
        return results

    def _places(self, probabilities):
        """The weights of the memory outside training, for α."""
        if self.inference == "most_probable":
            return most_probable_places(probabilities)
        return probabilities

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


class _SamplingStep(AttentionStep):
    """A step in training: random numbers follow the inputs, and places the outputs.

    Args:
        layer: The `HardAttentionRNN`.
        attend: A function from queries (B, 1, U) and random numbers (B, 1, S) to
            contexts (B, 1, M) and the weights of the memory (B, 1, S).
        input_dim: D.
    """

    def __init__(self, layer, attend, input_dim):
        super().__init__(layer, attend, training=True)
        self.input_dim = input_dim

    def call(self, inputs, states):
        """From `[x_t; u_t]`, (B, D + S), to `[s_t; c_t; weights]`, (B, U + M + S)."""
        queries = ops.expand_dims(states[0], 1)
        uniforms = ops.expand_dims(inputs[:, self.input_dim :], 1)
        inputs = ops.cast(inputs[:, : self.input_dim], self.compute_dtype)
        contexts, places = self.attend(queries, uniforms)
        outputs, states = self.advance(inputs, queries, contexts, states)
        places = ops.cast(ops.squeeze(places, 1), outputs.dtype)
        return ops.concatenate([outputs, places], axis=-1), states
