"""Deep Q-learning: targets by hand, a task that takes memory, and what is refused."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from backend import skip_module_without_tensorflow
from model_cases import numpy
from training.test_backup import Kill, KilledError

from keras_attn import models
from keras_attn.data import SocialScene
from keras_attn.training import (
    BackupAndResume,
    DeepQ,
    GreedyPolicy,
    PlayEpisodes,
    play_episodes,
)

pytestmark = pytest.mark.compiled

skip_module_without_tensorflow("it needs the TensorFlow backend")

B, T, D, N = 5, 3, 2, 3
# A tiny `show_attend_interact`.
ROBOT: Any = {
    "image_size": 9,
    "hidden_dims": (3,),
    "kernel_sizes": (4,),
    "strides": (3,),
    "attention_dim": 5,
    "hidden_dim": 7,
}


class Remember:
    """Which of two signs was shown at first? Right at the last step: 1.

    Action 2 ends the episode at once, with the reward 0.1.
    """

    num_actions, num_steps = N, T
    observations = {"x": ((D,), "float32")}

    def reset(self, episodes):
        """Shows the sign."""
        streams = [np.random.default_rng(int(number)) for number in episodes]
        self.sign = np.array([rng.integers(2) for rng in streams])
        self.step_number = 0
        return {"x": np.eye(D, dtype="float32")[self.sign]}

    def step(self, actions):
        """Shows nothing more."""
        self.step_number += 1
        is_end = self.step_number == T
        leaves = actions == 2
        rewards = np.where(leaves, 0.1, is_end * (actions == self.sign))
        hidden = np.zeros((len(actions), D), "float32")
        return {"x": hidden}, rewards.astype("float32"), leaves | is_end


def linear(seed=0):
    """Q-values of the current observation alone."""
    keras.utils.set_random_seed(seed)
    x: Any = keras.Input((None, D), name="x")
    return keras.Model({"x": x}, keras.layers.Dense(N)(x))


def recurrent(seed=0):
    """Q-values of everything seen."""
    keras.utils.set_random_seed(seed)
    x: Any = keras.Input((None, D), name="x")
    states = keras.layers.LSTM(8, return_sequences=True)(x)
    return keras.Model({"x": x}, keras.layers.Dense(N)(states))


def batch(seed=0):
    """Observations and labels, one episode of which is over after a step."""
    rng = np.random.default_rng(seed)
    is_real = np.ones((B, T), "uint8")
    is_last = np.zeros((B, T), "uint8")
    is_last[:, -1] = 1
    is_last[1], is_real[1] = [1, 0, 0], [1, 0, 0]
    labels = {
        "actions": rng.integers(0, N, (B, T)).astype("int32"),
        "rewards": rng.normal(size=(B, T)).astype("float32") * is_real,
        "is_last": is_last,
        "is_real": is_real,
    }
    return {"x": rng.normal(size=(B, T, D)).astype("float32")}, labels


@pytest.mark.parametrize("double", [False, True])
def test_loss_and_targets_are_those_of_the_papers(double):
    agent = DeepQ(linear(), discount=0.7, double=double)
    agent.target.set_weights(linear(seed=1).get_weights())
    agent.compile("sgd", keras.losses.Huber())
    x, y = batch()
    values, later = numpy(agent.network(x)), numpy(agent.target(x))
    targets = np.zeros((B, T))
    losses = []
    for row in range(B):
        for step in range(T):
            targets[row, step] = y["rewards"][row, step]
            if not y["is_last"][row, step] and step + 1 < T:
                chosen = (values if double else later)[row, step + 1].argmax()
                targets[row, step] += 0.7 * later[row, step + 1, chosen]
            taken = values[row, step, y["actions"][row, step]]
            error = abs(targets[row, step] - taken)
            if y["is_real"][row, step]:
                losses.append(0.5 * error**2 if error <= 1 else error - 0.5)
    got = numpy(agent.targets(x, y, values[:, :, None]))[..., 0]
    np.testing.assert_allclose(got, targets, rtol=0, atol=1e-5)
    # Both ways to choose an action, and both parts of Huber's loss, are needed.
    assert (values.argmax(-1) != later.argmax(-1)).any()
    assert len(losses) == 13
    loss = agent.compute_loss(x, y, agent(x), training=False)
    np.testing.assert_allclose(float(loss), np.mean(losses), rtol=1e-5)


def test_the_target_is_copied_after_every_few_updates(tmp_path):
    agent = DeepQ(linear(), discount=0.5, target_every=2)
    agent.compile(keras.optimizers.SGD(0.5), keras.losses.Huber())
    x, y = batch()
    seen = [agent.network.get_weights()]
    for update in range(5):
        agent.train_on_batch(x, y)
        seen.append(agent.network.get_weights())
        # Updates 0 and 1 aim at the first weights, 2 and 3 at those after two.
        expected = seen[2 * (update // 2)]
        for old, weights in zip(agent.target.get_weights(), expected, strict=True):
            np.testing.assert_array_equal(old, weights)
    assert np.abs(seen[5][0] - seen[4][0]).max() > 1e-4
    assert {id(w) for w in agent.trainable_weights} == {
        id(w) for w in agent.network.trainable_weights
    }
    agent.save(tmp_path / "agent.keras")
    loaded = keras.saving.load_model(tmp_path / "agent.keras")
    for name in ("heads", "discount", "double", "target_every"):
        assert getattr(loaded, name) == getattr(agent, name)
    np.testing.assert_array_equal(loaded(x), agent(x))
    assert loaded.train_on_batch(x, y) == pytest.approx(agent.train_on_batch(x, y))
    np.testing.assert_array_equal(loaded(x), agent(x))


def test_several_sets_of_values_learn_from_targets_of_their_own():
    x: Any = keras.Input((None, D), name="x")
    heads = {name: keras.layers.Dense(N)(x) for name in ("a_q_values", "b_q_values")}
    fused = keras.layers.Average()(list(heads.values()))
    network = keras.Model({"x": x}, {"q_values": fused, **heads})
    agent = DeepQ(network, discount=0.7)
    assert agent.heads == ["a_q_values", "b_q_values"]
    agent.compile("sgd", keras.losses.Huber())
    inputs, y = batch()
    total = float(agent.compute_loss(inputs, y, agent(inputs), training=False))
    parts = []
    for name in agent.heads:
        one = DeepQ(keras.Model({"x": x}, heads[name]), discount=0.7)
        one.compile("sgd", keras.losses.Huber())
        parts.append(float(one.compute_loss(inputs, y, one(inputs), training=False)))
    assert parts[0] != parts[1]
    assert total == pytest.approx(np.mean(parts), rel=1e-5)
    only = DeepQ(network, heads=["q_values"])
    assert only.heads == ["q_values"]


def learn(folder=None, kill=None, epochs=4, **options):
    """Plays and learns; the history, the weights, the episodes and the agent."""
    agent = DeepQ(recurrent(), discount=0.9, target_every=20, **options)
    agent.compile(keras.optimizers.Adam(0.03), keras.losses.Huber(), jit_compile=False)
    player = PlayEpisodes(
        Remember(),
        capacity=90,
        episodes=16,
        first_episodes=48,
        epsilon_epochs=2,
        validation_episodes=24,
    )
    callbacks: list = [player, *([kill] if kill else [])]
    if folder is not None:
        callbacks.append(BackupAndResume(folder, callbacks=[player]))
    dataset = player.dataset(batch_size=32, steps=15)
    options = {"epochs": epochs, "callbacks": callbacks, "verbose": 0}
    history = agent.fit(dataset, shuffle=False, **options).history
    return history, agent.get_weights(), player.memory, agent


@pytest.fixture(scope="module")
def learned():
    """A run that was never stopped."""
    return learn()


def test_a_task_that_takes_memory_is_learned(learned):
    history, _, memory, agent = learned
    # Chance is 0.25 with random actions, 0.5 without memory.
    assert history["reward"][0] < 0.4
    assert history["val_reward"][-1] == 1
    assert history["epsilon"] == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert history["loss"][-1] < history["loss"][0]
    assert history["q_value"][-1] > 0.5
    assert [len(array) for array in memory] == 5 * [90]
    # Without a state between the steps the same is not learned.
    blind = DeepQ(linear(), discount=0.9, target_every=20)
    policy = GreedyPolicy(blind.network, T)
    played = play_episodes(Remember(), policy, range(40))
    assert played["rewards"].sum(1).mean() < 0.8
    policy = GreedyPolicy(agent.network, T)
    played = play_episodes(Remember(), policy, range(40))
    assert played["rewards"].sum(1).mean() == 1


def test_a_killed_run_continues_as_if_it_had_not_been(learned, tmp_path):
    expected, weights, memory, _ = learned
    for at in ((1, "end"), (2, 7)):
        with pytest.raises(KilledError):
            learn(tmp_path, Kill(*at))
    history, again, episodes, _ = learn(tmp_path)
    assert history == expected
    for one, other in zip(again, weights, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(episodes, memory, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_robot_learns_in_half_precision(set_policy):
    set_policy("mixed_bfloat16")
    network = models.create("show_attend_interact", **ROBOT)
    agent = DeepQ(network, discount=0.5, double=True)
    optimizer = keras.optimizers.Adam(0.01)
    agent.compile(optimizer, keras.losses.Huber(), run_eagerly=True)
    player = PlayEpisodes(
        SocialScene(image_size=9, num_steps=2), episodes=3, validation_episodes=2
    )
    before = agent.network.get_weights()
    options = {"shuffle": False, "callbacks": [player], "verbose": 0}
    history = agent.fit(player.dataset(2, 2), **options).history
    assert np.isfinite([values[0] for values in history.values()]).all()
    moved = [
        np.abs(new - old).max() > 0
        for new, old in zip(agent.network.get_weights(), before, strict=True)
    ]
    # The query of attention has no gradient where all units of the map are negative.
    assert np.mean(moved) > 0.7


def test_xla_computes_the_same():
    results = []
    for jit in (False, True):
        agent = DeepQ(linear(), discount=0.7, double=True, target_every=2)
        optimizer = keras.optimizers.SGD(0.5)
        agent.compile(optimizer, keras.losses.Huber(), jit_compile=jit)
        x, y = batch(seed=3)
        losses = [agent.train_on_batch(x, y)[0] for _ in range(3)]
        results.append([*losses, *agent.get_weights()])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_episodes_end_and_explore():
    def leave(observations, step):
        return np.where(np.arange(4) < 2, 2, 0)

    seen = []
    played = play_episodes(
        Remember(), leave, range(4), watch=lambda: {"count": np.full(4, len(seen) + 1)}
    )
    np.testing.assert_array_equal(played["is_real"][:2], [[1, 0, 0]] * 2)
    np.testing.assert_array_equal(played["is_real"][2:], 1)
    np.testing.assert_array_equal(played["is_last"].sum(1), 1)
    np.testing.assert_allclose(played["rewards"][:2], [[0.1, 0, 0]] * 2)
    assert not played["x"][:2, 1:].any() and played["count"].shape == (4, T)
    options = {"epsilon": 1.0, "seed": [3, 1]}
    one = play_episodes(Remember(), leave, range(4), **options)
    for name, values in play_episodes(Remember(), leave, range(4), **options).items():
        np.testing.assert_array_equal(values, one[name])
    assert len(np.unique(one["actions"])) == N


def never(observations, step):
    """A policy that is not asked."""
    raise AssertionError(step)


def pooled():
    """Q-values of a whole episode."""
    x: Any = keras.Input((None, D), name="x")
    return keras.Model(x, keras.layers.GlobalMaxPooling1D()(x))


def listed():
    """A model with a list of outputs."""
    x: Any = keras.Input((None, D), name="x")
    return keras.Model(x, [x, x])


def agent_of(network, **options):
    return lambda: DeepQ(network() if callable(network) else network, **options)


@pytest.mark.parametrize(
    "make, error, message",
    [
        (agent_of("bert"), TypeError, "`network` must be a functional Keras model. R"),
        (agent_of(linear, heads=["a"]), ValueError, r"`heads` must be .*heads=\['a'\]"),
        (agent_of(linear, heads="a"), ValueError, r"`heads` must be a list .*heads=a,"),
        (agent_of(pooled), ValueError, r"`network.output` must have 3 axes, .batch, s"),
        (agent_of(listed), ValueError, "`network` must return one .*a list of 2 outpu"),
        (agent_of(linear, discount=1.5), ValueError, "`discount` must be a number fr"),
        (agent_of(linear, target_every=0), ValueError, "`target_every` must be a pos"),
        (lambda: PlayEpisodes(0, capacity=0), ValueError, "`capacity` must be a pos"),
        (lambda: PlayEpisodes(0, episodes=0), ValueError, "`episodes` must be a pos"),
        (lambda: PlayEpisodes(0, first_episodes=0), ValueError, "`first_episodes` mu"),
        (lambda: PlayEpisodes(0, epsilon=0.1), ValueError, "`epsilon` must be two nu"),
        (lambda: PlayEpisodes(0, epsilon=(2, 0)), ValueError, "`epsilon` must be a n"),
        (lambda: PlayEpisodes(0, seed=-1), ValueError, "`seed` must be a non-negat"),
        (lambda: PlayEpisodes(0, epsilon_epochs=0), ValueError, "`epsilon_epochs` m"),
        (lambda: PlayEpisodes(0, validation_episodes=-1), ValueError, "`validation_"),
        (lambda: PlayEpisodes(0).dataset(0, 1), ValueError, "`batch_size` must be a p"),
        (lambda: PlayEpisodes(0).dataset(1, 0), ValueError, "`steps` must be a positi"),
        (lambda: play_episodes(0, never, [1], epsilon=2), ValueError, "`epsilon` must"),
        (lambda: GreedyPolicy(linear(), 0), ValueError, "`num_steps` must be a posit"),
    ],
)
def test_wrong_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_batches_need_episodes():
    batches = PlayEpisodes(Remember()).dataset(2, 2)
    with pytest.raises(tf.errors.OpError, match="`PlayEpisodes` has no episodes yet"):
        next(iter(batches))


def test_episodes_of_many_epochs_take_one_step_model():
    network = models.create("show_attend_interact", **ROBOT)
    agent = DeepQ(network)
    agent.compile("sgd", keras.losses.Huber(), run_eagerly=True)
    scene = SocialScene(image_size=ROBOT["image_size"], num_steps=2)
    player = PlayEpisodes(scene, episodes=2, validation_episodes=2)
    player.set_model(agent)
    counts = []
    for epoch in range(3):
        player.on_epoch_begin(epoch)
        player.on_epoch_end(epoch)
        counts.append(sum(len(layer._inbound_nodes) for layer in network.layers))
    assert counts == 3 * counts[:1]


def test_only_a_deep_q_can_play():
    player, network = PlayEpisodes(Remember()), linear()
    player.set_model(network)
    with pytest.raises(ValueError, match="needs `DeepQ.fit`, .*Received: model=<Funct"):
        player.on_epoch_begin(0)
