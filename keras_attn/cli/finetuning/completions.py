"""Prompts and completions, and preferences among completions, for a language model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import keras

from keras_attn.cli.finetuning.job import Batches, TextJob, get_input_names
from keras_attn.cli.finetuning.kinds import Kind, find_other_kind
from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.finetuning.source import Source
from keras_attn.cli.finetuning.splits import left_out_rows, repeated_rows
from keras_attn.cli.finetuning.token_batches import get_max_length
from keras_attn.cli.terminal import working
from keras_attn.data import (
    completion_dataset,
    preference_dataset,
    read_completions,
    read_preferences,
)
from keras_attn.data.text.tables import read_columns
from keras_attn.losses import SmoothedCrossEntropy
from keras_attn.metrics import Perplexity
from keras_attn.training import DPO, adapters_off

_MULTIPLE = 32


class CompletionJob(TextJob):
    """Supervised fine-tuning: the loss of the completions only.

    Attributes:
        parts: The training and the validation rows: lists of token ids, prompts first.
        max_length: Tokens per row.
    """

    head: str = "causal_lm"
    _what = "prompts and completions"

    def __init__(self, settings: Settings, kind: Kind, source: Source):
        super().__init__(settings, kind, source)
        self._check_continues(source.is_language_model)
        positions = get_max_length(source, self.head, self.options())
        self.max_length = min(settings.max_length, positions or settings.max_length)
        train = self._read(settings.data, kind)
        if settings.validation is not None:
            other = find_other_kind(settings, kind, settings.validation)
            validation = self._read(settings.validation, other)
        else:
            train, validation = (
                [[column[index] for index in rows] for column in train]
                for rows in self.hold_out(len(train[0]))
            )
        self.parts = [train, validation]
        ours, theirs = (
            [tuple(map(tuple, row)) for row in zip(*part, strict=True)]
            for part in self.parts
        )
        self.notes += left_out_rows(settings)
        self.notes += repeated_rows(ours, theirs)

    def _texts(self, path: Path, kind: Kind) -> Sequence[list[str]]:
        """The columns of texts, prompts first."""
        return read_completions(
            path, prompt_column=kind.prompt or "prompt", completion_column=kind.text
        )

    def _read(self, path: Path, kind: Kind) -> list[list[list[int]]]:
        """The columns of token ids.

        Raises:
            ValueError: If a prompt leaves no room for a completion; its row is named.
        """
        with working("Encoding the texts"):
            prompts, *others = self._texts(path, kind)
            columns = [[self.tokenizer.encode_prompt(text) for text in prompts]]
            columns += [
                [self.tokenizer.encode(text) for text in column] for column in others
            ]
        for row, prompt in enumerate(columns[0]):
            if len(prompt) > self.max_length:
                places = [place for place, _ in read_columns(path, [])]
                raise ValueError(
                    f"A prompt must have at most {self.max_length} tokens, so that its "
                    "completion has room (--max-length, and the positions of MODEL). "
                    f"Received: {len(prompt)} tokens in {places[row]}"
                )
        return columns

    @property
    def num_examples(self) -> int:
        """Examples to train on."""
        return len(self.parts[0][0])

    @property
    def sequence(self) -> int | None:
        """Tokens of the longest row."""
        return min(self.max_length, max(self._row_lengths()) - 1)

    def _row_lengths(self) -> list[int]:
        """The tokens of each prompt with its longest completion and the end token."""
        end = self.tokenizer.end_token_id is not None
        return [
            len(prompt) + max(map(len, answers)) + end
            for part in self.parts
            for prompt, *answers in zip(*part, strict=True)
        ]

    def lines(self) -> list[str]:
        """The numbers of rows, and what is cut."""
        count, held = (len(part[0]) for part in self.parts)
        lines = [f"{count:,} {self._what} to train on, {held:,} to validate on"]
        cut = sum(length > self.max_length + 1 for length in self._row_lengths())
        if cut:
            lines.append(
                f"truncated at {self.max_length} tokens: {cut:,} rows (see "
                "--max-length)"
            )
        return lines

    def prepare(self, model: Any) -> None:
        """Checks that the model continues a text."""
        self._check_continues(
            hasattr(model, "incremental")
            and "decoder_token_ids" not in get_input_names(model)
        )

    def _check_continues(self, continues: bool) -> None:
        if not continues:
            raise ValueError(
                f"MODEL must continue a text, as GPT-2 does, to learn {self._what}. "
                f"Received: {self.source.name!r}"
            )

    def new_layers(self, model: Any) -> list[str]:
        """None: the logits are products with the embeddings."""
        return []

    def _dataset(self, part, **options: Any) -> Batches:
        return completion_dataset(*part, **options)

    def batches(self, epoch: Any) -> tuple[Batches, Batches]:
        """Batches of inputs, next tokens and weights."""
        options: dict[str, Any] = {
            "max_length": self.sequence,
            "batch_size": self.settings.batch_size,
            "end_token_id": self.tokenizer.end_token_id,
            "pad_token_id": self.tokenizer.pad_token_id,
            "pad_to_multiple_of": _MULTIPLE,
        }
        train, validation = self.parts
        seed = self.settings.seed
        shuffled = self._dataset(train, **options, shuffle_seed=seed, epoch=epoch)
        return shuffled, self._dataset(validation, **options)

    def compile(self, trainer: keras.Model, **options: Any) -> None:
        """The cross-entropy of the tokens of completions."""
        trainer.compile(
            loss=SmoothedCrossEntropy(), weighted_metrics=[Perplexity()], **options
        )

    def result(self) -> Result:
        """The column of the prompts, and the length of a row."""
        columns = {} if self.kind.prompt is None else {"prompt": self.kind.prompt}
        return Result(self.kind.task, columns=columns, max_length=self.max_length)


class PreferenceJob(CompletionJob):
    """Direct preference optimization, against the model as it was."""

    rate: ClassVar[float] = 1e-5
    lora_rate: ClassVar[float] = 1e-4
    rows: ClassVar[int] = 2
    _what = "preferences"

    def _texts(self, path: Path, kind: Kind) -> Sequence[list[str]]:
        return read_preferences(path, prompt_column=kind.prompt)

    def _dataset(self, part, **options: Any) -> Batches:
        return preference_dataset(*part, **options)

    def trainer(self, model: Any) -> keras.Model:
        """The model with its reference: a copy, or itself without its adapters."""
        if self.settings.lora is None:
            return DPO(model)

        def reference(inputs):
            with adapters_off(model):
                return model(inputs, training=False)

        return DPO(model, reference=reference)

    def compile(self, trainer: keras.Model, **options: Any) -> None:
        """The trainer has its own loss."""
        trainer.compile(**options)
