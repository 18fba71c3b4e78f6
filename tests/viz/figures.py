"""Attention to plot, and what the panels of a figure show."""

import numpy as np


def random_attention(*shape):
    """Positive float32 scores whose sum over the last axis is 1."""
    scores = np.random.default_rng(0).random(shape).astype("float32")
    return scores / scores.sum(-1, keepdims=True)


def panels(figure):
    """The axes that show an image."""
    return [ax for ax in figure.axes if ax.images]


def tick_labels(axis):
    """The labels of an axis, as strings."""
    return [label.get_text() for label in axis.get_ticklabels()]
