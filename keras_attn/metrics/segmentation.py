"""Segmentation scores: IoU, pixel accuracy, and the Rand score of cell images.

Legend: B batch, H and W pixels, C classes.
"""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_attn.checks.arguments import check_positive
from keras_attn.checks.configuration import Configured


@keras.saving.register_keras_serializable("keras_attn")
class SegmentationScores(Configured, keras.metrics.MeanIoU):
    """Mean IoU, pixel accuracy and the IoU of each class, over all pixels so far.

    The intersection over union of a class is `TP / (TP + FP + FN)` in pixels, over the
    whole epoch rather than per batch. Pixels with the ignored label count nowhere. The
    scores, in the logs and in `evaluate(return_dict=True)`, are `mean_iou`,
    `pixel_accuracy` and `iou_<class>`.

    Args:
        num_classes: C.
        class_names: Names of the classes in the logs. None numbers them from 0.
        ignore_label: Label of pixels that are left out.
        name: Name of the metric.
        dtype: Dtype of the counts. Default: float32, under every policy.

    Call arguments:
        y_true: Labels, (B, H, W). Labels outside [0, C) are left out, too.
        y_pred: Logits or probabilities, (B, H, W, C).
        sample_weight: (B, H, W).

    Returns:
        A dictionary of scalars in [0, 1]. The IoU of a class that neither occurs nor
        is predicted is NaN, and the mean is over the others.

    Raises:
        ValueError: If `class_names` are not C different names.

    Example:
        ```python
        import numpy as np
        from keras_attn import metrics

        scores = metrics.SegmentationScores(2, class_names=["road", "car"])
        labels = np.array([[[0, 1, 255]]])  # 255 is ignored.
        scores.update_state(labels, np.array([[[[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]]]]))
        scores.result()["iou_road"]  # 0.5
        ```
    """

    def __init__(
        self,
        num_classes: int,
        class_names: Sequence[str] | None = None,
        ignore_label: int | None = 255,
        name: str = "segmentation_scores",
        dtype=None,
    ):
        super().__init__(
            check_positive("num_classes", num_classes),
            name=name,
            dtype=dtype or "float32",
            ignore_class=ignore_label,
            sparse_y_pred=False,
        )
        if class_names is not None and len(set(class_names)) != num_classes:
            raise ValueError(
                f"`class_names` must be {num_classes} different names. "
                f"Received: class_names={class_names!r}"
            )
        self.class_names = None if class_names is None else list(class_names)
        self.ignore_label = ignore_label

    def result(self):
        """Returns the scores of the pixels so far, by their names."""
        matrix = ops.convert_to_tensor(self.total_cm)  # (C, C), rows are true.
        right = ops.diagonal(matrix)
        union = ops.sum(matrix, 0) + ops.sum(matrix, 1) - right
        occurs = union > 0
        iou = ops.where(occurs, right / ops.where(occurs, union, 1.0), float("nan"))
        sum_of_iou = ops.sum(ops.where(occurs, iou, 0.0))
        count = ops.sum(ops.cast(occurs, iou.dtype))
        names = self.class_names or range(self.num_classes)
        return {
            "mean_iou": ops.divide_no_nan(sum_of_iou, count),
            "pixel_accuracy": ops.divide_no_nan(ops.sum(right), ops.sum(matrix)),
            **{f"iou_{name}": iou[index] for index, name in enumerate(names)},
        }


