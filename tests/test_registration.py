"""Saved models load after a bare `import keras_attn`, in a fresh process."""

import ast
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras.src.saving import object_registration
from processes import run_python

from keras_attn import registration
from keras_attn.layers.initializers import BilinearKernel, SinusoidGrid
from keras_attn.losses import SmoothedCrossEntropy
from keras_attn.metrics import Perplexity
from keras_attn.models import build_vit
from keras_attn.ops import gelu_tanh
from keras_attn.training import AdamW

PACKAGE = Path(registration.__file__).parent


def registered_names():
    """What every `@keras.saving.register_keras_serializable` in the source names."""
    names = []
    for folder, _, files in os.walk(PACKAGE, followlinks=True):
        for file in files:
            if file.endswith(".py"):
                tree = ast.parse((Path(folder) / file).read_text("utf-8"))
                names += filter(None, map(_registered_name, ast.walk(tree)))
    return sorted(names)


def _registered_name(node):
    for decorator in getattr(node, "decorator_list", ()):
        call = ast.unparse(decorator)
        if call.startswith("keras.saving.register_keras_serializable("):
            package, *name = (argument.value for argument in decorator.args)
            return f"{package}>{name[0] if name else node.name}"
    return None


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model of ours, models of Keras with objects of ours; and their outputs."""
    folder = tmp_path_factory.mktemp("saved")
    sizes: Any = {"num_layers": 1, "hidden_dim": 6, "num_heads": 2, "mlp_dim": 5}
    vit = build_vit(image_size=6, patch_size=3, num_classes=7, **sizes)
    dense = keras.layers.Dense(3, activation=gelu_tanh)
    plain = keras.Sequential([keras.Input((5,)), dense])
    bilinear = keras.layers.Conv2DTranspose(
        3, 4, 2, kernel_initializer=BilinearKernel()
    )
    sinusoids = keras.layers.Embedding(
        7, 4, embeddings_initializer=SinusoidGrid(2, 3, num_prefix_tokens=1)
    )
    compiled = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    compiled.compile(AdamW(), SmoothedCrossEntropy(), metrics=[Perplexity()])
    models = {
        "vit": vit,
        "plain": plain,
        "bilinear": keras.Sequential([keras.Input((2, 2, 3)), bilinear]),
        "sinusoids": keras.Sequential([keras.Input((5,)), sinusoids]),
        "compiled": compiled,
    }
    outputs = {}
    for name, model in models.items():
        model.save(folder / f"{name}.keras")
        ones = np.ones((1, *model.input_shape[1:]), "float32")
        outputs[name] = keras.ops.convert_to_numpy(model(ones)).tolist()
    return folder, outputs


LOAD = """
import json, sys
import numpy as np
def load(name):
    model = keras.saving.load_model(f"{sys.argv[1]}/{name}.keras")
    ones = np.ones((1, *model.input_shape[1:]), "float32")
    return keras.ops.convert_to_numpy(model(ones)).tolist()
"""


@pytest.mark.runs
def test_every_registered_name_is_found_after_the_import_alone(files):
    folder, outputs = files
    # Other libraries look for Keras before it is imported.
    code = f"""
import importlib.util, sys
import keras_attn
assert not {{"keras", "tensorflow"}} & set(sys.modules)
assert importlib.util.find_spec("keras")
import keras
{LOAD}
assert not [name for name in sys.modules if name.startswith("keras_attn.layers")]
outputs = {{name: load(name) for name in ("plain", "vit")}}
registered = keras.saving.get_registered_object
names = json.loads(sys.argv[2])
named = [name for name in names
         if keras.saving.get_registered_name(registered(name)) != name]
print(json.dumps([outputs, named, registered("keras_attn>Nothing")]))
"""
    found = run_python("-c", code, folder, json.dumps(registered_names()))
    found, wrong, unknown = json.loads(found.splitlines()[-1])
    for name, output in found.items():
        np.testing.assert_allclose(output, outputs[name], rtol=1e-6, atol=1e-7)
    assert sorted(found) == ["plain", "vit"]
    assert wrong == []
    assert unknown is None
    assert len(registered_names()) > 90


# In a process each: what the first needs is imported when the second is loaded.
@pytest.mark.parametrize("names", [["bilinear", "sinusoids"], ["compiled"]])
@pytest.mark.runs
def test_a_model_of_keras_with_objects_of_ours_loads_after_the_import_alone(
    files, names
):
    folder, outputs = files
    code = f"""
import keras, keras_attn
{LOAD}
print(json.dumps([load(name) for name in sys.argv[2:]]))
"""
    found = run_python("-c", code, folder, *names)
    for name, output in zip(names, json.loads(found.splitlines()[-1]), strict=True):
        np.testing.assert_allclose(output, outputs[name], rtol=1e-6, atol=1e-7)


def test_an_old_module_path_does_not_matter(files, tmp_path):
    """Of the module and the registered name in a file only the name is read."""
    folder, outputs = files
    old = tmp_path / "old.keras"
    with (
        zipfile.ZipFile(folder / "vit.keras") as whole,
        zipfile.ZipFile(old, "w") as archive,
    ):
        for name in whole.namelist():
            data = whole.read(name)
            if name == "config.json":
                config = json.loads(data)
                assert _moved(config) > 5
                data = json.dumps(config).encode()
            archive.writestr(name, data)
    model = keras.saving.load_model(old)
    found = model(np.ones((1, *model.input_shape[1:]), "float32"))
    np.testing.assert_array_equal(found, np.float32(outputs["vit"]))


def _moved(config):
    """Replaces each module of ours in a configuration; returns how many."""
    count = 0
    if isinstance(config, dict):
        if str(config.get("module")).startswith("keras_attn."):
            config["module"] = "keras_attn.layers.a_file_of_last_year"
            count += 1
        config = list(config.values())
    if isinstance(config, list):
        count += sum(map(_moved, config))
    return count


def test_a_keras_that_is_imported_already_is_registered_with_once(monkeypatch):
    monkeypatch.setattr(object_registration, "GLOBAL_CUSTOM_OBJECTS", {"a>B": dict})
    registration.register_after_keras()
    objects = keras.saving.get_custom_objects()
    assert isinstance(objects, registration.RegisteredObjects)
    assert objects == {"a>B": dict}
    registration.register()
    assert keras.saving.get_custom_objects() is objects
