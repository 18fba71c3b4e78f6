"""Residual branches that are left out at random."""

import keras
from keras import ops

from keras_attn.checks import check_fraction
from keras_attn.layers.base import BaseLayer


@keras.saving.register_keras_serializable("keras_attn")
class StochasticDepth(BaseLayer):
    """Drops a whole branch for some of the examples while training ("drop path").

    What is kept is scaled up, so that the mean stays. It stands at the end of a
    branch, in front of the sum with the residual.

    Args:
        rate: Probability in [0, 1) of dropping the branch of an example.
        seed: Seed of the choice.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, ...).

    Returns:
        (B, ...).

    Reference:
        Huang et al. 2016, "Deep Networks with Stochastic Depth" (arXiv:1603.09382).
    """

    def __init__(self, rate=0.0, *, seed=None, **kwargs):
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
    """Rates that rise evenly from 0 for the first block to `last` for the last one.

    Reference:
        Huang et al. 2016, section 3, equation 4, but that the first is never dropped.
    """
    check_fraction("stochastic_depth", last)
    return [last * (index / max(count - 1, 1)) for index in range(count)]
