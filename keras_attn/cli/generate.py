"""The `generate` command: what it takes. What it does is in `cli_write`."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

_Model = Annotated[
    Path,
    typer.Option(
        rich_help_panel="Text",
        help="Folder of a decoder such as GPT-2 and its tokenizer: a Hugging Face "
        "checkpoint (config.json, *.safetensors, vocab.json, merges.txt), or a run "
        "folder (model.keras, and tokenizer.json or vocab.json with merges.txt).",
        exists=True,
        file_okay=False,
        show_default=False,
    ),
]
_Prompt = Annotated[
    str,
    typer.Option(
        rich_help_panel="Text", help="The text to go on with; quote it.", metavar="TEXT"
    ),
]
_MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        rich_help_panel="Text",
        metavar="N",
        min=1,
        help="Most tokens to write. Default: 64, or as many as the model has positions "
        "for.",
        show_default=False,
    ),
]
_Stop = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel="Text",
        metavar="TEXT",
        help="End in front of this text, as well as at the model's own end token. May "
        "be given several times.",
        show_default=False,
    ),
]
_Temperature = Annotated[
    float | None,
    typer.Option(
        rich_help_panel="How the next token is chosen",
        metavar="X",
        min=0.01,
        help="By chance: below 1 bolder, above 1 more varied.",
        show_default=False,
    ),
]
_TopK = Annotated[
    int | None,
    typer.Option(
        rich_help_panel="How the next token is chosen",
        metavar="N",
        min=1,
        help="By chance, among the N most probable tokens.",
        show_default=False,
    ),
]
_TopP = Annotated[
    float | None,
    typer.Option(
        rich_help_panel="How the next token is chosen",
        metavar="X",
        min=0.01,
        max=1.0,
        help="By chance, among the fewest tokens that have this probability together.",
        show_default=False,
    ),
]
_Seed = Annotated[
    int | None,
    typer.Option(
        rich_help_panel="How the next token is chosen",
        metavar="N",
        min=0,
        help="By chance, and the same text again for the same seed.",
        show_default=False,
    ),
]
_Beam = Annotated[
    int | None,
    typer.Option(
        rich_help_panel="How the next token is chosen",
        metavar="N",
        min=1,
        help="The most probable of N texts side by side, written when it is found.",
        show_default=False,
    ),
]


def command(load: Callable[[str], ModuleType]) -> Callable[..., None]:
    """The command, which has a module of keras_attn imported by `load` when it runs."""

    def generate(
        model: _Model,
        prompt: _Prompt,
        max_new_tokens: _MaxNewTokens = None,
        stop: _Stop = None,
        temperature: _Temperature = None,
        top_k: _TopK = None,
        top_p: _TopP = None,
        seed: _Seed = None,
        beam: _Beam = None,
    ) -> None:
        """Go on with a text, word by word.

        Prints what the model writes behind the prompt, as it comes. The next token is
        the most probable one, unless an option below says otherwise.

        Example: keras-attn generate --model gpt2 --prompt "Once upon a time" --top-p .9
        """
        chance = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "seed": seed,
        }
        chance = {name: value for name, value in chance.items() if value is not None}
        if beam is not None and chance:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in chance)
            raise typer.BadParameter(
                f"--beam leaves nothing to chance; leave out it or {names}."
            )
        load("cli.write").write(
            model,
            prompt,
            max_new_tokens=max_new_tokens,
            stops=stop or [],
            chance=chance,
            num_beams=beam,
        )

    return generate
