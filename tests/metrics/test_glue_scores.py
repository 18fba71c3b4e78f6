"""The row of GLUE's leaderboard: metrics of each task, averages, and bad results."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from keras_attn.metrics import GlueScores, evaluate_glue, glue_metrics

N = 31
RNG = np.random.default_rng(0)
SCORES = RNG.uniform(0, 5, N).astype("float32")
FOUND_SCORES = (SCORES + RNG.normal(size=N)).round(1).astype("float32")


def classes(num_classes, seed=0):
    """Labels and logits of which about two thirds are right."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, N).astype("int32")
    logits = rng.normal(size=(N, num_classes)) + 1.5 * np.eye(num_classes)[labels]
    return logits.astype("float32"), labels


def accuracy(logits, labels):
    return (logits.argmax(-1) == labels).mean()


def f1(logits, labels):
    found = logits.argmax(-1)
    return 2 * (found * labels).sum() / (found.sum() + labels.sum())


def results():
    three = {"MNLI-m": classes(3, 1), "MNLI-mm": classes(3, 2)}
    tasks = ("SST-2", "MRPC", "QQP", "QNLI", "RTE", "WNLI", "CoLA")
    two = {task: classes(2, seed) for seed, task in enumerate(tasks, start=3)}
    return {"STS-B": (FOUND_SCORES, SCORES), **three, **two}


