"""Counts what a step of each model costs, into `docs/site/costs.json`.

    python docs/site/count_costs.py             models that are not in the file yet
    python docs/site/count_costs.py vit_base_patch16 unet    these, again

To count all takes many minutes, so the build of the site reads the file.
Models of images of any size are counted at `IMAGE_SIZE`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from keras_attn import models

COSTS = Path(__file__).with_name("costs.json")
IMAGE_SIZE = 512
FIGURES = (
    "sequence",
    "parameters",
    "forward_flops",
    "weights",
    "training_memory",
    "generation_memory",
)


def count(name: str) -> dict[str, Any]:
    """The figures of `plan` for one row: FLOPs, and bytes in float32 with AdamW.

    Args:
        name: A name of the registry.
    """
    options = {}
    try:
        plan = models.plan(name)
    except ValueError as error:
        if "`image_size` must be given" not in str(error):
            raise
        options = {"image_size": IMAGE_SIZE}
        plan = models.plan(name, **options)
    return options | {figure: getattr(plan, figure) for figure in FIGURES}


def write(costs: dict[str, dict[str, Any]]) -> None:
    """Writes the file, a line a model, beside the old one first."""
    lines = (
        f"  {json.dumps(name)}: {json.dumps(costs[name])}" for name in sorted(costs)
    )
    beside = COSTS.with_suffix(".new")
    beside.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    os.replace(beside, COSTS)


def main() -> None:
    """Counts the models that the command names, or those that are missing."""
    costs = json.loads(COSTS.read_text("utf-8")) if COSTS.is_file() else {}
    for name in sys.argv[1:] or sorted(set(models.list_models()) - set(costs)):
        costs[name] = count(name)
        write(costs)
        print(name, flush=True)


if __name__ == "__main__":
    main()
