"""Export any Keras model to SavedModel, LiteRT or ONNX, and verify the result."""

if __name__ != "keras_attn.export":
    raise ImportError(
        "This folder is the source of `keras_attn.export`; import it by that name. "
        f"A second copy (imported here as `{__name__}`) would register every Keras "
        "class twice."
    )

# These imports register their classes with Keras, so that `keras.models.load_model`
# reads any model that uses them.
from keras_attn import layers, models, training  # noqa: F401
from keras_attn.export.api import export, verify
from keras_attn.export.errors import ExportError
from keras_attn.export.freezing import freeze
from keras_attn.export.report import ExportReport
from keras_attn.export.runner import Runner, load_runner
from keras_attn.export.signatures import SignatureInfo, TensorInfo

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
