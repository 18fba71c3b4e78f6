"""Randomly damaged copies of JSON, deterministic for a seed."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

# As JSON text, because some are not Python values.
_VALUES = (
    "0",
    "-1",
    "1",
    "3",
    "1e308",
    "-1e308",
    "1e400",
    "NaN",
    "Infinity",
    "0.5",
    str(10**9),
    str(2**31),
    str(2**63),
    str(2**64),
    str(10**400),
    "1" + "0" * 5000,
    "true",
    "false",
    "null",
    '""',
    '"no"',
    '"../x"',
    r'"\ud800"',
    r'"\u0000"',
    json.dumps("x" * 10_000),
    "[]",
    "{}",
    "[1, 2, 3]",
    '{"0": [1]}',
    "[" * 100 + "]" * 100,
    "[" * 200_000,
    '{"a":' * 2000 + "1" + "}" * 2000,
)
_MARK = "\u2063value {}\u2063"


def json_mutations(text: str, seed: int, count: int) -> Iterator[str]:
    """Yields damaged copies of a JSON text, most of them still valid JSON.

    Each has one to three changes: a value at any depth replaced by one of another size
    or type or by another value of the text, or a key removed or repeated.

    Args:
        text: A JSON object.
        seed: A non-negative integer. Copy i depends only on the seed and i.
        count: Number of copies.
    """
    content = json.loads(text)
    for number in range(count):
        random = np.random.default_rng((seed, number))
        changed, replaced = copy.deepcopy(content), []
        for _ in range(random.integers(1, 4)):
            _change(changed, random, replaced)
        written = json.dumps(changed)
        for index, value in enumerate(replaced):
            written = written.replace(json.dumps(_MARK.format(index)), value)
        if random.integers(8) == 0 and written.startswith("{") and len(written) > 2:
            key = json.dumps(next(iter(changed)))
            written = f"{{{key}: 1, {written[1:]}"
        yield written


def _change(content, random, replaced):
    entries = [(each, key) for each in _containers(content) for key in _keys(each)]
    if not entries:
        return
    # Half of the changes at the top level: most entries are in a nested vocabulary.
    top = [(content, key) for key in _keys(content)]
    chosen = top if top and random.integers(2) else entries
    container, key = chosen[random.integers(len(chosen))]
    kind = random.integers(4)
    if kind == 0:
        del container[key]
    elif kind == 1:
        other, other_key = entries[random.integers(len(entries))]
        container[key] = copy.deepcopy(other[other_key])
    else:
        container[key] = _MARK.format(len(replaced))
        replaced.append(_VALUES[random.integers(len(_VALUES))])


def _containers(content) -> list[Any]:
    found, level = [], [content]
    while level:
        found += level
        level = [
            value
            for each in level
            for value in (each.values() if isinstance(each, dict) else each)
            if isinstance(value, dict | list)
        ]
    return found


def _keys(container):
    return list(container) if isinstance(container, dict) else range(len(container))
