"""Language models as policies: what they say of sampled tokens, and their values.

Legend: B rows, C sampled tokens, T = tokens of prompt and completion, V vocabulary,
D width.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn.layers import Dense
from keras_attn.layers.adaptation.low_rank import LowRankUpdate
from keras_attn.layers.adaptation.switching import adapters_off
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


def get_adapters(network: keras.Model) -> list[LowRankUpdate]:
    """The LoRA weights of a network; none before `enable_lora`."""
    return [x for x in network._flatten_layers() if isinstance(x, LowRankUpdate)]


def check_reference(network: keras.Model, reference) -> None:
    """Raises unless a reference is one that this network can have.

    Args:
        network: The policy.
        reference: A model or a function, `"adapters_off"`, or None for a copy.

    Raises:
        ValueError: If `reference` is missing and the network has LoRA weights, or is
            `"adapters_off"` and it has none.
    """
    has_adapters = bool(get_adapters(network))
    if isinstance(reference, str) and reference == "adapters_off" and not has_adapters:
        raise ValueError(
            '`reference` may be "adapters_off" only after `enable_lora`. '
            f"Received: network={network!r}, which has no LoRA weights"
        )
    if reference is None and has_adapters:
        raise ValueError(
            "`reference` must be given for a network with LoRA weights: "
            '"adapters_off" for its base, or a model. Received: reference=None'
        )


def reference_scorer(
    network: keras.Model, reference, num_tokens: int, temperature: float
) -> TokenScorer:
    """The frozen model whose log-probabilities those of the policy are compared with.

    Args:
        network: The policy.
        reference: A model; `"adapters_off"`, the network itself; or None for a copy.
        num_tokens: C.
        temperature: Divides the logits.

    Raises:
        TypeError: If `reference` is none of these.
        ValueError: As `check_reference`.
    """
    check_reference(network, reference)
    if reference == "adapters_off":
        reference = network
    elif reference is None:
        reference = keras.models.clone_model(network)
        reference.set_weights(network.get_weights())
    elif not isinstance(reference, keras.Model) or reference is network:
        raise TypeError(
            '`reference` must be another Keras model, "adapters_off" or None. '
            f"Received: reference={reference!r}"
        )
    if reference is not network:
        # A frozen model that was loaded has sublayers that are not, and assigning the
        # value that an attribute has does nothing.
        reference.trainable = True
        reference.trainable = False
    return TokenScorer(reference, num_tokens, temperature)


def base_logits(network: keras.Model, inputs):
    """The logits without LoRA weights, also within a compiled function.

    Args:
        network: A network after `enable_lora`.
        inputs: Its inputs.
    """
    with adapters_off(network):
        return ops.stop_gradient(network(inputs, training=False))


def with_features(network: keras.Model) -> keras.Model:
    """A model that also returns the features which the logits are computed from.

    Args:
        network: A functional model to logits (B, T, V).

    Returns:
        A model of the same inputs and layers to `logits` and `features` (B, T, D).

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
                "`network` must compute its logits from features (B, T, D), which a "
                "value head can read; otherwise pass a `value_model`. "
                f"Received: network={network!r}"
            )
        tensor = given[0]
        # Not a bias or a change of dtype, which follows the product.
        if any(len(weight.shape) > 1 for weight in getattr(operation, "weights", ())):
            break
    outputs = {"logits": network.output, "features": tensor}
    return keras.Model(network.input, outputs, name=f"{network.name}_with_features")


def value_head() -> Dense:
    """A dense layer to one value, which is 0 at the start."""
    return Dense(1, kernel_initializer="zeros", dtype="float32", name="value_head")
