"""Batches of text beside a rollout, so that a policy keeps what it has learned."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from keras_attn.losses.cross_entropy import SmoothedCrossEntropy

_PREFIX = "pretraining/"


class Pretraining:
    """Adds batches of text to the rows of updates, and computes their loss.

    Args:
        batches: Batches of `(inputs, labels, weights)`, read again and again.

    Reference:
        Ouyang et al. 2022, equation 2, PPO-ptx (arXiv:2203.02155).
    """

    def __init__(self, batches: Iterable):
        self.batches = batches
        self._next: Any = None

    def restart(self) -> None:
        """Begins with the first batch."""
        again = itertools.chain.from_iterable(itertools.repeat(self.batches))
        self._next = (
            keras.tree.map_structure(keras.ops.convert_to_numpy, batch)
            for batch in again
        )

    def rows(self) -> dict[str, np.ndarray]:
        """The next batch, by names that no row of a rollout has."""
        inputs, labels, weights = next(self._next)
        named = {f"{_PREFIX}{name}": value for name, value in inputs.items()}
        return {**named, "pretraining_labels": labels, "pretraining_weights": weights}

    def loss(self, network, rows: Mapping[str, Any]):
        """The cross-entropy of a batch, a mean over its tokens.

        Args:
            network: The policy.
            rows: What `rows` returned, and perhaps others.
        """
        inputs = {
            name.removeprefix(_PREFIX): value
            for name, value in rows.items()
            if name.startswith(_PREFIX)
        }
        return SmoothedCrossEntropy()(
            rows["pretraining_labels"],
            network(inputs, training=False),
            rows["pretraining_weights"],
        )
