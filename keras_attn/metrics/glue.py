"""Scores models as GLUE's leaderboard does.

Legend: N examples, C classes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_attn.checks.arguments import check_choice, check_same_length
from keras_attn.data.text.glue import TASKS
from keras_attn.metrics.classes import MatthewsCorrelation, SparseF1Score
from keras_attn.metrics.correlation import PearsonCorrelation, SpearmanCorrelation

# MNLI counts once: the average of its matched and mismatched part.
_PARTS = {"MNLI-m": "MNLI", "MNLI-mm": "MNLI"}
_LEADERBOARD = tuple(task for task in TASKS if task not in ("MNLI", "SNLI", "XNLI"))
_NUM_TASKS = 9


@dataclass(frozen=True)
class GlueScores:
    """A row of GLUE's leaderboard; `str()` of it is a table.

    Attributes:
        metrics: The metrics of each task by name, in the order of the leaderboard:
            shares in [0, 1] and correlations in [-1, 1].
    """

    metrics: Mapping[str, Mapping[str, float]]

    @property
    def tasks(self) -> dict[str, float]:
        """The score of each task: the mean of its metrics."""
        return {
            task: sum(metrics.values()) / len(metrics)
            for task, metrics in self.metrics.items()
        }

    @property
    def average(self) -> float:
        """The mean over the tasks given; both parts of MNLI are one task."""
        by_task = list(self._by_task().values())
        return sum(sum(scores) / len(scores) for scores in by_task) / len(by_task)

    def _by_task(self) -> dict[str, list[float]]:
        """The scores of the parts of each task."""
        parts: dict[str, list[float]] = {}
        for task, value in self.tasks.items():
            parts.setdefault(_PARTS.get(task, task), []).append(value)
        return parts

    def __str__(self) -> str:
        cells = {
            task: "/".join(f"{100 * value:.1f}" for value in metrics.values())
            for task, metrics in self.metrics.items()
        }
        cells["Average"] = f"{100 * self.average:.1f}"
        count = len(self._by_task())
        if count < _NUM_TASKS:
            cells["Average"] += f" (of {count} of {_NUM_TASKS} tasks)"
        widths = [max(len(part) for part in cell) for cell in cells.items()]
        return "\n".join(
            "  ".join(
                text.ljust(width) for text, width in zip(line, widths, strict=True)
            ).rstrip()
            for line in (cells.keys(), cells.values())
        )


def glue_metrics(task: str, max_samples: int = 8_192) -> list[keras.metrics.Metric]:
    """New metrics that score a task as GLUE does, for `model.compile`.

    Args:
        task: Name of a task of `data.read_glue`, such as "CoLA".
        max_samples: Maximum number of examples of an epoch of STS-B; see
            `SpearmanCorrelation`.

    Returns:
        CoLA: Matthews correlation. MRPC and QQP: F1 of class 1, and accuracy. STS-B:
        Pearson and Spearman correlation. All others: accuracy.

    Raises:
        ValueError: If the task is unknown, or `max_samples` is not a positive integer.

    Example:
        ```python
        from keras_attn import metrics

        print([metric.name for metric in metrics.glue_metrics("MRPC")])
        ```
    """
    check_choice("task", task, TASKS)
    if task == "CoLA":
        return [MatthewsCorrelation()]
    if task == "STS-B":
        return [PearsonCorrelation(), SpearmanCorrelation(max_samples)]
    accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    return [SparseF1Score(), accuracy] if task in ("MRPC", "QQP") else [accuracy]


def evaluate_glue(
    results: Mapping[str, tuple[Any, Any]], *, verbose: bool = True
) -> GlueScores:
    """Scores predictions of GLUE's tasks, and prints the row of the leaderboard.

    Args:
        results: For each task `(predictions, labels)`, or `(model, batches)`. Tasks are
            "CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE"
            and "WNLI", any of them. Predictions are logits or probabilities (N, C), or
            numbers of classes, integers (N,); for STS-B numbers (N,) or (N, 1). Labels
            are as `data.read_glue` returns them, (N,). Batches are `(inputs, labels)`
            or `(inputs, labels, sample_weight)`.
        verbose: Whether to print the row.

    Returns:
        The scores, with `metrics` and `tasks` by task and their `average`.

    Raises:
        ValueError: If tasks are missing, a task is unknown, labels are missing or
            unknown, predictions have another shape, or one is not finite. The message
            names the task, and the row.

    Example:
        ```python
        import numpy as np
        from keras_attn import metrics

        logits, labels = np.array([[2.0, 1.0], [0.0, 3.0]]), np.array([0, 0])
        scores = metrics.evaluate_glue({"RTE": (logits, labels)})
        scores.metrics["RTE"]  # {"accuracy": 0.5}
        ```

    Reference:
        Wang et al. 2018, sections 3 and 4 (arXiv:1804.07461).
    """
    if not results:
        raise ValueError("`results` must have a task. Received: results={}")
    for task in results:
        check_choice("task", task, _LEADERBOARD)
    metrics: dict[str, dict[str, float]] = {}
    for task in sorted(results, key=_LEADERBOARD.index):
        first, second = results[task]
        if isinstance(first, keras.Model):
            predictions, labels, weights = _predict(task, first, second)
        else:
            predictions, labels, weights = first, second, None
        predictions, labels = _checked(task, predictions, labels)
        metrics[task] = {}
        for metric in glue_metrics(task, len(labels)):
            metric.update_state(labels, predictions, weights)
            metrics[task][metric.name] = float(metric.result())
    scores = GlueScores(metrics)
    if verbose:
        print(scores)
    return scores


def _predict(task: str, model: keras.Model, batches: Iterable):
    """Predictions, labels and weights of all batches."""
    columns: list[tuple] = []
    for batch in batches:
        inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(batch)
        if labels is None:
            raise ValueError(
                f"Batches of {task} must have labels, (inputs, labels): a test split "
                "has none. Received: batches of only inputs"
            )
        if weights is None:
            weights = np.ones(len(labels), np.float32)
        predictions = model.predict_on_batch(inputs)
        if isinstance(predictions, dict | list | tuple):
            raise ValueError(
                f"The model of {task} must return one tensor, as classifiers do. "
                f"Received: {len(predictions)} outputs"
            )
        columns.append((predictions, labels, weights))
    if not columns:
        raise ValueError(f"{task} must have a batch. Received: no batches")
    return (np.concatenate(column) for column in zip(*columns, strict=True))


def _checked(task: str, predictions, labels) -> tuple[np.ndarray, np.ndarray]:
    """Predictions, of classes (N, C), of scores (N,), and labels (N,)."""
    if labels is None:
        raise ValueError(
            f"{task} must have labels: a test split has none, only the leaderboard's "
            "server scores it. Received: labels=None"
        )
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    count = len(TASKS[task].label_names)
    is_class = count and predictions.ndim == 1 and predictions.dtype.kind in "iu"
    shapes = [(count,)] if count else [(), (1,)]
    if not is_class and (not predictions.ndim or predictions.shape[1:] not in shapes):
        expected = (
            f"logits (N, {count}) or integers (N,)"
            if count
            else "numbers (N,) or (N, 1)"
        )
        raise ValueError(
            f"Predictions of {task} must be {expected}. Received: shape "
            f"{predictions.shape}, {predictions.dtype}"
        )
    if labels.ndim != 1 or not len(labels):
        raise ValueError(
            f"Labels of {task} must be (N,), at least one. Received: shape "
            f"{labels.shape}"
        )
    check_same_length(predictions=predictions, labels=labels)
    if is_class:
        _check_classes(task, "predictions", predictions)
        predictions = np.eye(count, dtype=np.float32)[predictions]
    _check_rows(
        f"Predictions of {task} must be finite", predictions, np.isfinite(predictions)
    )
    if count:
        _check_classes(task, "labels", labels)
    else:
        _check_rows(f"Labels of {task} must be finite", labels, np.isfinite(labels))
    return predictions, labels


def _check_classes(task: str, what: str, values: np.ndarray) -> None:
    count = len(TASKS[task].label_names)
    _check_rows(
        f"The {what} of {task} must be classes, integers from 0 to {count - 1}",
        values,
        np.isin(values, np.arange(count)),
    )


def _check_rows(expected: str, values: np.ndarray, is_right: np.ndarray) -> None:
    """Raises with the first row of which a value is not right."""
    rows = is_right.reshape(len(values), -1).all(-1)
    if not rows.all():
        row = int(np.argmin(rows))
        raise ValueError(f"{expected}. Received: {values[row]} in row {row}")
