"""WordPiece, the tokenizer of BERT, on tensorflow-text."""

import collections
import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_attn.data.text import tokenizer_files as files
from keras_attn.data.text.character_map import CharacterMap, bert_changes
from keras_attn.data.text.conventions import Convention, Vocabulary
from keras_attn.data.text.graph_tokenizer import GraphTokenizer
from keras_attn.data.text.plain_folder import load_plain
from keras_attn.data.text.text_tokenizer import (
    check_trained_size,
    text_library,
    tokenizers_library,
    training_corpus,
)
from keras_attn.data.text.tokenizer_json import wordpiece_json
from keras_attn.docstrings.descriptions import described_as
from keras_attn.files.hub import local_folder
from keras_attn.files.hub_names import naming_hub_folders
from keras_attn.files.reading import (
    get_flag,
    get_object,
    naming,
    read_vocabulary_json,
    shown,
)
from keras_attn.files.writing import write_atomically

BERT_TOKENS = {
    "pad": "[PAD]",
    "unknown": "[UNK]",
    "classify": "[CLS]",
    "separate": "[SEP]",
    "mask": "[MASK]",
}
_PREFIX = "##"
# What decoding puts no blank before, as in the reference.
_CLOSING = (*".?!,", "n't", "'m", "'s", "'ve", "'re")
_FLAGS = ("do_lower_case", "strip_accents")
# In the reference, a longer word is unknown.
_MAX_CHARACTERS = 100
# tensorflow-text takes some 270 bytes for each letter not in a shared prefix. The
# largest published vocabulary, of 501,153 pieces, has 5 million letters.
_MAX_LETTERS = 8_000_000


