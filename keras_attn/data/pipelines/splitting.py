"""The part of every batch that one of several processes reads.

All processes make the same batches, as functions of (seed, epoch), and each takes its
own rows of them. So all have the same number of batches, without which the others would
wait for one forever, and together they train on the batches of a single process.
"""

from typing import Any

import keras
import tensorflow as tf

from keras_attn.checks.arguments import check_positive


def split_batches(
    dataset: tf.data.Dataset,
    *,
    num_processes: int | None = None,
    process_id: int | None = None,
    devices_per_process: int | None = None,
    share_weights: bool = False,
) -> tf.data.Dataset:
    """The rows of this process in each batch, for `model.fit` in several processes.

    For `keras.distribution.DataParallel(auto_shard_dataset=False)`. Process p of n has
    the p-th of n equal parts of the rows of each batch. Keras' own division
    (`auto_shard_dataset`) divides a last batch that is not full unequally, so that
    processes may have different numbers of batches, and one waits forever.

    A batch whose rows all devices cannot share equally, usually the last one of an
    epoch, is computed by each device as a whole. In a loss that is a mean, and in the
    statistics of a batch norm, repeated rows change nothing, so that no row is left out
    and the gradients are the same as of a single process. In the means that Keras logs,
    the batch counts once for each device; and a loss that compares the rows of a batch
    with each other sees each of them several times. Batch with `drop_remainder=True` if
    that matters.

    Args:
        dataset: Whole batches, the same in each process, of tensors whose first axis
            are rows.
        num_processes: n. Default: from `keras.distribution.distribution()`; without a
            distribution the dataset is returned as it is.
        process_id: p, from 0. Default: this process.
        devices_per_process: Devices of a process, which share its rows. Default: those
            of the distribution.
        share_weights: Whether the sample weights of a batch that is repeated are
            divided by the number of repetitions. Losses and metrics that divide by the
            sum of the weights (`SmoothedCrossEntropy`, `weighted_metrics`) then are
            exactly the same as of a single process.

    Returns:
        A dataset of the same cardinality.

    Raises:
        ValueError: If `process_id` is not in [0, `num_processes`), or only some of the
            three numbers are given.

    Example:
        ```python
        import numpy as np
        from keras_attn import data

        rows = (np.zeros((32, 8)), np.arange(32))
        batches = data.shuffled_dataset(rows, seed=0).batch(16)
        mine = data.split_batches(batches, num_processes=2, process_id=0)
        inputs, labels = next(iter(mine))  # (8, 8), (8,): process 1 has the other half.
        ```
    """
    found = _numbers(num_processes, process_id, devices_per_process)
    if found is None:
        return dataset
    count, number, devices = found
    total = count * devices
    if total == 1:
        return dataset

    def part(*batch):
        rows: Any = tf.shape(tf.nest.flatten(batch)[0])[0]
        is_shared = rows % total == 0
        share = rows // count

        def of_process(tensor):
            mine = tensor[number * share : (number + 1) * share]
            return tf.cond(is_shared, lambda: mine, lambda: _repeat(tensor, devices))

        taken = tf.nest.map_structure(of_process, batch)
        if share_weights and len(taken) == 3:
            times = tf.where(is_shared, 1, total)
            weights = tf.nest.map_structure(
                lambda weight: weight / tf.cast(times, weight.dtype), taken[2]
            )
            taken = (*taken[:2], weights)
        return taken if len(taken) > 1 else taken[0]

    return dataset.map(part, num_parallel_calls=tf.data.AUTOTUNE).prefetch(
        tf.data.AUTOTUNE
    )


def whole_batches(
    dataset: tf.data.Dataset, *, devices_per_process: int | None = None
) -> tf.data.Dataset:
    """Every batch as a whole for each device, for figures of validation.

    Under `keras.distribution.DataParallel(auto_shard_dataset=False)` each device of
    each process computes all rows, and what is averaged is exactly what a single
    process would measure, for any number of rows. It takes as long as in one process.

    Args:
        dataset: Whole batches, the same in each process.
        devices_per_process: Devices of a process. Default: from
            `keras.distribution.distribution()`; without one the dataset is returned as
            it is.

    Returns:
        A dataset of the same cardinality.
    """
    found = _numbers(1, 0, devices_per_process) if devices_per_process else _numbers()
    if found is None or found[2] == 1:
        return dataset

    def repeated(*batch: Any) -> Any:
        several = tf.nest.map_structure(lambda x: _repeat(x, found[2]), batch)
        return several if len(several) > 1 else several[0]

    return dataset.map(repeated, num_parallel_calls=tf.data.AUTOTUNE)


def _repeat(tensor, times):
    """All rows, several times over."""
    return tf.concat([tensor] * times, axis=0) if times > 1 else tensor


def _numbers(
    count: int | None = None, number: int | None = None, devices: int | None = None
) -> tuple[int, int, int] | None:
    """Processes, this process, devices of a process; None without a distribution."""
    given = (count, number, devices)
    if given == (None, None, None):
        distribution: Any = keras.distribution.distribution()
        if distribution is None:
            return None
        size = distribution.device_mesh.devices.size
        processes = distribution.num_processes
        return processes, distribution.data_shard_id, size // processes
    if count is None or number is None:
        raise ValueError(
            "`num_processes` and `process_id` must be given together. Received: "
            f"num_processes={count}, process_id={number}, devices_per_process={devices}"
        )
    count = check_positive("num_processes", count)
    devices = check_positive("devices_per_process", 1 if devices is None else devices)
    check_process_id(number, count)
    return count, number, devices


def check_process_id(number: int, count: int) -> None:
    """Raises unless there is a process of this number.

    Args:
        number: The number, from 0.
        count: How many processes there are.
    """
    if not 0 <= number < count:
        raise ValueError(
            f"`process_id` must be in [0, {count}), as there are `num_processes`. "
            f"Received: process_id={number}"
        )
