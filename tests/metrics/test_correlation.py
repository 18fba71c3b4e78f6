"""Correlations, Matthews correlation and F1, against NumPy, SciPy and scikit-learn."""

import importlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from scipy import stats

from keras_attn.metrics.classes import MatthewsCorrelation, SparseF1Score
from keras_attn.metrics.correlation import (
    PearsonCorrelation,
    SpearmanCorrelation,
)

N = 47
# Batches of unequal sizes, one of them a single example.
SIZES = (13, 1, 11, 22)
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
REFERENCES = {PearsonCorrelation: stats.pearsonr, SpearmanCorrelation: stats.spearmanr}
both = pytest.mark.parametrize("metric", REFERENCES)


def numbers(seed=0, ties=False):
    """Labels and predictions that correlate, (N,) each."""
    rng = np.random.default_rng(seed)
    true = rng.uniform(0, 5, N)
    found = 0.4 * true + rng.normal(size=N)
    if ties:
        true, found = true.round(), found.round()
    return true.astype("float32"), found.astype("float32")


def logits_and_labels(num_classes, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, N).astype("int32")
    logits = rng.normal(size=(N, num_classes)) + np.eye(num_classes)[labels]
    return labels, logits.astype("float32")


def in_batches(*arrays):
    assert sum(SIZES) == N
    for part in np.split(np.arange(N), np.cumsum(SIZES)[:-1]):
        yield tuple(array[part] for array in arrays)


def score(metric, *arrays):
    """The result over batches."""
    metric.reset_state()
    for batch in in_batches(*arrays):
        metric.update_state(*batch)
    return float(metric.result())


def check(metric, expected, *arrays):
    """The result over batches is the expected one."""
    assert score(metric, *arrays) == pytest.approx(expected, abs=1e-6)


def copies(weights, *arrays):
    """Every example as many times as its weight says."""
    return [np.repeat(array, weights, axis=0) for array in arrays]


@both
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_correlations_equal_scipy_whatever_the_batches(metric, ties, seed):
    true, found = numbers(seed, ties)
    if ties:
        assert len(set(true)) < 7
    expected = REFERENCES[metric](true, found)[0]
    check(metric(), expected, true, found)
    check(metric(), expected, true[:, None], found[:, None])
    whole = metric()
    whole.update_state(true, found)
    assert float(whole.result()) == pytest.approx(expected, abs=1e-6)
    check(metric(), -expected, true, -found)


@both
def test_a_weight_counts_an_example_that_many_times(metric):
    true, found = numbers(ties=True)
    weights = np.random.default_rng(1).integers(0, 4, N)
    assert (weights == 0).sum() > 5
    expected = REFERENCES[metric](*copies(weights, true, found))[0]
    given = weights.astype("float32")
    check(metric(), expected, true, found, given)
    given = 0.37 * given[:, None]
    check(metric(), expected, true, found, given)
    # Whatever padding holds.
    found[weights == 0] = np.nan
    check(metric(), expected, true, found, given)


@both
def test_constant_numbers_have_no_correlation(metric):
    true, found = numbers()
    # A number that float32 rounds, and weights whose sums are rounded.
    constant = np.full(N, 2.7, "float32")
    weights = np.random.default_rng(2).uniform(0, 1, N).astype("float32")
    weights[0] = 0
    for arrays in ((true, constant), (constant, found), (constant, constant)):
        assert score(metric(), *arrays) == 0.0
        assert score(metric(), *arrays, weights) == 0.0
    assert score(metric(), true, found, 0 * weights) == 0.0


@both
def test_nearly_constant_numbers_have_a_correlation(metric):
    true, found = numbers()
    found = (2.7 + 1e-4 * found).astype("float32")
    expected = REFERENCES[metric](true.astype("float64"), found.astype("float64"))[0]
    assert score(metric(), true, found) == pytest.approx(expected, abs=1e-4)


@both
def test_states_before_examples_and_after_a_reset(metric):
    correlation = metric()
    assert float(correlation.result()) == 0.0
    true, found = numbers()
    first = score(correlation, true, found)
    correlation.reset_state()
    assert float(correlation.result()) == 0.0
    correlation.update_state(true[:1], found[:1])
    assert float(correlation.result()) == 0.0
    assert score(correlation, true, found) == first


@both
def test_numbers_that_are_nan_are_not_hidden(metric):
    true, found = numbers()
    found[20] = np.nan
    assert np.isnan(score(metric(), true, found))


@both
def test_shapes_are_checked(metric):
    with pytest.raises(ValueError, match=r"one number for each.*y_pred': \(3, 2\)"):
        metric().update_state(np.zeros(3), np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"y_true': \(2,\), 'y_pred': \(3, 1\)"):
        metric().update_state(np.zeros(2), np.zeros((3, 1)))
    with pytest.raises(ValueError, match=r"'sample_weight': \(\)"):
        metric().update_state(np.zeros(3), np.zeros(3), 1.0)


