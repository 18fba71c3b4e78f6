"""A dense layer that TensorFlow runs as one operation."""

import keras

from keras_attn.layers.adaptation.keras_layers import Dense
from keras_attn.options import described_as


@keras.saving.register_keras_serializable("keras_attn")
@described_as(Dense)
class Projection(Dense):
    """`Dense` by its older name, in files that have it."""
