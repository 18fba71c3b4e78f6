"""The class of all two-stage detectors: training with `fit`, and region features.

Legend: B batch, H and W pixels, M ground-truth boxes with padding, S samples, K
detections, C classes without the background, h and w rows and columns of a mask.
"""

import functools
import warnings
from typing import Any

import keras
from keras import ops

from keras_attn.checks.arguments import check_choice, check_positive
from keras_attn.kernels.replicas import mean_loss
from keras_attn.layers.detection.roi_pooling import ROIAlign
from keras_attn.layers.normalization.batch_normalization import BatchNormalization
from keras_attn.models.parts.detection.detector_truth import (
    check_boxes,
    check_shapes,
    check_truth,
    mask_targets,
    pad_boxes,
    with_at_least_one_box,
)
from keras_attn.models.parts.detection.heads import box_head, mask_head
from keras_attn.models.parts.functional import Functional, by_name
from keras_attn.models.parts.known_sizes import with_shape
from keras_attn.models.parts.own_loss import OwnLossModel
from keras_attn.ops.boxes import convert_boxes, has_area

_LOSSES = ("objectness", "proposal_box", "class", "box", "mask")


@keras.saving.register_keras_serializable("keras_attn")
class Detector(OwnLossModel):
    """A functional model from images to detections that learns from ground-truth boxes.

    `fit` takes `(images, truth)`, where `truth` is a dictionary of `boxes` (B, M, 4) in
    the model's `bounding_box_format`, `classes` (B, M) int from 0, -1 = padding, and,
    for a model with masks, `masks` (B, M, H, W), 0 or 1; above 0.5 counts as 1. M is
    the same for all batches of a data set, or 0. A later call may have a different M:
    `fit` and `evaluate` then recompile their step, `train_on_batch` and `test_on_batch`
    only if M is larger. `compile` takes no loss. Boxes that have no area, contain NaN
    or infinity, or reach beyond a million pixels count as padding, and so do classes
    that the model does not have. Arrays with boxes that are turned round, or shares of
    the image instead of pixels, are refused. An image without objects is all
    background.

    Losses: whether an anchor is an object, and its box (`objectness_loss`,
    `proposal_box_loss`); the class of a proposal, and its box (`class_loss`,
    `box_loss`); the mask of an object (`mask_loss`). Their sum is minimized.

    Called with `training=True`, the model returns what its losses need: the list of
    maps that proposals are computed from.

    Reference:
        Ren et al. 2015, section 3 (arXiv:1506.01497); He et al. 2017
        (arXiv:1703.06870).
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._mean_losses = [
            keras.metrics.Mean(name=f"{name}_loss")
            for name in _LOSSES
            if name != "mask" or self.has_masks
        ]

    @property
    def has_masks(self) -> bool:
        """Whether the model has a mask head."""
        return "mask_logits" in by_name(self.layers)

    # Not attributes, which Keras would track and save twice.
    @functools.cached_property
    def _maps(self) -> Any:
        """The part of the model from images to maps."""
        return keras.Model(self.input, self.get_layer("region_proposal").input)

    def _compute_maps(self, images, training) -> list:
        # Keras replaces a list of one tensor by that tensor.
        return keras.tree.flatten(self._maps(images, training=training))

    @functools.cached_property
    def _compiled_boxes(self) -> dict[str, int]:
        """The number of boxes that each step was compiled for, by its name in Keras."""
        return {}

    @functools.cached_property
    def _region_models(self) -> dict[tuple[int, str], keras.Model]:
        return {}

    def call(self, inputs, training=None, mask=None):
        """Detections; in training the maps of the feature pyramid."""
        if training:
            return self._compute_maps(inputs, training=True)
        return super().call(inputs, training=training, mask=mask)

    def fit(self, x=None, y=None, *args, **kwargs):
        """Trains as `keras.Model.fit` does, with any number of boxes."""
        self._warn_of_initial_norms()
        self._discard_step_unless_for("train_function", _count_boxes(x, y))
        return super().fit(x, y, *args, **kwargs)

    def evaluate(self, x=None, y=None, *args, **kwargs):
        """Evaluates as `keras.Model.evaluate` does, with any number of boxes."""
        self._discard_step_unless_for("test_function", _count_boxes(x, y))
        return super().evaluate(x, y, *args, **kwargs)

    def train_on_batch(self, x, y=None, *args, **kwargs):
        """Trains as `keras.Model.train_on_batch` does, with any number of boxes."""
        y = self._padded("train_function", y)
        return super().train_on_batch(x, y, *args, **kwargs)

    def test_on_batch(self, x, y=None, *args, **kwargs):
        """Evaluates as `keras.Model.test_on_batch` does, with any number of boxes."""
        y = self._padded("test_function", y)
        return super().test_on_batch(x, y, *args, **kwargs)

    def _warn_of_initial_norms(self):
        """Warns if frozen norms have never seen data."""
        norms = [
            layer
            for layer in self.layers
            if isinstance(layer, BatchNormalization) and not layer.trainable
        ]
        # Their variances are 1 until they are trained or loaded.
        if norms and all(
            bool(ops.all(ops.equal(norm.moving_variance, 1.0))) for norm in norms
        ):
            warnings.warn(
                "The norms of this detector are frozen at their initial values, which "
                "fit no data. Load a checkpoint, or build the detector with "
                "`frozen_norms=False, num_frozen=0`.",
                stacklevel=3,
            )

    def _check_examples(self, inputs, labels=None) -> None:
        super()._check_examples(inputs, labels)
        selector = by_name(self.layers)["detections"]
        check_boxes(labels, selector.bounding_box_format, selector.image_size)

    # The losses need a known number: at a second number, TensorFlow would compile a
    # step for any number.
    def _discard_step_unless_for(self, function, count):
        """Discards a step that was compiled for a different number of boxes."""
        if count is None or count == self._compiled_boxes.get(function):
            return
        if function in self._compiled_boxes:
            setattr(self, function, None)
        self._compiled_boxes[function] = count

    def _padded(self, function, truth):
        """The truth of a batch, with padding up to what was compiled."""
        count = _count_boxes(None, truth)
        missing = self._compiled_boxes.get(function, 0) - (count or 0)
        if not count or missing <= 0:
            self._discard_step_unless_for(function, count)
            return truth
        return pad_boxes(truth, missing)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """The sum of all losses.

        Args:
            x: Images. Used only if `y_pred` is not the maps.
            y: The ground-truth boxes, see the class.
            y_pred: What the model returned: maps in training, otherwise detections.
            sample_weight: None; weights are not supported.
            training: Whether the model is being trained.

        Returns:
            A scalar.

        Raises:
            ValueError: If ground-truth boxes are missing, an array has the wrong shape,
                `sample_weight` is given, or `x` is missing when `y_pred` is not the
                maps.
        """
        check_truth(y, sample_weight, self.has_masks)
        truth: Any = y
        selector = by_name(self.layers)["detections"]
        check_shapes(truth, self.has_masks, selector.image_size)
        if self.has_masks:
            shape = (None, truth["boxes"].shape[1], *selector.image_size)
            truth = {**truth, "masks": with_shape(truth["masks"], shape)}
        truth = with_at_least_one_box(truth, self.has_masks)
        maps: Any = y_pred
        if isinstance(y_pred, dict) or y_pred is None:
            maps = self._compute_maps(_checked_images(x), training=training)
        losses = self._all_losses(maps, truth, training)
        count = ops.shape(maps[0])[0]
        total = sum(self.losses, start=ops.zeros(()))  # Losses of layers.
        for metric in self._mean_losses:
            value = losses[metric.name]
            # Weighted by the number of images: the last batch may be smaller.
            metric.update_state(value, sample_weight=count)
            total = total + value
        images = ops.cast(count, total.dtype)
        return mean_loss(total * images, images)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """The losses, and in `evaluate` the metrics of detections."""
        if isinstance(y_pred, dict):
            return super().compute_metrics(x, y, y_pred, sample_weight)
        return self.get_metrics_result()

    def _all_losses(self, maps, truth, training) -> dict[str, Any]:
        # Imported only by a model that is trained, because it imports all of
        # `training`.
        from keras_attn.losses import detection as losses

        layers = by_name(self.layers)
        proposer, selector = layers["region_proposal"], layers["detections"]
        true_boxes, true_classes = self._real_boxes(truth, layers)
        objectness, anchor_deltas = proposer.predict_anchors(maps)
        anchor_targets = proposer.targets(true_boxes, true_classes >= 0)
        terms = losses.proposal_losses(objectness, anchor_deltas, anchor_targets)
        proposals, _, count = proposer.propose(objectness, anchor_deltas, training=True)
        # True boxes are added to the proposals, and S of all these boxes are sampled,
        # objects first. Objects are boxes with an IoU of at least `match_threshold`
        # (0.5) with a true box, and at most `positive_fraction` (1/4) of the samples.
        samples = selector.targets(proposals, count, true_boxes, true_classes)
        pooled = layers["roi_pooling"](maps, samples["boxes"])
        _, class_logits, box_deltas = box_head(layers, pooled, training)
        terms |= losses.head_losses(class_logits, box_deltas, samples)
        if "mask_logits" in layers:
            max_objects = int(selector.num_samples * selector.positive_fraction)
            object_boxes, labels, matches = (
                samples[name][:, :max_objects]
                for name in ("boxes", "labels", "matches")
            )
            pooled = layers["mask_pooling"](maps, object_boxes)
            mask_logits = mask_head(layers, pooled)
            size, aligned = mask_logits.shape[2:4], layers["masks"].aligned
            # RoI align of the true mask of each box, to the size of the logits.
            true_masks = mask_targets(
                truth["masks"], object_boxes, matches, size, aligned
            )
            terms["mask_loss"] = losses.mask_loss(mask_logits, true_masks, labels)
        return terms

    def _real_boxes(self, truth, layers):
        """Boxes (B, M, 4) in `"xyxy"`, and classes (B, M), -1 where they are unusable.

        Boxes that cannot be computed with are ignored in training.
        """
        selector = layers["detections"]
        boxes = convert_boxes(
            ops.cast(truth["boxes"], "float32"),
            selector.bounding_box_format,
            "xyxy",
            selector.image_size,
        )
        classes = ops.cast(truth["classes"], "int32")
        num_classes = layers["class_logits"].units - 1
        height, width = selector.image_size
        left, top, right, bottom = ops.unstack(boxes, 4, axis=-1)
        touches_image = ops.logical_and(
            ops.logical_and(left < width, top < height),
            ops.logical_and(right > 0, bottom > 0),
        )
        # The area of a larger box would overflow.
        is_small = ops.max(ops.abs(boxes), axis=-1) < 1e6
        is_usable = ops.logical_and(has_area(boxes), touches_image)
        is_usable = ops.logical_and(is_usable, is_small)
        is_class = ops.logical_and(classes >= 0, classes < num_classes)
        is_real = ops.logical_and(is_usable, is_class)
        if "is_crowd" in truth:
            # A group of objects is not an object.
            is_real = ops.logical_and(is_real, ops.cast(truth["is_crowd"], "int32") < 1)
        boxes = ops.where(ops.expand_dims(is_real, -1), boxes, 0.0)
        return boxes, ops.where(is_real, classes, -1)

    def region_features(self, images, num_regions=36, *, source="map"):
        """Features of the best regions, for models of vision and language.

        Each proposal is scored by its best class, also if the score is low. Overlapping
        regions are left out.

        Args:
            images: (B, H, W, 3).
            num_regions: K.
            source: What features are: "map", the mean of the backbone's last map inside
                the box (D = 2048 for ResNet-50), where a small object shares a location
                with what is around it; or "head", the output of the last fully
                connected layer (D = 1024), from which the class is predicted. A VGG has
                the latter in either case.

        Returns:
            A tuple of features (B, K, D), boxes (B, K, 4) in the model's
            `bounding_box_format`, scores (B, K), and class distributions (B, K, 1 + C),
            the background first. Missing regions are zeros.

        Raises:
            ValueError: If `num_regions` is not a positive integer, or `source` is
                neither "map" nor "head".

        Example:
            ```python
            import numpy as np
            from keras_attn import models

            detector = models.build_faster_rcnn(num_classes=3, image_size=64)
            image = np.random.uniform(size=(1, 64, 64, 3))
            found = detector.region_model(4)(image)
            found["features"]  # (1, 4, 2048)
            ```

        Reference:
            Anderson et al. 2018, section 3.1 (arXiv:1707.07998).
        """
        model = self.region_model(num_regions, source=source)
        outputs = model(images)
        names = ("features", "boxes", "scores", "class_distributions")
        return tuple(outputs[name] for name in names)

    def region_model(self, num_regions=36, *, source="map") -> keras.Model:
        """The functional model of `region_features`, which `export` ships.

        Args:
            num_regions: K.
            source: As for `region_features`.

        Returns:
            A model from `images` to a dictionary of `features`, `boxes`, `scores`,
            `class_distributions` and `num_detections` (B,) int32.

        Raises:
            ValueError: As for `region_features`.
        """
        check_positive("num_regions", num_regions)
        check_choice("source", source, ("map", "head"))
        key = num_regions, source
        if key not in self._region_models:
            self._region_models[key] = self._build_regions(num_regions, source)
        return self._region_models[key]

    def _build_regions(self, num_regions, source):
        layers = by_name(self.layers)
        old = layers["detections"]
        config = {
            **old.get_config(),
            "name": "regions",
            "max_detections": num_regions,
            "score_threshold": 0.0,
            "any_class": True,
            "class_distributions": True,
        }
        found = type(old).from_config(config)(*old.input)
        boxes = convert_boxes(
            found["boxes"], old.bounding_box_format, "xyxy", old.image_size
        )
        if source == "map" and "feature_pyramid" in layers:
            # With a single map, Keras unwraps the list.
            last = keras.tree.flatten(layers["feature_pyramid"].input)[-1]
            stride = layers["roi_pooling"].strides[-1]
            pooled = ROIAlign(strides=[stride], name="region_pooling")(last, boxes)
            features = ops.mean(pooled, axis=(2, 3))
        else:
            maps = layers["region_proposal"].input
            features, _, _ = box_head(layers, layers["roi_pooling"](maps, boxes))
        is_real = ops.expand_dims(found["classes"] >= 0, -1)
        kept = ("boxes", "scores", "class_distributions", "num_detections")
        outputs = {
            "features": ops.where(is_real, ops.cast(features, "float32"), 0.0),
            **{name: found[name] for name in kept},
        }
        return Functional(self.input, outputs, name=f"{self.name}_regions")


def _count_boxes(inputs, truth) -> int | None:
    """M of arrays, or of the batches of a data set; None if it is unknown."""
    if truth is None:
        spec = getattr(inputs, "element_spec", None)
        truth = spec[1] if isinstance(spec, tuple) and len(spec) > 1 else None
    boxes = truth.get("boxes") if isinstance(truth, dict) else None
    shape = getattr(boxes, "shape", ())
    return shape[1] if len(shape) == 3 else None


def _checked_images(images):
    if images is None:
        raise ValueError(
            "`x`, the images, must be given unless `y_pred` is what the model returns "
            "with `training=True`. Received: x=None"
        )
    return images
