"""Proximal policy optimization of a language model.

A step of `fit` learns from one batch of prompts, in this order:

    rollout      by `PolicyTrainer.rollout`, without dropout or gradients
        tokens          (N, T)  prompts, padded at the left, and C sampled tokens each,
                                padding after the first end token
        m               (N, C)  which are learned: those up to the end token, or all
                                (`learn_after_end`)
        log π_old, log π_ref    (N, C)  of sampled token t, by the policy and the frozen
                                reference: logits at t - 1, divided by the temperature
        V_old           (N, C)  of the same positions, by a head on the features
        score           (N,)    the reward of the text; without an end token
                                -`missing_end_penalty`, or the reward less it
    advantages   by `_AdvantagesAndReturns`, all (N, C)
        r_t = -β (log π_old - log π_ref)_t, and the score is added to the last t of m
        δ_t = r_t + γ V_old(t + 1) - V_old(t)
        A_t = δ_t + γ λ A_{t+1}, 0 after the last t;  R_t = A_t + V_old(t)
        A ← (A - mean of A) / deviation of A, of all tokens of the batch
    updates      by `compute_loss`, `num_passes` times over all rows, which are permuted
                 anew and split into `num_minibatches`; ρ = π / π_old
        policy_loss = mean over m of max(-A ρ, -A clip(ρ, 1 - ε, 1 + ε))
        value_loss = ½ mean over m of max((V - R)², (clip(V, V_old ± ε_V) - R)²)
        loss = policy_loss + value_weight · value_loss
               + pretraining_weight · cross-entropy of other texts (PPO-ptx)
    β ← β (1 + clip(KL / target - 1, ±max_error) N / horizon), or fixed; KL is the mean
        over N of Σ_t (log π_old - log π_ref)_t

Where m is False, numbers are 0 even if inputs are NaN. Rewards, advantages and returns
are targets, without a gradient.

Legend: N completions, T tokens of prompt and completion, C sampled tokens, V values.
"""

from collections.abc import Iterable
from typing import Any, Literal

import keras
from keras import ops

from keras_attn.checks.arguments import check_at_least_zero, check_boolean, check_share
from keras_attn.docstrings.descriptions import described_as
from keras_attn.kernels.loop import sequential_scan
from keras_attn.layers import Dense
from keras_attn.losses.masked_means import masked, per_sequence
from keras_attn.losses.policy_gradients import (
    ClipRange,
    check_clip_range,
    ppo_policy_loss,
    ppo_value_loss,
)
from keras_attn.ops.token_probabilities import token_kl
from keras_attn.training.feedback.completions import CompletionSampling
from keras_attn.training.feedback.policy_trainer import (
    KLWeight,
    PolicyTrainer,
    Reference,
    Rollout,
)
from keras_attn.training.feedback.rewards import Reward
from keras_attn.training.feedback.token_scores import of_completions, score_tokens


