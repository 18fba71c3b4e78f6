"""The parts of every fine-tuning task: data, a head, a loss, figures."""

import abc
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from keras_attn.cli.finetuning.images import augmentations
from keras_attn.cli.finetuning.kinds import Kind
from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.finetuning.source import Source
from keras_attn.data import whole_batches
from keras_attn.metrics import MatthewsCorrelation, SparseF1Score

Batches = Any  # A `tf.data.Dataset`.


class Job(abc.ABC):
    """Fine-tuning on some data: a subclass per task reads them when it is made.

    Args:
        settings: The command line.
        kind: The task and where its data are.
        source: The model.

    Attributes:
        settings: As given.
        kind: As given.
        source: As given.
        head: The task of a checkpoint that has the head.
        rate: The largest learning rate when all weights of a pre-trained model train.
        lora_rate: The same for LoRA weights.
        rows: Rows of a batch per example.
        weighed: What `class_weights` counts.
        weighs_batches: Whether `batches` have the weights, not `fit`.
        tokenizer: The tokenizer; None for images.
        notes: What was found in the data and is not used, or not apart, for the user.
    """

    head: str
    rate: ClassVar[float] = 5e-5
    lora_rate: ClassVar[float] = 5e-4
    rows: ClassVar[int] = 1
    weighed: ClassVar[str] = "examples"
    weighs_batches: ClassVar[bool] = False
    tokenizer: Any = None

    def __init__(self, settings: Settings, kind: Kind, source: Source):
        self.settings = settings
        self.kind = kind
        self.source = source
        self.notes: list[str] = []

    @property
    def learning_rate(self) -> float:
        """The largest learning rate."""
        if self.settings.learning_rate is not None:
            return self.settings.learning_rate
        if self.settings.lora is not None:
            return self.lora_rate
        return self.rate if self.source.is_pretrained else 1e-3

    @property
    def sequence(self) -> int | None:
        """Tokens per row; None for images."""
        return None

    @property
    @abc.abstractmethod
    def num_examples(self) -> int:
        """Examples to train on."""

    @abc.abstractmethod
    def lines(self) -> list[str]:
        """Describes the data to the user."""

    @abc.abstractmethod
    def options(self) -> dict[str, Any]:
        """The arguments of the model's builder that follow from the data."""

    @abc.abstractmethod
    def prepare(self, model: Any) -> None:
        """Checks that a model fits the data, and tells it what its classes mean.

        Raises:
            ValueError: If it does not fit.
        """

    def begin(self, model: Any, source: Source) -> Any:
        """The model to train, from one that was prepared.

        Args:
            model: The prepared model.
            source: Where its weights are from: MODEL, or the run that goes on.
        """
        return model

    def finish(self, model: Any) -> Any:
        """The model to save, from one that was trained."""
        return model

    @abc.abstractmethod
    def batches(self, epoch: Any) -> tuple[Batches, Batches]:
        """The training and the validation batches.

        Args:
            epoch: The variable of `BackupAndResume`, on which the order depends.
        """

    @abc.abstractmethod
    def compile(self, trainer: keras.Model, **options: Any) -> None:
        """Compiles what `trainer` returned, with its loss and metrics."""

    @abc.abstractmethod
    def result(self) -> Result:
        """The settings that `keras-attn predict` needs, without figures."""

    def class_weights(self) -> dict[int, float] | None:
        """The weight of each class in the loss with which all weigh the same.

        Raises:
            ValueError: If examples have no classes.
        """
        raise ValueError(
            "--class-weights is for texts or images with a class each, and for masks. "
            f"Received: data for {self.kind.task}"
        )

    def usual_size(self) -> tuple[int, int] | None:
        """Rows and columns of the images of a model of any size; None = unknown."""
        return None

    def hold_out(
        self, count: int, classes: Sequence[int] | None = None
    ) -> tuple[list[int], list[int]]:
        """The numbers of examples to train on, and of those to validate on.

        Args:
            count: Number of examples.
            classes: Their classes, in which the proportion is the same; None = one.
        """
        settings = self.settings
        return hold_out(count, settings.validation_fraction, settings.seed, classes)

    def files(self) -> Sequence[Any]:
        """Data sets with a `check`, whose files were not read yet."""
        return ()

    def trainer(self, model: Any) -> keras.Model:
        """The model to fit, if it is not the model itself."""
        return model

    def new_layers(self, model: Any) -> list[str]:
        """Names of the layers that train as a whole beside LoRA weights."""
        names = ("classifier", "classifier_hidden")
        return [layer.name for layer in model.layers if layer.name in names]

    def callbacks(self, validation: Batches) -> list[keras.callbacks.Callback]:
        """Callbacks that add figures to the logs of an epoch."""
        return []

    def figures(self, trainer: keras.Model, validation: Batches) -> dict[str, float]:
        """The figures on the validation data at the end."""
        batches = whole_batches(validation)
        found: dict = trainer.evaluate(batches, verbose=0, return_dict=True)
        return {name: float(value) for name, value in found.items()}

    def save(self, folder: Path) -> None:
        """Writes the tokenizer, if the task has one."""
        if self.tokenizer is not None:
            self.tokenizer.save(folder)


