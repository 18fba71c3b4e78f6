"""The model card of a fine-tuned folder, `README.md`."""

import json
import re
from pathlib import Path
from typing import Any

import keras

import keras_attn
from keras_attn.cli.finetuning.job import Job
from keras_attn.cli.finetuning.kinds import TASKS
from keras_attn.cli.finetuning.result import Result
from keras_attn.files.writing import write_atomically

_NAME = "README.md"


def write_card(folder: Path, model: Any, job: Job, result: Result) -> None:
    """Writes what the model is, from what it learned, and how good it is.

    Args:
        folder: The fine-tuned folder.
        model: The model.
        job: What was done.
        result: What it knows and what was measured.
    """
    settings = job.settings
    title, name = folder.resolve().name, Path(settings.model).name
    how = "fine-tuned" if result.is_pretrained else "trained from random weights"
    data = [f"- {_line(line)}" for line in job.lines()]
    lines = [
        "---",
        "library_name: keras-attn",
        *([f"base_model: {json.dumps(name)}"] if result.is_pretrained else []),
        f"tags: [keras, keras-attn, {result.task.replace('_', '-')}]",
        "---",
        "",
        f"# {title}",
        "",
        f"`{name}`, {how} on {TASKS[result.task]}.",
        "",
        "## Data",
        "",
        f"`{settings.data.name}`, because {_line(job.kind.why)}:",
        "",
        *data,
        "",
        "## Training",
        "",
        "```",
        settings.command,
        "```",
        "",
        f"{model.count_params():,} parameters, learning rate {job.learning_rate:g}, "
        f"precision {settings.precision}"
        + (f", LoRA of rank {settings.lora}" if settings.lora else "")
        + (f", kernels in {settings.quantize}" if settings.quantize else "")
        + f"; keras-attn {keras_attn.__version__}, Keras {keras.__version__}.",
        "",
        "## Figures on the validation data",
        "",
        "| figure | value |",
        "|---|---|",
        *(f"| {name} | {value:.4g} |" for name, value in result.figures.items()),
        "",
    ]
    if "most_frequent_class" in result.figures:
        lines += [
            "`most_frequent_class` is the accuracy of always answering that class.",
            "",
        ]
    if result.label_scale is not None:
        lines += [
            "The loss is computed with labels scaled to mean 0 and deviation 1; the "
            "errors and the predictions are in the unit of the labels, of mean "
            f"{result.label_scale['mean']:.6g} and deviation "
            f"{result.label_scale['deviation']:.6g}.",
            "",
        ]
    if result.class_names:
        names = ", ".join(map(_line, result.class_names))
        lines += ["## Classes", "", names, ""]
    lines += [
        "## Use",
        "",
        "```",
        f"keras-attn predict {title} FILE",
        f"keras-attn export {title} {title}/model.onnx",
        "```",
        "",
    ]
    write_atomically(folder / _NAME, "\n".join(lines).encode())


def _line(text: str) -> str:
    """A text as one line of Markdown: a label may have several, and marks."""
    return re.sub(r"([\\`*<>\[\]|])", r"\\\1", " ".join(text.split()))
