"""Order and random numbers that follow from a seed and the number of the epoch.

`tf.data`'s own shuffle counts its iterators, so a process that starts again would begin
with the first epoch's order. Here everything is a function of (seed, epoch), and
`training.BackupAndResume` knows the epoch.
"""

import tensorflow as tf

# A number, or a variable that holds it when an iterator reads its first element.
Epoch = int | tf.Variable | None


def fold_in(seed: tf.Tensor, number) -> tf.Tensor:
    """A new seed (2,) from a seed (2,) and a whole number."""
    return tf.random.experimental.stateless_fold_in(seed, number)


def epoch_seeds(seed: int, epoch: Epoch) -> tf.data.Dataset:
    """Yields the seed of one epoch again and again: int64 (2,), without end.

    Args:
        seed: Of all epochs.
        epoch: Which epoch. None counts the iterators that are made, from 0 in each
            process.
    """
    if epoch is None:
        one = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).take(1)
    else:
        # Not `from_tensors(epoch)`, which would keep the value of a variable now.
        one = tf.data.Dataset.from_tensors(0).map(lambda _: tf.cast(epoch, tf.int64))

    def repeat(number):
        return tf.data.Dataset.from_tensors(
            tf.stack([tf.cast(seed, tf.int64), number])
        ).repeat()

    endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    return one.flat_map(repeat).apply(endless)


def batch_seeds(seed: int, epoch: Epoch) -> tf.data.Dataset:
    """Yields one seed per batch of an epoch: int64 (2,), without end."""
    numbered = epoch_seeds(seed, epoch).enumerate()
    return numbered.map(lambda index, epoch_seed: fold_in(epoch_seed, index))


def shuffled_indices(count: int, seed: int, epoch: Epoch = None) -> tf.data.Dataset:
    """The numbers 0 … count-1 in a random order, another one in each epoch.

    Args:
        count: How many.
        seed: Of all orders.
        epoch: See `epoch_seeds`.

    Returns:
        A dataset of int64 scalars, of known cardinality.
    """

    def permutation(epoch_seed):
        indices = tf.range(count, dtype=tf.int64)
        return tf.data.Dataset.from_tensor_slices(
            tf.random.experimental.stateless_shuffle(indices, epoch_seed)
        )

    indices = epoch_seeds(seed, epoch).take(1).flat_map(permutation)
    return indices.apply(tf.data.experimental.assert_cardinality(count))


def shuffled_dataset(tensors, *, seed: int, epoch: Epoch = None) -> tf.data.Dataset:
    """As `Dataset.from_tensor_slices(tensors)`, in another order in each epoch.

    Args:
        tensors: Arrays of as many rows, alone or in tuples or dictionaries, such as
            `(images, labels)`; or a list of rows.
        seed: Of all orders; alike in each run (given the same
            `keras.utils.set_random_seed`).
        epoch: Number of the epoch whose order is read, or a `tf.Variable` that holds
            it, such as that of `training.BackupAndResume`. None counts the iterations.

    Returns:
        A dataset of one row after the other, of known cardinality, for `.batch(…)` and
        `model.fit(…, shuffle=False)`.
    """
    if isinstance(tensors, list):  # One array, as for `from_tensor_slices`.
        tensors = tf.convert_to_tensor(tensors)
    tensors = tf.nest.map_structure(tf.convert_to_tensor, tensors)
    count = int(tf.nest.flatten(tensors)[0].shape[0])

    def row(index):
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, index), tensors)

    return shuffled_indices(count, seed, epoch).map(row)
