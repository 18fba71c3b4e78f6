"""TFRecord files that are read in parallel, divided among processes.

    file        record | record | …
    record      length, 8 bytes | checksum, 4 bytes | data | checksum, 4 bytes

Files are dealt to streams, and a batch has the same number of records of each stream. A
process reads only the files of its streams. Since the streams do not depend on the
number of processes, neither do the batches.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from keras_attn.checks.arguments import check_positive
from keras_attn.data.pipelines.epochs import Epoch, epoch_seeds, fold_in
from keras_attn.data.pipelines.splitting import check_process_id
from keras_attn.distribution.processes import process_count
from keras_attn.distribution.processes import process_id as this_process

_MOST_STREAMS = 16
_LENGTH_BYTES = 8
_CHECKSUM_BYTES = 4
_GRAPH_SEED = 87_654_321  # TensorFlow's own, for a process without a global seed.


def record_dataset(
    files: str | os.PathLike | Sequence[str | os.PathLike],
    parse: Callable[[tf.Tensor], Any] | None = None,
    *,
    batch_size: int,
    shuffle_seed: int | None = None,
    epoch: Epoch = None,
    shuffle_buffer: int = 1024,
    num_streams: int | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> tf.data.Dataset:
    """Batches of the records of several TFRecord files, for `model.fit`.

    In several processes each reads its own files, in parallel, and yields its rows of
    each batch; all have the same number of batches, and together they have the rows of
    one process. The order depends only on (`shuffle_seed`, `epoch`): the order of the
    files of a stream, and a shuffle of its records within a buffer.

    Only whole batches are read, as many as the shortest stream has; with a seed other
    records are left out in each epoch. Files of about the same number of records, as
    many as streams or a multiple of that, leave out the fewest.

    Args:
        files: TFRecord files without compression, or patterns of them such as
            "data/train-*.tfrecord", also where TensorFlow's file systems are
            (`gs://…`). They are sorted by name.
        parse: Turns serialized records, strings (B,), into what `fit` takes, such as
            `lambda records: tf.io.parse_example(records, features)`. None yields the
            strings.
        batch_size: Records per batch of all processes together.
        shuffle_seed: Seed of the orders, the same in each run (given the same
            `keras.utils.set_random_seed`). None reads the files of each stream one
            after the other.
        epoch: Number of the epoch whose order is read, or a `tf.Variable` that holds
            it, such as `BackupAndResume.epoch`. None counts the iterations.
        shuffle_buffer: Records of a stream from which the next one is drawn.
        num_streams: Groups of files that are read in parallel, at most as many as
            files; it divides `batch_size` and is a multiple of the number of
            processes. Batches depend on it. Default: the largest divisor of
            `batch_size` up to the number of files and 16.
        num_processes: Number of processes. Default: of those that train together with
            `keras.distribution`, or 1.
        process_id: Number of this process. Default: this process.

    Returns:
        A dataset of known cardinality, of `batch_size / num_processes` records each;
        not to be divided again by `split_batches`.

    Raises:
        FileNotFoundError: If a pattern matches no file.
        ValueError: If a file is not a TFRecord file, or is truncated or compressed; if
            `num_streams` does not divide `batch_size`, or the number of processes does
            not divide `num_streams`; or if the records do not fill one batch.
        tf.errors.DataLossError: While reading, if a checksum is wrong.

    Example:
        ```python
        import tensorflow as tf
        from keras_attn import data

        with tf.io.TFRecordWriter("numbers.tfrecord") as writer:
            for number in range(10):
                writer.write(str(number))
        parse = tf.strings.to_number  # Of a batch of records, each a number as text.
        train = data.record_dataset("*.tfrecord", parse, batch_size=4, shuffle_seed=0)
        ```
    """
    batch_size = check_positive("batch_size", batch_size)
    buffer = check_positive("shuffle_buffer", shuffle_buffer)
    if (num_processes is None) != (process_id is None):
        raise ValueError(
            "`num_processes` and `process_id` must be given together. Received: "
            f"num_processes={num_processes}, process_id={process_id}"
        )
    if num_processes is None or process_id is None:
        num_processes, process_id = process_count(), this_process()
    paths = _find(files)
    count = _number_of_streams(num_streams, batch_size, len(paths), num_processes)
    check_process_id(process_id, num_processes)
    with ThreadPoolExecutor() as threads:
        sizes = list(threads.map(_count_records, paths))
    streams = [paths[stream::count] for stream in range(count)]
    each = batch_size // count
    num_batches = min(sum(sizes[stream::count]) for stream in range(count)) // each
    if num_batches == 0:
        raise ValueError(
            f"`files` must have a whole batch: {each} records in each of {count} "
            f"streams. Received: {sum(sizes)} records in {len(paths)} files, and "
            f"batch_size={batch_size}"
        )
    share = count // num_processes
    mine = range(process_id * share, (process_id + 1) * share)
    parts = [
        _stream(streams[number], number, shuffle_seed, epoch, buffer)
        .batch(each, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
        for number in mine
    ]
    dataset = tf.data.Dataset.zip(tuple(parts))
    dataset = dataset.map(lambda *records: tf.concat(records, axis=0))
    dataset = dataset.take(num_batches)
    if parse is not None:
        dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    known = tf.data.experimental.assert_cardinality(num_batches)
    return dataset.apply(known).prefetch(tf.data.AUTOTUNE)


def _stream(paths, number, seed, epoch, buffer):
    """The records of the files of a stream, in the order of an epoch."""
    names = tf.constant(paths)
    if seed is None:
        return tf.data.TFRecordDataset(names)

    def in_order(epoch_seed):
        own = tf.cast(fold_in(epoch_seed, number), tf.int64)
        order = tf.random.experimental.stateless_shuffle(names, own)
        records = tf.data.TFRecordDataset(order)
        random: Any = own[0]  # A tensor, which the stubs do not know of.
        # Or TensorFlow's global seed would change the order, and 0 be an error.
        tf.compat.v1.set_random_seed(_GRAPH_SEED)
        return records.shuffle(buffer, seed=random, reshuffle_each_iteration=False)

    return epoch_seeds(seed, epoch).take(1).flat_map(in_order)


def _find(files) -> list[str]:
    """The files that patterns match, sorted."""
    patterns = [files] if isinstance(files, str | os.PathLike) else list(files)
    found: set[str] = set()
    for pattern in [os.fspath(each) for each in patterns]:
        matches = tf.io.gfile.glob(pattern)
        if not matches:
            raise FileNotFoundError(
                f"`files` must match a file. Received: {pattern!r}, which matches none"
            )
        found.update(matches)
    if not found:
        raise ValueError("`files` must not be empty. Received: files=[]")
    return sorted(found)


def _number_of_streams(given, batch_size, num_files, num_processes) -> int:
    if given is None:
        most = min(num_files, _MOST_STREAMS)
        count = max(n for n in range(1, most + 1) if batch_size % n == 0)
    else:
        count = check_positive("num_streams", given)
    if count > num_files or batch_size % count or count % num_processes:
        raise ValueError(
            f"`num_streams` must be at most the number of files, {num_files}, divide "
            f"batch_size={batch_size} and be a multiple of the {num_processes} "
            f"processes. Received: num_streams={given}"
            + (f", which means {count}" if given is None else "")
        )
    return count


def _count_records(path: str) -> int:
    """The number of records of a file, from the lengths only.

    Raises:
        ValueError: If the lengths do not lead to the end of the file.
    """
    size = tf.io.gfile.stat(path).length
    place = count = 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while place < size:
            file.seek(place)
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            place += _LENGTH_BYTES + 2 * _CHECKSUM_BYTES + length
            count += 1
    if place != size:
        raise ValueError(
            "`files` must be whole TFRecord files without compression. Received: "
            f"{path!r}, whose lengths do not add up to its {size} bytes"
        )
    return count
