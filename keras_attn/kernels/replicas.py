"""Sums and rows over all replicas of `tf.distribute`, for losses of the whole batch.

On one device, and on JAX, whose arrays have the rows of all devices already, each
function returns what it is given.
"""

import keras
from keras import ops

from keras_attn.kernels.runtime import has_distribution_strategy


def gather_rows(inputs):
    """The rows of all replicas, (P, …) -> (B, …): P may differ, B is their sum."""
    replica = _replica()
    if replica is None:
        return inputs
    import tensorflow as tf

    # A compiled step would not know the width.
    rows = replica.all_gather(inputs, axis=0)
    return tf.ensure_shape(rows, (None, *inputs.shape[1:]))


def at_least_one_row(inputs):
    """The rows of this replica, (P, …), or a row of zeros if it has none."""
    if _replica() is None:
        return inputs
    count, *sizes = ops.shape(inputs)
    row = ops.zeros((ops.maximum(1 - count, 0), *sizes), inputs.dtype)
    return ops.concatenate([inputs, row])


def add_replicas(inputs):
    """The sum of a tensor over all replicas."""
    replica = _replica()
    return inputs if replica is None else replica.all_reduce("SUM", inputs)


def mean_over_replicas(value):
    """The mean of a scalar over all replicas."""
    replica = _replica()
    return value if replica is None else replica.all_reduce("MEAN", value)


def mean_loss(total, count):
    """`Σ total / Σ count` over all replicas, for a `compute_loss` to return.

    What is learned and what is logged are as on one device with the joined batch, also
    if replicas have different numbers of rows, or of words.

    Args:
        total: The sum of the losses of this replica, a scalar.
        count: What the sum is divided by: the number of this replica's rows or words.

    Returns:
        A scalar; 0 if nothing counts.
    """
    count = ops.maximum(mean_over_replicas(ops.cast(count, total.dtype)), 1e-9)
    return divided_by_replicas(total / count)


def divided_by_replicas(loss):
    """The mean of a loss over all replicas, divided by their number.

    For a `compute_loss` to return: Keras adds up the gradients of the replicas, and
    logs the mean of what they return, weighted by their numbers of rows, times the
    number of replicas. So each replica has the gradient of its own loss, but the value
    of the mean.

    Args:
        loss: A scalar: the loss of the whole batch, or one whose mean over the replicas
            it is.
    """
    replica = _replica()
    if replica is None:
        return loss
    return of_all_replicas(loss) / replica.num_replicas_in_sync


def of_all_replicas(loss):
    """A loss with its own gradient, and as its value the mean over all replicas."""
    if not has_replicas():
        return loss
    return loss + ops.stop_gradient(mean_over_replicas(ops.stop_gradient(loss)) - loss)


def mean_weights(weights):
    """Weights with which Keras' mean of all targets is a weighted mean.

    On one device their mean is 1. Weights of 0 stay 0. On several, Keras averages the
    means over each replica's targets: a replica with fewer has smaller weights.
    """
    total = mean_over_replicas(ops.sum(weights))
    count = ops.cast(ops.size(weights), weights.dtype)
    return weights * (count / ops.maximum(total, 1e-6))


def row_weights(weights):
    """Weights of rows with which Keras' mean on each replica is one of all rows.

    Args:
        weights: (P,) or (P, 1), of this replica's rows.
    """
    if not has_replicas():
        return weights
    count = ops.cast(ops.shape(weights)[0], weights.dtype)
    return weights * (count / ops.maximum(mean_over_replicas(count), 1e-6))


def first_row(count):
    """The index in `gather_rows` of this replica's first row.

    Args:
        count: P, its number of rows.
    """
    replica = _replica()
    if replica is None:
        return 0
    counts = replica.all_gather(ops.reshape(count, (1,)), axis=0)
    return ops.sum(counts[: replica.replica_id_in_sync_group])


def of_first_replica(model, outputs):
    """What `predict_on_batch` returned, without the rows of all replicas but the first.

    Keras gives each replica the whole batch, and joins what they return.

    Args:
        model: The model that predicted.
        outputs: Arrays in any structure; of scalars Keras has joined one per replica.
    """
    strategy = getattr(model, "distribute_strategy", None)
    count = 1 if strategy is None else strategy.num_replicas_in_sync
    if count == 1:
        return outputs
    return keras.tree.map_structure(lambda x: x[: x.shape[0] // count], outputs)


def has_replicas():
    """Whether this is one of several replicas."""
    return _replica() is not None


def _replica():
    """The context of one of several replicas, or None."""
    if not has_distribution_strategy():
        return None
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return None
    return replica
