"""The `train` command: what it takes. What it does is in `cli_train`."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

import typer


def command(load: Callable[[str], ModuleType]) -> Callable[..., None]:
    """The command; `load` imports what brings TensorFlow when it runs."""

    def train(
        source: Annotated[
            Path,
            typer.Option(
                rich_help_panel="Texts",
                help="Text to translate: UTF-8, a sentence a line; gzip if it ends "
                "in .gz.",
                exists=True,
                dir_okay=False,
                show_default=False,
            ),
        ],
        target: Annotated[
            Path,
            typer.Option(
                rich_help_panel="Texts",
                help="Its translation: line n translates line n of --source.",
                exists=True,
                dir_okay=False,
                show_default=False,
            ),
        ],
        validation_source: Annotated[
            Path | None,
            typer.Option(
                rich_help_panel="Texts",
                help="Held-out text, to score on. Default: see --validation-fraction.",
                exists=True,
                dir_okay=False,
                show_default=False,
            ),
        ] = None,
        validation_target: Annotated[
            Path | None,
            typer.Option(
                rich_help_panel="Texts",
                help="Its translation.",
                exists=True,
                dir_okay=False,
                show_default=False,
            ),
        ] = None,
        validation_fraction: Annotated[
            float,
            typer.Option(
                rich_help_panel="Texts",
                metavar="X",
                min=0.0001,
                max=0.5,
                help="Share of the pairs to hold out where no validation files are "
                "given.",
            ),
        ] = 0.1,
        model: Annotated[
            str,
            typer.Option(
                rich_help_panel="Model",
                help="seq2seq_sutskever, seq2seq_context, rnnsearch_30 or "
                "rnnsearch_50.",
            ),
        ] = "rnnsearch_50",
        tokenizer: Annotated[
            Literal["subword", "character"],
            typer.Option(
                rich_help_panel="Model",
                help="What a token is: a byte-pair subword or a character.",
            ),
        ] = "subword",
        vocabulary_size: Annotated[
            int,
            typer.Option(
                rich_help_panel="Model",
                metavar="N",
                min=5,
                help="Most subwords of each side.",
            ),
        ] = 8000,
        max_length: Annotated[
            int | None,
            typer.Option(
                rich_help_panel="Model",
                metavar="N",
                min=2,
                help="Tokens at which a text is cut. Default: 50 subwords, "
                "200 characters.",
                show_default=False,
            ),
        ] = None,
        hidden_dim: Annotated[
            int,
            typer.Option(
                rich_help_panel="Model",
                metavar="N",
                min=2,
                help="Units of each recurrent layer; papers: 1000.",
            ),
        ] = 256,
        embedding_dim: Annotated[
            int,
            typer.Option(
                rich_help_panel="Model",
                metavar="N",
                min=1,
                help="Width of a token's embedding; papers: 100-1000.",
            ),
        ] = 256,
        dropout: Annotated[
            float,
            typer.Option(
                rich_help_panel="Model",
                metavar="X",
                min=0.0,
                max=0.9,
                help="Probability, in [0, 0.9]; papers: 0.",
            ),
        ] = 0.2,
        epochs: Annotated[
            int,
            typer.Option(
                rich_help_panel="Training",
                metavar="N",
                min=1,
                help="Passes over the pairs.",
            ),
        ] = 10,
        batch_size: Annotated[
            int,
            typer.Option(
                rich_help_panel="Training", metavar="N", min=1, help="Pairs a step."
            ),
        ] = 64,
        learning_rate: Annotated[
            float,
            typer.Option(
                rich_help_panel="Training",
                metavar="X",
                min=1e-8,
                help="Of Adam, falling to zero along a cosine.",
            ),
        ] = 1e-3,
        score: Annotated[
            Literal["bleu", "exact_match"],
            typer.Option(
                rich_help_panel="Training",
                help="How held-out translations are judged: BLEU (0 to 100), or the "
                "share that equal their reference to the letter.",
            ),
        ] = "bleu",
        run_dir: Annotated[
            Path,
            typer.Option(
                rich_help_panel="Training",
                help="Folder for the translator, its history and TensorBoard logs. Run "
                "the same command again and an interrupted run goes on.",
                file_okay=False,
            ),
        ] = Path("runs/translator"),
        seed: Annotated[
            int,
            typer.Option(
                rich_help_panel="Training",
                metavar="N",
                min=0,
                help="Of weights, order and what is held out.",
            ),
        ] = 0,
    ) -> None:
        """Train a translator on line-aligned text.

        Writes a folder that `attention` and `export` take; a run that was interrupted
        goes on from its last whole epoch when the same command is given again.

        Example: keras-attn train --source train.en --target train.de --run-dir
        runs/en-de
        """
        if (validation_source is None) != (validation_target is None):
            raise typer.BadParameter(
                "--validation-source and --validation-target go together."
            )
        load("cli.train").train(
            source=source,
            target=target,
            validation_source=validation_source,
            validation_target=validation_target,
            validation_fraction=validation_fraction,
            model=model,
            tokenizer=tokenizer,
            vocabulary_size=vocabulary_size,
            max_length=max_length,
            hidden_dim=hidden_dim,
            embedding_dim=embedding_dim,
            dropout=dropout,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            score=score,
            run_dir=run_dir,
            seed=seed,
        )

    return train
