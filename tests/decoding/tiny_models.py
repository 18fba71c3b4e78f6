"""Every model of the registry, small; built once and kept for the session.

Sizes are distinct primes, so that swapped axes cannot pass: B=2 rows, T=3 target and
S=5 source tokens, U=7 units, E=11 embedding, M=13 maxout, A=17 alignment units, V=19
target and 23 source tokens.
"""

import functools
from typing import Any

import numpy as np
from keras import ops

from keras_attn import models

B, T, S, U, E, M, A, V, SOURCE_V = 2, 3, 5, 7, 11, 13, 17, 19, 23

_SHARED = {
    "source_vocabulary_size": SOURCE_V,
    "target_vocabulary_size": V,
    "embedding_dim": E,
    "hidden_dim": U,
}
# One entry a name of the registry; a test fails where one is missing.
TINY = {
    "rnnsearch_30": {**_SHARED, "attention_dim": A, "maxout_dim": M},
    "rnnsearch_50": {**_SHARED, "attention_dim": A, "maxout_dim": M},
    "seq2seq_context": {**_SHARED, "maxout_dim": M},
    "seq2seq_sutskever": {**_SHARED, "num_layers": 2},
}
SCORES = ("additive", "dot", "scaled_dot", "general", "linear")
# What is tested: every name, and what the options of a builder change in its graph.
CASES = {
    **{name: (name, {}) for name in TINY},
    **{
        f"rnnsearch_50-{score}": ("rnnsearch_50", {"score": score})
        for score in SCORES[1:]
    },
    "rnnsearch_50-scores": ("rnnsearch_50", {"return_attention_scores": True}),
    "rnnsearch_50-dropout": ("rnnsearch_50", {"dropout": 0.3}),
}
# One of each kind of decoder.
KINDS = ("seq2seq_sutskever", "seq2seq_context", "rnnsearch_50")


def create(case, **overrides):
    """A new model of a case, with weights that no initializer would draw.

    Biases start at zero and a Glorot kernel is small: a test of numbers wants both
    to matter.
    """
    name, options = CASES[case]
    return randomize(models.create(name, **{**TINY[name], **options, **overrides}))


@functools.cache
def tiny(case):
    """The model of a case, made once: not to be fitted or changed."""
    return create(case)


def randomize(model, seed=0, scale=0.6):
    """Draws every weight of a model anew from N(0, scale²)."""
    rng = np.random.default_rng(seed)
    model.set_weights(
        [rng.normal(0, scale, w.shape).astype("float32") for w in model.weights]
    )
    return model


def make_inputs(batch=B, source=S, target=T, seed=1, padded=True):
    """Inputs of any of the models; but for the first row, some padding at the end."""
    rng = np.random.default_rng(seed)
    lengths = np.full(batch, source)
    if padded:
        lengths[1:] = source - 2
    mask = np.arange(source) < lengths[:, None]
    token_ids = rng.integers(1, SOURCE_V, (batch, source)).astype("int32")
    return {
        "token_ids": np.where(mask, token_ids, 0).astype("int32"),
        "padding_mask": mask,
        "decoder_token_ids": rng.integers(1, V, (batch, target)).astype("int32"),
    }


def numpy(tensor) -> Any:
    """A tensor of any backend, or a structure of them, as NumPy."""
    if isinstance(tensor, dict):
        return {name: numpy(value) for name, value in tensor.items()}
    return np.asarray(ops.convert_to_numpy(tensor))


def logits_of(model, inputs) -> Any:
    """The logits of a model called eagerly, (B, T, V)."""
    outputs = model(inputs, training=False)
    return numpy(outputs["logits"] if isinstance(outputs, dict) else outputs)
