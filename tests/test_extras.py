"""The extras of `pyproject.toml` install what the code and the tests import."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
# Distributions by the modules that they install, where the names differ.
INSTALLED_BY = {
    "PIL": "pillow",
    "ai_edge_litert": "ai-edge-litert",
    "keras_cv": "keras-cv",
    "tensorflow_text": "tensorflow-text",
}
# What only `make test-parity` imports; its files are not imported by any other suite.
PARITY = re.compile(r"parity/|data/generate_tokenizers\.py|check_wheel\.py|mutants\.py")
# Imported after the whole file was skipped on another backend.
SKIPPED = {("test_gpu.py", "jax")}


def packages_of(requirements):
    """The distributions of a list of requirements, with the extras of ours in it."""
    found = set()
    for requirement in requirements:
        [(name, inner)] = re.findall(r"^([\w-]+)(?:\[(.*)\])?", requirement)
        if name == "keras-attn":
            for extra in inner.split(","):
                found |= packages_of(PROJECT["optional-dependencies"][extra])
        else:
            found.add(name.lower())
    return found


BASE = packages_of(PROJECT["dependencies"])
EXTRAS = {
    extra: packages_of([f"keras-attn[{extra}]"])
    for extra in PROJECT["optional-dependencies"]
}


def modules_in(nodes):
    """The top-level names of the modules that statements import, also within them."""
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import):
                yield from (name.name.partition(".")[0] for name in inner.names)
            elif isinstance(inner, ast.ImportFrom) and inner.module and not inner.level:
                yield inner.module.partition(".")[0]


def distribution_of(module):
    return INSTALLED_BY.get(module, module.lower())


# The names of our own modules, and of scripts and helpers that stand beside each other.
OURS = {"keras_attn"} | {
    path.stem for path in (*TESTS.iterdir(), *TESTS.rglob("*.py"), *ROOT.glob("*/*.py"))
}


def is_of_another_project(module):
    return module not in OURS and module not in sys.stdlib_module_names


def blocks_with_an_extra():
    """Each `with requires_extra("...")`: its file, its extra and its statements."""
    for top in ("keras_attn", "models", "export"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if path.is_relative_to(ROOT / "keras_attn/models"):
                continue
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if not isinstance(node, ast.With):
                    continue
                for item in node.items:
                    call = item.context_expr
                    if (
                        isinstance(call, ast.Call)
                        and getattr(call.func, "id", None) == "requires_extra"
                        and isinstance(call.args[0], ast.Constant)
                    ):
                        yield path.name, call.args[0].value, node.body


def test_an_extra_that_an_error_names_installs_what_was_missing():
    blocks = [*blocks_with_an_extra()]
    assert {"eval", "export", "jax", "text", "vision"} <= {block[1] for block in blocks}
    for file, extra, body in blocks:
        for module in modules_in(body):
            assert distribution_of(module) in BASE | EXTRAS[extra], (file, module)


def test_the_extra_all_is_everything_a_user_may_ask_for():
    apart = {*"jax tpu works-with test parity docs browser dev all".split()}
    assert EXTRAS["all"] == set().union(*(EXTRAS[x] for x in {*EXTRAS} - apart))


@pytest.mark.parametrize(
    "target, extras", [(".demo", "export,text"), (".test", "test")]
)
def test_make_installs_the_extras_that_the_tests_assume(target, extras):
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert re.findall(rf"/\{target}: EXTRAS = (\S+)", makefile) == [extras]


def test_the_extra_test_suffices_to_collect_the_tests():
    """Any other module is imported by a test that is skipped without it.

    `.ci/run` begins with the suite in an environment that has no more.
    """
    # And what TensorFlow, Keras and typer require.
    suffices = BASE | EXTRAS["test"] | {"click", "google", "h5py", "ml_dtypes"}
    count = 0
    for path in sorted(TESTS.rglob("*.py")):
        if PARITY.search(str(path.relative_to(TESTS))):
            continue
        tree = ast.parse(path.read_text("utf-8"))
        imports = [x for x in tree.body if isinstance(x, ast.Import | ast.ImportFrom)]
        for module in modules_in(imports):
            if is_of_another_project(module) and (path.name, module) not in SKIPPED:
                count += 1
                assert distribution_of(module) in suffices, (path.name, module)
    assert count > 500
