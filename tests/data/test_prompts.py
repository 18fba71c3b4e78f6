"""Prompts in batches, with padding at the left."""

import numpy as np
from refusals import refuses

from keras_attn.data import prompt_dataset

PROMPTS = [[1, 5, 6], [1], [1, 7], [1, 8, 9]]


def batches(prompts=PROMPTS, **options):
    """All batches as lists: tokens and masks."""
    dataset = prompt_dataset(prompts, **{"batch_size": 3, **options})
    found = list(dataset.as_numpy_iterator())
    assert len(found) == int(dataset.cardinality())
    assert all(x.dtype == "int32" for batch in found for x in batch.values())
    return [(x["token_ids"].tolist(), x["padding_mask"].tolist()) for x in found]


def test_rows_by_hand():
    assert batches(pad_token_id=9) == [
        ([[1, 5, 6], [9, 9, 1], [9, 1, 7]], [[1, 1, 1], [0, 0, 1], [0, 1, 1]]),
        ([[1, 8, 9]], [[1, 1, 1]]),
    ]
    assert len(batches(drop_remainder=True)) == 1


def test_the_order_depends_on_the_epoch_alone():
    many = [[1, x] for x in range(20)]
    first, second, again = (
        batches(many, shuffle_seed=1, epoch=epoch) for epoch in (0, 1, 0)
    )
    assert first == again != second
    rows = np.concatenate([tokens for tokens, _ in second])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, many))


def test_wrong_rows_are_named():
    for prompts, message in (
        ([], "`prompts` must not be empty. Received: 0 prompts"),
        ([[1], []], "`prompts` must have at least one token.*none in row 1"),
        (["film"], "`prompts` must be lists of token ids.*'film' in row 0"),
    ):
        refuses(message, batches, prompts)
    refuses("at most 2 tokens .*3 tokens in row 0", batches, max_length=2)
    for name in ("batch_size", "max_length"):
        refuses(f"`{name}` must be a positive integer", batches, **{name: 0})
