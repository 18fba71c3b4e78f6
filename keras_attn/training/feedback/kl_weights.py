"""The weight of the KL penalty: constant, or adapted to a target."""

import math

from keras_attn.checks.arguments import (
    check_above_zero,
    check_at_least_zero,
    check_fraction,
    check_positive,
)


class FixedKL:
    """A weight of the KL penalty that stays as it is.

    Args:
        weight: β; 0 for no penalty.

    Attributes:
        weight: β.

    Raises:
        ValueError: If `weight` is negative or not finite.
    """

    def __init__(self, weight: float = 0.05):
        self.weight = check_at_least_zero("weight", weight)

    def update(self, kl: float, num_episodes: int) -> float:
        """Returns the weight, which does not change.

        Args:
            kl: As of `AdaptiveKL.update`.
            num_episodes: As of `AdaptiveKL.update`.
        """
        _check_kl(kl)
        check_positive("num_episodes", num_episodes)
        return self.weight


class AdaptiveKL:
    """A weight of the KL penalty that keeps the KL of an episode near a target.

        error = clip(KL / target - 1, -max_error, max_error)
        β ← β · (1 + error · episodes / horizon)

    Its whole state is `weight`.

    Args:
        weight: β at the start.
        target: The KL of an episode to aim at, in nats: the sum over its tokens.
        horizon: Episodes in which a constant error changes β by about its own share.
        max_error: What the relative error is clipped to.

    Attributes:
        weight: β.

    Raises:
        ValueError: If a number is out of range.

    Example:
        ```python
        import numpy as np
        from keras_attn import training

        beta = training.AdaptiveKL(0.15, target=6.0)
        kl = np.array([[0.5, 1.0, 0.25], [3.0, 2.0, 4.0]])  # Of each token.
        rewards = -beta.weight * kl
        beta.update(float(kl.sum(1).mean()), len(kl))
        beta.weight  # Smaller, for 5.4 is below the target.
        ```

    Reference:
        Ziegler et al. 2019, section 2.2 (arXiv:1909.08593), and its published code.
    """

    def __init__(
        self,
        weight: float = 0.15,
        *,
        target: float = 6.0,
        horizon: int = 10_000,
        max_error: float = 0.2,
    ):
        self.weight = check_at_least_zero("weight", weight)
        self.target = check_above_zero("target", target)
        self.horizon = check_positive("horizon", horizon)
        self.max_error = check_fraction("max_error", max_error)

    def update(self, kl: float, num_episodes: int) -> float:
        """Adapts the weight to the KL of a batch of episodes.

        Args:
            kl: Mean over the episodes of the sum of k1 over their tokens, in nats.
            num_episodes: Episodes of the batch. So many that β could become negative
                are an error.

        Returns:
            The new weight.

        Raises:
            ValueError: If `kl` is not finite, which leaves the weight unchanged, or
                `num_episodes` is not positive or is at least `horizon / max_error`.
        """
        _check_kl(kl)
        check_positive("num_episodes", num_episodes)
        if num_episodes * self.max_error >= self.horizon:
            raise ValueError(
                "`num_episodes` must be less than `horizon / max_error`, or the weight "
                f"could become negative. Received: num_episodes={num_episodes}, "
                f"horizon={self.horizon}, max_error={self.max_error}"
            )
        error = kl / self.target - 1.0
        error = min(max(error, -self.max_error), self.max_error)
        self.weight *= 1.0 + error * num_episodes / self.horizon
        return self.weight


def _check_kl(kl):
    if not math.isfinite(kl):
        raise ValueError(
            "`kl` must be finite: have the weights become NaN, or is a token of the "
            f"episodes impossible under a policy? Received: kl={kl}"
        )
