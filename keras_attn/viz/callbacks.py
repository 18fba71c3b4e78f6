"""Watching attention in TensorBoard while a model fits."""

import abc
import os
import re
from collections.abc import Iterator, Sequence
from typing import cast

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from keras_attn.checks import check_positive
from keras_attn.viz.capture import capture_attention
from keras_attn.viz.images import image_attention, plot_image_attention
from keras_attn.viz.plots import figure_to_array, plot_alignment


class _Pictures(keras.callbacks.Callback, abc.ABC):
    """Writes pictures of attention to TensorBoard, epoch by epoch."""

    def __init__(self, log_dir, layer, every, max_examples):
        super().__init__()
        self.log_dir = os.fspath(log_dir)
        self.every = check_positive("every", every)
        self.max_examples = check_positive("max_examples", max_examples)
        self.layer = layer
        self._pattern = _compile(layer)

    def on_train_begin(self, logs=None):
        """Opens the event file, once it is clear that there is something to draw."""
        # What is wrong had better be said before the first epoch than at its end.
        for _ in self._figures():
            pass
        self._writer = tf.summary.create_file_writer(self.log_dir)

    def on_epoch_end(self, epoch, logs=None):
        """Writes the pictures of every `every`-th epoch, with `step=epoch`."""
        if epoch % self.every:
            return
        # Before the writer is the default: the model may have summaries of its own.
        figures = list(self._figures())
        with self._writer.as_default(step=epoch):
            for tag, figure in figures:
                tf.summary.image(tag, figure_to_array(figure)[None])
        # So that TensorBoard shows the epoch now, not at the end of training.
        self._writer.flush()

    def on_train_end(self, logs=None):
        """Closes the event file."""
        self._writer.close()

    @abc.abstractmethod
    def _figures(self) -> Iterator[tuple[str, Figure]]:
        """The tag and the picture of every layer and example."""

    def _choose(self, scores: dict) -> dict:
        """Those of the layers that `layer` is found in."""
        if self._pattern is None:
            return scores
        chosen = {key: scores[key] for key in scores if self._pattern.search(key)}
        if not chosen:
            raise ValueError(
                "`layer` must be found in the path of at least one attention layer, of "
                f"{list(scores)}. Received: layer={self.layer!r}"
            )
        return chosen


class AttentionMaps(_Pictures):
    """Writes what a model of tokens attends to as pictures, epoch by epoch.

    The tab "Images" of TensorBoard then has, under `attention/<layer>/<i>`, a
    slider over the epochs for example `i`. Training is not disturbed: the model is
    run on a few examples with `training=False`, outside of its compiled step.

    Args:
        log_dir: Where the event file goes; the folder given to TensorBoard.
        inputs: What the model is called with, batch first: an array, or a list or
            dictionary of arrays.
        source_tokens: For each example, the labels of what is attended to.
        target_tokens: For each example, the labels of what attends; for a model
            without a decoder the same as `source_tokens`.
        layer: A regular expression, searched for in the layers' paths. None means the
            paths with "cross_attention" in them, or where none has it, all.
        every: Epochs from one picture to the next; the first is of epoch 0.
        max_examples: Most examples drawn, the first of `inputs`.

    Raises:
        ValueError: If there are not as many token lists as examples; at the start of
            training, if no layer matches or a list is longer than its scores.

    Example:
        ```python
        maps = AttentionMaps("runs/dates", inputs, source_tokens, target_tokens)
        model.fit(dataset, epochs=20, callbacks=[maps])
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        inputs,
        source_tokens: Sequence[Sequence[str]],
        target_tokens: Sequence[Sequence[str]],
        layer: str | None = None,
        every: int = 1,
        max_examples: int = 4,
    ):
        super().__init__(log_dir, layer, every, max_examples)
        shapes = [np.shape(leaf) for leaf in keras.tree.flatten(inputs)]
        tokens = {"source_tokens": source_tokens, "target_tokens": target_tokens}
        for name, examples in tokens.items():
            if any(shape[:1] != (len(examples),) for shape in shapes):
                raise ValueError(
                    f"`{name}` must have one list of tokens for each example of "
                    f"`inputs`. Received: {name} of length {len(examples)}, inputs "
                    f"of shapes {shapes}"
                )
        self.inputs = keras.tree.map_structure(lambda x: x[:max_examples], inputs)
        self.source_tokens = list(source_tokens)[:max_examples]
        self.target_tokens = list(target_tokens)[:max_examples]

    def _figures(self):
        model = cast(keras.Model, self.model)
        chosen = self._choose(capture_attention(model, self.inputs))
        for path, scores in chosen.items():
            examples = zip(scores, self.source_tokens, self.target_tokens, strict=True)
            for index, example in enumerate(examples):
                yield f"attention/{path}/{index}", plot_alignment(*example, title=path)

    def _choose(self, scores):
        if self._pattern is None:
            cross = {key: scores[key] for key in scores if "cross_attention" in key}
            return cross or scores
        return super()._choose(scores)


class ImageAttentionMaps(_Pictures):
    """Writes where an image model looks as pictures, epoch by epoch.

    As `AttentionMaps`, with the image and a panel a head; see `viz.image_attention`.

    Args:
        log_dir: Where the event file goes; the folder given to TensorBoard.
        images: (B, H, W, channels), as the model takes them.
        layer: A regular expression, searched for in the layers' paths. None = all.
        every: Epochs from one picture to the next; the first is of epoch 0.
        max_examples: Most images drawn, the first of `images`.

    Raises:
        ValueError: At the start of training, if no layer matches or none sees a whole
            image.

    Example:
        ```python
        maps = ImageAttentionMaps("runs/vit", images, layer="block_11")
        model.fit(dataset, epochs=20, callbacks=[maps])
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        images,
        layer: str | None = None,
        every: int = 1,
        max_examples: int = 4,
    ):
        super().__init__(log_dir, layer, every, max_examples)
        self.images = np.asarray(images[:max_examples])

    def _figures(self):
        model = cast(keras.Model, self.model)
        for path, maps in self._choose(image_attention(model, self.images)).items():
            for index, (image, heads) in enumerate(zip(self.images, maps, strict=True)):
                figure = plot_image_attention(image, heads, title=path)
                yield f"attention/{path}/{index}", figure


def _compile(layer: str | None) -> re.Pattern | None:
    try:
        return None if layer is None else re.compile(layer)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"`layer` must be a regular expression ({error}). Received: layer={layer!r}"
        ) from error
