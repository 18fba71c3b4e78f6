"""The special tokens of a family of models, and the templates of its rows."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from keras_attn.files.reading import shortened


@dataclasses.dataclass(frozen=True)
class Convention:
    """The input format of a family of models.

    Attributes:
        tokens: The special token of each role: "pad", "unknown", "start", "end",
            "classify", "separate" and "mask"; all but "pad" may be absent.
        single: Template of a row of one text: roles, and "A" for the text, each with
            its segment id.
        pair: Template of a row of two texts, "A" and "B".
        pad_left: Whether rows are padded at the left.
        pad_segment: Segment id of the padding.
        other_tokens: Special tokens without a role.
        left_strip: Roles whose token takes the blanks before it, where it is parsed.
    """

    tokens: Mapping[str, str]
    single: tuple[tuple[str, int], ...]
    pair: tuple[tuple[str, int], ...]
    pad_left: bool = False
    pad_segment: int = 0
    other_tokens: tuple[str, ...] = ()
    left_strip: tuple[str, ...] = ()

    @property
    def left_stripped(self) -> frozenset[str]:
        """The tokens that take the blanks before them."""
        return frozenset(
            self.tokens[role] for role in self.left_strip if role in self.tokens
        )

    def check(self, ids: Collection[str]) -> None:
        """Raises if a special token is not among the pieces.

        Raises:
            ValueError: The message names the missing tokens.
        """
        missing = sorted({t for t in self.tokens.values() if t not in ids})
        if missing:
            raise ValueError(
                "The vocabulary must have the special tokens "
                f"{shortened(', '.join(missing))}; is it the vocabulary of a different "
                f"kind of tokenizer? Received: {len(ids)} pieces without them"
            )

    def within(self, pieces: Iterable[str]) -> "Convention":
        """The convention without the roles that the rows and models do not need.

        Args:
            pieces: The vocabulary; a role whose token it lacks is left out.

        Raises:
            ValueError: If a role that is needed is left out.
        """
        known = set(pieces)
        needed = {"unknown", *(role for role, _ in (*self.single, *self.pair))}
        kept = {
            role: token
            for role, token in self.tokens.items()
            if role in needed or token in known
        }
        convention = dataclasses.replace(self, tokens=kept)
        convention.check(known)
        return convention


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """One string for each id, and which of them are special."""

    pieces: tuple[str, ...]
    convention: Convention
    ids: Mapping[str, int] = dataclasses.field(repr=False)

    @classmethod
    def of(cls, pieces: Sequence[str], convention: Convention) -> "Vocabulary":
        """Numbers the pieces; of equal ones the last counts, as in the reference.

        Raises:
            ValueError: If a special token is not among the pieces.
        """
        ids = {piece: index for index, piece in enumerate(pieces)}
        convention.check(ids)
        return cls(tuple(pieces), convention, ids)

    def role(self, name: str) -> int | None:
        """The id of a role's token; None where the convention lacks the role."""
        token = self.convention.tokens.get(name)
        return None if token is None else self.ids[token]

    @property
    def special(self) -> dict[str, int]:
        """The special tokens and their ids."""
        tokens = (*self.convention.tokens.values(), *self.convention.other_tokens)
        return {token: self.ids[token] for token in tokens if token in self.ids}
