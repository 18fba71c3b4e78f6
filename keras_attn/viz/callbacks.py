"""Callbacks that write plots of attention and predictions to TensorBoard."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import keras
import numpy as np

from keras_attn.options import described_as
from keras_attn.viz.detections import plot_detections
from keras_attn.viz.images import image_attention, plot_image_attention
from keras_attn.viz.interaction_callback import InteractionMaps
from keras_attn.viz.plot_callbacks import AttentionPlots, Plots
from keras_attn.viz.plots import plot_alignment
from keras_attn.viz.reading import plot_reading_attention, reading_attention
from keras_attn.viz.segmentation import plot_segmentation
from keras_attn.viz.speech_callback import SpeechAttentionMaps
from keras_attn.viz.walk_callback import WalkAttentionMaps
from keras_attn.viz.word_callbacks import CaptionAttentionMaps, GlimpseMaps

__all__ = [
    "AttentionMaps",
    "CaptionAttentionMaps",
    "DetectionBoxes",
    "GlimpseMaps",
    "ImageAttentionMaps",
    "InteractionMaps",
    "ReadingAttentionMaps",
    "SegmentationMaps",
    "SpeechAttentionMaps",
    "WalkAttentionMaps",
]


class AttentionMaps(AttentionPlots):
    """Writes plots of a token model's attention to TensorBoard after each epoch.

    The tab "Images" of TensorBoard then has, under `attention/<layer>/<i>`, a
    slider over the epochs for example `i`. Training is not affected: the model is
    run on a few examples with `training=False`, outside of its compiled step.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        inputs: Inputs of the model, batch first: an array, or a list or dictionary of
            arrays.
        source_tokens: For each example, the labels of the keys.
        target_tokens: For each example, the labels of the queries; for a model
            without a decoder the same as `source_tokens`.
        layer: A regular expression, searched for in the layers' paths. None means the
            paths with "cross_attention" in them, or all if there are none.
        every: Epochs between plots; the first is of epoch 0.
        max_examples: Largest number of examples drawn, the first of `inputs`.

    Raises:
        ValueError: If the number of token lists is not that of examples; at the start
            of training, if no layer matches or a list is longer than its scores.

    Example:
        ```python
        maps = AttentionMaps("runs/dates", inputs, source_tokens, target_tokens)
        model.fit(dataset, epochs=20, callbacks=[maps])
        ```
    """

    _cross_attention_first = True

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
        for path, scores in self._capture(self.inputs).items():
            examples = zip(scores, self.source_tokens, self.target_tokens, strict=True)
            for index, example in enumerate(examples):
                yield f"attention/{path}/{index}", plot_alignment(*example, title=path)


class ImageAttentionMaps(AttentionPlots):
    """Writes an image model's attention to TensorBoard after each epoch.

    As `AttentionMaps`, with the image and one panel per head; see
    `viz.image_attention`.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        images: (B, H, W, channels), inputs of the model.
        layer: A regular expression, searched for in the layers' paths. None = all.
        every: Epochs between plots; the first is of epoch 0.
        max_examples: Largest number of images drawn, the first of `images`.

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
        for path, maps in self._select(image_attention(model, self.images)).items():
            for index, (image, heads) in enumerate(zip(self.images, maps, strict=True)):
                figure = plot_image_attention(image, heads, title=path)
                yield f"attention/{path}/{index}", figure


class _PredictionPlots(Plots):
    """Plots of predictions beside the truth, one for each image."""

    def __init__(self, log_dir, images, class_names, every, max_examples, options):
        super().__init__(log_dir, every, max_examples)
        self.images = np.asarray(images[:max_examples])
        self.class_names = list(class_names)
        self.options = options

    def _predict(self, function):
        function = function or cast(keras.Model, self.model).predict_on_batch
        return function(self.images)

    def _draw(self, tag, plot, *values):
        """Yields the tag and the figure of each image.

        Args:
            tag: Of all figures.
            plot: Function of one image and its values, each with a batch axis.
            *values: Arrays or dictionaries of arrays, batch first.
        """
        for index in range(len(self.images)):
            row = slice(index, index + 1)
            figure = plot(
                *(_rows(value, row) for value in (self.images, *values)),
                class_names=self.class_names,
                **self.options,
            )
            yield f"{tag}/{index}", figure