def test_every_task_is_scored_as_glue_counts_it(capsys):
    given = results()
    found = evaluate_glue(given)
    expected = {
        task: {"accuracy": accuracy(*given[task])}
        for task in ("SST-2", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI")
    }
    for task in ("MRPC", "QQP"):
        expected[task] = {
            "f1_score": f1(*given[task]),
            "accuracy": accuracy(*given[task]),
        }
    logits, labels = given["CoLA"]
    matthews = np.corrcoef(logits.argmax(-1), labels)[0, 1]
    expected["CoLA"] = {"matthews_correlation": matthews}
    expected["STS-B"] = {
        "pearson_correlation": stats.pearsonr(SCORES, FOUND_SCORES)[0],
        "spearman_correlation": stats.spearmanr(SCORES, FOUND_SCORES)[0],
    }
    order = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI".split()
    assert list(found.metrics) == order
    for task in order:
        assert list(found.metrics[task]) == list(expected[task])
        assert found.metrics[task] == pytest.approx(expected[task], abs=1e-6)
        mean = np.mean(list(expected[task].values()))
        assert found.tasks[task] == pytest.approx(mean, abs=1e-6)
    # Both parts of MNLI count as one task.
    weights = [0.5 if task.startswith("MNLI") else 1 for task in order]
    mean = np.average(list(found.tasks.values()), weights=weights)
    assert found.average == pytest.approx(mean)
    printed = capsys.readouterr().out
    assert printed == f"{found}\n"
    names, numbers = (line.split() for line in printed.splitlines())
    assert names == [*order, "Average"]
    assert numbers[0] == f"{100 * matthews:.1f}"
    both = [f"{100 * value:.1f}" for value in expected["MRPC"].values()]
    assert numbers[2] == "/".join(both)
    assert numbers[-1] == f"{100 * mean:.1f}"


def test_the_score_of_the_leaderboard():
    # BERT-large, whose score is 80.5 (arXiv:1810.04805, abstract).
    row = "60.5 94.9 89.3/85.4 87.6/86.5 72.1/89.3 86.7 85.9 92.7 70.1 65.1"
    tasks = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI".split()
    metrics = {
        task: {str(n): float(x) / 100 for n, x in enumerate(cell.split("/"))}
        for task, cell in zip(tasks, row.split(), strict=True)
    }
    scores = GlueScores(metrics)
    assert round(100 * scores.average, 1) == 80.5
    assert str(scores).splitlines()[1].split() == [*row.split(), "80.5"]


def test_some_tasks_are_averaged_and_counted(capsys):
    given = {"RTE": classes(2), "MNLI-mm": classes(3)}
    found = evaluate_glue(given, verbose=False)
    assert capsys.readouterr().out == ""
    expected = (accuracy(*given["RTE"]) + accuracy(*given["MNLI-mm"])) / 2
    assert found.average == pytest.approx(expected)
    names, numbers = str(found).splitlines()
    assert names.split() == ["MNLI-mm", "RTE", "Average"]
    assert numbers.endswith(f"{100 * expected:.1f} (of 2 of 9 tasks)")
    # Columns are aligned.
    assert numbers.index(numbers.split()[1]) == names.index("RTE")


def test_predictions_may_be_classes():
    logits, labels = classes(2)
    for task in ("CoLA", "MRPC"):
        expected = evaluate_glue({task: (logits, labels)}, verbose=False)
        found = evaluate_glue({task: (logits.argmax(-1), labels)}, verbose=False)
        assert found == expected


def test_scores_may_be_a_column():
    expected = evaluate_glue({"STS-B": (FOUND_SCORES, SCORES)}, verbose=False)
    found = evaluate_glue({"STS-B": (FOUND_SCORES[:, None], SCORES)}, verbose=False)
    assert found == expected


def identity(width):
    inputs = keras.Input((width,))
    return keras.Model(inputs, keras.layers.Identity()(inputs))


def test_models_predict_batches():
    logits, labels = classes(3)
    given = {
        "MNLI-m": (
            identity(3),
            tf.data.Dataset.from_tensor_slices((logits, labels)).batch(7),
        ),
        "STS-B": (identity(1), [(FOUND_SCORES[:20, None], SCORES[:20])]),
    }
    found = evaluate_glue(given, verbose=False)
    expected = {"MNLI-m": (logits, labels), "STS-B": (FOUND_SCORES[:20], SCORES[:20])}
    for task, metrics in evaluate_glue(expected, verbose=False).metrics.items():
        assert found.metrics[task] == pytest.approx(metrics, abs=1e-6)
    weights = (np.arange(N) % 3 > 0).astype("float32")
    batches = tf.data.Dataset.from_tensor_slices((logits, labels, weights)).batch(7)
    found = evaluate_glue({"MNLI-m": (identity(3), batches)}, verbose=False)
    kept = weights > 0
    expected = accuracy(logits[kept], labels[kept])
    assert expected != accuracy(logits, labels)
    assert found.average == pytest.approx(expected, abs=1e-6)


def test_metrics_of_a_task_are_new_and_serve_compile():
    first, second = glue_metrics("MRPC"), glue_metrics("MRPC")
    assert not set(map(id, first)) & set(map(id, second))
    assert glue_metrics("STS-B", max_samples=97)[1].max_samples == 97
    for task in ("MNLI", "SNLI", "XNLI"):
        assert [metric.name for metric in glue_metrics(task)] == ["accuracy"]
    given = results()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for task, metrics in evaluate_glue(given, verbose=False).metrics.items():
        predictions, labels = given[task]
        predictions = predictions.reshape(N, -1)
        model = identity(predictions.shape[1])
        model.compile(
            loss=loss if labels.dtype == "int32" else "mse", metrics=glue_metrics(task)
        )
        options = {"batch_size": 7, "verbose": 0, "return_dict": True}
        found = model.evaluate(predictions, labels, **options)
        del found["loss"]
        assert found == pytest.approx(metrics, abs=1e-6)
    with pytest.raises(ValueError, match="`task` must be one of 'CoLA'"):
        glue_metrics("MNLI-mismatched")


LOGITS, LABELS = classes(2)
INFINITE = np.where(np.arange(N)[:, None] == 5, np.inf, LOGITS)
BAD = {
    "no tasks": ({}, "`results` must have a task"),
    "unknown": ({"SNLI": (LOGITS, LABELS)}, "`task` must be one of 'CoLA'.*'SNLI'"),
    "no labels": ({"RTE": (LOGITS, None)}, "RTE must have labels: a test split"),
    "no rows": ({"RTE": (LOGITS[:0], LABELS[:0])}, "Labels of RTE must be .*at least"),
    "three logits": (
        {"RTE": (classes(3)[0], LABELS)},
        r"Predictions of RTE must be logits \(N, 2\) or integers.*\(31, 3\)",
    ),
    "floats as classes": (
        {"RTE": (LABELS.astype("float32"), LABELS)},
        r"must be logits \(N, 2\) or integers \(N,\). Received: shape \(31,\), float32",
    ),
    "two scores": ({"STS-B": (LOGITS, SCORES)}, r"STS-B must be numbers \(N,\) or"),
    "one number": ({"STS-B": (np.float32(3), SCORES)}, r"Received: shape \(\), float"),
    "one-hot labels": ({"RTE": (LOGITS, np.eye(2)[LABELS])}, r"shape \(31, 2\)"),
    "too few": ({"RTE": (LOGITS[1:], LABELS)}, "30 predictions, 31 labels"),
    "not finite": ({"RTE": (INFINITE, LABELS)}, r"RTE must be finite.*inf.* in row 5"),
    "score of NaN": (
        {"STS-B": (SCORES, np.where(SCORES == SCORES[4], np.nan, SCORES))},
        "Labels of STS-B must be finite. Received: nan in row 4",
    ),
    "no class": (
        {"RTE": (LOGITS, np.arange(N) - 1)},
        "labels of RTE must be classes, integers from 0 to 1. Received: -1 in row 0",
    ),
    "no predicted class": (
        {"RTE": (np.arange(N), LABELS)},
        "predictions of RTE must be classes.* Received: 2 in row 2",
    ),
    "no batches": ({"RTE": (identity(2), [])}, "RTE must have a batch"),
    "batches without labels": (
        {"RTE": (identity(2), [LOGITS])},
        "Batches of RTE must have labels",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_results_are_named(kind):
    given, message = BAD[kind]
    with pytest.raises(ValueError, match=message):
        evaluate_glue(given)


def test_models_with_several_outputs_are_refused():
    inputs = keras.Input((2,))
    model = keras.Model(inputs, {"a": inputs, "b": keras.layers.Identity()(inputs)})
    with pytest.raises(ValueError, match="of RTE must return one tensor.*: 2 out"):
        evaluate_glue({"RTE": (model, [(LOGITS, LABELS)])})
