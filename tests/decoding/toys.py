"""Small generative models for these tests, with states that no model has yet."""

import functools
import itertools

import keras
import numpy as np
from keras import ops
from model_cases import numpy, randomize

from keras_attn.decoding import IncrementalPair
from keras_attn.decoding import generate as generate_now


def generate(model, inputs, length, **options):
    """`generate` without XLA, which takes seconds per shape and strategy on JAX."""
    return generate_now(model, inputs, length, **{"jit_compile": False, **options})


def toy_captioner():
    """An encoder-decoder of features, not tokens, with attention weights as its state.

    The prompt is `decoder_token_ids`; `seen`, (B, S), is the sum of the weights so far,
    a changing state that is as long as the input.
    """
    features = keras.Input((None, 3), name="features")
    prompt = keras.Input((None,), dtype="int32", name="decoder_token_ids")
    head = keras.layers.Dense(5, name="captioner_logits")
    embed = keras.layers.Embedding(5, 3, name="captioner_embedding")

    def attend(query, features, seen):
        weights = ops.softmax(ops.sum(ops.expand_dims(query, 1) * features, -1) - seen)
        context = ops.sum(ops.expand_dims(weights, -1) * features, 1)
        return head(context), seen + weights

    unseen = ops.sum(features, -1) * 0.0
    logits, seen = attend(embed(prompt)[:, -1], features, unseen)
    prefill = keras.Model(
        {"features": features, "decoder_token_ids": prompt},
        {"logits": logits, "seen": seen},
    )
    token = keras.Input((), dtype="int32", name="token_ids")
    before = keras.Input((None,), name="seen")
    logits, after = attend(embed(token), features, before)
    step = keras.Model(
        {"token_ids": token, "features": features, "seen": before},
        {"logits": logits, "seen": after},
    )
    randomize(prefill, seed=5, scale=1.5)
    return IncrementalPair(prefill, step, prompt="decoder_token_ids")


class TableModel(keras.Model):
    """A first-order Markov chain: the logits of the next token are a row of a table.

    Its scores can be computed by hand.
    """

    def incremental(self):
        table = self.get_layer("table")
        prompt = keras.Input((None,), dtype="int32", name="token_ids")
        token = keras.Input((), dtype="int32", name="token_ids")
        return IncrementalPair(
            keras.Model({"token_ids": prompt}, {"logits": table(prompt[:, -1])}),
            keras.Model({"token_ids": token}, {"logits": table(token)}),
        )


def table_model(logits):
    logits = np.asarray(logits, "float32")
    tokens = keras.Input((None,), dtype="int32", name="token_ids")
    table = keras.layers.Embedding(*logits.shape, name="table")
    model = TableModel(tokens, table(tokens))
    model.set_weights([logits])
    return model


@functools.cache
def _table_model_of_size(vocabulary):
    return table_model(np.zeros((vocabulary, vocabulary)))


def shared_table_model(logits):
    """`table_model` that reuses the model of its size, and its compiled loops.

    A later call with a table of the same size changes the model.
    """
    model = _table_model_of_size(len(logits))
    model.set_weights([np.asarray(logits, "float32")])
    return model


class HostRunner:
    """A pair with the interface of an exported artefact: signatures, and NumPy."""

    def __init__(self, pair):
        self.pair = pair
        self.signatures = {
            "prefill": _Signature(pair.prefill),
            "step": _Signature(pair.step),
        }
        self.steps = 0

    def prefill(self, inputs):
        return self._call("prefill", inputs)

    def step(self, inputs, *, in_place=False):
        self.steps += 1
        return self._call("step", inputs)

    def _call(self, name, inputs):
        assert set(inputs) == set(self.signatures[name].inputs)
        return numpy(getattr(self.pair, name)(dict(inputs)))


class _Signature:
    """Tensors with a `shape`, by name, as in an artefact's signature."""

    def __init__(self, model):
        self.inputs = {tensor.name: tensor for tensor in model.inputs}
        self.outputs = model.output


def every_answer(vocabulary, length, ends):
    """All sequences of at most `length` tokens, with or without one of the ends."""
    for size in range(1, length + 1):
        for tokens in itertools.product(range(vocabulary), repeat=size):
            has_ended = [token in ends for token in tokens]
            if not any(has_ended[:-1]) and (has_ended[-1] or size == length):
                yield tokens


def log_softmax(logits):
    logits = np.asarray(logits, "float64")
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def penalty(length, alpha):
    """Wu et al. 2016, equation 14."""
    return ((5 + length) / 6) ** alpha
