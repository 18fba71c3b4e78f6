"""What a training run costs, against published runs and numbers derived by hand."""

from typing import Any

import pytest

from keras_attn import models
from keras_attn.models import training_run
from keras_attn.models.plans.accelerators import ACCELERATORS, parse_hardware
from keras_attn.models.plans.training_run import reached_utilization


def published(name) -> Any:
    training = models.describe(name).training
    assert training is not None
    return training


def test_time_energy_and_price_are_those_derived_by_hand():
    # 7 devices of 125 TFLOP/s at a fifth: 175 TFLOP/s, for 10,800 s.
    run = training_run(175e12 * 10_800, "v100:7", utilization=0.2, price=3.0)
    assert run.hours == pytest.approx(3)
    assert run.device_days == pytest.approx(7 / 8)
    assert run.kilowatt_hours == pytest.approx(7 * 3 * 0.3)
    assert run.cost == pytest.approx(7 * 3 * 3.0)
    assert reached_utilization(run.flops, "v100:7", 3) == pytest.approx(0.2)
    warmer = training_run(175e12 * 10_800, "V100:7", utilization=0.2, watts=500)
    assert warmer.kilowatt_hours == pytest.approx(7 * 3 * 0.5)
    assert (warmer.cost, warmer.hardware) == (None, "v100")
    # Google publishes no power of this one.
    assert training_run(1e18, "tpu_v5e:4").kilowatt_hours is None
    assert training_run(1e18, "tpu_v5e:4", watts=200).kilowatt_hours
    assert training_run(1e18, "a100").devices == 1


def test_gpt3_takes_six_flops_per_parameter_and_token():
    """Brown et al. 2020, table D.1, whose parameters the cards round."""
    names = models.list_models("gpt3_*")
    assert len(names) == 8
    for name in names:
        parameters = models.describe(name).parameters or 0
        training = published(name)
        assert (training.tokens, training.hardware) == (300e9, "v100")
        counted = 6 * parameters * training.tokens
        assert counted == pytest.approx(training.flops, rel=0.03), name


@pytest.mark.parametrize(
    ("name", "flops"), [("transformer_base", 3.3e18), ("transformer_big", 2.3e19)]
)
def test_the_cost_of_the_transformer_is_hardware_times_time(name, flops):
    """Vaswani et al. 2017, table 2, and the 9.5 TFLOP/s of a P100 in its footnote."""
    training = published(name)
    assert training.flops == flops
    assert (training.hardware, training.devices) == ("p100", 8)
    assert 8 * 9.5e12 * training.hours * 3600 == pytest.approx(flops, rel=0.01)
    # The same by way of the peak: a sustained rate is a share of it.
    share = 9.5e12 / ACCELERATORS["p100"].flops
    run = training_run(flops, "p100:8", utilization=share)
    assert run.hours == pytest.approx(training.hours, rel=0.01)


def test_gpt_took_a_month_of_eight_devices():
    """OpenAI 2018: 12 TFLOP/s each, of which a third is used."""
    training = published("gpt_117m")
    assert training.devices * training.hours * 3600 * 12e12 * 0.33 == pytest.approx(
        training.flops, rel=0.02
    )


def test_megatron_took_nine_days_of_512_devices():
    """Shoeybi et al. 2019: 15.1 PFLOP/s, which compute the forward pass twice."""
    training = published("megatron_8p3b")
    s, layers, h, v = 1024, 72, 3072, 51_200
    # Narayanan et al. 2021 (arXiv:2104.04473), equation 3, without recomputing.
    per_token = 72 * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    flops = per_token * training.tokens
    share = 3 / 4 * 15.1e15 / (512 * ACCELERATORS["v100"].flops)
    run = training_run(flops, "v100:512", utilization=share, price=31.212 / 8)
    assert run.hours == pytest.approx(training.hours, rel=0.1)
    assert training.hours / 24 == pytest.approx(9.2, abs=0.05)
    reached = reached_utilization(flops, "v100:512", training.hours)
    assert reached == pytest.approx(share, rel=0.1)
    # The lecture's $430,000: eight devices of AWS, p3dn.24xlarge, for $31.212 an hour.
    paid = training_run(flops, "v100:512", utilization=reached, price=31.212 / 8)
    assert paid.hours == pytest.approx(training.hours)
    assert paid.cost == pytest.approx(430_000, rel=0.03)


def test_hardware_of_cards_is_known_or_has_no_published_figures():
    unknown = {"GPU", "TPU", "P600", "TITAN X", "Titan", "TITAN Black", "Quadro K6000"}
    used = set()
    for name in models.list_models():
        training = models.describe(name).training
        if training is not None and training.hardware:
            used.add(training.hardware)
    assert used - set(ACCELERATORS) <= unknown, used
    for name, device in ACCELERATORS.items():
        assert parse_hardware(f"{name}:3") == (name, 3)
        assert 1e12 < device.flops < 1e16 and device.source
        assert device.watts is None or 50 <= device.watts <= 1500
    assert ACCELERATORS["tpu_v4"].flops == 275e12


def test_error_messages():
    def refuses(message, flops=1e18, hardware="v100:8", **options):
        with pytest.raises(ValueError, match=message):
            training_run(flops, hardware, **options)

    refuses("`hardware` must be one of k40, m40, p100, v100.*='x100:8'", 1e18, "x100:8")
    refuses("`hardware` must be one of .*=''", hardware="")
    for number in ("", "0", "-3", "2.5", "many", "²"):
        refuses(f"`hardware` must have .*='v100:{number}'", hardware=f"v100:{number}")
    refuses("`flops` must be a number above 0. Received: flops=0", flops=0)
    refuses("`flops` must be .*flops=inf", flops=float("inf"))
    refuses("`utilization` must be .*=30", utilization=30)
    refuses("`utilization` must be .*=0", utilization=0)
    refuses("`price` must be a number above 0. Received: price=-1", price=-1)
    refuses("`watts` must be .*watts=0", watts=0)
    with pytest.raises(ValueError, match="`hours` must be .*hours=0"):
        reached_utilization(1e18, "v100:8", 0)
