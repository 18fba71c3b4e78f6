"""A tiny policy, and what the tests of the trainers on rewards do with it."""

import keras
import numpy as np

from keras_attn import models

VOCABULARY = 7
END = 2


class Numbers:
    """A tokenizer whose texts are the ids."""

    def decode(self, ids):
        return " ".join(str(int(x)) for x in ids)


def tiny_policy(seed=1, vocabulary_size=VOCABULARY, **options):
    """A GPT-2 with dropout, which trainers must switch off, and large weights."""
    keras.utils.set_random_seed(seed)
    sizes = {
        "vocabulary_size": vocabulary_size,
        "num_layers": 1,
        "hidden_dim": 8,
        "num_heads": 2,
        "mlp_dim": 11,
        "max_sequence_length": 13,
        "dropout": 0.5,
        "attention_dropout": 0.5,
    }
    model = models.create("gpt2_small", **{**sizes, **options})
    model.set_weights([3 * w for w in model.get_weights()])
    return model


def weights_of(model):
    """Copies of all weights."""
    return [np.array(keras.ops.convert_to_numpy(x)) for x in model.variables]


def probabilities(model, tokens):
    """p(next token), float64 (V,), of one row without padding."""
    inputs = {
        "token_ids": np.array([tokens], "int32"),
        "padding_mask": np.ones((1, len(tokens)), bool),
    }
    logits = keras.ops.convert_to_numpy(model(inputs, training=False))[0, -1]
    powers = np.exp(logits.astype("float64") - logits.max())
    return powers / powers.sum()
