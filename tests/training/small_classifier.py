"""A tiny classifier of texts, for the tests of low-rank updates and of integers."""

from typing import Any

import keras
import numpy as np

from keras_attn import models

ROWS, LENGTH, VOCABULARY = 6, 5, 23
SIZES: dict[str, Any] = {
    "vocabulary_size": VOCABULARY,
    "num_layers": 2,
    "hidden_dim": 12,
    "num_heads": 3,
    "mlp_dim": 17,
    "max_sequence_length": 16,
    # Dropout makes two models differ that are trained in turn.
    "dropout": 0.0,
    "attention_dropout": 0.0,
}


def classifier(**sizes) -> Any:
    """A BERT with a head of three classes."""
    encoder = models.build_bert("base", **{**SIZES, **sizes})
    return models.build_bert_classifier(encoder, num_classes=3, dropout=0.0)


def batch():
    """Inputs and labels."""
    rng = np.random.default_rng(1)
    inputs = {
        "token_ids": rng.integers(0, VOCABULARY, (ROWS, LENGTH)).astype("int32"),
        "segment_ids": np.zeros((ROWS, LENGTH), "int32"),
        "padding_mask": np.ones((ROWS, LENGTH), "int32"),
    }
    return inputs, rng.integers(0, 3, ROWS)


def fit(model, epochs=2, optimizer="adam", **options):
    """Compiles a model, if it isn't, and trains it on the batch."""
    if not model.compiled:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, **options)
    model.fit(*batch(), batch_size=3, epochs=epochs, shuffle=False, verbose=0)


def values(model):
    """Copies of all weights by path."""
    return {weight.path: np.array(weight.value) for weight in model.weights}
