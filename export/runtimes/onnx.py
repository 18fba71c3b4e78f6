"""ONNX Runtime, which runs `.onnx` files and folders, on the CPU."""

from pathlib import Path
from typing import Any

from keras_attn.export import metadata
from keras_attn.export.description import Description, from_json
from keras_attn.export.errors import RefusedError, in_one_line
from keras_attn.export.signature_info import (
    PREFILL,
    SERVE,
    STEP,
    SignatureInfo,
    TensorInfo,
)
from keras_attn.extras import requires_extra
from keras_attn.files.reading import get_file_size, parse_json

# The file in an ONNX folder that holds the large tensors of all its graphs.
WEIGHTS = "weights.data"
# Keys in the metadata of a graph. `OUTPUT_NAMES`: our output names, by the graph's.
INDEX_RANGES = "keras_attn.index_ranges"
OUTPUT_NAMES = "keras_attn.output_names"
DESCRIPTION = "keras_attn.description"
# The tag of `ir_version`, the first field that every ONNX writer emits.
_FIRST_BYTE = b"\x08"
# Size of a folder in bytes above which its sessions share the weights, mapped from the
# file. Below it, each session packs its own copy, which speeds up a prompt by a quarter
# to a third, but does not speed up a single token.
_LARGEST_PACKED = 2**31


def recognizes(path: Path) -> bool:
    """Whether `path` is an `.onnx` file, or a folder of them and their weights."""
    if path.is_dir():
        entries = {entry.name for entry in path.iterdir()}
        graphs = {name for name in entries if name.endswith(".onnx")}
        return bool(graphs) and entries - graphs <= {WEIGHTS}
    # ONNX has no identifier: the suffix and the first byte must both match.
    if not path.is_file() or path.suffix != ".onnx":
        return False
    with path.open("rb") as file:
        return file.read(1) == _FIRST_BYTE


def graph_files(path: Path) -> dict[str, Path]:
    """The graphs of an ONNX file or folder, by the name of their signature."""
    if not path.is_dir():
        return {SERVE: path}
    return {file.stem: file for file in sorted(path.glob("*.onnx"))}


class Engine:
    """An ONNX file or folder loaded by ONNX Runtime, on the CPU.

    Args:
        path: The file or folder.
    """

    format = "onnx"

    def __init__(self, path: Path):
        with requires_extra("export", "ONNX"):
            import onnxruntime
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        if path.is_dir() and get_file_size(path) > _LARGEST_PACKED:
            options.add_session_config_entry("session.disable_prepacking", "1")
        files = graph_files(path)
        if len({PREFILL, STEP} & set(files)) == 1:
            missing = ({PREFILL, STEP} - set(files)).pop()
            raise RefusedError(
                f"{path.name} has no {missing}.onnx: `{PREFILL}` and `{STEP}` are "
                "needed together"
            )
        self._sessions: dict[str, Any] = {}
        self._output_names: dict[str, list[str]] = {}
        self.signatures: dict[str, SignatureInfo] = {}
        self.index_ranges = None
        self.description = Description()
        for name, file in files.items():
            try:
                self._sessions[name] = onnxruntime.InferenceSession(
                    file, options, providers=["CPUExecutionProvider"]
                )
                self._describe(name, self._sessions[name])
            except Exception as error:  # Its errors share only this base class.
                raise RefusedError(
                    f"ONNX Runtime cannot load {file.name}: {in_one_line(error)}"
                ) from error

    def _describe(self, name: str, session) -> None:
        """Reads the inputs, outputs and metadata of one graph."""
        inputs, outputs = session.get_inputs(), session.get_outputs()
        properties = session.get_modelmeta().custom_metadata_map
        text = properties.get(OUTPUT_NAMES, "{}")
        names = parse_json(text.encode(), Path(OUTPUT_NAMES))
        if not all(isinstance(value, str) for value in names.values()):
            raise ValueError(f"`{OUTPUT_NAMES}` in it must map names to names")
        self._output_names[name] = [names.get(x.name, x.name) for x in outputs]
        self.signatures[name] = SignatureInfo(
            {value.name: _tensor_info(value) for value in inputs},
            dict(
                zip(self._output_names[name], map(_tensor_info, outputs), strict=True)
            ),
        )
        if INDEX_RANGES in properties:
            content = properties[INDEX_RANGES].encode()
            self.index_ranges = metadata.from_json(content, INDEX_RANGES)
        if DESCRIPTION in properties:
            content = properties[DESCRIPTION].encode()
            self.description = from_json(content, DESCRIPTION)

    def call(self, signature: str, inputs: dict, in_place: bool) -> dict:
        """Runs one signature, see `Engine`."""
        try:
            outputs = self._sessions[signature].run(None, inputs)
        except Exception as error:  # As above.
            raise RefusedError(
                f"ONNX Runtime cannot run `{signature}`: {in_one_line(error)}",
                signatures=(signature,),
            ) from error
        return dict(zip(self._output_names[signature], outputs, strict=True))


def _tensor_info(value) -> TensorInfo:
    sizes = tuple(size if isinstance(size, int) else None for size in value.shape)
    element = str(value.type).removeprefix("tensor(").removesuffix(")")
    numpy_names = {"float": "float32", "double": "float64"}
    return TensorInfo(sizes, numpy_names.get(element, element))
