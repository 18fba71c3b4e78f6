"""Numbers of rows that the devices of a distribution cannot share evenly."""

from typing import Any

import keras
import numpy as np
import pytest
from model_cases import numpy, tiny

from keras_attn.decoding import Sample, generate

if keras.backend.backend() != "jax":
    pytest.skip("`keras.distribution` has no effect here", allow_module_level=True)
if keras.distribution.get_device_count() < 4:
    pytest.skip("XLA_FLAGS asks for fewer than four devices", allow_module_level=True)

ROWS = 7
INPUTS = {
    "token_ids": np.random.default_rng(1).integers(1, 9, (ROWS, 5)),
    "padding_mask": np.ones((ROWS, 5), "int32"),
}
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture(scope="module")
def model():
    """A model, and the distribution of its rows among four devices."""
    expected = numpy(tiny("gpt2_small")(INPUTS))
    drawn = generate(tiny("gpt2_small"), INPUTS, 3, strategy=Sample(seed=1))
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(auto_shard_dataset=False)
    )
    try:
        copy = keras.models.clone_model(tiny("gpt2_small"))
        copy.set_weights(tiny("gpt2_small").get_weights())
        copy.compile("sgd", LOSS)
        yield copy, expected, drawn
    finally:
        keras.distribution.set_distribution(None)


def test_any_number_of_rows_is_predicted(model):
    model, expected, drawn = model
    for batch_size in (None, 4):
        found = model.predict(INPUTS, batch_size=batch_size, verbose=0)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    found = model.predict_on_batch(INPUTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    found = generate(model, INPUTS, 3, strategy=Sample(seed=1))
    np.testing.assert_array_equal(found.token_ids, drawn.token_ids)
    np.testing.assert_allclose(found.scores, drawn.scores, atol=1e-5)


def test_rows_that_cannot_be_shared_are_named(model):
    model, expected, _ = model
    labels = INPUTS["token_ids"]
    four = {name: array[:4] for name, array in INPUTS.items()}
    message = "Each batch must have a multiple of 4 rows.*Received: batch_size="
    whole = {"batch_size": 4, "verbose": 0}
    for act in (
        lambda: model.predict(INPUTS, batch_size=3, verbose=0),
        lambda: model.fit(INPUTS, labels, **whole),
        lambda: model.fit(four, labels[:4], **whole, validation_split=0.3),
        lambda: model.fit(four, labels[:4], **whole, validation_data=(INPUTS, labels)),
        lambda: model.evaluate(INPUTS, labels, **whole),
        lambda: model.train_on_batch(INPUTS, labels),
        lambda: model.test_on_batch(INPUTS, labels),
    ):
        with pytest.raises(ValueError, match=message):
            act()
    # The model is what it was.
    found = model.predict(four, verbose=0)
    np.testing.assert_allclose(found, expected[:4], atol=1e-5)
    assert np.isfinite(model.evaluate(four, labels[:4], verbose=0))


def test_a_data_set_with_such_a_batch_says_what_to_do(model):
    import tensorflow as tf

    examples: Any = (INPUTS, INPUTS["token_ids"])
    rows = tf.data.Dataset.from_tensor_slices(examples)
    model = keras.models.clone_model(model[0])
    model.compile("sgd", LOSS)
    with pytest.raises(ValueError, match=r"multiple of 4 rows.*`drop_remainder=True`"):
        model.evaluate(rows.batch(4), verbose=0)
