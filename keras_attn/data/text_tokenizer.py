"""What the tokenizers of pretrained encoders and decoders share.

Each kind has its own special tokens and its own way of setting a text, or a pair of
texts, between them: its `Convention`. Everything else is here: batches, truncation,
padding, decoding, and the same once more inside a TensorFlow graph.

Legend: B batch, T the longest row of the batch, in tokens.
"""

import abc
import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_attn.checks import check_positive
from keras_attn.data.base_tokenizer import check_texts
from keras_attn.extras import requires_extra
from keras_attn.file_reading import shortened


@dataclasses.dataclass(frozen=True)
class Convention:
    """How a family of models wants its texts.

    Attributes:
        tokens: The special token of each role: "pad", "unknown", "start", "end",
            "classify", "separate" and "mask"; all but "pad" may be absent.
        single: What a row is of one text: a role, or "A" for the text, each with its
            segment id.
        pair: What a row is of two texts, "A" and "B".
        pad_left: Whether rows are filled up at their left.
        pad_segment: The segment id of what fills up.
        other_tokens: Special tokens without a role.
    """

    tokens: Mapping[str, str]
    single: tuple[tuple[str, int], ...]
    pair: tuple[tuple[str, int], ...]
    pad_left: bool = False
    pad_segment: int = 0
    other_tokens: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """One string for each id, and what is special among them."""

    pieces: tuple[str, ...]
    convention: Convention
    ids: Mapping[str, int] = dataclasses.field(repr=False)

    @classmethod
    def of(cls, pieces: Sequence[str], convention: Convention) -> "Vocabulary":
        """Numbers the pieces; of two alike the later one counts, as in the reference.

        Raises:
            ValueError: If a special token is not among the pieces.
        """
        ids = {piece: index for index, piece in enumerate(pieces)}
        missing = sorted({t for t in convention.tokens.values() if t not in ids})
        if missing:
            raise ValueError(
                f"The vocabulary must have the special tokens "
                f"{shortened(', '.join(missing))}; "
                "is it the vocabulary of another kind of tokenizer? Received: "
                f"{len(ids)} pieces without them"
            )
        return cls(tuple(pieces), convention, ids)

    def role(self, name: str) -> int | None:
        """The id of a role's token, or None where the convention has no such role."""
        token = self.convention.tokens.get(name)
        return None if token is None else self.ids[token]

    @property
    def special(self) -> dict[str, int]:
        """The special tokens and their ids."""
        tokens = (*self.convention.tokens.values(), *self.convention.other_tokens)
        return {token: self.ids[token] for token in tokens if token in self.ids}


