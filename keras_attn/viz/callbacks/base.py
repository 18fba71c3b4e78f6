"""What the callbacks that write plots to TensorBoard share."""

import abc
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from keras_attn.checks.arguments import check_positive
from keras_attn.distribution.processes import event_writer, is_writer
from keras_attn.layers.capture import capture_attention
from keras_attn.viz.drawing.plots import figure_to_array


class Plots(keras.callbacks.Callback, abc.ABC):
    """Writes plots to TensorBoard after each epoch.

    Of several processes that train together, all compute what is drawn, and the first
    one draws.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        every: Epochs between plots, starting with epoch 0.
        max_examples: Maximum number of examples drawn, the first ones.
    """

    def __init__(self, log_dir, every, max_examples):
        super().__init__()
        self.log_dir = os.fspath(log_dir)
        self.every = check_positive("every", every)
        self.max_examples = check_positive("max_examples", max_examples)

    def on_train_begin(self, logs=None):
        """Opens the event file, after checking that the plots can be drawn."""
        # Fails before the first epoch rather than at its end.
        for _ in self._figures():
            pass
        self._writer = event_writer(self.log_dir)

    def on_epoch_end(self, epoch, logs=None):
        """Writes the plots of every `every`-th epoch, with `step=epoch`."""
        if epoch % self.every:
            return
        # In every process, since the model may be distributed. Before the writer is the
        # default: the model may write its own summaries.
        figures = list(self._figures())
        if not is_writer():
            return
        with self._writer.as_default(step=epoch):
            for tag, figure in figures:
                tf.summary.image(tag, figure_to_array(figure)[None])
        # TensorBoard then shows the epoch at once, not at the end of training.
        self._writer.flush()

    def on_train_end(self, logs=None):
        """Closes the event file."""
        self._writer.close()

    @abc.abstractmethod
    def _figures(self) -> Iterator[tuple[str, Figure]]:
        """Yields the tag and the figure of every layer and example."""


class AttentionPlots(Plots):
    """Plots of the layers whose path matches a pattern.

    Args:
        layer: Regular expression, found in the path of a layer to be drawn. None = all.
    """

    # Whether, without a pattern, only cross-attention is drawn if there is any.
    _cross_attention_first = False

    def __init__(self, log_dir, layer, every, max_examples):
        super().__init__(log_dir, every, max_examples)
        self.layer = layer
        self._pattern = _compile(layer)

    def _capture(self, inputs) -> dict:
        """The scores of the selected layers for some inputs of the model."""
        return self._select(capture_attention(cast(keras.Model, self.model), inputs))

    def _select(self, scores: dict) -> dict:
        """The scores of the layers whose path matches `layer`."""
        if self._pattern is None:
            if not self._cross_attention_first:
                return scores
            cross = {key: scores[key] for key in scores if "cross_attention" in key}
            return cross or scores
        selected = {key: scores[key] for key in scores if self._pattern.search(key)}
        if not selected:
            raise ValueError(
                "`layer` must match the path of at least one attention layer: "
                f"{list(scores)}. Received: layer={self.layer!r}"
            )
        return selected


def _compile(layer: str | None) -> re.Pattern | None:
    try:
        return None if layer is None else re.compile(layer)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"`layer` must be a regular expression ({error}). Received: layer={layer!r}"
        ) from error


def first_examples(inputs, count: int | None, **others) -> dict[str, np.ndarray]:
    """The first examples of a model's inputs; None = all of them.

    Args:
        inputs: A dictionary, the inputs by name.
        count: How many.
        others: What is for the same examples, such as their images.

    Raises:
        TypeError: If `inputs` is not a dictionary.
        ValueError: If any has another number of examples.
    """
    if not isinstance(inputs, Mapping):
        raise TypeError(
            "`inputs` must be a dictionary, the inputs of the model by name. "
            f"Received: inputs of type {type(inputs).__name__}"
        )
    counts = {name: len(value) for name, value in {**inputs, **others}.items()}
    if len(set(counts.values())) > 1:
        *names, last = (f"`{name}`" for name in ("inputs", *others))
        raise ValueError(
            f"{', '.join(names)} and {last} must be for the same examples. "
            f"Received: {counts}"
        )
    return take_rows(inputs, slice(count))


def take_rows(values, rows: slice) -> Any:
    """Some rows of an array, or of each array of a dictionary."""
    if isinstance(values, Mapping):
        return {name: np.asarray(value)[rows] for name, value in values.items()}
    return np.asarray(values)[rows]
