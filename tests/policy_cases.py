"""A tiny policy, and what the tests of the trainers on rewards do with it."""

import keras
import numpy as np

from keras_attn import models
from keras_attn.decoding import IncrementalPair
from keras_attn.models.parts.functional import Functional

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


class Bigram(Functional):
    """The next token depends on the last one alone: quick to compile."""

    def incremental(self):
        """The two models for decoding; prompts are padded at the left."""
        embedding, logits = self.get_layer("embedding"), self.get_layer("logits")
        prompt = dict(self.input)
        last = embedding(prompt["token_ids"])[:, -1]
        token = {"token_ids": keras.Input((), dtype="int32", name="token_ids")}
        after = embedding(token["token_ids"])
        return IncrementalPair(
            keras.Model(prompt, {"logits": logits(last)}),
            keras.Model(token, {"logits": logits(after)}),
        )


def bigram(vocabulary_size, seed=1):
    """A `Bigram` with random weights."""
    inputs = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("token_ids", "padding_mask")
    }
    embedding = keras.layers.Embedding(vocabulary_size, 4, name="embedding")
    logits = keras.layers.Dense(vocabulary_size, use_bias=False, name="logits")
    model = Bigram(inputs, logits(embedding(inputs["token_ids"])))
    random = np.random.default_rng(seed)
    model.set_weights([random.normal(0, 0.7, w.shape) for w in model.weights])
    return model


def weights_of(model):
    """Copies of all weights."""
    return [np.array(keras.ops.convert_to_numpy(x)) for x in model.variables]


def probabilities(model, tokens, temperature=1.0):
    """p(next token), float64 (T, V), of one row without padding."""
    inputs = {
        "token_ids": np.array([tokens], "int32"),
        "padding_mask": np.ones((1, len(tokens)), "int32"),
    }
    logits = keras.ops.convert_to_numpy(model(inputs, training=False))[0]
    powers = np.exp(logits.astype("float64") / temperature)
    return powers / powers.sum(axis=-1, keepdims=True)
