"""Images and boxes of objects, and COCO's masks of them."""

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import keras
import numpy as np

from keras_attn.cli.finetuning import images
from keras_attn.cli.finetuning.job import Batches, Job, hold_out, shortened_names
from keras_attn.cli.finetuning.kinds import Kind, find_other_kind
from keras_attn.cli.finetuning.object_data import (
    MASKS,
    find_splits,
    folder_of,
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
from keras_attn.data import DetectionData, detection_dataset
from keras_attn.metrics import DetectionScoreLogger, DetectionScores
from keras_attn.models.parts.detection.detector import Detector


class ObjectJob(Job):
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
            fraction, seed = settings.validation_fraction, settings.seed
            rows = hold_out(len(train), fraction, seed)
            examples = [[train.examples[row] for row in part] for part in rows]
            validation = replace(train, examples=examples[1], notes=())
            train = replace(train, examples=examples[0])
        self.parts: list[DetectionData] = [train, validation]
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
        self.augmentations = images.augmentations(settings, task)
        self.size = (0, 0)
        self.normalize: str | None = "imagenet"
        self.aligned_masks = True
        self.scores_boxes = importlib.util.find_spec("pycocotools") is not None

    @property
    def num_examples(self) -> int:
        """Examples to train on."""
        return len(self.parts[0])

    def lines(self) -> list[str]:
        """The numbers of images and of boxes."""
        train, validation = self.parts
        boxes = sum(int((~example.is_crowd).sum()) for example in train.examples)
        what = "masks" if self.has_masks else "boxes"
        return [
            f"{len(train):,} images with {boxes:,} {what} to train on, "
            f"{len(validation):,} images to validate on",
            f"images to train on in {folder_of(train)}, to validate on in "
            f"{folder_of(validation)}",
            f"{len(self.class_names)} classes: {shortened_names(self.class_names)}",
        ]

    def options(self) -> dict[str, Any]:
        """The number of classes, and the size of the images."""
        sides = self.settings.sides
        size = {} if sides is None else {"image_size": sides}
        return {"num_classes": len(self.class_names), **size}

    def files(self) -> Sequence[Any]:
        """The images, with what belongs to them."""
        return self.parts

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
        pixels = images.pixels_of(self.source, self.settings.pixels)
        if pixels not in ("imagenet", "unit", "bytes"):
            raise ValueError(
                "--pixels must be imagenet, unit or bytes for a detector. "
                f"Received: --pixels {pixels}"
            )
        self.size, self.normalize = size, None if pixels == "bytes" else pixels
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
        options: dict[str, Any] = {
            "image_size": self.size,
            "batch_size": self.settings.batch_size,
            "normalize": self.normalize,
            "masks": self.has_masks,
        }
        train, validation = self.parts
        return (
            detection_dataset(
                train,
                augmentations=self.augmentations,
                shuffle=True,
                seed=self.settings.seed,
                epoch=epoch,
                **options,
            ),
            # mAP does not count what is found in crowds.
            detection_dataset(validation, crowds=True, **options),
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
        scores = {"": DetectionScores(self.class_names)}
        if self.has_masks:
            scores["mask_"] = DetectionScores(
                self.class_names, masks=True, aligned_masks=self.aligned_masks
            )
        for pictures, truth in validation:
            detected = trainer.predict_on_batch(pictures)
            for each in scores.values():
                each.add(truth, detected, pictures.shape[1:3])
        for prefix, each in scores.items():
            found |= {prefix + name: float(x) for name, x in each.result().items()}
        return found

    def new_layers(self, model: Any) -> list[str]:
        """All but the backbone."""
        return [
            layer.name
            for layer in model.layers
            if layer.weights and not layer.name.startswith(("stem_", "stage_"))
        ]

    def result(self) -> Result:
        """The classes, the size and the normalization."""
        return Result(
            self.kind.task,
            class_names=self.class_names,
            image_size=list(self.size),
            normalize=self.normalize,
            aligned_masks=self.aligned_masks,
        )
