"""CLIP's tokenizer: byte-level BPE of lower-cased words, on tensorflow-text.

Legend: U different words, n symbols of all words together, M merges.
"""

import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_attn.data.text import tokenizer_files as files
from keras_attn.data.text import unicode_ranges
from keras_attn.data.text.byte_pairs import (
    CLIP_WORD,
    LETTER_OF_BYTE,
    check_byte_pairs,
    get_bytes,
    read_byte_pairs,
    write_byte_pairs,
)
from keras_attn.data.text.character_map import CharacterMap, clip_changes
from keras_attn.data.text.conventions import Convention, Vocabulary
from keras_attn.data.text.graph_tokenizer import GraphTokenizer
from keras_attn.data.text.plain_folder import load_plain
from keras_attn.data.text.text_tokenizer import (
    TextTokenizer,
    check_trained_size,
    text_library,
    tokenizers_library,
    training_corpus,
)
from keras_attn.data.text.tokenizer_json import clip_json
from keras_attn.docstrings.descriptions import described_as
from keras_attn.files.hub import local_folder
from keras_attn.files.hub_names import naming_hub_folders
from keras_attn.files.reading import naming

START, END = "<|startoftext|>", "<|endoftext|>"
TOKENS = {"pad": END, "unknown": END, "start": START, "end": END}
WORD_END = "</w>"


