"""Images and boxes of objects, and COCO's masks of them."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import keras
import numpy as np

from keras_attn.cli.finetuning import images
from keras_attn.cli.finetuning.job import Batches, ImageJob, shortened_names
from keras_attn.cli.finetuning.kinds import Kind, find_other_kind
from keras_attn.cli.finetuning.object_data import (
    MASKS,
    find_splits,
    get_common_folder,
    is_one_folder,
    learns_masks,
    read_objects,
    unused,
)
from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.finetuning.source import Source
from keras_attn.cli.finetuning.splits import check_apart, without_examples
from keras_attn.cli.terminal import say
from keras_attn.data import detection_dataset
from keras_attn.metrics import DetectionScoreLogger, DetectionScores
from keras_attn.models.parts.detection.detector import Detector


class ObjectJob(ImageJob):
    """Images with boxes, and for a Mask R-CNN with masks."""

    rate: ClassVar[float] = 1e-4

    def __init__(self, settings: Settings, kind: Kind, source: Source):
        self.has_masks = learns_masks(settings, kind, source)
        task = MASKS if self.has_masks else "detection"
        kind = replace(kind, task=task)
        super().__init__(settings, kind, source)
        self.head = "instance_segmenter" if self.has_masks else "detector"
        splits = find_splits(settings, kind)
        train = read_objects(settings.data, kind, splits[0], None)
        self.class_names = train.class_names
        if not any(len(example.boxes) for example in train.examples):
            raise ValueError(
                f"DATA must have boxes. Received: {str(settings.data)!r} with "
                f"{len(train)} images and none"
            )
        if settings.validation is not None:
            other = find_other_kind(settings, kind, settings.validation)
            other = replace(other, task=task)
            validation = read_objects(
                settings.validation, other, splits[1], self.class_names
            )
        elif splits[1] is not None:
            validation = read_objects(settings.data, kind, splits[1], self.class_names)
        else:
            train, validation = self._held_out(train)
        self.parts = [train, validation]
        held_out = settings.validation is None and splits[1] is None
        files = [[each.image_path for each in part.examples] for part in self.parts]
        self.notes += [*train.notes, *validation.notes]
        for part, purpose in zip(self.parts, ("train", "validate"), strict=True):
            classes = np.concatenate([each.classes for each in part.examples])
            self.notes += without_examples(self.class_names, classes, purpose)
        self.notes += unused(settings, kind, self.parts, splits)
        self.notes += check_apart(
            settings,
            *files,
            are_held_out=held_out,
            is_asked_for=is_one_folder(settings, kind),
        )
        self.size = (0, 0)
        self.normalize: str | None = "imagenet"
        self.aligned_masks = True
        self.scores_boxes = importlib.util.find_spec("pycocotools") is not None

    def lines(self) -> list[str]:
        """The numbers of images and of boxes."""
        train, validation = self.parts
        boxes = sum(int((~example.is_crowd).sum()) for example in train.examples)
        what = "masks" if self.has_masks else "boxes"
        return [
            f"{len(train):,} images with {boxes:,} {what} to train on, "
            f"{len(validation):,} images to validate on",
            f"images to train on in {get_common_folder(train)}, to validate on in "
            f"{get_common_folder(validation)}",
            f"{len(self.class_names)} classes: {shortened_names(self.class_names)}",
        ]

    def prepare(self, model: Any) -> None:
        """Checks that it is a detector of these classes, and of which images."""
        if not isinstance(model, Detector):
            raise ValueError(
                "MODEL must be a detector, a Faster or a Mask R-CNN. "
                f"Received: {self.source.name!r}"
            )
        images.image_shape(model)
        size = images.size_of_images(model, self.settings.sides, None)
        if size is None:
            raise ValueError(
                "--image-size, rows and columns such as 480x640, must be given for a "
                f"detector of images of any size. Received: MODEL {self.source.name!r}"
            )
        self.size = size
        self.normalize = images.normalization_of(
            self.source, self.settings.pixels, "a detector"
        )
        if model.has_masks != self.has_masks:
            needed, what = ("Mask", "masks") if self.has_masks else ("Faster", "boxes")
            raise ValueError(
                f"MODEL must be a {needed} R-CNN, which learns from {what}; a "
                "checkpoint folder of the other one is read as such. "
                f"Received: {self.source.name!r}"
            )
        if self.has_masks:
            self.aligned_masks = model.get_layer("masks").aligned
        model.class_names = self.class_names

    def batches(self, epoch: Any) -> tuple[Batches, Batches]:
        """Batches of images and boxes."""
        return self._datasets(
            # mAP does not count what is found in crowds.
            lambda part, **options: detection_dataset(
                part, crowds=part is self.parts[1], **options
            ),
            epoch,
            image_size=self.size,
            batch_size=self.settings.batch_size,
            normalize=self.normalize,
            masks=self.has_masks,
        )

    def compile(self, trainer: keras.Model, **options: Any) -> None:
        """A detector has its own loss."""
        trainer.compile(**options)

    def callbacks(self, validation: Batches) -> list[keras.callbacks.Callback]:
        """Mean average precision after each epoch, of masks if there are masks."""
        if not self.scores_boxes:
            say(
                "mAP is not measured without pycocotools: install keras-attn[eval]",
                "yellow",
            )
            return []
        options: dict[str, Any] = {}
        if self.has_masks:
            options = {"masks": True, "aligned_masks": self.aligned_masks}
            options["prefix"] = "val_mask_"
        return [DetectionScoreLogger(validation, self.class_names, **options)]

    def figures(self, trainer: keras.Model, validation: Batches) -> dict[str, float]:
        """The figures, with mAP as COCO counts it."""
        found = super().figures(trainer, validation)
        if not self.scores_boxes:
            return found
        scores = object_scores(self.class_names, self.has_masks, self.aligned_masks)
        for pictures, truth in validation:
            detected = trainer.predict_on_batch(pictures)
            for each in scores.values():
                each.add(truth, detected, pictures.shape[1:3])
        return found | figures_of(scores)

    def new_layers(self, model: Any) -> list[str]:
        """All but the backbone."""
        return images.names_outside_backbone(model)

    def result(self) -> Result:
        """The classes, the size and the normalization."""
        return Result(
            self.kind.task,
            class_names=self.class_names,
            image_size=list(self.size),
            normalize=self.normalize,
            aligned_masks=self.aligned_masks,
        )


def object_scores(
    names: Sequence[str], has_masks: bool, aligned_masks: bool
) -> dict[str, DetectionScores]:
    """What scores boxes, and masks if there are any, by the prefix of its figures.

    Args:
        names: The classes.
        has_masks: Whether there are masks.
        aligned_masks: See `DetectionScores`.
    """
    scores = {"": DetectionScores(names)}
    if has_masks:
        scores["mask_"] = DetectionScores(
            names, masks=True, aligned_masks=aligned_masks
        )
    return scores


def figures_of(scores: Mapping[str, DetectionScores]) -> dict[str, float]:
    """The results of `object_scores`."""
    return {
        prefix + name: float(value)
        for prefix, each in scores.items()
        for name, value in each.result().items()
    }
