"""Loading the tokenizer of a folder, of any kind."""

import os

from keras_attn.data.text.byte_level_bpe import ByteLevelBPETokenizer
from keras_attn.data.text.clip_tokenizer import START, WORD_END, CLIPTokenizer
from keras_attn.data.text.sentencepiece import MODEL_FILES, SentencePieceTokenizer
from keras_attn.data.text.text_tokenizer import TextTokenizer
from keras_attn.data.text.tokenizer_files import (
    find_file,
    missing_files,
    read_settings,
)
from keras_attn.data.text.wordpiece import WordPieceTokenizer
from keras_attn.file_reading import (
    get_object,
    get_text,
    read_json,
    read_vocabulary_json,
    shown,
)

# Class and options by `tokenizer_class` or `model_type`.
_BY_NAME = {
    "bert": (WordPieceTokenizer, {}),
    "clip": (CLIPTokenizer, {}),
    "distilbert": (WordPieceTokenizer, {}),
    "electra": (WordPieceTokenizer, {}),
    "gpt2": (ByteLevelBPETokenizer, {"convention": "gpt2"}),
    "roberta": (ByteLevelBPETokenizer, {"convention": "roberta"}),
    "xlnet": (SentencePieceTokenizer, {"convention": "xlnet"}),
    "t5": (SentencePieceTokenizer, {"convention": "t5"}),
    "xlmroberta": (SentencePieceTokenizer, {"convention": "xlm_roberta"}),
    "siglip": (SentencePieceTokenizer, {"convention": "siglip"}),
}
# Generic classes, which do not reveal the kind.
_GENERIC = ("pretrainedtokenizer", "tokenizersbackend", "")


def load_text_tokenizer(folder: str | os.PathLike) -> TextTokenizer:
    """Reads the tokenizer of a folder in the Hugging Face layout.

    The kind is given by `tokenizer_config.json` (`tokenizer_class`) or `config.json`
    (`model_type`), otherwise by the files: `vocab.txt` is WordPiece, a `.model`
    SentencePiece, `vocab.json` with `merges.txt` byte-level BPE (CLIP's if it has
    "<|startoftext|>"), and a `tokenizer.json` alone states it in its `model`.

    Args:
        folder: The folder, such as one that `save` or `save_pretrained` wrote.

    Raises:
        ValueError: If the folder does not exist, or has no tokenizer or one of an
            unsupported kind; the message lists the supported ones.
    """
    name = _configured_kind(folder)
    if name is not None:
        if name not in _BY_NAME:
            raise ValueError(
                "`folder` must hold a tokenizer of one of these kinds: "
                f"{', '.join(_BY_NAME)}. Received: folder={str(folder)!r}, of kind "
                f"{shown(name)}"
            )
        kind, options = _BY_NAME[name]
        return kind.from_folder(folder, **options)
    if find_file(folder, "vocab.txt"):
        return WordPieceTokenizer.from_folder(folder)
    if find_file(folder, *MODEL_FILES):
        return SentencePieceTokenizer.from_folder(folder)
    listed = find_file(folder, "vocab.json")
    if listed and find_file(folder, "merges.txt"):
        is_clip = START in read_vocabulary_json(listed)
        kind = CLIPTokenizer if is_clip else ByteLevelBPETokenizer
        return kind.from_folder(folder)
    packed = find_file(folder, "tokenizer.json")
    if packed is None:
        raise missing_files(
            folder,
            "vocab.txt",
            *MODEL_FILES,
            "vocab.json with merges.txt",
            "tokenizer.json",
        )
    model = get_object(read_vocabulary_json(packed), "model", packed)
    if model.get("type") == "WordPiece":
        return WordPieceTokenizer.from_folder(folder)
    if model.get("end_of_word_suffix") == WORD_END:
        return CLIPTokenizer.from_folder(folder)
    return ByteLevelBPETokenizer.from_folder(folder)


def _configured_kind(folder: str | os.PathLike) -> str | None:
    kind = (read_settings(folder).get("tokenizer_class") or "").removesuffix("Fast")
    kind = kind.removesuffix("Tokenizer").lower()
    if kind in _GENERIC or f"{kind}tokenizer" in _GENERIC:
        config = find_file(folder, "config.json")
        kind = config and get_text(read_json(config), "model_type", config)
        kind = kind or ""
        kind = kind.lower().replace("-", "").replace("_", "")
    return kind or None
