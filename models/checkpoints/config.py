"""Reads, checks and bounds the fields of a `config.json`, and writes ours.

A `config.json` may come from anywhere, so nothing is built from a number before the
weight files are known to have tensors of such a size.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from keras_attn.files.reading import shown
from keras_attn.ops import gelu_tanh, quick_gelu

# Bounds for numbers that no axis of a weight bounds.
MAX_SIZE = 2**31 - 1
MAX_IMAGE_SIZE = 8192
MAX_CLASSES = 100_000

# transformers' names; if a function has several names, the first is written.
ACTIVATIONS = {
    "gelu": keras.activations.gelu,
    "gelu_python": keras.activations.gelu,
    "gelu_new": gelu_tanh,
    "gelu_accurate": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_python_tanh": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "relu": keras.activations.relu,
    "silu": keras.activations.silu,
    "swish": keras.activations.silu,
    "tanh": keras.activations.tanh,
}


class Config(dict[str, Any]):
    """The fields of a `config.json`, with getters that check and bound their values.

    A getter takes the name of a field and the default that the format (transformers' or
    timm's) has for it, and raises a `ValueError` that names the field unless the value
    is of the right kind.

    Args:
        fields: The content of the file.
        shapes: Key to shape, of every tensor of the checkpoint.
        file: Name of the file, for messages.

    Attributes:
        file: As given.
        max_size: Upper bound of any width, vocabulary or number of heads: four times
            the largest axis of a tensor. The factor lets a slightly wrong number
            through to the comparison with the weights, whose message is more
            informative.
        max_blocks: Upper bound of a number of blocks: the largest number of keys that
            differ only in their numbers.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
        file: str = "config.json",
    ):
        super().__init__(fields)
        self.file = file
        # An empty tensor takes no bytes, so its other axes may be of any size.
        axes = [max(shape) for shape in shapes.values() if shape and 0 not in shape]
        self.max_size = 4 * max(axes, default=0)
        # torchvision numbers its stages `layer1`, `layer2`, …, dall-e `group_1`, ….
        number = re.compile(r"(^|\.)(layer|group_|block_|conv_)?\d+(?=\.)")
        kinds = Counter(number.sub(r"\1\2#", key) for key in shapes)
        self.max_blocks = max(kinds.values(), default=0)

    def nested(self, fields: Mapping[str, Any]) -> "Config":
        """An object inside this one, with the same bounds."""
        config = Config(fields, {}, self.file)
        config.max_size, config.max_blocks = self.max_size, self.max_blocks
        return config

    def nested_known(
        self, name: str, fields: Any, known: Iterable[str], *more: str
    ) -> "Config":
        """The object `name` inside this one, unless it has an unknown field.

        Args:
            name: Its name, for the message.
            fields: Its fields.
            known: The fields that it may have.
            *more: What the message lists besides.
        """
        if not isinstance(fields, dict) or not set(fields) <= set(known):
            is_object = isinstance(fields, dict)
            unknown = sorted(set(fields) - set(known)) if is_object else fields
            raise ValueError(
                f"`{name}` in config.json may only have {', '.join([*known, *more])}. "
                f"Received: {name}={shown(unknown)}"
            )
        return self.nested(fields)

    def error(self, name: str, expected: str, value: Any) -> ValueError:
        """An error about a field, which says what it must be and what it is."""
        return ValueError(
            f"`{name}` in {self.file} must be {expected}. "
            f"Received: {name}={shown(value)}"
        )

    def get_size(self, name: str, default: int, most: int | None = None) -> int:
        """A positive integer, at most `most`, by default `max_size`."""
        return self._check_size(name, self.get(name, default), most)

    def get_sizes(self, name: str, default: list[int]) -> tuple[int, ...]:
        """A list of positive integers, one per stage."""
        values = self.get(name, default)
        if not isinstance(values, list) or not values:
            raise self.error(name, "a list with one number per stage", values)
        self._check_num_blocks(name, len(values))
        return tuple(self._check_size(name, value) for value in values)

    def get_pair(
        self, name: str, default: int, most: int | None = None
    ) -> tuple[int, int]:
        """A positive integer for rows and columns alike, or a list of one for each."""
        value = self.get(name, default)
        pair = value if isinstance(value, list) else [value, value]
        if len(pair) != 2:
            expected = "one number, or one for the rows and one for the columns"
            raise self.error(name, expected, value)
        rows, columns = (self._check_size(name, each, most) for each in pair)
        return rows, columns

    def get_image_size(self, name: str, default: int) -> tuple[int, int]:
        """Rows and columns of pixels, which need not be an axis of any weight."""
        return self.get_pair(name, default, MAX_IMAGE_SIZE)

    def get_num_blocks(self, name: str, default: int) -> int:
        """A number of blocks, at most as many as the files have."""
        number = self._check_size(name, self.get(name, default), MAX_SIZE)
        self._check_num_blocks(name, number)
        return number

    def get_depths(self, name: str, default: list[int]) -> tuple[int, ...]:
        """Number of blocks per stage: in total at most as many as the files have."""
        numbers = self.get_sizes(name, default)
        self._check_num_blocks(name, sum(numbers))
        return numbers

    def get_number(self, name: str, default: float, most: float | None = None) -> float:
        """A number from 0 to `most`, by default `max_size`."""
        most = self.max_size if most is None else most
        value = self.get(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # The comparison also fails for NaN, which Python's JSON reader accepts.
        if not is_number or not 0 <= value <= most:
            raise self.error(name, f"a number from 0 to {most:g}", value)
        return float(value)

    def get_epsilon(self, name: str, default: float) -> float:
        """The number that a normalization adds to the variance, at most 1."""
        return self.get_number(name, default, most=1.0)

    def get_probability(self, name: str, default: float) -> float:
        """A probability of dropping something: at least 0, and less than 1."""
        value = self.get_number(name, default, most=1.0)
        if value == 1.0:
            raise self.error(name, "a probability in [0, 1)", value)
        return value

    def get_bool(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "true or false", value)
        return value

    def get_choice(
        self, name: str, choices: Mapping[str, Any], default: str | None = None
    ) -> Any:
        """The entry of `choices` that the field names."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.error(name, f"one of {', '.join(choices)}", value)
        return choices[value]

    def get_num_labels(self) -> int:
        """Number of classes of a head: `id2label`, or `num_labels`, or 2.

        The files may lack the head, so no axis of a weight bounds it.
        """
        labels = self.get("id2label")
        if isinstance(labels, dict) and labels:
            return self._check_size("id2label", len(labels), MAX_CLASSES)
        return self.get_size("num_labels", 2, MAX_CLASSES)

    def require(self, supported: Mapping[str, tuple]) -> None:
        """Rejects a configuration that our model does not implement.

        Args:
            supported: Field to the values that are supported, the default first.

        Raises:
            ValueError: If a value is not supported; the message names the field.
        """
        for name, values in supported.items():
            value = self.get(name, values[0])
            if not any(value is each or value == each for each in values):
                listed = " or ".join(repr(each) for each in values)
                expected = f"{listed}; other values are not supported"
                raise self.error(name, expected, value)

    def _check_size(self, name, value, most=None) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(name, "a positive integer", value)
        if most is None and value > self.max_size:
            reason = "four times the largest axis of the weights"
            raise self.error(name, f"at most {self.max_size}, {reason}", value)
        if most is not None and value > most:
            raise self.error(name, f"at most {most}", value)
        return value

    def _check_num_blocks(self, name, number):
        if number > self.max_blocks:
            raise ValueError(
                f"`{name}` in {self.file} must be at most {self.max_blocks}, the "
                f"number of blocks in the weight files. Received: {name} of {number}"
            )


def one_or_two(pair) -> int | list[int]:
    """A pair as `config.json` has it: one number where both are equal."""
    return pair[0] if pair[0] == pair[1] else list(pair)


def activation_name(function, names: Mapping[str, Any] = ACTIVATIONS) -> str:
    """The name that transformers has for an activation.

    Raises:
        ValueError: If transformers has no name for `function`.
    """
    for name, known in names.items():
        if known is function:
            return name
    raise ValueError(
        "`activation` must be one that transformers supports, one of "
        f"{', '.join(names)}. Received: activation={function!r}"
    )


def label_fields(count: int, names: Sequence[str] = ()) -> dict[str, dict]:
    """The fields of a head with `count` classes, whose default names are generated."""
    names = names or [f"LABEL_{index}" for index in range(count)]
    return {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }
