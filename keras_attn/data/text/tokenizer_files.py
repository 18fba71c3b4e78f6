"""Reading and writing a tokenizer's folder in the Hugging Face layout.

Every file is text, JSON or a SentencePiece model; nothing is unpickled. Values are
checked when a file is read, so that an error can name the file.
"""

import json
import os
import warnings
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from keras_attn.data.text.sentence_settings import PROMPTS, sentence_settings
from keras_attn.data.text.setting_keys import (
    CLEAN_UP_BYTE_PAIRS,
    FLAGS,
    SETTING_OF_ROLE,
    check_refused,
    unknown_keys,
)
from keras_attn.files.hub_names import with_hub_names
from keras_attn.files.reading import (
    MAX_PIECES,
    MAX_VOCABULARY_ENTRIES,
    check_file,
    get_flag,
    get_object,
    get_text,
    read_json,
    read_text,
    read_vocabulary_json,
    shown,
)
from keras_attn.files.writing import write_atomically

SETTINGS = "tokenizer_config.json"
# Settings that another library's pipeline needs; `write_settings` keeps them.
_KEPT = (
    CLEAN_UP_BYTE_PAIRS,
    "add_bos_token",
    "add_eos_token",
    "added_tokens_decoder",
    "additional_special_tokens",
    "chat_template",
    "clean_up_tokenization_spaces",
    "errors",
    "extra_special_tokens",
    "model_input_names",
    "model_max_length",
    "pad_token_type_id",
    "padding_side",
    "split_special_tokens",
    "trim_offsets",
    "truncation_side",
)
# Hugging Face writes 10^30 for no maximum.
_LONGEST = 10**9
# `added_tokens_decoder` may list a whole vocabulary.
_MAX_SETTINGS = MAX_VOCABULARY_ENTRIES


class FurtherSettingsError(ValueError):
    """A folder has settings that the class that reads it does not apply."""


def find_file(folder: str | os.PathLike, *names: str) -> Path | None:
    """The first of these files that exists in a folder, or None.

    Raises:
        ValueError: If the folder does not exist, or the file is a folder or a pipe.
    """
    if not Path(folder).is_dir():
        raise ValueError(
            "`folder` must be an existing folder with a tokenizer's files. "
            f"Received: folder={str(folder)!r}"
        )
    found = (Path(folder) / name for name in names)
    path = next((path for path in found if path.exists()), None)
    if path is not None:
        check_file(path)
    return path


def missing_files(folder: str | os.PathLike, *wanted: str) -> ValueError:
    """The error that names the missing files, and the files that exist."""
    there = ", ".join(sorted(each.name for each in Path(folder).iterdir()))
    return ValueError(
        f"`folder` must have {', or '.join(wanted)}. Received: "
        f"folder={str(folder)!r}, which has {there or 'no files'}"
    )


def read_settings(folder: str | os.PathLike) -> dict[str, Any]:
    """The content of `tokenizer_config.json`, with special tokens as plain strings.

    Older folders have their special tokens in `special_tokens_map.json` instead. A
    folder without either file gives an empty dictionary.

    Raises:
        ValueError: If a value that is used has the wrong type.
    """
    settings: dict[str, Any] = {}
    packed = find_file(folder, "tokenizer.json")
    for name in ("special_tokens_map.json", SETTINGS):
        path = find_file(folder, name)
        if path is not None:
            found = _checked_settings(read_json(path, max_entries=_MAX_SETTINGS), path)
            check_refused(found, path, packed is not None)
            settings |= found
    if "max_len" in settings:  # Of older folders.
        settings.setdefault("model_max_length", settings["max_len"])
    if packed is not None:
        settings = _read_lengths(packed, settings) | settings
    return settings | sentence_settings(folder, settings)


def _checked_settings(settings, path):
    for name in SETTING_OF_ROLE.values():
        if isinstance(settings.get(name), dict):
            settings[name] = settings[name].get("content")
        get_text(settings, name, path)
    get_text(settings, "tokenizer_class", path)
    for name in FLAGS:
        get_flag(settings, name, None, path, allow_none=True)
    for name in ("truncation_side", "padding_side"):
        if settings.get(name) not in (None, "left", "right"):
            raise ValueError(
                f"`{name}` in {path.name} must be left or right. "
                f"Received: {name}={shown(settings[name])} in {str(path)!r}"
            )
    for name in ("extra_ids", "pad_token_type_id"):
        check_count(settings, name, path)
    for name in ("max_len", "model_max_length"):
        check_length(settings, name, path)
    return settings


def warn_of_unknown(folder: str | os.PathLike) -> None:
    """Warns of settings that are not known, which may change ids.

    Args:
        folder: A folder in the Hugging Face layout, which `read_settings` has read.
    """
    for name in ("special_tokens_map.json", SETTINGS):
        path = find_file(folder, name)
        unknown = path and unknown_keys(read_json(path, max_entries=_MAX_SETTINGS))
        if unknown:
            warnings.warn(
                f"{name} has settings that are not known, and not applied: "
                f"{shown(unknown)}. Received: {with_hub_names(str(path))!r}",
                stacklevel=2,
            )


def check_count(fields: Mapping[str, Any], name: str, path: Path) -> None:
    """Raises unless a field is absent, null or an integer from 0 to a million."""
    value = fields.get(name)
    if value is not None and not (type(value) is int and 0 <= value <= MAX_PIECES):
        raise ValueError(
            f"`{name}` in {path.name} must be an integer from 0 to {MAX_PIECES}. "
            f"Received: {name}={shown(value)} in {str(path)!r}"
        )


