"""The model card of a fine-tuned folder, `README.md`."""

import json
from pathlib import Path
from typing import Any

import keras

import keras_attn
from keras_attn.cli.finetuning.job import Job
from keras_attn.cli.finetuning.kinds import TASKS
from keras_attn.cli.finetuning.result import Result
from keras_attn.files.hub_names import is_hub_name, parse_hub_name
from keras_attn.files.writing import write_atomically
from keras_attn.models.checkpoints.publishing import markdown_line

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
    if is_hub_name(settings.model):
        name, _ = parse_hub_name(settings.model)
    how = "fine-tuned" if result.is_pretrained else "trained from random weights"
    base = f"base_model: {json.dumps(name)}\n" if result.is_pretrained else ""
    data = "\n".join(f"- {markdown_line(line)}" for line in job.lines())
    setup = (
        f"{model.count_params():,} parameters, learning rate {job.learning_rate:g}, "
        f"precision {settings.precision}"
        + (f", LoRA of rank {settings.lora}" if settings.lora else "")
        + (f", kernels in {settings.quantize}" if settings.quantize else "")
    )
    versions = f"keras-attn {keras_attn.__version__}, Keras {keras.__version__}"
    figures = "".join(f"| {x} | {value:.4g} |\n" for x, value in result.figures.items())
    remarks = ""
    if "most_frequent_class" in result.figures:
        text = "`most_frequent_class` is the accuracy of always answering that class."
        remarks += f"{text}\n\n"
    if result.label_scale is not None:
        remarks += (
            "The loss is computed with labels scaled to mean 0 and deviation 1; the "
            "errors and the predictions are in the unit of the labels, of mean "
            f"{result.label_scale['mean']:.6g} and deviation "
            f"{result.label_scale['deviation']:.6g}.\n\n"
        )
    if result.class_names:
        names = ", ".join(map(markdown_line, result.class_names))
        remarks += f"## Classes\n\n{names}\n\n"
    card = f"""---
library_name: keras-attn
{base}tags: [keras, keras-attn, {result.task.replace("_", "-")}]
---

# {title}

`{name}`, {how} on {TASKS[result.task]}.

## Data

`{settings.data.name}`, because {markdown_line(job.kind.why)}:

{data}

## Training

```
{settings.command}
```

{setup}; {versions}.

## Figures on the validation data

| figure | value |
|---|---|
{figures}
{remarks}## Use

```
keras-attn predict {title} FILE
keras-attn export {title} {title}/model.onnx
```
"""
    write_atomically(folder / _NAME, card.encode())
