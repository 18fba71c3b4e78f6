"""Pairs and rankings as rows, by hand, and the rows that say nothing."""

import numpy as np
import pytest
from refusals import refuses

from keras_attn.data import preference_dataset, ranking_dataset

END = 2
PROMPTS = [[11, 12], [21], []]
CHOSEN = [[13], [22, 23, 24, 25, 26], [31, 32]]
REJECTED = [[14, 15], [22], [33]]
ANSWERS = [[[13], [14, 15]], [[22], [23, 24, 25, 26, 27], [28]], [[31], [32]]]
RATINGS = [[0, 1], [2, 2, 0.5], [-1, -2]]


def batches_of(make, options):
    """All batches of a data set of these prompts."""
    given = {"prompts": PROMPTS, "batch_size": 2, "end_token_id": END}
    dataset = make(**given | options)
    found = list(dataset.as_numpy_iterator())
    assert len(found) == int(dataset.cardinality())
    return found


def pairs(**options):
    given = {"chosen": CHOSEN, "rejected": REJECTED, "max_length": 4}
    return batches_of(preference_dataset, given | options)


def rankings(**options):
    given = {"answers": ANSWERS, "ratings": RATINGS, "max_length": 5}
    return batches_of(ranking_dataset, given | options)


def test_pairs_by_hand():
    first, last = pairs()
    inputs, labels, weights = first
    assert inputs["token_ids"].tolist() == [
        [11, 12, 13, 2],
        [11, 12, 14, 15],
        [21, 22, 23, 24],
        [21, 22, 2, 0],
    ]
    assert inputs["padding_mask"].tolist() == [
        [1, 1, 1, 0],
        [1, 1, 1, 1],
        [1, 1, 1, 1],
        [1, 1, 0, 0],
    ]
    assert labels.tolist() == [
        [12, 13, 2, 0],
        [12, 14, 15, 2],
        [22, 23, 24, 25],
        [22, 2, 0, 0],
    ]
    assert weights.tolist() == [[0, 1, 1, 0], [0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]]
    assert last[0]["token_ids"].tolist() == [[31, 32, 2, 0], [33, 2, 0, 0]]
    assert len(pairs(drop_remainder=True)) == 1


def test_rankings_by_hand():
    first, last = rankings()
    inputs, ratings, weights = first
    assert inputs["token_ids"].tolist() == [
        [11, 12, 13, 2, 0],
        [11, 12, 14, 15, 2],
        [11, 12, 13, 2, 0],  # A copy that does not count.
        [21, 22, 2, 0, 0],
        [21, 23, 24, 25, 26],
        [21, 28, 2, 0, 0],
    ]
    assert inputs["padding_mask"].sum(1).tolist() == [4, 5, 4, 3, 5, 3]
    assert ratings.tolist() == [0, 1, 0, 2, 2, 0.5]
    assert weights.tolist() == [1, 1, 0, 1, 1, 1]
    assert ratings.dtype == weights.dtype == "float32"
    assert last[0]["token_ids"].shape == (3, 5)
    (batch,) = rankings(num_answers=4, batch_size=3)
    assert batch[1].shape == (12,) and batch[2].sum() == 7


def test_short_rows_and_other_padding():
    shapes = [x["token_ids"].shape for x, *_ in pairs(pad_to_multiple_of=2)]
    assert shapes == [(4, 4), (2, 2)]
    shapes = [x["token_ids"].shape for x, *_ in rankings(pad_to_multiple_of=2)]
    assert shapes == [(6, 5), (3, 2)]
    assert pairs(pad_token_id=9)[0][0]["token_ids"][3].tolist() == [21, 22, 2, 9]


@pytest.mark.parametrize("make", [pairs, rankings])
def test_the_order_is_that_of_the_epoch(make):
    def order(epoch):
        found = make(shuffle_seed=3, epoch=epoch, batch_size=1)
        assert all(len(labels) in (2, 3) for _, labels, _ in found)
        return [x["token_ids"].tolist() for x, *_ in found]

    orders = [order(epoch) for epoch in range(4)]
    assert orders == [order(epoch) for epoch in range(4)]
    assert len({str(x) for x in orders}) > 1
    plain = [x["token_ids"].tolist() for x, *_ in make(batch_size=1)]
    assert all(sorted(x) == sorted(plain) for x in orders)


def test_wrong_pairs_are_named():
    for options, message in (
        (
            {"rejected": [[14], CHOSEN[1], [33]]},
            "must differ within `max_length`.*equal ones in row 1",
        ),
        # They differ after the fourth token of the completion.
        ({"rejected": [[14], [*CHOSEN[1][:4], 99], [33]]}, "row 1, max_length=4"),
        ({"rejected": [[14], [22], []]}, "at least one token each.*none in row 2"),
        ({"chosen": [[], [22], [1]]}, "must have at least .* in row 0"),
        ({"prompts": [[1], [1], [1] * 5]}, "must leave room.* 5 tokens in row 2"),
        ({"chosen": ["a", "b", "c"]}, "must be lists of token ids"),
        ({"chosen": CHOSEN[1:]}, "and `rejected` must have the same length"),
    ):
        refuses(f"`{[*options][0]}`.*{message}", pairs, **options)
    refuses("must not be empty.*: 0 ", pairs, prompts=[], chosen=[], rejected=[])
    for name in ("max_length", "batch_size", "pad_to_multiple_of"):
        for make in (pairs, rankings):
            refuses(f"`{name}` must be a positive integer", make, **{name: 0})


def test_wrong_rankings_are_named():
    def with_row(answers, ratings):
        return rankings(
            answers=[ANSWERS[0], answers, ANSWERS[2]],
            ratings=[RATINGS[0], ratings, RATINGS[2]],
        )

    for answers, ratings, message in (
        ([[22]], [1], "at least two.*1 answers and 1 ratings in row 1"),
        ([[22], [23]], [1, 2, 3], "2 answers and 3 ratings in row 1"),
        ([[22], [23]], [4, 4], r"`ratings` must not all be equal.*\[4, 4\] in row 1"),
        ([[22], []], [1, 2], "`answers` must have at .*none in row 1, answer 1"),
    ):
        refuses(message, with_row, answers, ratings)
    for rating in (float("nan"), float("inf"), 1e39, 10**400):
        refuses("`ratings` must be fin.* in row 1", with_row, [[22], [23]], [1, rating])
    message = "`prompts` must leave room .* at most 4 .*5 tokens in row 0, answer 0"
    refuses(message, rankings, prompts=[[1] * 5, [], []])
    message = "at most `num_answers` each. Received: 3 in row 1, num_answers=2"
    refuses(message, rankings, num_answers=2)
    refuses("`num_answers` must be a positive integer", rankings, num_answers=0)
    refuses("must have the same length", rankings, ratings=RATINGS[1:])
    refuses("must not be empty.*: 0 ", rankings, prompts=[], answers=[], ratings=[])


def test_many_rows_are_found_again():
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 99, rng.integers(1, 9)).tolist() for _ in range(211)]
    better = [rng.integers(3, 99, rng.integers(1, 9)).tolist() for _ in prompts]
    worse = [[100, *row] for row in better]
    found = pairs(
        prompts=prompts, chosen=better, rejected=worse, max_length=20, batch_size=7
    )
    rows = [
        row[: mask.sum() + 1].tolist()
        for x, _, _ in found
        for row, mask in zip(x["token_ids"], x["padding_mask"], strict=True)
    ]
    assert rows[0::2] == [[*p, *c, END] for p, c in zip(prompts, better, strict=True)]
    assert rows[1::2] == [[*p, *c, END] for p, c in zip(prompts, worse, strict=True)]
