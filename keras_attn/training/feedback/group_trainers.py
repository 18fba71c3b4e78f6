"""RLOO and GRPO: several completions of a prompt are compared, without values.

Legend: N completions, C sampled tokens.
"""

from typing import Any, Literal

from keras import ops

from keras_attn.checks.arguments import check_at_least_zero, check_boolean, check_choice
from keras_attn.docstrings.descriptions import described_as
from keras_attn.losses.policy_gradients import ClipRange, grpo_loss, rloo_loss
from keras_attn.ops.token_probabilities import token_kl
from keras_attn.training.feedback.advantages import (
    grpo_advantages,
    rloo_advantages,
    sequence_rewards,
)
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

    def __init__(self, *args, group_size, **kwargs):
        super().__init__(*args, group_size=group_size, **kwargs)
        if group_size < 2:
            raise ValueError(
                "`group_size` must be at least 2: the completions of a prompt are "
                f"compared. Received: group_size={group_size}"
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
            group_size=group_size,
            missing_end_penalty=missing_end_penalty,
            missing_end=missing_end,
            clip_range=clip_range,
            num_passes=num_passes,
            num_minibatches=num_minibatches,
            seed=seed,
            **kwargs,
        )

    def _targets(self, rollout: Rollout):
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

    def _targets(self, rollout: Rollout):
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
