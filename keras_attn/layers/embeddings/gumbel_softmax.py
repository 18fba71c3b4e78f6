"""The relaxation of discrete codes, whose temperature falls during training.

Legend: B batch, h and w codes, V vocabulary.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import (
    check_above_zero,
    check_at_least_zero,
    check_positive,
)
from keras_attn.layers.base import BaseLayer
from keras_attn.ops import cosine_annealing, gumbel_softmax, most_probable_codes


@keras.saving.register_keras_serializable("keras_attn")
class GumbelSoftmax(BaseLayer):
    """In training a sample of the relaxed code, at inference the most probable code.

    `softmax((logits + g) / τ)` with Gumbel noise g, or `one_hot(argmax(logits))`.

    The layer counts the updates of training, `advance`, from which two numbers follow:
    the temperature τ, and the weight β of the divergence from the uniform prior in the
    loss of a discrete VAE. Both move along half a cosine. The count is a weight, so a
    run that is saved and resumed continues where it stopped.

    Args:
        temperature: τ before the first update.
        final_temperature: τ after `temperature_steps`.
        temperature_steps: Number of updates from the first temperature to the last.
        kl_weight: β after `kl_steps`; it starts at 0.
        kl_steps: Number of updates until β reaches `kl_weight`.
        seed: Seed of the noise.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: Logits, (..., V).
        training: Whether to sample.

    Returns:
        (..., V), in float32 under every dtype policy.

    Raises:
        ValueError: If a temperature is not above 0, `kl_weight` is negative, or a
            number of steps is not a positive integer.

    Reference:
        Jang et al. 2017 (arXiv:1611.01144); Ramesh et al. 2021, section 2.1 and
        appendix A.2 (arXiv:2102.12092).
    """

    def __init__(
        self,
        *,
        temperature: float = 1.0,
        final_temperature: float = 1 / 16,
        temperature_steps: int = 150_000,
        kl_weight: float = 6.6,
        kl_steps: int = 5_000,
        seed: int | None = None,
        **kwargs,
    ):
        # Exponentials of logits: a code is chosen by small differences.
        super().__init__(**{"dtype": "float32", **kwargs})
        self.temperature = check_above_zero("temperature", temperature)
        self.final_temperature = check_above_zero(
            "final_temperature", final_temperature
        )
        self.temperature_steps = check_positive("temperature_steps", temperature_steps)
        self.kl_weight = check_at_least_zero("kl_weight", kl_weight)
        self.kl_steps = check_positive("kl_steps", kl_steps)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, inputs_shape):
        self.updates = self.add_weight(
            name="updates",
            shape=(),
            dtype="int32",
            initializer="zeros",
            trainable=False,
            # Every device that trains counts the same updates.
            aggregation="only_first_replica",
        )

    def current_temperature(self):
        """τ after the updates made so far, a float32 scalar."""
        return cosine_annealing(
            self.updates,
            self.temperature,
            self.final_temperature,
            self.temperature_steps,
        )

    def current_kl_weight(self):
        """β after the updates made so far, a float32 scalar."""
        return cosine_annealing(self.updates, 0.0, self.kl_weight, self.kl_steps)

    def advance(self):
        """Counts one update."""
        self.updates.assign(self.updates + 1)

    def call(self, inputs, training=None):
        size = inputs.shape[-1]
        if not training:
            return ops.one_hot(most_probable_codes(inputs), size, dtype="float32")
        uniform = keras.random.uniform(ops.shape(inputs), seed=self.seed_generator)
        return gumbel_softmax(inputs, uniform, self.current_temperature())

    def compute_output_spec(self, inputs, training=None):
        return keras.KerasTensor(inputs.shape, "float32")
