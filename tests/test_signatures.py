"""The source alone shows every argument of a builder and of a block.

Editors, GitHub and tools such as griffe read signatures without running the code, so no
decorator may add an argument. The source is parsed by `ast`; what `inspect.signature`
finds at run time must be the same.
"""

import ast
import functools
import importlib
import inspect
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
Parameter = inspect.Parameter


@functools.cache
def parsed(path):
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def path_of(module):
    """The file of a module; those of the models are at the top."""
    path = module.replace(".", "/") + ".py"
    return path.removeprefix("keras_attn/") if "models" in module else path


def exported(package):
    """Module of each public name of a package, by its imports."""
    return {
        alias.name: node.module
        for node in parsed(f"{package}/__init__.py").body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


# Module in which each is defined, by its name.
BUILDERS = {
    name: module
    for name, module in exported("models").items()
    if name.startswith("build_")
}
BLOCKS = {
    name: module
    for name, module in exported("keras_attn/layers").items()
    if module.startswith("keras_attn.layers.blocks.")
}


def definition(name, module):
    """The function that takes the arguments, in the source."""
    (node,) = (
        each
        for each in parsed(path_of(module)).body
        if isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name == name
    )
    if isinstance(node, ast.FunctionDef):
        return node
    (node,) = (
        each
        for each in node.body
        if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    )
    return node


def in_source(name, module):
    """Kind, annotation and default of each argument but `self`; None for none."""
    found = definition(name, module).args
    positional = [each for each in found.args if each.arg != "self"]
    missing = len(positional) - len(found.defaults)
    groups = (
        (Parameter.POSITIONAL_OR_KEYWORD, positional, [None] * missing, found.defaults),
        (Parameter.VAR_POSITIONAL, [found.vararg], [None], []),
        (Parameter.KEYWORD_ONLY, found.kwonlyargs, [], found.kw_defaults),
        (Parameter.VAR_KEYWORD, [found.kwarg], [None], []),
    )
    return {
        each.arg: (kind, each.annotation, default)
        for kind, arguments, without, defaults in groups
        for each, default in zip(arguments, [*without, *defaults], strict=True)
        if each is not None
    }


@pytest.mark.parametrize("name, module", [*BUILDERS.items(), *BLOCKS.items()])
def test_the_source_shows_every_argument(name, module):
    shown = in_source(name, module)
    names = vars(importlib.import_module(module))
    parameters = inspect.signature(names[name]).parameters
    assert {x: kind for x, (kind, _, _) in shown.items()} == {
        x: parameter.kind for x, parameter in parameters.items()
    }
    for argument, (kind, annotation, default) in shown.items():
        if kind is Parameter.VAR_KEYWORD:
            # Keras' own arguments of every layer.
            assert name in BLOCKS and argument == "kwargs"
            continue
        assert annotation is not None, argument
        found = parameters[argument].default
        if default is None:
            assert found is Parameter.empty, argument
        else:
            # In the words of the module, such as `FROM_VARIANT`.
            assert found == eval(ast.unparse(default), names), argument


def test_all_builders_and_blocks_are_compared():
    counts = {
        name: len(in_source(name, module))
        for name, module in {**BUILDERS, **BLOCKS}.items()
    }
    assert {"build_bert", "build_clip", "build_swin", "build_mae"} <= set(counts)
    assert {"TransformerDecoderBlock", "XLNetBlock", "FeedForward"} <= set(counts)
    assert counts["build_faster_rcnn"] > 20 and counts["TransformerEncoderBlock"] == 18
    assert sum(counts.values()) > 800
