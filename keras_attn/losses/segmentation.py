"""Segmentation losses: labels that do not count, and weights for borders.

Legend: B batch, H and W pixels, C classes.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn.checks.arguments import fits
from keras_attn.extras import requires_extra
from keras_attn.losses.cross_entropy import real_weights
from keras_attn.losses.weighted_mean import WeightedMeanLoss

# Beyond this many standard deviations the weight of a border is below 10⁻⁷ of w₀.
_REACH = 6


@keras.saving.register_keras_serializable("keras_attn")
class SegmentationCrossEntropy(WeightedMeanLoss):
    """Mean cross-entropy over the pixels that have a label, in nats per pixel.

    `Σ w·loss / Σ w`, where w is the sample weight (1 by default), and 0 where the label
    is `ignore_label`. A batch without labels has the loss 0. Keras' own loss with
    `ignore_class` divides by the number of pixels that count, without their sample
    weights.

    Args:
        ignore_label: Label of pixels that do not count, such as the borders of objects
            in VOC. None if there are none.
        reduction: `"mean_with_sample_weight"`, or any other Keras reduction.
        name: Name of the loss.
        dtype: Dtype of the computation. Default: float32, under every policy.

    Call arguments:
        y_true: Labels (B, H, W), integers in [0, C) or `ignore_label`. What a loss does
            with other labels depends on the backend: `check_labels` refuses them.
        y_pred: Logits (B, H, W, C).
        sample_weight: (B, H, W), such as `border_weights`, or (B,).

    Returns:
        A scalar, or (B, H, W) with `reduction="none"`.

    Raises:
        ValueError: If the labels and the logits have different sizes, where these are
            known. A U-Net of `"valid"` convolutions needs labels without the border
            that it does not predict.
    """

    def __init__(
        self,
        ignore_label: int | None = 255,
        *,
        reduction="mean_with_sample_weight",
        name="segmentation_cross_entropy",
        dtype=None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        if ignore_label is not None and (
            isinstance(ignore_label, bool) or not isinstance(ignore_label, int)
        ):
            raise ValueError(
                "`ignore_label` must be an integer label or None. Received: "
                f"{ignore_label=}"
            )
        self.ignore_label = ignore_label

    def __call__(self, y_true, y_pred, sample_weight: Any = None):
        """Computes the loss of the pixels that count; see the class."""
        weights = real_weights(y_true, sample_weight, self.ignore_label)
        return super().__call__(y_true, y_pred, weights)

    def call(self, y_true, y_pred):
        """Computes the loss of each pixel, 0 where its label does not count."""
        _check_sizes(y_true, y_pred)
        labels = ops.cast(y_true, "int32")
        if self.ignore_label is None:
            return _cross_entropy(labels, y_pred)
        counts = ops.not_equal(labels, self.ignore_label)
        losses = _cross_entropy(ops.where(counts, labels, 0), y_pred)
        return ops.where(counts, losses, ops.zeros_like(losses))


def _cross_entropy(labels, logits):
    return ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def _check_sizes(labels, logits):
    labels_shape, shape = tuple(labels.shape), tuple(logits.shape)
    if not fits(labels_shape, shape[:-1], empty_axes=(0, 1, 2)):
        raise ValueError(
            "Labels must be (batch, rows, columns), the size of the logits (batch, "
            "rows, columns, classes). Crop or resize them; remove a last axis of one. "
            f"Received: y_true.shape={labels_shape}, y_pred.shape={shape}"
        )


def border_weights(instances, *, border_weight=10.0, sigma=5.0, balance=True):
    """Weights of pixels that make a network learn the gaps between touching objects.

        w(x) = w_c(x) + w₀ · exp(-(d₁(x) + d₂(x))² / (2σ²))

    where d₁ and d₂ are the distances of x to the nearest and the second nearest object.
    The second term applies only to the background: the paper does not define the
    distance to the border for pixels on an object. It is 0 where d₂ exceeds 6σ, and in
    an image of fewer than two objects.

    w_c balances the two classes: it is half the number of all pixels divided by the
    number of pixels of the class, so that both classes have the same sum, and the mean
    is 1. In an image of one class it is 1.

    Args:
        instances: Integers (H, W), or (B, H, W): 0 is background, and each object has
            its own number above 0. Objects with the same number count as one. Objects
            that touch need a background of at least one pixel between them, which the
            network is to learn.
        border_weight: w₀.
        sigma: σ in pixels.
        balance: Whether w_c is as above; otherwise it is 1.

    Returns:
        float32 NumPy array of the shape of `instances`, the `sample_weight` of a loss.

    Raises:
        TypeError: If `instances` are not integers.
        ValueError: If `instances` do not have 2 or 3 axes or are negative,
            `border_weight` is negative, or `sigma` is not positive.
        ImportError: If SciPy is not installed.

    Example:
        ```python
        import numpy as np
        from keras_attn import losses

        instances = np.array([[[0, 1, 1, 0, 2, 2], [0, 1, 1, 0, 2, 2]]])  # Two cells.
        weights = losses.border_weights(instances)  # (1, 2, 6), large between the two.
        loss = losses.SegmentationCrossEntropy()
        loss(instances > 0, np.zeros((1, 2, 6, 2)), sample_weight=weights)
        ```

    Reference:
        Ronneberger et al. 2015, equation 2 (arXiv:1505.04597).
    """
    instances = _checked_instances(instances)
    if border_weight < 0 or sigma <= 0:
        raise ValueError(
            "`border_weight` must be at least 0, and `sigma` above 0. "
            f"Received: border_weight={border_weight}, sigma={sigma}"
        )
    if instances.ndim == 3:
        options = {"border_weight": border_weight, "sigma": sigma, "balance": balance}
        maps = [border_weights(one, **options) for one in instances]
        return np.stack(maps) if maps else np.zeros(instances.shape, "float32")
    weights = np.ones(instances.shape)
    if balance:
        for is_class in (instances == 0, instances > 0):
            if 0 < is_class.sum() < is_class.size:
                weights[is_class] = is_class.size / (2 * is_class.sum())
    nearest, second = _distances(instances, _REACH * sigma)
    borders = border_weight * np.exp(-((nearest + second) ** 2) / (2 * sigma**2))
    return (weights + np.where(instances == 0, borders, 0)).astype("float32")


def _checked_instances(instances):
    instances = np.asarray(instances)
    if not np.issubdtype(instances.dtype, np.integer):
        raise TypeError(
            "`instances` must be integers: 0 for the background, and a number for each "
            f"object. Received: instances.dtype={instances.dtype}"
        )
    if instances.ndim not in (2, 3) or (instances < 0).any():
        raise ValueError(
            "`instances` must be (rows, columns) or (batch, rows, columns), without "
            f"negative numbers. Received: instances.shape={instances.shape}, minimum "
            f"{instances.min() if instances.size else None}"
        )
    return instances


def _distances(instances, reach):
    """Distance of each pixel to the nearest and the second nearest object.

    Distances above `reach` may be infinite.
    """
    with requires_extra("vision", "`border_weights`"):
        from scipy import ndimage
    nearest = np.full(instances.shape, np.inf)
    second = nearest.copy()
    # Object numbers may have gaps.
    numbers, compact = np.unique(instances, return_inverse=True)
    compact = compact.reshape(instances.shape) + int(0 not in numbers)
    margin = int(np.ceil(reach))
    for number, box in enumerate(ndimage.find_objects(compact), start=1):
        # Only within reach of the object, so that many small objects take little time.
        near = tuple(
            slice(max(0, side.start - margin), side.stop + margin) for side in box
        )
        away = compact[near] != number
        distance: Any = ndimage.distance_transform_edt(away)
        second[near] = np.minimum(second[near], np.maximum(nearest[near], distance))
        nearest[near] = np.minimum(nearest[near], distance)
    return nearest, second
