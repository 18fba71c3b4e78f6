"""COCO's mean average precision, computed by pycocotools; and a count of errors.

Legend: B batch, M ground-truth objects with padding, K detections with padding, H and W
pixels.
"""

import contextlib
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_choice, check_positive
from keras_attn.distribution.processes import event_writer
from keras_attn.docstrings.descriptions import described_as
from keras_attn.extras import requires_extra
from keras_attn.ops.boxes import BOX_FORMATS, convert_boxes, pairwise_iou
from keras_attn.ops.instance_masks import masks_in_image

# The 12 figures of COCO's table, in its order.
_FIGURES = (
    "map map_50 map_75 map_small map_medium map_large "
    "recall_1 recall_10 recall_100 recall_small recall_medium recall_large"
).split()


def count_detection_errors(
    truth: Mapping[str, Any],
    found: Mapping[str, Any],
    num_classes: int,
    *,
    min_score: float = 0.5,
) -> np.ndarray:
    """Objects, missed objects and false detections in each image, by class.

    In the order of their scores, detections take objects of their class with an IoU of
    at least 0.5 that no other has taken; what takes none is false.

    Args:
        truth: `boxes` (B, M, 4) and `classes` (B, M), -1 = padding.
        found: `boxes` (B, K, 4), `classes` (B, K), -1 = padding, and `scores` (B, K),
            in descending order.
        num_classes: C.
        min_score: Detections below do not count.

    Returns:
        (B, C, 3) integers.

    Raises:
        ValueError: If `num_classes` is not a positive integer.
    """
    check_positive("num_classes", num_classes)
    iou = np.asarray(pairwise_iou(found["boxes"], truth["boxes"]))  # (B, K, M)
    wanted, classes = np.asarray(truth["classes"]), np.asarray(found["classes"])
    is_kept = (classes >= 0) & (np.asarray(found["scores"]) >= min_score)
    counts = np.zeros((len(wanted), num_classes, 3), int)
    for row, (true, claimed) in enumerate(zip(wanted, classes, strict=True)):
        is_free = true >= 0
        np.add.at(counts[row, :, 0], true[is_free], 1)
        for index in np.flatnonzero(is_kept[row]):
            overlap = np.where(is_free & (true == claimed[index]), iou[row, index], 0)
            if overlap.max(initial=0) >= 0.5:
                is_free[overlap.argmax()] = False
            else:
                counts[row, claimed[index], 2] += 1
        np.add.at(counts[row, :, 1], true[is_free], 1)
    return counts


