"""The terms for a decoder's attention that training adds to the loss of words.

Legend: B batch, T steps, S locations.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_fraction
from keras_attn.layers.base import BaseLayer
from keras_attn.ops import attention_entropy, coverage_penalty, places_log_probability


@keras.saving.register_keras_serializable("keras_attn")
class AttentionObjective(BaseLayer):
    """The penalty of doubly stochastic attention, and REINFORCE for hard attention.

    Returns its input unchanged. It is a layer so that the numbers below and the
    baseline are saved with a model. The model's `compute_loss` calls `compute_losses`.
    For each text, with the words y and the sampled locations s:

        coverage   λ_c Σ_i (1 - Σ_t α_ti)²
        reinforce  -λ_r (log p(y|s) - b) log p(s)     (its gradient, λ_r (…) a constant)
        entropy    -λ_e Σ_t H(α_t)

    For λ_r = 1, the gradient of the second term plus the gradient of -log p(y|s) itself
    is an unbiased estimate of the gradient of the expected -log p(y|s). The baseline b
    is a moving average of log p(y|s), `b ← d b + (1 - d) log p(y|s)`, updated after it
    is used.

    Args:
        coverage_weight: λ_c.
        reinforce_weight: λ_r.
        entropy_weight: λ_e.
        baseline_decay: d.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: Any tensor.

    Returns:
        The same tensor.

    Raises:
        ValueError: If a weight is negative, or `baseline_decay` is outside [0, 1).

    Reference:
        Xu et al. 2015, sections 4.1 and 4.2.1 (arXiv:1502.03044); Williams 1992.
    """

    def __init__(
        self,
        *,
        coverage_weight: float = 1.0,
        reinforce_weight: float = 1.0,
        entropy_weight: float = 0.0,
        baseline_decay: float = 0.9,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.coverage_weight = _check_weight("coverage_weight", coverage_weight)
        self.reinforce_weight = _check_weight("reinforce_weight", reinforce_weight)
        self.entropy_weight = _check_weight("entropy_weight", entropy_weight)
        self.baseline_decay = check_fraction("baseline_decay", baseline_decay)

    def build(self, inputs_shape):
        self.baseline = self.add_weight(
            name="baseline",
            shape=(),
            initializer="zeros",
            trainable=False,
            dtype="float32",
            autocast=False,
            # Averaged over the devices that train, each of which sees different
            # captions.
            aggregation="mean",
        )

    def call(self, inputs):
        return inputs

    def compute_losses(self, scores, is_real, places=None, log_likelihood=None):
        """The three losses of every text; see the class.

        Args:
            scores: α, (B, T, S), the probabilities, after the softmax.
            is_real: The weights of the words, (B, T), floats: 1 at steps that count, 0
                elsewhere.
            places: The weights of the memory, (B, T, S): one-hot vectors of the
                sampled locations; None without hard attention. A row of soft attention,
                whose `places` are the scores, gets no gradient from `reinforce`:
                `Σ_i α_i ∂ log α_i = ∂ Σ_i α_i = 0`.
            log_likelihood: log p(y|s), (B,), with `places`.

        Returns:
            A dictionary of `coverage`, (B,), without its weight, and `total`, (B,),
            the weighted sum. Updates the baseline if there are `places`.
        """
        # A row without real steps fills up a batch.
        is_text = ops.cast(ops.any(is_real > 0, axis=-1), "float32")  # (B,)
        coverage = coverage_penalty(scores, is_real) * is_text
        total = self.coverage_weight * coverage
        if places is None:
            return {"coverage": coverage, "total": total}
        places = ops.stop_gradient(places)
        reward = ops.stop_gradient(log_likelihood)
        log_probability = places_log_probability(places, scores, is_real)
        estimate = -self.reinforce_weight * (reward - self.baseline) * log_probability
        # Only its gradient is meaningful.
        total = total + estimate - ops.stop_gradient(estimate)
        if self.entropy_weight:
            total = total - self.entropy_weight * attention_entropy(scores, is_real)
        decay, count = self.baseline_decay, ops.sum(is_text)
        mean = ops.sum(reward * is_text) / ops.maximum(count, 1.0)
        baseline = ops.convert_to_tensor(self.baseline)
        updated = decay * baseline + (1 - decay) * mean
        self.baseline.assign(ops.where(count > 0, updated, baseline))
        return {"coverage": coverage, "total": total}


def _check_weight(name, value):
    """Returns `value`; raises a `ValueError` unless it is a number >= 0."""
    if not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(
            f"`{name}` must be a non-negative number. Received: {name}={value!r}"
        )
    return value
