"""Plain Keras models, without layers of keras_attn, as users have them.

Sizes are distinct primes, so that swapped axes cannot pass.
"""

import functools
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_attn.decoding import IncrementalPair

VOCABULARY = 53


def mlp():
    features = layers.Input((7,), name="features")
    hidden = layers.Dense(11, activation="relu", name="hidden")(features)
    return keras.Model(features, layers.Dense(3, name="scores")(hidden))


def exact_gelu():
    features = layers.Input((7,), name="features")
    hidden = layers.Dense(11, name="hidden")(features)
    hidden = ops.gelu(hidden, approximate=False)
    return keras.Model(features, layers.Dense(3, name="scores")(hidden))


def sequential():
    return keras.Sequential(
        [layers.Input((7,), name="features"), layers.Dense(3, name="scores")]
    )


def conv_net():
    images = layers.Input((13, 17, 3), name="images")
    x = layers.Conv2D(5, 3, strides=2, padding="same", activation="relu")(images)
    x = layers.BatchNormalization()(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, layers.Dense(2, name="scores")(x))


def grouped_conv():
    """Keras compiles this layer with XLA by itself."""
    images = layers.Input((13, 17, 6), name="images")
    return keras.Model(images, layers.Conv2D(4, 3, groups=2, name="conv")(images))


def masked_rnn():
    token_ids = layers.Input((None,), dtype="int32", name="token_ids")
    x = layers.Embedding(VOCABULARY, 5, mask_zero=True)(token_ids)
    x = layers.Bidirectional(layers.GRU(3, return_sequences=True), name="both")(x)
    return keras.Model(token_ids, layers.LSTM(7, name="last")(x))


def causal_attention():
    x = layers.Input((None, 5), name="x")
    attention = layers.MultiHeadAttention(2, 3, name="attention")
    return keras.Model(x, attention(x, x, use_causal_mask=True))


def sliced_mask():
    x = layers.Input((None, 5), name="x")
    mask = layers.Input((None,), dtype="bool", name="padding_mask")
    scores = ops.matmul(x, ops.swapaxes(x, 1, 2))[:, None]
    scores = ops.where(mask[:, None, None, :], scores, -1e9)
    return keras.Model([x, mask], ops.matmul(ops.softmax(scores), x[:, None]))


def rolled():
    x = layers.Input((None, 5), name="x")
    return keras.Model(x, ops.roll(ops.add(x, 1.0), 2, axis=1))


def mixed_float16():
    policy = "mixed_float16"
    features = layers.Input((7,), dtype="float16", name="features")
    hidden = layers.Dense(11, activation="gelu", dtype=policy)(features)
    hidden = ops.cast(hidden, "float16")
    hidden = layers.LayerNormalization(dtype=policy)(hidden)
    return keras.Model(features, layers.Dense(3, dtype=policy, name="scores")(hidden))


def pure(dtype):
    features = layers.Input((7,), name="features")
    return keras.Model(features, layers.Dense(3, dtype=dtype)(features))


pure_float16 = functools.partial(pure, "float16")
pure_bfloat16 = functools.partial(pure, "bfloat16")


def nested():
    inner = exact_gelu()
    outer = layers.Input((7,), name="outer")
    return keras.Model(outer, ops.add(inner(outer), inner(ops.multiply(outer, 2.0))))


def dictionaries():
    ids = layers.Input((3,), dtype="int32", name="zeta")
    features = layers.Input((5,), name="alpha")
    outputs = {
        "second": layers.Embedding(7, 2)(ids),
        "first": layers.Dense(2)(features),
        "same": features,
        "best": ops.cast(ops.sum(ids, axis=-1), "int32"),
    }
    return keras.Model({"zeta": ids, "alpha": features}, outputs)


class Subclassed(keras.Model):
    """A model that does not declare its inputs."""

    def __init__(self):
        super().__init__()
        self.project = layers.Dense(3)

    def call(self, inputs):
        return self.project(inputs)


class Cache(layers.Layer):
    """Writes an update into a cache at the position of the first row."""

    def call(self, cache, position, update):
        return ops.slice_update(cache, (0, position[0], 0), update)


def cache():
    state = layers.Input((11, 5), name="state")
    position = layers.Input((), dtype="int32", name="position")
    update = layers.Input((2, 5), name="update")
    inputs = [state, position, update]
    return keras.Model(inputs, Cache(name="cache")(*inputs))


class Constant(layers.Layer):
    """Has a constant tensor that is not a weight, such as a table of positions."""

    def build(self, shape):
        self.table = ops.reshape(ops.linspace(-1.0, 1.0, 140), (20, 7))

    def call(self, inputs):
        return ops.matmul(inputs, ops.transpose(self.table))


