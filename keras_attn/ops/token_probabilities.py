"""Log-probabilities, entropies and estimates of KL of sampled tokens.

All are per token, (B, T), float32 or wider. The logits of token t are those that the
model gives at position t - 1, so that all positions but the last are used:

    token_log_probabilities(logits[:, :-1], token_ids[:, 1:])

Legend: B sequences, T tokens, V vocabulary.
"""

import math
from typing import Any, Literal

from keras import ops

from keras_attn.checks.arguments import check_above_zero, check_choice, check_rank
from keras_attn.kernels.precision import at_least_float32

KLEstimate = Literal["k1", "k3"]


def token_log_probabilities(logits, token_ids, temperature: float = 1.0) -> Any:
    """`log softmax(logits / temperature)` of the given tokens.

    Policies that are compared, such as the one that sampled, the one that learns and
    the reference, must all use the temperature of the sampling.

    Args:
        logits: (B, T, V); row t predicts token t.
        token_ids: (B, T), in [0, V), also in padding.
        temperature: Positive.

    Returns:
        (B, T), in nats, float32 or wider.

    Raises:
        ValueError: If the axes do not match, or `temperature` is not above 0.

    Example:
        ```python
        import numpy as np
        from keras_attn import ops

        token_ids = np.array([[5, 3, 2, 7]])
        logits = np.random.normal(size=(1, 4, 11))  # Of a causal language model.
        ops.token_log_probabilities(logits[:, :-1], token_ids[:, 1:])  # (1, 3)
        ```
    """
    logits = _scaled(logits, temperature)
    token_ids = ops.convert_to_tensor(token_ids)
    check_rank("token_ids", token_ids, 2, "(batch, length)")
    # One operation with a gradient of its own: no second tensor of V log-probabilities.
    return -ops.sparse_categorical_crossentropy(token_ids, logits, from_logits=True)


def token_entropies(logits, temperature: float = 1.0) -> Any:
    """`-Σ_v p(v) log p(v)`, where `p = softmax(logits / temperature)`.

    Args:
        logits: (B, T, V).
        temperature: Positive.

    Returns:
        (B, T), in nats, float32 or wider; at most log V.

    Raises:
        ValueError: If `logits` do not have 3 axes, or `temperature` is not above 0.
    """
    log_probabilities = ops.log_softmax(_scaled(logits, temperature), axis=-1)
    products = ops.exp(log_probabilities) * log_probabilities
    # A token that is excluded by a logit of minus infinity adds nothing; NaN stays.
    is_excluded = ops.equal(log_probabilities, -math.inf)
    return -ops.sum(ops.where(is_excluded, 0.0, products), axis=-1)


def token_kl(log_probabilities, reference, estimate: KLEstimate = "k1") -> Any:
    """Estimates `KL(policy ‖ reference)` from the sampled tokens.

        x = log π(token) - log π_ref(token)
        k1 = x
        k3 = exp(-x) - 1 + x

    Over tokens that the policy samples, the mean of both is the KL. k1 is what PPO and
    RLOO subtract from rewards; a single one may be negative. k3 is never negative, has
    less variance, and is what GRPO adds to its loss.

    Args:
        log_probabilities: log π of the tokens, (B, T).
        reference: log π_ref of the same tokens, (B, T).
        estimate: `"k1"` or `"k3"`.

    Returns:
        (B, T), float32 or wider. Multiply by the mask of real tokens before adding up.

    Raises:
        ValueError: If `estimate` is neither.

    Reference:
        Schulman 2020, "Approximating KL divergence"; k3 in a loss: Shao et al. 2024,
        equation 4 (arXiv:2402.03300).
    """
    check_choice("estimate", estimate, ("k1", "k3"))
    log_probabilities = at_least_float32(ops.convert_to_tensor(log_probabilities))
    difference = log_probabilities - ops.cast(reference, log_probabilities.dtype)
    if estimate == "k1":
        return difference
    return ops.expm1(-difference) + difference


def _scaled(logits, temperature):
    logits = at_least_float32(ops.convert_to_tensor(logits))
    check_rank("logits", logits, 3, "(batch, length, vocabulary)")
    check_above_zero("temperature", temperature)
    return logits if temperature == 1 else logits / temperature
