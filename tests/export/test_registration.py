"""After `import keras_attn.export` alone, Keras finds every class that it looks up."""

import pytest
from model_cases import tiny

SCRIPT = """
import sys
from keras_attn import export
import keras

def registered_classes():
    return {name for name in keras.saving.get_custom_objects() if "keras_attn" in name}

print(keras.models.load_model(sys.argv[1]).name)
registered = registered_classes()

import importlib, pkgutil
import keras_attn
for module in pkgutil.walk_packages(keras_attn.__path__, "keras_attn."):
    if "int8_worker" not in module.name:
        importlib.import_module(module.name)
print("not registered:", sorted(registered_classes() - registered))
"""


@pytest.mark.shipped
def test_export_registers_every_class(tmp_path, printed):
    model = tiny("gpt2_small")
    model.save(tmp_path / "model.keras")
    lines = printed("-c", SCRIPT, tmp_path / "model.keras")
    assert lines == [model.name, "not registered: []"]
