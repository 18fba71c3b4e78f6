"""`decoder`: a generative model in a stock runtime, its files kept in a folder.

A file is named for a digest of what it holds: the graphs of `prefill` and `step` with
the length of their caches, the value of every weight, the runtime and the version of
this library. So a model that has learned since has another file, and what is found
under a name is never out of date. Files appear by a rename, so a killed process leaves
none behind that is incomplete. They end in a digest of their content, which stands
once more beside them, in `<name>.sha256`; both are checked before each use. So what was
damaged or replaced since is not used but written again.
"""

import contextlib
import hashlib
import importlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import keras

import keras_attn
from keras_attn.decoding import IncrementalPair
from keras_attn.export.api import export
from keras_attn.export.errors import ExportError
from keras_attn.export.formats import FORMATS
from keras_attn.export.quantized_weights import has_integers
from keras_attn.export.runner import Runner, load_runner
from keras_attn.export.seals import is_sealed, read_seals
from keras_attn.export.signatures import get_pair
from keras_attn.extras import requires_extra
from keras_attn.files.writing import remove_leftovers, write_atomically
from keras_attn.kernels.runtime import require_tensorflow

_LOGGER = logging.getLogger(__name__)
# Package and name of the runtime, by the name of its format.
_RUNTIMES = {"onnx": ("onnxruntime", "ONNX"), "litert": ("ai_edge_litert", "LiteRT")}
# A model that learns between two calls leaves a file at each; only the files that were
# used last are kept.
_KEPT = 8
_VARIABLE = "KERAS_ATTN_CACHE"
_DIGEST_LENGTH = 32
# Of the files: 2 are sealed, the seals of 3 stand beside them too.
_LAYOUT = 3


