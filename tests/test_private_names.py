"""Every private module of Keras and TensorFlow that the library imports, in one table.

Their makers may move them in any release: `make test-next` runs what uses them on the
next one.
"""

import ast
import importlib
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).resolve().parent.parent
# By file, what it imports from where.
PRIVATE = {
    "keras_attn/registration.py": {"keras.src.saving": {"object_registration"}},
    "keras_attn/kernels/custom_gradient.py": {"tensorflow.python.eager": {"record"}},
    "keras_attn/kernels/runtime.py": {
        "keras.src.backend.common.symbolic_scope": {"in_symbolic_scope"},
        "tensorflow.python.ops": {"control_flow_util", "gradients_util"},
    },
    "keras_attn/layers/recurrent/recurrent.py": {
        "keras.src.backend.common": {"global_state"}
    },
    "keras_attn/layers/output_specs.py": {
        "keras.src.backend.common.variables": {"get_autocast_scope"}
    },
    "keras_attn/layers/rematerialization.py": {
        "keras.src": {"backend"},
        "keras.src.backend.common": {"global_state", "masking"},
        "tensorflow.python.ops.control_flow_util_v2": {"in_while_loop_defun"},
    },
    "models/parts/keras_state.py": {"keras.src.backend.common": {"global_state"}},
    "export/portable_operations.py": {"keras.src": {"backend"}},
    "export/formats/onnx.py": {
        "tensorflow.python.framework.convert_to_constants": {
            "convert_variables_to_constants_v2"
        }
    },
}


def imported(path):
    """Private modules that a file imports, and the names that it takes from them."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [(node.module, alias.name) for alias in node.names]
        if isinstance(node, ast.Import):
            names = [(alias.name, "") for alias in node.names]
        for module, name in names:
            if module.startswith(("keras.src", "tensorflow.python")):
                found.setdefault(module, set()).add(name)
    return found


def test_the_table_is_complete():
    folders = (ROOT / "keras_attn", ROOT / "models", ROOT / "export")
    # Resolved: `keras_attn` has links to the other two.
    files = {path.resolve() for folder in folders for path in folder.rglob("*.py")}
    found = {str(path.relative_to(ROOT)): imported(path) for path in files}
    assert {path: names for path, names in found.items() if names} == PRIVATE


@pytest.mark.parametrize("path", PRIVATE)
def test_the_names_exist(path):
    for module, names in PRIVATE[path].items():
        if module.startswith("tensorflow") and keras.backend.backend() != "tensorflow":
            continue
        found = importlib.import_module(module)
        for name in names:
            assert hasattr(found, name) or importlib.import_module(f"{module}.{name}")
