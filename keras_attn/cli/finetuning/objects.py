"""Images and boxes: COCO's or VOC's."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import keras

from keras_attn.cli.finetuning import images
from keras_attn.cli.finetuning.job import Batches, Job, hold_out, shortened_names
from keras_attn.cli.finetuning.kinds import Kind, find_other_kind
from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.finetuning.source import Source
from keras_attn.cli.terminal import say
from keras_attn.data import DetectionData, detection_dataset, read_coco, read_voc
from keras_attn.models.parts.detection.detector import Detector
from keras_attn.training import DetectionScoreLogger, DetectionScores


class ObjectJob(Job):
    """Images with boxes."""

    head: ClassVar[str] = "detector"
    rate: ClassVar[float] = 1e-4

    def __init__(self, settings: Settings, kind: Kind, source: Source):
        super().__init__(settings, kind, source)
        splits = _voc_splits(settings, kind)
        train = _read(settings.data, kind, splits[0], None)
        self.class_names = train.class_names
        if not any(len(example.boxes) for example in train.examples):
            raise ValueError(
                f"DATA must have boxes. Received: {str(settings.data)!r} with "
                f"{len(train)} images and none"
            )
        if settings.validation is not None:
            there = replace(settings, images=None)
            other = find_other_kind(there, kind, settings.validation)
            validation = _read(settings.validation, other, None, self.class_names)
        elif splits[1] is not None:
            validation = _read(settings.data, kind, splits[1], self.class_names)
        else:
            fraction, seed = settings.validation_fraction, settings.seed
            train, validation = (
                replace(train, examples=[train.examples[index] for index in rows])
                for rows in hold_out(len(train), fraction, seed)
            )
        self.parts: list[DetectionData] = [train, validation]
        self.size = (0, 0)
        self.normalize: str | None = "imagenet"
        self.scores_boxes = importlib.util.find_spec("pycocotools") is not None

    @property
    def num_examples(self) -> int:
        """Examples to train on."""
        return len(self.parts[0])

    def lines(self) -> list[str]:
        """The numbers of images and of boxes."""
        train, validation = self.parts
        boxes = sum(len(example.boxes) for example in train.examples)
        return [
            f"{len(train):,} images with {boxes:,} boxes to train on, "
            f"{len(validation):,} images to validate on",
            f"{len(self.class_names)} classes: {shortened_names(self.class_names)}",
        ]

    def options(self) -> dict[str, Any]:
        """The number of classes, and the size of the images."""
        sides = self.settings.sides
        size = {} if sides is None else {"image_size": sides}
        return {"num_classes": len(self.class_names), **size}

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
        if model.has_masks:
            raise ValueError(
                "MODEL must be a Faster R-CNN, which learns from boxes alone; a "
                "checkpoint folder of a Mask R-CNN is read as one. "
                f"Received: {self.source.name!r}"
            )
        model.class_names = self.class_names
        if not self.scores_boxes:
            say(
                "mAP is not measured without pycocotools: install keras-attn[eval]",
                "yellow",
            )

    def batches(self, epoch: Any) -> tuple[Batches, Batches]:
        """Batches of images and boxes."""
        options: dict[str, Any] = {
            "image_size": self.size,
            "batch_size": self.settings.batch_size,
            "normalize": self.normalize,
        }
        train, validation = self.parts
        return (
            detection_dataset(
                train,
                augmentations=images.augmentations(self.settings.augment),
                shuffle=True,
                seed=self.settings.seed,
                epoch=epoch,
                **options,
            ),
            detection_dataset(validation, **options),
        )

    def compile(self, trainer: keras.Model, **options: Any) -> None:
        """A detector has its own loss."""
        trainer.compile(**options)

    def callbacks(self, validation: Batches) -> list[keras.callbacks.Callback]:
        """Mean average precision after each epoch."""
        if not self.scores_boxes:
            return []
        return [DetectionScoreLogger(validation, self.class_names)]

    def figures(self, trainer: keras.Model, validation: Batches) -> dict[str, float]:
        """With mAP, as COCO counts it."""
        found = super().figures(trainer, validation)
        if self.scores_boxes:
            scores = DetectionScores(self.class_names)
            for pictures, truth in validation:
                detected = trainer.predict_on_batch(pictures)
                scores.add(truth, detected, pictures.shape[1:3])
            found |= {name: float(value) for name, value in scores.result().items()}
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
        )


def _read(path: Path, kind: Kind, split: str | None, names) -> DetectionData:
    """A data set whose classes are those of the training images."""
    if kind.annotations is None:
        return read_voc(path, split, names)
    data = read_coco(kind.annotations, kind.images, masks=False)
    if names is not None and data.class_names != names:
        raise ValueError(
            "--validation must have the categories of DATA. "
            f"Received: {data.class_names} instead of {names}"
        )
    return data


def _voc_splits(settings: Settings, kind: Kind) -> tuple[str | None, str | None]:
    """The splits of a VOC folder that are for training and validation, if it has both.

    Without `--validation`, `train` and `val` of `ImageSets` are used.
    """
    if kind.annotations is not None or settings.validation is not None:
        return None, None
    for folder in (settings.data / "ImageSets", settings.data / "ImageSets" / "Main"):
        if all((folder / f"{name}.txt").is_file() for name in ("train", "val")):
            return "train", "val"
    return None, None
