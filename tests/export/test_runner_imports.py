"""A `.tflite` or `.onnx` file is loaded and run without TensorFlow and Keras."""

import numpy as np
import pytest

# Runs every signature of the artefacts given as arguments, on ones.
SCRIPT = """
import sys

FORBIDDEN = {"tensorflow", "keras", "jax", "torch", "tf2onnx"}

class Forbids:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in FORBIDDEN:
            raise ImportError(f"{name} must not be imported")

if "--forbid" in sys.argv:
    sys.meta_path.insert(0, Forbids())

import numpy as np
from keras_attn.export import ExportError, Runner, load_runner

for path in [argument for argument in sys.argv[1:] if argument != "--forbid"]:
    runner = load_runner(path)
    for name, info in runner.signatures.items():
        inputs = {
            key: np.ones([size or 2 for size in each.shape], each.dtype)
            for key, each in info.inputs.items()
        }
        for _ in range(2):
            outputs = runner(inputs, name)
        for key, value in sorted(outputs.items()):
            print(name, key, float(np.abs(value).sum()))
    try:
        runner({}, name)
    except ValueError as error:
        print(type(error).__name__)
print("imported:", sorted(FORBIDDEN & set(sys.modules)))
"""


@pytest.mark.shipped
@pytest.mark.parametrize("option", [[], ["--forbid"]])
def test_a_runner_imports_neither_tensorflow_nor_keras(
    build, artefact, option, printed
):
    names = ("dictionaries", "attention_pair")
    paths = [
        artefact(name, suffix)[0] for name in names for suffix in (".tflite", ".onnx")
    ]
    *found, imported = printed("-c", SCRIPT, *paths, *option)
    assert imported == "imported: []"
    assert found.count("ValueError") == 4
    inputs = {"zeta": np.ones((2, 3), "int32"), "alpha": np.ones((2, 5), "float32")}
    want = {
        key: float(np.abs(value).sum())
        for key, value in build("dictionaries")(inputs).items()
    }
    lines = [line.split() for line in found if line.startswith("serve")]
    assert len(lines) == 2 * len(want)
    for name, key, value in lines:
        assert (name, float(value)) == ("serve", pytest.approx(want[key], abs=1e-5))


def test_unknown_names_of_export_are_attribute_errors():
    from keras_attn import export

    assert {"export", "load_runner", "verify"} <= set(dir(export))
    with pytest.raises(
        AttributeError, match="'keras_attn.export' has no attribute 'x'"
    ):
        export.x  # noqa: B018
