"""Rewriting text character by character, inside a TensorFlow graph.

Legend: n characters of all the texts together, L most characters one becomes.
"""

import unicodedata
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from keras_attn.data import unicode_ranges

_BLOCK = 256
_CODEPOINTS = 0x110000
# A shift at least this large is not added: it names a row of `_long`.
_LONG = 1 << 22


class CharacterMap:
    """Replaces each character of a text by a string of its own, maybe an empty one.

    A table in two levels, as most blocks of 256 characters change nothing and share one
    block: a few hundred kilobytes for all of Unicode, and no operator of its own, so
    that a SavedModel with it needs TensorFlow alone.

    Args:
        changes: What characters become, by codepoint; all others stay.

    Call arguments:
        texts: UTF-8 strings (B,). What is no UTF-8 is read as U+FFFD.

    Returns:
        UTF-8 strings (B,).
    """

    def __init__(self, changes: Mapping[int, str]):
        shifts = np.zeros(_CODEPOINTS, np.int32)
        outputs = {"": 0}
        for codepoint, text in changes.items():
            if len(text) == 1:
                shifts[codepoint] = ord(text) - codepoint
            else:
                shifts[codepoint] = _LONG + outputs.setdefault(text, len(outputs))
        blocks, index = np.unique(
            shifts.reshape(-1, _BLOCK), axis=0, return_inverse=True
        )
        long = np.full((len(outputs), max(1, *map(len, outputs))), -1, np.int32)
        for text, row in outputs.items():
            long[row, : len(text)] = [ord(c) for c in text]
        # Not on an accelerator: strings stay on the host, and so may the tables.
        with tf.init_scope(), tf.device("CPU"):
            self._index = tf.constant(index.reshape(-1) * _BLOCK, tf.int32)
            self._shifts = tf.constant(blocks.reshape(-1), tf.int32)
            self._long = tf.constant(long)

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        """Returns the texts rewritten."""
        characters = tf.strings.unicode_decode(texts, "UTF-8")
        old = characters.flat_values  # (n,)
        place = tf.gather(self._index, old // _BLOCK) + old % _BLOCK
        shift = tf.gather(self._shifts, place)
        is_long = shift >= _LONG
        first = tf.where(is_long, -1, old + shift)
        rows = tf.gather(self._long, tf.where(is_long, shift - _LONG, 0))  # (n, L)
        # A short one is the row's first character, and row 0 is empty.
        rows = tf.concat([first[:, None], rows], axis=1)  # (n, 1 + L)
        kept = rows >= 0
        ends = tf.cumsum(tf.reduce_sum(tf.cast(kept, tf.int64), axis=1))  # (n,)
        ends = tf.concat([tf.zeros([1], tf.int64), ends], axis=0)
        new = tf.RaggedTensor.from_row_splits(
            tf.boolean_mask(rows, kept),
            tf.gather(ends, characters.row_splits),
            validate=False,
        )
        return tf.strings.unicode_encode(new, "UTF-8")


def bert_changes(
    lower_case: bool, strip_accents: bool
) -> tuple[dict[int, str], Callable[[str], str | None]]:
    """What BERT's tokenizer makes of characters before it looks for words.

    Args:
        lower_case: Whether text becomes lower case.
        strip_accents: Whether text loses its accents.

    Returns:
        What characters become, for `CharacterMap`; and a function that writes a piece
        of a vocabulary as `FastWordpieceTokenizer` must know it, or None for a piece
        that no text can give. The two libraries differ on which characters are words
        of their own, so some travel under a private name.
    """
    removed = _members(unicode_ranges.REMOVED)
    marks = _members(unicode_ranges.MARKS) if strip_accents else frozenset()
    changes: dict[int, str] = dict.fromkeys(removed, "")
    changes |= dict.fromkeys(_members(unicode_ranges.SPACES), " ")
    # Private characters are free: in a text they are removed.
    hidden = {
        codepoint: chr(0xE000 + number)
        for number, codepoint in enumerate(
            sorted(_members(unicode_ranges.ONLY_TENSORFLOW_SPLITS))
        )
    }
    apart = {
        codepoint: f" {chr(codepoint)} "
        for codepoint in _members(unicode_ranges.ONLY_REFERENCE_SPLITS)
    }
    # No letter of the reference's Unicode, nor one since, is in a plane above.
    for codepoint in [*range(0x30000), *marks]:
        if codepoint in changes or 0xD800 <= codepoint < 0xE000:
            continue
        old = text = chr(codepoint)
        if strip_accents:
            text = "".join(c for c in _decompose(text) if ord(c) not in marks)
        if lower_case:
            text = "".join(_lower(c) for c in text)
        text = text.translate(hidden)
        if codepoint in apart:
            text = f" {text} "
        if text != old:
            changes[codepoint] = text

    def write_piece(piece: str) -> str | None:
        if any(ord(c) in removed for c in piece):
            return None
        return piece.translate(hidden)

    return changes, write_piece


def _members(ranges: str) -> frozenset[int]:
    members: set[int] = set()
    for each in ranges.split():
        first, _, last = each.partition("-")
        members.update(range(int(first, 16), int(last or first, 16) + 1))
    return frozenset(members)


_UNDECOMPOSED = _members(unicode_ranges.UNDECOMPOSED)


def _decompose(character: str) -> str:
    if ord(character) in _UNDECOMPOSED:
        return character
    return unicodedata.normalize("NFD", character)


_LOWER = {
    chr(codepoint): chr(codepoint + shift)
    for first, last, shift in unicode_ranges.LOWER
    for codepoint in range(first, last + 1)
}


def _lower(character: str) -> str:
    return _LOWER.get(character) or character.lower()
