"""Attention to plot, and what the panels of a figure show."""

import numpy as np


def random_attention(*shape):
    """Positive float32 scores whose sum over the last axis is 1."""
    scores = np.random.default_rng(0).random(shape).astype("float32")
    return scores / scores.sum(-1, keepdims=True)


def panels(figure):
    """The axes that show an image."""
    return [ax for ax in figure.axes if ax.images]


def line_values(line):
    """The values of a line along both axes, two arrays."""
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def band_edges(band, x):
    """The lower and the upper edge at `x` of what `fill_between` drew."""
    corners = np.asarray(band.get_paths()[0].vertices)
    edges = corners[corners[:, 0] == x, 1]
    return edges.min(), edges.max()


def tick_labels(axis):
    """The labels of an axis, as strings."""
    return [label.get_text() for label in axis.get_ticklabels()]