class TextJob(Job):
    """A job of texts, which needs a tokenizer."""

    def __init__(self, settings: Settings, kind: Kind, source: Source):
        super().__init__(settings, kind, source)
        try:
            self.tokenizer = source.tokenizer(settings.tokenizer)
        except (ValueError, FileNotFoundError):
            if source.reads_texts:
                raise
            raise ValueError(
                f"MODEL must take texts: {settings.data.name} is a table of them. "
                f"Received: {source.name!r}, a model of other inputs"
            ) from None

    def options(self) -> dict[str, Any]:
        """The size of the vocabulary."""
        return {"vocabulary_size": self.tokenizer.vocabulary_size}


class ImageJob(Job):
    """A job of images, some to train on and some to validate on.

    Attributes:
        class_names: The classes.
        parts: The data to train on and to validate on.
    """

    class_names: list[str]
    parts: list[Any]

    def __init__(self, settings: Settings, kind: Kind, source: Source):
        super().__init__(settings, kind, source)
        self.augmentations = augmentations(settings, kind.task)

    @property
    def num_examples(self) -> int:
        """Examples to train on."""
        return len(self.parts[0])

    def options(self) -> dict[str, Any]:
        """The number of classes, and the size of the images."""
        sides = self.settings.sides
        size = {} if sides is None else {"image_size": sides}
        return {"num_classes": len(self.class_names), **size}

    def files(self) -> Sequence[Any]:
        """The images, with what belongs to them."""
        return self.parts

    def _held_out(self, data: Any, classes: Sequence[int] | None = None) -> list[Any]:
        """The data in two parts, of which the first has the notes."""
        train, validation = map(data.subset, self.hold_out(len(data), classes))
        return [train, replace(validation, notes=())]

    def _datasets(
        self, dataset: Callable[..., Batches], epoch: Any, **options: Any
    ) -> tuple[Batches, Batches]:
        """Batches of the two parts, the first augmented, and in a random order."""
        train, validation = self.parts
        random = {"augmentations": self.augmentations, "shuffle": True}
        random |= {"seed": self.settings.seed, "epoch": epoch}
        return dataset(train, **options, **random), dataset(validation, **options)


def hold_out(
    count: int, fraction: float, seed: int, classes: Sequence[int] | None = None
) -> tuple[list[int], list[int]]:
    """Splits examples at random, each class in the same proportion.

    Args:
        count: Number of examples.
        fraction: Share to hold out.
        seed: Seed of the choice.
        classes: The class of each example. None = there are none.

    Returns:
        The indices to train on and those held out, both sorted. No class is held out as
        a whole, and one example at least is held out.

    Raises:
        ValueError: If there is only one example of each class.
    """
    groups: dict[int, list[int]] = {}
    for index in range(count):
        groups.setdefault(0 if classes is None else classes[index], []).append(index)
    shuffled = random.Random(seed)
    held: list[int] = []
    for members in groups.values():
        number = min(round(fraction * len(members)), len(members) - 1)
        held += shuffled.sample(members, number)
    largest = max(groups.values(), key=len)
    if not held and len(largest) > 1:
        held = shuffled.sample(largest, 1)
    if not held:
        raise ValueError(
            "DATA must have two examples of a class at least, one to train on and one "
            f"to validate on; or pass --validation. Received: {count} examples"
        )
    chosen = frozenset(held)
    return [index for index in range(count) if index not in chosen], sorted(held)


def balanced_weights(classes: np.ndarray, count: int) -> dict[int, float]:
    """Weights of classes: the mean number of examples divided by the class's number.

    Args:
        classes: The class of each example, (N,).
        count: Number of classes.
    """
    return inverse_weights(np.bincount(classes, minlength=count))


def inverse_weights(numbers: np.ndarray) -> dict[int, float]:
    """Weights of classes: the mean of some numbers divided by the class's number.

    Args:
        numbers: How often each class occurs, (C,). One that does not has the weight 0.
    """
    return {
        index: float(numbers.mean() / number) if number else 0.0
        for index, number in enumerate(numbers)
    }


def class_metrics(names: Sequence[str]) -> list[keras.metrics.Metric]:
    """Accuracy, Matthews correlation, and F1 of the second one of two classes."""
    metrics = [
        keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
        MatthewsCorrelation(len(names)),
    ]
    if len(names) == 2:
        name = re.sub(r"\W", "_", names[1])
        metrics.append(SparseF1Score(name=f"f1_{name}"))
    return metrics


def most_frequent_class(classes: np.ndarray) -> dict[str, float]:
    """The accuracy of always answering the most frequent class, to compare."""
    counts = np.bincount(classes)
    return {"most_frequent_class": float(counts.max() / counts.sum())}


def counted_classes(names: Sequence[str], classes: np.ndarray) -> str:
    """The classes with their numbers of examples, for the user."""
    counts = np.bincount(classes, minlength=len(names))
    listed = [f"{name} {count:,}" for name, count in zip(names, counts, strict=True)]
    return f"{len(listed)} classes: {shortened_names(listed)}"


def is_compiled() -> bool:
    """Whether XLA compiles the steps, each shape of a batch anew."""
    if keras.backend.backend() == "jax":
        return True
    return bool(tf.config.list_logical_devices("GPU"))


def get_input_names(model: Any) -> set[str]:
    """The names of a model's inputs; empty for a single tensor."""
    return set(model.input) if isinstance(model.input, dict) else set()


def shortened_names(names: Sequence[str], most: int = 10) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(" ".join(name.split()) for name in names[:most]) + more
