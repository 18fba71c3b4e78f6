"""Episodes: playing them, keeping the latest, and making batches to learn from.

An environment plays B episodes at once:

    num_actions, num_steps       N, and T, the maximum number of steps of an episode
    observations                 {name: (shape, dtype)} of one step
    reset(episodes)              numbers (B,) -> observations (B, …) by name
    step(actions)                (B,) -> observations, rewards (B,), is_last (B,)

An episode must depend only on its number and the actions. After its last step it may
return any observation until all have ended. `data.SocialScene` is one.

Legend: B episodes, T steps, N actions.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_attn.checks.arguments import check_positive, check_share, is_whole

Policy = Callable[[dict[str, np.ndarray], int], np.ndarray]
_LABELS = ("actions", "rewards", "is_last", "is_real")
_VALIDATION = 1 << 40  # Number of the first validation episode.


def play_episodes(
    environment: Any,
    policy: Policy,
    episodes: Any,
    *,
    epsilon: float = 0.0,
    seed: Any = 0,
    watch: Callable[[], Mapping[str, np.ndarray]] | None = None,
) -> dict[str, np.ndarray]:
    """Plays episodes; each action is random with probability ε.

    Args:
        environment: As above.
        policy: From observations (B, …) by name and the number of the step to actions
            (B,). `GreedyPolicy` is the policy of a network.
        episodes: Their numbers, (B,).
        epsilon: ε, from 0 to 1.
        seed: Seed of the random actions, one integer or several.
        watch: Called before every action; its arrays (B, …) by name are added to the
            result.

    Returns:
        Arrays by name: the observations, (B, T, …), `actions` int32, `rewards`
        float32, `is_last` and `is_real` bool, all (B, T), and what `watch` returned.
        After the last step of an episode, all are 0.

    Raises:
        ValueError: If `epsilon` is out of range.
    """
    check_share("epsilon", epsilon)
    rng = np.random.default_rng(seed)
    batch, steps = len(episodes), environment.num_steps
    explores = rng.random((steps, batch)) < epsilon
    drawn = rng.integers(0, environment.num_actions, (steps, batch))
    observations = environment.reset(episodes)
    is_real = np.ones(batch, bool)
    played: dict[str, list] = {}
    for step in range(steps):
        actions = np.where(explores[step], drawn[step], policy(observations, step))
        watched = {} if watch is None else watch()
        now = {**observations, **watched, "actions": actions.astype("int32")}
        observations, rewards, is_last = environment.step(actions)
        now |= {"rewards": rewards.astype("float32"), "is_last": is_last}
        now["is_real"] = np.ones(batch, bool)
        for name, values in now.items():
            shown = is_real.reshape(-1, *[1] * (values.ndim - 1))
            played.setdefault(name, []).append(
                np.where(shown, values, np.zeros((), values.dtype))
            )
        is_real = is_real & ~is_last
    return {name: np.stack(values, axis=1) for name, values in played.items()}


class GreedyPolicy:
    """`argmax_a Q(s_t, a)` of a network, for `play_episodes`.

    A network with a `step_model`, such as `show_attend_interact`, is run step by step.
    Any other network reads the episode so far at every step, padded with zeros to T.

    Args:
        network: A model from the observations of an episode to Q-values (B, T, N); of
            several outputs, `q_values` is used.
        num_steps: T.

    Example:
        ```python
        from keras_attn import data, models, training

        scene = data.SocialScene(image_size=64)
        network = models.build_show_attend_interact(
            image_size=64, hidden_dims=(8, 16), kernel_sizes=(8, 4), strides=(4, 2)
        )
        policy = training.GreedyPolicy(network, scene.num_steps)
        episodes = training.play_episodes(scene, policy, range(2))
        ```
    """

    def __init__(self, network, num_steps):
        self.network = network
        self.num_steps = check_positive("num_steps", num_steps)
        self._step_model: Any = None
        if hasattr(network, "step_model"):
            self._step_model = network.step_model()
        self._state: dict[str, Any] = {}

    def __call__(self, observations, step):
        """Actions (B,) for the observations of a step; step 0 starts anew."""
        inputs = {name: as_float(value) for name, value in observations.items()}
        if self._step_model is None:
            values = self._read_all(inputs, step)[:, step]
        else:
            values = self._read_step(inputs, step)
        return np.argmax(ops.convert_to_numpy(values), axis=-1)

    def _read_step(self, inputs, step):
        if step == 0:
            batch = len(next(iter(inputs.values())))
            zeros = self.network.initial_state(batch)
            self._state = {name: ops.convert_to_tensor(x) for name, x in zeros.items()}
        outputs = self._step_model({**inputs, **self._state}, training=False)
        self._state = {name: outputs[name] for name in self._state}
        return outputs["q_values"]

    def _read_all(self, inputs, step):
        if step == 0:
            self._state = {
                name: np.zeros(
                    (len(value), self.num_steps, *value.shape[1:]), "float32"
                )
                for name, value in inputs.items()
            }
        for name, value in inputs.items():
            self._state[name][:, step] = ops.convert_to_numpy(value)
        outputs = self.network(self._state, training=False)
        return outputs["q_values"] if isinstance(outputs, dict) else outputs


class PlayEpisodes(keras.callbacks.Callback):
    """Plays episodes before every epoch, and keeps the latest to learn from.

    ε falls linearly from the first to the second value of `epsilon` within
    `epsilon_epochs` epochs. The logs of an epoch get `epsilon`; `reward`, the mean sum
    of rewards of the episodes that were played; and `val_reward`, the same for greedy
    validation episodes, which are the same after every epoch.

    It is the replay memory: pass it to `BackupAndResume(…, callbacks=[player])`, which
    also saves the episodes, so that a killed run continues as if it had not been
    interrupted.

    Args:
        environment: See the module.
        capacity: Episodes that are kept.
        episodes: Episodes played before each epoch.
        first_episodes: Episodes played before the first epoch. Default: `episodes`.
        epsilon: ε in the first epoch, and its final value.
        epsilon_epochs: Epochs until ε reaches its final value.
        validation_episodes: Greedy episodes after each epoch; 0 for none.
        seed: Seed of the exploration and of the batches.

    Raises:
        ValueError: If a number is out of range, or the trained model is not a `DeepQ`.

    Example:
        ```python
        from keras_attn import data, training

        player = training.PlayEpisodes(data.SocialScene(), epsilon_epochs=10)
        backup = training.BackupAndResume("runs/greet/backup", callbacks=[player])
        batches = player.dataset(batch_size=16, steps=50)
        ```

    Reference:
        Mnih et al. 2015, Nature 518: replay and ε-greedy exploration.
    """

    def __init__(
        self,
        environment,
        *,
        capacity=1000,
        episodes=32,
        first_episodes=None,
        epsilon=(1.0, 0.1),
        epsilon_epochs=10,
        validation_episodes=32,
        seed=0,
    ):
        super().__init__()
        self.environment = environment
        self.capacity = check_positive("capacity", capacity)
        self.episodes = check_positive("episodes", episodes)
        first = episodes if first_episodes is None else first_episodes
        self.first_episodes = check_positive("first_episodes", first)
        if not isinstance(epsilon, list | tuple) or len(epsilon) != 2:
            raise ValueError(
                "`epsilon` must be two numbers, at the start and at the end. "
                f"Received: epsilon={epsilon!r}"
            )
        self.epsilon = [check_share("epsilon", value) for value in epsilon]
        self.epsilon_epochs = check_positive("epsilon_epochs", epsilon_epochs)
        self.validation_episodes = validation_episodes
        if validation_episodes:
            check_positive("validation_episodes", validation_episodes)
        if not is_whole(seed) or seed < 0:
            raise ValueError(
                f"`seed` must be a non-negative integer. Received: seed={seed!r}"
            )
        self.seed = seed
        # A list of arrays, as `BackupAndResume` saves it: `_specs` names them.
        self.memory: list[np.ndarray] = []
        self._policy: GreedyPolicy | None = None
        self._epoch = 0
        self._logs: dict[str, float] = {}

    def dataset(self, batch_size: int, steps: int) -> tf.data.Dataset:
        """Batches of kept episodes for `DeepQ.fit`, drawn with replacement.

        Args:
            batch_size: Episodes per batch.
            steps: Batches per epoch.

        Returns:
            Pairs of observations (B, T, …) by name, bytes as numbers from -1 to 1, and
            a dictionary of `actions`, `rewards`, `is_last` and `is_real`, (B, T).

        Raises:
            ValueError: If `batch_size` or `steps` is not positive; or, while the
                dataset is iterated, if no episode has been played.
        """
        check_positive("batch_size", batch_size)
        check_positive("steps", steps)
        specs = self._specs()

        def batches():
            if not self.memory:
                raise ValueError(
                    "`PlayEpisodes` has no episodes yet: it plays while `DeepQ.fit` "
                    "runs with `callbacks=[player]`. Received: a batch was requested "
                    "before that"
                )
            rng = np.random.default_rng([self.seed, 1, self._epoch])
            for _ in range(steps):
                rows = rng.integers(0, len(self.memory[0]), batch_size)
                yield tuple(array[rows] for array in self.memory)

        def arrange(*arrays):
            named = dict(zip(specs, arrays, strict=True))
            labels = {name: named.pop(name) for name in _LABELS}
            return {name: as_float(value) for name, value in named.items()}, labels

        signature = tuple(
            tf.TensorSpec((batch_size, *shape), dtype)
            for shape, dtype in specs.values()
        )
        dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
        return dataset.map(arrange).prefetch(1)

    def on_epoch_begin(self, epoch, logs=None):
        """Plays the episodes of the epoch."""
        if not hasattr(self.model, "network"):
            raise ValueError(
                "`PlayEpisodes` needs `DeepQ.fit`, whose network plays. "
                f"Received: model={self.model!r}"
            )
        self._epoch = epoch
        count, first = self.first_episodes, 0
        if epoch > 0:
            first = self.first_episodes + (epoch - 1) * self.episodes
            count = self.episodes
        epsilon = self.epsilon_at(epoch)
        played = self._play(range(first, first + count), epsilon)
        arrays = [
            played[name].astype(dtype) for name, (_, dtype) in self._specs().items()
        ]
        kept = self.memory or [array[:0] for array in arrays]
        self.memory = [
            np.concatenate([old, new])[-self.capacity :]
            for old, new in zip(kept, arrays, strict=True)
        ]
        self._logs = {"epsilon": epsilon, "reward": _mean_reward(played)}

    def on_epoch_end(self, epoch, logs=None):
        """Plays the validation episodes, and adds to the logs."""
        if self.validation_episodes:
            numbers = range(_VALIDATION, _VALIDATION + self.validation_episodes)
            self._logs["val_reward"] = _mean_reward(self._play(numbers, 0.0))
        if logs is not None:
            logs.update(self._logs)

    def epsilon_at(self, epoch: int) -> float:
        """ε of an epoch.

        Args:
            epoch: Its number, from 0.
        """
        start, end = self.epsilon
        return start + (end - start) * min(1.0, epoch / self.epsilon_epochs)

    def _play(self, numbers, epsilon):
        network: Any = self.model.network
        if self._policy is None or self._policy.network is not network:
            # Once: each step model stays in memory as long as the layers it shares.
            self._policy = GreedyPolicy(network, self.environment.num_steps)
        seed = [self.seed, 2, self._epoch]
        return play_episodes(
            self.environment, self._policy, list(numbers), epsilon=epsilon, seed=seed
        )

    def _specs(self) -> dict[str, tuple]:
        """Shape (T, …) and dtype of every kept array, by name."""
        steps = self.environment.num_steps
        specs = {
            name: ((steps, *shape), dtype)
            for name, (shape, dtype) in self.environment.observations.items()
        }
        labels = zip(_LABELS, ("int32", "float32", "uint8", "uint8"), strict=True)
        return specs | {name: ((steps,), dtype) for name, dtype in labels}


def as_float(values):
    """Bytes as float32 from -1 to 1; other observations as they are, in float32."""
    if values.dtype in (np.uint8, tf.uint8):
        return ops.cast(values, "float32") / 127.5 - 1.0
    return ops.cast(values, "float32")


def _mean_reward(played) -> float:
    """The mean sum of rewards of an episode."""
    return float(played["rewards"].sum(1).mean())
