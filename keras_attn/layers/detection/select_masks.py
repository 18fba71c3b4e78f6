"""Selects the mask of each detection from the masks of all classes.

Legend: B batch, K detections, C classes without the background, h and w rows and
columns of a mask.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_rank, check_shape
from keras_attn.layers.base import BaseLayer


@keras.saving.register_keras_serializable("keras_attn")
class SelectMasks(BaseLayer):
    """`sigmoid(logits)` of the class of each detection.

    Args:
        aligned: How the masks are cut from the ground truth and pasted, see
            `ops.paste_masks`. The output does not depend on it.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: Logits (B, K, h, w, 1 + C), the background first.
        classes: (B, K) int32, from 0 for logit 1; -1 = padding.

    Returns:
        (B, K, h, w) float32, in [0, 1]; zeros for padding.

    Raises:
        ValueError: If an input has the wrong shape.

    Reference:
        He et al. 2017, section 3 (arXiv:1703.06870).
    """

    def __init__(self, aligned: bool = True, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.aligned = aligned

    def call(self, inputs, classes):
        self.compute_output_shape(inputs.shape, classes.shape)  # Checks the shapes.
        # (B, K, 1 + C): a product, because no runtime gathers along the last axis well.
        chosen = ops.one_hot(classes + 1, inputs.shape[-1], dtype="float32")
        chosen = ops.expand_dims(chosen, -1)  # (B, K, 1 + C, 1)
        shape = inputs.shape
        logits = ops.reshape(
            ops.cast(inputs, "float32"), (-1, shape[1], shape[2] * shape[3], shape[4])
        )
        logits = ops.reshape(ops.matmul(logits, chosen), (-1, *shape[1:4]))
        is_real = ops.expand_dims(ops.expand_dims(classes >= 0, -1), -1)
        return ops.where(is_real, ops.sigmoid(logits), 0.0)

    def compute_output_shape(self, inputs_shape, classes_shape):
        check_rank(
            "inputs", inputs_shape, 5, "(batch, detections, rows, columns, classes)"
        )
        check_shape("classes", classes_shape, inputs_shape[:2], "(batch, detections)")
        return inputs_shape[:-1]
