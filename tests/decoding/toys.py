"""Small generative models for these tests, with states that no model has yet."""

import functools
import itertools

import keras
import numpy as np
from keras import ops
from model_cases import numpy, randomize

from keras_attn.decoding import IncrementalPair
from keras_attn.layers import LearnedPositionEmbedding, TransformerDecoderBlock

VOCABULARY, WIDTH, HEADS, MLP, POSITIONS, BLOCKS = 13, 6, 2, 11, 7, 2


class EmptyCache(keras.layers.Layer):
    """(B, P) tokens to a cache of zeros, (B, N, positions, H)."""

    def call(self, token_ids):
        batch = ops.shape(token_ids)[0]
        return ops.zeros((batch, HEADS, POSITIONS, WIDTH // HEADS))


class WithCache(keras.layers.Layer):
    """A block called with its cache.

    Keras 3.15 assumes that all calls of a layer have the outputs of its first call in
    any graph, so a block with one output there cannot have two here.
    """

    def __init__(self, block):
        super().__init__()
        self.block = block

    def call(self, inputs, cache, *, index):
        return self.block(inputs, cache=cache, cache_index=index)

    def compute_output_spec(self, inputs, cache, *, index):
        # JAX cannot tell that a prompt of unknown length fits into the cache.
        return keras.tree.map_structure(
            lambda x: keras.KerasTensor(x.shape, x.dtype), (inputs, tuple(cache))
        )


class ToyLanguageModel(keras.Model):
    """A decoder-only Transformer whose state is a key and a value cache per block.

    Its steps return whole caches, where those of our models return new entries.
    """

    def incremental(self):
        """The state: `cache_<i>`, and `position` of the next token, (B,)."""
        part = self.get_layer
        prompt = keras.Input((None,), dtype="int32", name="token_ids")
        caches = [EmptyCache()(prompt) for _ in range(2 * BLOCKS)]
        hidden, caches = _cached(part, prompt, caches, 0)
        # Number of tokens read, per row, because beam search reorders rows.
        position = ops.sum(ops.ones_like(prompt), axis=1)
        state = {f"cache_{i}": cache for i, cache in enumerate(caches)}
        prefill = keras.Model(
            {"token_ids": prompt},
            {"logits": part("logits")(hidden[:, -1]), "position": position, **state},
        )
        token = keras.Input((), dtype="int32", name="token_ids")
        position = keras.Input((), dtype="int32", name="position")
        before = {
            name: keras.Input(cache.shape[1:], name=name)
            for name, cache in state.items()
        }
        hidden, caches = _cached(
            part, ops.expand_dims(token, 1), list(before.values()), position[0]
        )
        step = keras.Model(
            {"token_ids": token, "position": position, **before},
            {
                "logits": part("logits")(hidden[:, 0]),
                "position": position + 1,
                **dict(zip(before, caches, strict=True)),
            },
        )
        return IncrementalPair(prefill, step, max_length=POSITIONS)


def _cached(part, token_ids, caches, index):
    positions = ops.cumsum(ops.ones_like(token_ids), axis=1) - 1 + index
    hidden = part("positions")(part("embedding")(token_ids), positions=positions)
    written = []
    for i in range(BLOCKS):
        block, cache = WithCache(part(f"block_{i}")), caches[2 * i : 2 * i + 2]
        hidden, cache = block(hidden, cache, index=index)
        written.extend(cache)
    return hidden, written


def toy_language_model(vocabulary=VOCABULARY, seed=1):
    tokens = keras.Input((None,), dtype="int32", name="token_ids")
    hidden = keras.layers.Embedding(vocabulary, WIDTH, name="embedding")(tokens)
    hidden = LearnedPositionEmbedding(POSITIONS, name="positions")(hidden)
    for index in range(BLOCKS):
        hidden = TransformerDecoderBlock(HEADS, MLP, name=f"block_{index}")(hidden)
    logits = keras.layers.Dense(vocabulary, name="logits")(hidden)
    model = randomize(ToyLanguageModel({"token_ids": tokens}, logits), seed)
    # So that earlier tokens matter more than the biases.
    for weight in model.weights:
        name = weight.path.rsplit("/", 1)[-1]
        factor = {"embeddings": 3.0, "bias": 0.3, "beta": 0.3}.get(name, 1.0)
        weight.assign(np.ones(weight.shape) if name == "gamma" else weight * factor)
    return model


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


def every_answer(vocabulary, length, end):
    """All sequences of at most `length` tokens, with or without an end token."""
    for size in range(1, length + 1):
        for tokens in itertools.product(range(vocabulary), repeat=size):
            ended = tokens[-1] == end
            if end not in tokens[:-1] and (ended or size == length):
                yield tokens


def log_softmax(logits):
    logits = np.asarray(logits, "float64")
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def penalty(length, alpha):
    """Wu et al. 2016, equation 14."""
    return ((5 + length) / 6) ** alpha
