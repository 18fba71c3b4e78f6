"""Export any Keras model to SavedModel, LiteRT or ONNX, and verify the result.

A name is imported when it is first used: `load_runner` needs neither TensorFlow nor
Keras, except for a SavedModel.
"""

import importlib
from typing import TYPE_CHECKING

if __name__ != "keras_attn.export":
    raise ImportError(
        "This folder is the source of `keras_attn.export`; import it by that name. "
        f"A second copy (imported here as `{__name__}`) would register every Keras "
        "class twice."
    )

if TYPE_CHECKING:
    from keras_attn.export.api import export, verify
    from keras_attn.export.decoder_cache import decoder
    from keras_attn.export.errors import ExportError
    from keras_attn.export.freezing import freeze
    from keras_attn.export.report import ExportReport
    from keras_attn.export.runner import Runner, load_runner
    from keras_attn.export.signature_info import SignatureInfo, TensorInfo

_MODULES = {
    "ExportError": "errors",
    "ExportReport": "report",
    "Runner": "runner",
    "SignatureInfo": "signature_info",
    "TensorInfo": "signature_info",
    "decoder": "decoder_cache",
    "export": "api",
    "freeze": "freezing",
    "load_runner": "runner",
    "verify": "api",
}

__all__ = [
    "ExportError",
    "ExportReport",
    "Runner",
    "SignatureInfo",
    "TensorInfo",
    "decoder",
    "export",
    "freeze",
    "load_runner",
    "verify",
]


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module 'keras_attn.export' has no attribute {name!r}")
    module = importlib.import_module(f"keras_attn.export.{_MODULES[name]}")
    globals()[name] = value = getattr(module, name)
    return value


def __dir__():
    return __all__
