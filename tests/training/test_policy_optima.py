"""PPO, RLOO and GRPO reach optima that are known."""

import keras
import numpy as np
import pytest
from policy_cases import END, Numbers, bigram, probabilities

from keras_attn.training import GRPO, PPO, RLOO, CompletionSampling

pytestmark = pytest.mark.compiled

REWARDS = np.array([0.0, 0.5, 1.0, -0.5, 0.3])
BETA = 0.5
STEPS = 25
every_trainer = pytest.mark.parametrize("name", ["ppo", "rloo", "grpo"])


@pytest.fixture(scope="module")
def toy():
    """A policy of single tokens, and trainers that share it.

    RLOO runs in XLA, on JAX all of them do.
    """
    network = bigram(5)
    sampling = CompletionSampling(1, END)

    def reward(prompts, completions):
        return [REWARDS[int(token)] for token in completions]

    def make(cls, **options):
        network.set_weights(start)
        trainer = cls(
            network,
            reward,
            sampling,
            tokenizer=Numbers(),
            kl_weight=BETA,
            num_passes=2,
            **options,
        )
        rate = keras.optimizers.schedules.PolynomialDecay(0.02, 2 * STEPS, 5e-4)
        trainer.compile(
            keras.optimizers.Adam(rate),
            jit_compile=cls is RLOO or keras.backend.backend() == "jax",
        )
        return trainer, 512 // trainer.group_size

    start = network.get_weights()
    made = {
        "ppo": make(PPO),
        "rloo": make(RLOO, group_size=8),
        "grpo": make(GRPO, group_size=8, scale=False),
    }
    clean = {}

    def run(name, seed=0, kl_weight=BETA, steps=STEPS, passes=2):
        """Trains from the start; returns the probabilities and the history."""
        trainer, rows = made[name]
        network.trainable = True
        if name not in clean:
            trainer.optimizer.build(trainer.trainable_variables)
            variables = [*trainer.variables, *trainer.optimizer.variables]
            clean[name] = [(x, keras.ops.convert_to_numpy(x)) for x in variables]
        for variable, value in clean[name]:
            variable.assign(value)
        network.set_weights(start)
        trainer.seed = seed
        trainer.num_passes = passes
        trainer.kl_weight.assign(kl_weight)
        prompts = np.ones((rows, 1), "int32")
        data = [{"token_ids": prompts, "padding_mask": prompts}]
        history = trainer.fit(data, epochs=steps, verbose=0).history
        return probabilities(network, [1])[0], history

    network.set_weights(start)
    return probabilities(network, [1])[0], run


def optimum(reference, name):
    """The probabilities that earn most."""
    if name != "grpo":
        powers = reference * np.exp(REWARDS / BETA)
        return powers / powers.sum()
    low, high = REWARDS.max(), REWARDS.max() + 10
    for _ in range(99):
        middle = (low + high) / 2
        if (BETA * reference / (middle - REWARDS)).sum() > 1:
            low = middle
        else:
            high = middle
    return BETA * reference / (high - REWARDS)


@pytest.mark.parametrize("seed", range(3))
@every_trainer
def test_the_optimum_is_reached(toy, name, seed):
    reference, run = toy
    wanted = optimum(reference, name)
    found, history = run(name, seed)
    distance = np.abs(found - wanted).sum() / 2
    assert distance < 0.04 < 0.3 < np.abs(reference - wanted).sum() / 2
    # What is logged is the KL of the distributions, and the mean reward.
    kl = (found * np.log(found / reference)).sum()
    assert history["kl"][-1] == pytest.approx(kl, abs=0.12)
    assert history["score"][-1] == pytest.approx(found @ REWARDS, abs=0.08)
    entropy = -(found * np.log(found)).sum()
    assert history["entropy"][-1] == pytest.approx(entropy, abs=0.08)
    for logs in zip(*(history[x] for x in ("reward", "score", "kl")), strict=True):
        assert logs[0] == pytest.approx(logs[1] - BETA * logs[2], abs=1e-5)
    assert history["length"] == [1.0] * STEPS


@every_trainer
def test_the_first_update_is_of_the_policy_that_sampled(toy, name):
    _, run = toy
    _, history = run(name, steps=2, passes=1)
    assert history["kl"][0] == pytest.approx(0, abs=1e-6)
    assert history["ratio"] == pytest.approx([1, 1], abs=1e-6)
    assert history["approximate_kl"] == pytest.approx([0, 0], abs=1e-10)
    assert history["clip_share"] == [0, 0]
    assert abs(history["kl"][1]) > 1e-4


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="Keras' Adam takes larger steps there in rows of a table that repeat",
)
@every_trainer
def test_without_a_kl_the_policy_collapses(toy, name):
    _, run = toy
    found, history = run(name, kl_weight=0.0)
    assert found[REWARDS.argmax()] > 0.97
    assert history["entropy"][-1] < 0.2 < 1 < history["entropy"][0]


@every_trainer
def test_a_large_weight_of_the_kl_holds_the_policy(toy, name):
    """At the rate that reaches the optimum; its KL there is above 0.1."""
    reference, run = toy
    found, _ = run(name, kl_weight=100.0)
    wanted = optimum(reference, name)
    assert (wanted * np.log(wanted / reference)).sum() > 0.1
    assert (found * np.log(found / reference)).sum() < 0.005
