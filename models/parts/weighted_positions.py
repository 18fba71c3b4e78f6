"""Keras' own losses under weights of positions: the mean over those that count."""

from typing import Any

import keras
from keras import ops

from keras_attn.kernels.replicas import mean_weights

_MEANS = ("sum_over_batch_size", "mean")


def weights_of_means(losses: Any, sample_weight: Any) -> Any:
    """Sample weights with which Keras' own losses are weighted means of positions.

    Keras divides a weighted sum by the number of all positions. Where the weights
    choose positions, as those of masked words or of a text without its padding, the
    loss would be as much smaller as fewer positions are chosen: with 15 % of the words
    masked, and a fixed rate, a seventh of the mean over the masked ones.

    Args:
        losses: What `compile` got: a loss, its name or function, or several of them in
            a dictionary or list.
        sample_weight: The weights of a batch, in the same structure, or one tensor for
            all losses; None for none.

    Returns:
        The weights: (B, T) or of more axes, for a loss of Keras that is a mean, divided
        by their mean. Weights of whole rows, and those of other losses, as they are.
    """
    if sample_weight is None or losses is None:
        return sample_weight
    several = (list, tuple, dict)
    if not isinstance(losses, several):
        return keras.tree.map_structure(
            lambda weights: _of_mean(losses, weights), sample_weight
        )
    if isinstance(losses, dict):
        if not isinstance(sample_weight, dict):
            sample_weight = dict.fromkeys(losses, sample_weight)
        return {
            name: weights_of_means(losses.get(name), weights)
            for name, weights in sample_weight.items()
        }
    if not isinstance(sample_weight, several):
        sample_weight = [sample_weight] * len(losses)
    return [
        weights_of_means(loss, weights)
        for loss, weights in zip(losses, sample_weight, strict=True)
    ]


def _of_mean(loss, weights):
    if weights is None or not _is_mean_of_keras(loss):
        return weights
    sizes = tuple(weights.shape)[1:]
    if not sizes or all(size == 1 for size in sizes):
        return weights
    return mean_weights(ops.cast(weights, "float32"))


def _is_mean_of_keras(loss) -> bool:
    """Whether Keras divides the sum of a loss by the number of all positions."""
    if not isinstance(loss, keras.losses.Loss):
        return True  # A name or a function.
    is_of_keras = type(loss).__module__.partition(".")[0] == "keras"
    return is_of_keras and loss.reduction in _MEANS
