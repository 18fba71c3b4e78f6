"""Read untrusted files: of limited size, with errors that name the file.

Sizes are checked before anything is parsed: a JSON file of `MAX_JSON_ENTRIES` entries
takes at most about 100 MB of memory, for any entries.
"""

import codecs
import gzip
import json
import reprlib
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MIB = 2**20
# Limits of configurations, indices and headers. The index of a model with 91,000
# tensors takes 9 MB and has 91,000 entries.
MAX_JSON_BYTES = 16 * MIB
MAX_JSON_ENTRIES = 500_000
# Limits of vocabularies. The largest published WordPiece has 501,153 pieces.
MAX_VOCABULARY_BYTES = 64 * MIB
MAX_VOCABULARY_ENTRIES = 3_000_000
MAX_PIECES = 1_000_000
MAX_JSON_DEPTH = 64

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100
_SHORT.maxlist = _SHORT.maxdict = 6


def shown(value: Any) -> str:
    """A shortened `repr`, for a file's value in a message."""
    return _SHORT.repr(value)


def shortened(text: object, limit: int = 2000) -> str:
    """Cuts the middle out of a long message, which may quote a file of any size."""
    text = str(text)
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]} … {text[-limit // 2 :]}"


@contextmanager
def naming(place: object) -> Iterator[None]:
    """Puts a place before the message of a `ValueError` that the block raises.

    Args:
        place: The file, or what in it is bad.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def is_file(path: Path) -> bool:
    """Whether a file exists, of a name from a file that may be no name at all.

    Args:
        path: The file.
    """
    try:
        return path.is_file()
    except (OSError, ValueError):  # A name that is too long, or has a zero byte.
        return False


def get_file_size(path: Path) -> int:
    """Size of a file, or of all files in a folder, in bytes."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def check_file(path: Path, max_bytes: int | None = None) -> int:
    """Checks that a path is a regular file, and returns its size in bytes.

    Opening a pipe, for example, would wait forever for a writer.

    Args:
        path: The file, or a link to it.
        max_bytes: Its maximum size; None = no limit.

    Raises:
        FileNotFoundError: If `path` does not exist.
        ValueError: If `path` is a folder, a pipe or a device, or the file is too large.
    """
    if not path.exists():
        place = f"{path.parent} has no" if path.parent.name else "There is no file"
        raise FileNotFoundError(f"{place} {path.name}. Received: {str(path)!r}")
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
    """Reads a regular file of limited size.

    Raises:
        FileNotFoundError: If `path` does not exist.
        ValueError: If `path` is a folder, a pipe or a device, or the file is too large.
    """
    check_file(path, max_bytes)
    return path.read_bytes()


def read_text(path: Path, max_bytes: int = MAX_VOCABULARY_BYTES) -> str:
    """Reads a file as UTF-8.

    Raises:
        FileNotFoundError: If `path` does not exist.
        ValueError: If the file is not UTF-8 (the message names the line), or as in
            `read_bytes`.
    """
    return utf8(read_bytes(path, max_bytes), path)


def read_gzip(path: Path, max_bytes: int) -> bytes:
    """Decompresses a regular file.

    Args:
        path: The file.
        max_bytes: The maximum size of what is in it.

    Raises:
        FileNotFoundError: If `path` does not exist.
        ValueError: If it is not a complete gzip file, or as in `read_bytes`.
    """
    check_file(path, max_bytes)
    try:
        with gzip.open(path) as file:
            content = file.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path.name} must be a complete gzip file, as its name says. "
            f"Received: {str(path)!r}, {error}"
        ) from error
    if len(content) > max_bytes:
        raise ValueError(
            f"{path.name} must have at most {max_bytes} bytes when it is "
            f"decompressed. Received: {str(path)!r} with more"
        )
    return content


def read_json(
    path: Path,
    max_bytes: int = MAX_JSON_BYTES,
    max_entries: int = MAX_JSON_ENTRIES,
) -> dict[str, Any]:
    """Reads a file that holds one JSON object.

    Args:
        path: The file.
        max_bytes: Its maximum size.
        max_entries: Maximum number of values, in all of its lists and objects.

    Raises:
        FileNotFoundError: If `path` does not exist.
        ValueError: If the file is not a JSON object, or is too large or too deeply
            nested.
    """
    return parse_json(read_bytes(path, max_bytes), path, max_entries)


def read_json_list(
    path: Path,
    max_bytes: int = MAX_JSON_BYTES,
    max_entries: int = MAX_JSON_ENTRIES,
) -> list[Any]:
    """`read_json` for a file that holds one JSON list."""
    return _parse(read_bytes(path, max_bytes), path, max_entries, list)


def read_vocabulary_json(path: Path) -> dict[str, Any]:
    """`read_json` with the limits of vocabularies."""
    return read_json(path, MAX_VOCABULARY_BYTES, MAX_VOCABULARY_ENTRIES)


def parse_json(
    content: bytes,
    path: Path,
    max_entries: int = MAX_JSON_ENTRIES,
    unique_keys: bool = False,
) -> dict[str, Any]:
    """Parses a JSON object that was read from a file.

    Args:
        content: UTF-8.
        path: The file, for messages.
        max_entries: Maximum number of values, in all of its lists and objects.
        unique_keys: Whether to refuse repeated keys of an object. Otherwise the last
            one is used.

    Raises:
        ValueError: If `content` is not a JSON object, has too many entries, is too
            deeply nested, or has an unpaired surrogate in a string.
    """
    return _parse(content, path, max_entries, dict, unique_keys)


