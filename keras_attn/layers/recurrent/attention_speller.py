"""A recurrent decoder that attends after every step, and may read its own predictions.

Legend: B batch, T target length, S memory length, M width of the memory, E embedding
width, U units of each LSTM, A units of the attention, V vocabulary.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_fraction, check_positive, check_rank
from keras_attn.checks.indices import check_indices
from keras_attn.kernels.lstm import LoopLSTM, has_fast_lstm
from keras_attn.layers import recorder
from keras_attn.layers.adaptation.keras_layers import Dense, Embedding
from keras_attn.layers.attention.attention_checks import check_padding_mask
from keras_attn.layers.attention.mlp_dot_attention import MLPDotAttention
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.recurrent.cell_loop import run_loop
from keras_attn.ops import both_masks, merge_masks

# Random integers below this are exact in float32.
_RESOLUTION = 2**24
# Stands for a random integer where the true token is read.
_TRUE_TOKEN = -1


@keras.saving.register_keras_serializable("keras_attn")
class AttentionSpeller(BaseLayer):
    """The speller of "Listen, attend and spell", from tokens and memory to logits.

        s_i = LSTMs([y_{i-1}; c_{i-1}], s_{i-1})   `cells`: state, s_0 = 0
        e_ij = ⟨φ(s_i), ψ(h_j)⟩, α_i = softmax(e_i)   `attention`
        c_i = Σ_j α_ij h_j                          context, c_0 = 0
        p(y_i) = softmax(W_o tanh(W_r [s_i; c_i]))  `readout`, `logits`

    `AttentionRNN` instead attends before its cell, with the previous state, so that a
    context c_i that depends on s_i is not available to the output of step i.

    Args:
        vocabulary_size: V.
        embedding_dim: E.
        hidden_dim: U.
        num_layers: Number of stacked LSTMs.
        attention_dim: A.
        readout_dim: Units of the tanh layer below the logits.
        sampling_probability: In training, the probability with which a step reads a
            token that the model samples from its own last prediction, instead of the
            true token. The first token is always the true token.
        seed: Seed of the sampling.
        unroll: Whether to unroll the loop if T is known.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: int32 (B, T), y_0 … y_{T-1}, the previous tokens.
        memory: h, (B, S, M).
        initial_state: From `final_state` of an earlier call. Default: zeros.
        memory_padding_mask: (B, S), True = a real position.
        projected_memory: From an earlier call, to avoid computing it at every step.
        return_attention_scores: Whether to return the probabilities.
        training: Whether tokens are sampled.

    Returns:
        A dictionary of

        - `logits`: float32 (B, T, V),
        - `final_state`: h and c of every LSTM, (B, U) each, and the context, (B, M),
        - `projected_memory`: ψ(h), (B, S, A),
        - `attention_scores`: float32 (B, 1, T, S), with `return_attention_scores`.

    Raises:
        ValueError: If an argument is out of range, an input has the wrong number of
            axes, `initial_state` has the wrong number of states, or, in an eager call,
            a token id is outside [0, V).

    Masking:
        The Keras mask of the memory is used as a `memory_padding_mask`. Padding comes
        after all real tokens, and the loss leaves it out.

    Reference:
        Chan et al. 2016, "Listen, Attend and Spell", sections 3.2 and 3.3
        (arXiv:1508.01211). Bengio et al. 2015 for the sampling (arXiv:1506.03099).
    """

    def __init__(
        self,
        vocabulary_size: int,
        *,
        embedding_dim: int,
        hidden_dim: int,
        num_layers: int = 2,
        attention_dim: int,
        readout_dim: int,
        sampling_probability: float = 0.0,
        seed: int | None = None,
        unroll: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = check_positive("vocabulary_size", vocabulary_size)
        self.embedding_dim = check_positive("embedding_dim", embedding_dim)
        self.hidden_dim = check_positive("hidden_dim", hidden_dim)
        self.num_layers = check_positive("num_layers", num_layers)
        self.attention_dim = check_positive("attention_dim", attention_dim)
        self.readout_dim = check_positive("readout_dim", readout_dim)
        self.sampling_probability = check_fraction(
            "sampling_probability", sampling_probability
        )
        self.unroll = unroll
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        policy = self.dtype_policy
        self.embedding = Embedding(
            vocabulary_size, embedding_dim, dtype=policy, name="token_embedding"
        )
        self.cells = [
            keras.layers.LSTMCell(hidden_dim, dtype=policy, name=f"cell_{index}")
            for index in range(num_layers)
        ]
        self.attention = MLPDotAttention(attention_dim, dtype=policy, name="attention")
        self.readout = Dense(
            readout_dim, activation="tanh", dtype=policy, name="readout"
        )
        # A softmax follows.
        self.logits = Dense(vocabulary_size, dtype="float32", name="logits")

    @property
    def index_ranges(self):
        """The range of the token ids."""
        return {"inputs": (0, self.vocabulary_size)}

    def build(self, inputs_shape, memory_shape):
        batch, units, context_dim = inputs_shape[0], self.hidden_dim, memory_shape[-1]
        self.embedding.build((batch, None))
        width = self.embedding_dim + context_dim
        for cell in self.cells:
            cell.build((batch, width))
            width = units
        self.attention.build((batch, None, units), memory_shape)
        self.readout.build((batch, None, units + context_dim))
        self.logits.build((batch, None, self.readout_dim))

    def call(
        self,
        inputs,
        memory,
        initial_state=None,
        *,
        memory_padding_mask=None,
        projected_memory=None,
        return_attention_scores=False,
        training=None,
        memory_mask=None,
    ):
        check_rank("inputs", inputs, 2, "(batch, length)")
        check_rank("memory", memory, 3, "(batch, memory length, width)")
        check_indices("inputs", inputs, self.index_ranges["inputs"])
        shape = (inputs.shape[0], memory.shape[1])
        check_padding_mask("memory_padding_mask", memory_padding_mask, *shape)
        check_padding_mask("memory_mask", memory_mask, *shape)
        mask = merge_masks(
            padding_mask=both_masks(memory_padding_mask, memory_mask), per_head=False
        )
        if projected_memory is None:
            projected_memory = self.attention.project_key(memory)

        def attend(queries):
            """Contexts and probabilities of states (B, T, U)."""
            return self.attention.attend(queries, memory, projected_memory, mask)

        state = self._first_state(memory, initial_state)
        step = _SpellerStep(self, attend, memory.shape[-1])
        features, final_state = self._run(step, inputs, state, bool(training))
        results = {
            "logits": self._predict(features),
            "final_state": final_state,
            "projected_memory": projected_memory,
        }
        if return_attention_scores or recorder.is_recording():
            # Computed again for all steps at once, so that the loop has no scores among
            # its outputs when they are not needed.
            states = features[..., : self.hidden_dim]
            weights = ops.expand_dims(attend(states)[1], 1)
            recorder.record(self, weights)
            if return_attention_scores:
                results["attention_scores"] = weights
        return results

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def _first_state(self, memory, initial_state):
        """The given states, or zeros: h and c of every LSTM, and the context."""
        widths = [self.hidden_dim] * (2 * self.num_layers) + [memory.shape[-1]]
        if initial_state is None:
            batch = ops.shape(memory)[0]
            return [ops.zeros((batch, width), memory.dtype) for width in widths]
        if len(initial_state) != len(widths):
            raise ValueError(
                "`initial_state` must hold h and c of every LSTM, and the context. "
                f"Received: {len(initial_state)} of {len(widths)} states"
            )
        return [ops.cast(state, memory.dtype) for state in initial_state]

    def _run(self, step, inputs, state, training):
        """`[s_i; c_i]` of every step, (B, T, U + M), and the state after the last."""
        if inputs.shape[1] == 1:
            # A step of incremental decoding needs no loop operation.
            embedded = self.embedding(ops.squeeze(inputs, 1))
            features, state = step.call(embedded, state)
            return ops.expand_dims(features, 1), state
        if training and self.sampling_probability:
            step = _SamplingStep(step)
            sequence = self._sampling_plan(inputs)
        else:
            sequence = self.embedding(inputs)
        if training and all(map(has_fast_lstm, self.cells)):
            step = _TrainingStep(step, self.cells, sequence, self.compute_dtype)
            sequence = step.sequence
        # Tokens and random numbers in half precision would be too coarse.
        autocast = not isinstance(step, _TrainingStep)
        features, state = run_loop(self, step, sequence, state, autocast=autocast)
        if isinstance(step, _TrainingStep):
            features = step.finish(features)
        return features, state

    def _sampling_plan(self, inputs):
        """For every step the true token and a random integer, int32 (B, T, 2).

        Random numbers are drawn before the loop, whose body has no state.
        """
        chosen = ops.less(
            keras.random.uniform(ops.shape(inputs), seed=self.seed_generator),
            self.sampling_probability,
        )
        # The first step has no prediction before it.
        number = ops.cumsum(ops.ones_like(inputs), axis=1)
        chosen = ops.logical_and(chosen, ops.greater(number, 1))
        random = keras.random.randint(
            ops.shape(inputs), 0, _RESOLUTION, seed=self.seed_generator
        )
        random = ops.where(chosen, ops.cast(random, "int32"), _TRUE_TOKEN)
        return ops.stack([ops.cast(inputs, "int32"), random], axis=-1)

    def _predict(self, features):
        """Logits (…, V) from `[s_i; c_i]`, (…, U + M)."""
        return self.logits(self.readout(features))


class _SpellerStep:
    """One step of `AttentionSpeller`, as `keras.layers.RNN` needs it.

    Args:
        speller: The layer.
        attend: A function from queries (B, 1, U) to contexts (B, 1, M) and
            probabilities.
        context_dim: M.
    """

    def __init__(self, speller, attend, context_dim):
        self.speller = speller
        self.attend = attend
        units = speller.hidden_dim
        self.state_size = [units] * (2 * speller.num_layers) + [context_dim]
        self.output_size = units + context_dim
        self.compute_dtype = speller.compute_dtype

    def call(self, inputs, states, cells=None):
        """From the embedded y_{i-1}, (B, E), to `[s_i; c_i]` and the next states.

        Args:
            inputs: y_{i-1}.
            states: The states after the previous step.
            cells: Functions to call instead of the cells, with the same results.
        """
        *states, context = states
        hidden, after = ops.concatenate([inputs, context], axis=-1), []
        for index, cell in enumerate(cells or self.speller.cells):
            hidden, state = cell(hidden, states[2 * index : 2 * index + 2])
            after += state
        context = ops.squeeze(self.attend(ops.expand_dims(hidden, 1))[0], 1)
        return ops.concatenate([hidden, context], axis=-1), [*after, context]

    __call__ = call


class _SamplingStep:
    """As `_SpellerStep`, with the tokens chosen by `AttentionSpeller._sampling_plan`.

    Args:
        step: The step that reads the chosen token.
    """

    def __init__(self, step):
        self.step = step
        self.state_size, self.output_size = step.state_size, step.output_size
        self.compute_dtype = step.compute_dtype

    def call(self, inputs, states, cells=None):
        """From the true token and a random integer, (B, 2)."""
        speller = self.step.speller
        true_token, random = inputs[:, 0], inputs[:, 1]
        # s_{i-1}, the state of the last LSTM, and c_{i-1}.
        features = ops.concatenate([states[-3], states[-1]], axis=-1)
        probabilities = ops.softmax(speller._predict(features), axis=-1)
        sampled = _sample(probabilities, random)
        token = ops.where(ops.equal(random, _TRUE_TOKEN), true_token, sampled)
        # Nothing is learned through the choice of a token.
        embedded = speller.embedding(ops.stop_gradient(token))
        return self.step.call(embedded, states, cells)

    __call__ = call


class _TrainingStep:
    """The same as the step that it wraps, with faster gradients; see `LoopLSTM`.

    Attributes:
        sequence: The input of the loop, (B, T, …): the input of the wrapped step, then
            the `bias_per_step` of every LSTM.

    Args:
        step: The step.
        cells: The cells of its LSTMs.
        sequence: The input of its loop, (B, T, E), or integers (B, T, 2).
        dtype: Compute dtype of the layer.
    """

    def __init__(self, step, cells, sequence, dtype):
        self.step = step
        self.lstms = [LoopLSTM(cell, ops.shape(sequence)[:2], dtype) for cell in cells]
        self.input_dtype = sequence.dtype
        # Integers in half precision would be rounded.
        joined = "float32" if self.input_dtype == "int32" else dtype
        parts = [sequence, *(lstm.bias_per_step for lstm in self.lstms)]
        self.sequence = ops.concatenate([ops.cast(x, joined) for x in parts], axis=-1)
        self.sizes = [part.shape[-1] for part in parts]
        self.state_size, self.compute_dtype = step.state_size, dtype
        widths = [lstm.input_dim for lstm in self.lstms]
        self.output_sizes = [step.output_size, *widths]
        self.output_size = sum(self.output_sizes)

    def call(self, inputs, states):
        """From a step of `sequence` to the outputs and the inputs of `finish`."""
        inputs, *biases = _split(inputs, self.sizes)
        gate_inputs = []

        def cell_of(lstm, bias):
            bias = ops.cast(bias, self.compute_dtype)

            def cell(hidden, states):
                hidden, states, used = lstm.step(hidden, states, bias)
                gate_inputs.append(used)
                return hidden, states

            return cell

        cells = list(map(cell_of, self.lstms, biases))
        inputs = ops.cast(inputs, self.input_dtype)
        outputs, states = self.step.call(inputs, states, cells)
        return ops.concatenate([outputs, *gate_inputs], axis=-1), states

    __call__ = call

    def finish(self, outputs):
        """The outputs of the wrapped step, (B, T, …), from the outputs of the loop."""
        outputs, *gate_inputs = _split(outputs, self.output_sizes)
        for lstm, inputs in zip(self.lstms, gate_inputs, strict=True):
            lstm.finish(inputs)
        return outputs


def _split(tensor, sizes):
    """Splits the last axis into parts of these sizes."""
    places = [sum(sizes[: index + 1]) for index in range(len(sizes) - 1)]
    return ops.split(tensor, places, axis=-1)


def _sample(probabilities, random):
    """Inverse transform sampling: int32 (B,) from (B, V) and integers (B,)."""
    cumulative = ops.cumsum(probabilities, axis=-1)
    target = ops.cast(random, "float32") / _RESOLUTION * cumulative[:, -1]
    beyond = ops.greater(cumulative, ops.expand_dims(target, 1))
    return ops.cast(ops.argmax(ops.cast(beyond, "int32"), axis=-1), "int32")
