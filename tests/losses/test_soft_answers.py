"""The objective and the score of ten answers, against counting one by one."""

import itertools

import keras
import numpy as np
import pytest
from model_cases import numpy

from keras_attn.losses import SoftAnswerCrossEntropy
from keras_attn.metrics import VQAAccuracy, vqa_accuracy

RNG = np.random.default_rng(0)
B, K, A = 3, 10, 7
LOGITS = RNG.normal(size=(B, A)).astype("float32") * 3
ANSWERS = RNG.integers(-1, A, (B, K)).astype("int32")
ANSWERS[2] = -1


def losses(answers, logits):
    """-log p of each known answer, one by one."""
    found = []
    for row, scores in zip(answers, logits.astype("float64"), strict=True):
        log_p = scores - np.log(np.exp(scores).sum())
        found.append(sum(-log_p[one] for one in row if one >= 0) / len(row))
    return np.array(found)


def accuracies(answers, logits):
    """The mean over every choice of all but one of the people."""
    found = []
    for row, best in zip(answers, logits.argmax(-1), strict=True):
        choices = itertools.combinations(row, len(row) - 1)
        found.append(np.mean([min(sum(x == best for x in c) / 3, 1) for c in choices]))
    return np.array(found)


def test_the_loss_is_the_mean_over_all_answers_of_those_that_are_known():
    expected = losses(ANSWERS, LOGITS)
    each = numpy(SoftAnswerCrossEntropy(reduction="none")(ANSWERS, LOGITS))
    np.testing.assert_allclose(each, expected, rtol=1e-5)
    assert each[2] == 0
    mean = float(SoftAnswerCrossEntropy()(ANSWERS, LOGITS))
    assert mean == pytest.approx(expected.mean(), rel=1e-5)
    weighted = SoftAnswerCrossEntropy()(ANSWERS, LOGITS, [2.0, 0.0, 1.0])
    assert float(weighted) == pytest.approx(2 * expected[0] / 3, rel=1e-5)


@pytest.mark.parametrize("count", [4, 5, 10])
def test_the_accuracy_is_that_of_all_choices_but_one(count):
    answers = np.random.default_rng(count).integers(-1, 3, (40, count))
    logits = RNG.normal(size=(40, 3)).astype("float32")
    expected = accuracies(answers, logits)
    assert len(set(expected.round(3))) > 2
    metric = VQAAccuracy()
    for rows in (slice(13), slice(13, 40)):
        metric.update_state(answers[rows], logits[rows])
    assert float(metric.result()) == pytest.approx(expected.mean(), rel=1e-5)
    weights = np.arange(40) % 2
    metric.reset_state()
    metric.update_state(answers, logits, weights)
    assert float(metric.result()) == pytest.approx(expected[1::2].mean(), rel=1e-5)


def test_the_accuracy_of_texts():
    answers = [["Yes."] * 2 + ["no"] * 8, ["two"] * 3 + ["2 "] * 2 + ["3"] * 5]
    np.testing.assert_allclose(vqa_accuracy(["yes", "The 2"], answers), [0.6, 1])
    assert vqa_accuracy([], []).shape == (0,)


@pytest.mark.compiled
def test_a_model_learns_by_them_and_keeps_them(tmp_path):
    keras.utils.set_random_seed(0)
    inputs = np.eye(B, dtype="float32")
    answers = np.array([[0] * 7 + [1, 2, -1], [3] * 10, [5] * 6 + [6] * 4], "int32")
    model = keras.Sequential([keras.Input((B,)), keras.layers.Dense(A)])
    loss, metric = SoftAnswerCrossEntropy(), VQAAccuracy()
    model.compile(keras.optimizers.Adam(0.3), loss, metrics=[metric], jit_compile=True)
    history = model.fit(inputs, answers, epochs=25, verbose=0).history
    assert history["vqa_accuracy"][-1] == 1 and history["loss"][-1] < 0.6
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.evaluate(inputs, answers, verbose=0) == pytest.approx(
        model.evaluate(inputs, answers, verbose=0)
    )


def test_half_precision_does_not_round_large_answers(set_policy):
    set_policy("mixed_float16")
    logits = np.zeros((1, 3000), "float16")
    logits[0, 2999] = 20
    answers = np.full((1, 10), 2999, "int32")
    assert float(SoftAnswerCrossEntropy()(answers, logits)) < 0.01
    metric = VQAAccuracy()
    metric.update_state(answers, logits)
    assert float(metric.result()) == 1


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"Labels must be .*y_true.shape=\(3,\)"):
        SoftAnswerCrossEntropy()(ANSWERS[:, 0], LOGITS)
    with pytest.raises(ValueError, match=r"Labels must be .*y_pred.shape=\(3, 1, 7\)"):
        VQAAccuracy().update_state(ANSWERS, LOGITS[:, None])
    with pytest.raises(ValueError, match="K at least 4 answers .*Keras' accuracy"):
        VQAAccuracy().update_state(ANSWERS[:, :3], LOGITS)
    with pytest.raises(ValueError, match="`predictions` and `answers` must have the"):
        vqa_accuracy(["yes"], [])
    for wrong in (["yes"] * 3, "yes yes"):
        with pytest.raises(ValueError, match="`answers` must be lists of at least 4"):
            vqa_accuracy(["yes"], [wrong])
