"""RLOO and GRPO: several completions of a prompt are compared, without values.

A step differs from PPO's in the advantages, one per completion, and in the loss. Over
the tokens that are learned, with s the score of a completion:

    RLOO    r = s - β Σ_t (log π_old - log π_ref),  A = r - mean of the others' r
            ρ = Π_t π / π_old
            loss = mean over N of max(-A ρ, -A clip(ρ, 1 - ε, 1 + ε))
    GRPO    A = (s - mean of the group's s) / deviation of the group's s
            ρ = π / π_old of each token
            loss = mean over N of the mean over t of
                   max(-A ρ, -A clip(ρ, 1 - ε, 1 + ε)) + β k3

Legend: N completions, the G of a prompt one after another, C sampled tokens.
"""

from typing import Any, Literal

from keras import ops

from keras_attn.checks.arguments import (
    check_at_least_zero,
    check_boolean,
    check_choice,
    check_positive,
    check_rank,
    check_several,
)
from keras_attn.checks.inputs import check_finite
from keras_attn.docstrings.descriptions import described_as
from keras_attn.kernels.precision import at_least_float32
from keras_attn.losses.masked_means import masked, per_sequence
from keras_attn.losses.policy_gradients import ClipRange, grpo_loss, rloo_loss
from keras_attn.ops.token_probabilities import token_kl
from keras_attn.training.feedback.completions import CompletionSampling
from keras_attn.training.feedback.policy_trainer import (
    KLWeight,
    PolicyTrainer,
    Reference,
    Rollout,
)
from keras_attn.training.feedback.rewards import Reward
from keras_attn.training.feedback.token_scores import score_tokens


class _GroupTrainer(PolicyTrainer):
    """A trainer whose policy has no values."""

    reported = ("clip_share", "ratio", "approximate_kl")

    def __init__(
        self,
        network,
        reward: Reward,
        sampling: CompletionSampling,
        *,
        reference: Reference = None,
        tokenizer: Any = None,
        kl_weight: KLWeight = 0.05,
        group_size: int = 4,
        missing_end_penalty: float | None = None,
        missing_end: Literal["replace", "subtract"] = "replace",
        clip_range: ClipRange = 0.2,
        num_passes: int = 1,
        num_minibatches: int = 1,
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
            group_size=check_several("group_size", group_size),
            missing_end_penalty=missing_end_penalty,
            missing_end=missing_end,
            clip_range=clip_range,
            num_passes=num_passes,
            num_minibatches=num_minibatches,
            seed=seed,
            **kwargs,
        )
        self.built = True  # The network is.

    def call(self, inputs, training=None):
        """Log-probabilities and entropies of the sampled tokens, (N, C)."""
        read = {name: inputs[name] for name in ("token_ids", "padding_mask")}
        logits = self.network(read, training=False)
        sampling = self.sampling
        return score_tokens(
            logits, read["token_ids"], sampling.max_new_tokens, sampling.temperature
        )

    def _update_losses(self, rows, predicted):
        found = self._policy_loss(
            rows,
            predicted["log_probabilities"],
            rows["old_log_probabilities"],
            rows["advantages"],
            rows["is_learned"],
        )
        self._report(**{name: getattr(found, name) for name in self.reported})
        return [found.loss]

    def _policy_loss(self, rows, *numbers):
        raise NotImplementedError


@described_as(PolicyTrainer)
class RLOO(_GroupTrainer):
    """Trains a language model to earn rewards, by REINFORCE leave-one-out.

    The reward of a completion is its score less `β Σ_t (log π - log π_ref)`; its
    advantage is the difference from the mean reward of the other completions of its
    prompt. `fit`, `evaluate`, the callbacks and the logs are as for `PPO`, without
    values.

    Args:
        clip_range: ε of `rloo_loss`, for the ratio of a whole completion.
        **kwargs: `name`, … of a Keras model.

    Raises:
        TypeError: As `PPO`.
        ValueError: As `PPO`; or if `group_size` is less than 2.

    Reference:
        Ahmadian et al. 2024 (arXiv:2402.14740).
    """

    def _advantages(self, rollout: Rollout):
        kl = token_kl(rollout.log_probabilities, rollout.reference)
        rewards = sequence_rewards(
            rollout.scores, kl, rollout.completions.is_learned, self.kl_weight
        )
        advantages = rloo_advantages(rewards, self.group_size)
        return {"advantages": ops.convert_to_numpy(advantages)}

    def _policy_loss(self, rows, *numbers):
        return rloo_loss(*numbers, clip_range=self.clip_range)


