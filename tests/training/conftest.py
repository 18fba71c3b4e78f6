"""A tiny corpus with small translators, and steps that tests of objectives share."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attn import models
from keras_attn.data import CharacterTokenizer, make_dates
from keras_attn.training.masking.random_masking import SeededRandom
from keras_attn.translator import Translator

BUILDERS = {
    "rnnsearch_50": {"attention_dim": 5, "maxout_dim": 3},
    "seq2seq_context": {"maxout_dim": 3},
    "seq2seq_sutskever": {"num_layers": 1},
}


@pytest.fixture(scope="session")
def corpus():
    """Forty pairs of dates, as sources and targets."""
    sources, targets = zip(*make_dates(40, seed=3), strict=True)
    return list(sources), list(targets)


@pytest.fixture(scope="session")
def build(corpus):
    """Makes translators; the same seed gives the same weights."""

    def make(name="rnnsearch_50", max_length=48, seed=1, **overrides):
        keras.utils.set_random_seed(seed)
        source, target = map(CharacterTokenizer.train, corpus)
        model = models.create(
            name,
            source_vocabulary_size=source.vocabulary_size,
            target_vocabulary_size=target.vocabulary_size,
            **{
                "embedding_dim": 5,
                "hidden_dim": 7,
                **BUILDERS[name],
                **overrides,
            },
        )
        # Larger weights, so that outputs depend on the source as in a trained model.
        model.set_weights([5 * w for w in model.get_weights()])
        logits = model.get_layer("logits")
        kernel, biases = logits.get_weights()
        biases[:4] = -1e4  # No special tokens, except the end, which is unlikely.
        biases[target.end_token_id] = -5
        logits.set_weights([kernel, biases])
        return Translator(model, source, target, max_length=max_length)

    return make


@pytest.fixture(scope="session")
def translator(build):
    """A translator for tests that do not change it."""
    return build(max_length=43)


@pytest.fixture
def check_masking(tmp_path):
    """Checks a masking layer compiled by XLA and from a file; returns its outputs."""

    def check(layer, given):
        config = layer.get_config()
        again = type(layer).from_config(json.loads(json.dumps(config)))
        assert again.get_config() == config
        inputs = {
            "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
            "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
        }
        model = keras.Model(inputs, layer(**inputs))
        model.compile(jit_compile=True)
        random = SeededRandom(layer.seed_generator)
        numbers = layer.sample(given["token_ids"].shape, random)
        expected = layer.mask(**given, **numbers)
        compiled = tf.function(layer.mask, jit_compile=True)(**given, **numbers)
        assert compiled.keys() == expected.keys()
        for name, tensor in compiled.items():
            np.testing.assert_array_equal(tensor, expected[name])
        outputs = model.predict(given, verbose=0)
        for name, tensor in outputs.items():
            assert len(model.output[name].shape) == tensor.ndim
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
        # A loaded layer restarts from its seed, as dropout does.
        restored = loaded(given)
        for name, tensor in again(**given).items():
            np.testing.assert_array_equal(restored[name], tensor)
        return outputs

    return check


@pytest.fixture(scope="session")
def refuses_invalid_inputs():
    """Checks that a masking layer refuses inputs of wrong shapes."""

    def check(layer, token_ids, padding_mask):
        with pytest.raises(ValueError, match="`token_ids` must have 2 axes"):
            layer(token_ids[0])
        with pytest.raises(ValueError, match="`padding_mask` must have 2 axes"):
            layer(token_ids, padding_mask[0])
        with pytest.raises(ValueError, match="`padding_mask` must have the shape"):
            layer(token_ids, padding_mask[:, 1:])

    return check
