"""Types of arguments that many layers and builders share."""

from collections.abc import Callable
from typing import Any

# Pixels of images: one number for rows and columns, or two, rows first. None, for both
# or for one of the two, means any number.
AnySize = int | tuple[int | None, int | None] | None

# What `keras.activations.get` takes, a name or a function of a tensor; or the name
# "gelu_tanh" or "quick_gelu" of a function of `keras_attn.ops`.
Activation = str | Callable[..., Any]

# What `keras.initializers.get` takes: a name, a configuration, or a
# `keras.Initializer`, or any other function of a shape and a dtype.
Initializer = str | dict[str, Any] | Callable[..., Any]
