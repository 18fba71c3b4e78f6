"""The examples in the docstrings of public names stand alone, as a user pastes them.

An example that does not run alone says in front of it why: "Needs a folder of photos:".
It is only read: it defines what it uses, and the library has what it takes from there.
"""

import ast
import builtins
import importlib
import inspect
import re
import textwrap

import pytest
from test_api import PUBLIC

_FENCE = re.compile(
    r"(?:^ *(?P<needs>Needs [^\n]*):\n\n)?^ *```python\n(?P<code>.*?)^ *```$",
    re.M | re.S,
)
# A second of CPU and more, most of it compilation.
SLOW = {
    *("data.decode_images", "data.three_augment_dataset", "training.mask_pairs"),
    *("decoding.generate", "decoding.generate_all", "models.generate_images"),
    *("training.AdversarialTrainer", "training.DPO", "training.GreedyPolicy"),
    *("viz.capture_co_attention", "viz.image_relevance"),
}


def public_objects():
    """Packages, their public names, and the methods of public classes, by name."""
    for package, names in PUBLIC.items():
        module = importlib.import_module(package)
        yield package, module
        for name in names.split():
            yield from with_members(f"{package}.{name}", getattr(module, name))


def with_members(name, public):
    """It, and what is defined in it, if it is a module beside packages or a class."""
    yield name, public
    if inspect.ismodule(public) and name not in PUBLIC:
        for each, member in vars(public).items():
            if getattr(member, "__module__", "").startswith(public.__name__):
                yield from with_members(f"{name}.{each}", member)
    elif inspect.isclass(public):
        for owner in public.__mro__:
            if owner.__module__.startswith("keras_attn"):
                for each in vars(owner):
                    yield f"{name}.{each}", getattr(public, each, None)


def examples():
    """(name, what it needs or None, code) of each example, once."""
    found = {}
    for name, public in public_objects():
        for match in _FENCE.finditer(getattr(public, "__doc__", None) or ""):
            name = name.removeprefix("keras_attn.")
            found.setdefault(match.group(), (name, match["needs"], match["code"]))
    return [
        pytest.param(
            needs,
            textwrap.dedent(code),
            id=name,
            marks=pytest.mark.compiled if name in SLOW else (),
        )
        for name, needs, code in found.values()
    ]


EXAMPLES = examples()


@pytest.mark.parametrize(("needs", "code"), EXAMPLES)
def test_an_example_stands_alone(needs, code, tmp_path, monkeypatch):
    assert len([line for line in code.splitlines() if line.strip()]) <= 8
    monkeypatch.chdir(tmp_path)
    if needs:
        check_names(code)
    else:
        exec(compile(code, "example", "exec"), {})


def check_names(code):
    """Finds every name of an example, and the arguments of the library's functions."""
    tree = ast.parse(code)
    nodes = [*ast.walk(tree)]
    library, others = {}, {*dir(builtins)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            for each in node.names:
                library[each.name] = getattr(module, each.name)
        elif isinstance(node, ast.Import):
            others |= {x.asname or x.name.partition(".")[0] for x in node.names}
        elif isinstance(node, ast.FunctionDef):
            others |= {node.name, *(each.arg for each in node.args.args)}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            others.add(node.id)
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    assert not used - {*library} - others

    def found(node):
        """What an expression such as `models.load_checkpoint` is, or None."""
        if isinstance(node, ast.Name):
            return library.get(node.id)
        owner = found(node.value) if isinstance(node, ast.Attribute) else None
        return None if owner is None else getattr(owner, node.attr)

    for node in nodes:
        if isinstance(node, ast.Attribute):
            found(node)
        elif isinstance(node, ast.Call) and (function := found(node.func)):
            given = [x for x in node.args if not isinstance(x, ast.Starred)]
            named = {x.arg: None for x in node.keywords if x.arg}
            inspect.signature(function).bind_partial(*given, **named)


@pytest.mark.parametrize(
    "code",
    [
        "model.fit()",
        "from keras_attn import models\nmodels.load_checkpoints('folder')",
        "from keras_attn import data\ndata.read_yolo('folder', split_name='val')",
        "from keras_attn import read_yolo",
    ],
)
def test_a_wrong_example_is_noticed(code):
    with pytest.raises((AssertionError, AttributeError, TypeError)):
        check_names(code)
