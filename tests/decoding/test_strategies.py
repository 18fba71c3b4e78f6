"""Greedy decoding, sampling and beam search choose the tokens they should."""

from typing import Any, cast

import numpy as np
import pytest
from decoding.toys import (
    every_answer,
    log_softmax,
    penalty,
    shared_table_model,
)

from keras_attn.decoding import Beam, Greedy, Sample, generate
from keras_attn.decoding.strategies import _only_top_p

# Chi-square with k - 1 degrees of freedom, at 0.999: k = 5 and 3 outcomes.
CHI_SQUARE = {5: 18.47, 3: 13.82, 2: 10.83}
LOGITS = np.array([0.3, -1.1, 1.7, 0.9, -0.2])
END = 2


def run(table, prompt, length, **options):
    """`generate` with the logits of the next token in a table, by the last token."""
    ids = np.asarray(prompt, "int32")[:, None]
    options = {"jit_compile": False, **options}
    return generate(shared_table_model(table), {"token_ids": ids}, length, **options)


def sample(strategy, count=4000, logits=LOGITS):
    """`count` tokens, all sampled from one distribution."""
    table = np.repeat(logits[None], len(logits), 0)
    answer = run(table, np.zeros(400), count // 400, strategy=strategy)
    return answer.token_ids.ravel()


def check_frequencies(tokens, probabilities):
    """Checks counts by Pearson's test, and impossible tokens exactly."""
    counts = np.bincount(tokens, minlength=len(probabilities))
    possible = probabilities > 0
    assert (counts[~possible] == 0).all()
    expected = probabilities[possible] * len(tokens)
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    if possible.sum() > 1:
        assert statistic < CHI_SQUARE[possible.sum()]


def softmax(logits):
    return np.exp(log_softmax(logits))


def only(tokens, probabilities):
    kept = np.zeros_like(probabilities)
    kept[tokens] = probabilities[tokens]
    return kept / kept.sum()


def test_samples_follow_the_softmax():
    tokens = sample(Sample(seed=0))
    check_frequencies(tokens, softmax(LOGITS))
    # The test has the power to reject a distribution that is close.
    with pytest.raises(AssertionError):
        check_frequencies(tokens, softmax(LOGITS * 1.2))


@pytest.mark.parametrize("temperature", [0.4, 2.5])
def test_temperature_divides_the_logits(temperature):
    tokens = sample(Sample(temperature=temperature, seed=1))
    check_frequencies(tokens, softmax(LOGITS / temperature))


def test_a_temperature_near_zero_is_greedy():
    assert set(sample(Sample(temperature=1e-4, seed=1), 400)) == {2}


# LOGITS in descending order: 2, 3, 0, 4, 1.
@pytest.mark.parametrize("k, kept", [(1, [2]), (2, [2, 3]), (3, [2, 3, 0]), (9, None)])
def test_top_k_keeps_the_k_most_probable(k, kept):
    probabilities = softmax(LOGITS)
    expected = probabilities if kept is None else only(kept, probabilities)
    check_frequencies(sample(Sample(top_k=k, seed=5)), expected)


@pytest.mark.parametrize("k", [127, 128, 129, 150])
def test_top_k_of_a_large_vocabulary(k):
    # Up to 128 the vocabulary is not sorted as a whole.
    logits = np.random.default_rng(2).permutation(np.linspace(0, 0.5, 199))
    tokens = sample(Sample(top_k=k, seed=6), logits=logits)
    assert set(tokens) == set(np.argsort(logits)[-k:])


# Their probabilities: 0.52, 0.23, 0.13, 0.08, 0.03.
@pytest.mark.parametrize(
    "p, kept",
    [(0.01, [2]), (0.5, [2]), (0.7, [2, 3]), (0.8, [2, 3, 0]), (1.0, None)],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(p, kept):
    probabilities = softmax(LOGITS)
    ordered = np.sort(probabilities)[::-1].cumsum()
    assert not np.isclose(ordered, p, atol=0.01).any() or p == 1.0
    expected = probabilities if kept is None else only(kept, probabilities)
    check_frequencies(sample(Sample(top_p=p, seed=3)), expected)


def test_a_set_that_reaches_top_p_exactly_is_enough():
    # These sums are exact; a softmax is rounded in another way on each processor.
    probabilities = np.array([[0.5, 0.25, 0.125, 0.125]], "float32")
    for p, kept in [(0.5, 1), (0.5 + 1e-6, 2), (0.75, 2), (0.75 + 1e-6, 4)]:
        expected = np.where(np.arange(4) < kept, probabilities, 0)
        expected /= expected.sum()
        np.testing.assert_array_equal(_only_top_p(probabilities, p), expected)


def test_top_k_comes_before_top_p():
    # Of the three of top_k the first has 0.59, so it alone reaches 0.58; of all five
    # it would have 0.52, and the second would be needed.
    probabilities = softmax(LOGITS)
    assert probabilities[2] < 0.58 < only([2, 3, 0], probabilities)[2]
    assert set(sample(Sample(top_k=3, top_p=0.58, seed=4), 800)) == {2}
    assert set(sample(Sample(top_p=0.58, seed=4), 800)) == {2, 3}


def test_a_seed_determines_the_samples():
    first, again = sample(Sample(seed=5), 400), sample(Sample(seed=5), 400)
    np.testing.assert_array_equal(first, again)
    assert (sample(Sample(seed=6), 400) != first).any()
    assert (sample(Sample(), 400) != sample(Sample(), 400)).any()
    # Rows and positions are sampled independently.
    table = np.zeros((5, 5))
    ids = run(table, np.zeros(7), 11, strategy=Sample(seed=7)).token_ids
    assert len({tuple(row) for row in ids}) == 7
    assert len({tuple(column) for column in ids.T}) == 11


def test_samples_of_a_known_seed():
    # Four equally probable tokens divide [0, 1) into quarters.
    numbers = np.random.default_rng(0).random((1, 3), "float32")
    answer = run(np.zeros((4, 4)), [0], 3, strategy=Sample(seed=0))
    np.testing.assert_array_equal(answer.token_ids, (numbers * 4).astype(int))
    np.testing.assert_array_equal(answer.token_ids, [[3, 2, 2]])
    np.testing.assert_allclose(answer.scores, 3 * np.log(0.25), rtol=1e-6)


def test_the_score_of_a_sample_is_the_log_probability_of_the_model():
    # Not that of the distribution after temperature and top_k.
    table = np.random.default_rng(8).normal(0, 1, (5, 5))
    strategy = Sample(temperature=0.5, top_k=3, seed=8)
    answer = run(table, [1, 4], 6, strategy=strategy, end_token_id=END)
    for start, ids, score in zip([1, 4], answer.token_ids, answer.scores, strict=True):
        assert np.isclose(score, log_prob(table, start, ids), atol=1e-4)


# Beam search.


def log_prob(table, start, ids, ends=(END,)):
    total, previous = 0.0, start
    for token in ids:
        total += log_softmax(table[previous])[token]
        previous = token
        if token in ends:
            break
    return total


def length_of(ids, end=END):
    ids = list(ids)
    return ids.index(end) + 1 if end in ids else len(ids)


@pytest.mark.parametrize(
    "ends, alpha", [*(([END], x) for x in (0.0, 0.6, 1.0, 3.0)), ([0, END], 0.6)]
)
def test_a_wide_enough_beam_finds_the_best_answer(ends, alpha):
    vocabulary, length = 3, 3
    for seed in range(8):
        rng = np.random.default_rng(seed)
        table = rng.normal(0, 1.5, (vocabulary, vocabulary))
        # Less probable ends, so that long and short answers compete.
        table[:, ends] -= 1
        starts = range(vocabulary)
        answer = run(
            table,
            starts,
            length,
            strategy=Beam(vocabulary**length, alpha),
            end_token_id=ends,
            pad_token_id=0,
        )
        for start, ids, score in zip(
            starts, answer.token_ids, answer.scores, strict=True
        ):
            scored = {
                ids: log_prob(table, start, ids, ends) / penalty(len(ids), alpha)
                for ids in every_answer(vocabulary, length, ends)
            }
            best = max(scored, key=scored.__getitem__)
            assert tuple(ids[: len(best)]) == best
            assert (ids[len(best) :] == 0).all()
            assert np.isclose(score, scored[best], atol=1e-4)


def test_one_beam_is_greedy():
    rng = np.random.default_rng(11)
    ended = 0
    for _ in range(30):
        table = rng.normal(0, 2, (7, 7))
        options = {"end_token_id": END, "pad_token_id": 5}
        greedy = run(table, range(7), 6, strategy=Greedy(), **options)
        beam = run(table, range(7), 6, strategy=Beam(1, 0.8), **options)
        np.testing.assert_array_equal(beam.token_ids, greedy.token_ids)
        lengths = np.array([length_of(ids) for ids in greedy.token_ids])
        expected = greedy.scores / penalty(lengths, 0.8)
        np.testing.assert_allclose(beam.scores, expected, rtol=0, atol=1e-4)
        ended += (lengths < 6).sum()
    assert 30 < ended < 180  # Some answers end early, some do not.


@pytest.mark.parametrize("strategy", [Greedy(), Beam(2, 2.0)])
def test_an_answer_does_not_depend_on_the_other_rows(strategy):
    # A row that is done is left as it is until all rows are. With so large a penalty an
    # answer that is found later could still replace it.
    rng = np.random.default_rng(21)
    options = {"strategy": strategy, "end_token_id": END, "pad_token_id": 4}
    ended = 0
    for _ in range(12):
        table = rng.normal(0, 1, (6, 6))
        together = run(table, range(6), 7, **options)
        for row in range(6):
            alone = run(table, [row], 7, **options)
            np.testing.assert_array_equal(alone.token_ids[0], together.token_ids[row])
            np.testing.assert_allclose(alone.scores[0], together.scores[row], rtol=1e-5)
            ended += length_of(alone.token_ids[0]) < 7
    assert 12 < ended < 72


def test_with_several_end_tokens_enough_live_beams_remain():
    # Of the four best extensions of token 5 three are ends. The fifth, token 1, ends
    # surely at the next step, which is the best answer if long ones are preferred.
    table = np.full((6, 6), 1 / 6)
    table[5] = [0.4, 0.12, 0.2, 0.15, 0.13, 1e-9]
    table[1] = [1e-9, 1e-9, 1, 1e-9, 1e-9, 1e-9]
    options = {"strategy": Beam(2, 2.0), "end_token_id": (2, 3, 4)}
    answer = run(np.log(table), [5], 3, **options)
    np.testing.assert_array_equal(answer.token_ids, [[1, 2, 0]])
    np.testing.assert_allclose(answer.scores, np.log(0.12) / penalty(2, 2.0), rtol=1e-4)


def test_empty_beams_yield_no_answers():
    # Two tokens, one of them the end: after n tokens one answer is live and n are
    # finished. The search ends with four, whatever a penalty makes of empty beams.
    table = np.log([[0.8, 0.2], [0.5, 0.5]])
    for alpha, best in ((0.6, (1,)), (4.0, (0, 0, 0, 1))):
        answer = run(table, [0], 6, strategy=Beam(4, alpha), end_token_id=1)
        expected = [*best, *[0] * (6 - len(best))]
        np.testing.assert_array_equal(answer.token_ids, [expected])
        by_hand = np.log(0.2) + (len(best) - 1) * np.log(0.8)
        by_hand /= penalty(len(best), alpha)
        np.testing.assert_allclose(answer.scores, by_hand, rtol=1e-4)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Sample(temperature=0.0), r"`temperature` must be above 0.*Greedy\(\)"),
        (lambda: Sample(temperature=-1.0), "Received: temperature=-1.0"),
        (lambda: Sample(temperature=float("nan")), "Received: temperature=nan"),
        (lambda: Sample(top_k=0), "`top_k` must be a positive integer.*top_k=0"),
        (lambda: Sample(top_k=cast(Any, 2.5)), "`top_k` must be .*top_k=2.5"),
        (lambda: Sample(top_p=0.0), r"`top_p` must be .* in \(0, 1\].*top_p=0.0"),
        (lambda: Sample(top_p=1.01), "Received: top_p=1.01"),
        (lambda: Beam(0), "`num_beams` must be a positive integer.*num_beams=0"),
        (lambda: Beam(cast(Any, 2.0)), "`num_beams` must be .*=2.0"),
    ],
)
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_strategies_compare_by_value():
    assert Greedy() == Greedy() and Beam(3) == Beam(3) != Beam(4)
    assert Sample(seed=1) == Sample(seed=2) != Sample(top_k=2)
    assert hash(Sample(seed=1)) == hash(Sample(seed=2))
    assert Greedy() != Sample()
    assert [s.num_beams for s in (Greedy(), Sample(), Beam(7))] == [1, 1, 7]
