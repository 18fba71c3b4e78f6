"""Rewards of tokens from scores, and advantages from rewards.

A mask (B, T) says which tokens count, on either side of a row's padding: True or 1 for
the tokens of the completion. Results are 0 elsewhere, also where the inputs are NaN,
and have no gradient: they are targets.

Legend: B sequences, T tokens, G answers to one prompt.
"""

from typing import Any

from keras import ops

from keras_attn.checks.arguments import check_positive, check_rank, check_share
from keras_attn.checks.inputs import check_finite
from keras_attn.kernels.loop import sequential_scan
from keras_attn.kernels.precision import at_least_float32
from keras_attn.losses.masked_means import masked, per_sequence


def token_rewards(scores, kl, mask, kl_weight=1.0) -> Any:
    """`r_t = -β kl_t`, and the score of the sequence in addition at its last token.

    Args:
        scores: One per sequence, (B,).
        kl: Of each token, such as `token_kl`, (B, T).
        mask: Tokens that count, (B, T). A sequence without any gets no reward. OpenAI's
            code counts all sampled tokens, so the score is at the last one, even if the
            text ends before.
        kl_weight: β, a number or a scalar.

    Returns:
        (B, T), float32 or wider.

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


def sequence_rewards(scores, kl, mask, kl_weight=1.0) -> Any:
    """`score - β Σ_t kl_t`: the reward of a whole sequence, for RLOO.

    Args:
        scores: One per sequence, (B,).
        kl: Of each token, such as `token_kl`, (B, T).
        mask: Tokens that count, (B, T).
        kl_weight: β, a number or a scalar.

    Returns:
        (B,), float32 or wider.

    Raises:
        ValueError: If the shapes do not match.

    Reference:
        Ahmadian et al. 2024, equation 3 (arXiv:2402.14740).
    """
    kl, _ = masked("kl", kl, mask)
    scores = per_sequence("scores", scores, kl)
    penalty = ops.cast(kl_weight, kl.dtype) * ops.sum(kl, axis=1)
    return ops.stop_gradient(scores - penalty)


def generalized_advantages(
    rewards, values, mask, *, discount: float = 1.0, gae_lambda: float = 0.95
) -> tuple[Any, Any]:
    """Generalized advantage estimation (GAE), and the returns that values learn.

        δ_t = r_t + γ V_{t+1} - V_t
        A_t = δ_t + γ λ A_{t+1}
        R_t = A_t + V_t

    t + 1 is the next token that counts. After the last one V and A are 0.

    Args:
        rewards: r, (B, T).
        values: V, the value before each token, which a value head gives at the position
            before it, (B, T).
        mask: Tokens that count, (B, T).
        discount: γ, from 0 to 1.
        gae_lambda: λ, from 0 to 1.

    Returns:
        A and R, (B, T), float32 or wider.

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

    # (T, B), from the last token to the first.
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
        values: x, (B, T).
        mask: Numbers that count, (B, T).
        shift_mean: Whether the mean becomes 0, as for advantages; or μ is added again,
            as for rewards, whose sign matters.
        epsilon: ε.

    Returns:
        (B, T), float32 or wider.

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


def grpo_advantages(
    rewards, group_size: int, *, scale: bool = True, epsilon: float = 1e-4
) -> Any:
    """`(r - mean of the group) / (standard deviation of the group + ε)`.

    The deviation is a sample's, with G - 1, as in TRL. A group of equal rewards has
    advantages of exactly 0; in a graph, one with a reward that is not finite has
    advantages of NaN.

    Args:
        rewards: (N * G,), the G answers to a prompt one after another.
        group_size: G, at least 2.
        scale: Whether to divide by the deviation. False is Dr. GRPO, which gives easy
            and hard prompts no larger weight.
        epsilon: ε.

    Returns:
        (N * G,), float32 or wider.

    Raises:
        ValueError: If `group_size` is less than 2, or does not divide the number of
            rewards where that is known; or if a known reward is not finite.

    Reference:
        Shao et al. 2024, section 4.1.2 (arXiv:2402.03300); without the division: Liu et
        al. 2025 (arXiv:2503.20783).
    """
    groups = _groups(rewards, group_size)
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
        rewards: (N * G,), the G answers to a prompt one after another.
        group_size: G, at least 2.

    Returns:
        (N * G,), float32 or wider.

    Raises:
        ValueError: If `group_size` is less than 2, or does not divide the number of
            rewards where that is known; or if a known reward is not finite.

    Reference:
        Ahmadian et al. 2024, equation 7 (arXiv:2402.14740).
    """
    # r - (Σ - r) / (G - 1) = (r - Σ / G) G / (G - 1)
    centered = grpo_advantages(rewards, group_size, scale=False)
    return centered * (group_size / (group_size - 1))


def _groups(rewards, group_size):
    """Rewards by group, (N, G)."""
    rewards = at_least_float32(ops.convert_to_tensor(rewards))
    check_rank("rewards", rewards, 1, "(prompts * group_size,)")
    count = rewards.shape[0]
    if check_positive("group_size", group_size) < 2 or (count or 0) % group_size:
        raise ValueError(
            "`group_size` must be at least 2 and divide the number of rewards. "
            f"Received: group_size={group_size}, rewards.shape={(count,)}"
        )
    check_finite("rewards", rewards)
    return ops.reshape(rewards, (-1, group_size))
