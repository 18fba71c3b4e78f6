"""A folder of images per class."""

from typing import Any, ClassVar

import keras

from keras_attn.cli.finetuning import images
from keras_attn.cli.finetuning.job import (
    Batches,
    ImageJob,
    balanced_weights,
    counted_classes,
    most_frequent_class,
)
from keras_attn.cli.finetuning.kinds import Kind, find_other_kind
from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.finetuning.source import Source
from keras_attn.cli.finetuning.splits import (
    check_apart,
    in_two_classes,
    without_examples,
)
from keras_attn.data import image_class_dataset, read_image_classes
from keras_attn.data.pipelines.bad_files import first_reasons
from keras_attn.models import image_preprocessing


class PictureJob(ImageJob):
    """Images with a class each."""

    head: str = "classifier"
    rate: ClassVar[float] = 5e-5

    def __init__(self, settings: Settings, kind: Kind, source: Source):
        super().__init__(settings, kind, source)
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "--processes is not for folders of images with a class each: their "
                "preprocessing is a layer inside the data pipeline, which needs Keras "
                f"on TensorFlow. Received: {str(settings.data)!r}"
            )
        train = read_image_classes(settings.data)
        known = source.class_names
        if known and set(known) == set(train.class_names):
            train = read_image_classes(settings.data, known)
        self.class_names = train.class_names
        self.notes += in_two_classes(train.paths, train.classes.tolist())
        if len(self.class_names) < 2:
            raise ValueError(
                "DATA must have two folders at least, a class each. "
                f"Received: {str(settings.data)!r} with {self.class_names}"
            )
        if settings.validation is not None:
            find_other_kind(settings, kind, settings.validation)
            validation = read_image_classes(settings.validation, self.class_names)
        else:
            train, validation = self._held_out(train, train.classes.tolist())
        self.parts = [train, validation]
        self.notes += [*train.notes, *validation.notes]
        self.notes += without_examples(self.class_names, validation.classes)
        held_out = settings.validation is None
        self.notes += check_apart(
            settings, train.paths, validation.paths, are_held_out=held_out
        )
        self.fields: dict[str, Any] = {}
        self.channels = 3

    def lines(self) -> list[str]:
        """The numbers of images and of each class."""
        train, validation = self.parts
        skipped = [train.skipped]
        if validation.skipped is not train.skipped:
            skipped.append(validation.skipped)
        return [
            f"{len(train):,} images to train on, {len(validation):,} to validate on",
            counted_classes(self.class_names, train.classes),
            *(
                f"left out {len(each):,}: {first_reasons(each.values())}"
                for each in skipped
                if each
            ),
        ]

    def usual_size(self) -> tuple[int, int] | None:
        """The size to which `prepare` resizes images."""
        return images.DEFAULT_SIZE, images.DEFAULT_SIZE

    def prepare(self, model: Any) -> None:
        """Names the classes, and chooses the preprocessing."""
        *_, self.channels = images.image_shape(model)
        shape = getattr(model.output, "shape", ())
        if len(shape) != 2 or shape[-1] != len(self.class_names):
            raise ValueError(
                f"MODEL must be a classifier of {len(self.class_names)} classes for "
                "these data; a checkpoint folder gets a new head. Received: a model "
                f"with the output {tuple(shape) or 'of several tensors'}"
            )
        size = images.size_of_images(model, self.settings.sides)
        fields = getattr(model, "preprocessing", None)
        if fields is None or self.settings.pixels is not None:
            pixels = images.choose_pixels(self.source, self.settings.pixels)
            fields = images.preprocessing_fields(pixels, size or (0, 0), self.channels)
        self.fields = fields
        model.preprocessing = fields
        model.class_names = self.class_names

    def batches(self, epoch: Any) -> tuple[Batches, Batches]:
        """Batches of images and classes."""
        return self._datasets(
            image_class_dataset,
            epoch,
            preprocessing=image_preprocessing(self.fields),
            batch_size=self.settings.batch_size,
            channels=self.channels,
        )

    def class_weights(self) -> dict[int, float]:
        """The weights with which all classes weigh the same."""
        return balanced_weights(self.parts[0].classes, len(self.class_names))

    def compile(self, trainer: keras.Model, **options: Any) -> None:
        """Cross-entropy and accuracy."""
        metrics = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        if len(self.class_names) > 5:
            metrics.append(keras.metrics.SparseTopKCategoricalAccuracy(5, "top_5"))
        trainer.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=metrics,
            **options,
        )

    def figures(self, trainer: keras.Model, validation: Batches) -> dict[str, float]:
        """The figures, and the accuracy of the most frequent class, to compare."""
        found = super().figures(trainer, validation)
        return found | most_frequent_class(self.parts[1].classes)

    def result(self) -> Result:
        """The classes and the preprocessing."""
        return Result(
            self.kind.task,
            class_names=self.class_names,
            channels=self.channels,
            preprocessing=self.fields,
        )
