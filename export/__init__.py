"""Ship any Keras model: SavedModel, LiteRT and ONNX, each verified."""

if __name__ != "keras_attn.export":
    raise ImportError(
        "This folder is the source of `keras_attn.export`; import it by that name. "
        f"A second copy (imported here as `{__name__}`) would register every Keras "
        "class twice."
    )

# For what they register with Keras: `keras.models.load_model` then reads any model
# that is made of parts of this package.
from keras_attn import layers, models, training  # noqa: F401
from keras_attn.export.api import export, verify
from keras_attn.export.errors import ExportError
from keras_attn.export.freezing import freeze
from keras_attn.export.report import ExportReport
from keras_attn.export.runner import Runner, SignatureInfo, TensorInfo, load_runner

__all__ = [
    "ExportError",
    "ExportReport",
    "Runner",
    "SignatureInfo",
    "TensorInfo",
    "export",
    "freeze",
    "load_runner",
    "verify",
]
