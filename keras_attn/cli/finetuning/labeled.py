"""Texts, or pairs of texts, with a class, a number or a preference each."""

from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np

from keras_attn.cli.finetuning.job import (
    Batches,
    TextJob,
    balanced_weights,
    class_metrics,
    counted_classes,
    get_input_names,
    is_compiled,
    most_frequent_class,
)
from keras_attn.cli.finetuning.kinds import Kind, find_other_kind
from keras_attn.cli.finetuning.label_scale import LabelScale, holds_scale
from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.finetuning.source import Source
from keras_attn.cli.finetuning.splits import (
    left_out_rows,
    repeated_rows,
    without_examples,
)
from keras_attn.cli.finetuning.token_batches import get_max_length, token_batches
from keras_attn.cli.terminal import working
from keras_attn.data import LabeledTexts, read_labeled_texts, read_preferences
from keras_attn.distribution.processes import device_count
from keras_attn.losses import RankingLoss
from keras_attn.metrics import RankingAccuracy


class EncodedTextJob(TextJob):
    """A model with one row of numbers for each text or pair.

    Attributes:
        inputs: The encoded training and validation texts, by the names of inputs.
        labels: Their labels, (N,).
        num_truncated: How many texts were cut.
    """

    head: str = "classifier"
    num_outputs: int

    def encode(self, texts: list[LabeledTexts], labels: list[np.ndarray]) -> None:
        """Encodes the training and the validation texts.

        Raises:
            ValueError: If `--max-length` leaves no room for a text.
        """
        limits = (self.settings.max_length, self.tokenizer.max_length)
        positions = get_max_length(self.source, self.head, self.options())
        self.max_length = min(each for each in (*limits, positions) if each)
        self.labels = labels
        self.inputs = []
        self.num_truncated = 0
        with working("Encoding the texts"):
            for part in texts:
                self.inputs.append(self._encode(part, self.max_length))
                full = np.flatnonzero(
                    self.inputs[-1]["padding_mask"].sum(1) == self.max_length
                )
                # Of those that fill a row, some fit exactly.
                longer = self._encode(part.subset(full.tolist()), self.max_length + 1)
                self.num_truncated += int(
                    (longer["padding_mask"].sum(1) > self.max_length).sum()
                )

    def _encode(self, part: LabeledTexts, length: int) -> dict[str, np.ndarray]:
        return self.tokenizer.encode_batch(
            part.texts, part.second_texts, max_length=length
        )

    def _truncated(self, what: str) -> list[str]:
        """Says how many texts are cut, if there are any."""
        if not self.num_truncated:
            return []
        cut = f"{self.num_truncated:,} {what} (see --max-length)"
        return [f"truncated at {self.max_length} tokens: {cut}"]

    @property
    def num_examples(self) -> int:
        """Examples to train on."""
        return len(self.labels[0]) // self.rows

    @property
    def sequence(self) -> int | None:
        """Tokens of the longest row."""
        return max(each["padding_mask"].shape[1] for each in self.inputs)

    def options(self) -> dict[str, Any]:
        """The size of the vocabulary, and the number of outputs."""
        return {**super().options(), "num_classes": self.num_outputs}

    def prepare(self, model: Any) -> None:
        """Keeps the inputs that the model takes."""
        names = get_input_names(model)
        known = {"token_ids", "padding_mask", "segment_ids"}
        if "padding_mask" not in names or not names <= known:
            raise ValueError(
                f"MODEL must take texts, {', '.join(sorted(known))}. Received: a model "
                f"with the inputs {', '.join(sorted(names)) or 'images'}"
            )
        shape = getattr(model.output, "shape", ())
        if len(shape) != 2 or shape[-1] != self.num_outputs:
            raise ValueError(
                f"MODEL must have {self.num_outputs} outputs for these data; a "
                "checkpoint folder gets a new head. Received: a model with the output "
                f"{tuple(shape) or 'of several tensors'}"
            )
        self.inputs = [
            {name: array for name, array in each.items() if name in names}
            for each in self.inputs
        ]

    def batches(self, epoch: Any) -> tuple[Batches, Batches]:
        """Batches of inputs and labels."""
        # A GPU compiles each length anew, and so does JAX.
        compiles = is_compiled()
        options: dict[str, Any] = {
            "batch_size": self.settings.batch_size,
            "multiple": 32 if compiles else 8,
            "pad_left": self.tokenizer.convention.pad_left,
            "together": self.rows,
        }
        train, validation = zip(self.inputs, self.labels, strict=True)
        seed = self.settings.seed
        shuffled = token_batches(*train, **options, shuffle_seed=seed, epoch=epoch)
        return shuffled, token_batches(*validation, **options)

    def result(self) -> Result:
        """The columns and the length of a row."""
        columns = {"text": self.kind.text, "second": self.kind.second}
        columns |= {"label": self.kind.label, "prompt": self.kind.prompt}
        return Result(
            task=self.kind.task,
            columns={name: column for name, column in columns.items() if column},
            max_length=self.max_length,
        )


