"""The position-wise feed-forward network of a transformer block."""

import keras
from keras import ops

from keras_attn.checks.argument_types import Activation, Initializer
from keras_attn.checks.arguments import check_fraction, check_positive
from keras_attn.kernels.gelu import get_activation, with_fast_gradient
from keras_attn.kernels.runtime import has_fixed_shape
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.dropout import make_dropout
from keras_attn.layers.projection import add_projection


@keras.saving.register_keras_serializable("keras_attn")
class FeedForward(BaseLayer):
    """`FFN(x) = activation(x W1 + b1) W2 + b2`, the same at every position.

    Args:
        mlp_dim: Width of the hidden layer.
        activation: Activation of the hidden layer.
        dropout: Probability in [0, 1) of dropping a hidden unit.
        use_bias: Whether the projections have biases.
        kernel_initializer: Initializer of both kernels.
        output_initializer: Initializer of the second kernel; deep pre-norm models use
            smaller initial values there. Default: `kernel_initializer`.
        seed: Seed of the dropout.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (..., D).

    Returns:
        (..., D).

    Reference:
        Vaswani et al. 2017, section 3.3 (arXiv:1706.03762).
    """

    def __init__(
        self,
        mlp_dim: int,
        *,
        activation: Activation = "relu",
        dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: Initializer = "glorot_uniform",
        output_initializer: Initializer | None = None,
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.mlp_dim = check_positive("mlp_dim", mlp_dim)
        self.activation = get_activation(activation)
        self.dropout = check_fraction("dropout", dropout)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.output_initializer = keras.initializers.get(output_initializer)
        self.seed = seed

    def build(self, inputs_shape):
        width, bias = inputs_shape[-1], self.use_bias
        self.expand = add_projection(self, "expand", (width,), self.mlp_dim, bias)
        self.contract = add_projection(
            self,
            "contract",
            (self.mlp_dim,),
            width,
            bias,
            kernel_initializer=self.output_initializer or self.kernel_initializer,
        )
        self.drop = make_dropout(self)
        self.drop.build((None, self.mlp_dim))

    def call(self, inputs, training=None):
        # Flattened: a batched product with one shared matrix is slower.
        flat = ops.reshape(inputs, (-1, inputs.shape[-1]))
        activate = self.activation
        if training:
            activate = with_fast_gradient(activate, fixed_shape=has_fixed_shape(inputs))
        hidden = self.drop(activate(self.expand.project(flat)), training=training)
        return ops.reshape(self.contract.project(hidden), ops.shape(inputs))

    def compute_output_shape(self, inputs_shape):
        return inputs_shape