class CLIPTokenizer(GraphTokenizer):
    """CLIP's tokenizer: byte-pair encoding of lower-cased words.

    Text is brought to Unicode's normal form C and lower-cased, and blanks separate
    words without being tokens. A word is a run of letters, one digit, a run of other
    characters, or one of the endings 's, 't, 're, 've, 'm, 'll and 'd. Its UTF-8 bytes
    are merged pair by pair; the last piece of a word ends in "</w>". The ids are those
    of Hugging Face's `CLIPTokenizer`. OpenAI's own code also repairs mojibake and HTML
    entities first (`ftfy`), which changes only such text.

    Rows are `<|startoftext|> A <|endoftext|>`, or `<|startoftext|> A <|endoftext|>
    <|endoftext|> B <|endoftext|>`. A longer text is truncated; the end token, whose
    output represents the text, is kept. The model attends to no padding, so which token
    pads does not matter: Hugging Face pads with "<|endoftext|>", OpenAI with id 0, the
    piece "!".

    Needs the extra `text`.

    Args:
        pieces: The vocabulary, in the order of the ids.
        merges: The pairs of pieces to merge, by priority.
        tokens: The special token of each role "pad", "unknown", "start" and "end", if
            they are not CLIP's.

    Example:
        Needs the tokenizer of a checkpoint:

        ```python
        from keras_attn import data

        tokenizer = data.CLIPTokenizer.from_folder("clip-vit-base-patch32")
        tokenizer.encode_batch(["a photo of a cat"], max_length=77)
        ```

    Reference:
        Radford et al., "Learning Transferable Visual Models From Natural Language
        Supervision", 2021, section 2.4, arXiv:2103.00020.
    """

    # As in the reference, which takes away no blank.
    _may_clean_up = False
    spells_bytes = True

    def __init__(
        self,
        pieces: Sequence[str],
        merges: Iterable[tuple[str, str]],
        tokens: Mapping[str, str] = TOKENS,
    ):
        text_library("CLIP's tokenizer")
        super().__init__(Vocabulary.of(pieces, clip_convention(tokens)))
        merges = [(first, second) for first, second in merges]
        # As text: in a `tf.Module` a list would be tracked, pair by pair.
        self._merges = json.dumps(merges)
        ids = self._vocabulary.ids
        letters = [LETTER_OF_BYTE[byte] for byte in range(256)]
        check_byte_pairs(ids, merges, [*letters, *(f"{c}{WORD_END}" for c in letters)])
        self._join_pairs = BytePairMerges(
            [(ids[first], ids[second]) for first, second in merges],
            [ids["".join(pair)] for pair in merges],
            len(self.pieces),
        )
        self._hide, self._lower, self._pattern = _preparation()
        with tf.init_scope(), tf.device("CPU"):
            self._inner = tf.constant([ids[c] for c in letters], tf.int32)
            last = [ids[f"{c}{WORD_END}"] for c in letters]
            self._last = tf.constant(last, tf.int32)

    @classmethod
    def train(
        cls, texts: Iterable[str], vocabulary_size: int = 49408, min_frequency: int = 2
    ) -> "CLIPTokenizer":
        """Learns the merges from a corpus, by the `tokenizers` library.

        Args:
            texts: The corpus.
            vocabulary_size: Maximum number of ids; a small corpus gives fewer. Of
                them, 512 are the bytes, inside a word and at its end, and 2 are special
                tokens, the last ids.
            min_frequency: Minimum number of occurrences of a pair to be merged.
        """
        corpus = training_corpus(texts)
        check_trained_size(
            vocabulary_size,
            2 * 256 + 2,
            "the bytes inside a word and at its end, and the special tokens",
        )
        library = tokenizers_library()
        model = library.Tokenizer(library.models.BPE(end_of_word_suffix=WORD_END))
        steps, apart = library.normalizers, library.pre_tokenizers
        model.normalizer = steps.Sequence([steps.NFC(), steps.Lowercase()])
        pattern = library.Regex(CLIP_WORD)
        model.pre_tokenizer = apart.Sequence(
            [
                apart.Split(pattern, behavior="removed", invert=True),
                apart.ByteLevel(add_prefix_space=False),
            ]
        )
        letters = list(LETTER_OF_BYTE.values())
        ends = [f"{letter}{WORD_END}" for letter in letters]
        model.train_from_iterator(
            corpus,
            library.trainers.BpeTrainer(
                vocab_size=vocabulary_size - 2,
                min_frequency=min_frequency,
                # The library breaks ties by the number of a letter, which it would take
                # from the random order of a hash table.
                special_tokens=[*letters, *ends],
                end_of_word_suffix=WORD_END,
                show_progress=False,
            ),
        )
        merges = json.loads(model.to_str())["model"]["merges"]
        merges = [(first, second) for first, second in merges]
        joined = ["".join(pair) for pair in merges]
        return cls([*letters, *ends, *joined, START, END], merges)

    @classmethod
    @naming_hub_folders()
    def from_folder(cls, folder: str | os.PathLike) -> "CLIPTokenizer":
        """Reads `vocab.json` and `merges.txt`, or both from `tokenizer.json`.

        Args:
            folder: A folder in the Hugging Face layout, or its name on the hub. Its
                `tokenizer_config.json` says which token pads (without it,
                "<|endoftext|>") and how many tokens a row has at most.
        """
        path = local_folder(folder, "tokenizer")
        return load_plain(cls, path, files.read_settings(path), "clip")

    @classmethod
    def _read(
        cls, folder: str | os.PathLike, settings: Mapping[str, Any]
    ) -> tuple[Path, dict[str, Any], dict[str, Any]]:
        """The file, what it says as a `tokenizer.json`, and our arguments."""
        path, pieces, merges, _ = read_byte_pairs(folder)
        tokens = files.named_tokens(settings, TOKENS)
        with naming(path):
            convention = clip_convention(tokens).within(pieces)
        plain = clip_json(pieces, merges, convention)
        return path, plain, {"pieces": pieces, "merges": merges, "tokens": tokens}

    @described_as(TextTokenizer.save)
    def save(self, folder: str | os.PathLike) -> None:
        """Writes `vocab.json`, `merges.txt` and `tokenizer_config.json`."""
        files.remove_others(folder)
        write_byte_pairs(folder, self.pieces, self.merges)
        self._save_settings(folder, "CLIPTokenizer")

    @property
    def merges(self) -> tuple[tuple[str, str], ...]:
        """The pairs of pieces to merge, by priority."""
        return tuple((first, second) for first, second in json.loads(self._merges))

    def _ragged(self, texts: tf.Tensor) -> tf.RaggedTensor:
        words = self._words(texts)
        # A word has the same pieces wherever it occurs.
        different, word = tf.unique(words.values)
        pieces = tf.gather(self._pieces_of(different), word)
        return words.with_values(pieces).merge_dims(1, 2)

    def _words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """The words of texts (B,), strings (B, ragged)."""
        library = text_library("CLIP's tokenizer")
        texts = self._lower(library.normalize_utf8(self._hide(texts), "NFC"))
        return tf.strings.split(tf.strings.regex_replace(texts, self._pattern, r"\0 "))

    def _pieces_of(self, words: tf.Tensor) -> tf.RaggedTensor:
        """The ids of words (U,), int32 (U, ragged)."""
        values = tf.cast(
            tf.io.decode_raw(tf.strings.reduce_join(words), tf.uint8), tf.int32
        )
        ragged = tf.RaggedTensor.from_row_lengths(values, tf.strings.length(words))
        word = tf.cast(ragged.value_rowids(), tf.int32)
        is_last = tf.concat([word[1:] != word[:-1], [True]], 0)[: tf.size(word)]
        symbols = tf.where(
            is_last, tf.gather(self._last, values), tf.gather(self._inner, values)
        )
        symbols, word = self._join_pairs(symbols, word)
        return tf.RaggedTensor.from_value_rowids(
            symbols, tf.cast(word, tf.int64), tf.size(words, tf.int64)
        )

    def _join(self, ids: list[int]) -> str:
        parts = [
            get_bytes(piece.removesuffix(WORD_END)) + b" " * piece.endswith(WORD_END)
            for piece in (self.pieces[index] for index in ids)
        ]
        return b"".join(parts).decode(errors="replace").strip()


