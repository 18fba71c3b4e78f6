"""`keras-attn finetune`: a model and a user's data to a fine-tuned folder.

The options: `cli/finetuning/settings.py`. A run: `cli/finetuning/run.py`, which imports
the task's own file.
"""

from typing import Annotated

import typer

from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.options import Panel, with_options
from keras_attn.cli.processes import ProcessOptions, train_in_processes
from keras_attn.cli.startup import importing_tensorflow


@with_options
def finetune(
    context: typer.Context,
    settings: Settings,
    processes: ProcessOptions,
    plan: Annotated[
        bool,
        Panel().option(
            "Print what was found in the data and what the run costs, and stop.",
            "--plan",
        ),
    ] = False,
) -> None:
    """Fine-tune a model on your own data.

    The task is found in the columns or folders of the data, and said before anything
    else; so is the cost. The folder that is written has the model (a Hugging Face
    checkpoint, if its family has one), class names, tokenizer or preprocessing, and a
    model card with the command and the figures; `keras-attn predict`, `export` and
    `finetune` take it.

    Example: keras-attn finetune checkpoints/MiniLM reviews.csv --run-dir runs/reviews

    Example: keras-attn finetune checkpoints/vit-base photos/ --epochs 5 --lora 8

    Example: keras-attn finetune checkpoints/gpt2 answers.jsonl --max-length 256 --plan

    Example: keras-attn finetune checkpoints/gpt2 answers.jsonl --processes 4
    """

    def train() -> None:
        with importing_tensorflow():
            from keras_attn.cli.finetuning.run import run

        run(settings, only_plan=plan)

    train_in_processes(
        train, processes, line=context.obj, batch_size=settings.batch_size
    )