def constant():
    features = layers.Input((7,), name="features")
    return keras.Model(features, Constant(name="constant")(features))


def pair(units=3):
    embedding = layers.Embedding(VOCABULARY, 5, name="embedding")
    cell = layers.GRUCell(units, name="cell")
    recurrent = layers.RNN(cell, return_state=True, name="recurrent")
    readout = layers.Dense(VOCABULARY, name="readout")
    token_ids = layers.Input((None,), dtype="int32", name="token_ids")
    last, state = recurrent(embedding(token_ids))
    prefill = keras.Model(
        {"token_ids": token_ids}, {"logits": readout(last), "state": state}
    )
    token = layers.Input((), dtype="int32", name="token_ids")
    before = layers.Input((units,), name="state")
    output, after = cell(embedding(token), [before])
    step = keras.Model(
        {"token_ids": token, "state": before},
        {"logits": readout(output), "state": after[0]},
    )
    return IncrementalPair(prefill, step)


def attention_pair():
    """Its state is as long as the prompt; its mask is an input of both signatures."""
    embedding = layers.Embedding(VOCABULARY, 5, name="embedding")
    readout = layers.Dense(VOCABULARY, name="readout")
    attention = layers.Attention(name="attention")

    def attend(last, memory, mask):
        query = ops.expand_dims(last, 1)
        return ops.squeeze(attention([query, memory], mask=[None, mask]), 1)

    token_ids = layers.Input((None,), dtype="int32", name="token_ids")
    mask = layers.Input((None,), dtype="bool", name="padding_mask")
    memory = embedding(token_ids)
    last = memory[:, -1]
    prefill = keras.Model(
        {"token_ids": token_ids, "padding_mask": mask},
        {
            "logits": readout(attend(last, memory, mask)),
            "memory": memory,
            "last": last,
        },
    )
    token = layers.Input((), dtype="int32", name="token_ids")
    mask = layers.Input((None,), dtype="bool", name="padding_mask")
    memory = layers.Input((None, 5), name="memory")
    before = layers.Input((5,), name="last")
    last = ops.add(embedding(token), before)
    step = keras.Model(
        {"token_ids": token, "padding_mask": mask, "memory": memory, "last": before},
        {"logits": readout(attend(last, memory, mask)), "last": last},
    )
    return IncrementalPair(prefill, step)


class Roll(layers.Layer):
    """Rolls the length, for which LiteRT has no operator at an unknown shape."""

    def call(self, inputs):
        return ops.roll(inputs, 2, axis=1)


def rolling_pair(length=None, layer="roll"):
    """Only `step` has an operator that LiteRT lacks, in a layer of that name."""
    embedding = layers.Embedding(VOCABULARY, 5, name="embedding")
    readout = layers.Dense(VOCABULARY, name="readout")
    token_ids = layers.Input((length,), dtype="int32", name="token_ids")
    memory = embedding(token_ids)
    logits = readout(ops.max(memory, axis=1))
    prefill = keras.Model(
        {"token_ids": token_ids}, {"logits": logits, "memory": memory}
    )
    token = layers.Input((), dtype="int32", name="token_ids")
    memory = layers.Input((length, 5), name="memory")
    rolled = ops.sum(ops.multiply(Roll(name=layer)(memory), memory), axis=1)
    logits = readout(ops.add(embedding(token), rolled))
    step = keras.Model({"token_ids": token, "memory": memory}, {"logits": logits})
    return IncrementalPair(prefill, step)


@pytest.fixture(scope="session")
def build():
    """`build(name, **options)`: the model of that name, built once."""

    @functools.cache
    def build(name, **options):
        keras.utils.set_random_seed(1)
        return globals()[name](**options)

    return build


@pytest.fixture(scope="session")
def artefact(build, tmp_path_factory):
    """`artefact(name, suffix)`: path and report of the model's export, made once."""
    from keras_attn.export import export

    @functools.cache
    def artefact(name, suffix):
        path = tmp_path_factory.mktemp("artefact") / f"{name}{suffix}"
        return path, export(build(name), path)

    return artefact


@pytest.fixture
def printed():
    """`printed(*arguments)`: the lines that Python prints with these arguments."""

    def run(*arguments):
        finished = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, check=False
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout.splitlines()

    return run


@pytest.fixture
def normal():
    """`normal(*shape)`: normally distributed float32 numbers, the same every time."""
    random = np.random.default_rng(7)
    return lambda *shape: random.standard_normal(shape).astype("float32")
