"""Choices among options that are rows of a batch, against counting one by one."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from model_cases import numpy

from keras_attn.losses import ChoiceCrossEntropy
from keras_attn.metrics import ChoiceAccuracy

G, N = 5, 3
RNG = np.random.default_rng(0)
SCORES = RNG.normal(size=(G * N, 1)).astype("float32") * 2
LABELS = np.array([2, -1, 0, 1, 1], "int32")


def losses():
    """`-log softmax` of each right option; 0 where the label is -1."""
    found = []
    for choice, label in enumerate(LABELS):
        scores = [float(SCORES[choice * N + option, 0]) for option in range(N)]
        total = np.log(np.sum(np.exp(scores)))
        found.append(0.0 if label < 0 else total - scores[label])
    return np.array(found)


def rights():
    return np.array(
        [
            int(np.argmax(SCORES[choice * N : choice * N + N]) == label)
            for choice, label in enumerate(LABELS)
        ]
    )


@pytest.mark.parametrize("shape", [(G * N, 1), (G * N,)])
def test_the_loss_is_the_mean_over_the_choices_that_count(shape):
    expected, scores = losses(), SCORES.reshape(shape)
    each = numpy(ChoiceCrossEntropy(N, reduction="none")(LABELS, scores))
    np.testing.assert_allclose(each, expected, rtol=1e-5)
    mean = ChoiceCrossEntropy(N)(LABELS, scores)
    assert float(mean) == pytest.approx(expected.sum() / 4, rel=1e-5)
    weights = np.array([1, 5, 0, 2, 1.0])
    weighted = ChoiceCrossEntropy(N)(LABELS, scores, weights)
    expected = (expected * weights).sum() / 4
    assert float(weighted) == pytest.approx(expected, rel=1e-5)
    none = ChoiceCrossEntropy(N)(np.full(G, -1), scores)
    assert float(none) == 0


def test_labels_may_be_of_rows():
    weights = np.array([1, 5, 0, 2, 1.0])
    of_rows = LABELS.repeat(N), SCORES, weights.repeat(N)
    loss = ChoiceCrossEntropy(N)
    assert float(loss(*of_rows)) == float(loss(LABELS, SCORES, weights))
    metrics = ChoiceAccuracy(N), ChoiceAccuracy(N)
    metrics[0].update_state(*of_rows)
    metrics[1].update_state(LABELS, SCORES, weights)
    assert float(metrics[0].result()) == float(metrics[1].result())


def test_the_accuracy_over_batches():
    metric = ChoiceAccuracy(N)
    assert 0 < rights().sum() < 4
    for choices in (slice(0, 2), slice(2, G)):
        rows = slice(choices.start * N, choices.stop * N)
        metric.update_state(LABELS[choices], SCORES[rows])
    assert float(metric.result()) == pytest.approx(rights().sum() / 4)
    metric.reset_state()
    weights = np.array([1, 5, 0, 2, 1.0])
    metric.update_state(LABELS, SCORES, weights)
    expected = (rights() * weights).sum() / 4
    assert float(metric.result()) == pytest.approx(expected)


@pytest.mark.compiled
@pytest.mark.parametrize("jit", [False, True])
def test_a_model_that_scores_rows_learns_to_choose(jit):
    # The right option is the row with the largest first number.
    x = np.random.default_rng(1).normal(size=(40, N, 2)).astype("float32")
    y = x[:, :, 0].argmax(1).astype("int32")
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(8, drop_remainder=True)
    batches = batches.map(lambda x, y: (tf.reshape(x, (-1, 2)), y))
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile(
        keras.optimizers.SGD(1.0),
        ChoiceCrossEntropy(N),
        metrics=[ChoiceAccuracy(N)],
        jit_compile=jit,
    )
    model.fit(batches, epochs=5, shuffle=False, verbose=0)
    score = model.evaluate(batches, verbose=0, return_dict=True)["choice_accuracy"]
    assert score > 0.9
    # As arrays, with a label for each row.
    _, again = model.evaluate(
        x.reshape(-1, 2), y.repeat(N), batch_size=8 * N, verbose=0
    )
    assert again == pytest.approx(score)


@pytest.mark.parametrize("cls", [ChoiceCrossEntropy, ChoiceAccuracy])
def test_errors(cls):
    with pytest.raises(ValueError, match="`num_options` must be at least 2"):
        cls(1)
    wrong = (SCORES[:-1], SCORES[:-N], SCORES.reshape(G, N), SCORES[..., None])
    for scores in wrong:
        with pytest.raises(ValueError, match=r"The scores must be \(G \* 3, 1\)"):
            metric = cls(N)
            call = metric if cls is ChoiceCrossEntropy else metric.update_state
            call(LABELS, scores)
    with pytest.raises(ValueError, match=r"y_true.shape=\(5, 1\)"):
        ChoiceCrossEntropy(N)(LABELS[:, None], SCORES)
