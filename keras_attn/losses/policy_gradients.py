"""The losses of PPO, GRPO and RLOO on completions that were sampled before.

They take log-probabilities of the sampled tokens by the policy that learns and, without
a gradient, by the policy that sampled them: the same numbers before the first update. A
mask (B, T) says which tokens count; what is elsewhere has no influence, NaN included.

Legend: B sequences, T tokens.
"""

import numbers
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from keras import ops

from keras_attn.checks.arguments import check_above_zero, check_choice
from keras_attn.losses.masked_means import masked, masked_mean, per_sequence
from keras_attn.ops.token_probabilities import token_kl

# How far below and above 1 a ratio may be; a number for both.
ClipRange = float | Sequence[float]


class PolicyLoss(NamedTuple):
    """The loss of a policy, and what is reported beside it; all are scalars.

    Attributes:
        loss: The only one with a gradient.
        clip_share: Share of the ratios that clipping leaves without a gradient.
        ratio: Mean of π / π_old; 1 before the first update.
        approximate_kl: Mean over the tokens of `(log π - log π_old)² / 2`.
        reference_kl: Mean over the tokens of k3 to the reference; 0 without one.
    """

    loss: Any
    clip_share: Any
    ratio: Any
    approximate_kl: Any
    reference_kl: Any


class ValueLoss(NamedTuple):
    """The loss of a value function, and what is reported beside it; both are scalars.

    Attributes:
        loss: With a gradient.
        clip_share: Share of the values that clipping leaves without a gradient.
    """

    loss: Any
    clip_share: Any


def ppo_policy_loss(
    log_probabilities,
    old_log_probabilities,
    advantages,
    mask,
    *,
    clip_range: ClipRange = 0.2,
) -> PolicyLoss:
    """The mean over the tokens of `max(-A ρ, -A clip(ρ, 1 - ε, 1 + ε))`, ρ = π / π_old.

    Args:
        log_probabilities: log π of the sampled tokens, (B, T).
        old_log_probabilities: log π_old of them, (B, T).
        advantages: A, (B, T).
        mask: Tokens that count, (B, T).
        clip_range: ε, a number above 0; or two of them, below and above 1.

    Returns:
        A `PolicyLoss`.

    Raises:
        ValueError: If the shapes do not match, or `clip_range` is out of range.

    Reference:
        Schulman et al. 2017, equation 7 (arXiv:1707.06347).
    """
    difference, mask = _log_ratio(log_probabilities, old_log_probabilities, mask)
    advantages, _ = masked("advantages", ops.stop_gradient(advantages), mask)
    losses, ratio, is_clipped = _clipped(difference, advantages, clip_range)
    loss = masked_mean(losses, mask)
    return _reported(loss, ratio, is_clipped, mask, difference, mask)


def ppo_value_loss(
    values, old_values, returns, mask, *, clip_range: ClipRange = 0.2
) -> ValueLoss:
    """Half the mean of `max((V - R)², (clip(V, V_old - ε, V_old + ε) - R)²)`.

    Args:
        values: V, (B, T).
        old_values: V_old, the values when the completions were sampled, (B, T).
        returns: R, (B, T), as of `generalized_advantages`.
        mask: Tokens that count, (B, T).
        clip_range: ε, a number above 0; or two of them, below and above.

    Returns:
        A `ValueLoss`. OpenAI adds it to the loss of the policy with a weight of 0.1.

    Raises:
        ValueError: If the shapes do not match, or `clip_range` is out of range.

    Reference:
        The published code of Ziegler et al. 2019 (arXiv:1909.08593).
    """
    below, above = check_clip_range("clip_range", clip_range)
    values, mask = masked("values", values, mask)
    old_values, _ = masked("old_values", ops.stop_gradient(old_values), mask)
    returns, _ = masked("returns", ops.stop_gradient(returns), mask)
    clipped = ops.clip(values, old_values - below, old_values + above)
    # XLA clips to bounds of NaN as if there were none.
    clipped = ops.where(ops.isnan(old_values), old_values, clipped)
    free, limited = ops.square(values - returns), ops.square(clipped - returns)
    share = masked_mean(ops.cast(limited > free, values.dtype), mask)
    loss = 0.5 * masked_mean(_larger(free, limited), mask)
    return ValueLoss(loss, ops.stop_gradient(share))


