"""Attention layers and models, and their convolutional baselines, for Keras 3.

Build with `models` and `layers`, fit with Keras, see with `viz`, decode with
`decoding`, ship with `export`. A part is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

from keras_attn.registration import register_after_keras

if TYPE_CHECKING:
    from keras_attn import (
        data,
        decoding,
        export,
        layers,
        losses,
        metrics,
        models,
        ops,
        script_arguments,
        tiling,
        training,
        translator,
        viz,
    )

__version__ = "0.1.0"

__all__ = [
    "data",
    "decoding",
    "export",
    "layers",
    "losses",
    "metrics",
    "models",
    "ops",
    "script_arguments",
    "tiling",
    "training",
    "translator",
    "viz",
]

register_after_keras()


def __getattr__(name):
    if name in __all__:
        return importlib.import_module(f"keras_attn.{name}")
    raise AttributeError(f"module 'keras_attn' has no attribute {name!r}")


def __dir__():
    return ["__version__", *__all__]
