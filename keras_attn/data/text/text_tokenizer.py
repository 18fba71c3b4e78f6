"""Base class of the tokenizers of pretrained encoders and decoders.

Each kind has its own special tokens, and its own template for a text or a pair of
texts: its `Convention`. Batches, truncation, padding and decoding are the same for all.

Legend: B batch, T the longest row of the batch, in tokens.
"""

import abc
import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np

from keras_attn.checks.arguments import check_positive
from keras_attn.data.text import tokenizer_files as files
from keras_attn.data.text.base_tokenizer import TokenDecoder, check_text, check_texts
from keras_attn.data.text.conventions import Convention, Vocabulary
from keras_attn.data.text.setting_keys import CLEAN_UP_BYTE_PAIRS
from keras_attn.extras import requires_extra

# What transformers' `clean_up_tokenization` replaces, in its order.
_CLEANED_UP = [(f" {mark}", mark) for mark in ".?!,"] + [(" ' ", "'")]
_CLEANED_UP += [(f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")]


class TextTokenizer(TokenDecoder):
    """Base class of the tokenizers of pretrained models.

    A subclass adds `_tokenize`, `_join` and `save`. A special token in a text, such as
    "[SEP]", is ordinary text unless `parse_special_tokens` is set: user input must not
    be able to end a segment.

    Args:
        vocabulary: The pieces and the convention.

    Attributes:
        max_length: Maximum number of tokens per row, special ones included, that
            `encode_batch` keeps by default; None for no limit. A folder has it as
            `model_max_length`, a sentence folder as `max_seq_length`.
        truncation_side: Where a longer text loses tokens, `"right"` or `"left"`.
        prompt: What `encode_batch` puts before each text: the default prompt of a
            sentence folder, otherwise nothing.
    """

    max_length: int | None = None
    truncation_side: Literal["right", "left"] = "right"
    prompt: str = ""
    # As text: in a `tf.Module` a dictionary would be tracked.
    _settings = "{}"
    _prompts = "{}"
    # Whether decoding may take away blanks before punctuation: not where it is exact.
    _may_clean_up = True
    _cleans_up = False

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary

    def _with_settings(self, settings: Mapping[str, Any]) -> Self:
        """Adopts the remaining settings of a folder, for `encode_batch` and `save`."""
        self.max_length = files.get_max_length(settings)
        self.truncation_side = settings.get("truncation_side") or "right"
        self._settings = json.dumps(files.kept_settings(settings))
        self._cleans_up = bool(settings.get("clean_up_tokenization_spaces"))
        self._may_clean_up |= bool(settings.get(CLEAN_UP_BYTE_PAIRS))
        self._prompts = json.dumps(settings.get("prompts") or {})
        self.prompt = settings.get("prompt") or ""
        side, segment = settings.get("padding_side"), settings.get("pad_token_type_id")
        changed: dict[str, Any] = {}
        if side is not None:
            changed["pad_left"] = side == "left"
        if segment is not None:
            changed["pad_segment"] = segment
        left = settings.get("left_strip")
        if left is not None:
            roles = self.convention.tokens.items()
            changed["left_strip"] = tuple(role for role, t in roles if left.get(t))
        convention = dataclasses.replace(self.convention, **changed)
        self._vocabulary = dataclasses.replace(self._vocabulary, convention=convention)
        return self

    def _kept_settings(self) -> dict[str, Any]:
        """The settings to save besides those that the vocabulary needs."""
        kept = json.loads(self._settings)
        if self.max_length is not None:
            kept["model_max_length"] = self.max_length
        if self.truncation_side != "right" or "truncation_side" in kept:
            kept["truncation_side"] = self.truncation_side
        return kept

    def _save_settings(
        self,
        folder: str | os.PathLike,
        kind: str,
        tokens: Mapping[str, str] | None = None,
        **options,
    ) -> None:
        """Writes the settings and the prompts.

        Args:
            folder: The folder.
            kind: The class in Hugging Face's `transformers` that reads it.
            tokens: The special token of each role; None for the convention's.
            **options: Settings besides those that are kept.
        """
        convention = self.convention
        files.write_settings(
            folder,
            kind,
            convention.tokens if tokens is None else tokens,
            convention.left_stripped,
            **{**self._kept_settings(), **options},
        )
        prompts = self.prompts
        if self.prompt and self.prompt not in prompts.values():
            prompts["default"] = self.prompt
        names = [name for name, text in prompts.items() if text == self.prompt]
        default = names[0] if self.prompt else None
        files.write_prompts(folder, prompts, default)

    @abc.abstractmethod
    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        """Returns the ids of texts, read without special tokens."""

    @abc.abstractmethod
    def _join(self, ids: list[int]) -> str:
        """Returns the text of ids, none of them special."""

    @abc.abstractmethod
    def save(self, folder: str | os.PathLike) -> None:
        """Writes files that `from_folder` and Hugging Face's tokenizers can read.

        Args:
            folder: The folder, which is created if it does not exist. Files of another
                tokenizer in it are replaced or removed.
        """

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts of a sentence folder by name, of which one may be `prompt`."""
        return json.loads(self._prompts)

    @property
    def pieces(self) -> tuple[str, ...]:
        """The vocabulary: one string for each id."""
        return self._vocabulary.pieces

    @property
    def convention(self) -> Convention:
        """The special tokens, and the templates of rows."""
        return self._vocabulary.convention

    @property
    def special_token_ids(self) -> dict[str, int]:
        """The id of each special token."""
        return self._vocabulary.special

    @property
    def pad_token_id(self) -> int:
        """The id that pads rows, which the padding mask excludes."""
        return self._vocabulary.ids[self.convention.tokens["pad"]]

    @property
    def unknown_token_id(self) -> int | None:
        """The id of text that the vocabulary lacks; None where it covers all text."""
        return self._vocabulary.role("unknown")

    @property
    def start_token_id(self) -> int | None:
        """The id that begins a text, for generative models."""
        return self._vocabulary.role("start")

    @property
    def end_token_id(self) -> int | None:
        """The id that ends a text, for generative models."""
        return self._vocabulary.role("end")

    @property
    def classify_token_id(self) -> int | None:
        """The id whose output represents the whole row ("[CLS]")."""
        return self._vocabulary.role("classify")

    @property
    def separate_token_id(self) -> int | None:
        """The id that ends a segment ("[SEP]")."""
        return self._vocabulary.role("separate")

    @property
    def mask_token_id(self) -> int | None:
        """The id of a masked token ("[MASK]")."""
        return self._vocabulary.role("mask")

    def encode(self, text: str, *, parse_special_tokens: bool = False) -> list[int]:
        """Returns the ids of a text, with no special token added.

        Args:
            text: The text.
            parse_special_tokens: Whether a special token in the text, such as "[MASK]",
                becomes its id. False reads it as ordinary text.
        """
        check_text("text", text)
        if not parse_special_tokens:
            return self._tokenize([text])[0]
        return self._encode_around_special_tokens(text)

    def encode_prompt(self, text: str) -> list[int]:
        """Returns the ids of a text that a language model continues.

        The ids are as from `encode`, after the tokens that begin a row, such as the
        start token of a GPT-2 with `add_bos_token`.

        Args:
            text: The text.
        """
        names = [role for role, _ in self.convention.single]
        start = names[: names.index("A")]
        return [self._vocabulary.ids[self.convention.tokens[x]] for x in start] + (
            self.encode(self.prompt + text)
        )

    def encode_batch(
        self,
        texts: Iterable[str],
        second_texts: Iterable[str] | None = None,
        *,
        max_length: int | None = None,
        pad_to_max_length: bool = False,
        parse_special_tokens: bool = False,
    ) -> dict[str, np.ndarray]:
        """Encodes texts, or pairs of texts, into the inputs of a model.

        Args:
            texts: The texts, one per row.
            second_texts: The second text of each row's pair.
            max_length: Maximum number of tokens per row, special ones included. The
                longer text of a pair is truncated first, until both are of equal
                length. Special tokens are kept. None means the tokenizer's own maximum,
                which a folder stores as `model_max_length`; without one, there is no
                limit.
            pad_to_max_length: Whether rows are padded to `max_length` rather than to
                the longest row of the batch.
            parse_special_tokens: As in `encode`.

        Returns:
            A dictionary of `token_ids` int32 (B, T), `padding_mask` int32 (B, T), 1 =
            a real token, and `segment_ids` int32 (B, T).
        """
        is_pair = second_texts is not None
        max_length = self.max_length if max_length is None else max_length
        parts = {"A": self._encode_texts("texts", texts, parse_special_tokens)}
        if is_pair:
            parts["B"] = self._encode_texts(
                "second_texts", second_texts, parse_special_tokens
            )
            if len(parts["B"]) != len(parts["A"]):
                raise ValueError(
                    "`second_texts` must have the same length as `texts`. Received: "
                    f"{len(parts['A'])} texts and {len(parts['B'])} second texts"
                )
        room = self._room(is_pair, max_length, pad_to_max_length)
        rows = [
            self._fill_template(dict(zip(parts, texts_of_row, strict=True)), room)
            for texts_of_row in zip(*parts.values(), strict=True)
        ]
        return self._pad(rows, max_length if pad_to_max_length else None)

    def pack(
        self,
        texts: Any,
        second_texts: Any = None,
        *,
        max_length: int | None = None,
        pad_to_max_length: bool = False,
    ) -> dict[str, Any]:
        """Encodes string tensors inside a graph, if the tokenizer works there.

        Args:
            texts: UTF-8 strings (B,).
            second_texts: UTF-8 strings (B,), the second text of each row's pair.
            max_length: As in `encode_batch`.
            pad_to_max_length: As in `encode_batch`; True gives a static length.

        Raises:
            TypeError: If it does not.
        """
        name = type(self).__name__
        raise TypeError(
            f"`{name}` does not work inside a TensorFlow graph, because its library "
            "does not; encode texts by `encode_batch` before the graph, and make the "
            f"data set from what it returns. Received: texts={texts!r}"
        )

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of all ids; special ids are skipped.

        Args:
            ids: Integers (T,): a list, an array or an eager tensor.
        """
        special = set(self.special_token_ids.values())
        text = self._join([i for i in self._check_ids(ids) if i not in special])
        if not (self._cleans_up and self._may_clean_up):
            return text
        for blank, without in _CLEANED_UP:
            text = text.replace(blank, without)
        return text

    def _template(self, is_pair: bool) -> tuple[tuple[str, int], ...]:
        return self.convention.pair if is_pair else self.convention.single

    def _room(
        self, is_pair: bool, max_length: int | None, pad_to_max_length: bool
    ) -> int | None:
        """Number of tokens left for text in a row; None for no limit."""
        if max_length is None:
            if pad_to_max_length:
                raise ValueError(
                    "`pad_to_max_length` needs a `max_length` to pad to. "
                    "Received: max_length=None, pad_to_max_length=True"
                )
            return None
        names = [role for role, _ in self._template(is_pair)]
        added = sum(name not in ("A", "B") for name in names)
        room = check_positive("max_length", max_length) - added
        if room < len(names) - added:
            raise ValueError(
                "`max_length` must leave room for one token of each text besides the "
                f"{added} special tokens of a row. Received: max_length={max_length}"
            )
        return room

    def _fill_template(
        self, texts: dict[str, list[int]], room: int | None
    ) -> list[tuple[int, int]]:
        """One row: the token id and the segment id of each token.

        Args:
            texts: The ids of "A", and of "B" in a pair.
            room: As from `_room`.
        """
        if room is not None:
            kept = truncated_lengths(
                {name: len(ids) for name, ids in texts.items()}, room
            )
            texts = {name: self._cut(ids, kept[name]) for name, ids in texts.items()}
        row = []
        for role, segment in self._template("B" in texts):
            ids = texts.get(role, [self._vocabulary.role(role)])
            row += [(index, segment) for index in ids]
        return row

    def _cut(self, ids: list[int], count: int) -> list[int]:
        """The `count` tokens that remain of a text."""
        is_left = self.truncation_side == "left"
        return ids[len(ids) - count :] if is_left else ids[:count]

    def _pad(
        self, rows: list[list[tuple[int, int]]], width: int | None
    ) -> dict[str, np.ndarray]:
        """Rows as arrays (B, width); None means the length of the longest row."""
        if width is None:
            width = max(map(len, rows), default=0)
        token_ids = np.full((len(rows), width), self.pad_token_id, np.int32)
        segment_ids = np.full_like(token_ids, self.convention.pad_segment)
        mask = np.zeros_like(token_ids)
        for number, row in enumerate(rows):
            start = width - len(row) if self.convention.pad_left else 0
            columns = slice(start, start + len(row))
            token_ids[number, columns] = [index for index, _ in row]
            segment_ids[number, columns] = [segment for _, segment in row]
            mask[number, columns] = 1
        return {
            "token_ids": token_ids,
            "padding_mask": mask,
            "segment_ids": segment_ids,
        }

    def _encode_texts(
        self, name: str, texts: Iterable[str], parse_special_tokens: bool
    ) -> list[list[int]]:
        check_texts(texts)
        texts = list(texts)
        for text in texts:
            check_text(name, text)
        if self.prompt and name == "texts":
            texts = [self.prompt + text for text in texts]
        if parse_special_tokens:
            return [self._encode_around_special_tokens(text) for text in texts]
        return self._tokenize(texts) if texts else []

    def _encode_around_special_tokens(self, text: str) -> list[int]:
        special = self.special_token_ids
        left = self.convention.left_stripped
        # The longest first, in case one is the beginning of another.
        names = sorted(special, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text)
        # re.split alternates: text, special token, text, …
        for number in range(1, len(parts), 2):
            if parts[number] in left:
                parts[number - 1] = parts[number - 1].rstrip()
        encoded = iter(self._tokenize(parts[::2]))
        ids = []
        for number, part in enumerate(parts):
            ids += [special[part]] if number % 2 else next(encoded)
        return ids


def truncated_lengths(
    lengths: Mapping[str, Any], room: int, minimum=min, maximum=max
) -> dict:
    """The number of tokens of each text to keep; the longer is truncated first.

    If both are too long, the longer one keeps the odd token, and the second one if they
    are equally long, as in the `tokenizers` library.

    Args:
        lengths: Number of tokens of "A", and of "B" in a pair: numbers or tensors (B,).
        room: Maximum number of tokens of both together.
        minimum: Function that returns the smaller of two such values.
        maximum: Function that returns the larger of two such values.
    """
    first = lengths["A"]
    if "B" not in lengths:
        return {"A": minimum(first, room)}
    second = lengths["B"]
    # 1 where the first is longer, otherwise 0.
    longer = minimum(maximum(first - second, 0), 1)
    first_half = room // 2 + (room % 2) * longer
    return {
        "A": minimum(first, maximum(first_half, room - second)),
        "B": minimum(second, maximum(room - first_half, room - first)),
    }


def training_corpus(texts: Iterable[str]) -> list[str]:
    """The texts that are not blank.

    Raises:
        TypeError: If one is not a text.
        ValueError: If there are none.
    """
    check_texts(texts)
    corpus = []
    for text in texts:
        check_text("texts", text)
        if text.strip():
            corpus.append(text)
    if not corpus:
        raise ValueError(
            "`texts` must have at least one text that is not blank, to train the "
            "vocabulary on. Received: no text"
        )
    return corpus


def check_trained_size(vocabulary_size: int, minimum: int, contents: str) -> None:
    """Checks the size of a vocabulary to train.

    Args:
        vocabulary_size: The argument.
        minimum: Number of ids that every such vocabulary has.
        contents: What these ids are, for the message.
    """
    check_positive("vocabulary_size", vocabulary_size)
    if vocabulary_size < minimum:
        raise ValueError(
            f"`vocabulary_size` must be at least {minimum}: {contents}. "
            f"Received: vocabulary_size={vocabulary_size}"
        )


def tokenizers_library():
    """Imports `tokenizers`, or says what to install."""
    with requires_extra("text", "This tokenizer"):
        import tokenizers
    return tokenizers


def text_library(what: str):
    """Imports tensorflow-text, or says what to install."""
    with requires_extra("text", what):
        import tensorflow_text
    return tensorflow_text