def grpo_loss(
    log_probabilities,
    old_log_probabilities,
    advantages,
    mask,
    *,
    reference=None,
    kl_weight=0.0,
    clip_range: ClipRange = 0.2,
    average: Literal["sequence", "token"] = "sequence",
) -> PolicyLoss:
    """PPO's clipped loss with one advantage per sequence, plus `β k3` of each token.

    Args:
        log_probabilities: log π of the sampled tokens, (B, T).
        old_log_probabilities: log π_old of them, (B, T).
        advantages: One per sequence, (B,), as of `grpo_advantages`.
        mask: Tokens that count, (B, T).
        reference: log π_ref of the tokens, (B, T). Needed unless `kl_weight` is the
            number 0; then the KL is only reported.
        kl_weight: β, a number or a scalar.
        clip_range: ε, a number above 0; or two of them, below and above 1.
        average: `"sequence"` takes the mean over the tokens of each sequence, then over
            the sequences, as in the paper. `"token"` takes the mean over all tokens of
            the batch, so that a token counts the same in a long sequence.

    Returns:
        A `PolicyLoss`.

    Raises:
        ValueError: If the shapes do not match, `clip_range` or `average` is not as
            described, or the reference is missing.

    Reference:
        Shao et al. 2024, equations 3 and 4 (arXiv:2402.03300); `"token"`: Yu et al.
        2025, section 3.3 (arXiv:2503.14476).
    """
    check_choice("average", average, ("sequence", "token"))
    has_penalty = not isinstance(kl_weight, int | float) or kl_weight != 0
    if reference is None and has_penalty:
        raise ValueError(
            "`reference` must be given if `kl_weight` is not 0. "
            f"Received: reference=None, kl_weight={kl_weight}"
        )
    difference, mask = _log_ratio(log_probabilities, old_log_probabilities, mask)
    advantages = per_sequence("advantages", ops.stop_gradient(advantages), difference)
    losses, ratio, is_clipped = _clipped(
        difference, ops.expand_dims(advantages, 1), clip_range
    )
    kl = ops.zeros_like(losses)
    if reference is not None:
        own, _ = masked("log_probabilities", log_probabilities, mask)
        reference, _ = masked("reference", ops.stop_gradient(reference), mask)
        kl = token_kl(own, reference, "k3")
        losses = losses + kl_weight * kl if has_penalty else losses
    if average == "sequence":
        loss = ops.mean(masked_mean(losses, mask, axis=1))
    else:
        loss = masked_mean(losses, mask)
    return _reported(loss, ratio, is_clipped, mask, difference, mask, kl)


def rloo_loss(
    log_probabilities,
    old_log_probabilities,
    advantages,
    mask,
    *,
    clip_range: ClipRange = 0.2,
) -> PolicyLoss:
    """The mean over the sequences of PPO's clipped loss, ρ the ratio of a sequence.

    A completion is one action: `ρ = Π_t π / π_old`. Before the first update the
    gradient is REINFORCE's, `-A ∇ Σ_t log π`. The KL is part of the rewards; see
    `sequence_rewards`.

    Args:
        log_probabilities: log π of the sampled tokens, (B, T).
        old_log_probabilities: log π_old of them, (B, T).
        advantages: A, (B,), as of `rloo_advantages`.
        mask: Tokens that count, (B, T).
        clip_range: ε, a number above 0; or two of them, below and above 1.

    Returns:
        A `PolicyLoss`, whose ratios are of sequences.

    Raises:
        ValueError: If the shapes do not match, or `clip_range` is out of range.

    Reference:
        Ahmadian et al. 2024 (arXiv:2402.14740); the ratio as in TRL.
    """
    difference, mask = _log_ratio(log_probabilities, old_log_probabilities, mask)
    advantages = per_sequence("advantages", ops.stop_gradient(advantages), difference)
    losses, ratio, is_clipped = _clipped(
        ops.sum(difference, axis=1), advantages, clip_range
    )
    sequences = ops.ones_like(ratio)
    loss = ops.mean(losses)
    return _reported(loss, ratio, is_clipped, sequences, difference, mask)


def _log_ratio(log_probabilities, old_log_probabilities, mask):
    """`log π - log π_old`, 0 where the mask is, and the mask as booleans."""
    new, mask = masked("log_probabilities", log_probabilities, mask)
    old = ops.stop_gradient(old_log_probabilities)
    old, _ = masked("old_log_probabilities", old, mask)
    return new - ops.cast(old, new.dtype), mask


def _clipped(difference, advantages, clip_range):
    """The losses, the ratios, and where clipping leaves no gradient."""
    below, above = check_clip_range("clip_range", clip_range)
    ratio = ops.exp(difference)
    advantages = ops.cast(advantages, ratio.dtype)
    free = -advantages * ratio
    limited = -advantages * ops.clip(ratio, 1.0 - below, 1.0 + above)
    return _larger(free, limited), ratio, limited > free


def _larger(first, second):
    """The maximum; NaN if one is, where XLA may return the other one."""
    larger = ops.where(second > first, second, first)
    return ops.where(ops.isnan(second), second, larger)


def _reported(loss, ratio, is_clipped, counts, difference, mask, kl=None):
    """A `PolicyLoss`: means of ratios over `counts`, of tokens over `mask`."""
    reported = (
        masked_mean(ops.cast(is_clipped, loss.dtype), counts),
        masked_mean(ratio, counts),
        0.5 * masked_mean(ops.square(difference), mask),
        masked_mean(ops.zeros_like(difference) if kl is None else kl, mask),
    )
    return PolicyLoss(loss, *map(ops.stop_gradient, reported))


def check_clip_range(name: str, clip_range) -> list[float]:
    """Checks a clip range, and returns its lower and upper width.

    Args:
        name: Name of the argument, for the message.
        clip_range: A number above 0, or two of them, below and above.

    Raises:
        ValueError: If it is something else.
    """
    is_number = isinstance(clip_range, numbers.Real)
    given: Any = [clip_range] * 2 if is_number else clip_range
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise ValueError(
            f"`{name}` must be a number above 0, or two of them, below and above. "
            f"Received: {name}={clip_range!r}"
        )
    return [check_above_zero(name, value) for value in given]
