"""Stochastic depth: residual branches skipped at random."""

import keras
from keras import ops

from keras_attn.checks.arguments import check_fraction
from keras_attn.layers.base import BaseLayer


@keras.saving.register_keras_serializable("keras_attn")
class StochasticDepth(BaseLayer):
    """Drops a residual branch for random examples during training ("drop path").

    Kept branches are scaled by 1 / (1 - rate), which preserves the mean. It is the
    last layer of a branch, before the sum with the residual.

    Args:
        rate: Probability in [0, 1) of dropping the branch of an example.
        seed: Seed of the randomness.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, ...).

    Returns:
        (B, ...).

    Reference:
        Huang et al. 2016, "Deep Networks with Stochastic Depth" (arXiv:1603.09382).
    """

    def __init__(self, rate: float = 0.0, *, seed: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.rate = check_fraction("rate", rate)
        self.seed = seed
        if rate:
            self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, inputs, training=None):
        if not training or not self.rate:
            return inputs
        ones = (1,) * (len(inputs.shape) - 1)
        return keras.random.dropout(
            inputs,
            self.rate,
            noise_shape=(ops.shape(inputs)[0], *ones),
            seed=self.seed_generator,
        )

    def compute_output_shape(self, inputs_shape):
        return inputs_shape


def rising_rates(last, count):
    """Rates that rise linearly from 0 for the first block to `last` for the last block.

    Args:
        last: Rate of the last block, in [0, 1).
        count: Number of blocks.

    Reference:
        Huang et al. 2016, section 3, equation 4, with a rate of 0 for the first block.
    """
    check_fraction("stochastic_depth", last)
    return [last * (index / max(count - 1, 1)) for index in range(count)]
