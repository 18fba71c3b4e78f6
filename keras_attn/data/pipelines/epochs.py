"""Order and random numbers that depend only on a seed and the number of the epoch.

`tf.data`'s own shuffle counts its iterators, so a restarted process would begin again
with the order of the first epoch. Here everything is a function of (seed, epoch), and
`training.BackupAndResume` knows the epoch.
"""

from collections.abc import Callable

import tensorflow as tf

# A number, or a variable that is read when an iterator reads its first element.
Epoch = int | tf.Variable | None


def fold_in(seed: tf.Tensor, number) -> tf.Tensor:
    """A new seed (2,) from a seed (2,) and an integer."""
    return tf.random.experimental.stateless_fold_in(seed, number)


def epoch_seeds(seed: int, epoch: Epoch) -> tf.data.Dataset:
    """An infinite dataset that repeats the seed of one epoch, int64 (2,).

    Args:
        seed: Seed of the whole run.
        epoch: Number of the epoch. None counts the iterators that are made, from 0 in
            each process.
    """
    if epoch is None:
        one = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).take(1)
    else:
        # Not `from_tensors(epoch)`, which would read a variable only once, now.
        one = tf.data.Dataset.from_tensors(0).map(lambda _: tf.cast(epoch, tf.int64))

    def repeat(number):
        return tf.data.Dataset.from_tensors(
            tf.stack([tf.cast(seed, tf.int64), number])
        ).repeat()

    endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    return one.flat_map(repeat).apply(endless)


def batch_seeds(seed: int, epoch: Epoch) -> tf.data.Dataset:
    """An infinite dataset of one seed per batch of an epoch, int64 (2,)."""
    numbered = epoch_seeds(seed, epoch).enumerate()
    return numbered.map(lambda index, epoch_seed: fold_in(epoch_seed, index))


def row_indices(
    count: int, shuffle_seed: int | None, epoch: Epoch = None, repeats: bool = False
) -> tf.data.Dataset:
    """The numbers 0 … count-1, in order or in a random order per epoch.

    A pipeline that looks rows up by index can shuffle the whole set at a cost of eight
    bytes per row.

    Args:
        count: Number of rows.
        shuffle_seed: Seed of the random orders. None keeps the order.
        epoch: See `epoch_seeds`.
        repeats: Whether the order of the one epoch is repeated endlessly.

    Returns:
        A dataset of int64 scalars, of known cardinality.
    """
    times = None if repeats else 1
    if shuffle_seed is None:
        return tf.data.Dataset.range(count).repeat(times)

    def permutation(epoch_seed):
        indices = tf.range(count, dtype=tf.int64)
        order = tf.random.experimental.stateless_shuffle(indices, epoch_seed)
        return tf.data.Dataset.from_tensor_slices(order).repeat(times)

    indices = epoch_seeds(shuffle_seed, epoch).take(1).flat_map(permutation)
    size = tf.data.INFINITE_CARDINALITY if repeats else count
    return indices.apply(tf.data.experimental.assert_cardinality(size))


def batches_of_rows(
    num_rows: int,
    make_batch: Callable[[tf.Tensor], object],
    *,
    batch_size: int,
    shuffle_seed: int | None,
    epoch: Epoch,
    drop_remainder: bool,
) -> tf.data.Dataset:
    """Batches made from the row numbers 0 … num_rows - 1, prefetched.

    Args:
        num_rows: Number of rows.
        make_batch: Makes a batch from row numbers, int64 (B,).
        batch_size: Rows per batch.
        shuffle_seed: Shuffles the rows in each epoch. None keeps their order.
        epoch: Epoch whose order is read; see `row_indices`.
        drop_remainder: Drops a last batch of fewer than `batch_size` rows.
    """
    rows = row_indices(num_rows, shuffle_seed, epoch)
    rows = rows.batch(batch_size, drop_remainder=drop_remainder)
    dataset = rows.map(make_batch, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.prefetch(tf.data.AUTOTUNE)


def shuffled_dataset(tensors, *, seed: int, epoch: Epoch = None) -> tf.data.Dataset:
    """`Dataset.from_tensor_slices(tensors)`, in a new random order in each epoch.

    Args:
        tensors: Arrays with the same number of rows: one, or several in tuples or
            dictionaries, such as `(images, labels)`; or a list of rows.
        seed: Seed of the random orders, the same in each run (given the same
            `keras.utils.set_random_seed`).
        epoch: Number of the epoch whose order is read, or a `tf.Variable` that holds
            it, such as `training.BackupAndResume.epoch`. None counts the iterations.

    Returns:
        A dataset of single rows, of known cardinality, for `.batch(…)` and
        `model.fit(…, shuffle=False)`.
    """
    if isinstance(tensors, list):  # One array, as for `from_tensor_slices`.
        tensors = tf.convert_to_tensor(tensors)
    tensors = tf.nest.map_structure(tf.convert_to_tensor, tensors)
    count = int(tf.nest.flatten(tensors)[0].shape[0])

    def row(index):
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, index), tensors)

    return row_indices(count, seed, epoch).map(row)


class StatelessRandom:
    """Random numbers that depend only on a seed; each call folds its index in.

    Args:
        seed: Tensor of two integers, (2,).
    """

    def __init__(self, seed):
        self.seed = seed
        self.num_calls = 0

    def _next_seed(self):
        self.num_calls += 1
        return fold_in(self.seed, self.num_calls)

    def uniform(self, shape):
        """Samples float32 numbers in [0, 1)."""
        return tf.random.stateless_uniform(shape, self._next_seed())

    def integers(self, shape, low, high):
        """Samples int32 numbers in [low, high)."""
        return tf.random.stateless_uniform(
            shape, self._next_seed(), low, high, tf.int32
        )
