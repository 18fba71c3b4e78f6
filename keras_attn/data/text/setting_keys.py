"""How every key of a tokenizer's files is used.

A setting that changes ids is applied, or refused by name; a key that is not here gives
a warning. `tests/data` checks that the keys that transformers writes are all here. The
components of a `tokenizer.json` are applied by the library `tokenizers` itself, so
their keys need no table.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_attn.files.reading import check_values

# `clean_up_tokenization_spaces` for byte pairs.
CLEAN_UP_BYTE_PAIRS = (
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
)
# Hugging Face's names for the roles of `Convention.tokens`.
SETTING_OF_ROLE = {
    "pad": "pad_token",
    "unknown": "unk_token",
    "start": "bos_token",
    "end": "eos_token",
    "classify": "cls_token",
    "separate": "sep_token",
    "mask": "mask_token",
}
# True or false; of `APPLIED`.
FLAGS = (
    CLEAN_UP_BYTE_PAIRS,
    "add_bos_token",
    "add_eos_token",
    "add_prefix_space",
    "clean_up_tokenization_spaces",
    "do_lower_case",
    "split_special_tokens",
    "strip_accents",
    "tokenize_chinese_chars",
)
# Of `tokenizer_config.json` and `special_tokens_map.json`. `add_bos_token` and
# `add_eos_token` count without a `tokenizer.json`, which has its own rows.
APPLIED = {
    *SETTING_OF_ROLE.values(),
    *FLAGS,
    "added_tokens_decoder",
    "additional_special_tokens",
    "extra_ids",
    "extra_special_tokens",
    "max_len",
    "model_max_length",
    "model_specific_special_tokens",
    "pad_token_type_id",
    "padding_side",
    "tokenizer_class",
    "truncation_side",
}
# The values that change nothing; any other is refused. True and 1 differ.
REFUSED: dict[str, tuple[Any, ...]] = {
    "clean_text": (None, True),
    "do_basic_tokenize": (None, True),
    "do_subword_tokenize": (None, True),
    "do_word_tokenize": (None, True),
    "fix_mistral_regex": (None, False),
    "keep_accents": (None, False),
    "language": (None,),
    "legacy_behaviour": (None, False),
    "never_split": (None, []),
    "normalization": (None, False),
    "predict_timestamps": (None, False),
    "remove_space": (None, True),
    "sp_model_kwargs": (None, {}),
    "special_tokens_pattern": (None,),
    "split_by_punct": (None, False),
    "src_lang": (None,),
    "subword_tokenizer_type": (None, "wordpiece"),
    "task": (None,),
    "tgt_lang": (None,),
    "token_type_ids_include_special_tokens": (None, True),
    "token_type_ids_pattern": (None, "bert_style"),
    "word_tokenizer_type": (None, "basic"),
    "wordpieces_prefix": (None, "##"),
}
# Refused only without a `tokenizer.json`, which holds their effect.
HELD_BY_TOKENIZER_JSON = {
    "keep_accents",
    "remove_space",
    "special_tokens_pattern",
    "split_by_punct",
    "token_type_ids_include_special_tokens",
    "token_type_ids_pattern",
}
# Why a key does not change ids.
WITHOUT_EFFECT = {
    "auto_map": "names code, which is never run",
    "backend": "names a library",
    "chat_control_tokens": "tokens of the chat template",
    "chat_template": "makes a text, before it is encoded",
    "device_map": "where a model is",
    "entity_vocab": "of entities, another input",
    "errors": "decoding: bytes that are not UTF-8 become U+FFFD",
    "files_loaded": "a note of the writer",
    "from_slow": "how the writer read it",
    "init_inputs": "a note of the writer",
    "is_local": "a note of the writer",
    "legacy": "held by tokenizer.json",
    "local_files_only": "a note of the writer",
    "mask_token_sent": "one of the added tokens",
    "max_entity_length": "of entities, another input",
    "max_length": "transformers cuts at model_max_length",
    "max_mention_length": "of entities, another input",
    "merges": "the vocabulary, which its files hold",
    "merges_file": "a path of the writer",
    "model_input_names": "which inputs transformers returns",
    "name_or_path": "a path of the writer",
    "offset": "how many of the tokens are added",
    "pad_to_multiple_of": "padding, which the mask excludes",
    "processor_class": "names a class",
    "response_schema": "reads generated text",
    "response_template": "reads generated text",
    "return_token_type_ids": "which inputs transformers returns",
    "slow_tokenizer_class": "names a class",
    "spaces_between_special_tokens": "decoding of special tokens, which are left out",
    "special_tokens_map_file": "a path of the writer",
    "stride": "of what is cut off, which is dropped",
    "tokenizer_file": "a path of the writer",
    "trim_offsets": "offsets, which we do not return",
    "truncation_strategy": "an argument of a call",
    "unk_id": "held by the vocabulary",
    "use_default_system_prompt": "of the chat template",
    "use_fast": "how the writer read it",
    "verbose": "messages",
    "vocab": "the vocabulary, which its files hold",
    "vocab_file": "a path of the writer",
    "vocab_type": "a note of the writer",
}
# Of `tokenizer.json`.
OF_TOKENIZER_JSON = {
    "added_tokens": "applied",
    "decoder": "applied by the library",
    "model": "applied by the library",
    "normalizer": "applied by the library",
    "padding": "applied: side, segment and token; the length is the batch's",
    "post_processor": "applied by the library",
    "pre_tokenizer": "applied by the library",
    "truncation": "applied where the folder has no model_max_length",
    "version": "of the format, which the library checks",
}


def is_special_token(key: str, value: Any) -> bool:
    """Whether a setting names a special token without a role, as `image_token` does.

    Args:
        key: The key.
        value: Its value.
    """
    is_named = key.endswith("_token") and key not in SETTING_OF_ROLE.values()
    return is_named and isinstance(value, str | dict)


def unknown_keys(settings: Mapping[str, Any]) -> list[str]:
    """The keys that may change ids, for all that we know: those with a value.

    Args:
        settings: The content of a file.
    """
    return [
        key
        for key, value in settings.items()
        if value not in (None, False, "", [], {})
        and key not in {*APPLIED, *REFUSED, *WITHOUT_EFFECT}
        and not is_special_token(key, value)
    ]


def check_refused(
    settings: Mapping[str, Any], path: Path, has_tokenizer_json: bool
) -> None:
    """Raises for a setting that changes ids and is not supported.

    Args:
        settings: The content of a file.
        path: The file, for the message.
        has_tokenizer_json: Whether a `tokenizer.json` is beside it.

    Raises:
        ValueError: The message names the setting.
    """
    supported = {
        name: allowed
        for name, allowed in REFUSED.items()
        if not (has_tokenizer_json and name in HELD_BY_TOKENIZER_JSON)
    }
    check_values(settings, supported, path)