def test_the_buffer_of_ranks_is_limited():
    true, found = numbers()
    metric = SpearmanCorrelation(max_samples=N)
    expected = stats.spearmanr(true, found)[0]
    check(metric, expected, true, found)
    with pytest.raises(ValueError, match=f"max_samples={N}, {N + 1} examples"):
        metric.update_state(true[:1], found[:1])
    model = compiled("mse", metric, width=1, jit_compile=False)
    data = np.append(found, 1)[:, None], np.append(true, 2)
    assert np.isnan(evaluate(model, *data)["spearman_correlation"])
    # An epoch that fits is right again.
    result = evaluate(model, found[:, None], true)["spearman_correlation"]
    assert result == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="`max_samples` must be a positive integer"):
        SpearmanCorrelation(max_samples=0)


def compiled(loss, *metrics, width, jit_compile):
    inputs = keras.Input((width,))
    model = keras.Model(inputs, keras.layers.Identity()(inputs))
    model.compile(loss=loss, weighted_metrics=list(metrics), jit_compile=jit_compile)
    return model


def evaluate(model, *data, **options):
    return model.evaluate(*data, batch_size=12, verbose=0, return_dict=True, **options)


def check_correlations(result, true, found):
    for metric, reference in REFERENCES.items():
        expected = reference(true, found)[0]
        assert result[metric().name] == pytest.approx(expected, abs=1e-6)


def check_classes(result, labels, logits, chosen):
    classes = labels, logits.argmax(-1)
    expected = {"matthews_correlation": matthews(*classes)}
    expected["f1_score"] = f1(*classes, chosen)
    found = {name: result[name] for name in expected}
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.compiled
def test_models_are_evaluated_with_them(jit_compile):
    true, found = numbers(ties=True)
    weights = np.random.default_rng(4).integers(0, 3, N)
    metrics = PearsonCorrelation(), SpearmanCorrelation()
    model = compiled("mse", *metrics, width=1, jit_compile=jit_compile)
    result = evaluate(model, found[:, None], true, sample_weight=weights)
    check_correlations(result, *copies(weights, true, found))
    labels, logits = logits_and_labels(3)
    metrics = MatthewsCorrelation(3), SparseF1Score(2, 3)
    model = compiled(CROSS_ENTROPY, *metrics, width=3, jit_compile=jit_compile)
    result = evaluate(model, logits, labels, sample_weight=weights)
    check_classes(result, *copies(weights, labels, logits), chosen=2)


# A last batch of 11, of which one device gets 6, and one of 1, of which one gets none.
ROWS = (N, 37)


@pytest.mark.compiled
@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="`tf.distribute` is TensorFlow's"
)
def test_two_devices_score_like_one():
    path = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    process = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    results = json.loads(process.stdout.splitlines()[-1])
    for rows, result in zip(ROWS, results, strict=True):
        check_correlations(result, *(side[:rows] for side in numbers(ties=True)))
        check_classes(result, *(side[:rows] for side in logits_and_labels(2)), chosen=1)


