"""Our losses against TRL's figures, which `trl_references.py` writes."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras import ops
from model_cases import numpy

from keras_attn.losses import RankingLoss, dpo_loss, grpo_loss, rloo_loss
from keras_attn.ops import token_entropies, token_kl, token_log_probabilities
from keras_attn.training import grpo_advantages, rloo_advantages, sequence_rewards

GROUP = 3
with np.load(Path(__file__).parent / "trl.npz") as _file:
    GIVEN = dict(_file)
FIGURES = {
    name.removeprefix("figure_"): GIVEN.pop(name)
    for name in list(GIVEN)
    if name.startswith("figure_")
}


def sums(logits):
    """Log-probabilities of the completions, chosen and rejected in turn."""
    found = token_log_probabilities(logits[:, :-1], GIVEN["token_ids"][:, 1:])
    found = ops.sum(found * GIVEN["completion_mask"][:, 1:], axis=1)
    return found[0::2], found[1::2]


def dpo(kind, smoothing, beta):
    """The loss of each pair."""
    lengths = GIVEN["completion_mask"].sum(1)
    given: dict[str, Any] = {}
    if kind == "ipo":
        given = {"chosen_lengths": lengths[0::2], "rejected_lengths": lengths[1::2]}
    return dpo_loss(
        *sums(GIVEN["logits"]),
        *sums(GIVEN["reference_logits"]),
        beta=float(beta),
        kind=kind,
        label_smoothing=float(smoothing),
        **given,
    )


def reward(has_margin, center):
    """The loss of a reward model on pairs, by its class."""
    # With ratings of the margin and 0 the margin is their difference.
    has_margin = has_margin == "True"
    better = GIVEN["margins"] if has_margin else np.ones_like(GIVEN["margins"])
    ratings = np.stack([better, np.zeros_like(better)], axis=1).reshape(-1)
    loss = RankingLoss(2, margin=float(has_margin), center_weight=float(center))
    return loss(ratings, GIVEN["scores"].reshape(-1, 1))


def grpo(average, kl_weight, below, above):
    """The loss of a batch."""
    return grpo_loss(
        GIVEN["log_probabilities"],
        GIVEN["old_log_probabilities"],
        FIGURES["grpo_advantages"],
        GIVEN["mask"],
        reference=GIVEN["reference_log_probabilities"],
        kl_weight=float(kl_weight),
        clip_range=(float(below), float(above)),
        average=average,
    ).loss


def rloo():
    """The loss of a batch."""
    return rloo_loss(
        GIVEN["log_probabilities"],
        GIVEN["old_log_probabilities"],
        FIGURES["rloo_advantages"],
        GIVEN["mask"],
    ).loss


def advantages_of_rloo():
    """With the KL in the reward."""
    kl = token_kl(GIVEN["old_log_probabilities"], GIVEN["reference_log_probabilities"])
    rewards = sequence_rewards(GIVEN["rewards"], kl, GIVEN["mask"], 0.05)
    return rloo_advantages(rewards, GROUP)


def ours(name):
    """What we compute for a figure."""
    alone = {
        "token_log_probabilities": lambda: token_log_probabilities(
            GIVEN["logits"][:, :-1], GIVEN["token_ids"][:, 1:], 0.7
        ),
        "token_entropies": lambda: token_entropies(GIVEN["logits"]),
        "grpo_advantages": lambda: grpo_advantages(GIVEN["rewards"], GROUP),
        "rloo_advantages": advantages_of_rloo,
        "rloo": rloo,
    }
    if name in alone:
        return alone[name]()
    kind, *case = name.split("_")
    return {"dpo": dpo, "reward": reward, "grpo": grpo}[kind](*case)


@pytest.mark.parametrize("name", FIGURES)
def test_agrees_with_trl(name):
    found = numpy(ours(name))
    assert found.shape == FIGURES[name].shape
    np.testing.assert_allclose(found, FIGURES[name], rtol=2e-5, atol=1e-6)


def test_the_figures_are_of_every_kind():
    kinds = {re.sub(r"_[\d.]+$", "", name) for name in FIGURES}
    assert {f"dpo_{kind}_0.0" for kind in ("sigmoid", "ipo", "hinge", "robust")} < kinds
    assert "dpo_robust_0.2" in kinds and len(FIGURES) == 23
    # Both sides of what is clipped, and a group of equal rewards.
    ratios = np.exp(GIVEN["log_probabilities"] - GIVEN["old_log_probabilities"])
    assert (ratios[GIVEN["mask"]] > 1.3).any() and (ratios[GIVEN["mask"]] < 0.8).any()
    assert len(set(GIVEN["rewards"][:GROUP])) == 1


@pytest.mark.parity
def test_the_figures_are_trls():
    pytest.importorskip("torch", reason="PyTorch is not installed; `pip install torch`")
    if importlib.util.find_spec("trl") is None:
        pytest.skip("TRL is not on the path; see `trl_references.py`")
    from parity.trl_references import make_figures, make_inputs

    inputs = make_inputs()
    assert set(inputs) == set(GIVEN)
    for name, array in inputs.items():
        np.testing.assert_array_equal(GIVEN[name], array, err_msg=name)
    found = make_figures(inputs)
    assert set(found) == set(FIGURES)
    for name, figure in found.items():
        np.testing.assert_allclose(
            FIGURES[name], figure, rtol=1e-6, atol=1e-6, err_msg=name
        )
