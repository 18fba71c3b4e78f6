"""Rows of a prompt and its completion, in one flat array, from which batches are cut.

Legend: N rows, B rows of a batch, T tokens of a row.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_positive


class Row(NamedTuple):
    """A prompt and its completion.

    Attributes:
        tokens: Both, one after another.
        is_label: Whether a token is learned: tokens of the completion, except the first
            of the row, which nothing precedes.
        document_ids: Which pair a token is of, from 1.
    """

    tokens: list[int]
    is_label: list[bool]
    document_ids: list[int]


def make_row(
    prompt: Sequence[int],
    completion: Sequence[int],
    *,
    end_token_id: int | None,
    max_tokens: int,
    label: str,
    names: tuple[str, str] = ("prompts", "completions"),
) -> Row:
    """Joins a prompt, its completion and the end token, and cuts the completion.

    Args:
        prompt: Token ids, possibly none.
        completion: Token ids, at least one.
        end_token_id: Token after the completion, or None.
        max_tokens: Maximum number of tokens.
        label: What and where the row is, for messages, such as `"row 3"`.
        names: The arguments that prompt and completion are from.

    Raises:
        ValueError: If there is a text instead of ids, if the completion is empty, or if
            the prompt leaves no room for a token of it.
    """
    for name, ids in zip(names, (prompt, completion), strict=True):
        if isinstance(ids, str | bytes):
            raise ValueError(
                f"`{name}` must be lists of token ids; encode the texts with the "
                f"model's tokenizer. Received: {ids[:50]!r} in {label}"
            )
    if not len(completion):
        raise ValueError(
            f"`{names[1]}` must have at least one token each. Received: none in {label}"
        )
    if len(prompt) >= max_tokens:
        raise ValueError(
            f"`{names[0]}` must leave room for a token of the completion: at most "
            f"{max_tokens - 1} tokens with this `max_length`. "
            f"Received: {len(prompt)} tokens in {label}"
        )
    end = [] if end_token_id is None else [end_token_id]
    tokens = [*map(int, prompt), *map(int, completion), *end][:max_tokens]
    is_label = [index >= max(len(prompt), 1) for index in range(len(tokens))]
    return Row(tokens, is_label, [1] * len(tokens))


def pack_rows(rows: Sequence[Row], max_tokens: int) -> list[Row]:
    """Joins rows of at most `max_tokens`, of which none is cut in two.

    Best-fit decreasing: each row, the longest first, goes where it leaves least room.
    """
    room: list[list[int]] = [[] for _ in range(max_tokens + 1)]  # Packs by free tokens.
    packs: list[list[int]] = []
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index].tokens))
    for index in order:
        length = len(rows[index].tokens)
        free = next((free for free in range(length, max_tokens) if room[free]), None)
        if free is None:
            packs.append([index])
            room[max_tokens - length].append(len(packs) - 1)
        else:
            pack = room[free].pop()
            packs[pack].append(index)
            room[free - length].append(pack)
    return [
        Row(
            [token for index in pack for token in rows[index].tokens],
            [flag for index in pack for flag in rows[index].is_label],
            [
                number
                for number, index in enumerate(pack, 1)
                for _ in rows[index].tokens
            ],
        )
        for pack in packs
    ]


class FlatRows:
    """Rows of different lengths in flat arrays, cut into padded batches.

    Args:
        rows: N rows.
        max_length: Maximum T.
        multiple: T is the longest row of a batch rounded up to a multiple of this, at
            most `max_length`. None pads to `max_length`.
        pad_token_id: Token of the padding.
        packed: Whether inputs have `document_ids`, as a row may hold several pairs.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        max_length: int,
        multiple: int | None,
        pad_token_id: int,
        *,
        packed: bool = False,
    ):
        self.lengths = np.array([len(row.tokens) for row in rows], np.int64)
        self._starts = np.cumsum(self.lengths) - self.lengths
        self._tokens = np.array([t for row in rows for t in row.tokens], np.int32)
        self._is_label = np.array([x for row in rows for x in row.is_label], bool)
        self._document_ids = np.array(
            [x for row in rows for x in row.document_ids], np.int32
        )
        self._packed = packed
        self._max_length = max_length
        self._multiple = multiple
        self._pad_token_id = pad_token_id

    def next_tokens(self, indices) -> tuple[Any, Any, Any]:
        """A batch for `model.fit`: inputs, the next tokens as labels, and weights.

        Args:
            indices: Numbers of rows, a tensor (B,).
        """
        tokens, real, is_label, document_ids = self._batch(indices, 1)
        # A token without a label is padding too: nothing depends on it.
        inputs = {
            "token_ids": tokens[:, :-1],
            "padding_mask": tf.cast(real[:, 1:], tf.int32),
        }
        if self._packed:
            inputs["document_ids"] = document_ids[:, :-1] * inputs["padding_mask"]
        return inputs, tokens[:, 1:], tf.cast(is_label[:, 1:], tf.float32)

    def whole(self, indices) -> Any:
        """The inputs of a batch whose every token is read.

        Args:
            indices: Numbers of rows, a tensor (B,).
        """
        tokens, real, *_ = self._batch(indices, 0)
        return {"token_ids": tokens, "padding_mask": tf.cast(real, tf.int32)}

    def _batch(self, indices, extra):
        """Tokens, what is real, what is a label, and pairs, each (B, T + extra)."""

        def read(indices):
            lengths = self.lengths[indices]
            width = self._max_length
            if self._multiple is not None:
                longest = max(int(lengths.max()) - extra, 1)
                width = min(-(-longest // self._multiple) * self._multiple, width)
            offsets = np.arange(width + extra)
            real = offsets < lengths[:, None]
            places = np.where(real, self._starts[indices][:, None] + offsets, 0)
            tokens = np.where(real, self._tokens[places], self._pad_token_id)
            is_label, documents = self._is_label[places], self._document_ids[places]
            return tokens.astype(np.int32), real, is_label & real, documents

        types = (tf.int32, tf.bool, tf.bool, tf.int32)
        parts = tf.numpy_function(read, [indices], types, stateful=False)
        width = None if self._multiple is not None else self._max_length + extra
        return [tf.ensure_shape(part, [None, width]) for part in parts]


def check_lengths(max_length: int, pad_to_multiple_of: int | None) -> int:
    """Checks the lengths that a data set is given, and returns the first.

    Args:
        max_length: T.
        pad_to_multiple_of: What the longest row of a batch is rounded up to, or None.

    Raises:
        ValueError: If one is not a positive integer.
    """
    if pad_to_multiple_of is not None:
        check_positive("pad_to_multiple_of", pad_to_multiple_of)
    return check_positive("max_length", max_length)
