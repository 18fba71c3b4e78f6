"""Commands whose options are the fields of dataclasses."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.options import Panel, with_options


@dataclass(frozen=True)
class Sizes:
    """Options with and without a default, and one that may be given several times."""

    name: Annotated[str, typer.Argument(help="A name.")]
    width: Annotated[int, Panel("Sizes").count("Columns.")] = 3
    extra: Annotated[list[str], Panel("Sizes").option("More.")] = field(
        default_factory=list
    )


def run(*line):
    app, calls = typer.Typer(), []

    @with_options
    def command(
        context: typer.Context,
        sizes: Sizes,
        plan: Annotated[bool, typer.Option("--plan")] = False,
    ):
        """Runs."""
        calls.append((context.params["width"], sizes, plan))

    app.command()(command)
    return CliRunner().invoke(app, [str(each) for each in line]), calls


def test_fields_are_options():
    _, calls = run("a")
    assert calls == [(3, Sizes("a"), False)]
    _, calls = run("a", "--width", 5, "--extra", "x", "--extra", "y", "--plan")
    assert calls == [(5, Sizes("a", 5, ["x", "y"]), True)]


@pytest.mark.parametrize("line", [(), ("a", "--width", 0), ("a", "--depth", 3)])
def test_wrong_options_are_refused(line):
    done, calls = run(*line)
    assert done.exit_code == 2 and calls == []


def test_the_help_has_the_panels_of_fields():
    done, _ = run("--help")
    assert "Sizes" in done.output and "Columns." in done.output


def test_what_identifies_a_run_of_fine_tuning():
    """The keys of `settings.json`, which folders of earlier versions have."""
    settings = Settings("model", Path("data"), lora=4, save_adapters=True)
    assert settings.identity() == {
        **{"model": "model", "data": "data", "validation_fraction": 0.1},
        **{"header": True, "max_length": 128, "augment": True, "epochs": 3},
        **{"batch_size": 16, "precision": "float32", "seed": 0, "lora": 4},
        "override": [],
    }
    with pytest.raises(ValueError, match="--quantize needs --lora RANK"):
        Settings("model", Path("data"), quantize="int8")
