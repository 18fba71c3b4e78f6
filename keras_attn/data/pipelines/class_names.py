"""Checks that the names of classes are not one class written in two ways."""

import unicodedata
from collections.abc import Callable, Hashable, Sequence


def same_but_for_case(name: str) -> Hashable:
    """A form in which names that differ only in case, blanks or accents are equal.

    Args:
        name: Name of a class.
    """
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def check_class_names(
    names: Sequence[str], what: str, key: Callable[[str], Hashable] = same_but_for_case
) -> None:
    """Refuses names of classes that look like one class written in two ways.

    Single letters may differ in case, as the classes of written characters do.

    Args:
        names: The different names.
        what: What has them, for the message.
        key: What two names of one class have in common.

    Raises:
        ValueError: If two names are the same but for case or blanks.
    """
    groups: dict[Hashable, list[str]] = {}
    for name in names:
        groups.setdefault(key(name), []).append(name)
    double = [each for each in groups.values() if len(each) > 1]
    double = [each for each in double if any(len(name) > 1 for name in each)]
    if double:
        raise ValueError(
            f"{what} must not name one class in two ways, which differ only in upper "
            "case, blanks or the form of a number: write it in one way. Received: "
            + "; ".join(" and ".join(map(repr, each)) for each in double[:5])
        )
