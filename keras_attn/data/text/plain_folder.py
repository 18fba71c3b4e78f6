"""Whether one of our own tokenizers computes all that a folder asks for."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_attn.data.text import tokenizer_files as files
from keras_attn.data.text.added_tokens import AddedToken, read_added_tokens
from keras_attn.data.text.folder_settings import check_says_no_more, with_settings
from keras_attn.files.reading import naming, read_vocabulary_json


def load_plain(
    cls: Any,
    folder: str | os.PathLike,
    settings: Mapping[str, Any],
    kind: str | None = None,
    **options,
) -> Any:
    """A tokenizer of one of our own classes.

    Args:
        cls: The class.
        folder: A folder in the Hugging Face layout.
        settings: Of the folder.
        kind: Of the tokenizer, as `load_text_tokenizer` names it; None for that of the
            convention.
        **options: How to read the folder.

    Raises:
        FurtherSettingsError: If the folder says more than, or something else than, the
            plain files say. The message names the first difference.
    """
    path, plain, arguments = cls._read(folder, settings, **options)
    kind = kind or arguments["convention"].replace("_", "")
    packed_path, packed = read_packed_file(folder)
    if kind == "siglip":
        packed = None  # The reference reads only the model.
    added = find_added_tokens(folder, packed, plain, settings, kind)
    content = with_settings(packed or plain, settings, kind, packed is not None)
    check_says_no_more(packed_path or path, content, plain, added)
    files.warn_of_unknown(folder)
    # The tokens that take the blanks before them.
    left = {token.content: token.lstrip for token in added}
    with naming(path):
        return cls(**arguments)._with_settings({**settings, "left_strip": left})


def read_packed_file(
    folder: str | os.PathLike,
) -> tuple[Path | None, dict[str, Any] | None]:
    """The path and the content of a folder's `tokenizer.json`; None without it."""
    path = files.find_file(folder, "tokenizer.json")
    return path, None if path is None else read_vocabulary_json(path)


def find_added_tokens(
    folder: str | os.PathLike,
    packed: Mapping[str, Any] | None,
    plain: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    kind: str | None,
) -> list[AddedToken]:
    """The added tokens of a folder.

    Args:
        folder: A folder in the Hugging Face layout.
        packed: The content of its `tokenizer.json`; None without one.
        plain: What its other files say, as a `tokenizer.json`; None without them.
        settings: Of the folder.
        kind: Of the tokenizer, as `load_text_tokenizer` names it; None for another.
    """
    known = [
        AddedToken(each["content"], each["id"], **_flags(each))
        for each in (plain or {}).get("added_tokens", ())
    ]
    added = read_added_tokens(folder, packed, known)
    if kind == "siglip":
        # Its reference finds them in the text as it is.
        added = [dataclasses.replace(token, normalized=False) for token in added]
    if kind == "t5" and packed is None:
        # T5's class adds them to any vocabulary, the last one first.
        count = settings.get("extra_ids")
        is_its_class = (settings.get("tokenizer_class") or "").startswith("T5Tokenizer")
        count = 100 * is_its_class if count is None else count
        names = {token.content for token in added}
        extra = (f"<extra_id_{number}>" for number in reversed(range(count)))
        fresh = [AddedToken(name) for name in extra if name not in names]
        added = [token for token in added if token.index is not None] + [
            *fresh,
            *(token for token in added if token.index is None),
        ]
    return added


def _flags(fields: Mapping[str, Any]) -> dict[str, bool]:
    return {name: value for name, value in fields.items() if type(value) is bool}
