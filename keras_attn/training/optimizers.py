"""AdamW with one operation per weight, and a learning rate per weight."""

import re
from collections.abc import Mapping

import keras
from keras import ops

from keras_attn.kernels.adamw import apply_adam
from keras_attn.kernels.runtime import has_distribution_strategy, is_tensorflow

# Layers that count towards the depth.
_BLOCK = re.compile(r"(stage_\d+_)?block_\d+")


@keras.saving.register_keras_serializable("keras_attn")
class AdamW(keras.optimizers.AdamW):
    """Keras' AdamW, with TensorFlow's own operation for the update of Adam.

    The numbers are the same, and a training step is faster: see
    `keras_attn.kernels.adamw`. On other backends, with `amsgrad` and in a distribution
    strategy, it is Keras' own.

    One result differs from Keras', and is the published one, also with `amsgrad` and in
    a strategy: where a token occurs twice in a batch, the gradients of its embedding
    are summed before they are squared.

    Args:
        learning_rate: As for `keras.optimizers.AdamW`.
        rate_factors: Maps the path of a weight to the factor of its learning rate and
            weight decay; 1 for all others. See `layerwise_rates`.
        **kwargs: As for `keras.optimizers.AdamW`.

    Reference:
        Loshchilov and Hutter 2019 (arXiv:1711.05101); Kingma and Ba 2015, section 2
        (arXiv:1412.6980).
    """

    def __init__(
        self,
        learning_rate=0.001,
        *,
        rate_factors: Mapping[str, float] | None = None,
        **kwargs,
    ):
        super().__init__(learning_rate, **kwargs)
        self.rate_factors = dict(rate_factors or {})

    def update_step(self, gradient, variable, learning_rate):
        """Updates one variable and its two moments."""
        learning_rate = learning_rate * self._factor(variable)
        if not self._uses_kernel():
            if is_tensorflow():
                import tensorflow as tf

                # Sums repeated rows.
                gradient = tf.convert_to_tensor(gradient)
            super().update_step(gradient, variable, learning_rate)
            return
        index = self._get_variable_index(variable)
        apply_adam(
            variable,
            self._momentums[index],
            self._velocities[index],
            gradient,
            step=self.iterations + 1,
            learning_rate=learning_rate,
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
        )

    def _apply_weight_decay(self, variables):
        if not self._uses_kernel() and not self.rate_factors:
            super()._apply_weight_decay(variables)
            return
        # A schedule is computed once, not once per variable.
        decay = self.weight_decay * self.learning_rate
        for variable in variables:
            if self._use_weight_decay(variable):
                factor = 1.0 - decay * self._factor(variable)
                variable.assign(variable * ops.cast(factor, variable.dtype))

    def _factor(self, variable):
        if not self.rate_factors:
            return 1.0
        # A TensorFlow variable does not know the path of its Keras variable.
        index = self._get_variable_index(variable)
        return self.rate_factors.get(self._trainable_variables[index].path, 1.0)

    def get_config(self):
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "rate_factors": self.rate_factors}

    def _uses_kernel(self):
        return is_tensorflow() and not self.amsgrad and not has_distribution_strategy()


def layerwise_rates(model: keras.Model, decay: float) -> dict[str, float]:
    """Layer-wise decay of the learning rate, from the head down to the embeddings.

    The factor is `decay^(L + 1 - depth)`: depth 0 for layers before the blocks, 1 to L
    for the blocks, and L + 1 for layers after them. The first layers of a pre-trained
    model are the most general, so they change least.

    Args:
        model: A model with layers named `block_0`, … or `stage_0_block_0`, ….
        decay: In (0, 1]; published: 0.65 to 0.75 for a ViT-B.

    Returns:
        Mapping from the path of each weight to its factor, for
        `AdamW(rate_factors=…)`.

    Raises:
        ValueError: If `decay` is out of range, or `model` has no such layers.

    Example:
        ```python
        from keras_attn import models, training

        model = models.build_vit(num_layers=2, hidden_dim=64, num_heads=4)
        rates = training.layerwise_rates(model, 0.75)
        model.compile(training.AdamW(1e-3, rate_factors=rates), "mse")
        ```

    Reference:
        Clark et al. 2020 (arXiv:2003.10555); for images: Bao et al. 2022
        (arXiv:2106.08254), He et al. 2022, appendix A.1 (arXiv:2111.06377).
    """
    if not 0.0 < decay <= 1.0:
        raise ValueError(
            f"`decay` must be above 0 and at most 1. Received: decay={decay!r}"
        )
    blocks = [match for x in model.layers if (match := _BLOCK.match(x.name))]
    names = list(dict.fromkeys(match.group() for match in blocks))
    if not names:
        raise ValueError(
            "`model` must have layers named block_0, … or stage_0_block_0, …. "
            f"Received: model={model.name!r} with {[x.name for x in model.layers]}"
        )
    factors, depth = {}, 0
    for layer in model.layers:
        match = _BLOCK.match(layer.name)
        if match:
            depth = 1 + names.index(match.group())
        elif depth == len(names):
            depth += 1  # After the last block.
        for weight in layer.weights:
            factors[weight.path] = decay ** (len(names) + 1 - depth)
    return factors
