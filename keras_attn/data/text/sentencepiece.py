"""SentencePiece, the tokenizer of T5, XLNet, XLM-R and SigLIP, on tensorflow-text."""

import functools
import io
import os
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_attn.checks.arguments import check_choice, check_positive
from keras_attn.data.text import tokenizer_files as files
from keras_attn.data.text.conventions import Convention, Vocabulary
from keras_attn.data.text.graph_tokenizer import GraphTokenizer
from keras_attn.data.text.plain_folder import load_plain
from keras_attn.data.text.sentencepiece_model import parse_model
from keras_attn.data.text.text_tokenizer import text_library, training_corpus
from keras_attn.data.text.tokenizer_json import sentencepiece_json
from keras_attn.docstrings.descriptions import described_as
from keras_attn.files.hub import local_folder
from keras_attn.files.hub_names import naming_hub_folders
from keras_attn.files.reading import MAX_VOCABULARY_BYTES, naming, read_bytes
from keras_attn.files.writing import write_atomically

MODEL_FILES = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
CONVENTIONS = {
    # A </s>; A </s> B </s>.
    "t5": Convention(
        tokens={"pad": "<pad>", "unknown": "<unk>", "end": "</s>"},
        single=(("A", 0), ("end", 0)),
        pair=(("A", 0), ("end", 0), ("B", 0), ("end", 0)),
    ),
    # A <sep> <cls>; A <sep> B <sep> <cls>; padded at the left.
    "xlnet": Convention(
        tokens={
            "pad": "<pad>",
            "unknown": "<unk>",
            "start": "<s>",
            "end": "</s>",
            "classify": "<cls>",
            "separate": "<sep>",
            "mask": "<mask>",
        },
        single=(("A", 0), ("separate", 0), ("classify", 2)),
        pair=(("A", 0), ("separate", 0), ("B", 1), ("separate", 1), ("classify", 2)),
        pad_left=True,
        pad_segment=3,
        other_tokens=("<eop>", "<eod>"),
        left_strip=("mask",),
    ),
    # <s> A </s>; <s> A </s></s> B </s>; all of one segment.
    "xlm_roberta": Convention(
        tokens={
            "pad": "<pad>",
            "unknown": "<unk>",
            "start": "<s>",
            "end": "</s>",
            "classify": "<s>",
            "separate": "</s>",
            "mask": "<mask>",
        },
        single=(("start", 0), ("A", 0), ("end", 0)),
        pair=(("start", 0), ("A", 0), ("end", 0), ("end", 0), ("B", 0), ("end", 0)),
    ),
    # T5's rows, padded with </s>.
    "siglip": Convention(
        tokens={"pad": "</s>", "unknown": "<unk>", "end": "</s>"},
        single=(("A", 0), ("end", 0)),
        pair=(("A", 0), ("end", 0), ("B", 0), ("end", 0)),
    ),
}
# Whether published models lower-case text; the others cannot.
_LOWER_CASE = {"xlnet": False, "siglip": True}
_HUGGING_FACE = {
    "t5": ("T5Tokenizer", "spiece.model"),
    "xlnet": ("XLNetTokenizer", "spiece.model"),
    "xlm_roberta": ("XLMRobertaTokenizer", "sentencepiece.bpe.model"),
    "siglip": ("SiglipTokenizer", "spiece.model"),
}
_BLANKS = (
    r"[\x{9}-\x{D}\x{1C}-\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}"
    r"\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}]+"
)