def check_length(fields: Mapping[str, Any], name: str, path: Path) -> None:
    """Raises unless a field is absent, null or a number of at least 1."""
    longest = fields.get(name)
    is_number = isinstance(longest, int | float) and not isinstance(longest, bool)
    # The comparison also fails for NaN.
    if longest is not None and not (is_number and longest >= 1):
        raise ValueError(
            f"`{name}` in {path.name} must be a positive integer. "
            f"Received: {name}={shown(longest)} in {str(path)!r}"
        )


def _read_lengths(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings for truncation and padding in a `tokenizer.json`."""
    content = read_vocabulary_json(path)
    found: dict[str, Any] = {}
    padding = get_object(content, "padding", path)
    if padding:
        is_left = padding.get("direction") == "Left"
        found["padding_side"] = "left" if is_left else "right"
        check_count(padding, "pad_type_id", path)
        found["pad_token_type_id"] = padding.get("pad_type_id")
    truncation = get_object(content, "truncation", path)
    if not truncation:
        return found
    if truncation.get("direction") == "Left":
        found["truncation_side"] = "left"
    if "model_max_length" in settings:
        # As in transformers, the maximum here does not count then.
        return found
    strategy = truncation.get("strategy", "LongestFirst")
    if strategy != "LongestFirst":
        raise ValueError(
            f"`truncation.strategy` in {path.name} must be LongestFirst. "
            f"Received: strategy={shown(strategy)} in {str(path)!r}"
        )
    check_length(truncation, "max_length", path)
    return {**found, "model_max_length": truncation.get("max_length")}


def get_max_length(settings: Mapping[str, Any]) -> int | None:
    """The maximum number of tokens of a row; None if there is none."""
    longest = settings.get("model_max_length")
    return None if longest is None or longest > _LONGEST else int(longest)


def kept_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a folder that we do not need, but another library may."""
    return {name: settings[name] for name in _KEPT if name in settings}


def named_tokens(
    settings: Mapping[str, Any], tokens: Mapping[str, str]
) -> dict[str, str]:
    """A convention's special tokens, with those that the settings override."""
    return {
        role: settings.get(SETTING_OF_ROLE[role]) or token
        for role, token in tokens.items()
    }


def write_settings(
    folder: str | os.PathLike,
    kind: str,
    tokens: Mapping[str, str],
    left_stripped: Container[str] = (),
    **options,
) -> None:
    """Writes `tokenizer_config.json`.

    Args:
        folder: Folder to write to.
        kind: The class in Hugging Face's `transformers` that reads the folder.
        tokens: The special token of each role.
        left_stripped: The tokens that take the blanks before them.
        **options: Further settings.
    """
    named: dict[str, Any] = {}
    for role, token in tokens.items():
        named[SETTING_OF_ROLE[role]] = token
        if token in left_stripped:
            named[SETTING_OF_ROLE[role]] = {
                "__type": "AddedToken",
                "content": token,
                "lstrip": True,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
    write_json(Path(folder) / SETTINGS, {"tokenizer_class": kind, **named, **options})


def remove_others(folder: str | os.PathLike) -> None:
    """Removes what an earlier tokenizer of a folder left, and would be read, too."""
    for name in ("tokenizer.json", "added_tokens.json", "special_tokens_map.json"):
        (Path(folder) / name).unlink(missing_ok=True)


def write_prompts(
    folder: str | os.PathLike, prompts: Mapping[str, str], default: str | None
) -> None:
    """Writes the prompts of a sentence folder, or none where there are none.

    Args:
        folder: The folder.
        prompts: The prompts by name.
        default: The name of the one that is put before every text; None for none.
    """
    path = Path(folder) / PROMPTS
    fields = read_json(path) if path.exists() else {}
    if prompts or fields:
        fields |= {"prompts": prompts, "default_prompt_name": default}
        write_json(path, fields)


def write_json(path: Path, content: Any, indent: int | None = 2) -> None:
    """Writes JSON without escaping non-ASCII characters."""
    text = json.dumps(content, ensure_ascii=False, indent=indent)
    write_atomically(path, f"{text}\n".encode())


def read_lines(path: Path) -> list[str]:
    """The lines of a list of pieces, and what follows the last line break.

    Not `splitlines`: a piece may be a Unicode line separator.

    Raises:
        ValueError: If there are more lines than any real vocabulary has pieces.
    """
    text = read_text(path)
    check_num_pieces(text.count("\n"), path)
    return [line.removesuffix("\r") for line in text.split("\n")]


def check_num_pieces(number: int, path: Path) -> None:
    """Raises if a file has more pieces than any real vocabulary.

    Raises:
        ValueError: If `number` is too large; the message names the file.
    """
    if number > MAX_PIECES:
        raise ValueError(
            f"{path.name} must have at most {MAX_PIECES} pieces. "
            f"Received: {str(path)!r}, with {number}"
        )


def pieces_in_order(ids: Mapping[str, Any], path: Path) -> list[str]:
    """The pieces of a vocabulary in the order of their ids.

    Raises:
        ValueError: If the ids are not 0, 1, 2, …, each once; the message names the
            file.
    """
    check_num_pieces(len(ids), path)
    whole = all(type(index) is int for index in ids.values())
    if not whole or sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(
            f"{path.name} must number its {len(ids)} pieces 0 to {len(ids) - 1}, each "
            f"id once. Received: {str(path)!r}, with other ids"
        )
    return sorted(ids, key=ids.__getitem__)
