"""Rewriting text character by character, inside a TensorFlow graph.

Legend: n characters in all texts together, L longest replacement, in characters.
"""

import unicodedata
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from keras_attn.data.text import unicode_ranges

_BLOCK = 256
_CODEPOINTS = 0x110000
# A shift of at least this is not added: the rest is the row of `_long` to use.
_LONG = 1 << 22
# Private-use characters at the end of the last plane, which texts do not have.
_HIDDEN = 0x10FE00


class CharacterMap:
    """Replaces each character of a text by a string, which may be empty.

    Uses a two-level table, because most blocks of 256 characters are unchanged and
    share one block: a few hundred kilobytes for all of Unicode, and no custom op, so
    that a SavedModel with it needs only TensorFlow.

    Args:
        changes: Replacements by codepoint; all other characters are unchanged.

    Call arguments:
        texts: UTF-8 strings (B,). Invalid UTF-8 is read as U+FFFD.

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
        # On the CPU, because string ops run there.
        with tf.init_scope(), tf.device("CPU"):
            self._index = tf.constant(index.reshape(-1) * _BLOCK, tf.int32)
            self._shifts = tf.constant(blocks.reshape(-1), tf.int32)
            self._long = tf.constant(long)

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        """Returns the texts with their characters replaced."""
        characters = tf.strings.unicode_decode(texts, "UTF-8")
        old = characters.flat_values  # (n,)
        index = tf.gather(self._index, old // _BLOCK) + old % _BLOCK
        shift = tf.gather(self._shifts, index)
        is_long = shift >= _LONG
        first = tf.where(is_long, -1, old + shift)
        rows = tf.gather(self._long, tf.where(is_long, shift - _LONG, 0))  # (n, L)
        # A replacement of one character comes first, followed by the empty row 0.
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
    """The normalization of BERT's tokenizer, before text is split into words.

    Args:
        lower_case: Whether text is lower-cased.
        strip_accents: Whether accents are removed.

    Returns:
        Replacements for `CharacterMap`, and a function that spells a piece of the
        vocabulary as `FastWordpieceTokenizer` needs it, None for a piece that no text
        contains. The two libraries disagree on which characters are separate words, so
        some characters are replaced by private-use ones.
    """
    removed = _members(unicode_ranges.REMOVED)
    marks = _members(unicode_ranges.MARKS) if strip_accents else frozenset()
    changes: dict[int, str] = dict.fromkeys(removed, "")
    changes |= dict.fromkeys(_members(unicode_ranges.SPACES), " ")
    # Private-use characters are free to use: in a text they are removed.
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
    # Neither the reference's Unicode nor a later one has letters in higher planes.
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

    def spell_piece(piece: str) -> str | None:
        if any(ord(c) in removed for c in piece):
            return None
        return piece.translate(hidden)

    return changes, spell_piece


def clip_changes() -> tuple[dict[int, str], dict[int, str]]:
    """The replacements of CLIP's tokenizer, before and after normal form C.

    Returns:
        The replacements before it, which hide what is newer than the reference's form C
        behind private-use characters; and the replacements after it, which bring it
        back, lower the case and make each blank " ".
    """
    newer = sorted(_members(unicode_ranges.NEWER_COMPOSITION))
    hidden = {c: chr(_HIDDEN + number) for number, c in enumerate(newer)}
    # Letters of both cases are in the first two planes.
    lowered = {c: _lower(chr(c)) for c in range(0x20000) if not 0xD800 <= c < 0xE000}
    changes = {c: text for c, text in lowered.items() if text != chr(c)}
    changes |= dict.fromkeys(_members(unicode_ranges.BLANKS), " ")
    changes |= {ord(text): changes.get(c, chr(c)) for c, text in hidden.items()}
    return hidden, changes


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
