"""Types of arguments that many layers and builders share, and ranges of their values.

A range is part of a builder's annotation, `num_frozen: Annotated[int, AtLeast(0)]`;
`models/catalog/arguments.py` reads it. Without one an integer is at least 1, a number
finite, a list of integers of at least one element, and its elements at least 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

# Pixels of images: one number for rows and columns, or two, rows first. None, for both
# or for one of the two, means any number.
AnySize = int | tuple[int | None, int | None] | None

# What `keras.activations.get` takes, a name or a function of a tensor; or the name
# "gelu_tanh" or "quick_gelu" of a function of `keras_attn.ops`.
Activation = str | Callable[..., Any]

# What `keras.initializers.get` takes: a name, a configuration, or a
# `keras.Initializer`, or any other function of a shape and a dtype.
Initializer = str | dict[str, Any] | Callable[..., Any]

# What `keras.regularizers.get` and `keras.constraints.get` take.
Regularizer = str | dict[str, Any] | Callable[..., Any] | None
Constraint = str | dict[str, Any] | Callable[..., Any] | None


@dataclass(frozen=True, repr=False)
class AtLeast:
    """The smallest number that an argument may have.

    Args:
        minimum: This number.
    """

    minimum: int

    def __repr__(self):
        return f"AtLeast({self.minimum})"


@dataclass(frozen=True)
class Fraction:
    """A number from 0 to 1, without 1."""


@dataclass(frozen=True)
class MayBeEmpty:
    """A list that may have no element."""


@dataclass(frozen=True)
class AnyInteger:
    """No size: negative numbers are allowed too."""


# Of dropping a unit or of skipping a block.
Probability = Annotated[float, Fraction()]

# What a norm adds to a variance; torchvision's detectors have 0.
Epsilon = Annotated[float, AtLeast(0)]

# The number of a block, a stage or a token.
Index = Annotated[int, AtLeast(0)]

# Of the random numbers that a model draws; None for another one in each model.
Seed = Annotated[int, AnyInteger()] | None
