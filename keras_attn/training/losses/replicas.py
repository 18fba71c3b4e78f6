"""What a loss over the batch of all replicas of `tf.distribute` needs from the others.

On one device, and on JAX, whose arrays are those of all devices already, there are no
others: each function returns what it is given.
"""

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


def _replica():
    """The context of one of several replicas, or None."""
    if not has_distribution_strategy():
        return None
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return None
    return replica