class TextTokenizer(abc.ABC):
    """What the tokenizers of pretrained models offer; a kind adds how text is cut.

    A special token that stands in a text, such as "[SEP]", is ordinary text, unless
    `parse_special_tokens` is set: what a user typed must not end a segment.

    Args:
        vocabulary: The pieces and the convention.
    """

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary

    @abc.abstractmethod
    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        """Returns the ids of texts in which nothing is special."""

    @abc.abstractmethod
    def _join(self, ids: list[int]) -> str:
        """Returns the text of ids that are none of them special."""

    @abc.abstractmethod
    def save(self, folder: str | os.PathLike) -> None:
        """Writes the files that `from_folder` and Hugging Face's tokenizers read."""

    @property
    def pieces(self) -> tuple[str, ...]:
        """The vocabulary: one string for each id."""
        return self._vocabulary.pieces

    @property
    def convention(self) -> Convention:
        """The special tokens, and how texts are set between them."""
        return self._vocabulary.convention

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, special ones included."""
        return len(self.pieces)

    @property
    def special_token_ids(self) -> dict[str, int]:
        """The id of each special token."""
        return self._vocabulary.special

    @property
    def pad_token_id(self) -> int:
        """The id that fills up rows; a mask hides it."""
        return self._vocabulary.ids[self.convention.tokens["pad"]]

    @property
    def unknown_token_id(self) -> int | None:
        """The id of what the vocabulary lacks; None where it lacks nothing."""
        return self._vocabulary.role("unknown")

    @property
    def start_token_id(self) -> int | None:
        """The id that begins a text, for models that write one."""
        return self._vocabulary.role("start")

    @property
    def end_token_id(self) -> int | None:
        """The id that ends a text, for models that write one."""
        return self._vocabulary.role("end")

    @property
    def classify_token_id(self) -> int | None:
        """The id whose output stands for the whole row ("[CLS]")."""
        return self._vocabulary.role("classify")

    @property
    def separate_token_id(self) -> int | None:
        """The id that closes a segment ("[SEP]")."""
        return self._vocabulary.role("separate")

    @property
    def mask_token_id(self) -> int | None:
        """The id of a hidden token ("[MASK]")."""
        return self._vocabulary.role("mask")

    def encode(self, text: str, *, parse_special_tokens: bool = False) -> list[int]:
        """Returns the ids of a text, with no special token added.

        Args:
            text: The text.
            parse_special_tokens: Whether a special token's name in the text, such as
                "[MASK]", becomes that token. False reads it as any other text.
        """
        _check_text("text", text)
        if not parse_special_tokens:
            return self._tokenize([text])[0]
        return self._encode_around_special_tokens(text)

    def encode_batch(
        self,
        texts: Iterable[str],
        second_texts: Iterable[str] | None = None,
        *,
        max_length: int | None = None,
        pad_to_max_length: bool = False,
        parse_special_tokens: bool = False,
    ) -> dict[str, np.ndarray]:
        """Encodes texts, or pairs of texts, into what a model takes.

        Args:
            texts: The texts, one a row.
            second_texts: As many more, each of the same row's pair.
            max_length: Most tokens a row may have, special ones included. Of a pair,
                the longer text is cut first, until both are of a length. Special
                tokens are never cut. None means no limit.
            pad_to_max_length: Whether rows are padded to `max_length` rather than to
                the longest row of the batch.
            parse_special_tokens: As in `encode`.

        Returns:
            A dictionary of `token_ids` int32 (B, T), `padding_mask` int32 (B, T), 1
            for a token of the row, and `segment_ids` int32 (B, T).
        """
        firsts = self._encode_texts("texts", texts, parse_special_tokens)
        parts = {"A": firsts}
        if second_texts is not None:
            parts["B"] = self._encode_texts(
                "second_texts", second_texts, parse_special_tokens
            )
            if len(parts["B"]) != len(firsts):
                raise ValueError(
                    "`second_texts` must be as many as `texts`. Received: "
                    f"{len(firsts)} texts and {len(parts['B'])} second texts"
                )
        room = self._room(second_texts is not None, max_length, pad_to_max_length)
        template = self._template(second_texts is not None)
        special = {role: [self._vocabulary.role(role)] for role, _ in template}
        ids, segments = [], []
        for row in range(len(firsts)):
            pieces = {name: part[row] for name, part in parts.items()}
            if room is not None:
                keep = shares({n: len(p) for n, p in pieces.items()}, room)
                pieces = {name: pieces[name][: keep[name]] for name in pieces}
            pieces = special | pieces
            packed = [
                (index, segment) for role, segment in template for index in pieces[role]
            ]
            ids.append([index for index, _ in packed])
            segments.append([segment for _, segment in packed])
        width = max(map(len, ids), default=0)
        if pad_to_max_length and max_length is not None:
            width = max_length
        token_ids = np.full((len(ids), width), self.pad_token_id, np.int32)
        segment_ids = np.full_like(token_ids, self.convention.pad_segment)
        mask = np.zeros_like(token_ids)
        for row, (index, segment) in enumerate(zip(ids, segments, strict=True)):
            start = width - len(index) if self.convention.pad_left else 0
            place = slice(start, start + len(index))
            token_ids[row, place] = index
            segment_ids[row, place] = segment
            mask[row, place] = 1
        return {
            "token_ids": token_ids,
            "padding_mask": mask,
            "segment_ids": segment_ids,
        }

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of ids; special ids write nothing and end nothing.

        Args:
            ids: Integers (T,): a list, an array or an eager tensor.
        """
        special = set(self.special_token_ids.values())
        return self._join([i for i in self._check_ids(ids) if i not in special])

    def decode_batch(self, ids: Iterable) -> list[str]:
        """Returns the text of every row of ids, (B, T)."""
        return [self.decode(row) for row in ids]

    def tokens(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """Returns one string for each id, special ones too: the labels of a plot."""
        return [self.pieces[index] for index in self._check_ids(ids)]

    def _template(self, is_pair: bool) -> tuple[tuple[str, int], ...]:
        return self.convention.pair if is_pair else self.convention.single

    def _room(
        self, is_pair: bool, max_length: int | None, pad_to_max_length: bool
    ) -> int | None:
        """How many tokens of text a row may have; None for no limit."""
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

    def _encode_texts(
        self, name: str, texts: Iterable[str], parse_special_tokens: bool
    ) -> list[list[int]]:
        check_texts(texts)
        texts = list(texts)
        for text in texts:
            _check_text(name, text)
        if parse_special_tokens:
            return [self._encode_around_special_tokens(text) for text in texts]
        return self._tokenize(texts) if texts else []

    def _encode_around_special_tokens(self, text: str) -> list[int]:
        special = self.special_token_ids
        # The longest first, should one begin another.
        names = sorted(special, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text)
        # re.split alternates: text, special token, text, …
        encoded = iter(self._tokenize(parts[::2]))
        ids = []
        for number, part in enumerate(parts):
            ids += [special[part]] if number % 2 else next(encoded)
        return ids

    def _check_ids(self, ids: Sequence[int] | np.ndarray) -> list[int]:
        array = np.asarray(ids)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ValueError(
                "`ids` must be integers of shape (T,); for (B, T) there is "
                "`decode_batch`. "
                f"Received: ids of shape {array.shape}, dtype {array.dtype}"
            )
        values = array.astype(np.int64).tolist()
        if values and not 0 <= min(values) <= max(values) < self.vocabulary_size:
            raise ValueError(
                f"`ids` must be in [0, {self.vocabulary_size}), the vocabulary of "
                "this tokenizer; was the model built for another? "
                f"Received: ids from {min(values)} to {max(values)}"
            )
        return values


def shares(lengths: Mapping[str, Any], room: int, least=min, most=max) -> dict:
    """How many tokens of each text are kept, the longer text losing first.

    Of two that are too long, the one that was longer keeps the odd token, and of two
    that were alike the second, as in the `tokenizers` library.

    Args:
        lengths: Tokens of "A", and of "B" if there is one: numbers, or tensors (B,).
        room: Most tokens of both.
        least: The minimum of two such values.
        most: The maximum of two such values.
    """
    first = lengths["A"]
    if "B" not in lengths:
        return {"A": least(first, room)}
    second = lengths["B"]
    # 1 where the first is longer, else 0.
    longer = least(most(first - second, 0), 1)
    first_half = room // 2 + (room % 2) * longer
    return {
        "A": least(first, most(first_half, room - second)),
        "B": least(second, most(room - first_half, room - first)),
    }


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(
            f"`{name}` must be text, that is `str`; bytes are decoded by "
            f"`.decode()`. Received: {text!r} of type {type(text).__name__}"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"`{name}` must be text that UTF-8 can hold; half of a surrogate pair is "
            f"none. Received: {text!r}"
        ) from error


def training_corpus(texts: Iterable[str]) -> list[str]:
    """The texts that are not blank.

    Raises:
        ValueError: If there is none.
    """
    check_texts(texts)
    corpus = [text for text in texts if text.strip()]
    if not corpus:
        raise ValueError(
            "`texts` must have at least one text that is not blank, to learn the "
            "vocabulary from. Received: no text"
        )
    return corpus


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