def clip_convention(tokens: Mapping[str, str]) -> Convention:
    """The rows of these special tokens."""
    single = (("start", 0), ("A", 0), ("end", 0))
    return Convention(dict(tokens), single, (*single, ("end", 0), ("B", 0), ("end", 0)))


@functools.cache
def _preparation() -> tuple[CharacterMap, CharacterMap, str]:
    """The changes before and after normal form C, and the pattern of a word."""
    pattern = CLIP_WORD.replace(r"\s", " ")
    for known, newer in (
        (r"\p{L}", unicode_ranges.NEWER_LETTERS),
        (r"\p{N}", unicode_ranges.NEWER_NUMBERS),
    ):
        pairs = (each.partition("-") for each in newer.split())
        listed = (rf"\x{{{a}}}-\x{{{b or a}}}" for a, _, b in pairs)
        pattern = pattern.replace(known, known + "".join(listed))
    before, after = clip_changes()
    return CharacterMap(before), CharacterMap(after), pattern


class BytePairMerges:
    """Joins the symbols of words, pair by pair, in the order of the merges.

    In each word, the pair of neighbors that comes first in the list of merges is
    joined, the leftmost if it occurs several times, until no pair of neighbors is in
    the list. All words take a step at once, so the loop has as many steps as the word
    that needs most. It consists of TensorFlow's own operations and constants: a
    SavedModel with it needs no tables.

    Args:
        pairs: Ids of the symbols to join, int (M, 2), by priority; of equal pairs the
            last counts.
        joined: The id of each joined symbol, int (M,).
        num_ids: Number of ids, more than any of them.
    """

    def __init__(
        self, pairs: Sequence[Sequence[int]], joined: Sequence[int], num_ids: int
    ):
        table = np.asarray(pairs, np.int64).reshape(-1, 2)
        keys = table[:, 0] * num_ids + table[:, 1]
        # From the back, so that `unique` keeps the last of equal pairs.
        keys, last = np.unique(keys[::-1], return_index=True)
        self._num_ids = num_ids
        self._num_merges = len(table)
        with tf.init_scope(), tf.device("CPU"):
            # The largest key ends the list, so that a search never runs past it.
            self._keys = tf.constant([*keys, np.iinfo(np.int64).max], tf.int64)
            ranks = [*(len(table) - 1 - last), len(table)]
            self._ranks = tf.constant(ranks, tf.int64)
            self._joined = tf.constant([*joined, 0], tf.int32)

    def __call__(self, symbols: tf.Tensor, words: tf.Tensor) -> tuple:
        """Joins the symbols of all words.

        Args:
            symbols: Ids of the symbols, word by word, int32 (n,).
            words: The word of each symbol, int32 (n,), ascending.

        Returns:
            The ids that remain, int32 (m,), and the word of each, int32 (m,).
        """
        vector = tf.TensorShape([None])
        symbols, words, _ = tf.while_loop(
            lambda symbols, words, ranks: tf.reduce_any(ranks < self._num_merges),
            self._step,
            (symbols, words, self._rank(symbols, words, tf.range(tf.size(symbols)))),
            shape_invariants=(vector, vector, vector),
        )
        return symbols, words

    def _step(self, symbols, words, ranks) -> tuple:
        count = tf.size(ranks, tf.int64)
        # Ordered by rank, and from left to right where ranks are equal.
        order = ranks * count + tf.range(count)
        first = tf.math.segment_min(order, words)
        joins = (order == tf.gather(first, words)) & (ranks < self._num_merges)
        left = tf.cast(tf.where(joins)[:, 0], tf.int32)  # (k,)
        new = tf.gather(self._joined, tf.gather(ranks, left))
        symbols = tf.tensor_scatter_nd_update(symbols, left[:, None], new)
        # The right one of each pair is dropped.
        kept = tf.logical_not(tf.concat([[False], joins[:-1]], 0))
        symbols, words, ranks = (
            tf.boolean_mask(each, kept) for each in (symbols, words, ranks)
        )
        # Only the pairs of a new symbol with its neighbors have changed.
        left -= tf.range(tf.size(left))
        changed = tf.concat([left, tf.maximum(left - 1, 0)], 0)
        new = self._rank(symbols, words, changed)
        ranks = tf.tensor_scatter_nd_update(ranks, changed[:, None], new)
        return symbols, words, ranks

    def _rank(self, symbols: tf.Tensor, words: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
        """The merges of the pairs that begin `at` (k,), int64 (k,); M for none."""
        after = tf.minimum(at + 1, tf.size(symbols) - 1)
        is_pair = (after > at) & (tf.gather(words, at) == tf.gather(words, after))
        first, second = (
            tf.cast(tf.gather(symbols, each), tf.int64) for each in (at, after)
        )
        keys = first * self._num_ids + second
        found = tf.searchsorted(self._keys, keys)
        is_merge = is_pair & (tf.gather(self._keys, found) == keys)
        return tf.where(is_merge, tf.gather(self._ranks, found), self._num_merges)