def foreground_rand_scores(
    truth, prediction, *, grow_objects: bool = True
) -> dict[str, float]:
    """Compares how two masks divide an image into objects.

    Objects are the 4-connected components of a mask. For two random pixels inside
    objects of the truth, let A be the event that they belong to one object in the
    truth, B that they do in the prediction, and AB that they do in both:

    `split = P(AB) / P(A)`, `merge = P(AB) / P(B)`, `rand = 2 P(AB) / (P(A) + P(B))`.

    Splitting objects lowers the first score, merging them the second. Pixels between
    the objects of the truth count nowhere. A predicted border pixel is an object of its
    own.

    Args:
        truth: (H, W), True inside objects, such as cells, False between them.
        prediction: (H, W), the same for a thresholded prediction. The ISBI challenge
            takes the best score over all thresholds.
        grow_objects: Whether predicted objects first grow over the borders between
            them until they meet, so that a thick border costs nothing ("after border
            thinning").

    Returns:
        `rand`, `split` and `merge`, in [0, 1].

    Raises:
        ValueError: If the masks are not (H, W), have different shapes, or `truth` has
            no objects.

    Reference:
        Arganda-Carreras et al. 2015, "Crowdsourcing the creation of image segmentation
        algorithms for connectomics", Frontiers in Neuroanatomy 9:142.
    """
    truth, prediction = np.asarray(truth, bool), np.asarray(prediction, bool)
    if truth.ndim != 2 or truth.shape != prediction.shape:
        raise ValueError(
            "`truth` and `prediction` must be masks (H, W) of the same shape. "
            f"Received: truth.shape={truth.shape}, prediction.shape={prediction.shape}"
        )
    if not truth.any():
        raise ValueError("`truth` must have objects. Received: a mask without any")
    objects, found = label_components(truth), label_components(prediction)
    if grow_objects:
        found = _grow(found)
    inside = objects > 0
    pairs = np.stack([objects[inside], found[inside]]).astype(np.int64)
    joint, counts = np.unique(pairs, axis=1, return_counts=True)
    counts = counts.astype(np.float64)
    # Objects of one pixel contribute 1² each.
    alone = counts[joint[1] == 0].sum()
    both = (counts[joint[1] > 0] ** 2).sum() + alone
    in_truth = (np.bincount(joint[0], counts) ** 2).sum()
    in_prediction = (np.bincount(joint[1], counts)[1:] ** 2).sum() + alone
    return {
        "rand": float(2 * both / (in_truth + in_prediction)),
        "split": float(both / in_truth),
        "merge": float(both / in_prediction),
    }


def label_components(mask) -> np.ndarray:
    """Numbers the 4-connected components of a mask.

    Args:
        mask: bool (H, W).

    Returns:
        int32 (H, W): 0 where the mask is False, else 1, 2, … in reading order.
    """
    mask = np.asarray(mask, bool)
    height, width = mask.shape
    # Runs of each row: where they start and end.
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1]
    lengths = ends - starts
    # Lists, whose items Python reads faster.
    starts, ends = starts.tolist(), ends.tolist()
    parents = list(range(len(rows)))

    def root(run):
        while parents[run] != run:
            parents[run] = parents[parents[run]]
            run = parents[run]
        return run

    first = np.searchsorted(rows, np.arange(height + 1)).tolist()
    for row in range(1, height):
        above, last_above = first[row - 1], first[row]
        for run in range(first[row], first[row + 1]):
            # Runs above that end before this one starts cannot touch the next either.
            while above < last_above and ends[above] <= starts[run]:
                above += 1
            other = above
            while other < last_above and starts[other] < ends[run]:
                one, two = root(other), root(run)
                parents[max(one, two)] = min(one, two)
                other += 1
    roots = np.array([root(run) for run in range(len(rows))], np.int64)
    numbers = np.unique(roots, return_inverse=True)[1] + 1
    labels = np.zeros(height * width, np.int32)
    labels[mask.ravel()] = np.repeat(numbers, lengths)
    return labels.reshape(height, width)


def _grow(labels: np.ndarray) -> np.ndarray:
    """Labels that grew, pixel by pixel to all four sides, until no 0 is left."""
    if not labels.any():
        return labels
    while (labels == 0).any():
        padded = np.pad(labels, 1)
        neighbors = [
            padded[:-2, 1:-1],
            padded[1:-1, :-2],
            padded[1:-1, 2:],
            padded[2:, 1:-1],
        ]
        largest = np.maximum.reduce(neighbors)
        labels = np.where(labels == 0, largest, labels)
    return labels
