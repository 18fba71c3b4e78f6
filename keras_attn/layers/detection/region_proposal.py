"""The region proposal network, and the samples that it learns from.

Legend: B batch, R and S rows and columns of a map, C channels, A anchors of all maps, N
proposals, M ground-truth boxes with padding.
"""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import (
    check_pair,
    check_positive,
    check_same_length,
    check_share,
)
from keras_attn.kernels.gather import gather_rows
from keras_attn.layers.adaptation.keras_layers import Conv2D
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.convolution.feature_pyramid import check_maps
from keras_attn.layers.initializers import independent_copy, normal
from keras_attn.ops.anchors import base_anchors, grid_anchors
from keras_attn.ops.box_matching import match_boxes, sample_matches
from keras_attn.ops.boxes import decode_clipped, encode_boxes, has_area
from keras_attn.ops.non_max_suppression import LOWEST, keep_best

_SMALLEST = 1e-3  # Pixels; narrower proposals are left out.


@keras.saving.register_keras_serializable("keras_attn")
class RegionProposal(BaseLayer):
    """Boxes that may hold an object, from the maps of an image.

    `h = relu(conv3x3(x))`; for each of its anchors, each location predicts a score,
    which says whether there is an object, and four deltas, which move the anchor onto
    the object. The proposals are the best boxes of each map that do not overlap with
    better boxes of the same map. All maps share the convolutions.

    No gradient flows from the proposals; scores and deltas are trained with `targets`.

    Args:
        anchor_sizes: For each map, √(w h) of its anchors in pixels, a list of lists.
        strides: For each map, pixels between adjacent locations, one number or two.
        image_size: H and W of the image in pixels; proposals end at its borders.
        aspect_ratios: Heights of anchors divided by their widths.
        num_proposals: N. In training: `num_training_proposals`.
        candidates_per_level: Number of boxes of each map, those with the highest
            scores, that are compared. In training: `training_candidates_per_level`.
        num_training_proposals: Number of proposals for `propose(training=True)`.
        training_candidates_per_level: Number of candidates of each map for
            `propose(training=True)`.
        iou_threshold: A box is left out if its intersection over union (IoU) with a
            better box is larger than this.
        positive_threshold: Minimum IoU with a ground-truth box for an anchor to count
            as an object.
        negative_threshold: An anchor whose largest IoU is below this is background.
        num_samples: Number of anchors per image that scores and deltas are trained
            with.
        positive_fraction: Maximum fraction of objects among them.
        kernel_initializer: Initializer of each kernel.
        seed: Seed of the samples.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: Maps (B, R, S, C), a list, with known sizes but B.

    Returns:
        A dictionary of `proposals` (B, N, 4), `"xyxy"` in pixels, by descending score;
        `proposal_scores` (B, N), in [0, 1]; `num_proposals` (B,) int32, after which
        proposals are zeros; `objectness` (B, A), logits of all anchors; `deltas`
        (B, A, 4). All of them are float32, or int32, in every precision.

    Raises:
        ValueError: If lists have different lengths, or sizes are not positive integers.

    Reference:
        Ren et al. 2015, section 3.1 (arXiv:1506.01497); several maps: Lin et al. 2017,
        section 4.1 (arXiv:1612.03144).
    """

    def __init__(
        self,
        anchor_sizes: Sequence[Sequence[float]],
        strides: Sequence[int | tuple[int, int]],
        image_size: int | tuple[int, int],
        *,
        aspect_ratios: Sequence[float] = (0.5, 1.0, 2.0),
        num_proposals: int = 1000,
        candidates_per_level: int = 1000,
        num_training_proposals: int = 2000,
        training_candidates_per_level: int = 2000,
        iou_threshold: float = 0.7,
        positive_threshold: float = 0.7,
        negative_threshold: float = 0.3,
        num_samples: int = 256,
        positive_fraction: float = 0.5,
        kernel_initializer: Initializer | None = None,
        seed: int | None = None,
        **kwargs,
    ):
        # Boxes in pixels do not fit into half precision.
        super().__init__(autocast=False, **kwargs)
        check_same_length(anchor_sizes=anchor_sizes, strides=strides)
        self.anchor_sizes = [list(sizes) for sizes in anchor_sizes]
        if not all(0 < size < np.inf for sizes in self.anchor_sizes for size in sizes):
            raise ValueError(
                "`anchor_sizes` must be numbers of pixels above zero. "
                f"Received: anchor_sizes={self.anchor_sizes}"
            )
        self.strides = [list(check_pair("strides", stride)) for stride in strides]
        self.image_size = list(check_pair("image_size", image_size))
        self.aspect_ratios = list(aspect_ratios)
        self.num_proposals = check_positive("num_proposals", num_proposals)
        self.candidates_per_level = check_positive(
            "candidates_per_level", candidates_per_level
        )
        self.num_training_proposals = check_positive(
            "num_training_proposals", num_training_proposals
        )
        self.training_candidates_per_level = check_positive(
            "training_candidates_per_level", training_candidates_per_level
        )
        self.iou_threshold = check_share("iou_threshold", iou_threshold)
        self.positive_threshold = positive_threshold
        self.negative_threshold = negative_threshold
        self.num_samples = check_positive("num_samples", num_samples)
        self.positive_fraction = check_share("positive_fraction", positive_fraction)
        self.kernel_initializer = keras.initializers.get(
            kernel_initializer or normal(0.01)
        )
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, inputs_shape):
        check_maps(inputs_shape)
        if len(inputs_shape) != len(self.strides):
            raise ValueError(
                "`inputs` must have a map for each of `strides`. "
                f"Received: {len(inputs_shape)} maps, strides={self.strides}"
            )
        channels = inputs_shape[0][-1]
        counts = {len(sizes) * len(self.aspect_ratios) for sizes in self.anchor_sizes}
        if len(counts) > 1:
            raise ValueError(
                "`anchor_sizes` must have the same number of sizes for each map, "
                "because all maps share their convolutions. "
                f"Received: anchor_sizes={self.anchor_sizes}"
            )
        (per_place,) = counts

        def convolution(units, size, name, activation=None):
            layer = Conv2D(
                units,
                size,
                padding="same",
                activation=activation,
                data_format="channels_last",
                kernel_initializer=independent_copy(self.kernel_initializer, name),
                dtype=self.dtype_policy,
                name=name,
            )
            layer.build((None, None, None, channels))
            return layer

        self.convolution = convolution(channels, 3, "convolution", "relu")
        self.to_objectness = convolution(per_place, 1, "objectness")
        self.to_deltas = convolution(4 * per_place, 1, "deltas")
        per_map = [
            grid_anchors(base_anchors(sizes, self.aspect_ratios), shape[1:3], stride)
            for sizes, shape, stride in zip(
                self.anchor_sizes, inputs_shape, self.strides, strict=True
            )
        ]
        self._counts = [len(anchors) for anchors in per_map]
        self.anchors = np.concatenate(per_map)  # (A, 4)

    def call(self, inputs):
        objectness, deltas = self.predict_anchors(inputs)
        proposals, scores, count = self.propose(objectness, deltas)
        return {
            "proposals": proposals,
            "proposal_scores": scores,
            "num_proposals": count,
            "objectness": objectness,
            "deltas": deltas,
        }

    def predict_anchors(self, maps):
        """Scores and deltas of all anchors.

        Args:
            maps: As in a call.

        Returns:
            A tuple of logits (B, A) and deltas (B, A, 4), float32.
        """
        objectness, deltas = [], []
        for features in maps:
            hidden = self.convolution(features)
            for layer, last, found in (
                (self.to_objectness, (), objectness),
                (self.to_deltas, (4,), deltas),
            ):
                values = ops.cast(layer(hidden), "float32")
                count = int(np.prod(values.shape[1:])) // int(np.prod(last))
                found.append(ops.reshape(values, (-1, count, *last)))
        return ops.concatenate(objectness, axis=1), ops.concatenate(deltas, axis=1)

    def propose(self, objectness, deltas, training=False):
        """The best boxes of each map that do not overlap with better boxes.

        Args:
            objectness: (B, A), from `predict_anchors`, like `deltas`.
            deltas: (B, A, 4).
            training: Whether to return as many proposals as for training.

        Returns:
            A tuple of proposals (B, N, 4), their scores (B, N) and their number (B,).
        """
        limit = (
            self.training_candidates_per_level
            if training
            else self.candidates_per_level
        )
        objectness, deltas = ops.stop_gradient(objectness), ops.stop_gradient(deltas)
        # Each map has `size` candidates, so that the candidates of all maps are
        # compared at once.
        size = min(limit, max(self._counts))
        boxes, scores, is_candidate, start = [], [], [], 0
        for count in self._counts:
            best, indices = ops.top_k(
                objectness[:, start : start + count], min(size, count)
            )
            indices = ops.cast(indices, "int32") + start
            anchors = ops.take(self.anchors, indices, axis=0)
            found = decode_clipped(
                gather_rows(deltas, indices), anchors, self.image_size
            )
            is_box = ops.logical_and(has_area(found, _SMALLEST), best == best)
            missing = ((0, 0), (0, size - min(size, count)))
            boxes.append(ops.pad(found, (*missing, (0, 0))))
            scores.append(ops.pad(best, missing))
            is_candidate.append(
                ops.pad(ops.cast(is_box, "int32"), missing) > 0,
            )
            start += count
        is_kept = keep_best(
            ops.stack(boxes, axis=1),
            ops.stack(is_candidate, axis=1),
            self.iou_threshold,
        )  # (B, maps, size)
        return self._best(boxes, scores, is_kept, training)

    def _best(self, boxes, scores, is_kept, training):
        """The best kept boxes of all maps."""
        boxes = ops.concatenate(boxes, axis=1)
        scores = ops.concatenate(scores, axis=1)
        total = boxes.shape[1]
        is_kept = ops.reshape(is_kept, (-1, total))
        wanted = self.num_training_proposals if training else self.num_proposals
        _, order = ops.top_k(ops.where(is_kept, scores, LOWEST), min(wanted, total))
        order = ops.cast(order, "int32")
        count = ops.minimum(
            ops.sum(ops.cast(is_kept, "int32"), axis=1), min(wanted, total)
        )
        ranks = ops.arange(min(wanted, total), dtype="int32")
        is_real = ops.expand_dims(ranks, 0) < ops.expand_dims(count, 1)
        scores = ops.sigmoid(gather_rows(scores, order))
        scores = ops.where(is_real, scores, 0.0)
        boxes = ops.where(ops.expand_dims(is_real, -1), gather_rows(boxes, order), 0.0)
        missing = wanted - min(wanted, total)
        if missing:
            boxes = ops.pad(boxes, ((0, 0), (0, missing), (0, 0)))
            scores = ops.pad(scores, ((0, 0), (0, missing)))
        return boxes, scores, count

    def targets(self, true_boxes, is_real):
        """A random sample of anchors, and their training targets.

        The sample depends on the seed and on the number of earlier calls, and is drawn
        with the same random numbers for all images.

        Args:
            true_boxes: (B, M, 4), `"xyxy"` in pixels; padding may hold any finite
                numbers.
            is_real: (B, M) bool, False = padding.

        Returns:
            A dictionary of `indices` (B, num_samples) int32 of anchors; `is_sample`
            (B, num_samples) bool, False where there were too few anchors; `is_object`
            (B, num_samples) bool; `deltas` (B, num_samples, 4), the deltas of objects.
        """
        matches = match_boxes(
            self.anchors,
            true_boxes,
            is_real,
            positive_threshold=self.positive_threshold,
            negative_threshold=self.negative_threshold,
            # The best anchors of a true box are objects, however small their IoU.
            low_quality_matches=True,
        )
        count = len(self.anchors)
        noise = keras.random.uniform((count,), seed=self.seed_generator)
        indices, is_sample = sample_matches(
            matches, noise, min(self.num_samples, count), self.positive_fraction
        )
        matches = gather_rows(matches, indices)
        deltas = encode_boxes(
            gather_rows(true_boxes, ops.maximum(matches, 0)),
            ops.take(self.anchors, indices, axis=0),
        )
        is_object = ops.logical_and(is_sample, matches >= 0)
        deltas = ops.where(ops.expand_dims(is_object, -1), deltas, 0.0)
        return {
            "indices": indices,
            "is_sample": is_sample,
            "is_object": is_object,
            "deltas": deltas,
        }
