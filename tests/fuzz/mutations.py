"""Randomly damaged copies of a file, deterministic for a seed."""

import os
from collections.abc import Iterator

import numpy as np

# Extreme sizes, offsets and counts, as little-endian bytes.
_NUMBERS = [
    number.to_bytes(width, "little")
    for width in (1, 2, 4, 8)
    for number in (0, 1, 2 ** (8 * width - 1) - 1, 2 ** (8 * width - 1))
] + [b"\xff" * width for width in (1, 2, 4, 8)]
_MOST_BYTES_ADDED = 4096


def rounds(default: int) -> int:
    """Number of cases: `default` times `KERAS_ATTN_FUZZ_ROUNDS`.

    Args:
        default: Number of cases in the ordinary suite.
    """
    return default * int(os.environ.get("KERAS_ATTN_FUZZ_ROUNDS", "1"))


def mutations(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    """Yields damaged copies of a file's content.

    Each has one to three changes: bits flipped, bytes overwritten by an extreme number,
    the end cut off, bytes removed, copied from elsewhere in the file, or inserted. A
    copy may be empty, and may grow by some kilobytes.

    Args:
        data: The file's content.
        seed: A non-negative integer. Copy i depends only on the seed and i, so a case
            that failed can be repeated by its number.
        count: Number of copies.

    Yields:
        `count` copies, all different from `data`.
    """
    for number in range(count):
        random = np.random.default_rng((seed, number))
        changed = data
        while changed == data:
            for _ in range(random.integers(1, 4)):
                change = _CHANGES[random.integers(len(_CHANGES))]
                changed = change(changed, random)
        yield changed


def _flip_bits(data: bytes, random: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(random.integers(1, 9) if changed else 0):
        changed[random.integers(len(changed))] ^= 1 << random.integers(8)
    return bytes(changed)


def _overwrite_number(data: bytes, random: np.random.Generator) -> bytes:
    number = _NUMBERS[random.integers(len(_NUMBERS))]
    start = random.integers(len(data) + 1)
    return (data[:start] + number + data[start + len(number) :])[: len(data)]


def _truncate(data: bytes, random: np.random.Generator) -> bytes:
    return data[: random.integers(len(data) + 1)]


def _remove(data: bytes, random: np.random.Generator) -> bytes:
    start, end = np.sort(random.integers(len(data) + 1, size=2))
    return data[:start] + data[end:]


def _splice(data: bytes, random: np.random.Generator) -> bytes:
    """Overwrites some bytes with others of the same file."""
    source, target = random.integers(len(data) + 1, size=2)
    block = data[source : source + random.integers(1, 65)]
    return data[:target] + block + data[target + len(block) :]


def _grow(data: bytes, random: np.random.Generator) -> bytes:
    """Inserts random bytes, anywhere or at the end."""
    start = random.integers(len(data) + 1) if random.integers(2) else len(data)
    added = random.bytes(int(2 ** random.uniform(0, np.log2(_MOST_BYTES_ADDED))))
    return data[:start] + added + data[start:]


_CHANGES = (_flip_bits, _overwrite_number, _truncate, _remove, _splice, _grow)
