"""Where completions end, and the penalty of those that don't, by hand."""

import numpy as np
import pytest
from feedback_cases import every_way, floats, integers, run, untyped

from keras_attn.training import penalize_missing_end, truncate_completions

STOP, OTHER_STOP, PAD = 13, 14, 0
TOKENS = integers(
    [
        [5, 13, 6, 13, 7, 8],  # Ends at the second stop token if the first is early.
        [5, 6, 7, 8, 9, 4],  # Does not end.
        [13, 5, 6, 7, 14, 13],
        [13, 13, 5, 13, 6, 7],  # Two tokens of padding come first.
        [5, 6, 7, 13, 13, 13],  # The last three are padding.
    ]
)
MASK = np.ones(TOKENS.shape, "int32")
MASK[3, :2] = MASK[4, 3:] = 0


@every_way
@pytest.mark.parametrize("tuple_of_one", [False, True])
def test_completions_are_cut_after_the_first_stop_token(way, tuple_of_one):
    stop = (STOP,) if tuple_of_one else STOP
    token_ids, mask, has_end = run(
        lambda x: truncate_completions(x, stop, mask=MASK, pad_token_id=PAD),
        TOKENS,
        way=way,
    )
    assert token_ids.tolist() == [
        [5, 13, 0, 0, 0, 0],
        [5, 6, 7, 8, 9, 4],
        [13, 0, 0, 0, 0, 0],
        [0, 0, 5, 13, 0, 0],
        [5, 6, 7, 0, 0, 0],
    ]
    np.testing.assert_array_equal(mask, token_ids != PAD)
    assert has_end.tolist() == [True, False, True, True, False]
    assert token_ids.dtype == "int32"


@every_way
def test_the_first_tokens_do_not_end_a_text(way):
    token_ids, mask, has_end = run(
        lambda x: truncate_completions(x, [STOP, OTHER_STOP], mask=MASK, min_length=2),
        TOKENS,
        way=way,
    )
    assert token_ids.tolist() == [
        [5, 13, 6, 13, 0, 0],
        [5, 6, 7, 8, 9, 4],
        [13, 5, 6, 7, 14, 0],
        [0, 0, 5, 13, 6, 7],  # Its stop token is the second real token.
        [5, 6, 7, 0, 0, 0],
    ]
    assert mask.sum(1).tolist() == [4, 6, 5, 4, 3]
    assert has_end.tolist() == [True, False, True, False, False]


def test_without_a_mask_all_tokens_are_real():
    # The rule of OpenAI's experiments: token 13 at or after position 16 of 24.
    tokens = np.full((2, 24), 7, "int32")
    tokens[:, 15] = tokens[0, 16] = 13
    token_ids, _, has_end = run(
        lambda x: truncate_completions(x, 13, min_length=16, pad_token_id=99), tokens
    )
    assert token_ids[0].tolist() == [7] * 15 + [13] * 2 + [99] * 7
    assert token_ids[1].tolist() == tokens[1].tolist()
    assert has_end.tolist() == [True, False]


@every_way
@pytest.mark.parametrize("dtype", ["bool", "int32"])
def test_the_penalty_of_a_missing_end(way, dtype):
    scores = floats([2.5, -3, 0.25])
    has_end = np.array([1, 0, 0], dtype)
    for how, wanted in (
        ("replace", [2.5, -1.5, -1.5]),
        ("subtract", [2.5, -4.5, -1.25]),
    ):
        found = run(
            lambda x, how=how: untyped(penalize_missing_end)(x, has_end, 1.5, how=how),
            scores,
            way=way,
        )
        assert found.tolist() == wanted


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"`token_ids` must have 2 axes"):
        truncate_completions(TOKENS[0], STOP)
    with pytest.raises(ValueError, match="`mask` must have the shape of `token_ids`"):
        truncate_completions(TOKENS, STOP, mask=MASK[1:])
    for name, values in (
        ("stop_token_ids", (-1, [], [13, -2], 1.5)),
        ("min_length", (-1, 0.5)),
        ("pad_token_id", (-1, None)),
    ):
        for value in values:
            with pytest.raises(ValueError, match=f"`{name}` must be an integer of"):
                truncate_completions(TOKENS, **{"stop_token_ids": 13, name: value})
    with pytest.raises(ValueError, match="`how` must be one of 'replace', 'subtract'"):
        untyped(penalize_missing_end)([1.0], [True], how="add")
    for penalty in (0, -1.0):
        with pytest.raises(ValueError, match="`penalty` must be a number above 0"):
            penalize_missing_end([1.0], [True], penalty)
    for scores, has_end in (([1.0], [True, False]), ([[1.0]], [[True]])):
        with pytest.raises(ValueError, match=r"must both be \(batch,\). Received"):
            penalize_missing_end(scores, has_end)
