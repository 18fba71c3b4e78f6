"""The region that a phrase refers to, against counting one by one."""

import numpy as np
import pytest
from model_cases import numpy

from keras_attn.losses import ReferringCrossEntropy
from keras_attn.metrics import ReferringAccuracy

RNG = np.random.default_rng(0)
B, R = 4, 5
OVERLAPS = RNG.uniform(size=(B, R)).astype("float32")
LOGITS = RNG.normal(size=(B, R)).astype("float32") * 2
OVERLAPS[1, 3:] = 0
LOGITS[1, 3:] = -1e4


def losses(limit):
    """The sum over regions, one by one."""
    found = []
    for overlaps, logits in zip(OVERLAPS, LOGITS.astype("float64"), strict=True):
        total = 0.0
        for overlap, logit in zip(overlaps, logits, strict=True):
            target, p = overlap if overlap >= limit else 0.0, 1 / (1 + np.exp(-logit))
            total -= (target * np.log(p) if target else 0) + (1 - target) * np.log1p(-p)
        found.append(total)
    return np.array(found)


@pytest.mark.parametrize("limit", [0.0, 0.5, 1.0])
def test_the_loss(limit):
    with np.errstate(over="ignore"):
        expected = losses(limit)
    each = numpy(ReferringCrossEntropy(limit, reduction="none")(OVERLAPS, LOGITS))
    np.testing.assert_allclose(each, expected, rtol=1e-5)
    mean = float(ReferringCrossEntropy(limit)(OVERLAPS, LOGITS))
    assert mean == pytest.approx(expected.mean(), rel=1e-5)
    weighted = float(ReferringCrossEntropy(limit)(OVERLAPS, LOGITS, [1, 0, 2, 0]))
    assert weighted == pytest.approx((expected[0] + 2 * expected[2]) / B, rel=1e-5)


def test_the_accuracy():
    right = [
        row[int(np.argmax(logits))] >= 0.5
        for row, logits in zip(OVERLAPS, LOGITS, strict=True)
    ]
    assert 0 < sum(right) < B
    metric = ReferringAccuracy()
    for rows in (slice(0, 1), slice(1, B)):
        metric.update_state(OVERLAPS[rows], LOGITS[rows])
    assert float(metric.result()) == pytest.approx(np.mean(right))
    metric = ReferringAccuracy(0.0)
    metric.update_state(OVERLAPS, LOGITS)
    assert float(metric.result()) == 1


@pytest.mark.parametrize("cls", [ReferringCrossEntropy, ReferringAccuracy])
def test_errors(cls):
    for bad in (1.5, "half", None):
        with pytest.raises(ValueError, match="`min_iou` must be a number from 0 to 1"):
            cls(bad)
    with pytest.raises(ValueError, match=r"must be \(batch, regions\)"):
        call = cls() if cls is ReferringCrossEntropy else cls().update_state
        call(OVERLAPS[:, :3], LOGITS)