class DetectionScores:
    """Collects true and detected objects, and scores them.

    Args:
        class_names: Names of the classes, for per-class scores. None numbers them.
        masks: Whether to compare masks instead of boxes.
        bounding_box_format: Format of all boxes, one of `ops.boxes.BOX_FORMATS`: the
            format of the model.
        aligned_masks: How masks are pasted, as in the model; see `ops.paste_masks`.

    Raises:
        ImportError: If the extra `eval` is not installed.
        ValueError: If two classes have the same name, or the format is unknown.

    Example:
        ```python
        import numpy as np
        from keras_attn import metrics

        truth = {"boxes": np.array([[[2.0, 3, 9, 9]]]), "classes": np.array([[1]])}
        found = {**truth, "scores": np.array([[0.9]])}
        scores = metrics.DetectionScores(["cat", "dog"])
        scores.add(truth, found, (32, 32))
        print(scores.result()["map_50"])  # 1.0
        ```

    Reference:
        Lin et al. 2014, "Microsoft COCO: Common Objects in Context" (arXiv:1405.0312),
        and cocodataset.org, "detection evaluation".
    """

    def __init__(
        self,
        class_names: Sequence[str] | None = None,
        masks: bool = False,
        bounding_box_format: str = "xyxy",
        aligned_masks: bool = True,
    ):
        with requires_extra("eval", "COCO's mean average precision"):
            import pycocotools.cocoeval  # noqa: F401
        if class_names is not None and len(set(class_names)) != len(class_names):
            raise ValueError(
                "`class_names` must be different names, because each class has its "
                f"own scores. Received: class_names={list(class_names)}"
            )
        check_choice("bounding_box_format", bounding_box_format, BOX_FORMATS)
        self.class_names = None if class_names is None else list(class_names)
        self.masks = masks
        self.bounding_box_format = bounding_box_format
        self.aligned_masks = aligned_masks
        self._images: list[dict[str, Any]] = []
        self._truth: list[dict[str, Any]] = []
        self._found: list[dict[str, Any]] = []

    def add(self, truth, detections, image_size: tuple[int, int]) -> None:
        """Adds a batch of images.

        Args:
            truth: A dictionary of `boxes` (B, M, 4); `classes` (B, M), -1 in padding;
                optionally `is_crowd` (B, M), boxes in which detections are not counted;
                `masks` (B, M, H, W) to compare masks.
            detections: A dictionary of `boxes` (B, K, 4), `scores` (B, K) and
                `classes` (B, K), -1 in padding; to compare masks, `masks`, (B, K, h, w)
                probabilities stretched over the boxes, or bool (B, K, H, W). Detections
                that are not finite are left out.
            image_size: H and W.

        Raises:
            ValueError: If an entry is missing, shapes do not match, or a class is
                beyond `class_names`.
        """
        size = int(image_size[0]), int(image_size[1])
        names = ["boxes", "classes", *(["masks"] if self.masks else [])]
        truth = _as_arrays("truth", truth, names, ["is_crowd"])
        found = _as_arrays("detections", detections, [*names, "scores"])
        if len(truth["boxes"]) != len(found["boxes"]):
            raise ValueError(
                "`truth` and `detections` must be for the same images. Received: "
                f"{len(truth['boxes'])} and {len(found['boxes'])} images"
            )
        if self.bounding_box_format != "xyxy":
            for values in (truth, found):
                boxes = convert_boxes(
                    values["boxes"], self.bounding_box_format, "xyxy", size
                )
                values["boxes"] = np.asarray(boxes)
        count = None if self.class_names is None else len(self.class_names)
        for name, values in (("truth", truth), ("detections", found)):
            highest = int(values["classes"].max(initial=-1))
            if count is not None and highest >= count:
                raise ValueError(
                    f"Classes of `{name}` must be below {count}, the number of "
                    f"`class_names`. Received: class {highest}"
                )
        for row in range(len(truth["boxes"])):
            number = len(self._images) + 1
            self._images.append({"id": number, "height": size[0], "width": size[1]})
            real = np.flatnonzero(truth["classes"][row] >= 0)
            entries = self._entries(truth, row, real, size)
            for index, entry in zip(real, entries, strict=True):
                is_crowd = "is_crowd" in truth and bool(truth["is_crowd"][row, index])
                self._truth.append({**entry, "iscrowd": int(is_crowd)})
            is_real = (found["classes"][row] >= 0) & np.isfinite(found["scores"][row])
            is_real &= np.isfinite(found["boxes"][row]).all(-1)
            real = np.flatnonzero(is_real)
            entries = self._entries(found, row, real, size)
            for index, entry in zip(real, entries, strict=True):
                entry["score"] = float(found["scores"][row, index])
                self._found.append(entry)

    def result(self) -> dict[str, float]:
        """Scores all images so far.

        Returns:
            COCO's figures, in [0, 1]: `map` over IoU thresholds from 0.5 to 0.95,
            `map_50`, `map_75`, `map_small`, `map_medium`, `map_large` and the recalls;
            and `ap_<class>` and `ap_50_<class>` for each class. NaN where there are no
            ground-truth objects. Small, medium and large refer to areas in pixels of
            the images as given, resized or not.

        Raises:
            ValueError: If images are missing.
        """
        if not self._images:
            raise ValueError("`add` must be called first. Received: no images")
        from pycocotools.cocoeval import COCOeval

        classes = [entry["category_id"] for entry in (*self._truth, *self._found)]
        names = self.class_names or range(max(classes, default=0))
        # It prints its progress.
        with contextlib.redirect_stdout(io.StringIO()):
            truth = self._coco(self._truth, len(names))
            found = self._coco(self._found, len(names))
            evaluation = COCOeval(truth, found, "segm" if self.masks else "bbox")
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        stats = np.asarray(evaluation.stats, np.float64)
        # -1 stands for "no ground-truth objects".
        figures = np.where(stats < 0, np.nan, stats).tolist()
        scores: dict[str, float] = dict(zip(_FIGURES, figures, strict=True))
        # Axes: IoU thresholds, recalls, classes, areas, numbers of detections.
        precision = cast(dict, evaluation.eval)["precision"][:, :, :, 0, -1]
        for index, name in enumerate(names):
            scores[f"ap_{name}"] = _mean(precision[:, :, index])
            scores[f"ap_50_{name}"] = _mean(precision[:1, :, index])
        return scores

    def _entries(self, values, row, chosen, size) -> list[dict[str, Any]]:
        """Objects of the last image in COCO's format, with numbers from 1 on."""
        entries: list[dict[str, Any]] = []
        boxes = values["boxes"][row, chosen]
        for box, number in zip(boxes, values["classes"][row, chosen], strict=True):
            left, top, right, bottom = box.astype(float).tolist()
            box = [left, top, right - left, bottom - top]
            entry = {
                "image_id": len(self._images),
                "category_id": int(number) + 1,
                "bbox": box,
                "area": box[2] * box[3],
                "iscrowd": 0,
            }
            entries.append(entry)
        if self.masks:
            from pycocotools import mask as coco_mask

            given = values["masks"][row, chosen]
            masks = masks_in_image(given, boxes, size, self.aligned_masks)
            for entry, mask in zip(entries, masks, strict=True):
                runs = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
                entry |= {"segmentation": runs, "area": float(coco_mask.area(runs))}
        return entries

    def _coco(self, entries: list[dict], num_classes: int):
        """The entries as a pycocotools object."""
        from pycocotools.coco import COCO

        coco = COCO()
        coco.dataset = {
            "images": self._images,
            "annotations": [{**x, "id": i + 1} for i, x in enumerate(entries)],
            "categories": [{"id": i + 1} for i in range(num_classes)],
        }
        coco.createIndex()
        return coco


