"""Batch norm with a scale and a shift per class.

Legend: B batch, C channels.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_positive
from keras_attn.checks.indices import check_indices
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.normalization.batch_normalization import BatchNormalization


@keras.saving.register_keras_serializable("keras_attn")
class ConditionalBatchNormalization(BaseLayer):
    """`γ_y · (x - mean) / √(variance + ε) + β_y`, for examples of class y.

    Args:
        num_classes: Number of classes, each with a γ and a β per channel.
        momentum: Momentum of the moving mean and variance.
        epsilon: ε.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, ..., C).
        labels: int32 (B,), in [0, num_classes).

    Returns:
        (B, ..., C).

    Raises:
        ValueError: If a label is out of range, in an eager call.

    Reference:
        Dumoulin et al. 2017, "A Learned Representation for Artistic Style", section 2.2
        (arXiv:1610.07629); in a generator: Miyato and Koyama 2018 (arXiv:1802.05637).
    """

    def __init__(
        self,
        num_classes: int,
        *,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_classes = check_positive("num_classes", num_classes)
        self.momentum = momentum
        self.epsilon = epsilon

    def build(self, inputs_shape, labels_shape):
        self.norm = BatchNormalization(
            momentum=self.momentum,
            epsilon=self.epsilon,
            center=False,
            scale=False,
            dtype=self.dtype_policy,
            name="norm",
        )
        self.norm.build(inputs_shape)
        shape = (self.num_classes, inputs_shape[-1])
        self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones")
        self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros")

    @property
    def index_ranges(self):
        """Range of valid labels, `(start, stop)`, excluding `stop`."""
        return {"labels": (0, self.num_classes)}

    def call(self, inputs, labels, training=None):
        check_indices("labels", labels, self.index_ranges["labels"])
        normed = self.norm(inputs, training=training)
        ones = (1,) * (len(inputs.shape) - 2)
        shape = (-1, *ones, inputs.shape[-1])
        gamma, beta = (
            ops.cast(ops.reshape(ops.take(table, labels, axis=0), shape), normed.dtype)
            for table in (self.gamma, self.beta)
        )
        return ops.add(ops.multiply(gamma, normed), beta)

    def compute_output_shape(self, inputs_shape, labels_shape):
        return inputs_shape
