"""The content of a SentencePiece model file, read from its protocol buffer.

Only the fields that `tokenizer.json` has, too: `sentencepiece_model.proto` of the
library numbers them.
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

# Kinds of pieces: 1 is an ordinary one.
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
UNIGRAM = 1


class SentencePieceModel(NamedTuple):
    """The content of a model.

    Attributes:
        pieces: Piece, score and kind of each id.
        is_unigram: Whether it is a unigram model, not byte pairs.
        byte_fallback: Whether characters without a piece are spelt in bytes.
        unknown_id: The id of text without pieces.
        characters: The compiled replacements of characters.
        adds_blank: Whether a blank is put before each text.
        joins_blanks: Whether runs of blanks are one, and outer ones are removed.
    """

    pieces: list[tuple[str, float, int]]
    is_unigram: bool
    byte_fallback: bool
    unknown_id: int
    characters: bytes
    adds_blank: bool
    joins_blanks: bool


def parse_model(content: bytes) -> SentencePieceModel:
    """Reads a model.

    Args:
        content: The content of a `.model` file.

    Raises:
        ValueError: If it is not a model.
    """
    broken = ValueError(
        "`model` must be the content of a SentencePiece model; is the file "
        f"complete? Received: {len(content)} bytes"
    )
    try:
        pieces, trainer, normalizer = [], {}, {}
        for number, value in _fields(content):
            if number == 1:
                fields = dict(_fields(value))
                score = struct.unpack("<f", fields.get(2, bytes(4)))[0]
                pieces.append((fields.get(1, b"").decode(), score, fields.get(3, 1)))
            elif number == 2:
                trainer = dict(_fields(value))
            elif number == 3:
                normalizer = dict(_fields(value))
    except (IndexError, TypeError, ValueError, struct.error) as error:
        raise broken from error
    if not pieces:
        raise broken
    unknown = [i for i, (_, _, kind) in enumerate(pieces) if kind == UNKNOWN]
    return SentencePieceModel(
        pieces,
        is_unigram=trainer.get(3, UNIGRAM) == UNIGRAM,
        byte_fallback=bool(trainer.get(35, 0)),
        unknown_id=unknown[0] if unknown else 0,
        characters=normalizer.get(2, b""),
        adds_blank=bool(normalizer.get(3, 1)),
        joins_blanks=bool(normalizer.get(4, 1)),
    )


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """The number and the value of each field: bytes, or an integer."""
    position = 0
    while position < len(content):
        tag, position = _integer(content, position)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, position = _integer(content, position)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if kind == 2:
                size, position = _integer(content, position)
            if size is None or position + size > len(content):
                raise ValueError("not a protocol buffer")
            value = content[position : position + size]
            position += size
        yield number, value


def _integer(content: bytes, position: int) -> tuple[int, int]:
    """A variable-length integer, and the position after it."""
    value = 0
    for shift in range(0, 64, 7):
        byte = content[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise ValueError("not a protocol buffer")
