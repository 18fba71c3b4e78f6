"""Captions as tokens with teacher forcing."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_attn.data import CharacterTokenizer, caption_dataset

TOKENIZER = CharacterTokenizer("abc ")  # a is 4, b 5, c 6, " " 7
CAPTIONS = ["ab c", "b", "", "abcabc"]


def batches(**changes):
    fields: Any = {
        "images": np.arange(24, dtype="float32").reshape(4, 2, 3, 1),
        "captions": CAPTIONS,
        "boxes": np.zeros((4, 1, 4)),
        **changes,
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    return tf.data.Dataset.from_tensor_slices(fields).batch(2)


def test_inputs_labels_and_weights():
    found = list(
        caption_dataset(batches(), TOKENIZER, max_length=5).as_numpy_iterator()
    )
    assert len(found) == 2
    inputs, labels, weights = found[0]
    assert set(inputs) == {"images", "decoder_token_ids"}
    np.testing.assert_array_equal(inputs["images"].ravel(), np.arange(12))
    # A multiple of 8 would be longer than `max_length`.
    np.testing.assert_array_equal(
        inputs["decoder_token_ids"], [[1, 4, 5, 7, 6], [1, 5, 2, 0, 0]]
    )
    np.testing.assert_array_equal(labels, [[4, 5, 7, 6, 2], [5, 2, 0, 0, 0]])
    np.testing.assert_array_equal(weights, [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    inputs, labels, weights = found[1]
    # An empty caption ends at once; a truncated one has no end.
    np.testing.assert_array_equal(labels, [[2, 0, 0, 0, 0], [4, 5, 6, 4, 5]])
    np.testing.assert_array_equal(weights.sum(1), [1, 5])
    assert labels.dtype == inputs["decoder_token_ids"].dtype == "int32"


@pytest.mark.parametrize(("multiple", "width"), [(1, 5), (3, 6), (8, 8)])
def test_lengths_are_rounded_up(multiple, width):
    dataset = caption_dataset(
        batches(), TOKENIZER, max_length=30, pad_to_multiple_of=multiple
    )
    (inputs, labels, weights), _ = dataset.as_numpy_iterator()
    shapes = {x.shape for x in (inputs["decoder_token_ids"], labels, weights)}
    assert shapes == {(2, width)}


@pytest.mark.parametrize(
    "changes",
    [
        {"captions": None},
        {"captions": np.zeros(4)},
        {"images": None},
        {"features": np.zeros(4)},
    ],
)
def test_other_batches_are_refused(changes):
    with pytest.raises(ValueError, match="`batches` must be dictionaries of `images`"):
        caption_dataset(batches(**changes), TOKENIZER, max_length=5)


@pytest.mark.parametrize("name", ["max_length", "pad_to_multiple_of"])
def test_lengths_above_zero(name):
    with pytest.raises(ValueError, match=f"`{name}` must be a positive integer"):
        caption_dataset(batches(), TOKENIZER, **{"max_length": 5, name: 0})