@described_as(PolicyTrainer)
class PPO(PolicyTrainer):
    """Trains a language model to earn rewards, by proximal policy optimization.

    For each batch of prompts, `fit` samples completions, scores them, and takes
    `num_passes` passes over them. The reward of a token is `-β (log π - log π_ref)`,
    and the last token also gets the score of the completion. Advantages are generalized
    advantage estimates, and are whitened. Dropout is off.

    Compile it with only an optimizer. `fit`, `evaluate` and the callbacks work as in
    any Keras model; a run with `BackupAndResume` that was killed goes on exactly. Save
    the `network`, not the trainer. `fit` logs, as means over the batches of an epoch:

        reward               score - β kl
        score                what the reward returned, less what a missing end costs
        kl                   sum of log π - log π_ref over a completion
        kl_weight            β
        entropy              of the policy, at a token
        length               tokens of a completion, its end included
        share_without_end    completions that have no end token
        loss, policy_loss    see `ppo_policy_loss`
        clip_share, ratio, approximate_kl
        value_loss, value_clip_share    see `ppo_value_loss`

    Args:
        value_model: A model from `token_ids` and `padding_mask` to values (B, T) or (B,
            T, 1), such as of `build_gpt_token_classifier(other_gpt, num_classes=1)`; it
            is trained, too. Default: a head on the last features of the network, whose
            values are 0 at the start.
        discount: γ of `generalized_advantages`.
        gae_lambda: λ of `generalized_advantages`.
        clip_range: ε of `ppo_policy_loss`.
        value_clip_range: ε of `ppo_value_loss`.
        value_weight: Weight of the loss of the values.
        whiten_rewards: Whether the rewards of tokens are divided by their deviation, as
            in OpenAI's code.
        whiten_advantages: Whether advantages get mean 0 and deviation 1.
        **kwargs: `name`, … of a Keras model.

    Attributes:
        network: The policy.
        reference: The reference model.
        kl_weight: β, a variable.
        iteration: Number of batches that were learned, a variable.

    Raises:
        TypeError: If `network`, `reward`, `sampling`, `reference` or `value_model` is
            not as described.
        ValueError: If a number is out of range; if `reference` is missing and the
            network has LoRA weights, or is `"adapters_off"` and it has none; or in a
            `tf.distribute` strategy.

    Example:
        ```python
        from keras_attn import data, models, training

        def reward(prompts, completions):
            return [text.count("o") for text in completions]

        tokenizer = data.CharacterTokenizer.train(["good day"])
        model = models.build_gpt(num_layers=1, hidden_dim=32, vocabulary_size=20)
        sampling = training.CompletionSampling(4, tokenizer.end_token_id)
        trainer = training.PPO(model, reward, sampling, tokenizer=tokenizer)
        trainer.compile(training.AdamW(1e-5))  # `fit` takes a `data.prompt_dataset`.
        ```

    Reference:
        Schulman et al. 2017 (arXiv:1707.06347); for language models: Ziegler et al.
        2019 (arXiv:1909.08593) and their published code; `pretraining`: Ouyang et al.
        2022, equation 2 (arXiv:2203.02155).
    """

    reported = (
        "policy_loss",
        "clip_share",
        "ratio",
        "approximate_kl",
        "value_loss",
        "value_clip_share",
    )

    def __init__(
        self,
        network,
        reward: Reward,
        sampling: CompletionSampling,
        *,
        reference: Reference = None,
        tokenizer: Any = None,
        value_model: keras.Model | None = None,
        kl_weight: KLWeight = 0.05,
        missing_end_penalty: float | None = None,
        missing_end: Literal["replace", "subtract"] = "replace",
        discount: float = 1.0,
        gae_lambda: float = 0.95,
        clip_range: ClipRange = 0.2,
        value_clip_range: ClipRange = 0.2,
        value_weight: float = 0.1,
        whiten_rewards: bool = False,
        whiten_advantages: bool = True,
        num_passes: int = 4,
        num_minibatches: int = 1,
        pretraining: Iterable | None = None,
        pretraining_weight: float = 1.0,
        seed: int = 0,
        **kwargs,
    ):
        super().__init__(
            network,
            reward,
            sampling,
            reference=reference,
            tokenizer=tokenizer,
            kl_weight=kl_weight,
            missing_end_penalty=missing_end_penalty,
            missing_end=missing_end,
            clip_range=clip_range,
            num_passes=num_passes,
            num_minibatches=num_minibatches,
            pretraining=pretraining,
            pretraining_weight=pretraining_weight,
            seed=seed,
            **kwargs,
        )
        check_clip_range("value_clip_range", value_clip_range)
        self.value_clip_range = value_clip_range
        self.value_weight = check_at_least_zero("value_weight", value_weight)
        if value_model is not None and not isinstance(value_model, keras.Model):
            raise TypeError(
                "`value_model` must be a Keras model, or None. "
                f"Received: value_model={value_model!r}"
            )
        self.value_model = value_model
        self._policy: Any = None
        self._head: Any = None
        if value_model is None:
            self._policy = _with_features(network)
            self._head = Dense(
                1, kernel_initializer="zeros", dtype="float32", name="value_head"
            )
            self._head.build(self._policy.output["features"].shape)
        self._advantages_and_returns = _AdvantagesAndReturns(
            discount=check_share("discount", discount),
            gae_lambda=check_share("gae_lambda", gae_lambda),
            whiten_rewards=check_boolean("whiten_rewards", whiten_rewards),
            whiten_advantages=check_boolean("whiten_advantages", whiten_advantages),
        )
        self.built = True  # All models are.

    def call(self, inputs, training=None):
        """Log-probabilities, entropies and values of the sampled tokens, (N, C)."""
        read = {name: inputs[name] for name in ("token_ids", "padding_mask")}
        if self.value_model is None:
            found = self._policy(read, training=False)
            logits, values = found["logits"], self._head(found["features"])
        else:
            logits = self.network(read, training=False)
            values = self.value_model(read, training=False)
        if len(values.shape) == 3:
            values = ops.squeeze(values, -1)
        tokens = self.sampling.max_new_tokens
        scored = score_tokens(
            logits, read["token_ids"], tokens, self.sampling.temperature
        )
        return {**scored, "values": of_completions(values, tokens)}

    def _update_losses(self, rows, predicted):
        mask = rows["is_learned"]
        policy = ppo_policy_loss(
            predicted["log_probabilities"],
            rows["old_log_probabilities"],
            rows["advantages"],
            mask,
            clip_range=self.clip_range,
        )
        value = ppo_value_loss(
            predicted["values"],
            rows["old_values"],
            rows["returns"],
            mask,
            clip_range=self.value_clip_range,
        )
        self._report(
            policy_loss=policy.loss,
            clip_share=policy.clip_share,
            ratio=policy.ratio,
            approximate_kl=policy.approximate_kl,
            value_loss=value.loss,
            value_clip_share=value.clip_share,
        )
        return [policy.loss, self.value_weight * value.loss]

    def _advantages(self, rollout: Rollout):
        found = self._advantages_and_returns.predict_on_batch(
            {
                "log_probabilities": rollout.log_probabilities,
                "reference": rollout.reference,
                "values": rollout.values,
                "scores": rollout.scores,
                "mask": rollout.completions.is_learned,
                "kl_weight": ops.convert_to_numpy(self.kl_weight),
            }
        )
        return {**found, "old_values": rollout.values}

    def _compiled_models(self):
        return [*super()._compiled_models(), self._advantages_and_returns]