def main():
    """Prints the scores of both kinds of data on two devices as JSON."""
    import tensorflow as tf

    (processor,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(processor, devices)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        models = [
            compiled(loss, *metrics, width=width, jit_compile=False)
            for width, loss, *metrics in (
                (1, "mse", PearsonCorrelation(), SpearmanCorrelation()),
                (2, CROSS_ENTROPY, MatthewsCorrelation(), SparseF1Score()),
            )
        ]
    true, found = numbers(ties=True)
    labels, logits = logits_and_labels(2)
    print(
        json.dumps(
            [
                evaluate(models[0], found[:rows, None], true[:rows])
                | evaluate(models[1], logits[:rows], labels[:rows])
                for rows in ROWS
            ]
        )
    )


def matthews(labels, found):
    """Correlation of one-hot rows, which is Pearson's for two classes."""
    num_classes = max(labels.max(), found.max()) + 1
    true, found = (np.eye(num_classes)[values] for values in (labels, found))
    true, found = true - true.mean(0), found - found.mean(0)
    spread = np.sqrt((true * true).sum() * (found * found).sum())
    return (true * found).sum() / spread


def f1(labels, found, chosen):
    true, found = labels == chosen, found == chosen
    precision, recall = (
        (true & found).sum() / found.sum(),
        (true & found).sum() / true.sum(),
    )
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize("num_classes", [2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_scores_of_classes_are_the_published_formulas(num_classes, seed):
    labels, logits = logits_and_labels(num_classes, seed)
    found = logits.argmax(-1)
    expected = matthews(labels, found)
    if num_classes == 2:
        assert expected == pytest.approx(np.corrcoef(labels, found)[0, 1])
    metric = MatthewsCorrelation(num_classes)
    check(metric, expected, labels, logits)
    check(metric, expected, labels[:, None], logits)
    weights = np.random.default_rng(seed + 100).integers(0, 4, N)
    counted = copies(weights, labels, found)
    given = weights.astype("float32")
    check(metric, matthews(*counted), labels, logits, given)
    check(metric, matthews(*counted), labels, logits, 0.37 * given[:, None])
    for chosen in range(num_classes):
        metric = SparseF1Score(chosen, num_classes)
        expected = f1(labels, found, chosen)
        check(metric, expected, labels, logits)
        check(metric, f1(*counted, chosen=chosen), labels, logits, given)


@pytest.mark.parity
def test_scores_of_classes_equal_scikit_learn():
    # Here, because a test runs this file as a script.
    from parity.torchvision_shim import is_installed

    if not is_installed("sklearn"):
        pytest.skip("needs scikit-learn, which `make install` installs")
    metrics = importlib.import_module("sklearn.metrics")
    for seed in range(5):
        labels, logits = logits_and_labels(4, seed)
        found = logits.argmax(-1)
        expected = metrics.matthews_corrcoef(labels, found)
        check(MatthewsCorrelation(4), expected, labels, logits)
        expected = metrics.f1_score(labels, found, labels=[3], average=None)[0]
        check(SparseF1Score(3, 4), expected, labels, logits)


def test_rare_classes_are_not_rounded_away():
    labels = np.zeros(1_000_000, "int32")
    labels[:3] = 1
    logits = np.eye(2, dtype="float32")[labels]
    logits[3] = logits[0]
    metric = MatthewsCorrelation()
    metric.update_state(labels, logits)
    # TP 3, FP 1, FN 0.
    assert float(metric.result()) == pytest.approx(np.sqrt(0.75), abs=1e-6)


def test_one_class_alone_has_the_score_0():
    labels, logits = logits_and_labels(3)
    weights = np.random.default_rng(2).uniform(0, 1, N).astype("float32")
    always = np.eye(3, dtype="float32")[np.full(N, 1)]
    metric, f1_score = MatthewsCorrelation(3), SparseF1Score(2, 3)
    assert float(metric.result()) == float(f1_score.result()) == 0.0
    for arrays in ((labels, always), (np.ones(N), logits), (np.ones(N), always)):
        assert score(metric, *arrays) == 0.0
        assert score(metric, *arrays, weights) == 0.0
    assert score(f1_score, labels, always) == 0.0
    assert score(f1_score, np.ones(N), always) == 0.0
    check(metric, 1, labels, np.eye(3)[labels])
    check(f1_score, 1, labels, np.eye(3)[labels])
    metric.reset_state()
    assert float(metric.result()) == 0.0


def test_labels_that_are_no_classes_are_left_out():
    labels, logits = logits_and_labels(2)
    given = labels.copy()
    given[::5], given[1::5] = -1, 2
    kept = (given >= 0) & (given < 2)
    found = logits.argmax(-1)
    expected = matthews(labels[kept], found[kept])
    check(MatthewsCorrelation(), expected, given, logits)
    expected = f1(labels[kept], found[kept], 1)
    check(SparseF1Score(), expected, given, logits)


@pytest.mark.parametrize("metric", [MatthewsCorrelation, SparseF1Score])
def test_shapes_of_classes_are_checked(metric):
    metric = metric(num_classes=3)
    for found in ((3, 2), (3,), (3, 5, 3)):
        with pytest.raises(ValueError, match=r"`y_pred` must be \(B, 3\)"):
            metric.update_state(np.zeros(3), np.zeros(found))
    with pytest.raises(ValueError, match=r"y_true.shape=\(3, 3\)"):
        metric.update_state(np.zeros((3, 3)), np.zeros((3, 3)))


def test_classes_are_checked():
    for metric in (MatthewsCorrelation, SparseF1Score):
        with pytest.raises(ValueError, match="`num_classes` must be at least 2"):
            metric(num_classes=1)
    wrong: Any
    for wrong in (2, -1, 0.5):
        with pytest.raises(ValueError, match="integer from 0 to 1, one of the classes"):
            SparseF1Score(wrong)


def test_sums_are_float32_under_every_policy(set_policy):
    set_policy("mixed_bfloat16")
    metrics = [PearsonCorrelation(), SpearmanCorrelation(), MatthewsCorrelation()]
    assert {metric.dtype for metric in [*metrics, SparseF1Score()]} == {"float32"}


def test_callbacks_know_that_larger_is_better():
    for metric in (
        PearsonCorrelation(),
        SpearmanCorrelation(),
        MatthewsCorrelation(),
        SparseF1Score(),
    ):
        is_class = isinstance(metric, MatthewsCorrelation | SparseF1Score)
        loss = CROSS_ENTROPY if is_class else "mse"
        model = compiled(loss, metric, width=1 + is_class, jit_compile=False)
        stop = keras.callbacks.EarlyStopping(f"val_{metric.name}", patience=3)
        inputs, labels = np.eye(2, 1 + is_class), np.arange(2)
        with warnings.catch_warnings():
            # The model has no weights to train.
            warnings.simplefilter("ignore")
            model.fit(
                inputs,
                labels,
                validation_data=(inputs, labels),
                callbacks=[stop],
                verbose=0,
            )
        assert stop.monitor_op is keras.ops.greater


if __name__ == "__main__":
    main()