class SegmentationMaps(_PredictionPlots):
    """Writes predicted classes beside the true ones to TensorBoard after each epoch.

    The tab "Images" of TensorBoard then has, under `segmentation/<i>`, a slider over
    the epochs for example `i`; see `viz.plot_segmentation`. Training is not affected.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        images: (B, H, W, channels), inputs of the model.
        labels: True classes, (B, H, W).
        class_names: Names of the C classes.
        predict: Function of images that returns logits (B, H, W, C) or classes
            (B, H, W). None calls the model.
        every: Epochs between plots; the first is of epoch 0.
        max_examples: Largest number of images drawn, the first of `images`.
        **options: Further arguments of `viz.plot_segmentation`, such as `errors`.

    Raises:
        ValueError: At the start of training, as `viz.plot_segmentation`.

    Example:
        ```python
        maps = SegmentationMaps("runs/camvid", images, labels, CLASSES, errors=True)
        model.fit(dataset, epochs=20, callbacks=[maps])
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        images,
        labels,
        class_names: Sequence[str],
        *,
        predict: Callable | None = None,
        every: int = 1,
        max_examples: int = 4,
        **options,
    ):
        super().__init__(log_dir, images, class_names, every, max_examples, options)
        self.labels = np.asarray(labels[:max_examples])
        self.predict = predict

    def _figures(self):
        predictions = self._predict(self.predict)
        return self._draw("segmentation", plot_segmentation, self.labels, predictions)


@described_as(SegmentationMaps)
class DetectionBoxes(_PredictionPlots):
    """Writes detected objects beside the true ones to TensorBoard after each epoch.

    As `SegmentationMaps`, under `detections/<i>`; see `viz.plot_detections`.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        images: (B, H, W, channels), inputs of the model.
        truth: Ground-truth objects, as `data.detection_dataset` returns them.
        class_names: Names of the classes.
        detect: Function of images that returns detections. None calls the model.
        **options: Further arguments of `viz.plot_detections`, such as `min_score`.

    Raises:
        ValueError: At the start of training, as `viz.plot_detections`.

    Example:
        ```python
        images, truth = next(iter(validation))
        boxes = DetectionBoxes("runs/cells", images, truth, data.class_names)
        model.fit(dataset, epochs=20, callbacks=[boxes])
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        images,
        truth: Mapping,
        class_names: Sequence[str],
        *,
        detect: Callable | None = None,
        every: int = 1,
        max_examples: int = 4,
        **options,
    ):
        super().__init__(log_dir, images, class_names, every, max_examples, options)
        self.truth = _rows(truth, slice(max_examples))
        self.detect = detect

    def _figures(self):
        detections = self._predict(self.detect)
        return self._draw("detections", plot_detections, detections, self.truth)


class ReadingAttentionMaps(Plots):
    """Writes where a reader looks for each character to TensorBoard after each epoch.

    The tab "Images" of TensorBoard then has, under `reading/<i>`, a slider over the
    epochs for example `i`: the image, and a panel for each character with the one that
    the model predicts after the true ones before it. Training is not affected.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        inputs: Inputs of the model by name, batch first: `images`, `widths` if the
            model takes them, and `decoder_token_ids`, the start token and the true
            characters, then padding.
        tokenizer: The tokenizer of the characters.
        boxes: (B, N, 4), the true boxes of the characters, to draw too.
        every: Epochs between plots; the first is of epoch 0.
        max_examples: Largest number of images drawn, the first of `inputs`.

    Raises:
        ValueError: At the start of training, as `viz.reading_attention` and
            `viz.plot_reading_attention`.

    Example:
        ```python
        maps = ReadingAttentionMaps("runs/words", inputs, words.tokenizer)
        model.fit(dataset, epochs=20, callbacks=[maps])
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        inputs: Mapping,
        tokenizer,
        *,
        boxes=None,
        every: int = 1,
        max_examples: int = 4,
    ):
        super().__init__(log_dir, every, max_examples)
        self.inputs = dict(_rows(inputs, slice(max_examples)))
        self.tokenizer = tokenizer
        self.boxes = None if boxes is None else np.asarray(boxes)[:max_examples]

    def _figures(self):
        model = cast(keras.Model, self.model)
        outputs = model(self.inputs, training=False)
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs
        predicted = keras.ops.convert_to_numpy(logits).argmax(-1)
        maps = reading_attention(model, self.inputs)
        for row, ids in enumerate(self.inputs["decoder_token_ids"]):
            word = self.tokenizer.decode(ids[1:])
            # With the end token.
            pieces = [self.tokenizer.pieces[i] for i in predicted[row, : len(word) + 1]]
            width = self.inputs["widths"][row] if "widths" in self.inputs else None
            yield (
                f"reading/{row}",
                plot_reading_attention(
                    self.inputs["images"][row],
                    maps[row],
                    pieces,
                    width=None if width is None else int(width),
                    boxes=None if self.boxes is None else self.boxes[row, : len(word)],
                    title=word,
                ),
            )


def _rows(values, rows: slice):
    """Some rows of an array, or of each array of a dictionary."""
    if isinstance(values, Mapping):
        return {name: np.asarray(value)[rows] for name, value in values.items()}
    return np.asarray(values)[rows]
