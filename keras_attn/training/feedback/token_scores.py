"""Log-probabilities of sampled tokens by a policy, and by the reference.

Legend: B rows, C sampled tokens, T = tokens of prompt and completion, V vocabulary.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn.layers.adaptation.switching import updates_in
from keras_attn.ops.token_probabilities import (
    token_entropies,
    token_log_probabilities,
)


def of_completions(values, num_tokens: int):
    """The predictions at the position before each of the last C tokens.

    Args:
        values: (B, T, …).
        num_tokens: C.

    Returns:
        (B, C, …).
    """
    return values[:, -num_tokens - 1 : -1]


@keras.saving.register_keras_serializable("keras_attn")
class TokenScorer(keras.Model):
    """Log-probabilities and entropies of the last C tokens, without dropout.

    Args:
        network: A model from `token_ids` and `padding_mask` to logits (B, T, V).
        num_tokens: C.
        temperature: Divides the logits.
        **kwargs: `name`, … of a Keras model.

    Call arguments:
        inputs: `token_ids` and `padding_mask`, (B, T).

    Returns:
        `log_probabilities` and `entropies`, (B, C).
    """

    def __init__(self, network, num_tokens: int, temperature: float, **kwargs):
        super().__init__(**kwargs)
        self.network = network
        self.num_tokens = num_tokens
        self.temperature = temperature
        self.built = True  # The network is.

    def call(self, inputs):
        """Scores tokens; see the class."""
        logits = self.network(dict(inputs), training=False)
        return score_tokens(
            logits, inputs["token_ids"], self.num_tokens, self.temperature
        )


def score_tokens(logits, token_ids, num_tokens, temperature) -> dict[str, Any]:
    """Log-probabilities, with a gradient, and entropies, of the last C tokens.

    Args:
        logits: (B, T, V).
        token_ids: (B, T).
        num_tokens: C.
        temperature: Divides the logits.
    """
    logits = of_completions(logits, num_tokens)
    tokens = token_ids[:, -num_tokens:]
    return {
        "log_probabilities": token_log_probabilities(logits, tokens, temperature),
        "entropies": token_entropies(ops.stop_gradient(logits), temperature),
    }


def check_finite_scores(policy, reference, is_learned, label: str) -> None:
    """Raises unless the numbers of all tokens that are learned are finite.

    Args:
        policy: `log_probabilities` and perhaps `values`, arrays (B, C).
        reference: `log_probabilities` of the reference.
        is_learned: The tokens that are learned, (B, C).
        label: What the batch is called in the message.
    """
    for who, what, found in (
        ("policy", "log-probabilities", policy["log_probabilities"]),
        ("reference", "log-probabilities", reference["log_probabilities"]),
        ("policy", "values", policy.get("values")),
    ):
        if found is None:
            continue
        finite = np.isfinite(found) | ~is_learned
        if not finite.all():
            row = int(np.argmin(finite.all(axis=1)))
            raise ValueError(
                f"The {what} of the {who} must be finite; the batch was not "
                "learned, and the learning rate may be too high. Received: NaN or "
                f"infinity in row {row} of {label}"
            )


def frozen_reference(network: keras.Model, reference) -> Any:
    """The reference that a policy is compared with, whose weights do not train.

    Args:
        network: The policy.
        reference: A model or a function, `"adapters_off"`, or None for a copy.

    Returns:
        The copy, or what was given.

    Raises:
        ValueError: If `reference` is the network itself, is missing and the network has
            LoRA weights, or is `"adapters_off"` and it has none.
    """
    if reference is network:
        raise ValueError(
            "`reference` must be a model of its own, because the network's weights "
            "train; None = a copy of the network. Received: reference=network"
        )
    has_adapters = bool(updates_in(network))
    if reference == "adapters_off" and not has_adapters:
        raise ValueError(
            '`reference` may be "adapters_off" only after `enable_lora`. '
            f"Received: network={network!r}, which has no LoRA weights"
        )
    if reference is None and has_adapters:
        raise ValueError(
            "`reference` must be given for a network with LoRA weights: "
            '"adapters_off" for its base, or a model. Received: reference=None'
        )
    if reference is None:
        reference = keras.models.clone_model(network)
        reference.set_weights(network.get_weights())
    if isinstance(reference, keras.Model):
        # A frozen model that was loaded has sublayers that are not, and assigning the
        # value that an attribute has does nothing.
        reference.trainable = True
        reference.trainable = False
    return reference
