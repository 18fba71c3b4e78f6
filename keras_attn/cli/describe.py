"""`keras-attn describe`: the card of a model, or what a file or folder holds.

Opening a model: `cli/opened_model.py`; the cards: `models/catalog/registry.py`.
"""

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_attn.cli.opened_model import (
    build_model,
    find_model,
    is_checkpoint,
    is_translator,
    shown_name,
)
from keras_attn.cli.options import Json, ModelOrName, Task
from keras_attn.cli.published import (
    spell_score,
    spell_size,
    spell_training,
    spell_weights,
)
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import console, print_json, print_rows, working

if TYPE_CHECKING:
    import keras


def describe(model: ModelOrName, task: Task = None, json: Json = False) -> None:
    """Show a model's card: paper, inputs, outputs, size, how to build it.

    The arguments of a name's builder are what `models.create` and `keras-attn finetune
    --override` take. Of a file or a folder it reads the sizes, not the weights.

    Example: keras-attn describe rnnsearch_50

    Example: keras-attn describe checkpoints/MiniLM --task sentence_encoder
    """
    with importing_tensorflow():
        from keras_attn.models.parts.keras_state import undone, without_allocating

    path = find_model(model, task)
    if path is None:
        if json:
            print_json(_describe_card(model))
            return
        title, rows = _card(model)
    else:
        with working("Reading the sizes"), undone(), without_allocating():
            built = build_model(path, task)
            title = f"{shown_name(path)}: {built.name}"
            rows = _rows(path, task, built)
        if json:
            print_json(_described(path, dict(rows), built))
            return
    print_rows(title, rows)


def _describe_card(name: str) -> dict[str, Any]:
    """The output of `--json` for a name."""
    from keras_attn import models
    from keras_attn.models.catalog.registry import builder_arguments

    arguments = {
        argument: {"value": value, "description": text}
        for argument, (value, text) in builder_arguments(name).items()
    }
    return {
        **dataclasses.asdict(models.describe(name)),
        "counted_parameters": models.count_parameters(name),
        "arguments": arguments,
    }


def _card(name: str) -> tuple[str, list[tuple[str, str]]]:
    """The title and the rows for a name of the registry."""
    from keras_attn import models

    card = models.describe(name)
    with console.status("Counting parameters"):
        counted = models.count_parameters(name)
    published = "the paper gives no count"
    if card.parameters is not None:
        published = f"{card.parameters:,} parameters"
    return f"{name}: {card.title}", [
        ("paper", card.paper),
        ("task", card.task),
        ("inputs", _lines(card.inputs)),
        ("outputs", _lines(card.outputs)),
        ("published", published),
        ("counted", f"{counted:,} parameters"),
        ("layers", spell_size(card.layers, "")),
        ("width", spell_size(card.width, "")),
        ("heads", spell_size(card.heads, "")),
        ("trained on", spell_training(card.training)),
        ("scores", "\n".join(map(spell_score, card.scores))),
        ("weights", spell_weights(card.weights)),
        ("notes", card.notes),
        ("arguments", _arguments(name)),
        (
            "in Python",
            f"from keras_attn import models\nmodel = models.create({name!r})",
        ),
    ]


def _arguments(name: str) -> str:
    """One line per argument of the builder: its value, and what it is."""
    from keras_attn.models.catalog.registry import builder_arguments

    lines = []
    for argument, (value, text) in builder_arguments(name).items():
        first, *_ = re.split(r"(?<=[a-zA-Z)`\]])\. ", text, maxsplit=1)
        lines.append(f"{argument}={value!r}: {first.removesuffix('.')}")
    return "\n".join(lines)


def _rows(path: Path, task: str | None, model: "keras.Model") -> list[tuple[str, str]]:
    """The rows for the model of a file or a folder."""
    from keras_attn.files.hub_names import get_hub_name
    from keras_attn.files.reading import get_file_size
    from keras_attn.models.parts.functional import input_structure, output_structure

    place = repr(get_hub_name(path) or str(path))
    tasks = ""
    if is_checkpoint(path):
        from keras_attn.models.checkpoints.families import get_family
        from keras_attn.models.checkpoints.folder import Folder

        tasks = ", ".join(get_family(Folder(path).config).tasks)
        arguments = place if task is None else f"{place}, {task!r}"
        imports = "from keras_attn import models"
        call = f"model = models.load_checkpoint({arguments})"
    elif is_translator(path):
        imports = "from keras_attn.translator import Translator"
        call = f"translator = Translator.load({place})"
    else:
        file = path / "model.keras" if path.is_dir() else path
        imports = "import keras\nfrom keras_attn import models"
        call = f"model = keras.saving.load_model({str(file)!r})"
    return [
        ("--task", tasks),
        ("inputs", _tensors(input_structure(model))),
        ("outputs", _tensors(output_structure(model), "output")),
        ("counted", f"{model.count_params():,} parameters"),
        ("on disk", f"{get_file_size(path):,} bytes"),
        ("in Python", f"{imports}\n{call}"),
    ]


def _described(
    path: Path, found: dict[str, str], model: "keras.Model"
) -> dict[str, Any]:
    """The output of `--json` for a file or a folder, from the rows of the table."""
    from keras_attn.files.reading import get_file_size

    return {
        "name": shown_name(path),
        "model": model.name,
        "tasks": found["--task"].split(", ") if found["--task"] else [],
        "inputs": _by_name(found["inputs"]),
        "outputs": _by_name(found["outputs"]),
        "counted_parameters": model.count_params(),
        "bytes": get_file_size(path),
        "python": found["in Python"],
    }


def _by_name(lines: str) -> dict[str, str]:
    """The lines of `_tensors` as a dictionary."""
    return dict(line.split(": ", 1) for line in lines.split("\n"))


def _tensors(structure: Any, name: str | None = None) -> str:
    """One line per symbolic tensor: its name, dtype and shape; ? is any size.

    Args:
        structure: A tensor, or tensors in dictionaries and lists.
        name: The name of a single tensor. Default: its own.
    """
    from keras import tree

    lines = []
    for keys, tensor in tree.flatten_with_path(structure):
        sizes = ", ".join("?" if size is None else str(size) for size in tensor.shape)
        label = ".".join(map(str, keys)) or name or tensor.name
        lines.append(f"{label}: {tensor.dtype} ({sizes})")
    return "\n".join(lines)


def _lines(tensors: dict[str, str]) -> str:
    """One line per input or output: its name and what it holds."""
    return "\n".join(f"{name}: {text}" for name, text in tensors.items())