def decoder(
    model: Any,
    runtime: str = "onnx",
    *,
    max_length: int | None = None,
    cache_dir: str | os.PathLike | None = None,
) -> Runner:
    """Exports a generative model to a runtime, in which `generate` then decodes.

    `generate` and `walk` take the runner in place of the model. Their loop then runs on
    the host, and `prefill` and `step` in the runtime, on the CPU, with the same tokens
    up to rounding.

    The runner decodes with the weights that the model has now: after the model has
    learned, call this again. An export, verified as by `export`, takes longer than many
    calls of `generate`, so its file is kept in `cache_dir`, and a later call or process
    with the same weights and `max_length` loads it. Each call reads all weights once,
    to find it.

    With quantized weights (`model.quantize`) ONNX Runtime multiplies in 8 bits, two to
    three times as fast as in float32, and single tokens may differ.

    Args:
        model: A generative model (one with `incremental()`), or its `IncrementalPair`.
        runtime: `"onnx"` for ONNX Runtime, or `"litert"` for LiteRT.
        max_length: The maximum number of tokens in a prompt and its continuation, which
            is the length of the key/value caches. A step reads all of them, so
            shorter caches are faster. None is the default of `incremental()`: the
            number of positions, or 256 if it is unlimited.
        cache_dir: The folder of the exported files, of which the 8 used last are kept.
            None = the environment variable `KERAS_ATTN_CACHE`, or `keras_attn` in the
            user's folder for caches.

    Returns:
        A `Runner`, loaded anew at each call; it needs neither the model nor the file.

    Raises:
        TypeError: If `model` is not a generative Keras model or a pair.
        ValueError: If `runtime` is unknown, `max_length` does not suit the model, or a
            layer has no configuration by which the file could be found again.
        ImportError: If the runtime, or what exports to it, is not installed.
        RuntimeError: If Keras' backend is not TensorFlow, which exports models.
        ExportError: If the model cannot be exported, or the file not written.

    Example:
        Needs the extra `export`:

        ```python
        import numpy as np
        from keras_attn import decoding, export, models

        gpt = models.build_gpt(num_layers=1, hidden_dim=32, vocabulary_size=100)
        runner = export.decoder(gpt, "onnx", max_length=16, cache_dir="decoders")
        prompt = {"token_ids": np.array([[5, 6]]), "padding_mask": np.ones((1, 2))}
        decoding.generate(runner, prompt, 4).token_ids  # (1, 4)
        ```
    """
    _check_runtime(runtime)
    pair = get_pair(model, max_length)
    if pair is None:
        raise TypeError(
            "`model` must be a generative Keras model, one with `incremental()`, or "
            "its `IncrementalPair`; what was exported is loaded by `load_runner`. "
            f"Received: model={type(model).__name__}"
        )
    folder = _default_folder() if cache_dir is None else Path(cache_dir)
    path = folder / f"{runtime}-{_digest(pair, runtime)}{FORMATS[runtime].suffix}"
    if os.path.lexists(path):
        if _is_unchanged(path):
            # Another version of the runtime may refuse it.
            with contextlib.suppress(ExportError):
                runner = load_runner(path)
                with contextlib.suppress(OSError):  # Another user's folder.
                    os.utime(path)
                return runner
        else:
            _LOGGER.warning(
                "%s is damaged, incomplete or another file, and is written again.", path
            )
        # Another process may replace it at the same time, so it stays, unless `export`
        # would refuse to replace what it holds now.
        if not FORMATS[runtime].runtime.recognizes(path):
            _remove(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(
            f"`cache_dir` cannot be made ({error.strerror}); pass another, or set "
            f"{_VARIABLE}. Received: cache_dir={str(folder)!r}"
        ) from error
    export(pair, path, quantization=_quantization(pair, runtime))
    _remember(path)
    _remove_old(folder, path)
    return load_runner(path)


def _check_runtime(runtime: Any) -> None:
    """Raises unless decoders run in a runtime here."""
    if runtime not in _RUNTIMES:
        names = ", ".join(f'"{name}"' for name in _RUNTIMES)
        raise ValueError(
            f"`runtime` must be one of {names}. Received: runtime={runtime!r}"
        )
    require_tensorflow("Generation in another runtime")
    package, shown = _RUNTIMES[runtime]
    with requires_extra("export", f"Generation with {shown}"):
        importlib.import_module(package)


def _default_folder() -> Path:
    """`$KERAS_ATTN_CACHE`, or else `keras_attn` in the user's folder for caches."""
    if os.environ.get(_VARIABLE):
        return Path(os.environ[_VARIABLE])
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "keras_attn"


def _digest(pair: IncrementalPair, runtime: str) -> str:
    """A digest of all that a decoder's file depends on, in hexadecimal.

    It reads every weight once, at the speed of memory.

    Args:
        pair: The decoder.
        runtime: Name of the runtime.

    Raises:
        ValueError: If a layer has no configuration that can be written down.
    """
    import tensorflow as tf

    found = hashlib.sha256()
    about = [keras_attn.__version__, keras.__version__, _LAYOUT, runtime, pair.prompt]
    about += [pair.max_length, _quantization(pair, runtime)]
    found.update(json.dumps(about).encode())
    models = (pair.prefill, pair.step)
    for model in models:
        found.update(_graph(model).encode())
    # Not the states of dropout, which change only in training.
    variables = {id(x): x for model in models for x in model.weights}
    for variable in variables.values():
        found.update(f"{variable.dtype}{tuple(variable.shape)}".encode())
        value = tf.convert_to_tensor(variable.value)
        if value.dtype == tf.bool:
            value = tf.cast(value, tf.uint8)
        data = tf.reshape(tf.bitcast(value, tf.uint8), (1, -1))
        if data.shape[1]:
            mark = tf.raw_ops.Fingerprint(data=data, method="farmhash64")
            found.update(mark.numpy().tobytes())
    return found.hexdigest()[:_DIGEST_LENGTH]


def _is_unchanged(path: Path) -> bool:
    """Whether a file is the one that was written here, every byte of it."""
    try:
        written = _memory(path).read_bytes()
        return is_sealed(path) and read_seals(path) == written
    except OSError:
        return False


def _remember(path: Path) -> None:
    """Writes the seals of a new file beside it."""
    try:
        write_atomically(_memory(path), read_seals(path))
    except OSError as error:
        raise ExportError(
            f"`cache_dir` could not be written ({error.strerror or error}). "
            f"Received: cache_dir={str(path.parent)!r}"
        ) from error


def _memory(path: Path) -> Path:
    """The path of the second copy of a file's seals."""
    return path.with_suffix(".sha256")


def _quantization(pair: IncrementalPair, runtime: str) -> str | None:
    """The argument of `export`: ONNX Runtime multiplies by quantized weights."""
    is_taken = runtime == "onnx" and has_integers([pair.prefill, pair.step])
    return "int8_dynamic" if is_taken else None


def _graph(model: keras.Model) -> str:
    """The layers of a model and how they are connected, as text.

    Keras numbers the operations of a process (`add_7`), so they are numbered anew, in
    their order.
    """
    try:
        config = keras.saving.serialize_keras_object(model)
        names: dict[str, str] = {}
        _number(config, names)
        return json.dumps(_renamed(config, names), sort_keys=True)
    except Exception as error:  # Any error of a layer's `get_config`.
        raise ValueError(
            "`model` must consist of layers with a configuration, by which its file "
            "is found again; or export it and pass `load_runner(path)` as `model`. "
            f"Received: {type(error).__name__}: {error}"
        ) from error


def _number(config: Any, names: dict[str, str]) -> None:
    """Gives each name that Keras may have made for a class its number."""
    if isinstance(config, dict):
        inner = config.get("config")
        name = inner.get("name") if isinstance(inner, dict) else None
        if isinstance(name, str) and isinstance(config.get("class_name"), str):
            plain = name.rstrip("0123456789").replace("_", "")
            if plain == config["class_name"].lower():
                names.setdefault(name, f"{plain}#{len(names)}")
        config = list(config.values())
    if isinstance(config, list | tuple):
        for part in config:
            _number(part, names)


def _renamed(config: Any, names: dict[str, str]) -> Any:
    """The configuration, with other names of layers.

    A name stands at the key "name", and where outputs of a layer are referred to, as
    `[name, 0, 0]`.
    """
    if isinstance(config, dict):
        return {
            key: names.get(value, value)
            if key == "name" and isinstance(value, str)
            else _renamed(value, names)
            for key, value in config.items()
        }
    if isinstance(config, list | tuple):
        parts = [_renamed(part, names) for part in config]
        if [*map(type, parts)] == [str, int, int]:
            parts[0] = names.get(parts[0], parts[0])
        return parts
    return config


def _remove_old(folder: Path, newest: Path) -> None:
    """Removes what killed processes left, and all but the files used last."""
    found = []
    for path in list(folder.iterdir()):
        runtime, _, rest = path.name.lstrip(".").partition("-")
        if runtime not in _RUNTIMES:
            continue
        if path.name.startswith("."):
            name = f"{runtime}-{rest[:_DIGEST_LENGTH]}{FORMATS[runtime].suffix}"
            remove_leftovers(folder / name)
        elif _is_decoder(path, runtime) and path != newest:
            with contextlib.suppress(OSError):
                found.append((path.stat().st_mtime_ns, path))
    for _, path in sorted(found, reverse=True)[_KEPT - 1 :]:
        _remove(path)
        _remove(_memory(path))


def _is_decoder(path: Path, runtime: str) -> bool:
    """Whether `decoder` gives files such a name."""
    length = len(runtime) + 1 + _DIGEST_LENGTH
    return len(path.stem) == length and path.suffix == FORMATS[runtime].suffix


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
