"""The results of `keras-attn evaluate`, and the scores of classes and numbers.

Legend: N examples, C classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from keras_attn.cli.finetuning.job import class_metrics, most_frequent_class
from keras_attn.cli.finetuning.label_scale import LabelScale

Row = dict[str, Any]
Picture = Callable[[], Any]  # Draws a figure of Matplotlib.


@dataclass
class Evaluation:
    """The results of an evaluation.

    Attributes:
        task: One of `kinds.TASKS`.
        what: Number and kind of the examples, for the user.
        figures: The scores by name.
        class_names: Names of the classes; empty without classes.
        confusion: Number of examples, or of pixels, by true and predicted class,
            (C, C); None without classes.
        worst: The examples that are furthest from their answer, the worst first.
        pictures: What draws them, by the name of a file.
    """

    task: str
    what: str
    figures: dict[str, float]
    class_names: list[str] = field(default_factory=list)
    confusion: np.ndarray | None = None
    worst: list[Row] = field(default_factory=list)
    pictures: dict[str, Picture] = field(default_factory=dict)


def score_numbers(
    labels: np.ndarray,
    predicted: np.ndarray,
    texts: Sequence[Row],
    what: str,
    count: int,
) -> Evaluation:
    """The errors and correlations of predicted numbers, in the unit of the labels."""
    # Of numbers near 1: those in the unit of the labels may be large.
    scale = LabelScale.of(labels)
    pair = scale.standardize(labels), scale.standardize(predicted)
    figures = _measured(scale.metrics(max(2, len(labels))), *pair)
    errors = np.abs(labels - predicted)
    worst = [
        {
            **texts[row],
            "label": float(labels[row]),
            "predicted": float(f"{predicted[row]:.6g}"),
        }
        for row in np.argsort(-errors, kind="stable")[:count]
    ]
    return Evaluation("text_regression", what, figures, worst=worst)


def score_classes(
    task: str,
    names: Sequence[str],
    labels: np.ndarray,
    outputs: np.ndarray,
    examples: Sequence[Row],
    what: str,
    count: int,
) -> Evaluation:
    """Scores of logits (N, C)."""
    if len(names) != outputs.shape[1]:
        raise ValueError(
            f"MODEL must have an output for each of its {len(names)} classes. "
            f"Received: {outputs.shape[1]} outputs"
        )
    metrics = class_metrics(names)
    if len(names) > 5 and task == "image_classification":
        metrics.insert(1, keras.metrics.SparseTopKCategoricalAccuracy(5, "top_5"))
    logits = outputs.astype(np.float64)
    logs = logits - logits.max(-1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
    losses = -logs[np.arange(len(labels)), labels]
    figures = {"loss": float(losses.mean()), **_measured(metrics, labels, outputs)}
    figures |= most_frequent_class(labels)
    best = outputs.argmax(-1)
    wrong = [
        row for row in np.argsort(-losses, kind="stable") if best[row] != labels[row]
    ]
    worst = [
        {
            **examples[row],
            "label": names[int(labels[row])],
            "predicted": names[int(best[row])],
            "score": float(f"{np.exp(logs[row, best[row]]):.4g}"),
        }
        for row in wrong[:count]
    ]
    confusion = count_confusion(labels, best, len(names))
    return Evaluation(task, what, figures, list(names), confusion, worst)


def count_confusion(
    labels: np.ndarray, predicted: np.ndarray, count: int
) -> np.ndarray:
    """Numbers by true and predicted class, (C, C)."""
    places = labels.astype(np.int64) * count + predicted
    return np.bincount(places.reshape(-1), minlength=count**2).reshape(count, count)


def _measured(metrics: Sequence[Any], true: Any, predicted: Any) -> dict[str, float]:
    """The results of metrics of all examples."""
    found: dict[str, float] = {}
    for metric in metrics:
        metric.update_state(true, predicted)
        found[metric.name] = float(metric.result())
    return found
