"""Keras' own losses as means: over the positions that count, and over all devices."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_attn.kernels.replicas import has_replicas, mean_weights, row_weights

_MEANS = ("sum_over_batch_size", "mean")


def weights_of_means(
    losses: Any, sample_weight: Any, y_pred: Any, output_names: Sequence[str]
) -> Any:
    """Sample weights with which Keras' own losses are weighted means of positions.

    Keras divides a weighted sum by the number of all positions. Where the weights
    choose positions, such as masked words or a text without its padding, the loss would
    be as much smaller as fewer positions are chosen: with 15 % of the words masked, and
    a fixed rate, a seventh of the mean over the masked ones.

    Keras also averages the means over the replicas of `tf.distribute`: a row would
    count more in a replica that has fewer of them, as of a last batch.

    Args:
        losses: What `compile` got: a loss, its name or function, or several of them in
            a dictionary or list.
        sample_weight: The weights of a batch, in the same structure, or one tensor for
            all losses; None for none.
        y_pred: What the model has returned.
        output_names: The names of its outputs.

    Returns:
        The weights: (B, T) or of more axes, for a loss of Keras that is a mean, divided
        by their mean. Weights of whole rows, and of other losses, as they are. On one
        of several replicas, times its share of the rows.
    """
    if losses is None or (sample_weight is None and not has_replicas()):
        return sample_weight
    if sample_weight is None:
        sample_weight = _ones(y_pred)
    given = [loss for loss in keras.tree.flatten(losses) if loss is not None]
    if not keras.tree.is_nested(sample_weight) and len(set(map(_kind, given))) == 1:
        return _of_mean(given[0], sample_weight)
    # As Keras does, which looks for the weights where the output is.
    if isinstance(losses, dict) and isinstance(y_pred, list | tuple):
        losses = [losses.get(name) for name in output_names]
    elif isinstance(losses, list | tuple) and isinstance(y_pred, dict):
        losses = dict(zip(y_pred, losses, strict=False))
    return _of_each(losses, sample_weight)


def _ones(y_pred):
    """Weights of rows that broadcast to the losses of every output: (B, 1, …)."""
    outputs = keras.tree.flatten(y_pred)
    rank = max(len(output.shape) for output in outputs)
    return ops.ones((ops.shape(outputs[0])[0], *(1,) * max(1, rank - 2)))


def _of_each(losses, sample_weight):
    if isinstance(losses, dict):
        if not isinstance(sample_weight, dict):
            sample_weight = dict.fromkeys(losses, sample_weight)
        return {
            name: _of_each(losses.get(name), weights)
            for name, weights in sample_weight.items()
        }
    if isinstance(losses, list | tuple):
        if not isinstance(sample_weight, list | tuple):
            sample_weight = [sample_weight] * len(losses)
        pairs = zip(losses, sample_weight, strict=True)
        return [_of_each(loss, weights) for loss, weights in pairs]
    return keras.tree.map_structure(
        lambda weights: _of_mean(losses, weights), sample_weight
    )


def _of_mean(loss, weights):
    is_mean, is_of_keras = _kind(loss)
    if weights is None or not is_mean:
        return weights
    weights = ops.cast(weights, "float32")
    if not is_of_keras or all(size == 1 for size in tuple(weights.shape)[1:]):
        return row_weights(weights)
    return mean_weights(weights)


def _kind(loss) -> tuple[bool, bool]:
    """Whether a loss is divided by the number of all positions, and is one of Keras."""
    if not isinstance(loss, keras.losses.Loss):
        return True, True  # A name or a function.
    is_of_keras = type(loss).__module__.partition(".")[0] == "keras"
    return loss.reduction in _MEANS, is_of_keras