class _AdvantagesAndReturns(keras.Model):
    """A and R of a rollout, (N, C), as one compiled function; see the module."""

    def __init__(self, *, discount, gae_lambda, whiten_rewards, whiten_advantages):
        super().__init__(name="advantages_and_returns", dtype="float32")
        self.options = {"discount": discount, "gae_lambda": gae_lambda}
        self.whiten_rewards = whiten_rewards
        self.whiten_advantages = whiten_advantages
        self.built = True

    def call(self, inputs):
        mask = inputs["mask"]
        kl = token_kl(inputs["log_probabilities"], inputs["reference"])
        rewards = token_rewards(inputs["scores"], kl, mask, inputs["kl_weight"])
        if self.whiten_rewards:
            rewards = whiten(rewards, mask, shift_mean=False)
        advantages, returns = generalized_advantages(
            rewards, inputs["values"], mask, **self.options
        )
        if self.whiten_advantages:
            advantages = whiten(advantages, mask)
        return {"advantages": advantages, "returns": returns}


def token_rewards(scores, kl, mask, kl_weight=1.0) -> Any:
    """`r_t = -β kl_t`, and the score of the sequence in addition at its last token.

    Args:
        scores: One per sequence, (N,).
        kl: Of each token, such as `token_kl`, (N, C).
        mask: Tokens that count, (N, C). A sequence without any gets no reward. OpenAI's
            code counts all sampled tokens, so the score is at the last one, even if the
            text ends before.
        kl_weight: β, a number or a scalar.

    Returns:
        (N, C), float32 or wider.

    Raises:
        ValueError: If the shapes do not match.

    Reference:
        Ziegler et al. 2019, equation 2 (arXiv:1909.08593).
    """
    kl, mask = masked("kl", kl, mask)
    scores = per_sequence("scores", scores, kl)
    later = ops.flip(ops.cumsum(ops.flip(ops.cast(mask, "int32"), 1), axis=1), 1)
    is_last = ops.logical_and(mask, ops.equal(later, 1))
    bonus = ops.where(is_last, ops.expand_dims(scores, 1), 0.0)
    return ops.stop_gradient(bonus - ops.cast(kl_weight, kl.dtype) * kl)


