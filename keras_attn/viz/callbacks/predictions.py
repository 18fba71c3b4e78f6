"""Callbacks that write predicted boxes, masks and classes to TensorBoard."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import keras
import numpy as np

from keras_attn.docstrings.descriptions import described_as
from keras_attn.viz.callbacks.base import Plots, take_rows
from keras_attn.viz.detections import plot_detections
from keras_attn.viz.segmentation import plot_segmentation


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
            tag: Tag of all figures.
            plot: Function of one image and its values, each with a batch axis.
            *values: Arrays or dictionaries of arrays, batch first.
        """
        for index in range(len(self.images)):
            row = slice(index, index + 1)
            figure = plot(
                *(take_rows(value, row) for value in (self.images, *values)),
                class_names=self.class_names,
                **self.options,
            )
            yield f"{tag}/{index}", figure


class SegmentationMaps(_PredictionPlots):
    """Writes predicted classes beside the true ones to TensorBoard after each epoch.

    TensorBoard's "Images" tab then has a slider over the epochs for each example `i`,
    under `segmentation/<i>`; see `viz.plot_segmentation`. Training is not affected.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        images: (B, H, W, channels), inputs of the model.
        labels: True classes, (B, H, W).
        class_names: Names of the C classes.
        predict: Function of images that returns logits (B, H, W, C) or classes
            (B, H, W). None calls the model.
        every: Epochs between plots, starting with epoch 0.
        max_examples: Maximum number of images drawn, the first of `images`.
        **options: Further arguments of `viz.plot_segmentation`, such as `errors`.

    Raises:
        ValueError: At the start of training, as for `viz.plot_segmentation`.

    Example:
        ```python
        import numpy as np
        from keras_attn import viz

        images, labels = np.ones((2, 64, 64, 3)), np.zeros((2, 64, 64), "int32")
        names = ["road", "car"]
        maps = viz.callbacks.SegmentationMaps("runs/road", images, labels, names)
        # model.fit(dataset, epochs=20, callbacks=[maps])
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

    Like `SegmentationMaps`, but under `detections/<i>`; see `viz.plot_detections`.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        images: (B, H, W, channels), inputs of the model.
        truth: Ground-truth objects, as `data.detection_dataset` returns them.
        class_names: Names of the classes.
        detect: Function of images that returns detections. None calls the model.
        **options: Further arguments of `viz.plot_detections`, such as `min_score`.

    Raises:
        ValueError: At the start of training, as for `viz.plot_detections`.

    Example:
        ```python
        from keras_attn import data, viz

        shapes = data.Shapes()
        images, truth = next(iter(shapes.dataset("detection", 4, batch_size=4)))
        maps = viz.callbacks.DetectionBoxes("runs/shapes", images, truth, shapes.shapes)
        # detector.fit(dataset, epochs=20, callbacks=[maps])
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
        self.truth = take_rows(truth, slice(max_examples))
        self.detect = detect

    def _figures(self):
        detections = self._predict(self.detect)
        return self._draw("detections", plot_detections, detections, self.truth)
