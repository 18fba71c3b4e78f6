"""Features of a fixed size inside boxes: RoI align and RoI pooling.

Legend: B batch, R boxes, H and W rows and columns of a map, C channels, O output rows
or columns.
"""

from collections.abc import Sequence

import keras

from keras_attn.checks.arguments import (
    check_pair,
    check_positive,
    check_rank,
    check_shape,
)
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.convolution.feature_pyramid import check_maps
from keras_attn.ops import roi_align, roi_pool
from keras_attn.ops.boxes import pyramid_levels


class _ROILayer(BaseLayer):
    """Base class of both layers: the maps, and the level of each box."""

    def __init__(
        self,
        output_size: int | tuple[int, int] = 7,
        *,
        strides: Sequence[float] = (16,),
        canonical_size: float = 224,
        canonical_level: int = 4,
        **kwargs,
    ):
        # Boxes in pixels do not fit into half precision.
        super().__init__(autocast=False, **kwargs)
        self.output_size = check_pair("output_size", output_size)
        self.strides = [float(stride) for stride in strides]
        self.canonical_size = canonical_size
        self.canonical_level = canonical_level

    def _pool(self, pool, inputs, boxes, **options):
        """Calls a function of `ops` with the maps that have a stride.

        Args:
            pool: `roi_align` or `roi_pool`.
            inputs: A map, or a list of maps.
            boxes: (B, R, 4).
            **options: Further arguments of the function.
        """
        maps = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        # Checks the shapes.
        self.compute_output_shape([tuple(x.shape) for x in maps], boxes.shape)
        maps = [
            keras.ops.cast(x, self.compute_dtype) for x in maps[: len(self.strides)]
        ]
        levels = None
        if len(maps) > 1:
            levels = pyramid_levels(
                boxes, self.strides, self.canonical_size, self.canonical_level
            )
        return pool(
            maps,
            boxes,
            strides=self.strides,
            output_size=self.output_size,
            levels=levels,
            **options,
        )

    def compute_output_shape(self, inputs_shape, boxes_shape):
        is_list = bool(inputs_shape) and isinstance(inputs_shape[0], list | tuple)
        shapes = list(inputs_shape) if is_list else [inputs_shape]
        for shape in shapes:
            check_rank("inputs", shape, 4, "(batch, rows, columns, channels)")
        check_maps(shapes)
        if len(shapes) < len(self.strides):
            raise ValueError(
                "`inputs` must have a map for each of `strides`. "
                f"Received: {len(shapes)} maps, strides={self.strides}"
            )
        batch, *_, channels = shapes[0]
        check_shape("boxes", boxes_shape, (batch, None, 4), "(batch, boxes, 4)")
        return (*boxes_shape[:2], *self.output_size, channels)


@keras.saving.register_keras_serializable("keras_attn")
class ROIAlign(_ROILayer):
    """Features at a regular grid inside each box, by bilinear interpolation.

    `y = mean over samples of Σ_neighbors weight · x`, see `ops.roi_align`. With several
    maps, a box of canonical size s, √(w h) = s, reads the map with stride
    2^canonical_level, and a box of half that size reads the next finer map.

    Args:
        output_size: O, one number or two, rows first.
        strides: Pixels between adjacent locations of each map, finest first. Maps in a
            call beyond the number of strides are not read.
        sampling_ratio: Number of samples of each bin along each axis.
        aligned: Whether location i of a map lies at i + ½ instead of at i.
        canonical_size: s, in pixels.
        canonical_level: The base-2 logarithm of the stride of the map that such a box
            reads.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: A map (B, H, W, C), or a list of maps, with known sizes but B.
        boxes: (B, R, 4), float32, `"xyxy"` in pixels of the image.

    Returns:
        (B, R, O, O, C). No gradient flows to the boxes.

    Raises:
        ValueError: If a map does not have 4 axes, `boxes` has another shape, or there
            are fewer maps than strides.

    Reference:
        He et al. 2017, section 3 (arXiv:1703.06870); levels: Lin et al. 2017,
        equation 1 (arXiv:1612.03144).
    """

    def __init__(
        self,
        output_size: int | tuple[int, int] = 7,
        *,
        strides: Sequence[float] = (16,),
        sampling_ratio: int = 2,
        aligned: bool = False,
        canonical_size: float = 224,
        canonical_level: int = 4,
        **kwargs,
    ):
        super().__init__(
            output_size,
            strides=strides,
            canonical_size=canonical_size,
            canonical_level=canonical_level,
            **kwargs,
        )
        self.sampling_ratio = check_positive("sampling_ratio", sampling_ratio)
        self.aligned = aligned

    def call(self, inputs, boxes):
        return self._pool(
            roi_align,
            inputs,
            boxes,
            sampling_ratio=self.sampling_ratio,
            aligned=self.aligned,
        )


@keras.saving.register_keras_serializable("keras_attn")
@described_as(ROIAlign)
class ROIPool(_ROILayer):
    """The largest feature in each bin of each box: `y = max over the bin of x`.

    Sides are rounded to whole locations of the map, see `ops.roi_pool`. With several
    maps each box reads one, as in `ROIAlign`.

    Args:
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Returns:
        As `ROIAlign`.

    Reference:
        Girshick 2015, "Fast R-CNN", section 2.1 (arXiv:1504.08083).
    """

    def call(self, inputs, boxes):
        return self._pool(roi_pool, inputs, boxes)
