"""TFRecord files, read in parallel by several processes."""

import numpy as np
import pytest
import tensorflow as tf
from refusals import refuses

from keras_attn.data import record_dataset

# Records of each file; their content is their number.
SIZES = [7, 5, 9, 6, 8]
BATCH = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    number = 0
    for index, size in enumerate(SIZES):
        with tf.io.TFRecordWriter(str(folder / f"part-{index}.tfrecord")) as writer:
            for _ in range(size):
                writer.write(str(number).encode())
                number += 1
    return folder


def read(folder, processes=1, number=0, **options):
    """Numbers of the records by batch."""
    dataset = record_dataset(
        folder / "part-*.tfrecord",
        lambda records: tf.strings.to_number(records, tf.int32),
        batch_size=BATCH,
        num_processes=processes,
        process_id=number,
        **options,
    )
    found = [batch.tolist() for batch in dataset.as_numpy_iterator()]
    assert len(found) == int(dataset.cardinality())
    return found


def test_streams_are_read_side_by_side(folder):
    # Four streams: files 0 and 4, then one each; 15, 5, 9 and 6 records.
    found = read(folder)
    assert found == [[n, 7 + n, 12 + n, 21 + n] for n in range(5)]


@pytest.mark.parametrize("shuffle_seed", [None, 3])
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_have_their_rows_of_the_same_batches(folder, processes, shuffle_seed):
    options = {"shuffle_seed": shuffle_seed, "epoch": 1, "shuffle_buffer": 4}
    whole = read(folder, **options)
    found = [read(folder, processes, number, **options) for number in range(processes)]
    assert np.concatenate(found, axis=1).tolist() == whole


@pytest.mark.parametrize("global_seed", [0, 5])
def test_the_order_does_not_depend_on_the_global_seed(folder, global_seed):
    tf.random.set_seed(7)
    expected = read(folder, shuffle_seed=3, epoch=1)
    tf.random.set_seed(global_seed)
    assert read(folder, shuffle_seed=3, epoch=1) == expected


def test_the_order_depends_on_seed_and_epoch(folder):
    epoch = tf.Variable(tf.constant(0, tf.int64))
    dataset = record_dataset(
        folder / "*.tfrecord",
        lambda records: tf.strings.to_number(records, tf.int32),
        batch_size=BATCH,
        shuffle_seed=3,
        epoch=epoch,
    )
    orders = []
    for number in (0, 1, 2, 3, 4, 5, 0):
        epoch.assign(number)
        orders.append([batch.tolist() for batch in dataset.as_numpy_iterator()])
    assert orders[0] == orders[-1] != orders[1]
    assert orders[0] != read(folder, shuffle_seed=4, epoch=0)
    for order in orders:
        flat = np.ravel(order).tolist()
        assert len(set(flat)) == len(flat) == 5 * BATCH
        # Column by column a stream: those of one file stay in theirs.
        assert {number for row in order for number in row[1:2]} == set(range(7, 12))
    # The files of a stream change places too: 0 to 6, and 27 to 34.
    assert {order[0][0] // 27 for order in orders} == {0, 1}


def test_files_that_are_no_records_are_refused(folder, tmp_path):
    content = (folder / "part-0.tfrecord").read_bytes()
    for name, damaged in (("cut", content[:-1]), ("text", b"no records at all")):
        path = tmp_path / f"{name}.tfrecord"
        path.write_bytes(damaged)
        refuses(f"{name}.tfrecord.*do not add up", record_dataset, path, batch_size=1)
    with pytest.raises(FileNotFoundError, match="matches none"):
        record_dataset(tmp_path / "nothing-*", batch_size=1)
    refuses("must not be empty", record_dataset, [], batch_size=1)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_streams": 6, "batch_size": 6}, "at most the number of files, 5"),
        ({"num_streams": 3}, "divide batch_size=4"),
        ({"num_processes": 3, "process_id": 0}, "multiple of the 3 processes"),
        ({"num_processes": 2}, "must be given together"),
        ({"num_processes": 2, "process_id": 2}, r"in \[0, 2\)"),
        ({"batch_size": 50}, "must have a whole batch: 10 records in each of 5"),
    ],
)
def test_wrong_numbers_are_refused(folder, options, message):
    with pytest.raises(ValueError, match=message):
        record_dataset(folder / "*.tfrecord", **{"batch_size": BATCH, **options})
