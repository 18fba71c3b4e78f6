"""Topologies of TPUs, and the least time of a step, by hand."""

import pytest

from keras_attn.models.plans.tpu_chips import CHIPS, StepBound, topology

STEP = {"arguments": 7_000, "results": 5_000, "temporary": 3_000, "gradients": 4_000}


def test_topologies():
    found = topology("v5e:2x4")
    assert (found.kind, found.shape) == ("v5e", (2, 4))
    # One link to the other chip of an axis of two, two links around a ring of four.
    assert (found.chips, found.devices, found.links) == (8, 8, 3)
    assert topology("v5e:1x1").links == 0
    found = topology("v5p:8x8x16")
    assert (found.chips, found.devices, found.links) == (1024, 1024, 6)
    assert topology("v4:2x2x1").devices == 8
    assert topology("v3:32x32").chips == 1024
    for kind, chip in CHIPS.items():
        assert max(topology(f"{kind}:{shape}").chips for shape in chip.shapes) <= 1024


@pytest.mark.parametrize("name", ["v7x:2x2", "v5", "", "5e:2x2"])
def test_an_unknown_generation(name):
    with pytest.raises(ValueError, match=f"v5e:2x2, v6e:2x2.*topology='{name}'"):
        topology(name)


@pytest.mark.parametrize(
    "name", ["v5e", "v5e:3x3", "v5e:32x32", "v5p:4x4", "v5e:2x2x1"]
)
def test_an_unknown_shape(name):
    with pytest.raises(ValueError, match=f"and one of .*8x.*topology='{name}'"):
        topology(name)


def test_least_times():
    bound = StepBound(topology("v5e:2x2"), batch=8, flops=197e12, **STEP)
    assert bound.memory == 10_000 and bound.fits
    assert bound.traffic == 7_000 + 5_000 + 2 * 3_000
    # Each of 4 chips sends 2 * 3 / 4 of the gradients, over a link per axis.
    assert bound.sent == 6_000
    assert bound.seconds == pytest.approx(
        {"compute": 1.0, "memory": 18_000 / 819e9, "communication": 6_000 / 100e9}
    )
    assert bound.bound == "compute" and bound.rows_per_second == pytest.approx(8)


def test_what_bounds_a_step():
    slow = StepBound(topology("v5e:16x16"), 256, 1.0, **{**STEP, "gradients": 10**9})
    assert slow.bound == "communication"
    assert slow.sent == pytest.approx(2 * 255 / 256 * 1e9)
    assert slow.seconds["communication"] == pytest.approx(slow.sent / 200e9)
    alone = StepBound(topology("v5e:1x1"), 1, 1.0, **{**STEP, "gradients": 10**9})
    assert alone.seconds["communication"] == 0 and alone.bound == "memory"
    # Two devices share the matrix units and the memory of a chip.
    half = StepBound(topology("v4:2x2x1"), 8, 275e12 / 2, **STEP)
    assert half.seconds["compute"] == pytest.approx(1)


def test_what_does_not_fit():
    capacity = int(15.75 * 2**30)
    sizes = {**STEP, "temporary": capacity - STEP["arguments"]}
    assert StepBound(topology("v5e:1x1"), 1, 1.0, **sizes).fits
    sizes["temporary"] += 1
    assert StepBound(topology("v5e:1x1"), 1, 1.0, **sizes).fits is False


def test_an_unknown_temporary_memory_leaves_lower_bounds():
    sizes = {**STEP, "temporary": None}
    bound = StepBound(topology("v5e:1x1"), 1, 1.0, **sizes)
    assert bound.fits is None
    assert (bound.memory, bound.traffic) == (7_000, 7_000 + 5_000)
    sizes["arguments"] = int(15.75 * 2**30) + 1
    assert StepBound(topology("v5e:1x1"), 1, 1.0, **sizes).fits is False
