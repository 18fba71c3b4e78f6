"""Loading the tokenizer of a folder, of any kind."""

import os
from typing import Any

from keras_attn.data.text.byte_level_bpe import CONVENTIONS as BPE_CONVENTIONS
from keras_attn.data.text.byte_level_bpe import ByteLevelBPETokenizer, convention_of
from keras_attn.data.text.clip_tokenizer import (
    START,
    WORD_END,
    CLIPTokenizer,
    clip_convention,
)
from keras_attn.data.text.clip_tokenizer import TOKENS as CLIP_TOKENS
from keras_attn.data.text.conventions import Convention
from keras_attn.data.text.folder_settings import class_name, with_settings
from keras_attn.data.text.json_tokenizer import JSONTokenizer
from keras_attn.data.text.plain_folder import find_added_tokens, read_packed_file
from keras_attn.data.text.sentencepiece import (
    CONVENTIONS,
    MODEL_FILES,
    SentencePieceTokenizer,
)
from keras_attn.data.text.sentencepiece import convention_of as model_convention_of
from keras_attn.data.text.text_tokenizer import TextTokenizer
from keras_attn.data.text.tokenizer_files import (
    SETTING_OF_ROLE,
    FurtherSettingsError,
    find_file,
    missing_files,
    read_settings,
    warn_of_unknown,
)
from keras_attn.data.text.tokenizer_json import NOT_UNIGRAM
from keras_attn.data.text.wordpiece import (
    BERT_TOKENS,
    WordPieceTokenizer,
    bert_convention,
)
from keras_attn.files.hub import local_folder
from keras_attn.files.hub_names import naming_hub_folders
from keras_attn.files.reading import (
    MAX_VOCABULARY_BYTES,
    get_object,
    get_text,
    naming,
    read_bytes,
    read_json,
    read_vocabulary_json,
    shown,
)

