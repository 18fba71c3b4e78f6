"""Reading files of unknown origin: bounded in size, and refused with their name.

Nothing is parsed before its size is known: a JSON file of `MAX_JSON_ENTRIES` entries
takes at most about 100 MB of memory, whatever they are.
"""

import json
import reprlib
from collections import Counter
from pathlib import Path
from typing import Any

MIB = 2**20
# Of configurations, indices and headers: the index of a model of 91,000 tensors has
# 9 MB and 91,000 entries.
MAX_JSON_BYTES = 16 * MIB
MAX_JSON_ENTRIES = 500_000
# Of vocabularies: the largest published WordPiece has 501,153 pieces.
MAX_VOCABULARY_BYTES = 64 * MIB
MAX_VOCABULARY_ENTRIES = 3_000_000
MAX_PIECES = 1_000_000
MAX_JSON_DEPTH = 64

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100
_SHORT.maxlist = _SHORT.maxdict = 6


def shown(value: Any) -> str:
    """What `repr` gives, shortened: for the value of a file in a message."""
    return _SHORT.repr(value)


def shortened(text: object, most: int = 2000) -> str:
    """A message that may quote a file, which may have a text of any length."""
    text = str(text)
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}"


def check_file(path: Path, max_bytes: int | None = None) -> int:
    """The size of a regular file, in bytes.

    Opening a pipe would wait for a writer for ever, so nothing else is opened.

    Args:
        path: The file, or a link to it.
        max_bytes: The most it may have; None allows any size.

    Raises:
        FileNotFoundError: where there is nothing of this name.
        ValueError: for a folder, a pipe or a device, or a file that is too large.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"`folder` has no {path.name}. Received: folder={str(path.parent)!r}"
        )
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "a pipe, socket or device"
        raise ValueError(
            f"{path.name} must be a regular file. Received: {str(path)!r}, {kind}"
        )
    size = path.stat().st_size
    if max_bytes is not None and size > max_bytes:
        raise ValueError(
            f"{path.name} must have at most {max_bytes} bytes. "
            f"Received: {str(path)!r}, {size} bytes"
        )
    return size


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file of bounded size.

    Raises:
        FileNotFoundError: where there is nothing of this name.
        ValueError: for a folder, a pipe or a device, or a file that is too large.
    """
    check_file(path, max_bytes)
    return path.read_bytes()


def read_text(path: Path, max_bytes: int = MAX_VOCABULARY_BYTES) -> str:
    """Reads a file as UTF-8.

    Raises:
        FileNotFoundError: where there is nothing of this name.
        ValueError: where it is not UTF-8, naming the line; or as `read_bytes`.
    """
    return _decode(read_bytes(path, max_bytes), path)


def read_json(
    path: Path,
    max_bytes: int = MAX_JSON_BYTES,
    max_entries: int = MAX_JSON_ENTRIES,
) -> dict[str, Any]:
    """Reads a file that holds one JSON object.

    Args:
        path: The file.
        max_bytes: The most it may have.
        max_entries: The most values it may have, in all of its lists and objects.

    Raises:
        FileNotFoundError: where there is nothing of this name.
        ValueError: where it holds anything else, or is too large or too deep.
    """
    return parse_json(read_bytes(path, max_bytes), path, max_entries)


def read_vocabulary_json(path: Path) -> dict[str, Any]:
    """`read_json` of a file that may hold a large vocabulary."""
    return read_json(path, MAX_VOCABULARY_BYTES, MAX_VOCABULARY_ENTRIES)


def parse_json(
    content: bytes,
    path: Path,
    max_entries: int = MAX_JSON_ENTRIES,
    unique_keys: bool = False,
) -> dict[str, Any]:
    """The JSON object in some bytes of a file.

    Args:
        content: UTF-8.
        path: The file, for messages.
        max_entries: The most values it may have, in all of its lists and objects.
        unique_keys: Whether equal keys of an object are refused. Otherwise the later
            one counts.

    Raises:
        ValueError: where it is anything else, has too many entries, is nested too
            deeply, or has half of a surrogate pair in a text.
    """
    # Each entry follows a comma or an opening bracket. Those inside texts count too,
    # which a bound far above any published file has room for.
    entries = sum(content.count(mark) for mark in (b",", b"[", b"{"))
    if entries > max_entries:
        raise ValueError(
            f"{path.name} must have at most {max_entries} entries. "
            f"Received: {str(path)!r}, with about {entries}"
        )
    text = _decode(content, path)
    too_deep = ValueError(
        f"{path.name} must be JSON nested at most {MAX_JSON_DEPTH} deep. "
        f"Received: {str(path)!r}, which is deeper"
    )
    try:
        found = json.loads(text, object_pairs_hook=_unique if unique_keys else None)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path.name} must be JSON; is the file whole? Received: {str(path)!r}, "
            f"{error.msg} at line {error.lineno}"
        ) from error
    except RecursionError as error:
        raise too_deep from error
    except ValueError as error:  # Of `_unique`, or a number of thousands of digits.
        raise ValueError(
            f"{path.name} must be JSON that can be read without loss. "
            f"Received: {str(path)!r}, {error}"
        ) from error
    if not isinstance(found, dict):
        raise ValueError(
            f"{path.name} must hold a JSON object. Received: {str(path)!r}, which "
            f"holds a {type(found).__name__}"
        )
    if not _is_shallow(found):
        raise too_deep
    if "\\u" in text:
        _check_surrogates(found, path)
    return found


def get_flag(fields: dict, name: str, default, path: Path, *, allow_none=False):
    """A yes or no of a JSON file; absent, the default.

    Args:
        fields: What the file says.
        name: The key.
        default: What it is where the file does not say it.
        path: The file, for the message.
        allow_none: Whether null is a value too.

    Raises:
        ValueError: for anything else.
    """
    value = fields.get(name, default)
    if isinstance(value, bool) or (value is None and allow_none):
        return value
    kinds = "true, false or null" if allow_none else "true or false"
    raise ValueError(
        f"`{name}` in {path.name} must be {kinds}. Received: {str(path)!r}, "
        f"{name}={shown(value)}"
    )


def get_object(fields: dict, name: str, path: Path) -> dict[str, Any]:
    """An object inside a JSON file; empty where it is absent or null.

    Raises:
        ValueError: for anything else.
    """
    value = fields.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(
            f"`{name}` in {path.name} must be an object. Received: {str(path)!r}, "
            f"{name}={shown(value)}"
        )
    return value


def get_text(fields: dict, name: str, path: Path) -> str | None:
    """A text of a JSON file; None where it is absent or null.

    Raises:
        ValueError: for anything else.
    """
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(
            f"`{name}` in {path.name} must be a text. Received: {str(path)!r}, "
            f"{name}={shown(value)}"
        )
    return value


def _decode(content: bytes, path: Path) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path.name} must be UTF-8; line {line} is not. Received: "
            f"{str(path)!r}, {error.reason} at byte {error.start}"
        ) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"an object with the key {shown(twice)} twice")
    return made


def _is_shallow(found) -> bool:
    level = [found]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            value
            for each in level
            for value in (each.values() if isinstance(each, dict) else each)
            if isinstance(value, dict | list)
        ]
        if not level:
            return True
    return False


def _check_surrogates(found, path):
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{path.name} must be text that UTF-8 can hold; half of a surrogate pair "
            f"is none. Received: {str(path)!r}, {error.object[error.start]!r}"
        ) from error
