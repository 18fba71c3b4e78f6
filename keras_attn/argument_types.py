"""Types of arguments that many layers and builders share."""

from collections.abc import Callable
from typing import Any

# Pixels of images: one number for rows and columns, or two, rows first. None, also for
# one of the two, is any number.
AnySize = int | tuple[int | None, int | None] | None

# What `keras.activations.get` takes: a name, or a function of a tensor.
Activation = str | Callable[..., Any]

# What `keras.initializers.get` takes: a name, a configuration, or a
# `keras.Initializer` or another function of a shape and a dtype.
Initializer = str | dict[str, Any] | Callable[..., Any]
