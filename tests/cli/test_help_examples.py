"""The examples in the help of each command are commands that can be typed."""

import importlib
import inspect
import itertools
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from keras_attn import models
from keras_attn.cli.app import COMMANDS


def examples():
    """The command lines in the help of each command, and in which help they are."""
    for name in COMMANDS:
        function = {"list": "list_models"}.get(name, name)
        module = importlib.import_module(f"keras_attn.cli.{function}")
        text = inspect.getdoc(getattr(module, function)) or ""
        for paragraph in text.split("\n\n"):
            if paragraph.startswith("Example: keras-attn "):
                line = " ".join(paragraph.removeprefix("Example: keras-attn ").split())
                yield pytest.param(shlex.split(line), id=line[:40])


@pytest.mark.parametrize("words", list(examples()))
def test_examples_are_commands(words, tmp_path, monkeypatch):
    """Each option exists and takes its value; each model is a name or a path."""
    monkeypatch.chdir(tmp_path)
    name, *arguments = words[: words.index("<")] if "<" in words else words
    path_like = re.compile(r"[\w-]+/[\w./-]*|[\w-]+\.(csv|jsonl|jpg|keras|onnx|de|en)")
    outputs = {"--output", "--run-dir"}
    for before, word in itertools.pairwise(["", *arguments]):
        if path_like.fullmatch(word) and before not in outputs:
            path = Path(word)
            if path.suffix and path.suffix != ".keras":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            else:
                path.mkdir(parents=True, exist_ok=True)
    for folder in ("photos", "runs/en-de"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    group = get_command(importlib.import_module("keras_attn.cli.app").app)
    parent = group.make_context("keras-attn", [name])
    command = group.get_command(parent, name)
    context = command.make_context(name, arguments, parent)
    model = context.params.get("model")
    if isinstance(model, str) and not Path(model).exists():
        assert model in models.list_models()
