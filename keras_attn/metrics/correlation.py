"""Correlations of predicted and true numbers, over all examples of an epoch.

Every replica of `tf.distribute` adds the examples of all replicas, so that the state is
the same on each: neither means nor ranks of parts could be added up.

Legend: B batch, N examples so far.
"""

from typing import Any

import keras
from keras import ops

from keras_attn.checks.arguments import check_positive
from keras_attn.checks.configuration import Configured
from keras_attn.checks.indices import known_values
from keras_attn.kernels.replicas import gather_rows


@keras.saving.register_keras_serializable("keras_attn")
class PearsonCorrelation(keras.metrics.Metric):
    """`Σ w (x - x̄)(y - ȳ) / √(Σ w (x - x̄)² · Σ w (y - ȳ)²)` over all examples so far.

    `keras.metrics.PearsonCorrelation` correlates the last axis of each example and
    averages over the examples, or over batches; for one number per example it is NaN.

    Args:
        name: Name of the metric.
        dtype: Dtype of the sums. Default: float32, under every policy.

    Call arguments:
        y_true: Numbers, (B,) or (B, 1).
        y_pred: Numbers, (B,) or (B, 1), such as the output of a classifier with
            `num_classes=1`.
        sample_weight: w, (B,) or (B, 1).

    Returns:
        A scalar in [-1, 1]. 0 if all labels or all predictions are equal, where SciPy
        gives NaN, and before the second example; NaN if a number is not finite.

    Raises:
        ValueError: If the shapes differ from these.
    """

    def __init__(self, name: str = "pearson_correlation", dtype=None):
        super().__init__(name=name, dtype=dtype or "float32")
        self.weight = _add_variable(self, "weight", ())
        # Of labels and predictions.
        self.mean = _add_variable(self, "mean", (2,))
        # Sums of products of deviations from the means.
        self.moments = _add_variable(self, "moments", (2, 2))
        self._direction = "up"

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds the examples of a batch; see the class."""
        pairs, weights = _gathered(y_true, y_pred, sample_weight, self.dtype)
        weight = ops.sum(weights)
        # Deviations from an example that counts: 0 if all are equal, without rounding.
        first = pairs[ops.argmax(ops.cast(ops.greater(weights, 0), "int32"))]
        offset = ops.divide_no_nan(ops.matmul(weights, pairs - first), weight)
        centred = pairs - first - offset
        moments = ops.matmul(ops.transpose(centred), weights[:, None] * centred)
        # Two parts of the data become one (Chan et al. 1983).
        before = ops.convert_to_tensor(self.weight)
        share = ops.divide_no_nan(weight, before + weight)
        shift = first + offset - self.mean
        between = ops.matmul(shift[:, None], shift[None]) * before * share
        self.moments.assign_add(moments + between)
        self.mean.assign_add(shift * share)
        self.weight.assign_add(weight)

    def result(self):
        """Returns the correlation of the examples so far."""
        return _correlation(ops.convert_to_tensor(self.moments))


@keras.saving.register_keras_serializable("keras_attn")
class SpearmanCorrelation(Configured, keras.metrics.Metric):
    """Pearson correlation of the ranks of all examples so far.

    Equal numbers have the mean of their ranks. A weight counts an example that many
    times; with weight 0 it has no rank.

    A rank depends on all examples, so they are kept, in a buffer of fixed size: a
    compiled step has no other. The whole buffer is sorted whenever the result is asked
    for, and `fit` asks in every step. The default holds STS-B's 5,749 examples.

    Args:
        max_samples: Maximum number of examples of an epoch, counting examples of weight
            0.
        name: Name of the metric.
        dtype: Dtype of the numbers. Default: float32, under every policy.

    Call arguments:
        y_true: Numbers, (B,) or (B, 1).
        y_pred: Numbers, (B,) or (B, 1), such as the output of a classifier with
            `num_classes=1`.
        sample_weight: (B,) or (B, 1).

    Returns:
        A scalar in [-1, 1]. 0 if all labels or all predictions are equal, where SciPy
        gives NaN, and before the second example; NaN if a number is NaN, or, in a
        compiled step, after more than `max_samples` examples.

    Raises:
        ValueError: If `max_samples` is not a positive integer, the shapes differ from
            these; in an eager call, also if there are too many examples.
    """

    def __init__(
        self, max_samples: int = 8_192, name: str = "spearman_correlation", dtype=None
    ):
        super().__init__(name=name, dtype=dtype or "float32")
        self.max_samples = check_positive("max_samples", max_samples)
        # Labels and predictions, the last first.
        self.pairs = _add_variable(self, "pairs", (max_samples, 2))
        self.weights = _add_variable(self, "weights", (max_samples,))
        self.count = _add_variable(self, "count", (), "int32")
        self._direction = "up"

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds the examples of a batch; see the class."""
        pairs, weights = _gathered(y_true, y_pred, sample_weight, self.dtype)
        count = ops.convert_to_tensor(self.count) + ops.shape(pairs)[0]
        known = known_values(count)
        if known is not None and known > self.max_samples:
            raise ValueError(
                "`max_samples` must be at least the number of examples between two "
                f"resets. Received: max_samples={self.max_samples}, {known} examples"
            )
        for kept, added in ((self.pairs, pairs), (self.weights, weights)):
            joined = ops.concatenate([added, ops.convert_to_tensor(kept)])
            kept.assign(ops.reshape(joined[: self.max_samples], kept.shape))
        self.count.assign(count)

    def result(self):
        """Returns the correlation of the examples so far."""
        pairs = ops.convert_to_tensor(self.pairs)
        weights = ops.convert_to_tensor(self.weights)
        ranks = [_centred_ranks(pairs[:, side], weights) for side in range(2)]
        ranks = ops.stack(ranks, axis=-1)
        shares = ops.divide_no_nan(weights, ops.sum(weights))
        moments = ops.matmul(ops.transpose(ranks), shares[:, None] * ranks)
        is_known = ops.logical_and(
            ops.logical_not(ops.any(ops.isnan(pairs))),
            ops.less_equal(ops.convert_to_tensor(self.count), self.max_samples),
        )
        return ops.where(is_known, _correlation(moments), float("nan"))