class LabeledTextJob(EncodedTextJob):
    """Texts with a class or a score each."""

    def __init__(self, settings: Settings, kind: Kind, source: Source):
        super().__init__(settings, kind, source)
        train = read_texts(settings, settings.data, kind)
        if settings.task is None and train.are_scores:
            kind = Kind(**{**vars(kind), "task": "text_regression"})
            self.kind = kind
        self.is_regression = kind.task == "text_regression"
        self.class_names: list[str] = []
        if not self.is_regression:
            self.class_names = _class_names(train, source)
        classes = None if self.is_regression else train.classes(self.class_names)
        if settings.validation is not None:
            other = find_other_kind(settings, kind, settings.validation)
            if (other.second is None) != (kind.second is None):
                raise ValueError(
                    "--validation must have texts or pairs of texts, as DATA. "
                    f"Received: columns {other.second} and {kind.second} of the second "
                    "texts (see --pair-column)"
                )
            validation = read_texts(settings, settings.validation, other)
        else:
            chosen = None if classes is None else classes.tolist()
            rows = self.hold_out(len(train), chosen)
            train, validation = map(train.subset, rows)
        self.num_outputs = len(self.class_names) or 1
        self.notes += left_out_rows(settings)
        self.notes += repeated_rows(train.rows_of_texts, validation.rows_of_texts)
        if self.class_names:
            found = validation.classes(self.class_names)
            self.notes += without_examples(self.class_names, found)
        labels = [self._labels(part) for part in (train, validation)]
        self.scale: LabelScale | None = None
        if self.is_regression:
            self.range = float(labels[0].min()), float(labels[0].max())
            self.scale = LabelScale.of(labels[0])
            labels = [self.scale.standardize(part) for part in labels]
        self.encode([train, validation], labels)

    def _labels(self, texts: LabeledTexts) -> np.ndarray:
        return texts.scores() if self.is_regression else texts.classes(self.class_names)

    def lines(self) -> list[str]:
        """The numbers of texts, the classes, what was cut."""
        what = "pairs" if self.kind.second else "texts"
        count, held = (len(each) for each in self.labels)
        lines = [f"{count:,} {what} to train on, {held:,} to validate on"]
        if self.class_names:
            lines.append(counted_classes(self.class_names, self.labels[0]))
        if self.scale is not None:
            low, high = self.range
            lines.append(
                f"numbers from {low:.6g} to {high:.6g}, mean {self.scale.mean:.6g}, "
                f"deviation {self.scale.deviation:.6g}; scaled to mean 0 and deviation "
                "1 for training, predicted in their own unit"
            )
        return lines + self._truncated(what)

    def prepare(self, model: Any) -> None:
        """Names the classes of the model."""
        super().prepare(model)
        model.class_names = self.class_names or None
        if self.settings.save_adapters and self.scale and not holds_scale(model):
            raise ValueError(
                "--save-adapters needs a head with a bias for numbers, which takes "
                f"their scale. Received: {self.source.name!r}"
            )

    def begin(self, model: Any, source: Source) -> Any:
        """A model of numbers that has learned some predicts standardized ones."""
        if self.scale is None or not source.predicts_numbers:
            return model
        return self.scale.out_of(model)

    def finish(self, model: Any) -> Any:
        """A model of numbers predicts them in their own unit."""
        return model if self.scale is None else self.scale.into(model)

    def class_weights(self) -> dict[int, float] | None:
        """The weights with which all classes weigh the same."""
        if self.is_regression:
            return super().class_weights()
        return balanced_weights(self.labels[0], len(self.class_names))

    def compile(self, trainer: keras.Model, **options: Any) -> None:
        """Cross-entropy, or the squared error of numbers."""
        if self.scale is not None:
            # Rows that devices cannot share are on each of them.
            size = max(2, *map(len, self.labels)) * device_count()
            trainer.compile(
                loss=keras.losses.MeanSquaredError(),
                metrics=self.scale.metrics(size),
                **options,
            )
            return
        trainer.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=class_metrics(self.class_names),
            **options,
        )

    def figures(self, trainer: keras.Model, validation: Batches) -> dict[str, float]:
        """The figures, and the accuracy of the most frequent class, to compare."""
        found = super().figures(trainer, validation)
        if self.class_names:
            found |= most_frequent_class(self.labels[1])
        return found

    def result(self) -> Result:
        """The result, with the classes or the scale of the numbers."""
        found = {**vars(super().result()), "class_names": self.class_names}
        if self.scale is not None:
            found["label_scale"] = vars(self.scale)
        return Result(**found)