@described_as(DetectionScores)
class DetectionScoreLogger(keras.callbacks.Callback):
    """Scores a detector on held-out images after epochs, and logs the scores.

    They are added to the logs of the epoch, which later callbacks such as
    `ModelCheckpoint` read, and with `log_dir` written to TensorBoard.

    Args:
        dataset: Batches of images and ground-truth objects, such as from
            `detection_dataset`; use `crowds=True` to count them as COCO does.
        class_names: Names of the classes. None numbers them.
        detect: Function of a batch of images that returns detections; see
            `DetectionScores.add`. None calls the model.
        masks: Whether to compare masks instead of boxes.
        every: Epochs between scores, starting with epoch 0.
        prefix: Prefix of the names in the logs.
        log_dir: Folder of the TensorBoard event file; None writes none.

    Raises:
        ValueError: If `every` is below 1.
        ImportError: If the extra `eval` is not installed.
    """

    def __init__(
        self,
        dataset: Iterable,
        class_names: Sequence[str] | None = None,
        *,
        detect: Callable[[Any], Mapping[str, Any]] | None = None,
        masks: bool = False,
        bounding_box_format: str = "xyxy",
        aligned_masks: bool = True,
        every: int = 1,
        prefix: str = "val_",
        log_dir: str | os.PathLike | None = None,
    ):
        super().__init__()
        # Fails now without pycocotools.
        DetectionScores(class_names, masks, bounding_box_format, aligned_masks)
        self.dataset = dataset
        self.class_names = class_names
        self.detect = detect
        self.masks = masks
        self.bounding_box_format = bounding_box_format
        self.aligned_masks = aligned_masks
        self.every = check_positive("every", every)
        self.prefix = prefix
        self.log_dir = None if log_dir is None else os.fspath(log_dir)
        self._writer: Any = None

    def on_train_begin(self, logs=None):
        """Opens the event file."""
        if self.log_dir is not None:
            self._writer = event_writer(self.log_dir)

    def on_epoch_end(self, epoch, logs=None):
        """Detects, scores and logs."""
        if epoch % self.every:
            return
        detect = self.detect or cast(keras.Model, self.model).predict_on_batch
        scores = DetectionScores(
            self.class_names, self.masks, self.bounding_box_format, self.aligned_masks
        )
        for images, truth, *_ in self.dataset:
            scores.add(truth, detect(images), images.shape[1:3])
        named = {self.prefix + name: value for name, value in scores.result().items()}
        if logs is not None:
            logs.update(named)
        if self._writer is not None:
            with self._writer.as_default(step=epoch):
                for name, value in named.items():
                    tf.summary.scalar(name, value)
            self._writer.flush()

    def on_train_end(self, logs=None):
        """Closes the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _as_arrays(argument, values, names, optional=()) -> dict[str, np.ndarray]:
    """The entries as arrays, with equal numbers of images and objects."""
    missing = [name for name in names if name not in values]
    if missing:
        raise ValueError(
            f"`{argument}` must have {', '.join(f'`{name}`' for name in names)}. "
            f"Received: {sorted(values)}"
        )
    names = [*names, *(name for name in optional if name in values)]
    arrays = {name: np.asarray(values[name]) for name in names}
    shape = arrays["classes"].shape
    ranks = {"boxes": 3, "masks": 4}
    if len(shape) != 2 or any(
        array.shape[:2] != shape or array.ndim != ranks.get(name, 2)
        for name, array in arrays.items()
    ):
        shapes = {name: array.shape for name, array in arrays.items()}
        raise ValueError(
            f"`{argument}` must have classes (B, M), boxes (B, M, 4), and masks "
            f"(B, M, height, width). Received: {shapes}"
        )
    return arrays


def _mean(precision: np.ndarray) -> float:
    known = precision[precision >= 0]
    return float(known.mean()) if known.size else float("nan")
