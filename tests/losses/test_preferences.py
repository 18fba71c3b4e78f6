"""Losses of rankings and of DPO: pair by pair, with ties and missing answers."""

import math

import numpy as np
import pytest
from feedback_cases import (
    every_way,
    floats,
    integers,
    normal,
    run_with_gradients,
    slopes_of,
    untyped,
)
from keras import ops
from model_cases import numpy

from keras_attn.losses import RankingLoss, dpo_loss, ranking_loss
from keras_attn.metrics import RankingAccuracy

G, K = 5, 4
SCORES = normal((G, K), seed=1, scale=2)
RATINGS = floats(
    [
        [3, 1, 2, 0],
        [0, 0, 1, 1],  # Two ties.
        [7, 7, 7, 7],  # Says nothing.
        [1, 2, 0, 9],  # Two answers exist.
        [0.5, 0.25, 0.25, 2],
    ]
)
IS_REAL = np.ones((G, K), bool)
IS_REAL[3, 2:] = False
# Those that do not exist are copies, as of `ranking_dataset`.
SCORES[3, 2:] = SCORES[3, 0]


def pairs(row):
    """The pairs of a ranking, the better answer first."""
    real = [i for i in range(K) if IS_REAL[row, i]]
    return [(i, j) for i in real for j in real if RATINGS[row, i] > RATINGS[row, j]]


def wanted(scores, margin=0.0, center=0.0):
    """The loss of each ranking."""
    losses = []
    for row in range(G):
        found = []
        for i, j in pairs(row):
            gap = margin * (float(RATINGS[row, i]) - float(RATINGS[row, j]))
            x = float(scores[row, i]) - float(scores[row, j]) - gap
            center_term = center * (float(scores[row, i]) + float(scores[row, j])) ** 2
            found.append(-math.log(1 / (1 + math.exp(-x))) + center_term)
        losses.append(sum(found) / len(found) if found else 0.0)
    return np.array(losses)


@every_way
@pytest.mark.parametrize("margin, center", [(0.0, 0.0), (0.7, 0.0), (0.3, 0.02)])
def test_rankings(way, margin, center):
    assert [len(pairs(row)) for row in range(G)] == [6, 4, 0, 1, 5]

    def total(scores, ratings, weights):
        found = ranking_loss(
            scores, ratings, is_real=IS_REAL, margin=margin, center_weight=center
        )
        return ops.sum(weights * found), found

    weights = normal((G,), seed=2)
    (_, found), slopes = run_with_gradients(total, SCORES, RATINGS, weights, way=way)
    np.testing.assert_allclose(found, wanted(SCORES, margin, center), rtol=1e-5)
    expected = slopes_of(lambda x: (weights * wanted(x, margin, center)).sum(), SCORES)
    np.testing.assert_allclose(slopes[0], expected, atol=1e-5)
    # Nothing is learned from ties, nor from an answer that does not exist.
    assert (slopes[0][2] == 0).all() and (slopes[0][3, 2:] == 0).all()
    assert np.abs(slopes[0][0]).min() > 0


@every_way
def test_the_loss_of_a_batch_of_rows(way):
    weights = floats([1, 0.5, 2, 3, 0])[:, None] * IS_REAL

    def total(scores):
        loss = RankingLoss(K, margin=0.3, center_weight=0.02)
        return loss(RATINGS.reshape(-1), scores, weights.reshape(-1))

    found, (slopes,) = run_with_gradients(total, SCORES.reshape(-1, 1), way=way)
    of_rankings = [1, 0.5, 2, 3, 0]
    expected = sum(
        w * x for w, x in zip(of_rankings, wanted(SCORES, 0.3, 0.02), strict=True)
    )
    assert found == pytest.approx(expected / sum(of_rankings), rel=1e-5)
    assert slopes.shape == (G * K, 1) and (slopes[-K:] == 0).all()


