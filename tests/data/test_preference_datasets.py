"""Pairs and rankings as rows, by hand, and the rows that say nothing."""

import numpy as np
import pytest

from keras_attn.data import preference_dataset, ranking_dataset

END = 2
PROMPTS = [[11, 12], [21], []]
CHOSEN = [[13], [22, 23, 24, 25, 26], [31, 32]]
REJECTED = [[14, 15], [22], [33]]
ANSWERS = [[[13], [14, 15]], [[22], [23, 24, 25, 26, 27], [28]], [[31], [32]]]
RATINGS = [[0, 1], [2, 2, 0.5], [-1, -2]]


def pairs(**options):
    """All batches of pairs."""
    options = {
        "prompts": PROMPTS,
        "chosen": CHOSEN,
        "rejected": REJECTED,
        "max_length": 4,
        "batch_size": 2,
        "end_token_id": END,
        **options,
    }
    dataset = preference_dataset(**options)
    found = list(dataset.as_numpy_iterator())
    assert len(found) == int(dataset.cardinality())
    return found


def rankings(**options):
    """All batches of rankings."""
    options = {
        "prompts": PROMPTS,
        "answers": ANSWERS,
        "ratings": RATINGS,
        "max_length": 5,
        "batch_size": 2,
        "end_token_id": END,
        **options,
    }
    dataset = ranking_dataset(**options)
    found = list(dataset.as_numpy_iterator())
    assert len(found) == int(dataset.cardinality())
    return found


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
    with pytest.raises(
        ValueError,
        match="`chosen` and `rejected` must differ within "
        "`max_length`.*equal ones in row 1",
    ):
        pairs(rejected=[[14], CHOSEN[1], [33]])
    # They differ after the fourth token of the completion.
    with pytest.raises(ValueError, match="row 1, max_length=4"):
        pairs(rejected=[[14], [*CHOSEN[1][:4], 99], [33]])
    with pytest.raises(
        ValueError,
        match="`rejected` must have at least one token each. Received: none in row 2",
    ):
        pairs(rejected=[[14], [22], []])
    with pytest.raises(ValueError, match="`chosen` must have at least .* in row 0"):
        pairs(chosen=[[], [22], [1]])
    with pytest.raises(
        ValueError, match="`prompts` must leave room.* 5 tokens in row 2"
    ):
        pairs(prompts=[[1], [1], [1] * 5])
    with pytest.raises(ValueError, match="`chosen` must be lists of token ids"):
        pairs(chosen=["a", "b", "c"])
    with pytest.raises(
        ValueError, match="`prompts` and `chosen` and `rejected` must ha"
    ):
        pairs(chosen=CHOSEN[1:])
    with pytest.raises(ValueError, match="must not be empty. Received: 0 prompts"):
        pairs(prompts=[], chosen=[], rejected=[])
    for name in ("max_length", "batch_size", "pad_to_multiple_of"):
        for make in (pairs, rankings):
            with pytest.raises(
                ValueError, match=f"`{name}` must be a positive integer"
            ):
                make(**{name: 0})


def test_wrong_rankings_are_named():
    def with_row(answers, ratings):
        return rankings(
            answers=[ANSWERS[0], answers, ANSWERS[2]],
            ratings=[RATINGS[0], ratings, RATINGS[2]],
        )

    with pytest.raises(
        ValueError,
        match="`answers` must be at least two.*1 answers and 1 ratings in row 1",
    ):
        with_row([[22]], [1])
    with pytest.raises(ValueError, match="2 answers and 3 ratings in row 1"):
        with_row([[22], [23]], [1, 2, 3])
    with pytest.raises(
        ValueError,
        match=r"`ratings` must not all be equal.*\[4, 4\] in "
        "row 1",
    ):
        with_row([[22], [23]], [4, 4])
    for rating in (float("nan"), float("inf"), 1e39, 10**400):
        with pytest.raises(ValueError, match="`ratings` must be finite .* in row 1"):
            with_row([[22], [23]], [1, rating])
    with pytest.raises(
        ValueError,
        match="`answers` must have at least one token each. "
        "Received: none in row 1, answer 1",
    ):
        with_row([[22], []], [1, 2])
    with pytest.raises(
        ValueError,
        match="`prompts` must leave room .* at most 4 tokens "
        ".*5 tokens in row 0, answer 0",
    ):
        rankings(prompts=[[1] * 5, [], []])
    with pytest.raises(
        ValueError,
        match="at most `num_answers` each. Received: 3 in row 1, num_answers=2",
    ):
        rankings(num_answers=2)
    with pytest.raises(ValueError, match="`num_answers` must be a positive integer"):
        rankings(num_answers=0)
    with pytest.raises(ValueError, match="must have the same length"):
        rankings(ratings=RATINGS[1:])
    with pytest.raises(ValueError, match="must not be empty. Received: 0 prompts"):
        rankings(prompts=[], answers=[], ratings=[])


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