# Class and options by `tokenizer_class` or `model_type`.
_BY_NAME: dict[str, tuple[Any, dict[str, str]]] = {
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
_GENERIC = ("pretrained", "tokenizersbackend", "")
# Besides them, classes of transformers that pad at the left, as their models do.
_PADS_LEFT = ("codellama", "cohere", "gemma", "llama", "siglip2")


@naming_hub_folders()
def load_text_tokenizer(folder: str | os.PathLike) -> TextTokenizer:
    """Reads a tokenizer in the Hugging Face layout, of any kind.

    The kind is determined by `tokenizer_class` in `tokenizer_config.json`, by
    `model_type` in `config.json`, or else by the files: `vocab.txt` is a WordPiece
    vocabulary, `spiece.model` a SentencePiece one, and `vocab.json` with `merges.txt`
    a byte-level BPE, CLIP's if it has "<|startoftext|>". A folder that says more than
    these files, such as added tokens, or whose `tokenizer.json` says something else, is
    a `JSONTokenizer`. The settings of a sentence folder, `max_seq_length`,
    `do_lower_case` and its prompts, are applied.

    Args:
        folder: The folder, or its name on the hub, `hf://owner/name[@revision]`, of
            which only the tokenizer is downloaded (docs/hub.md).

    Returns:
        A `WordPieceTokenizer`, `SentencePieceTokenizer`, `ByteLevelBPETokenizer`,
        `CLIPTokenizer` or `JSONTokenizer`.

    Raises:
        ValueError: If the folder does not exist, has no tokenizer or one of an
            unsupported kind (the message lists the supported ones), or has a setting
            that is not supported.
        FileNotFoundError, PermissionError, ConnectionError: Of a name on the hub, as in
            `models.load_checkpoint`.
    """
    folder = local_folder(folder, "tokenizer")
    kind, options = _BY_NAME.get(_find_kind(folder) or "", (None, {}))
    if kind is None:
        return load_json_tokenizer(folder)
    try:
        return kind.from_folder(folder, **options)
    except ValueError as error:
        packed = find_file(folder, "tokenizer.json")
        if packed is None and not isinstance(error, FurtherSettingsError):
            raise
    return load_json_tokenizer(folder)


@naming_hub_folders()
def load_json_tokenizer(folder: str | os.PathLike) -> JSONTokenizer:
    """Reads a folder, of any kind, into a `JSONTokenizer`.

    Args:
        folder: The folder.

    Raises:
        ValueError: As in `load_text_tokenizer`.
    """
    folder = local_folder(folder, "tokenizer")
    name = _find_kind(folder)
    settings = read_settings(folder)
    path, packed = read_packed_file(folder)
    plain, roles, others = None, {}, ()
    if name in _BY_NAME:
        kind, options = _BY_NAME[name]
        known = _get_convention(kind, options.get("convention"))
        roles, others = known.tokens, known.other_tokens
        # A class of transformers pads as its models do, if the settings are silent.
        sides = {True: "left", False: "right"}
        settings.setdefault("padding_side", sides[known.pad_left])
        settings.setdefault("pad_token_type_id", known.pad_segment)
        if path is None:
            path, plain, _ = kind._read(folder, settings, **options)
            special = (each for each in plain["added_tokens"] if each["special"])
            others = (*others, *(each["content"] for each in special))
    elif class_name(settings) in _PADS_LEFT:
        settings.setdefault("padding_side", "left")
    content = packed or plain
    if path is None or content is None:
        raise ValueError(
            "`folder` must hold a tokenizer.json, or one of these kinds: "
            f"{', '.join(_BY_NAME)}. Received: folder={str(folder)!r}, of kind "
            f"{shown(name)}"
        )
    if get_object(content, "model", path).get("type") == NOT_UNIGRAM:
        raise ValueError(
            "`folder` must have a tokenizer.json if it adds tokens to a SentencePiece "
            f"model of byte pairs. Received: folder={str(folder)!r}"
        )
    with naming(path):
        added = find_added_tokens(folder, packed, plain, settings, name)
        content = with_settings(content, settings, name, packed is not None)
        named = {
            role: settings[key]
            for role, key in SETTING_OF_ROLE.items()
            if settings.get(key)
        }
        tokens = {**roles, **named}
        tokenizer = JSONTokenizer(
            content, tokens, added, others, not settings.get("split_special_tokens")
        )
    warn_of_unknown(folder)
    return tokenizer._with_settings(settings)


def _get_convention(kind, name) -> Convention:
    """The convention of a kind."""
    if kind is WordPieceTokenizer:
        return bert_convention(BERT_TOKENS)
    if kind is CLIPTokenizer:
        return clip_convention(CLIP_TOKENS)
    return {**CONVENTIONS, **BPE_CONVENTIONS}[name]


def _find_kind(folder: str | os.PathLike) -> str | None:
    """The name of the kind of a folder's tokenizer; None for another `tokenizer.json`.

    Raises:
        ValueError: If the folder has no tokenizer.
    """
    name = _configured_kind(folder)
    packed = find_file(folder, "tokenizer.json")
    models = find_file(folder, *MODEL_FILES)
    if name is not None:
        return None if packed and name not in _BY_NAME else name
    if find_file(folder, "vocab.txt"):
        return "bert"
    if models:
        model = read_bytes(models, MAX_VOCABULARY_BYTES)
        return model_convention_of(models, model).replace("_", "")
    listed = find_file(folder, "vocab.json")
    if listed and find_file(folder, "merges.txt"):
        pieces = read_vocabulary_json(listed)
        if START in pieces:
            return "clip"
        return convention_of(pieces)
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
        return "bert"
    if model.get("type") != "BPE":
        return None
    if model.get("end_of_word_suffix") == WORD_END:
        return "clip"
    pieces = get_object(model, "vocab", packed)
    return convention_of(pieces)


def _configured_kind(folder: str | os.PathLike) -> str | None:
    kind = class_name(read_settings(folder))
    if kind in _GENERIC:
        config = find_file(folder, "config.json")
        kind = config and get_text(read_json(config), "model_type", config)
        kind = kind or ""
        kind = kind.lower().replace("-", "").replace("_", "")
    return kind or None