def test_ranks_of_rows_and_reductions():
    loss = RankingLoss(K, reduction="none")
    rows = RATINGS.reshape(-1), SCORES.reshape(-1, 1), IS_REAL.reshape(-1)
    each = numpy(loss(*rows))
    np.testing.assert_allclose(each, wanted(SCORES), rtol=1e-5)
    column = numpy(loss(rows[0][:, None], rows[1][:, 0], rows[2][:, None]))
    np.testing.assert_array_equal(column, each)
    # All rankings count the same if there are no weights.
    complete = [0, 1, 2, 4]
    found = RankingLoss(K)(RATINGS[complete].ravel(), SCORES[complete].reshape(-1, 1))
    assert float(found) == pytest.approx(wanted(SCORES)[complete].mean(), rel=1e-5)


def test_very_different_scores_have_finite_losses():
    scores = floats([[-1e4, 1e4], [1e4, -1e4]])
    found, (slopes,) = run_with_gradients(
        lambda x: ops.sum(ranking_loss(x, floats([[1, 0], [1, 0]]))), scores
    )
    assert found == 2e4
    np.testing.assert_allclose(slopes, [[-1, 1], [0, 0]])


def test_the_accuracy_counts_pairs():
    metric = RankingAccuracy(K)
    scores = SCORES.copy()
    scores[1, 2] = scores[1, 0]  # A tie of scores is wrong.
    rows = RATINGS.reshape(-1), scores.reshape(-1, 1), IS_REAL.reshape(-1)
    hits = [scores[row, i] > scores[row, j] for row in range(G) for i, j in pairs(row)]
    assert 0.2 < np.mean(hits) < 0.8 and len(hits) == 16
    metric.update_state(*rows)
    assert float(metric.result()) == pytest.approx(np.mean(hits), rel=1e-6)
    # Over several batches it is the share of all pairs.
    metric.reset_state()
    for row in range(G):
        metric.update_state(*(x[row * K : (row + 1) * K] for x in rows))
    assert float(metric.result()) == pytest.approx(np.mean(hits), rel=1e-6)


CHOSEN, REJECTED, OLD_CHOSEN, OLD_REJECTED = (
    normal((7,), seed=seed, scale=4) - 12 for seed in range(4)
)
LENGTHS = integers([3, 1, 4, 1, 5, 9, 2]), integers([2, 7, 1, 8, 2, 8, 0])


