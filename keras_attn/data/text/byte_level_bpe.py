"""Byte-level BPE, the tokenizer of GPT-2 and RoBERTa, and decoding token by token."""

import codecs
import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_attn.checks.arguments import check_choice
from keras_attn.data.text import tokenizer_files as files
from keras_attn.data.text.byte_pairs import (
    LETTER_OF_BYTE,
    check_byte_pairs,
    get_bytes,
    read_byte_pairs,
    write_byte_pairs,
)
from keras_attn.data.text.conventions import Convention, Vocabulary
from keras_attn.data.text.plain_folder import load_plain
from keras_attn.data.text.text_tokenizer import (
    TextTokenizer,
    check_trained_size,
    tokenizers_library,
    training_corpus,
)
from keras_attn.data.text.tokenizer_json import byte_level_json
from keras_attn.docstrings.descriptions import described_as
from keras_attn.files.hub import local_folder
from keras_attn.files.hub_names import naming_hub_folders
from keras_attn.files.reading import naming

CONVENTIONS = {
    # Only the text; the two texts of a pair concatenated.
    "gpt2": Convention(
        tokens=dict.fromkeys(("pad", "start", "end"), "<|endoftext|>"),
        single=(("A", 0),),
        pair=(("A", 0), ("B", 0)),
    ),
    # <s> A </s>; <s> A </s></s> B </s>; all of one segment.
    "roberta": Convention(
        tokens={
            "pad": "<pad>",
            "unknown": "<unk>",
            "start": "<s>",
            "end": "</s>",
            "classify": "<s>",
            "separate": "</s>",
            "mask": "<mask>",
        },
        single=(("classify", 0), ("A", 0), ("separate", 0)),
        pair=(
            ("classify", 0),
            ("A", 0),
            ("separate", 0),
            ("separate", 0),
            ("B", 0),
            ("separate", 0),
        ),
    ),
}
_HUGGING_FACE = {"gpt2": "GPT2Tokenizer", "roberta": "RobertaTokenizer"}
# In the order of RoBERTa's ids.
_ROBERTA_FIRST = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


