"""Regions of an image as the inputs of ViLBERT: locations, and a region for the whole.

Legend: B batch, R regions, F width of the features.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_rank, check_shape
from keras_attn.layers.attention.attention_checks import check_is_mask
from keras_attn.layers.base import BaseLayer
from keras_attn.ops import box_locations


@keras.saving.register_keras_serializable("keras_attn")
class GlobalRegion(BaseLayer):
    """Puts a region of the whole image before the others.

    Its features are the mean of the features of all real regions. The location of a
    region is `(x1, y1, x2, y2, (x2 - x1)(y2 - y1))`: its box and its area as shares of
    the image; the location of the whole image is `(0, 0, 1, 1, 1)`.

    Args:
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        features: (B, R, F).
        boxes: (B, R, 4), left, top, right and bottom as shares of the image's width and
            height, in [0, 1].
        region_padding_mask: (B, R), True = a real region.

    Returns:
        Features (B, 1 + R, F), locations (B, 1 + R, 5), and the mask (B, 1 + R), bool,
        in which the first region is real even if no other is: then its features are
        zeros. So an example that only fills up a batch in training does no harm; to
        predict, a model of `build_vilbert` refuses an image without regions, because
        its answer would follow only from the words.

    Raises:
        ValueError: If an input has the wrong shape.

    Reference:
        Lu et al. 2019, section 2.2 "Image Representations" and section 3.1
        (arXiv:1908.02265).
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, features, boxes, region_padding_mask):
        check_rank("features", features, 3, "(batch, regions, width)")
        regions = features.shape[:2]
        check_shape("boxes", boxes.shape, (*regions, 4), "(batch, regions, 4)")
        name, axes = "region_padding_mask", "(batch, regions)"
        check_shape(name, region_padding_mask.shape, regions, axes)
        check_is_mask(name, region_padding_mask)
        real = ops.cast(region_padding_mask, "float32")[:, :, None]
        # In float32: a long sum in half precision loses small terms.
        total = ops.sum(ops.cast(features, "float32") * real, axis=1, keepdims=True)
        mean = total / ops.maximum(ops.sum(real, axis=1, keepdims=True), 1.0)
        mean = ops.cast(mean, features.dtype)
        locations = box_locations(boxes)
        whole = ops.cast([[[0, 0, 1, 1, 1]]], locations.dtype) + 0 * locations[:, :1]
        mask = ops.cast(region_padding_mask, "bool")
        return (
            ops.concatenate([mean, features], axis=1),
            ops.concatenate([whole, locations], axis=1),
            ops.concatenate([ops.ones_like(mask[:, :1]), mask], axis=1),
        )

    def compute_mask(self, features, previous_mask=None):
        """None: the mask is an output."""
