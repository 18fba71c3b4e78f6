"""Tokens that a folder adds to a vocabulary, wherever its files list them.

`added_tokens` of `tokenizer.json`, `added_tokens.json`, and in `tokenizer_config.json`
(older folders: `special_tokens_map.json`) `added_tokens_decoder`,
`additional_special_tokens`, `extra_special_tokens`, tokens with names of their own,
such as `image_token`, and the tokens of the roles. Flags that one file states and
another omits are kept.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_attn.data.text import tokenizer_files as files
from keras_attn.data.text.setting_keys import is_special_token
from keras_attn.files.reading import MAX_PIECES, get_flag, read_vocabulary_json, shown

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_LISTS = (
    "additional_special_tokens",
    "extra_special_tokens",
    "model_specific_special_tokens",
)


@dataclasses.dataclass(frozen=True)
class AddedToken:
    """A token that is found in texts before they are split.

    Attributes:
        content: The token.
        index: Its id; None for the next free one, or the one that the vocabulary has.
        single_word: Whether it is found only where no letter or digit adjoins it.
        lstrip: Whether blanks before it belong to it.
        rstrip: Whether blanks after it belong to it.
        normalized: Whether it is searched in normalized text.
        special: Whether decoding leaves it out.
    """

    content: str
    index: int | None = None
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = True

    @property
    def flags(self) -> dict[str, bool]:
        """The flags by their names in files."""
        return {name: getattr(self, name) for name in FLAGS}


def read_added_tokens(
    folder: str | os.PathLike,
    packed: Mapping[str, Any] | None,
    known: Iterable[AddedToken] = (),
) -> list[AddedToken]:
    """The added tokens of a folder: first those that have an id, in its order.

    Args:
        folder: A folder in the Hugging Face layout.
        packed: The content of its `tokenizer.json`; None without one.
        known: The special tokens of the vocabulary, whose flags hold for those that the
            files name without flags.

    Raises:
        ValueError: If a token or a flag is of another type; the file is named.
    """
    found = {token.content: token for token in known}
    for path, value, index, defaults in _listed(folder, packed):
        token = _read(path, value, index, defaults, found)
        found[token.content] = token
    numbered = [token for token in found.values() if token.index is not None]
    numbered.sort(key=lambda token: token.index or 0)
    return numbered + [token for token in found.values() if token.index is None]


def _listed(folder, packed) -> Iterator[tuple[Path, Any, int | None, dict[str, bool]]]:
    """File, token, id and the flags that it implies; a later entry takes precedence.

    The order is as in transformers.
    """
    text = {"special": False, "normalized": True}
    special = {"special": True, "normalized": False}
    numbered = []
    path = files.find_file(folder, "added_tokens.json")
    if path is not None:
        for content, index in read_vocabulary_json(path).items():
            yield path, content, index, text
    for name in ("special_tokens_map.json", files.SETTINGS):
        path = files.find_file(folder, name)
        if path is None:
            continue
        settings = read_vocabulary_json(path)
        for key in _LISTS:
            values = settings.get(key) or []
            if isinstance(values, dict):  # By names of their own.
                values = list(values.values())
            for value in _checked(path, key, values, list, "a list"):
                yield path, value, None, special
        for key, value in settings.items():
            if is_special_token(key, value):
                yield path, value, None, special
        for key in files.SETTING_OF_ROLE.values():
            if settings.get(key) is not None:
                yield path, settings[key], None, special
        key = "added_tokens_decoder"
        values = _checked(path, key, settings.get(key) or {}, dict, "an object")
        for index, value in values.items():
            if not index.isdecimal() or len(index) > 9:
                raise _wrong(path, key, index, "numbered by ids")
            numbered.append((path, value, int(index), special))
    if packed is not None:
        path, key = Path(folder) / "tokenizer.json", "added_tokens"
        for value in _checked(path, key, packed.get(key) or [], list, "a list"):
            _checked(path, key, value, dict, "a list of objects")
            yield path, value, value.get("id"), text
    yield from numbered


def _read(path, value, index, implied, found) -> AddedToken:
    fields = value if isinstance(value, dict) else {"content": value, **implied}
    content = fields.get("content")
    if not isinstance(content, str) or not content:
        raise _wrong(path, "an added token", value, "text")
    if index is not None and (type(index) is not int or not 0 <= index < MAX_PIECES):
        raise _wrong(path, f"the id of {shown(content)}", index, "an id")
    known = found.get(content)
    if known is not None:
        implied = known.flags
        index = known.index if index is None else index
    flags = {
        name: bool(get_flag(fields, name, implied.get(name, False), path))
        for name in FLAGS
    }
    return AddedToken(content, index, **flags)


def _checked(path, name, value, kind, expected) -> Any:
    if not isinstance(value, kind):
        raise _wrong(path, name, value, expected)
    return value


def _wrong(path: Path, name: str, value: Any, expected: str) -> ValueError:
    return ValueError(
        f"`{name}` in {path.name} must be {expected}. Received: {str(path)!r}, "
        f"{shown(value)}"
    )
