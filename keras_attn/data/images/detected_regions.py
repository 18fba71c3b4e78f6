"""Regions of images from a detector, as models of words and regions read them.

Legend: B images, H and W pixels, R regions, F features, C classes.
"""

from typing import Any

import numpy as np

from keras_attn.checks.arguments import check_positive


def detect_regions(
    detector: Any, images: np.ndarray, *, num_regions: int, min_score: float = 0.3
) -> dict[str, np.ndarray]:
    """The regions that a Faster R-CNN finds in images, and its head's outputs.

    Args:
        detector: A detector of images in [0, 1], with `region_model`.
        images: uint8 (B, H, W, 3).
        num_regions: R.
        min_score: A region is real if the score of its best class is above this. The
            first region always is: a model needs one.

    Returns:
        A dictionary of `features` float32 (B, R, F), `boxes` float32 (B, R, 4), left,
        top, right and bottom as shares of the image, `class_distributions` float32
        (B, R, 1 + C), background first, and `is_real` bool (B, R). What is not real is
        zero.

    Raises:
        ValueError: If `num_regions` is not a positive integer.
    """
    check_positive("num_regions", num_regions)
    model = detector.region_model(num_regions, source="head")
    found = model.predict_on_batch(np.asarray(images, "float32") / 255)
    is_real = found["scores"] > min_score
    is_real[:, 0] = True
    height, width = images.shape[1:3]
    found["boxes"] = found["boxes"] / np.array([width, height] * 2, "float32")
    names = ("features", "boxes", "class_distributions")
    regions = {
        name: np.where(is_real[..., None], found[name], 0).astype("float32")
        for name in names
    }
    return {**regions, "is_real": is_real}