def _parse(content, path, max_entries, kind, unique_keys=False) -> Any:
    """A JSON object or list, as `kind` says, checked as in `parse_json`."""
    # An upper bound: each entry follows a comma or an opening bracket, but so may a
    # part of a string.
    entries = sum(content.count(mark) for mark in (b",", b"[", b"{"))
    if entries > max_entries:
        raise ValueError(
            f"{path.name} must have at most {max_entries} entries. "
            f"Received: {str(path)!r}, with about {entries}"
        )
    text = utf8(content, path)
    too_deep = ValueError(
        f"{path.name} must be JSON nested at most {MAX_JSON_DEPTH} deep. "
        f"Received: {str(path)!r}, which is deeper"
    )
    try:
        found = json.loads(text, object_pairs_hook=_unique if unique_keys else None)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path.name} must be JSON; is the file complete? Received: {str(path)!r}, "
            f"{error.msg} at line {error.lineno}"
        ) from error
    except RecursionError as error:
        raise too_deep from error
    except ValueError as error:  # From `_unique`, or an integer of too many digits.
        raise ValueError(
            f"{path.name} must be JSON that can be read without loss. "
            f"Received: {str(path)!r}, {error}"
        ) from error
    if not isinstance(found, kind):
        expected = "object" if kind is dict else "list"
        raise ValueError(
            f"{path.name} must hold a JSON {expected}. Received: {str(path)!r}, which "
            f"holds a {type(found).__name__}"
        )
    if not _is_shallow(found):
        raise too_deep
    if "\\u" in text:
        _check_surrogates(found, path)
    return found


def parse_json_list(
    content: bytes, path: Path, max_entries: int, unique_keys: bool = False
) -> list[Any]:
    """`parse_json` for a JSON list."""
    return _parse(content, path, max_entries, list, unique_keys)


def get_flag(fields: dict, name: str, default, path: Path, *, allow_none=False):
    """A boolean of a JSON object.

    Args:
        fields: The object.
        name: The key.
        default: The value if the key is absent.
        path: The file, for the message.
        allow_none: Whether null is allowed.

    Raises:
        ValueError: If the value has any other type.
    """
    value = fields.get(name, default)
    if isinstance(value, bool) or (value is None and allow_none):
        return value
    kinds = "true, false or null" if allow_none else "true or false"
    raise _wrong_type(name, value, kinds, path)


def get_object(fields: dict, name: str, path: Path) -> dict[str, Any]:
    """An object inside a JSON object; empty if the key is absent or null.

    Raises:
        ValueError: If the value has any other type.
    """
    value = fields.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong_type(name, value, "an object", path)
    return value


def get_text(fields: dict, name: str, path: Path) -> str | None:
    """A string of a JSON object; None if the key is absent or null.

    Raises:
        ValueError: If the value has any other type.
    """
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise _wrong_type(name, value, "a string", path)
    return value


def check_values(
    fields: Mapping[str, Any],
    keys: Mapping[str, tuple[Any, ...] | None],
    path: Path,
    *,
    closed: bool = False,
) -> None:
    """Raises for a value that is not supported.

    Args:
        fields: The content of a file.
        keys: Its keys, with the values that change nothing; None where any is applied.
        path: The file, for the message.
        closed: Whether other keys are refused, unless they are empty: they may change
            numbers.

    Raises:
        ValueError: The message names the key.
    """
    if closed:
        empty = (None, False, "", [], {})
        keys = {**dict.fromkeys(fields, empty), **keys}
    for name, allowed in keys.items():
        if allowed is None or name not in fields:
            continue
        value = fields[name]
        if not any(type(value) is type(each) and value == each for each in allowed):
            listed = " or ".join(map(repr, allowed))
            raise ValueError(
                f"`{name}` in {path.name} must be {listed}; other values are not "
                f"supported. Received: {str(path)!r}, {name}={shown(value)}"
            )


def _wrong_type(name: str, value: Any, expected: str, path: Path) -> ValueError:
    return ValueError(
        f"`{name}` in {path.name} must be {expected}. Received: {str(path)!r}, "
        f"{name}={shown(value)}"
    )


def utf8(content: bytes, path: Path) -> str:
    """The text of a file that was read.

    Args:
        content: UTF-8.
        path: The file, for the message.

    Raises:
        ValueError: If it is not UTF-8. The message names the line.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        # What Windows calls Unicode has a mark of its byte order.
        is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        what = "it is UTF-16: save it as UTF-8" if is_utf16 else f"line {line} is not"
        raise ValueError(
            f"{path.name} must be UTF-8; {what}. Received: "
            f"{str(path)!r}, {error.reason} at byte {error.start}"
        ) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"an object with the key {shown(key)} twice")
    return unique


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
            f"{path.name} must not contain unpaired surrogates, which UTF-8 cannot "
            f"encode. Received: {str(path)!r}, {error.object[error.start]!r}"
        ) from error
