"""Masks of the real columns of images of different widths.

Legend: B batch, H rows and W columns of the padded images, C channels.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_matches, check_rank
from keras_attn.checks.indices import check_indices
from keras_attn.layers.base import BaseLayer
from keras_attn.ops import column_mask


@keras.saving.register_keras_serializable("keras_attn")
class ColumnMask(BaseLayer):
    """True for the columns of each image that are not padding on its right.

    Args:
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        widths: Number of real columns of each image, integers (B,), from 0 to W.
        images: (B, H, W, C); only the shape is used.

    Returns:
        Boolean mask, (B, W).

    Raises:
        ValueError: If the inputs have the wrong shapes; in eager calls also if a width
            is negative or larger than W.

    Example:
        ```python
        import numpy as np
        from keras_attn import layers

        layers.ColumnMask()(np.array([2, 4]), np.zeros((2, 3, 5, 1)))
        # [[True, True, False, False, False], [True, True, True, True, False]]
        ```
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.index_ranges = {"widths": (0, None)}

    def build(self, widths_shape, images_shape):
        columns = images_shape[2]
        if columns is not None:
            # Widths are at most the number of columns of the images.
            self.index_ranges = {"widths": (0, columns + 1)}

    def call(self, widths, images):
        check_rank("widths", widths, 1, "(batch,)")
        check_rank("images", images, 4, "(batch, rows, columns, channels)")
        check_matches("widths", widths.shape, images.shape[:1], "(batch,)")
        columns = images.shape[2]
        check_indices("widths", widths, (0, None if columns is None else columns + 1))
        return column_mask(widths, ops.shape(images)[2])
