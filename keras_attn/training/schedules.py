"""Learning-rate schedules: a linear warm-up, then a decay.

`step` is the number of updates made so far, as in Keras' optimizers, so the first
update has step 0. The warm-up uses the update's own number, `step + 1`, since a rate of
0 would waste the first update. So the rate peaks at update number `warmup_steps`.
"""

import math

import keras
from keras import ops

from keras_attn.checks.arguments import check_above_zero, check_positive
from keras_attn.checks.configuration import Configured
from keras_attn.docstrings.descriptions import described_as


@keras.saving.register_keras_serializable("keras_attn")
class InverseSquareRootSchedule(
    Configured, keras.optimizers.schedules.LearningRateSchedule
):
    """`D^-½ · min(s^-½, s · w^-1.5)` with `s = step + 1`: the Transformer's schedule.

    A linear warm-up of w updates, then a decay with the square root of the updates.

    Args:
        warmup_steps: w.
        hidden_dim: D, the width of the model: the peak is then `(D · w)^-½`.
        peak: Rate at update w, instead of `hidden_dim`.

    Raises:
        ValueError: If not exactly one of `hidden_dim` and `peak` is given.

    Example:
        ```python
        import keras
        from keras_attn import training

        schedule = training.InverseSquareRootSchedule(4000, hidden_dim=512)
        optimizer = keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9)
        ```

    Reference:
        Vaswani et al. 2017, section 5.3 (arXiv:1706.03762).
    """

    def __init__(self, warmup_steps, *, hidden_dim=None, peak=None):
        super().__init__()
        self.warmup_steps = check_positive("warmup_steps", warmup_steps)
        if (hidden_dim is None) == (peak is None):
            raise ValueError(
                "Exactly one of `hidden_dim` and `peak` must be given. "
                f"Received: hidden_dim={hidden_dim!r}, peak={peak!r}"
            )
        if hidden_dim is not None:
            check_positive("hidden_dim", hidden_dim)
        else:
            check_above_zero("peak", peak)
        self.hidden_dim = hidden_dim
        self.peak = peak

    def __call__(self, step):
        """Returns the learning rate at a step, a float32 scalar."""
        peak = self.peak
        if self.hidden_dim is not None:
            peak = (self.hidden_dim * self.warmup_steps) ** -0.5
        share = ops.divide(ops.cast(step, "float32") + 1.0, float(self.warmup_steps))
        return ops.multiply(peak, ops.minimum(ops.rsqrt(share), share))


class _Warmup(Configured, keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up to the peak; subclasses define the decay."""

    def __init__(self, peak, warmup_steps, total_steps, *, end=0.0):
        super().__init__()
        self.peak = check_above_zero("peak", peak)
        if warmup_steps != 0:
            check_positive("warmup_steps", warmup_steps)
        self.warmup_steps = warmup_steps
        self.total_steps = check_positive("total_steps", total_steps)
        if self.total_steps <= self.warmup_steps:
            raise ValueError(
                "`total_steps` must be more than `warmup_steps`, which it includes. "
                f"Received: total_steps={total_steps}, warmup_steps={warmup_steps}"
            )
        if end != 0:
            check_above_zero("end", end)
        self.end = end

    def _remaining(self, progress):
        """Share of the peak that is left, 1 … 0, as the decay progresses, 0 … 1."""
        raise NotImplementedError

    def __call__(self, step):
        """Returns the learning rate at a step, a float32 scalar."""
        step = ops.cast(step, "float32")
        warmed = ops.divide(step + 1.0, float(max(self.warmup_steps, 1)))
        decay_steps = float(self.total_steps - self.warmup_steps)
        progress = ops.divide(step - float(self.warmup_steps), decay_steps)
        remaining = self._remaining(ops.clip(progress, 0.0, 1.0))
        decayed = self.end + ops.multiply(self.peak - self.end, remaining)
        is_warmup = ops.less(step, float(self.warmup_steps))
        return ops.where(is_warmup, ops.multiply(self.peak, warmed), decayed)


@keras.saving.register_keras_serializable("keras_attn")
class LinearWarmup(_Warmup):
    """A linear warm-up, then a linear decay: BERT's schedule.

    Args:
        peak: Maximum rate, reached at update number `warmup_steps`.
        warmup_steps: Updates of the warm-up; 0 starts at the peak.
        total_steps: Updates of warm-up and decay together.
        end: Rate from `total_steps` on.

    Raises:
        ValueError: If `total_steps` is not greater than `warmup_steps`.

    Reference:
        Devlin et al. 2019, "BERT", appendix A.2 (arXiv:1810.04805).
    """

    def _remaining(self, progress):
        return 1.0 - progress


@keras.saving.register_keras_serializable("keras_attn")
@described_as(LinearWarmup)
class CosineWarmup(_Warmup):
    """A linear warm-up, then a decay along half a cosine: GPT's schedule.

    Keras' `CosineDecay(warmup_target=…)` starts from a rate of 0, so its first update
    changes nothing; here it has a rate of `peak / warmup_steps`.

    Raises:
        ValueError: If `total_steps` is not greater than `warmup_steps`.

    Reference:
        Loshchilov & Hutter 2017, "SGDR", section 3 (arXiv:1608.03983); with a warm-up:
        Radford et al. 2018, "Improving Language Understanding by Generative
        Pre-Training", section 4.1.
    """

    def _remaining(self, progress):
        return 0.5 * (1.0 + ops.cos(math.pi * progress))
