"""Text in, text out: an encoder-decoder with its two tokenizers."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from keras_attn.checks.arguments import check_positive
from keras_attn.data import load_tokenizer
from keras_attn.data.text.base_tokenizer import check_texts
from keras_attn.decoding import generate
from keras_attn.files.hub import local_folder
from keras_attn.files.hub_names import check_is_local, naming_hub_folders
from keras_attn.files.reading import read_json
from keras_attn.files.writing import replacing, write_atomically
from keras_attn.models.parts.keras_file import load_keras_file
from keras_attn.viz import capture_attention

_FORMAT = "keras_attn translator 1"


class Alignment(NamedTuple):
    """How much each target token attends to each source token.

    Attributes:
        scores: float32 (T, S), probabilities.
        source_tokens: S pieces of text.
        target_tokens: T pieces of text, including the end token.
    """

    scores: np.ndarray
    source_tokens: list[str]
    target_tokens: list[str]


class Translator:
    """A generative encoder-decoder with its source and target tokenizers.

    Saved as a folder of `model.keras`, `source_tokenizer.json`,
    `target_tokenizer.json` and `translator.json`.

    Args:
        model: A model from `token_ids`, `padding_mask` and `decoder_token_ids` to
            logits, with `incremental()`.
        source_tokenizer: Tokenizer of the texts to translate.
        target_tokenizer: Tokenizer of the translations.
        max_length: Maximum number of tokens of a source, and of a translation including
            its end token; less than the positions of the model, if it has so many.

    Raises:
        ValueError: If `max_length` is not a positive integer, or the model has too few
            positions.

    Example:
        Needs the folder of a translator, such as `keras-attn demo` writes:

        ```python
        from keras_attn import translator

        dates = translator.Translator.load("runs/dates")
        dates.translate(["the third of march 2027"])  # ["2027-03-03"]
        ```
    """

    def __init__(self, model, source_tokenizer, target_tokenizer, *, max_length):
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.max_length = check_positive("max_length", max_length)
        positions = getattr(model, "max_length", None)
        if positions is not None and max_length >= positions:
            raise ValueError(
                f"`max_length` must be at most {positions - 1}: the model has "
                f"{positions} positions, and a translation begins with a start token. "
                "Pass a smaller one, or build the model with a larger "
                f"`max_sequence_length`. Received: max_length={max_length}"
            )

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the folder, each of its files atomically.

        Args:
            folder: The folder, which is created if it does not exist.
        """
        check_is_local(folder, "folder")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / "model.keras") as partial:
            self.model.save(partial)
        self.source_tokenizer.save(folder / "source_tokenizer.json")
        self.target_tokenizer.save(folder / "target_tokenizer.json")
        about = {"format": _FORMAT, "max_length": self.max_length}
        write_atomically(folder / "translator.json", json.dumps(about).encode())

    @classmethod
    @naming_hub_folders()
    def load(cls, folder: str | os.PathLike) -> "Translator":
        """Reads a folder that `save` wrote.

        Args:
            folder: The folder, or its name on the hub, `hf://owner/name[@revision]`.

        Raises:
            ValueError: If the folder is not one, or its `model.keras` is damaged.
            FileNotFoundError, PermissionError, ConnectionError: Of a name on the hub,
                as in `models.load_checkpoint`.
        """
        folder = local_folder(folder)
        try:
            about = read_json(folder / "translator.json")
            known, max_length = about["format"] == _FORMAT, about["max_length"]
        except (OSError, ValueError, KeyError, TypeError):
            known, max_length = False, None
        if not known or not (folder / "model.keras").is_file():
            raise ValueError(
                "`folder` must be one that `Translator.save` wrote, with "
                "`translator.json` and `model.keras` in it. "
                f"Received: folder={str(folder)!r}"
            )
        return cls(
            load_keras_file(folder / "model.keras"),
            load_tokenizer(folder / "source_tokenizer.json"),
            load_tokenizer(folder / "target_tokenizer.json"),
            max_length=max_length,
        )

    def translate(
        self, texts: Sequence[str], *, strategy=None, runner=None, batch_size: int = 64
    ) -> list[str]:
        """Translates texts, in batches of similar length.

        Args:
            texts: Sources, truncated to `max_length` tokens.
            strategy: From `keras_attn.decoding`. Default: greedy.
            runner: An exported artefact of the model, from `export.load_runner`, to
                run instead of it. Texts are padded to its shapes if they are fixed.
            batch_size: Number of texts per batch, unless the runner's is fixed.

        Returns:
            One translation per text.

        Raises:
            ValueError: If a text is empty, or too long for a runner of fixed length.
        """
        self._check_texts(texts)
        fixed_batch, fixed_length = _fixed_shape(runner)
        batch_size = fixed_batch or batch_size
        rows = [self.source_tokenizer.encode(text)[: self.max_length] for text in texts]
        longest = max(map(len, rows), default=0)
        if fixed_length and longest > fixed_length:
            raise ValueError(
                f"`texts` must have at most {fixed_length} tokens, the length that the "
                f"artefact was exported with. Received: {longest} tokens"
            )
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        translations = [""] * len(texts)
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            # If the batch size is fixed, the last batch repeats a row.
            filled = chosen + chosen[-1:] * ((fixed_batch or 0) - len(chosen))
            chosen_rows = [rows[index] for index in filled]
            token_ids = _pad(chosen_rows, fixed_length, self.max_length)
            generated = generate(
                self.model if runner is None else runner,
                {"token_ids": token_ids, "padding_mask": token_ids != 0},
                self.max_length,
                strategy=strategy,
                start_token_id=self.target_tokenizer.start_token_id,
                end_token_id=self.target_tokenizer.end_token_id,
                pad_token_id=self.target_tokenizer.pad_token_id,
            )
            answers = self.target_tokenizer.decode_batch(generated.token_ids)
            for index, answer in zip(chosen, answers, strict=False):
                translations[index] = answer
        return translations

    def align(self, text: str, translation: str | None = None) -> Alignment:
        """The model's attention to the source while it writes a translation.

        Args:
            text: The source.
            translation: Any target text. Default: the model's own, greedily.

        Returns:
            The scores of the last attention layer from target to source.

        Raises:
            ValueError: If a text is empty, or the model has no attention.
        """
        if translation is None:
            (translation,) = self.translate([text])
        self._check_texts([text])
        inputs, source_tokens, target_tokens = self.example(text, translation)
        scores = list(capture_attention(self.model, inputs).values())[-1]
        if scores.shape[-1] != len(source_tokens):
            raise ValueError(
                "`model` must attend to all source tokens; this one attends to a fixed "
                "context. Received: scores of shape "
                f"{scores.shape} for {len(source_tokens)} source tokens"
            )
        return Alignment(scores[0].mean(axis=0), source_tokens, target_tokens)

    def example(self, text: str, translation: str):
        """A teacher-forced example: inputs (1, …), source tokens, target tokens.

        Args:
            text: The source.
            translation: The target.
        """
        source = self.source_tokenizer.encode(text)[: self.max_length]
        target = self.target_tokenizer.encode(translation)[: self.max_length - 1]
        target = [*target, self.target_tokenizer.end_token_id]
        token_ids = np.array([source], "int32")
        shifted = [self.target_tokenizer.start_token_id, *target[:-1]]
        inputs = {
            "token_ids": token_ids,
            "padding_mask": np.ones_like(token_ids, bool),
            "decoder_token_ids": np.array([shifted], "int32"),
        }
        source_tokens = self.source_tokenizer.tokens(source)
        return inputs, source_tokens, self.target_tokenizer.tokens(target)

    def _check_texts(self, texts):
        check_texts(texts)
        for index, text in enumerate(texts):
            if not isinstance(text, str) or not self.source_tokenizer.encode(text):
                raise ValueError(
                    "`texts` must be strings with at least one token each. "
                    f"Received: texts[{index}]={text!r}"
                )


def _pad(rows, length, max_length):
    # Rounded up, so that few shapes are compiled.
    length = length or min(-(-max(map(len, rows)) // 8) * 8, max_length)
    return keras.utils.pad_sequences(rows, length, padding="post")


def _fixed_shape(runner):
    """Batch size and length of an artefact; None where it takes any."""
    if runner is None:
        return None, None
    shape = runner.signatures["prefill"].inputs["token_ids"].shape
    batch, length = (size if isinstance(size, int) else None for size in shape)
    return batch, length
