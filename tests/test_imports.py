"""Files are where docs/design.md says, and import what it allows."""

import ast
import importlib
import inspect
import tomllib
from pathlib import Path

import keras
import pytest
from extras import NEEDS_JAX
from processes import run_python

PACKAGE = Path(__file__).resolve().parent.parent / "keras_attn"
# What every package may import; each imports at most those before it.
ANYWHERE = {"checks", "distribution", "docstrings", "files"}
BASE = {"kernels", "ops", "layers"}
MODELS = {"data", "decoding", "losses", "metrics", "models", "training"}
# The other packages that a package imports.
ALLOWED = {
    **dict.fromkeys(sorted(ANYWHERE), set()),
    "kernels": set(),
    "ops": {"kernels"},
    "losses": {"kernels", "ops"},
    "layers": {"kernels", "ops"},
    # The formats of boxes.
    "data": {"kernels", "ops"},
    # Texts and walks that are scored.
    "metrics": {"data", "kernels", "losses", "ops"},
    "decoding": {"kernels", "ops"},
    # A loss of its own, when a model learns.
    "models": {*BASE, "decoding", "losses"},
    "viz": {*BASE, "data"},
    # Policies decode.
    "training": {*BASE, "data", "decoding", "losses", "viz"},
    "translator": {*BASE, *MODELS, "viz"},
    "export": {*BASE, *MODELS},
    "cli": {*BASE, *MODELS, "export", "translator", "viz"},
}


def named_modules(node):
    """What an import names, also as a text that `import_module` takes."""
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Call):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called in ("import_module", "__import__"):
            texts = [x for x in ast.walk(node) if isinstance(x, ast.Constant)]
            return [str(x.value) for x in texts]
    return []


def imported_packages(package):
    """The packages that the files of a package import, each with one of these files."""
    packages = {}
    for path in sorted((PACKAGE / package).resolve().rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for name in named_modules(node):
                parts = name.split(".")
                if parts[0] == "keras_attn" and len(parts) > 1:
                    packages[parts[1]] = path.name
    return {name: file for name, file in packages.items() if name in ALLOWED}


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_run_in_the_documented_directions(package):
    found = imported_packages(package)
    assert set(found) - {package} <= ALLOWED[package] | ANYWHERE, found


def test_no_two_packages_import_each_other():
    # Each imports only what stands before it.
    order = list(ALLOWED)
    for number, package in enumerate(order):
        assert ALLOWED[package] <= set(order[:number]), package


# A machine with a GPU for JAX need not have TensorFlow.
WITHOUT_TENSORFLOW = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tensorflow":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from keras_attn import decoding, layers, models, ops
"""


@NEEDS_JAX
@pytest.mark.extra
def test_models_need_no_tensorflow_on_jax():
    run_python("-c", WITHOUT_TENSORFLOW, KERAS_BACKEND="jax")


def test_every_package_is_installed():
    root = PACKAGE.parent
    settings = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    found = set()
    for top in ("keras_attn", "models", "export"):
        for path in (root / top).rglob("__init__.py"):
            parts = path.parent.relative_to(root).parts
            found.add(
                ".".join(parts if top == "keras_attn" else (PACKAGE.name, *parts))
            )
    assert set(settings["tool"]["setuptools"]["packages"]) == found


def test_every_folder_has_a_rule():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert {x for x in folders if not x.startswith("_")} == set(ALLOWED)


# A captioner whose encoder is a ViT, and a score of what a GPT writes.
OF_ANOTHER_FAMILY = {
    ("deit3", "vit"),
    ("gpt_tasks", "gpt"),
    ("reward_models", "gpt"),
    ("reward_models", "gpt_tasks"),
    ("transformer_captioners", "vit"),
}


def test_a_model_file_imports_no_other_family():
    folder = (PACKAGE / "models").resolve()
    families = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    found = set()
    for family in families:
        tree = ast.parse((folder / f"{family}.py").read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                name = node.module.removeprefix("keras_attn.models.")
                found |= {(family, name)} if name in families else set()
    assert found == OF_ANOTHER_FAMILY


PUBLIC = "data", "layers", "losses", "metrics", "models", "ops", "training", "viz"


def public_objects():
    """The classes and functions that the packages export."""
    for package in PUBLIC:
        module = importlib.import_module(f"keras_attn.{package}")
        objects = [getattr(module, name) for name in module.__all__]
        yield from (x for x in objects if inspect.isclass(x) or inspect.isfunction(x))


def test_data_sets_are_in_data():
    datasets = [x for x in public_objects() if x.__name__.endswith("_dataset")]
    assert len(datasets) > 5
    assert {x.__module__.split(".")[1] for x in datasets} == {"data"}


def test_losses_and_metrics_have_their_packages():
    for parent in (keras.losses.Loss, keras.metrics.Metric):
        classes = filter(inspect.isclass, public_objects())
        found = [x for x in classes if issubclass(x, parent)]
        assert len(found) > 3
        package = f"{parent.__module__.split('.')[-2]}"
        assert {x.__module__.split(".")[1] for x in found} == {package}
