"""Reading a `.keras` file: the model, or only its configuration.

The file is a ZIP archive of `config.json` and the weights. Keras reports a damaged file
as missing, or with an error from whichever part is read first.

Importing this file imports `keras_attn.models`, which registers the classes that a
`.keras` file may refer to.
"""

import contextlib
import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from keras_attn.files.reading import check_file, shortened

_CONFIG = "config.json"
_WEIGHTS = ("model.weights.h5", "model.weights.npz")


def load_keras_file(path: Path) -> keras.Model:
    """The model in a file that `model.save` wrote, without its optimizer and losses.

    These may use custom classes, which only a training script imports.

    Raises:
        FileNotFoundError: If `path` does not exist.
        ValueError: If the file is damaged, or does not contain a model that Keras can
            load.
    """
    _read_config(path, all_members=True)
    with _naming(path):
        return _checked(keras.saving.load_model(path, compile=False))


def build_from_keras_file(path: Path) -> keras.Model:
    """The same model, built from its configuration without reading the weights.

    Raises:
        FileNotFoundError: If `path` does not exist.
        ValueError: If the file is damaged, or does not contain a model that Keras can
            load.
    """
    config = _read_config(path)
    # Neither an optimizer nor metrics.
    config.pop("compile_config", None)
    with _naming(path):
        return _checked(keras.saving.deserialize_keras_object(config))


def _checked(found: Any) -> keras.Model:
    if not isinstance(found, keras.Model):
        raise TypeError(f"it holds a {type(found).__name__}")
    return found


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Names the file in errors of Keras and of the readers that it calls."""
    try:
        yield
    except (ValueError, TypeError, KeyError, OSError, AttributeError) as error:
        cause: BaseException = error
        while cause.__context__ is not None:
            cause = cause.__context__
        # Keras quotes the configuration of the whole model, on many lines.
        text = str(cause).partition("Full object config:")[0].strip(" .")
        raise ValueError(
            f"{path.name} must be a model that Keras can load: {shortened(text, 600)}. "
            f"Received: {str(path)!r}"
        ) from error


def _read_config(path: Path, all_members: bool = False) -> dict[str, Any]:
    """The configuration, after checking its checksum, or all with `all_members`."""
    check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if _CONFIG not in names or not any(name in names for name in _WEIGHTS):
                raise _damaged(path, f"it has no {_CONFIG} or no {_WEIGHTS[0]}")
            broken = archive.testzip() if all_members else None
            if broken is not None:
                raise _damaged(path, f"the checksum of {broken} is wrong")
            config = json.loads(archive.read(_CONFIG))
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise _damaged(path, str(error)) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, f"{_CONFIG} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise _damaged(path, f"{_CONFIG} is not a JSON object")
    return config


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(
        f"{path.name} must be a complete `.keras` file from `model.save`; this one is "
        f"damaged ({reason}). Copy or save it again. Received: {str(path)!r}"
    )
