"""Direct preference optimization: a language model that learns from pairs.

Legend: B pairs, T tokens, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, Literal

import keras
from keras import ops

from keras_attn.kernels.replicas import divided_by_replicas, mean_loss
from keras_attn.layers.adaptation.switching import adapters_off
from keras_attn.losses.masked_means import masked
from keras_attn.losses.preferences import DPOKind, check_dpo_options, dpo_loss
from keras_attn.ops.token_probabilities import token_log_probabilities
from keras_attn.training.feedback.token_scores import frozen_reference

# What a batch reports, in this order.
_REPORTED = ("accuracy", "margin", "chosen_reward", "rejected_reward")


@keras.saving.register_keras_serializable("keras_attn")
class DPO(keras.Model):
    """Trains a language model by `dpo_loss` on the batches of `preference_dataset`.

    Compile it with only an optimizer. `fit` and `evaluate` log the loss; `accuracy`,
    the share of pairs whose better completion has the larger implicit reward,
    `β (log π - log π_ref)`; `margin`, the mean difference of these rewards; and
    `chosen_reward` and `rejected_reward`, their means.

    Dropout is off in both models, because the loss compares their probabilities.

    Args:
        network: A language model from inputs to logits (B, T, V).
        reference: The reference model; or a function of the inputs that returns its
            logits; or `"adapters_off"`, the network without its LoRA weights. Default:
            a copy of the network as it is now.
        beta: β, above 0.
        kind: See `dpo_loss`.
        label_smoothing: See `dpo_loss`.
        reference_free: See `dpo_loss`; then no reference model is needed.
        **kwargs: `name`, … of a Keras model.

    Raises:
        TypeError: If `network` is not a Keras model, or `reference` cannot be called.
        ValueError: If there is a `reference` despite `reference_free`, or `beta`,
            `kind` or `label_smoothing` is not as in `dpo_loss`; if `reference` is
            missing and the network has LoRA weights, or is `"adapters_off"` and it has
            none; in `fit`, if a batch has an odd number of rows.

    Example:
        ```python
        from keras_attn import data, models, training

        model = models.build_gpt(num_layers=1, hidden_dim=32, vocabulary_size=100)
        trainer = training.DPO(model, beta=0.1)
        trainer.compile(training.AdamW(1e-6))
        sizes = {"max_length": 8, "batch_size": 1, "end_token_id": 2}
        pairs = data.preference_dataset([[5, 6]], [[7, 8]], [[9]], **sizes)
        trainer.fit(pairs, shuffle=False)  # After [5, 6] rather [7, 8] than [9].
        ```

    Reference:
        Rafailov et al. 2023 (arXiv:2305.18290).
    """

    def __init__(
        self,
        network,
        *,
        reference: Callable | Literal["adapters_off"] | None = None,
        beta: float = 0.1,
        kind: DPOKind = "sigmoid",
        label_smoothing: float = 0.0,
        reference_free: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not isinstance(network, keras.Model):
            raise TypeError(
                f"`network` must be a Keras model. Received: network={network!r}"
            )
        if not (reference in (None, "adapters_off") or callable(reference)):
            raise TypeError(
                "`reference` must be a model or a function of the inputs, or "
                '"adapters_off". '
                f"Received: reference={reference!r}"
            )
        if reference is not None and reference_free:
            raise ValueError(
                "`reference` must be None if `reference_free`. "
                f"Received: reference={reference!r}, reference_free=True"
            )
        check_dpo_options(kind, beta, label_smoothing)
        self.network = network
        self.beta = beta
        self.kind: DPOKind = kind
        self.label_smoothing = label_smoothing
        self.reference_free = reference_free
        self.reference: Any = None
        if not reference_free:
            self.reference = frozen_reference(network, reference)
        self._reported = {name: keras.metrics.Mean(name=name) for name in _REPORTED}
        self.built = True  # Both models are built.

    def call(self, inputs, training=None):
        """The logits of the network, without dropout."""
        return self.network(inputs, training=False)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """The mean loss of the pairs; see the class.

        Args:
            x: Inputs of 2·B rows, of which two consecutive ones are a pair.
            y: The next tokens, (2·B, T).
            y_pred: The logits of the network, (2·B, T, V).
            sample_weight: 1 on the tokens of completions, otherwise 0, (2·B, T).
            training: Whether the network is trained.

        Returns:
            A scalar.
        """
        policy, lengths = _sums(y_pred, y, sample_weight)
        given: dict[str, Any] = {}
        ratios = policy
        if not self.reference_free:
            logits = ops.stop_gradient(self._reference_logits(x))
            reference, _ = _sums(logits, y, sample_weight)
            given = dict(
                zip(("reference_chosen", "reference_rejected"), reference, strict=True)
            )
            ratios = [a - b for a, b in zip(policy, reference, strict=True)]
        if self.kind == "ipo":
            given |= zip(("chosen_lengths", "rejected_lengths"), lengths, strict=True)
        losses = dpo_loss(
            *policy,
            **given,
            beta=self.beta,
            kind=self.kind,
            label_smoothing=self.label_smoothing,
            reference_free=self.reference_free,
        )
        better, worse = (self.beta * ops.stop_gradient(ratio) for ratio in ratios)
        is_right = ops.cast(better > worse, better.dtype)
        numbers = (is_right, better - worse, better, worse)
        for name, values in zip(_REPORTED, numbers, strict=True):
            self._reported[name].update_state(values)
        loss = mean_loss(ops.sum(losses), ops.shape(losses)[0])
        of_layers = sum(self.losses, start=ops.zeros(()))
        return loss + divided_by_replicas(of_layers)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """The loss and what `compute_loss` has measured."""
        return self.get_metrics_result()

    def get_config(self):
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "network": keras.saving.serialize_keras_object(self.network),
            "reference": keras.saving.serialize_keras_object(self.reference),
            "beta": self.beta,
            "kind": self.kind,
            "label_smoothing": self.label_smoothing,
            "reference_free": self.reference_free,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Creates a trainer from the result of `get_config`."""
        config = dict(config)
        models = {
            name: keras.saving.deserialize_keras_object(
                config.pop(name), custom_objects=custom_objects
            )
            for name in ("network", "reference")
        }
        return cls(**models, **config)

    def _reference_logits(self, inputs):
        if self.reference == "adapters_off":
            with adapters_off(self.network):  # Also within a compiled step.
                return self.network(inputs, training=False)
        if isinstance(self.reference, keras.Model):
            return self.reference(inputs, training=False)
        return self.reference(inputs)


def _sums(logits, token_ids, weights):
    """Log-probabilities of completions, and their lengths: of better and worse ones."""
    rows = logits.shape[0]
    if rows is not None and rows % 2:
        raise ValueError(
            "A batch must have an even number of rows, two for each pair, as "
            f"`preference_dataset` makes them. Received: {rows} rows"
        )
    found = token_log_probabilities(logits, token_ids)
    found, mask = masked("log_probabilities", found, weights)
    sums = ops.sum(found, axis=1), ops.sum(ops.cast(mask, found.dtype), axis=1)
    return [(values[0::2], values[1::2]) for values in sums]
