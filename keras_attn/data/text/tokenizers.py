"""Text to token ids and back, in characters or in byte-pair subwords.

Both tokenizers use the same special ids: 0 pads, 1 starts, 2 ends, 3 is unknown, and
pieces of text begin at 4. A tokenizer is immutable once `train` has created it, and is
saved as one JSON file.
"""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from keras_attn.data.text.base_tokenizer import (
    FORMAT,
    SPECIAL_PIECES,
    Tokenizer,
    check_text,
)
from keras_attn.data.text.text_tokenizer import (
    check_trained_size,
    tokenizers_library,
    training_corpus,
)
from keras_attn.docstrings.descriptions import described_as
from keras_attn.files.reading import (
    MAX_PIECES,
    MAX_VOCABULARY_BYTES,
    naming,
    read_json,
    shortened,
    shown,
)


class CharacterTokenizer(Tokenizer):
    """One token per character.

    Args:
        characters: The known characters in the order of their ids, which start at 4.

    Example:
        ```python
        from keras_attn import data

        tokenizer = data.CharacterTokenizer.train(["3 mar 2027", "4 apr 2028"])
        tokenizer.decode(tokenizer.encode("3 apr 2027"))  # "3 apr 2027"
        ```
    """

    kind = "character"

    def __init__(self, characters: str):
        if not isinstance(characters, str) or not characters:
            raise ValueError(
                "`characters` must be a string of at least one character; "
                "`CharacterTokenizer.train(texts)` collects them from a corpus. "
                f"Received: characters={shown(characters)}"
            )
        if len(set(characters)) != len(characters):
            raise ValueError(
                "`characters` must not repeat a character. "
                f"Received: characters={shown(characters)}"
            )
        self.pieces = SPECIAL_PIECES + tuple(characters)
        # Without the special pieces: "<pad>" in a text is five characters.
        self._ids = {c: i for i, c in enumerate(characters, len(SPECIAL_PIECES))}

    @classmethod
    def train(cls, texts: Iterable[str]) -> "CharacterTokenizer":
        """Creates a tokenizer with every character of a corpus.

        Args:
            texts: The corpus.
        """
        return cls("".join(sorted(set().union(*training_corpus(texts)))))

    @described_as(Tokenizer.encode)
    def encode(self, text: str) -> list[int]:
        """Returns one id per character, without start or end token."""
        check_text("text", text)
        return [self._ids.get(c, self.unknown_token_id) for c in text]

    def _join(self, ids: list[int]) -> str:
        return "".join(self.pieces[index] for index in ids)

    def _state(self) -> str:
        return "".join(self.pieces[len(SPECIAL_PIECES) :])


class SubwordTokenizer(Tokenizer):
    """Byte-pair encoding: one token for a frequent word, several for a rare one.

    Text is normalized to Unicode NFC, and runs of blanks to one space; otherwise
    `decode` inverts `encode` for text in the alphabet of the corpus. Words are split at
    blanks and punctuation, and a piece that begins a word begins with "▁".

    Needs the extra `text`.

    Args:
        model: The tokenizer in the JSON of the `tokenizers` library, as a dictionary.

    Example:
        ```python
        from keras_attn import data

        texts = ["Two men sleep.", "Two women sing.", "A man sings."]
        tokenizer = data.SubwordTokenizer.train(texts, vocabulary_size=30)
        tokenizer.tokens(tokenizer.encode("Two men sing."))  # ["▁Two", "▁", "men", …]
        ```

    Reference:
        Sennrich et al., "Neural Machine Translation of Rare Words with Subword
        Units", 2016, arXiv:1508.07909.
    """

    kind = "subword"

    def __init__(self, model: dict[str, Any]):
        library = tokenizers_library()
        try:
            self._model = library.Tokenizer.from_str(json.dumps(model))
        except Exception as error:  # The library raises bare `Exception`.
            raise ValueError(
                "`model` must be a tokenizer in the JSON of the `tokenizers` library. "
                f"Received: {shortened(error)}"
            ) from error
        # "<end>" in a text is five characters. The JSON does not hold this setting.
        self._model.encode_special_tokens = True
        # A file may enable both, but `encode_batch` pads and truncates.
        self._model.no_padding()
        self._model.no_truncation()
        size = self._model.get_vocab_size()
        self.pieces = tuple(self._model.id_to_token(index) for index in range(size))
        if self.pieces[: len(SPECIAL_PIECES)] != SPECIAL_PIECES:
            raise ValueError(
                f"`model` must have the pieces {SPECIAL_PIECES} first; "
                "`SubwordTokenizer.train(texts)` creates such a model. "
                f"Received: {self.pieces[: len(SPECIAL_PIECES)]}"
            )

    @classmethod
    def train(
        cls, texts: Iterable[str], vocabulary_size: int = 8000
    ) -> "SubwordTokenizer":
        """Learns the pieces from a corpus.

        Args:
            texts: The corpus. For a joint vocabulary of two languages, pass both.
            vocabulary_size: Maximum number of ids; a small corpus gives fewer. If the
                alphabet is larger, the rarest characters become unknown.
        """
        check_trained_size(
            vocabulary_size, len(SPECIAL_PIECES) + 1, "the special ids and a character"
        )
        library = tokenizers_library()
        normalizers, splitters = library.normalizers, library.pre_tokenizers
        model = library.Tokenizer(library.models.BPE(unk_token="<unk>"))
        model.normalizer = normalizers.Sequence(
            [
                normalizers.NFC(),
                normalizers.Replace(library.Regex(r"\s+"), " "),
                normalizers.Strip(),
            ]
        )
        model.pre_tokenizer = splitters.Sequence(
            [splitters.Metaspace(), splitters.Punctuation()]
        )
        model.decoder = library.decoders.Metaspace()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocabulary_size,
            special_tokens=list(SPECIAL_PIECES),
            # Otherwise the alphabet could exceed the vocabulary.
            limit_alphabet=vocabulary_size - len(SPECIAL_PIECES),
            show_progress=False,
        )
        model.train_from_iterator(training_corpus(texts), trainer)
        return cls(json.loads(model.to_str()))

    @described_as(Tokenizer.encode)
    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without start or end token."""
        check_text("text", text)
        return self._model.encode(text).ids

    def _join(self, ids: list[int]) -> str:
        return self._model.decode(ids).strip()

    def _state(self) -> dict[str, Any]:
        return json.loads(self._model.to_str())


def load_tokenizer(path: str | os.PathLike) -> Tokenizer:
    """Reads a tokenizer that `save` wrote.

    Args:
        path: The file.

    Raises:
        ValueError: If the file does not exist, or is not a tokenizer.
    """
    if not Path(path).is_file():
        raise ValueError(
            "`path` must be an existing file that `Tokenizer.save` wrote. "
            f"Received: path={str(path)!r}"
        )
    kinds: dict[Any, Callable[[Any], Tokenizer]] = {
        each.kind: each for each in (CharacterTokenizer, SubwordTokenizer)
    }
    try:
        fields = read_json(Path(path), MAX_VOCABULARY_BYTES, MAX_PIECES)
        if fields["format"] != FORMAT:
            raise ValueError(f"format={shown(fields['format'])}")
        kind, state = kinds[fields["kind"]], fields["state"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            "`path` must be a file that `Tokenizer.save` wrote; this one is not. "
            f"Received: path={str(path)!r}; {type(error).__name__}: "
            f"{shortened(error, 300)}"
        ) from error
    with naming(path):
        return kind(state)
