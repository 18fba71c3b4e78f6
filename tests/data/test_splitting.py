"""Every process takes its rows of the same batches."""

import numpy as np
import pytest
import tensorflow as tf

from keras_attn.data import shuffled_dataset, split_batches, whole_batches

ROWS, COLUMNS = 23, 3
NUMBERS = np.arange(ROWS)


def batches(batch_size, epoch=0):
    """Dictionaries of inputs, labels and weights, in the order of an epoch."""
    rows = np.stack([NUMBERS] * COLUMNS, axis=1)
    tensors = ({"x": rows}, NUMBERS, np.ones(ROWS, "float32"))
    return shuffled_dataset(tensors, seed=5, epoch=epoch).batch(batch_size)


def parts(dataset, processes, **options):
    """The batches of every process, as lists by process."""
    return [
        list(
            split_batches(
                dataset, num_processes=processes, process_id=number, **options
            ).as_numpy_iterator()
        )
        for number in range(processes)
    ]


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_processes_share_every_full_batch(processes, devices):
    expected = list(batches(12).as_numpy_iterator())
    found = parts(batches(12), processes, devices_per_process=devices)
    assert {len(each) for each in found} == {len(expected)}
    np.testing.assert_array_equal(
        np.concatenate([batches[0][0]["x"] for batches in found]), expected[0][0]["x"]
    )
    np.testing.assert_array_equal(
        np.concatenate([batches[0][1] for batches in found]), expected[0][1]
    )


def test_rows_that_cannot_be_shared_are_on_every_device():
    # 23 rows: 12 and 11, which two processes of two devices cannot share.
    found = parts(batches(12), 2, devices_per_process=2, share_weights=True)
    *_, last = batches(12).as_numpy_iterator()
    for process in found:
        inputs, labels, weights = process[-1]
        np.testing.assert_array_equal(labels, np.tile(last[1], 2))
        np.testing.assert_array_equal(inputs["x"][:, 1], labels)
        assert weights.tolist() == [0.25] * 22
        assert process[0][2].tolist() == [1.0] * 6
    # Without a division of weights they stay.
    found = parts(batches(12), 2)
    assert found[1][-1][2].tolist() == [1.0] * 11


def test_the_order_is_that_of_the_epoch():
    first, second = (
        [labels.tolist() for _, labels, _ in parts(batches(6, epoch), 2)[1]]
        for epoch in (0, 1)
    )
    again = [labels.tolist() for _, labels, _ in parts(batches(6, 0), 2)[1]]
    assert first == again != second


def test_whole_batches_are_on_every_device_of_a_process():
    dataset = whole_batches(batches(12), devices_per_process=3)
    expected = list(batches(12).as_numpy_iterator())
    assert int(dataset.cardinality()) == len(expected) == 2
    for found, batch in zip(dataset.as_numpy_iterator(), expected, strict=True):
        np.testing.assert_array_equal(found[1], np.tile(batch[1], 3))


def test_without_a_distribution_nothing_is_divided():
    dataset = tf.data.Dataset.range(5).batch(2)
    assert split_batches(dataset) is dataset
    assert whole_batches(dataset) is dataset


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_processes": 2}, "must be given together"),
        ({"devices_per_process": 2}, "must be given together"),
        ({"num_processes": 2, "process_id": 2}, r"in \[0, 2\)"),
        ({"num_processes": 2, "process_id": -1}, r"in \[0, 2\)"),
        ({"num_processes": 0, "process_id": 0}, "num_processes"),
    ],
)
def test_wrong_numbers_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        split_batches(tf.data.Dataset.range(5).batch(2), **options)


def test_a_list_of_texts_has_a_new_order_in_each_epoch():
    texts = [f"text {number}" for number in range(11)]

    def order(epoch):
        rows = shuffled_dataset(texts, seed=3, epoch=epoch).as_numpy_iterator()
        return [row.decode() for row in rows]

    assert sorted(order(0)) == sorted(texts)
    assert order(0) == order(0) != order(1)
