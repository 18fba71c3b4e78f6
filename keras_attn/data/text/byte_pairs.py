"""Vocabularies of byte-level BPE: letters of bytes, pieces, merges, and their files."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from keras_attn.data.text import tokenizer_files as files
from keras_attn.files.reading import get_flag, get_object, read_vocabulary_json, shown
from keras_attn.files.writing import write_atomically


def _byte_letters() -> dict[int, str]:
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = {byte: chr(byte) for byte in shown}
    return letters | {byte: chr(0x100 + i) for i, byte in enumerate(hidden)}


# The printable character that represents each byte, in the order of CLIP's ids.
LETTER_OF_BYTE = _byte_letters()
# A word of CLIP: an ending, letters, a digit, or other characters.
CLIP_WORD = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_BYTE_OF_LETTER = {letter: byte for byte, letter in LETTER_OF_BYTE.items()}


def get_bytes(piece: str) -> bytes:
    """The bytes that a piece stands for.

    A piece with other characters was added to the vocabulary as plain text.
    """
    if all(letter in _BYTE_OF_LETTER for letter in piece):
        return bytes(_BYTE_OF_LETTER[letter] for letter in piece)
    return piece.encode()


def check_byte_pairs(
    ids: Mapping[str, int], merges: Iterable[tuple[str, str]], letters: Iterable[str]
) -> None:
    """Checks that a vocabulary can encode every text, and has what its merges join.

    Args:
        ids: The id of each piece.
        merges: The pairs of pieces to merge.
        letters: The pieces of single bytes.

    Raises:
        ValueError: If a piece is missing.
    """
    missing = [letter for letter in letters if letter not in ids]
    if missing:
        raise ValueError(
            "`pieces` must have one for each of the 256 bytes, so that every text "
            "can be encoded; is it the vocabulary of a character-level BPE, such "
            f"as XLM or GPT-1? Received: {len(ids)} pieces without {len(missing)} "
            f"of them, such as {missing[0]!r}"
        )
    for number, pair in enumerate(merges):
        for piece in (*pair, "".join(pair)):
            if piece not in ids:
                raise ValueError(
                    "`merges` must join pieces of the vocabulary; are both files "
                    f"from the same model? Received: merge {number + 1}, "
                    f"{shown(pair)}, but no piece {shown(piece)}"
                )


def write_byte_pairs(
    folder: str | os.PathLike, pieces: Sequence[str], merges: Iterable[tuple[str, str]]
) -> None:
    """Writes `vocab.json` and `merges.txt`."""
    ids = {piece: index for index, piece in enumerate(pieces)}
    files.write_json(Path(folder) / "vocab.json", ids, indent=None)
    lines = "".join(f"{first} {second}\n" for first, second in merges)
    write_atomically(Path(folder) / "merges.txt", f"#version: 0.2\n{lines}".encode())


def read_byte_pairs(
    folder: str | os.PathLike,
) -> tuple[Path, list[str], list[tuple[str, str]], bool]:
    """The file, pieces, merges and `add_prefix_space` of a folder.

    Args:
        folder: A folder with `vocab.json` and `merges.txt`, or a `tokenizer.json`.

    Raises:
        ValueError: If it has neither, or they hold no pairs of bytes.
    """
    names = ("vocab.json", "merges.txt", "tokenizer.json")
    listed, merged, packed = (files.find_file(folder, name) for name in names)
    if listed is not None and merged is not None:
        pieces = files.pieces_in_order(read_vocabulary_json(listed), listed)
        return listed, pieces, read_merges(merged), False
    if packed is None:
        raise files.missing_files(
            folder, "vocab.json with merges.txt", "tokenizer.json"
        )
    return packed, *read_packed(packed)


def read_merges(path: Path) -> list[tuple[str, str]]:
    """The merges of a `merges.txt`."""
    merges = []
    for number, line in enumerate(files.read_lines(path), 1):
        if not line or line.startswith("#version"):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise ValueError(
                f"{path.name} must have two pieces and one blank per line. Received: "
                f"{str(path)!r}, line {number}: {shown(line)}"
            )
        merges.append((pair[0], pair[1]))
    return merges


def read_packed(path: Path) -> tuple[list[str], list[tuple[str, str]], bool]:
    """The pieces, the merges and `add_prefix_space` of a `tokenizer.json`.

    Args:
        path: The file.

    Raises:
        ValueError: If it holds no pairs of bytes.
    """
    content = read_vocabulary_json(path)
    model = get_object(content, "model", path)
    splitter = get_object(content, "pre_tokenizer", path)
    if model.get("type", "BPE") != "BPE":
        raise ValueError(
            "tokenizer.json must hold a BPE model. Received: "
            f"{str(path)!r}, a model of type {shown(model.get('type'))}"
        )
    try:
        added = {each["content"]: each["id"] for each in content["added_tokens"]}
        ids = {**model["vocab"], **added}
        # Older files write a pair as one string with a blank.
        pairs = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
        merges = [(first, second) for first, second in pairs]
        texts = (*added, *(piece for pair in merges for piece in pair))
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a piece that is not a string")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            "tokenizer.json must hold a vocabulary, merges and added tokens. Received: "
            f"{str(path)!r}; {type(error).__name__}: {error}"
        ) from error
    prefix = get_flag(splitter, "add_prefix_space", None, path, allow_none=True)
    return files.pieces_in_order(ids, path), merges, bool(prefix)