class SentencePieceTokenizer(GraphTokenizer):
    """Subwords of a SentencePiece model.

    A piece that follows a blank begins with "▁". The ids match the `sentencepiece`
    library, except for ties: if several segmentations of a text, such as a long run of
    one letter, have equal scores, tensorflow-text may choose another.

    `convention` determines the rows, in Hugging Face's notation:

    - `"t5"`: `A </s>`, or `A </s> B </s>`.
    - `"xlnet"`: `A <sep> <cls>`, or `A <sep> B <sep> <cls>`, segments 0, 1 and 2 for
      `<cls>`, padded **at the left** with segment 3. Accents are removed, and a comma
      after a digit is a separate piece, as in pretraining.
    - `"xlm_roberta"`: `<s> A </s>`, or `<s> A </s></s> B </s>`. The ids are fairseq's,
      not the model's: `<s> <pad> </s> <unk>`, then the model's, then `<mask>`.
    - `"siglip"`: as `"t5"`, but padded with `</s>`. Text is lower-cased, and loses the
      punctuation of ASCII. SigLIP attends to the padding, and needs all of its 64
      tokens: `export` pads to them, `encode_batch` and `pack` do with
      `pad_to_max_length=True`. It takes single texts: a pair that is too long is
      truncated as for "t5", in Hugging Face's tokenizer by a token differently.

    Needs the extra `text`; `train` also needs the library `sentencepiece`.

    Args:
        model: The content of a `.model` file.
        convention: "t5", "xlnet", "xlm_roberta" or "siglip".
        lower_case: Whether text is lower-cased first; for "xlnet" (default: False) and
            "siglip" (default: True) only.

    Example:
        Needs the tokenizer of a checkpoint:

        ```python
        from keras_attn import data

        tokenizer = data.SentencePieceTokenizer.from_folder("xlnet-base-cased", "xlnet")
        tokenizer.encode_batch(["A man sleeps."], max_length=128)
        ```

    Reference:
        Kudo and Richardson, "SentencePiece: A simple and language independent subword
        tokenizer", 2018, arXiv:1808.06226.
    """

    def __init__(
        self, model: bytes, convention: str = "t5", lower_case: bool | None = None
    ):
        check_choice("convention", convention, CONVENTIONS)
        if lower_case is None:
            lower_case = _LOWER_CASE.get(convention, False)
        if lower_case and convention not in _LOWER_CASE:
            raise ValueError(
                '`lower_case` is for the conventions "xlnet" and "siglip" only; other '
                "models lower-case text themselves. Received: "
                f"convention={convention!r}, lower_case=True"
            )
        splitter, model_pieces = _load(model)
        fairseq = convention == "xlm_roberta"
        pieces = _fairseq_pieces(model_pieces) if fairseq else model_pieces
        super().__init__(Vocabulary.of(pieces, CONVENTIONS[convention]))
        self.model = model
        self.lower_case = lower_case
        self._name = convention
        self._splitter = splitter
        with tf.init_scope(), tf.device("CPU"):
            # Our ids by the model's id: one, or several where a comma is split off.
            rows = [[index] for index in range(len(model_pieces))]
            if fairseq:
                ids = self._vocabulary.ids
                rows = [[ids[piece]] for piece in model_pieces]
            if convention == "xlnet":
                rows = [
                    self._split_comma(i, piece) for i, piece in enumerate(model_pieces)
                ]
            self._rows = tf.RaggedTensor.from_row_lengths(
                tf.constant([i for row in rows for i in row], tf.int32),
                [len(row) for row in rows],
            )
        self._is_identity = all(row == [i] for i, row in enumerate(rows))

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocabulary_size: int = 32000,
        convention: str = "t5",
        character_coverage: float = 0.9995,
    ) -> "SentencePieceTokenizer":
        """Learns a unigram model from a corpus, by the `sentencepiece` library.

        Args:
            texts: The corpus.
            vocabulary_size: Maximum number of ids; a small corpus gives fewer.
            convention: Determines the special tokens of the model.
            character_coverage: Fraction of the corpus' characters that get pieces, in
                [0.98, 1]; the rarest remain unknown.
        """
        corpus = training_corpus(texts)
        check_positive("vocabulary_size", vocabulary_size)
        check_choice("convention", convention, CONVENTIONS)
        if convention == "siglip":
            canonical = _canonicalize(tf.constant(corpus), lower_case=True)
            corpus = training_corpus(text.decode() for text in canonical.numpy())
        if not 0.98 <= character_coverage <= 1.0:
            raise ValueError(
                "`character_coverage` must be in [0.98, 1]. Received: "
                f"character_coverage={character_coverage}"
            )
        try:
            import sentencepiece
        except ImportError as error:
            raise ImportError(
                "Learning a SentencePiece model needs the library: "
                "pip install sentencepiece"
            ) from error
        model = io.BytesIO()
        # fairseq's "<pad>" and "<mask>" are not in the model.
        size = vocabulary_size - 2 * (convention == "xlm_roberta")
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(corpus),
                model_writer=model,
                vocab_size=size,
                hard_vocab_limit=False,
                character_coverage=character_coverage,
                minloglevel=2,
                **_control_tokens(convention),
            )
        except RuntimeError as error:
            raise ValueError(
                "`vocabulary_size` must leave room for the characters of the corpus; "
                "increase it, or lower `character_coverage`. Received: "
                f"vocabulary_size={vocabulary_size}, "
                f"character_coverage={character_coverage}; {error}"
            ) from error
        return cls(model.getvalue(), convention)

    @classmethod
    @naming_hub_folders()
    def from_folder(
        cls,
        folder: str | os.PathLike,
        convention: str | None = None,
        lower_case: bool | None = None,
    ) -> "SentencePieceTokenizer":
        """Reads `spiece.model`, `sentencepiece.bpe.model` or `tokenizer.model`.

        Args:
            folder: A folder in the Hugging Face layout, or its name on the hub.
            convention: "t5", "xlnet", "xlm_roberta" or "siglip"; None takes it from
                `tokenizer_config.json`, otherwise XLM-R's for
                `sentencepiece.bpe.model`, XLNet's for a model with "<sep>" and "<cls>",
                and T5's for any other.
            lower_case: None takes it from `tokenizer_config.json`.
        """
        path = local_folder(folder, "tokenizer")
        settings = files.read_settings(path)
        options = {"convention": convention, "lower_case": lower_case}
        return load_plain(cls, path, settings, **options)

    @classmethod
    def _read(
        cls,
        folder: str | os.PathLike,
        settings: Mapping[str, Any],
        convention: str | None = None,
        lower_case: bool | None = None,
    ) -> tuple[Path, dict[str, Any], dict[str, Any]]:
        """The file, its content as a `tokenizer.json`, and our arguments."""
        path = files.find_file(folder, *MODEL_FILES)
        if path is None:
            raise files.missing_files(folder, *MODEL_FILES)
        kind = (settings.get("tokenizer_class") or "").removesuffix("Fast")
        if convention is None:
            of_class = {known: name for name, (known, _) in _HUGGING_FACE.items()}
            convention = of_class.get(kind)
        model = read_bytes(path, MAX_VOCABULARY_BYTES)
        if convention is None:
            convention = convention_of(path, model)
        if lower_case is None and convention in _LOWER_CASE:
            lower_case = settings.get("do_lower_case")
        arguments = {"model": model, "convention": convention, "lower_case": lower_case}
        check_choice("convention", convention, CONVENTIONS)
        if lower_case is None:
            lower_case = _LOWER_CASE.get(convention, False)
        with naming(path):
            pieces = [piece for piece, _, _ in parse_model(model).pieces]
            if convention == "xlm_roberta":
                pieces = _fairseq_pieces(pieces)
            known = CONVENTIONS[convention].within(pieces)
            plain = sentencepiece_json(model, pieces, known, convention, lower_case)
        return path, plain, arguments

    @described_as(GraphTokenizer.save)
    def save(self, folder: str | os.PathLike) -> None:
        """Writes the model and `tokenizer_config.json`."""
        files.remove_others(folder)
        kind, name = _HUGGING_FACE[self._name]
        write_atomically(Path(folder) / name, self.model)
        options: dict[str, Any] = {}
        if self._name in _LOWER_CASE:
            options["do_lower_case"] = self.lower_case
        if self._name == "xlnet":
            options |= {"keep_accents": False, "remove_space": True}
        if self._name == "t5":
            options["extra_ids"] = 0
        self._save_settings(folder, kind, **options)

    def _ragged(self, texts: tf.Tensor) -> tf.RaggedTensor:
        if self._name == "xlnet":
            texts = self._normalize(texts)
        if self._name == "siglip":
            texts = _canonicalize(texts, self.lower_case)
        ids = self._splitter.tokenize(texts)
        if self._is_identity:
            return ids
        return tf.gather(self._rows, ids).merge_dims(1, 2)

    def _normalize(self, texts: tf.Tensor) -> tf.Tensor:
        """The normalization of XLNet's tokenizer, before its model."""
        library = text_library("SentencePiece")
        texts = tf.strings.regex_replace(texts, "``|''", '"')
        texts = library.normalize_utf8(texts, "NFKD")
        texts = tf.strings.regex_replace(texts, _accents_pattern(), "")
        if self.lower_case:
            texts = _lower(texts)
        return tf.strings.regex_replace(texts, _BLANKS, " ")

    def _split_comma(self, index: int, piece: str) -> list[int]:
        """The ids of a piece, with a final comma after a digit split off."""
        if len(piece) < 2 or piece[-1] != "," or not piece[-2].isdigit():
            return [index]
        ids = self._vocabulary.ids
        unknown = ids[self.convention.tokens["unknown"]]
        number = self._splitter.tokenize(piece[:-1].replace("▁", "")).numpy().tolist()
        if piece[0] != "▁":
            # The model adds a blank before any text, which is not wanted here.
            first = self.pieces[number[0]]
            if first == "▁":
                number = number[1:]
            elif first[0] == "▁":
                number[0] = ids.get(first[1:], unknown)
        return [*number, ids.get(",", unknown)]

    def _join(self, ids: list[int]) -> str:
        if self._name == "xlm_roberta":
            ids = [index - 1 for index in ids]
        text = self._splitter.detokenize(tf.constant(ids, tf.int32))
        return text.numpy().decode(errors="replace")


