"""A run goes on from a `.keras` file as if it had not been interrupted."""

import keras
import numpy as np
import pytest
from model_cases import build, numpy

from keras_attn import losses, training


def states_of(model):
    """The states of all seed generators of a model."""
    return [numpy(x).tolist() for x in model.variables if "seed_generator" in x.path]


@pytest.mark.compiled
def test_a_loaded_run_draws_the_dropout_of_the_saved_one(tmp_path):
    ids = np.random.default_rng(0).integers(0, 9, (8, 5))
    inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids)}

    def fit(model, epochs):
        options = {"epochs": epochs, "batch_size": 4, "shuffle": False, "verbose": 0}
        return model.fit(inputs, ids, **options).history["loss"]

    keras.utils.set_random_seed(3)
    model = build("gpt2_small", num_layers=1, dropout=0.3)
    training.enable_lora(model, rank=2)
    loss = losses.SmoothedCrossEntropy()
    model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=False)
    start = states_of(model)
    fit(model, 1)
    model.save(tmp_path / "model.keras")
    expected = states_of(model)
    assert start != expected
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert states_of(loaded) == expected
    np.testing.assert_array_equal(fit(loaded, 2), fit(model, 2))


def test_files_with_other_states_are_read_too(tmp_path):
    path = tmp_path / "model.weights.h5"
    model = build("gpt2_small", num_layers=1)
    model.save_weights(path)
    before = [numpy(weight) for weight in model.weights]
    other = build("gpt2_small", num_layers=1, dropout=0.0, attention_dropout=0.0)
    other.load_weights(path)
    for weight, value in zip(other.weights, before, strict=True):
        np.testing.assert_array_equal(numpy(weight), value)
    # One of Keras, without states.
    plain = keras.Model(model.inputs, model.outputs)
    plain.save_weights(path)
    model.load_weights(path)
