"""Deep Q-learning of sequences: the targets, and the model that learns them.

Legend: B episodes, T steps, N actions, Q sets of Q-values.
"""

from typing import Any

import keras
from keras import ops

from keras_attn.checks.arguments import check_positive, check_rank, check_share
from keras_attn.kernels.replicas import mean_weights, of_all_replicas


def td_targets(rewards, is_last, next_values, discount):
    """`y_t = r_t + γ V_{t+1}`, and `y_t = r_t` for the last step of an episode.

    Args:
        rewards: r, (B, T).
        is_last: 1 for the step that ended the episode, otherwise 0, (B, T).
        next_values: V, the value of each step by the target network, (B, T, Q). The
            target of step t uses the value of step t + 1.
        discount: γ.

    Returns:
        (B, T, Q). The last of the T steps has the target r_T.
    """
    after = ops.concatenate(
        [next_values[:, 1:], ops.zeros_like(next_values[:, :1])], axis=1
    )
    rewards, is_last = (
        ops.expand_dims(ops.cast(x, after.dtype), -1) for x in (rewards, is_last)
    )
    return rewards + discount * (1.0 - is_last) * after


@keras.saving.register_keras_serializable("keras_attn")
class DeepQ(keras.Model):
    """Trains a model of Q-values on episodes that were played.

    The loss of a step is the loss given to `compile` between `Q(s_t, a_t)` and its
    target `r_t + γ max_a Q⁻(s_{t+1}, a)`, averaged over all real steps. Q⁻ is the
    target network, a copy of the model that is renewed after every `target_every`
    updates. With `double=True` the model chooses the action and the target network
    gives its value: `Q⁻(s_{t+1}, argmax_a Q(s_{t+1}, a))`. A recurrent model reads an
    episode from its first step, so its state never stems from earlier weights.

    Compile with `keras.losses.Huber()`, whose gradient is the difference clipped to
    [-1, 1], as in the papers.

    A model with several sets of Q-values, such as `show_attend_interact`, learns each
    from targets of its own.

    `fit` takes the batches of `PlayEpisodes.dataset` and logs `td_error`, the mean
    absolute difference from the targets, and `q_value`, the mean of `max_a Q`.

    Args:
        network: A model from observations (B, T, …) by name to Q-values (B, T, N), one
            tensor or a dictionary. Q-values of step t must not depend on later steps.
        heads: The outputs that learn, for a model with a dictionary of outputs.
            Default: the outputs whose names end in `_q_values`, or else `q_values`.
        discount: γ, from 0 to 1.
        double: Whether the model chooses the actions of the targets, as above.
        target_every: Updates between copies of the model.
        **kwargs: `name`, … of a Keras model.

    Raises:
        TypeError: If `network` is not a functional Keras model.
        ValueError: If `heads` are not outputs of `network`, Q-values do not have 3
            axes, or a number is out of range.

    Example:
        ```python
        from keras_attn import data, models, training

        player = training.PlayEpisodes(data.SocialScene(image_size=64), episodes=4)
        network = models.build_show_attend_interact(
            image_size=64, hidden_dims=(8, 16), kernel_sizes=(8, 4), strides=(4, 2)
        )
        agent = training.DeepQ(network, discount=0.9)
        agent.compile("adam", "huber")  # Then `fit(batches, callbacks=[player])`.
        batches = player.dataset(batch_size=4, steps=50)
        ```

    Reference:
        Mnih et al. 2015, "Human-level control through deep reinforcement learning",
        Nature 518; Hausknecht and Stone 2015, "Deep Recurrent Q-Learning for Partially
        Observable MDPs" (arXiv:1507.06527); double: van Hasselt et al. 2016
        (arXiv:1509.06461).
    """

    def __init__(
        self,
        network,
        *,
        heads=None,
        discount=0.99,
        double=False,
        target_every=1000,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not isinstance(network, keras.Model) or not hasattr(network, "output"):
            raise TypeError(
                "`network` must be a functional Keras model. "
                f"Received: network={network!r}"
            )
        self.network = network
        self.heads = _check_heads(network.output, heads)
        self.discount = check_share("discount", discount)
        self.double = double
        self.target_every = check_positive("target_every", target_every)
        self.target = keras.models.clone_model(network)
        self.target.set_weights(network.get_weights())
        self.target.trainable = False
        self.num_updates = self.add_weight(
            (), "zeros", "int32", trainable=False, name="updates"
        )
        self._td_error = keras.metrics.Mean(name="td_error")
        self._q_value = keras.metrics.Mean(name="q_value")
        self.built = True  # Both networks are built.

    def call(self, inputs, training=None):
        """The outputs of the network."""
        return self.network(inputs, training=training)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """The mean loss of the real steps; see the class.

        Args:
            x: Observations (B, T, …) by name.
            y: A dictionary of `actions`, `rewards`, `is_last` and `is_real`, (B, T).
            y_pred: What the network returned.
            sample_weight: Not used: `is_real` says which steps count.
            training: Whether the networks are trained.

        Returns:
            A scalar.
        """
        truth: dict[str, Any] = {} if y is None else y
        if training:
            self._copy_if_due()
        values = self._values(y_pred)  # (B, T, Q, N)
        targets = self.targets(x, truth, values)
        one_hot = ops.one_hot(truth["actions"], values.shape[-1], dtype=values.dtype)
        taken = ops.sum(values * ops.expand_dims(one_hot, 2), axis=-1)
        is_real = ops.cast(truth["is_real"], values.dtype)
        # Makes the mean over all steps equal to the mean over the real ones.
        weights = mean_weights(is_real)
        for metric, numbers in (
            (self._td_error, ops.abs(targets - taken)),
            (self._q_value, ops.max(values, axis=-1)),
        ):
            metric.update_state(ops.mean(numbers, axis=-1), sample_weight=is_real)
        loss = super().compute_loss(x, targets, taken, weights, training)
        return of_all_replicas(loss)

    def targets(self, x, y, values):
        """The targets of every step, (B, T, Q), without a gradient.

        Args:
            x: As in `compute_loss`.
            y: As in `compute_loss`.
            values: The Q-values of the network, (B, T, Q, N).
        """
        later = self._values(self.target(x, training=False))
        chosen = ops.argmax(values if self.double else later, axis=-1)
        one_hot = ops.one_hot(chosen, later.shape[-1], dtype=later.dtype)
        next_values = ops.sum(later * one_hot, axis=-1)
        return ops.stop_gradient(
            td_targets(y["rewards"], y["is_last"], next_values, self.discount)
        )

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """The loss and what `compute_loss` has measured."""
        return self.get_metrics_result()

    def get_config(self):
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "network": keras.saving.serialize_keras_object(self.network),
            "heads": self.heads,
            "discount": self.discount,
            "double": self.double,
            "target_every": self.target_every,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Creates a trainer from the result of `get_config`."""
        config = dict(config)
        network = keras.saving.deserialize_keras_object(
            config.pop("network"), custom_objects=custom_objects
        )
        return cls(network, **config)

    def _values(self, outputs):
        """The Q-values of all heads, (B, T, Q, N), float32."""
        heads = [outputs[name] for name in self.heads] if self.heads else [outputs]
        return ops.stack([ops.cast(head, "float32") for head in heads], axis=2)

    def _copy_if_due(self):
        """Copies the network to the target before every `target_every`-th update."""
        is_due = ops.equal(self.num_updates % self.target_every, 0)
        for old, new in zip(self.target.variables, self.network.variables, strict=True):
            latest = ops.stop_gradient(ops.convert_to_tensor(new))
            old.assign(ops.where(is_due, latest, ops.convert_to_tensor(old)))
        self.num_updates.assign_add(1)


def _check_heads(output, heads) -> list[str]:
    """Names of the outputs that learn; none for a model with a single output."""
    if isinstance(output, list | tuple):
        raise ValueError(
            "`network` must return one tensor, or a dictionary of them. "
            f"Received: a {type(output).__name__} of {len(output)} outputs"
        )
    names = list(output) if isinstance(output, dict) else []
    if heads is None and names:
        heads = [name for name in names if name.endswith("_q_values")]
        heads = heads or ["q_values"]
    is_text = isinstance(heads, str)
    found = [] if is_text else list(heads or [])
    if is_text or bool(found) != bool(names) or not set(found) <= set(names):
        raise ValueError(
            "`heads` must be a list of names of the outputs of `network`, and None for "
            f"a network with one output. Received: heads={heads}, outputs {names}"
        )
    values = {name: output[name] for name in found} or {"network.output": output}
    for name, tensor in values.items():
        check_rank(name, tensor, 3, "(batch, steps, actions)")
    return found
