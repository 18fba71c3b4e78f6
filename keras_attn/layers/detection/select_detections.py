"""Selects detections from scored proposals, and samples proposals to learn from.

Legend: B batch, R proposals, C classes without the background, K detections, M true
boxes with padding, S samples.
"""

from collections.abc import Sequence

import keras
from keras import ops

from keras_attn.checks.arguments import (
    check_choice,
    check_pair,
    check_positive,
    check_rank,
    check_shape,
    check_share,
)
from keras_attn.kernels.gather import gather_rows
from keras_attn.layers.base import BaseLayer
from keras_attn.ops.box_matching import IGNORED, match_boxes, sample_matches
from keras_attn.ops.boxes import (
    BOX_FORMATS,
    BoxFormat,
    convert_boxes,
    decode_clipped,
    encode_boxes,
    has_area,
)
from keras_attn.ops.non_max_suppression import non_max_suppression

_SMALLEST = 1e-2  # Pixels; narrower detections are left out.


@keras.saving.register_keras_serializable("keras_attn")
class SelectDetections(BaseLayer):
    """The best boxes of each class that do not overlap with better boxes.

    `score = softmax(logits)`. Each proposal has a score for the background, at index 0,
    and a score and a box for each class; boxes of different classes do not compete.

    Args:
        image_size: H and W of the image in pixels; boxes end at its borders.
        max_detections: K.
        score_threshold: Boxes are left out unless their score is larger than this.
        iou_threshold: A box is left out if its intersection over union with a better
            box of the same class is larger than this.
        max_candidates: Number of boxes with the highest scores, over all classes, that
            are compared.
        any_class: Whether each proposal keeps only its best class, and boxes of
            different classes compete.
        class_distributions: Whether to return the probabilities of all classes too.
        box_weights: Factors of the deltas, as in `ops.encode_boxes`.
        bounding_box_format: Format of the detections and of the ground-truth boxes, see
            `ops.convert_boxes`.
        match_threshold: Minimum intersection over union of a proposal with the
            ground-truth box that it learns.
        num_samples: S, the number of proposals per image that a head is trained with.
        positive_fraction: Maximum fraction of objects among them.
        seed: Seed of the samples.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: Logits (B, R, 1 + C), the background first.
        deltas: (B, R, 4 · (1 + C)); the deltas of the background are not used.
        proposals: (B, R, 4), `"xyxy"` in pixels.
        num_proposals: (B,) int32, the number of proposals that are not padding.

    Returns:
        A dictionary of `boxes` (B, K, 4) and `scores` (B, K), float32, by descending
        score; `classes` (B, K) int32, from 0 for logit 1; `num_detections` (B,) int32.
        After that number, boxes and scores are 0 and classes are -1. With
        `class_distributions` also these, (B, K, 1 + C) float32, the background first:
        the softmax of each detection's proposal, 0 in padding.

    Raises:
        ValueError: If `bounding_box_format` is unknown, sizes are not positive
            integers, or an input has the wrong shape.

    Reference:
        Girshick 2015, "Fast R-CNN" (arXiv:1504.08083).
    """

    def __init__(
        self,
        image_size: int | tuple[int, int],
        *,
        max_detections: int = 100,
        score_threshold: float = 0.05,
        iou_threshold: float = 0.5,
        max_candidates: int = 1000,
        any_class: bool = False,
        class_distributions: bool = False,
        box_weights: Sequence[float] = (10.0, 10.0, 5.0, 5.0),
        bounding_box_format: BoxFormat = "xyxy",
        match_threshold: float = 0.5,
        num_samples: int = 512,
        positive_fraction: float = 0.25,
        seed: int | None = None,
        **kwargs,
    ):
        # Boxes in pixels do not fit into half precision.
        super().__init__(autocast=False, **kwargs)
        check_choice("bounding_box_format", bounding_box_format, BOX_FORMATS)
        self.image_size = list(check_pair("image_size", image_size))
        self.max_detections = check_positive("max_detections", max_detections)
        self.score_threshold = check_share("score_threshold", score_threshold)
        self.iou_threshold = check_share("iou_threshold", iou_threshold)
        self.max_candidates = check_positive("max_candidates", max_candidates)
        self.any_class = any_class
        self.class_distributions = class_distributions
        self.box_weights = list(box_weights)
        self.bounding_box_format = bounding_box_format
        self.match_threshold = match_threshold
        self.num_samples = check_positive("num_samples", num_samples)
        self.positive_fraction = check_share("positive_fraction", positive_fraction)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, inputs, deltas, proposals, num_proposals):
        check_rank("inputs", inputs, 3, "(batch, proposals, 1 + classes)")
        batch, count, width = inputs.shape
        axes = "(batch, proposals, 4 · (1 + classes))"
        check_shape("deltas", deltas.shape, (batch, count, 4 * width), axes)
        expected = (batch, count, 4)
        check_shape("proposals", proposals.shape, expected, "(batch, proposals, 4)")
        check_shape("num_proposals", num_proposals.shape, (batch,), "(batch,)")
        num_classes = width - 1
        distributions = ops.softmax(ops.cast(inputs, "float32"))  # (B, R, 1 + C)
        scores = distributions[:, :, 1:]
        deltas = ops.reshape(ops.cast(deltas, "float32"), (-1, count, width, 4))
        scores = self._real_scores(scores, num_proposals)
        if self.any_class:
            best = ops.max(scores, axis=-1, keepdims=True)
            # If two scores are equal, both stay; their boxes then compete.
            scores = ops.where(scores >= best, scores, 0.0)
        total = count * num_classes
        candidates = min(self.max_candidates, total)
        scores, order = ops.top_k(ops.reshape(scores, (-1, total)), candidates)
        order = ops.cast(order, "int32")
        sources, classes = order // num_classes, order % num_classes
        # Only the boxes of candidates are decoded.
        rows = ops.reshape(deltas, (-1, count * width, 4))
        boxes = decode_clipped(
            gather_rows(rows, sources * width + classes + 1),
            gather_rows(ops.cast(proposals, "float32"), sources),
            self.image_size,
            self.box_weights,
        )
        chosen, found = non_max_suppression(
            boxes,
            scores,
            iou_threshold=self.iou_threshold,
            max_outputs=self.max_detections,
            is_candidate=ops.logical_and(
                scores > self.score_threshold, has_area(boxes, _SMALLEST)
            ),
            groups=None if self.any_class else classes,
        )
        detections, sources = self._padded(
            chosen, found, boxes, scores, classes, sources
        )
        if self.class_distributions:
            is_real = ops.expand_dims(detections["classes"] >= 0, -1)
            detections["class_distributions"] = ops.where(
                is_real, gather_rows(distributions, sources), 0.0
            )
        return detections

    def _real_scores(self, scores, num_proposals):
        """The scores, below zero for padded proposals."""
        ranks = ops.arange(scores.shape[1], dtype="int32")
        is_real = ops.expand_dims(ranks, 0) < ops.expand_dims(num_proposals, 1)
        return ops.where(ops.expand_dims(is_real, -1), scores, -1.0)

    def _padded(self, chosen, found, boxes, scores, classes, sources):
        size = chosen.shape[1]
        ranks = ops.arange(size, dtype="int32")
        is_real = ops.expand_dims(ranks, 0) < ops.expand_dims(found, 1)
        boxes = ops.where(ops.expand_dims(is_real, -1), gather_rows(boxes, chosen), 0.0)
        scores = ops.where(is_real, gather_rows(scores, chosen), 0.0)
        classes = ops.where(is_real, gather_rows(classes, chosen), -1)
        sources = gather_rows(sources, chosen)
        missing = self.max_detections - size
        if missing:
            boxes = ops.pad(boxes, ((0, 0), (0, missing), (0, 0)))
            scores = ops.pad(scores, ((0, 0), (0, missing)))
            classes = ops.pad(classes, ((0, 0), (0, missing)), constant_values=-1)
            sources = ops.pad(sources, ((0, 0), (0, missing)))
        detections = {
            "boxes": convert_boxes(
                boxes, "xyxy", self.bounding_box_format, self.image_size
            ),
            "scores": scores,
            "classes": ops.cast(classes, "int32"),
            "num_detections": found,
        }
        return detections, sources

    def targets(self, proposals, num_proposals, true_boxes, true_classes):
        """A random sample of proposals, and their training targets.

        The ground-truth boxes are added to the proposals. The sample depends on the
        seed and on the number of earlier calls, and is drawn with the same random
        numbers for all images.

        Args:
            proposals: (B, R, 4), `"xyxy"` in pixels.
            num_proposals: (B,) int32.
            true_boxes: (B, M, 4), `"xyxy"`; padding may hold any finite numbers.
            true_classes: (B, M) int32, -1 = padding.

        Returns:
            A dictionary of `boxes` (B, S, 4); `is_sample` (B, S) bool, False where
            there were too few proposals; `labels` (B, S) int32, 0 for the background
            and 1 + the class for an object; `deltas` (B, S, 4), zeros for the
            background; `matches` (B, S) int32, the index of the ground-truth box of an
            object, 0 otherwise.
        """
        is_real = true_classes >= 0
        ranks = ops.arange(proposals.shape[1], dtype="int32")
        is_proposal = ops.expand_dims(ranks, 0) < ops.expand_dims(num_proposals, 1)
        boxes = ops.concatenate([proposals, true_boxes], axis=1)
        is_box = ops.concatenate([is_proposal, is_real], axis=1)
        matches = match_boxes(
            boxes,
            true_boxes,
            is_real,
            positive_threshold=self.match_threshold,
            negative_threshold=self.match_threshold,
        )
        # Padding is neither an object nor background.
        matches = ops.where(is_box, matches, IGNORED)
        count = boxes.shape[1]
        noise = keras.random.uniform((count,), seed=self.seed_generator)
        indices, is_sample = sample_matches(
            matches, noise, min(self.num_samples, count), self.positive_fraction
        )
        boxes, matches = gather_rows(boxes, indices), gather_rows(matches, indices)
        is_object = ops.logical_and(is_sample, matches >= 0)
        matches = ops.where(is_object, matches, 0)
        labels = ops.where(is_object, gather_rows(true_classes, matches) + 1, 0)
        deltas = encode_boxes(gather_rows(true_boxes, matches), boxes, self.box_weights)
        return {
            "boxes": boxes,
            "is_sample": is_sample,
            "labels": labels,
            "deltas": ops.where(ops.expand_dims(is_object, -1), deltas, 0.0),
            "matches": matches,
        }
