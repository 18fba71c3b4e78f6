import keras
import numpy as np
import pytest

from keras_attn.metrics.perplexity import Perplexity

B, T, V = 3, 5, 7


def batches():
    """Two batches of different sizes, with weights."""
    rng = np.random.default_rng(0)
    for rows, length in ((3, 5), (2, 11)):
        logits = 3 * rng.normal(size=(rows, length, V)).astype("float32")
        labels = rng.integers(0, V, (rows, length)).astype("int32")
        yield labels, logits, rng.random((rows, length)).astype("float32")


def nats(labels, logits):
    logits = logits.astype("float64")
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(logs, labels[..., None], -1)[..., 0]


def test_the_mean_is_over_all_tokens():
    metric, losses, weights = Perplexity(), [], []
    assert float(metric.result()) == 1.0
    for labels, logits, weight in batches():
        metric.update_state(labels, logits, weight)
        losses.append(nats(labels, logits).ravel())
        weights.append(weight.ravel())
    losses, weights = np.concatenate(losses), np.concatenate(weights)
    expected = np.exp((weights * losses).sum() / weights.sum())
    assert float(metric.result()) == pytest.approx(expected, rel=1e-5)
    metric.reset_state()
    assert float(metric.result()) == 1.0


def test_padding_masks_and_row_weights():
    labels, logits, _ = next(batches())
    labels[1, 2:] = 4
    losses = nats(labels, logits)
    padded = Perplexity(pad_token_id=4)
    padded.update_state(labels, logits)
    expected = np.exp(losses[labels != 4].mean())
    assert float(padded.result()) == pytest.approx(expected, rel=1e-5)
    rows = np.array([1, 0, 2], "float32")
    by_row = Perplexity()
    by_row.update_state(labels, logits, rows)
    expected = np.exp((rows[:, None] * losses).sum() / (T * rows.sum()))
    assert float(by_row.result()) == pytest.approx(expected, rel=1e-5)
    masked, predictions = Perplexity(), keras.ops.convert_to_tensor(logits)
    mask = np.arange(T) < np.array([[2], [5], [0]])
    predictions._keras_mask = keras.ops.convert_to_tensor(mask)
    masked.update_state(labels, predictions)
    expected = np.exp(losses[mask].mean())
    assert float(masked.result()) == pytest.approx(expected, rel=1e-5)


def test_probabilities():
    labels, logits, _ = next(batches())
    metric = Perplexity(from_logits=False)
    metric.update_state(labels, keras.ops.softmax(logits))
    expected = np.exp(nats(labels, logits).mean())
    assert float(metric.result()) == pytest.approx(expected, rel=1e-4)


def test_the_mean_is_over_all_batches_of_an_evaluation():
    rng = np.random.default_rng(5)
    labels = rng.integers(0, V, (5, T))
    weights = (rng.random((5, T)) < 0.5).astype("float32")
    inputs = keras.Input((T,), dtype="int32")
    model = keras.Model(inputs, keras.layers.Embedding(V, V)(inputs))
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[Perplexity()],
        jit_compile=True,
    )
    # Batches of 2, 2 and 1 rows, with different weights in each.
    result = model.evaluate(
        labels, labels, sample_weight=weights, batch_size=2, verbose=0, return_dict=True
    )
    losses = nats(labels, model.predict(labels, verbose=0))
    expected = np.exp((weights * losses).sum() / weights.sum())
    assert result["perplexity"] == pytest.approx(expected, rel=1e-5)


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="`pad_token_id` must be a token's id"):
        Perplexity(pad_token_id="0")
    with pytest.raises(ValueError, match="one axis more than the labels"):
        Perplexity().update_state(np.zeros((2, 3, 1), int), np.zeros((2, 3, V)))