class RewardJob(EncodedTextJob):
    """A model that scores completions, learned from pairs of a better and a worse one.

    A prompt and its completion are encoded as a pair of texts.
    """

    rows: ClassVar[int] = 2
    num_outputs = 1

    def __init__(self, settings: Settings, kind: Kind, source: Source):
        super().__init__(settings, kind, source)
        train = self._read(settings.data, kind)
        if settings.validation is not None:
            other = find_other_kind(settings, kind, settings.validation)
            validation = self._read(settings.validation, other)
        else:
            parts = self.hold_out(len(train) // 2)
            train, validation = (
                train.subset([2 * pair + place for pair in part for place in (0, 1)])
                for part in parts
            )
        pairs = [x.rows_of_texts for x in (train, validation)]
        pairs = [list(zip(x[::2], x[1::2], strict=True)) for x in pairs]
        self.notes += left_out_rows(settings)
        self.notes += repeated_rows(pairs[0], pairs[1], "pairs")
        self.encode([train, validation], [x.scores() for x in (train, validation)])

    def _read(self, path: Path, kind: Kind) -> LabeledTexts:
        """Rows of which two consecutive ones are a pair, the better first."""
        found = read_preferences(path, prompt_column=kind.prompt)
        pairs = zip(found.chosen, found.rejected, strict=True)
        texts = [text for pair in pairs for text in pair]
        prompts = [prompt for prompt in found.prompts for _ in (0, 1)]
        labels, rows = ["1", "0"] * len(found.prompts), [path.name] * len(texts)
        if kind.prompt is None:
            return LabeledTexts(texts, None, labels, rows)
        return LabeledTexts(prompts, texts, labels, rows)

    def lines(self) -> list[str]:
        """The numbers of pairs."""
        count, held = (len(each) // 2 for each in self.labels)
        lines = [f"{count:,} pairs to train on, {held:,} to validate on"]
        return lines + self._truncated("completions")

    def compile(self, trainer: keras.Model, **options: Any) -> None:
        """The loss of the ranking of two."""
        trainer.compile(loss=RankingLoss(2), metrics=[RankingAccuracy(2)], **options)


def read_texts(settings: Settings, path: Path, kind: Kind) -> LabeledTexts:
    """The texts of a table with their labels, by the columns of its kind.

    Args:
        settings: Of the run.
        path: The table.
        kind: Its kind.
    """
    return read_labeled_texts(
        path,
        text_column=kind.text,
        second_column=kind.second,
        label_column=kind.label,
        header=settings.header,
    )


def _class_names(texts: LabeledTexts, source: Source) -> list[str]:
    """The classes, in the order of the checkpoint if they are its own."""
    names, known = texts.class_names, source.class_names
    if len(names) < 2:
        raise ValueError(
            f"`{texts.label_column}` must have two different values at least. "
            f"Received: {names} in all {len(texts):,} rows"
        )
    return list(known) if known and set(known) == set(names) else names