@described_as(PolicyTrainer)
class GRPO(_GroupTrainer):
    """Trains a language model to earn rewards, by group relative policy optimization.

    The advantage of a completion is its score less the mean of its group, the
    completions of its prompt, divided by the group's deviation. The KL is part of the
    loss, as k3. `fit`, `evaluate`, the callbacks and the logs are as for `PPO`, without
    values.

    The gradient of k3 over sampled tokens is the gradient of KL(π_ref ‖ π), not of the
    KL that is logged, so the optimum differs from PPO's and RLOO's, `π_ref exp(r / β)`:
    of single tokens and without the division it is `π = β π_ref / (λ - r)`, with λ such
    that the sum is 1.

    Args:
        kl_weight: β, a number.
        scale: Whether advantages are divided by the group's deviation; see
            `grpo_advantages`.
        average: `"sequence"` or `"token"`; see `grpo_loss`.
        clip_range: ε of `grpo_loss`.
        **kwargs: `name`, … of a Keras model.

    Raises:
        TypeError: As `PPO`.
        ValueError: As `PPO`; or if `group_size` is less than 2.

    Reference:
        Shao et al. 2024, section 4.1 (arXiv:2402.03300).
    """

    def __init__(
        self,
        network,
        reward: Reward,
        sampling: CompletionSampling,
        *,
        reference: Reference = None,
        tokenizer: Any = None,
        kl_weight: float = 0.04,
        group_size: int = 8,
        missing_end_penalty: float | None = None,
        missing_end: Literal["replace", "subtract"] = "replace",
        scale: bool = True,
        average: Literal["sequence", "token"] = "sequence",
        clip_range: ClipRange = 0.2,
        num_passes: int = 1,
        num_minibatches: int = 1,
        seed: int = 0,
        **kwargs,
    ):
        super().__init__(
            network,
            reward,
            sampling,
            reference=reference,
            tokenizer=tokenizer,
            kl_weight=check_at_least_zero("kl_weight", kl_weight),
            group_size=group_size,
            missing_end_penalty=missing_end_penalty,
            missing_end=missing_end,
            clip_range=clip_range,
            num_passes=num_passes,
            num_minibatches=num_minibatches,
            seed=seed,
            **kwargs,
        )
        check_choice("average", average, ("sequence", "token"))
        self.scale = check_boolean("scale", scale)
        self.average: Any = average
        # Without a penalty nothing that overflows is multiplied by 0.
        self._has_penalty = kl_weight > 0

    def _advantages(self, rollout: Rollout):
        advantages = grpo_advantages(rollout.scores, self.group_size, scale=self.scale)
        return {
            "advantages": ops.convert_to_numpy(advantages),
            "reference": rollout.reference,
        }

    def _policy_loss(self, rows, *numbers):
        return grpo_loss(
            *numbers,
            reference=rows["reference"],
            kl_weight=self.kl_weight.value if self._has_penalty else 0.0,
            clip_range=self.clip_range,
            average=self.average,
        )


def sequence_rewards(scores, kl, mask, kl_weight=1.0) -> Any:
    """`score - β Σ_t kl_t`: the reward of a whole sequence, for RLOO.

    Args:
        scores: One per sequence, (N,).
        kl: Of each token, such as `token_kl`, (N, C).
        mask: Tokens that count, (N, C).
        kl_weight: β, a number or a scalar.

    Returns:
        (N,), float32 or wider.

    Raises:
        ValueError: If the shapes do not match.

    Reference:
        Ahmadian et al. 2024, equation 3 (arXiv:2402.14740).
    """
    kl, _ = masked("kl", kl, mask)
    scores = per_sequence("scores", scores, kl)
    penalty = ops.cast(kl_weight, kl.dtype) * ops.sum(kl, axis=1)
    return ops.stop_gradient(scores - penalty)


def grpo_advantages(
    rewards, group_size: int, *, scale: bool = True, epsilon: float = 1e-4
) -> Any:
    """`(r - mean of the group) / (standard deviation of the group + ε)`.

    The deviation is a sample's, with G - 1, as in TRL. A group of equal rewards has
    advantages of exactly 0; in a graph, one with a reward that is not finite has
    advantages of NaN.

    Args:
        rewards: (N,), the G answers to a prompt one after another.
        group_size: G, at least 2.
        scale: Whether to divide by the deviation. False is Dr. GRPO, which gives easy
            and hard prompts no larger weight.
        epsilon: ε.

    Returns:
        (N,), float32 or wider.

    Raises:
        ValueError: If `group_size` is less than 2, or does not divide the number of
            rewards where that is known; or if a known reward is not finite.

    Reference:
        Shao et al. 2024, section 4.1.2 (arXiv:2402.03300); without the division: Liu et
        al. 2025 (arXiv:2503.20783).
    """
    rewards = at_least_float32(ops.convert_to_tensor(rewards))
    check_rank("rewards", rewards, 1, "(prompts * group_size,)")
    count = rewards.shape[0]
    if check_positive("group_size", group_size) < 2 or (count or 0) % group_size:
        raise ValueError(
            "`group_size` must be at least 2 and divide the number of rewards. "
            f"Received: group_size={group_size}, rewards.shape={(count,)}"
        )
    check_finite("rewards", rewards)
    groups = ops.reshape(rewards, (-1, group_size))
    centered = groups - ops.mean(groups, axis=1, keepdims=True)
    # The mean of equal numbers may differ from them by a rounding error. NaN equals
    # nothing, while its maximum is another number where XLA compiles.
    are_equal = ops.all(ops.equal(groups, groups[:, :1]), axis=1, keepdims=True)
    are_equal = ops.logical_and(are_equal, ops.isfinite(groups[:, :1]))
    centered = ops.where(are_equal, 0.0, centered)
    if scale:
        squares = ops.sum(ops.square(centered), axis=1, keepdims=True)
        centered = centered / (ops.sqrt(squares / (group_size - 1)) + epsilon)
    return ops.stop_gradient(ops.reshape(centered, (-1,)))


def rloo_advantages(rewards, group_size: int) -> Any:
    """REINFORCE leave-one-out: `r - mean of the other rewards of the group`.

    A group of equal rewards has advantages of exactly 0; in a graph, one with a reward
    that is not finite has advantages of NaN.

    Args:
        rewards: (N,), the G answers to a prompt one after another.
        group_size: G, at least 2.

    Returns:
        (N,), float32 or wider.

    Raises:
        ValueError: If `group_size` is less than 2, or does not divide the number of
            rewards where that is known; or if a known reward is not finite.

    Reference:
        Ahmadian et al. 2024, equation 7 (arXiv:2402.14740).
    """
    # r - (Σ - r) / (G - 1) = (r - Σ / G) G / (G - 1)
    centered = grpo_advantages(rewards, group_size, scale=False)
    return centered * (group_size / (group_size - 1))