def generalized_advantages(
    rewards, values, mask, *, discount: float = 1.0, gae_lambda: float = 0.95
) -> tuple[Any, Any]:
    """Generalized advantage estimation (GAE), and the returns that values learn.

        δ_t = r_t + γ V_{t+1} - V_t
        A_t = δ_t + γ λ A_{t+1}
        R_t = A_t + V_t

    t + 1 is the next token that counts. After the last one V and A are 0.

    Args:
        rewards: r, (N, C).
        values: V, the value before each token, which a value head gives at the position
            before it, (N, C).
        mask: Tokens that count, (N, C).
        discount: γ, from 0 to 1.
        gae_lambda: λ, from 0 to 1.

    Returns:
        A and R, (N, C), float32 or wider.

    Raises:
        ValueError: If the shapes do not match, or γ or λ is out of range.

    Reference:
        Schulman et al. 2015, equation 16 (arXiv:1506.02438).
    """
    check_share("discount", discount)
    check_share("gae_lambda", gae_lambda)
    rewards, mask = masked("rewards", rewards, mask)
    values, _ = masked("values", values, mask)
    rewards, values = map(ops.stop_gradient, (rewards, ops.cast(values, rewards.dtype)))

    # (C, N), from the last token to the first.
    reversed_ = [ops.flip(ops.transpose(x), 0) for x in (rewards, values, mask)]

    def step(index, advantage, next_value):
        reward, value, counts = (x[index] for x in reversed_)
        delta = reward + discount * next_value - value
        new = delta + discount * gae_lambda * advantage
        advantage = ops.where(counts, new, advantage)
        return (advantage, ops.where(counts, value, next_value)), advantage

    none = ops.zeros_like(values[:, 0])
    count = ops.shape(values)[1]
    _, advantages = sequential_scan(step, (none, none), count, values.dtype)
    advantages = ops.transpose(ops.flip(advantages, 0))
    advantages = ops.where(mask, advantages, 0.0)
    return advantages, advantages + values


def whiten(values, mask, *, shift_mean: bool = True, epsilon: float = 1e-8) -> Any:
    """`(x - μ) / sqrt(σ² + ε)` over all numbers that count.

    σ² is the variance of the population, so a single number gives 0 (or itself), not
    NaN.

    Args:
        values: x, (N, C).
        mask: Numbers that count, (N, C).
        shift_mean: Whether the mean becomes 0, as for advantages; or μ is added again,
            as for rewards, whose sign matters.
        epsilon: ε.

    Returns:
        (N, C), float32 or wider.

    Raises:
        ValueError: If the shapes do not match.

    Reference:
        The published code of Ziegler et al. 2019 (arXiv:1909.08593).
    """
    values, mask = masked("values", values, mask)
    count = ops.maximum(ops.sum(ops.cast(mask, values.dtype)), 1.0)
    mean = ops.sum(values) / count
    centered = ops.where(mask, values - mean, 0.0)
    variance = ops.sum(ops.square(centered)) / count
    whitened = centered * ops.rsqrt(variance + epsilon)
    if not shift_mean:
        whitened = ops.where(mask, whitened + mean, 0.0)
    return ops.stop_gradient(whitened)


def _with_features(network: keras.Model) -> keras.Model:
    """A model that also returns the features which the logits are computed from.

    Args:
        network: A functional model to logits, (N, T, vocabulary).

    Returns:
        A model of the same inputs and layers to `logits` and `features` (N, T, width).

    Raises:
        ValueError: If the logits are not the product of features and a matrix.
    """
    tensor = network.output
    while True:
        operation, number, _ = tensor._keras_history
        given = operation._inbound_nodes[number].input_tensors if number >= 0 else []
        given = [x for x in given if len(x.shape) == 3]
        if not given:
            raise ValueError(
                "`network` must compute its logits from features (N, T, width), which "
                "a value head can read; otherwise pass a `value_model`. "
                f"Received: network={network!r}"
            )
        tensor = given[0]
        # Not a bias or a change of dtype, which follows the product.
        if any(len(weight.shape) > 1 for weight in getattr(operation, "weights", ())):
            break
    outputs = {"logits": network.output, "features": tensor}
    return keras.Model(network.input, outputs, name=f"{network.name}_with_features")
