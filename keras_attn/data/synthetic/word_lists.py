"""Lists of words to render, and splits of a list into training and held-out parts."""

import hashlib
import string
from collections.abc import Sequence

import numpy as np

from keras_attn.checks.arguments import check_pair, check_positive


def random_words(
    count: int,
    alphabet: str = string.ascii_lowercase,
    lengths: tuple[int, int] = (3, 8),
    seed: int = 0,
) -> list[str]:
    """Different words of random characters.

    Args:
        count: Number of words.
        alphabet: The characters to draw from.
        lengths: Minimum and maximum number of characters; all lengths are equally
            likely.
        seed: The same seed gives the same words.

    Raises:
        ValueError: If an argument is out of range, or `count` exceeds half the number
            of possible words.
    """
    check_positive("count", count)
    low, high = check_pair("lengths", lengths)
    characters = sorted(set(alphabet))
    if low > high or not characters:
        raise ValueError(
            "`lengths` must have the smaller one first, and `alphabet` must not be "
            f"empty. Received: lengths={lengths}, alphabet={alphabet!r}"
        )
    # With at most half of all words, redrawing until a word is new does not take long.
    room = sum(len(characters) ** length for length in range(low, high + 1))
    if count > room / 2:
        raise ValueError(
            f"`count` must be at most half of the {room} words of these lengths. "
            f"Received: count={count}"
        )
    random = np.random.default_rng(seed)
    words: dict[str, None] = {}
    while len(words) < count:
        length = random.integers(low, high + 1)
        drawn = random.integers(len(characters), size=length)
        words.setdefault("".join(characters[index] for index in drawn))
    return list(words)


def hold_out(
    values: Sequence[str], share: float, seed: int = 0
) -> tuple[list[str], list[str]]:
    """Splits words or fonts into a training part and a test part.

    Args:
        values: Different words, or names of fonts.
        share: Share to hold out, in (0, 1).
        seed: The same seed gives the same split, for any order of the values.

    Returns:
        The values to train on and the values held out, at least one of each, in the
        order given.

    Raises:
        ValueError: If `share` is out of range, there are fewer than two values, or one
            repeats.
    """
    if not 0 < share < 1:
        raise ValueError(f"`share` must be above 0 and below 1. Received: {share}")
    if len(set(values)) != len(values) or len(values) < 2:
        raise ValueError(
            f"`values` must be at least two different values. Received: {len(values)} "
            f"values, of which {len(set(values))} differ"
        )
    count = min(max(round(share * len(values)), 1), len(values) - 1)
    ranked = sorted(
        values, key=lambda x: hashlib.sha256(f"{seed} {x}".encode()).digest()
    )
    unseen = set(ranked[:count])
    return [x for x in values if x not in unseen], [x for x in values if x in unseen]