@every_way
@pytest.mark.parametrize("reference_free", [False, True])
@pytest.mark.parametrize(
    "kind, smoothing",
    [("sigmoid", 0), ("ipo", 0), ("hinge", 0), ("robust", 0), ("robust", 0.3)],
)
def test_dpo(way, reference_free, kind, smoothing):
    beta = 0.3

    def expected(chosen, rejected):
        losses = []
        for n in range(7):
            better, worse = float(chosen[n]), float(rejected[n])
            if not reference_free:
                better -= float(OLD_CHOSEN[n])
                worse -= float(OLD_REJECTED[n])
            if kind == "ipo":
                better /= max(int(LENGTHS[0][n]), 1)
                worse /= max(int(LENGTHS[1][n]), 1)
                losses.append((better - worse - 1 / (2 * beta)) ** 2)
                continue
            x = beta * (better - worse)
            right, wrong = (math.log(1 + math.exp(-sign * x)) for sign in (1, -1))
            if kind == "hinge":
                losses.append(max(0, 1 - x))
            elif kind == "sigmoid":
                losses.append(right)
            else:
                share = (1 - smoothing) * right - smoothing * wrong
                losses.append(share / (1 - 2 * smoothing))
        return np.array(losses)

    def total(chosen, rejected, *reference):
        given = {}
        if kind == "ipo":
            given = {"chosen_lengths": LENGTHS[0], "rejected_lengths": LENGTHS[1]}
        found = dpo_loss(
            chosen,
            rejected,
            *([] if reference_free else reference),
            beta=beta,
            kind=kind,
            label_smoothing=smoothing,
            reference_free=reference_free,
            **given,
        )
        return ops.sum(found), found

    (_, found), slopes = run_with_gradients(
        total, CHOSEN, REJECTED, OLD_CHOSEN, OLD_REJECTED, way=way
    )
    np.testing.assert_allclose(found, expected(CHOSEN, REJECTED), rtol=1e-5, atol=1e-6)
    for index, moved in enumerate((CHOSEN, REJECTED)):
        given = [CHOSEN, REJECTED]

        def loss(x, index=index, given=given):
            given[index] = x
            return expected(*given).sum()

        np.testing.assert_allclose(
            slopes[index], slopes_of(loss, moved), rtol=1e-4, atol=1e-5
        )
    assert (slopes[2] == 0).all() and (slopes[3] == 0).all()


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"`scores` must have 2 axes, \(rankings, ans"):
        ranking_loss(SCORES[0], RATINGS[0])
    with pytest.raises(ValueError, match=r"`ratings` must have the shape \(5, 4\)"):
        ranking_loss(SCORES, RATINGS[:, 1:])
    with pytest.raises(ValueError, match=r"`is_real` must have the shape \(5, 4\)"):
        ranking_loss(SCORES, RATINGS, is_real=IS_REAL[1:])
    for make in (RankingLoss, lambda **x: ranking_loss(SCORES, RATINGS, **x)):
        for name in ("margin", "center_weight"):
            for value in (-0.1, float("nan"), "1"):
                with pytest.raises(ValueError, match=f"`{name}` must be a number"):
                    untyped(make)(**{name: value})
    for make in (RankingLoss, RankingAccuracy):
        with pytest.raises(ValueError, match="`num_answers` must be at least 2"):
            make(1)
        with pytest.raises(ValueError, match="`num_answers` must be a positive int"):
            untyped(make)(2.0)
    loss, rows = RankingLoss(K), (RATINGS.ravel(), SCORES.reshape(-1, 1))
    for given in (
        (rows[0][1:], rows[1]),
        (rows[0][1:], rows[1][1:]),
        (RATINGS, rows[1]),
        (*rows, IS_REAL.ravel()[1:]),
    ):
        with pytest.raises(ValueError, match="`num_answers` consecutive rows for each"):
            loss(*given)


LENGTHS_OF_IPO = '`chosen_lengths` and .* only if `kind="ipo"'
REFERENCES = "given if and only if `reference_free=False`"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"kind": "kto"}, "`kind` must be one of 'sigmoid', 'ipo'"),
        ({"beta": 0}, "`beta` must be a number above 0"),
        ({"label_smoothing": 0.1}, r"`label_smoothing` must be in \[0, 0.5\)"),
        ({"kind": "robust", "label_smoothing": 0.5}, r"must be in \[0, 0.5\)"),
        ({"kind": "robust", "label_smoothing": -0.1}, r"must be in \[0, 0.5\)"),
        ({"reference_rejected": None}, f"{REFERENCES}.*=given, .*_rejected=None"),
        ({"reference_free": True}, REFERENCES),
        ({"kind": "ipo"}, LENGTHS_OF_IPO),
        ({"chosen_lengths": LENGTHS[0]}, LENGTHS_OF_IPO),
        ({"chosen": CHOSEN[None]}, r"`chosen` must have 1 axes, \(pairs,\)"),
        ({"rejected": REJECTED[1:]}, r"`rejected` must have the shape \(7,\)"),
        ({"reference_chosen": CHOSEN[1:]}, r"`reference_chosen` must have the shape"),
        ({"reference_rejected": CHOSEN[1:]}, r"`reference_rejected` must have the sh"),
    ],
)
def test_wrong_arguments_of_dpo_are_named(changes, message):
    given = {"chosen": CHOSEN, "rejected": REJECTED, **changes}
    for name, values in (("chosen", OLD_CHOSEN), ("rejected", OLD_REJECTED)):
        given.setdefault(f"reference_{name}", values)
    with pytest.raises(ValueError, match=message):
        untyped(dpo_loss)(**given)