class WordPieceTokenizer(GraphTokenizer):
    """BERT's tokenizer: words, each split greedily into the longest pieces.

    Control characters are removed; blanks and punctuation end a word, and each Chinese
    character is a word; for an uncased model text is lower-cased without accents. A
    piece that continues a word begins with "##". A word that pieces cannot spell, or
    that has more than 100 characters, is one unknown token. All of this matches the
    reference exactly. `decode` returns words with one blank between tokens, but before
    a full stop, a comma, a question mark or an exclamation mark.

    Rows are `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, segments 0 and 1.

    Needs the extra `text`.

    Args:
        pieces: The vocabulary, in the order of the ids.
        lower_case: Whether the model is uncased.
        strip_accents: Whether accents are removed; None means as `lower_case`.
        tokens: The special token of each role, if they are not "[PAD]", "[UNK]",
            "[CLS]", "[SEP]" and "[MASK]".

    Example:
        ```python
        from keras_attn import data

        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "he", "sleep", "##s"]
        tokenizer = data.WordPieceTokenizer(pieces)
        inputs = tokenizer.encode_batch(["He sleeps"], max_length=8)
        tokenizer.tokens(inputs["token_ids"][0])  # [CLS], he, sleep, ##s, [SEP]
        ```

    Reference:
        Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2019,
        arXiv:1810.04805. Song et al., "Fast WordPiece Tokenization", 2021,
        arXiv:2012.15524.
    """

    def __init__(
        self,
        pieces: Sequence[str],
        lower_case: bool = True,
        strip_accents: bool | None = None,
        tokens: Mapping[str, str] = BERT_TOKENS,
    ):
        library = text_library("WordPiece")
        super().__init__(Vocabulary.of(pieces, bert_convention(tokens)))
        self.lower_case = lower_case
        self.strip_accents = strip_accents
        keep_accents = not (lower_case if strip_accents is None else strip_accents)
        self._normalize, spell_piece = _normalization(lower_case, not keep_accents)

        ids = self._vocabulary.ids
        spelt = []
        for index, piece in enumerate(self.pieces):
            text = spell_piece(piece) if piece and ids[piece] == index else None
            # A piece that no text contains keeps its id under an impossible name.
            spelt.append(f"\U0010fffd{index}" if text is None else text)
        self._unknown = ids[tokens["unknown"]]
        with tf.init_scope(), tf.device("CPU"):
            try:
                self._splitter = library.FastWordpieceTokenizer(
                    spelt,
                    suffix_indicator=_PREFIX,
                    # In bytes. The reference's limit, in characters, is applied later.
                    max_bytes_per_word=1 << 30,
                    token_out_type=tf.int32,
                    unknown_token=spelt[self._unknown],
                )
            except RuntimeError as error:
                raise ValueError(
                    "`pieces` must be a vocabulary that tensorflow-text can read. "
                    f"Received: {len(spelt)} pieces; {error}"
                ) from error
            continues = [p.startswith(_PREFIX) and p != _PREFIX for p in self.pieces]
            self._continues = tf.constant(continues)
            self._characters = tf.constant(
                [
                    len(piece) - len(_PREFIX) * inside
                    for piece, inside in zip(self.pieces, continues, strict=True)
                ]
            )

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocabulary_size: int = 30522,
        lower_case: bool = True,
        strip_accents: bool | None = None,
        min_frequency: int = 2,
    ) -> "WordPieceTokenizer":
        """Learns the pieces from a corpus, by the `tokenizers` library.

        Args:
            texts: The corpus.
            vocabulary_size: Maximum number of ids; a small corpus gives fewer.
            lower_case: Whether the vocabulary is for lower-case text.
            strip_accents: Whether accents are removed; None means as `lower_case`.
            min_frequency: Minimum number of occurrences of a pair to be merged.
        """
        corpus = training_corpus(texts)
        special = [BERT_TOKENS[role] for role in BERT_TOKENS]
        check_trained_size(
            vocabulary_size,
            len(special) + 2,
            "the special tokens, and a letter at the start of a word and inside one",
        )
        alphabet_size = vocabulary_size - len(special)
        library = tokenizers_library()
        model = library.Tokenizer(library.models.WordPiece(unk_token="[UNK]"))
        model.normalizer = library.normalizers.BertNormalizer(
            lowercase=lower_case, strip_accents=strip_accents
        )
        model.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        counts = collections.Counter()
        for text in corpus:
            counts.update("".join(model.normalizer.normalize_str(text).split()))
        # Each letter may need two pieces, at the start of a word and inside one.
        common = sorted(counts, key=lambda letter: (-counts[letter], letter))
        alphabet = sorted(common[: alphabet_size // 2])
        model.train_from_iterator(
            corpus,
            library.trainers.WordPieceTrainer(
                vocab_size=vocabulary_size,
                min_frequency=min_frequency,
                initial_alphabet=alphabet,
                limit_alphabet=len(alphabet),
                # The letters inside words too: the library would number them in the
                # random order of a hash table, and break ties by the number.
                special_tokens=[*special, *(f"{_PREFIX}{c}" for c in alphabet)],
                continuing_subword_prefix=_PREFIX,
                show_progress=False,
            ),
        )
        ids = model.get_vocab()
        return cls(sorted(ids, key=ids.__getitem__), lower_case, strip_accents)

    @classmethod
    @naming_hub_folders()
    def from_folder(
        cls, folder: str | os.PathLike, lower_case: bool | None = None
    ) -> "WordPieceTokenizer":
        """Reads `vocab.txt`, or the same from `tokenizer.json`.

        Args:
            folder: A folder in the Hugging Face layout, or its name on the hub.
            lower_case: Whether the model is uncased; None takes it from
                `tokenizer_config.json`, otherwise True.
        """
        path = local_folder(folder, "tokenizer")
        settings = files.read_settings(path)
        if lower_case is not None:
            settings["do_lower_case"] = lower_case
        return load_plain(cls, path, settings, "bert")

    @classmethod
    def _read(
        cls, folder: str | os.PathLike, settings: Mapping[str, Any]
    ) -> tuple[Path, dict[str, Any], dict[str, Any]]:
        """The file, its content as a `tokenizer.json`, and our arguments."""
        names = ("vocab.txt", "tokenizer.json")
        path = files.find_file(folder, *names)
        if path is None:
            raise files.missing_files(folder, *names)
        if path.name == "vocab.txt":
            pieces, flags = _read_listed(path), {}
        else:
            pieces, flags = _read_packed(path)
        flags |= {name: settings[name] for name in _FLAGS if name in settings}
        letters = sum(map(len, pieces))
        if letters > _MAX_LETTERS:
            raise ValueError(
                f"`folder` must have pieces of at most {_MAX_LETTERS} letters "
                f"together. Received: {str(path)!r}, with {letters}"
            )
        lower_case = flags.get("do_lower_case")
        tokens = files.named_tokens(settings, BERT_TOKENS)
        arguments = {
            "pieces": pieces,
            "lower_case": True if lower_case is None else lower_case,
            "strip_accents": flags.get("strip_accents"),
        }
        with naming(path):
            convention = bert_convention(tokens).within(pieces)
        plain = wordpiece_json(convention=convention, **arguments)
        return path, plain, {**arguments, "tokens": tokens}

    @described_as(GraphTokenizer.save)
    def save(self, folder: str | os.PathLike) -> None:
        """Writes `vocab.txt` and `tokenizer_config.json`."""
        files.remove_others(folder)
        lines = "".join(f"{piece}\n" for piece in self.pieces)
        write_atomically(Path(folder) / "vocab.txt", lines.encode())
        self._save_settings(
            folder,
            "BertTokenizer",
            do_lower_case=self.lower_case,
            strip_accents=self.strip_accents,
            tokenize_chinese_chars=True,
        )

    def _ragged(self, texts: tf.Tensor) -> tf.RaggedTensor:
        ids = self._splitter.tokenize(self._normalize(texts))
        # A word that is longer than the reference's limit becomes one unknown token,
        # which replaces its first piece.
        begins = ~tf.gather(self._continues, ids.values)
        word = tf.cumsum(tf.cast(begins, tf.int32)) - 1
        length = tf.math.segment_sum(tf.gather(self._characters, ids.values), word)
        too_long = tf.gather(length > _MAX_CHARACTERS, word)
        ids_or_unknown = ids.with_values(tf.where(too_long, self._unknown, ids.values))
        return tf.ragged.boolean_mask(
            ids_or_unknown, ids.with_values(begins | ~too_long)
        )

    def _join(self, ids: list[int]) -> str:
        pieces = (self.pieces[index] for index in ids)
        spaced = (
            piece if piece.startswith(_CLOSING) else f" {piece}" for piece in pieces
        )
        return "".join(spaced).removeprefix(" ").replace(f" {_PREFIX}", "")


@functools.cache
def _normalization(lower_case: bool, strip_accents: bool):
    changes, spell_piece = bert_changes(lower_case, strip_accents)
    return CharacterMap(changes), spell_piece


def bert_convention(tokens: Mapping[str, str]) -> Convention:
    """The rows of these special tokens."""
    single = (("classify", 0), ("A", 0), ("separate", 0))
    return Convention(dict(tokens), single, (*single, ("B", 1), ("separate", 1)))


def _read_listed(path: Path) -> list[str]:
    """The pieces of a `vocab.txt`."""
    pieces = files.read_lines(path)
    pieces = pieces[:-1] if pieces[-1] == "" else pieces
    # As in the reference; no text has blanks inside a word.
    return [piece.rstrip() for piece in pieces]


def _read_packed(path: Path) -> tuple[list[str], dict[str, Any]]:
    """The pieces and the flags of a `tokenizer.json`."""
    content = read_vocabulary_json(path)
    model = get_object(content, "model", path)
    if model.get("type") != "WordPiece":
        raise ValueError(
            "tokenizer.json must hold a WordPiece model. Received: "
            f"{str(path)!r}, a model of type {shown(model.get('type'))}"
        )
    ids = get_object(model, "vocab", path)
    normalizer = get_object(content, "normalizer", path)
    flags = {
        "do_lower_case": get_flag(normalizer, "lowercase", True, path),
        "strip_accents": get_flag(
            normalizer, "strip_accents", None, path, allow_none=True
        ),
    }
    return files.pieces_in_order(ids, path), flags