def _add_variable(metric, name, shape, dtype=None) -> Any:
    """A variable that is the same on all replicas."""
    return metric.add_variable(
        shape,
        initializer="zeros",
        dtype=dtype,
        aggregation="only_first_replica",
        name=name,
    )


def _gathered(y_true, y_pred, sample_weight, dtype):
    """Pairs of all replicas, (B, 2), and their weights, (B,)."""
    given = {"y_true": y_true, "y_pred": y_pred, "sample_weight": sample_weight}
    tensors = {
        name: ops.cast(ops.convert_to_tensor(value), dtype)
        for name, value in given.items()
        if value is not None
    }
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    sizes = {shape[0] for shape in shapes.values() if shape and shape[0] is not None}
    if len(sizes) > 1 or not all(
        len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)
        for shape in shapes.values()
    ):
        raise ValueError(
            "Labels, predictions and weights must be one number for each example, (B,) "
            f"or (B, 1). Received: shapes {shapes}"
        )
    columns = [ops.reshape(tensor, (-1,)) for tensor in tensors.values()]
    if sample_weight is None:
        columns.append(ops.ones_like(columns[0]))
    rows = gather_rows(ops.stack(columns, axis=-1))
    weights = rows[:, 2]
    # Padding may be NaN.
    return ops.where(weights[:, None] > 0, rows[:, :2], 0.0), weights


def _centred_ranks(values, weights):
    """Ranks minus their mean, 0 if all values are equal.

    A rank is the weight of all smaller values and half the weight of the equal ones.
    """
    order = ops.argsort(values)
    ordered = ops.take(values, order)
    is_new = ops.concatenate([ops.ones((1,), bool), ordered[1:] != ordered[:-1]])
    group = ops.cumsum(ops.cast(is_new, "int32")) - 1
    sums = ops.segment_sum(
        ops.take(weights, order), group, num_segments=values.shape[0]
    )
    ends = ops.cumsum(sums)
    middles = ends - sums / 2 - ends[-1] / 2
    return ops.take(ops.take(middles, group), ops.argsort(order))


def _correlation(moments):
    """From sums of products of deviations, (2, 2)."""
    deviations = ops.sqrt(ops.diagonal(moments))
    return ops.divide_no_nan(moments[0, 1], deviations[0] * deviations[1])