class ByteLevelBPETokenizer(TextTokenizer):
    """Byte-pair encoding of UTF-8: lossless for every text.

    Pieces have one character for each byte; "Ġ" is a blank. `convention` determines the
    rows:

    - `"gpt2"`: only the text, or the two texts of a pair concatenated. There is no
      padding token, so "<|endoftext|>" pads, and the mask excludes it.
    - `"roberta"`: `<s> A </s>`, or `<s> A </s></s> B </s>`, all of segment 0.

    Needs the extra `text`.

    Args:
        pieces: The vocabulary, in the order of the ids.
        merges: The pairs of pieces to merge, by priority.
        convention: "gpt2" or "roberta".
        add_prefix_space: Whether a blank is added before each text.
        tokens: The special token of each role, if they are not the convention's.

    Example:
        Needs the tokenizer of a checkpoint:

        ```python
        from keras_attn import data

        tokenizer = data.ByteLevelBPETokenizer.from_folder("gpt2")
        decoder = data.StreamDecoder(tokenizer)
        for token in tokenizer.encode("Once upon a time"):
            print(decoder.feed(token), end="", flush=True)
        print(decoder.finish())
        ```

    Reference:
        Radford et al., "Language Models are Unsupervised Multitask Learners", 2019,
        section 2.2. Liu et al., "RoBERTa", 2019, arXiv:1907.11692.
    """

    # Decoding is exact.
    _may_clean_up = False
    spells_bytes = True

    def __init__(
        self,
        pieces: Sequence[str],
        merges: Iterable[tuple[str, str]],
        convention: str = "gpt2",
        add_prefix_space: bool = False,
        tokens: Mapping[str, str] | None = None,
    ):
        check_choice("convention", convention, CONVENTIONS)
        known = CONVENTIONS[convention]
        if tokens is not None:
            known = dataclasses.replace(known, tokens=dict(tokens))
        super().__init__(Vocabulary.of(pieces, known))
        self.merges = tuple((first, second) for first, second in merges)
        self.add_prefix_space = add_prefix_space
        self._name = convention
        ids = dict(self._vocabulary.ids)
        check_byte_pairs(ids, self.merges, LETTER_OF_BYTE.values())
        library = tokenizers_library()
        self._model = library.Tokenizer(library.models.BPE(ids, list(self.merges)))
        self._model.pre_tokenizer = library.pre_tokenizers.ByteLevel(
            add_prefix_space=add_prefix_space
        )
        special = set(self.special_token_ids)
        self._bytes = tuple(
            b"" if piece in special else get_bytes(piece) for piece in self.pieces
        )

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocabulary_size: int = 50257,
        convention: str = "gpt2",
        min_frequency: int = 2,
    ) -> "ByteLevelBPETokenizer":
        """Learns the merges from a corpus.

        Args:
            texts: The corpus.
            vocabulary_size: Maximum number of ids; a small corpus gives fewer.
            convention: "gpt2" or "roberta". RoBERTa's special tokens are the first
                ids, GPT-2's the last.
            min_frequency: Minimum number of occurrences of a pair to be merged.
        """
        corpus = training_corpus(texts)
        check_choice("convention", convention, CONVENTIONS)
        special = _ROBERTA_FIRST if convention == "roberta" else ("<|endoftext|>",)
        check_trained_size(
            vocabulary_size, 256 + len(special), "the bytes and the special tokens"
        )
        library = tokenizers_library()
        model = library.Tokenizer(library.models.BPE())
        model.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.train_from_iterator(
            corpus,
            library.trainers.BpeTrainer(
                vocab_size=vocabulary_size - len(special),
                min_frequency=min_frequency,
                initial_alphabet=list(LETTER_OF_BYTE.values()),
                show_progress=False,
            ),
        )
        content = json.loads(model.to_str())["model"]
        ids = content["vocab"]
        learned = sorted(ids, key=ids.__getitem__)
        # A corpus may contain a special token as text, which must not be a merge.
        merges = [tuple(pair) for pair in content["merges"]]
        merges = [pair for pair in merges if "".join(pair) not in special]
        learned = [piece for piece in learned if piece not in special]
        first = convention == "roberta"
        pieces = [*special, *learned] if first else [*learned, *special]
        return cls(pieces, merges, convention)

    @classmethod
    @naming_hub_folders()
    def from_folder(
        cls, folder: str | os.PathLike, convention: str | None = None
    ) -> "ByteLevelBPETokenizer":
        """Reads `vocab.json` and `merges.txt`, or both from `tokenizer.json`.

        Args:
            folder: A folder in the Hugging Face layout, or its name on the hub.
            convention: "gpt2" or "roberta"; None takes it from `tokenizer_config.json`,
                otherwise RoBERTa's if the vocabulary has "<s>" and "</s>".
        """
        path = local_folder(folder, "tokenizer")
        settings = files.read_settings(path)
        return load_plain(cls, path, settings, convention=convention)

    @classmethod
    def _read(
        cls,
        folder: str | os.PathLike,
        settings: Mapping[str, Any],
        convention: str | None = None,
    ) -> tuple[Path, dict[str, Any], dict[str, Any]]:
        """The file, what it says as a `tokenizer.json`, and our arguments."""
        path, pieces, merges, prefix = read_byte_pairs(folder)
        if convention is None:
            kind = (settings.get("tokenizer_class") or "").removesuffix("Fast")
            of_class = {known: name for name, known in _HUGGING_FACE.items()}
            convention = of_class.get(kind, convention_of(pieces))
        check_choice("convention", convention, CONVENTIONS)
        known = CONVENTIONS[convention]
        tokens = files.named_tokens(settings, known.tokens)
        prefix = bool(settings.get("add_prefix_space", prefix))
        with naming(path):
            known = dataclasses.replace(known, tokens=tokens).within(pieces)
        arguments = {
            "pieces": pieces,
            "merges": merges,
            "convention": convention,
            "add_prefix_space": prefix,
            "tokens": tokens,
        }
        return path, byte_level_json(pieces, merges, known, prefix), arguments

    @described_as(TextTokenizer.save)
    def save(self, folder: str | os.PathLike) -> None:
        """Writes `vocab.json`, `merges.txt` and `tokenizer_config.json`."""
        files.remove_others(folder)
        write_byte_pairs(folder, self.pieces, self.merges)
        self._save_settings(
            folder, _HUGGING_FACE[self._name], add_prefix_space=self.add_prefix_space
        )

    def token_bytes(self, index: int) -> bytes:
        """The bytes of text that an id stands for; none for a special id.

        Args:
            index: The id.
        """
        return self._bytes[self._check_ids([index])[0]]

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        encoded = self._model.encode_batch(texts, add_special_tokens=False)
        return [each.ids for each in encoded]

    def _join(self, ids: list[int]) -> str:
        return b"".join(self._bytes[i] for i in ids).decode(errors="replace")


def convention_of(pieces: Iterable[str]) -> str:
    """The convention of a vocabulary whose folder does not say it.

    Args:
        pieces: The vocabulary.
    """
    return "roberta" if {"<s>", "</s>"} <= set(pieces) else "gpt2"


class StreamDecoder:
    """Decodes ids one by one, as a model generates them.

    A character may span several tokens; its bytes are buffered until it is complete.
    The results of `feed` and `finish`, joined, equal `decode`.

    Args:
        tokenizer: Tokenizer of the model.
    """

    def __init__(self, tokenizer: ByteLevelBPETokenizer):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """Takes the next id; returns the text it completes, possibly empty.

        Args:
            token_id: The id.
        """
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """Returns the buffered rest, U+FFFD for an incomplete character, and resets."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
