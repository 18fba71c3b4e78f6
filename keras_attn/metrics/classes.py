"""Scores of classifiers that accuracy does not tell: Matthews correlation and F1.

Legend: B batch, C classes.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_several, is_whole
from keras_attn.checks.configuration import Configured


@keras.saving.register_keras_serializable("keras_attn")
class MatthewsCorrelation(Configured, keras.metrics.Metric):
    """Correlation of true and predicted classes, over all examples so far.

    `(TP·TN - FP·FN) / √((TP+FP)(TP+FN)(TN+FP)(TN+FN))` for two classes. For more,
    `(c·s - Σ p·t) / √((s² - Σ p²)(s² - Σ t²))`, where s is the number of examples, c of
    the right ones, p and t of each class, predicted and true. A model that always
    predicts one class has 0, with any accuracy.

    Args:
        num_classes: C.
        name: Name of the metric.
        dtype: Dtype of the counts. Default: float32, under every policy.

    Call arguments:
        y_true: Classes, (B,) or (B, 1). Classes outside [0, C) are left out.
        y_pred: Logits or probabilities, (B, C).
        sample_weight: (B,) or (B, 1).

    Returns:
        A scalar in [-1, 1]: 0 if all examples have, or all predictions are, one class,
        and before the first example.

    Raises:
        ValueError: If `num_classes` is not an integer of at least 2, or `y_pred` does
            not have the shape (B, C).

    Reference:
        Matthews 1975, Biochimica et Biophysica Acta 405:442; more than two classes:
        Gorodkin 2004, Computational Biology and Chemistry 28:367.
    """

    def __init__(
        self, num_classes: int = 2, name: str = "matthews_correlation", dtype=None
    ):
        super().__init__(name=name, dtype=dtype or "float32")
        self.num_classes = check_several("num_classes", num_classes)
        # Rows are true classes.
        self.counts = self.add_variable(
            (num_classes, num_classes), initializer="zeros", name="counts"
        )
        self._direction = "up"

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Counts the examples of a batch; see the class."""
        counts = _confusion(y_true, y_pred, sample_weight, self.num_classes, self.dtype)
        self.counts.assign_add(counts)

    def result(self):
        """Returns the correlation over the examples so far."""
        counts = ops.convert_to_tensor(self.counts)
        shares = ops.divide_no_nan(counts, ops.sum(counts))
        # Everything is a sum of the other classes, never a total minus a class: so
        # rare classes are exact, and the spread is 0 where one class has all.
        others = 1 - ops.eye(self.num_classes, dtype=shares.dtype)
        wrong = shares * others
        neither = ops.diagonal(ops.matmul(others, ops.matmul(shares, others)))
        covariance = ops.sum(
            ops.diagonal(shares) * neither - ops.sum(wrong, 0) * ops.sum(wrong, 1)
        )
        spreads = [
            ops.sum(total * ops.matmul(others, total))
            for total in (ops.sum(shares, 0), ops.sum(shares, 1))
        ]
        return ops.divide_no_nan(covariance, ops.sqrt(spreads[0] * spreads[1]))


@keras.saving.register_keras_serializable("keras_attn")
class SparseF1Score(Configured, keras.metrics.Metric):
    """F1 of one class, `2 TP / (2 TP + FP + FN)`, over all examples so far.

    For labels that are numbers of classes, as GLUE scores MRPC and QQP.
    `keras.metrics.F1Score` takes one-hot labels only, and gives every class a score.

    Args:
        positive_class: The class whose F1 it is.
        num_classes: C.
        name: Name of the metric.
        dtype: Dtype of the counts. Default: float32, under every policy.

    Call arguments:
        y_true: Classes, (B,) or (B, 1). Classes outside [0, C) are left out.
        y_pred: Logits or probabilities, (B, C). The largest is the prediction.
        sample_weight: (B,) or (B, 1).

    Returns:
        A scalar in [0, 1]: 0 if the class neither occurs nor is predicted, and before
        the first example.

    Raises:
        ValueError: If `num_classes` is not an integer of at least 2, `positive_class`
            is not in [0, C), or `y_pred` does not have the shape (B, C).
    """

    def __init__(
        self,
        positive_class: int = 1,
        num_classes: int = 2,
        name: str = "f1_score",
        dtype=None,
    ):
        super().__init__(name=name, dtype=dtype or "float32")
        self.num_classes = check_several("num_classes", num_classes)
        if not is_whole(positive_class) or not 0 <= positive_class < num_classes:
            raise ValueError(
                f"`positive_class` must be an integer from 0 to {num_classes - 1}, one "
                f"of the classes. Received: positive_class={positive_class!r}"
            )
        self.positive_class = int(positive_class)
        # Examples of the class that are found, that are predicted, and that there are.
        self.counts = self.add_variable((3,), initializer="zeros", name="counts")
        self._direction = "up"

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Counts the examples of a batch; see the class."""
        counts = _confusion(y_true, y_pred, sample_weight, self.num_classes, self.dtype)
        chosen = self.positive_class
        predicted, true = ops.sum(counts[:, chosen]), ops.sum(counts[chosen])
        found = ops.stack([counts[chosen, chosen], predicted, true])
        self.counts.assign_add(found)

    def result(self):
        """Returns F1 over the examples so far."""
        found, predicted, true = ops.unstack(ops.convert_to_tensor(self.counts), 3)
        return ops.divide_no_nan(2 * found, predicted + true)


def _confusion(y_true, y_pred, sample_weight, num_classes, dtype):
    """Sums of the weights by true and predicted class, (C, C)."""
    y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
    shape, true_shape = tuple(y_pred.shape), tuple(y_true.shape)
    is_flat = len(true_shape) == 1 or (len(true_shape) == 2 and true_shape[1] == 1)
    if len(shape) != 2 or shape[1] != num_classes or not is_flat:
        raise ValueError(
            f"`y_pred` must be (B, {num_classes}), one number for each class, and "
            f"`y_true` (B,), the numbers of the classes. Received: y_pred.shape={shape}"
            f", y_true.shape={true_shape}"
        )
    true = ops.cast(ops.reshape(y_true, (-1,)), "int32")
    true = ops.one_hot(true, num_classes, dtype=dtype)
    predicted = ops.one_hot(ops.argmax(y_pred, axis=-1), num_classes, dtype=dtype)
    if sample_weight is not None:
        weights = ops.cast(ops.convert_to_tensor(sample_weight), dtype)
        true = true * ops.reshape(weights, (-1, 1))
    return ops.matmul(ops.transpose(true), predicted)
