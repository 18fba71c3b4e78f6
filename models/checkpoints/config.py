"""What a `config.json` says, bounded by what the weight files hold."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any


class Config(dict[str, Any]):
    """The fields of a `config.json`, and the bounds of its numbers.

    A field is a text of unknown origin: nothing is built before it is known that the
    files have weights of such a size.

    Args:
        fields: What the file says.
        shapes: Key to shape, of every tensor of the checkpoint.

    Attributes:
        max_size: Above any width, vocabulary or number of heads: four times the largest
            axis of a tensor, because what a number a little off contradicts is better
            told by the weights.
        max_blocks: The most keys that differ in their numbers alone, as those of equal
            blocks do.
    """

    def __init__(
        self, fields: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
    ):
        super().__init__(fields)
        # A tensor without a value may claim any other axis.
        axes = [max(shape) for shape in shapes.values() if shape and 0 not in shape]
        self.max_size = 4 * max(axes, default=0)
        kinds = Counter(re.sub(r"(^|\.)\d+(?=\.)", r"\1#", key) for key in shapes)
        self.max_blocks = max(kinds.values(), default=0)

    def inner(self, fields: Mapping[str, Any]) -> "Config":
        """An object inside of this one, with the same bounds."""
        found = Config(fields, {})
        found.max_size, found.max_blocks = self.max_size, self.max_blocks
        return found