def _canonicalize(texts: tf.Tensor, lower_case: bool) -> tf.Tensor:
    """The normalization of SigLIP's tokenizer, before its model."""
    replace = tf.strings.regex_replace
    texts = replace(texts, "▁", " ")
    if lower_case:
        texts = _lower(texts)
    texts = replace(texts, "[[:punct:]]", "")
    texts = replace(replace(texts, _BLANKS, " "), " $", "")
    # The reference keeps a blank at the start, behind the one that the model adds.
    return replace(texts, "^ ", "▁")


def _lower(texts: tf.Tensor) -> tf.Tensor:
    # TensorFlow would end a text at NUL, which to models is an unknown character, as is
    # this one.
    texts = tf.strings.regex_replace(texts, r"\x{0}", "\U0010fe00")
    return tf.strings.lower(texts, encoding="utf-8")


@functools.cache
def _accents_pattern() -> str:
    """The combining characters, which XLNet removes, as an RE2 pattern."""
    combining = [c for c in range(0x110000) if unicodedata.combining(chr(c))]
    listed = "".join(rf"\x{{{c:x}}}" for c in combining)
    return f"[{listed}]"


def _load(model: bytes):
    """tensorflow-text's tokenizer of a model, and the pieces of the model."""
    library = text_library("SentencePiece")
    with tf.init_scope():
        try:
            splitter = library.SentencepieceTokenizer(model)
            size = int(splitter.vocab_size())
        except (tf.errors.OpError, TypeError, ValueError) as error:
            raise ValueError(
                "`model` must be the content of a SentencePiece model; is the file "
                f"complete? Received: {len(model)} bytes"
            ) from error
        pieces = splitter.id_to_string(tf.range(size)).numpy()
    return splitter, [piece.decode() for piece in pieces]


def _fairseq_pieces(model_pieces: list[str]) -> list[str]:
    if model_pieces[:3] != ["<unk>", "<s>", "</s>"]:
        raise ValueError(
            '`model` must begin with the pieces "<unk>", "<s>" and "</s>" for the '
            f'convention "xlm_roberta". Received: {model_pieces[:3]}'
        )
    return ["<s>", "<pad>", "</s>", "<unk>", *model_pieces[3:], "<mask>"]


def convention_of(path: Path, model: bytes) -> str:
    """The convention of a model whose folder does not say it.

    Args:
        path: The file.
        model: Its content, which contains its pieces as plain bytes.
    """
    if "bpe" in path.name:
        return "xlm_roberta"
    return "xlnet" if b"<sep>" in model and b"<cls>" in model else "t5"


def _control_tokens(convention: str) -> dict:
    """The training options for the special tokens of a convention."""
    if convention == "xlnet":
        named = ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"]
        return {"control_symbols": named, "user_defined_symbols": ["<eop>"]}
    if convention in ("t5", "siglip"):
        return {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    return {}
