"""A tiny corpus, and small translators for it."""

import keras
import pytest

from keras_attn import models
from keras_attn.data import CharacterTokenizer, make_dates
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
