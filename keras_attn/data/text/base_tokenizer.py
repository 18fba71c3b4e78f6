"""Base classes of the tokenizers: batches, decoding, checks of texts and ids.

Legend: B batch, T the longest row of the batch, in tokens.
"""

import abc
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from keras_attn.checks.arguments import check_positive
from keras_attn.files.writing import write_atomically

FORMAT = "keras_attn.tokenizer"
SPECIAL_PIECES = ("<pad>", "<start>", "<end>", "<unk>")


class TokenDecoder(abc.ABC):
    """Decoding from ids to text, which all tokenizers have in common.

    A subclass has `pieces`, the vocabulary: one string for each id.

    Attributes:
        spells_bytes: Whether each character of a piece stands for a byte of UTF-8, as
            in byte-level BPE.
    """

    spells_bytes = False

    @abc.abstractmethod
    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of ids."""

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, special ones included."""
        return len(self.pieces)

    def decode_batch(self, ids: Iterable) -> list[str]:
        """Returns the text of every row of ids.

        Args:
            ids: (B, T), or rows of different lengths.
        """
        return [self.decode(row) for row in ids]

    def tokens(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """Returns one string for each id, special ones too: the labels of a plot.

        Args:
            ids: (T,).
        """
        return [self.pieces[index] for index in self._check_ids(ids)]

    def _check_ids(self, ids: Sequence[int] | np.ndarray) -> list[int]:
        array = np.asarray(ids)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ValueError(
                "`ids` must be integers of shape (T,); for (B, T) use `decode_batch`. "
                f"Received: ids of shape {array.shape}, dtype {array.dtype}"
            )
        values = array.astype(np.int64).tolist()
        if values and not 0 <= min(values) <= max(values) < self.vocabulary_size:
            raise ValueError(
                f"`ids` must be in [0, {self.vocabulary_size}), the vocabulary of this "
                "tokenizer; was the model built for a different one? Received: ids "
                f"from {min(values)} to {max(values)}"
            )
        return values


class Tokenizer(TokenDecoder):
    """Base class of the tokenizers that `load_tokenizer` reads.

    A subclass adds `encode`, `_join` and `_state`.

    Attributes:
        kind: The name under which a saved file is recognized.
        pieces: The vocabulary: one string for each id, the special ones first.
        pad_token_id: 0, the id that pads rows.
        start_token_id: 1, the first input of a decoder.
        end_token_id: 2, the id that ends a text.
        unknown_token_id: 3, the id of text that the vocabulary lacks.
    """

    kind: str
    pieces: tuple[str, ...]
    pad_token_id = 0
    start_token_id = 1
    end_token_id = 2
    unknown_token_id = 3

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without start or end token.

        Args:
            text: The text.
        """

    @abc.abstractmethod
    def _join(self, ids: list[int]) -> str:
        """Returns the text of ids, none of them special."""

    @abc.abstractmethod
    def _state(self) -> Any:
        """Returns the argument of the constructor, as JSON."""

    def encode_prompt(self, text: str) -> list[int]:
        """Returns the ids of a text that a language model continues: `encode`.

        Args:
            text: The text.
        """
        return self.encode(text)

    def encode_batch(
        self,
        texts: Iterable[str],
        max_length: int | None = None,
        add_start: bool = False,
        add_end: bool = False,
    ) -> np.ndarray:
        """Encodes texts into one array.

        Args:
            texts: The texts, one per row.
            max_length: Maximum number of tokens per row, start and end included; the
                text is truncated, never the end token. None means no limit.
            add_start: Whether rows begin with the start token.
            add_end: Whether rows end with the end token.

        Returns:
            int32 (B, T), padded with `pad_token_id` to the longest row.
        """
        check_texts(texts)
        texts = list(texts)
        for text in texts:
            check_text("texts", text)
        start = [self.start_token_id] * add_start
        end = [self.end_token_id] * add_end
        room = None
        if max_length is not None:
            room = check_positive("max_length", max_length) - len(start) - len(end)
            if room < 1:
                raise ValueError(
                    "`max_length` must leave room for text besides the start and end "
                    f"tokens. Received: max_length={max_length}, "
                    f"add_start={add_start}, add_end={add_end}"
                )
        rows = [start + self.encode(text)[:room] + end for text in texts]
        longest = max(map(len, rows), default=0)
        return keras.utils.pad_sequences(
            rows, longest, padding="post", value=self.pad_token_id
        )

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of ids up to the end token; special ids are skipped.

        Args:
            ids: Integers (T,): a list, an array or an eager tensor.
        """
        ids = self._check_ids(ids)
        if self.end_token_id in ids:
            ids = ids[: ids.index(self.end_token_id)]
        return self._join([index for index in ids if index >= len(SPECIAL_PIECES)])

    def save(self, path: str | os.PathLike) -> None:
        """Writes the tokenizer as JSON; `load_tokenizer` reads it back.

        Args:
            path: The file.
        """
        content = {"format": FORMAT, "kind": self.kind, "state": self._state()}
        text = json.dumps(content, ensure_ascii=False, indent=1)
        write_atomically(path, text.encode())


def check_texts(texts: object) -> None:
    """Raises if a single text is given where several are expected.

    Raises:
        ValueError: If `texts` is a string.
    """
    # A string is also an iterable of strings: its characters.
    if isinstance(texts, (str, bytes)):
        raise ValueError(
            "`texts` must be a sequence of texts, such as a list; put a single text "
            f"in a list. Received: texts={texts!r}"
        )


def check_text(name: str, text: object) -> None:
    """Raises if an argument is not a text.

    Args:
        name: Its name, for the message.
        text: Its value.

    Raises:
        TypeError: If it is of another type, such as bytes.
        ValueError: If it has an unpaired surrogate.
    """
    if not isinstance(text, str):
        raise TypeError(
            f"`{name}` must be text of type `str`; decode bytes with `.decode()`. "
            f"Received: {text!r} of type {type(text).__name__}"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"`{name}` must be text that UTF-8 can encode, without unpaired "
            f"surrogates. Received: {text!r}"
        ) from error
