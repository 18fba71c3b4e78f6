"""Images and masks: a class for each pixel."""

from dataclasses import replace
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from keras_attn.cli.finetuning import images
from keras_attn.cli.finetuning.job import (
    Batches,
    ImageJob,
    inverse_weights,
    shortened_names,
)
from keras_attn.cli.finetuning.kinds import Kind, find_other_kind
from keras_attn.cli.finetuning.mask_classes import (
    classes_file,
    given_values,
    mask_classes,
    reordered,
)
from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.finetuning.source import Source
from keras_attn.cli.finetuning.splits import check_apart
from keras_attn.cli.terminal import working
from keras_attn.data import SegmentationData, read_segmentation, segmentation_dataset
from keras_attn.data.images.geometry import IGNORED_LABEL
from keras_attn.data.images.split_names import SPLITS, get_split
from keras_attn.losses import SegmentationCrossEntropy
from keras_attn.metrics import SegmentationScores


class PixelJob(ImageJob):
    """Images with masks."""

    head: str = "segmenter"
    rate: ClassVar[float] = 1e-4
    weighed: ClassVar[str] = "pixels"
    weighs_batches: ClassVar[bool] = True

    def __init__(self, settings: Settings, kind: Kind, source: Source):
        super().__init__(settings, kind, source)
        self.class_names, palette = mask_classes(settings, kind)
        train = self._read(kind, palette)
        other = validation_kind(settings, kind)
        if other is not None:
            if settings.validation is not None and settings.classes is None:
                own = replace(settings, data=settings.validation)
                if classes_file(own) is not None:
                    palette = reordered(*mask_classes(own, other), self.class_names)
            validation = self._read(other, palette)
        else:
            train, validation = self._held_out(train)
        files = [[path for path, _ in part.pairs] for part in (train, validation)]
        self.notes += [*train.notes, *validation.notes]
        self.notes += check_apart(settings, *files, are_held_out=other is None)
        if other is not None and settings.validation is None:
            self.notes.append(f"to validate on: {other.why}")
        self.parts = [train, validation]
        self.size: tuple[int, int] | None = None
        self.normalize: str | None = None
        self.output_names: tuple[str, ...] = ()  # Of a model with several.
        self._weights: dict[int, float] | None = None

    def _read(self, kind: Kind, palette: Any) -> SegmentationData:
        return read_segmentation(
            kind.images, kind.masks, self.class_names, palette=palette
        )

    def lines(self) -> list[str]:
        """The numbers of images, and the classes."""
        train, validation = self.parts
        return [
            f"{len(train):,} images to train on, {len(validation):,} to validate on",
            f"{len(self.class_names)} classes of pixels: "
            f"{shortened_names(self.class_names)}",
        ]

    def usual_size(self) -> tuple[int, int]:
        """The size of the first image."""
        height, width = self.parts[0].read(0)[0].shape[:2]
        return height, width

    def prepare(self, model: Any) -> None:
        """Checks the outputs, and chooses the preprocessing."""
        *_, channels = images.image_shape(model)
        count = len(self.class_names)
        shapes = [tuple(tensor.shape) for tensor in _by_name(model.output).values()]
        if any(len(shape) != 4 or shape[-1] != count for shape in shapes):
            raise ValueError(
                f"MODEL must have {count} classes of pixels for these data; a "
                f"checkpoint folder gets a new head. Received: {shapes}"
            )
        self.normalize = images.normalization_of(
            self.source, self.settings.pixels, "images with masks"
        )
        if channels == 1 and self.normalize == "imagenet":
            self.normalize = "unit"
        self.size = images.size_of_images(model, self.settings.sides, None)
        self.parts = [replace(part, channels=channels) for part in self.parts]
        self._check_output_size(model)
        if isinstance(model.output, dict):
            self.output_names = tuple(model.output)
        model.class_names = self.class_names
        if self.settings.pixels is not None:
            model.preprocessing = None  # It may say another range.

    def _check_output_size(self, model: Any) -> None:
        """Raises if the logits are smaller than the images: "valid" convolutions."""
        size = self.size or self.usual_size()
        shape = keras.KerasTensor((1, *size, self.parts[0].channels))
        for found in _by_name(model.compute_output_spec(shape)).values():
            if tuple(found.shape[1:3]) != size:
                raise ValueError(
                    "MODEL must return logits of the size of its images; for a U-Net "
                    "pass --override padding=same. Received: images of "
                    f"{size} and logits of {tuple(found.shape[1:3])}"
                )

    def batches(self, epoch: Any) -> tuple[Batches, Batches]:
        """Batches of images and labels."""
        is_one_size = self.size is not None or self._have_one_size()
        first, second = self._datasets(
            segmentation_dataset,
            epoch,
            image_size=self.size,
            batch_size=self.settings.batch_size if is_one_size else 1,
            normalize=self.normalize,
        )
        # The label that is ignored, as every other number, weighs nothing.
        table = np.zeros(IGNORED_LABEL + 1, np.float32)
        is_weighed = self.settings.class_weights is not None
        if is_weighed:
            table[: len(self.class_names)] = list(self.class_weights().values())

        def for_outputs(values):
            names = self.output_names
            return dict.fromkeys(names, values) if names else values

        def with_labels(x, labels):
            return x, for_outputs(labels)

        def with_weights(x, labels):
            return *with_labels(x, labels), for_outputs(tf.gather(table, labels))

        first = first.map(with_weights if is_weighed else with_labels)
        return first, second.map(with_labels)

    def class_weights(self) -> dict[int, float]:
        """The weights with which all classes weigh the same, by their pixels."""
        if self._weights is None:
            with working("Counting the pixels of each class"):
                self._weights = inverse_weights(self.parts[0].count_pixels())
        return self._weights

    def _have_one_size(self) -> bool:
        with working("Reading the sizes of the images"):
            sizes = {
                part.read(index)[0].shape
                for part in self.parts
                for index in range(len(part))
            }
        return len(sizes) == 1

    def compile(self, trainer: keras.Model, **options: Any) -> None:
        """The cross-entropy of pixels, and IoU."""
        scores = SegmentationScores(len(self.class_names), self.class_names)
        if not isinstance(trainer.output, dict):
            trainer.compile(
                loss=SegmentationCrossEntropy(), metrics=[scores], **options
            )
            return
        # An output that only training needs counts half, as in torchvision.
        extra: tuple[str, ...] = getattr(trainer, "training_outputs", ())
        trainer.compile(
            loss={name: SegmentationCrossEntropy() for name in trainer.output},
            loss_weights={x: 0.5 if x in extra else 1.0 for x in trainer.output},
            metrics={x: [scores] for x in trainer.output if x not in extra},
            **options,
        )

    def new_layers(self, model: Any) -> list[str]:
        """The decoder and the layers of logits."""
        return images.names_outside_backbone(model)

    def result(self) -> Result:
        """The classes, the size and the normalization."""
        return Result(
            self.kind.task,
            class_names=self.class_names,
            image_size=None if self.size is None else list(self.size),
            channels=self.parts[0].channels,
            normalize=self.normalize,
            mask_values=given_values(self.settings),
        )


def validation_kind(settings: Settings, kind: Kind) -> Kind | None:
    """Finds the images to validate on: by `--validation`, or beside those of DATA.

    SegNet's folders are `train`, `trainannot`, `val` and `valannot`; others have
    `train` and `val` in both `images` and `masks`.

    Args:
        settings: The command line.
        kind: The kind of DATA.
    """
    if settings.validation is not None:
        return find_other_kind(settings, kind, settings.validation)
    ours = kind.images.name
    if get_split(ours) != "train" or ours not in kind.masks.name:
        return None
    for name in SPLITS["val"]:
        images = kind.images.with_name(name)
        masks = kind.masks.with_name(kind.masks.name.replace(ours, name))
        if images.is_dir() and masks.is_dir():
            why = f"images in {images}, masks in {masks}"
            return replace(kind, images=images, masks=masks, why=why)
    return None


def _by_name(output: Any) -> dict[str, Any]:
    return output if isinstance(output, dict) else {"logits": output}
