"""A training step of published sizes, compiled for TPUs: memory, FLOPs, seconds.

    python benchmarks/tpu.py
    python benchmarks/tpu.py --models gpt2_small vit_base_patch16 --topologies v5e:4x4
    python benchmarks/tpu.py --small --topologies v5e:1x1    tiny: checks that it runs

One row per model and topology: mixed_bfloat16, AdamW, a fixed number of rows per chip.
Memory is per chip: that of the compiled program. FLOPs are those of `models.plan`, per
chip, because the compiler counts the body of a loop once.
Needs the extra `tpu` and up to 16 GB of memory, and takes one to ten minutes per row on
two cores.

Finished rows are kept in `--rows`, so an interrupted run continues. Results are in
`RESULTS.md`.
"""

import dataclasses
import os
import sys
import tempfile
import time
from pathlib import Path

import interleaved
import shipping

# Rows per chip, tokens per row (None: the model's, or none) and arguments of builders.
PUBLISHED = {
    "bert_base": (16, 128, {}),
    "gpt2_small": (4, 512, {}),
    "vit_base_patch16": (32, None, {}),
    "resnet50": (32, None, {}),
    "swin_tiny": (32, None, {}),
    "convnext_tiny": (32, None, {}),
    "transformer_base": (16, 128, {}),
    "rnnsearch_50": (80, 50, {}),
    "unet": (1, None, {"image_size": 572}),
    "clip_vit_base_patch32": (32, None, {}),
    "xlnet_base": (8, 256, {}),
    "sagan_discriminator_128": (16, None, {}),
    "fcn_resnet50": (4, None, {"image_size": 480}),
    "vit_small_patch16": (64, None, {}),
    "show_attend_read": (32, None, {}),
    "deit3_base": (32, None, {}),
}
SMALL = {"bert_tiny": (2, 16, {"num_layers": 1, "vocabulary_size": 64})}
# The other two numbers of chips only for these: the rest differs little.
ON_ALL = ("bert_base", "gpt2_small", "vit_base_patch16")
TOPOLOGIES = ("v5e:2x2", "v5e:1x1", "v5e:4x4")
COLUMNS = ("model", "rows per chip", "chips", "FLOPs per chip", "memory per chip")
COLUMNS += ("compiled in",)


def measured(name, topology, size):
    """The row of a model, as JSON can hold it."""
    from keras_attn import models
    from keras_attn.cli.tpu_compile import Request, compile_in_a_process
    from keras_attn.models.plans import planning, tpu_chips

    rows, sequence, overrides = size
    chips = tpu_chips.topology(topology)
    plan = planning.plan_model(
        lambda: models.create(name, **overrides),
        name,
        batch=rows,
        sequence=sequence,
        dtype="mixed_bfloat16",
    )
    answer = compile_in_a_process(
        Request(
            model=name,
            is_name=True,
            task=None,
            batch=rows * chips.devices,
            sequence=plan.sequence if plan.has_tokens else None,
            dtype="mixed_bfloat16",
            optimizer="adamw",
            topology=topology,
            overrides=overrides,
        )
    )
    return {
        "model": name,
        "format": topology,  # What `shipping.load_rows` tells rows apart by.
        "rows": rows,
        "tokens": plan.sequence if plan.has_tokens else None,
        "chips": chips.chips,
        "flops": plan.training_flops,
        **dataclasses.asdict(answer),
    }


def cells(row):
    """A row of the table as text."""
    tokens = f" × {row['tokens']} tokens" if row["tokens"] else ""
    head = [row["model"], f"{row['rows']}{tokens}", row["format"]]
    head.append(f"{row['flops'] / 1e12:.3g} T")
    if row["error"] and not row["refused"]:
        return [*head, row["error"][: shipping.ERROR_CHARACTERS], ""]
    memory = row["refused"] or row["arguments"] + row["temporary"]
    needed = f"{memory / 1e9:.2f} GB" + (": too much" if row["refused"] else "")
    return [*head, needed, "" if row["refused"] else f"{row['seconds']:.0f} s"]


def main():
    """Prints a row of the table for each model and topology."""
    parser = interleaved.new_parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=[*PUBLISHED])
    parser.add_argument("--topologies", nargs="+", default=[*TOPOLOGIES])
    parser.add_argument(
        "--rows",
        type=Path,
        default=Path("runs/tpu.json"),
        help="file of finished rows; remove it to start over",
    )
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.small:
            arguments.rows = Path(folder, "rows.json")
        sizes = SMALL if arguments.small else PUBLISHED
        print_table(arguments, {x: sizes[x] for x in arguments.models or sizes})


def print_table(arguments, sizes):
    """Compiles the rows that are not finished, and prints all."""
    rows = shipping.load_rows(arguments.rows)
    work = [
        (name, topology)
        for topology in arguments.topologies
        for name in sizes
        if arguments.models
        or arguments.small
        or topology == TOPOLOGIES[0]
        or name in ON_ALL
    ]
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|", flush=True)
    for number, key in enumerate(work, 1):
        found = rows.get(key, {})
        if not (found.get("seconds") or found.get("refused")):
            began = time.strftime("%H:%M:%S")
            progress = f"{began} {number} of {len(work)}: {key[0]} for {key[1]}"
            print(progress, file=sys.stderr, flush=True)
            rows[key] = measured(*key, sizes[key[0]])
            arguments.rows.parent.mkdir(parents=True, exist_ok=True)
            shipping.save_rows(arguments.rows, rows)
        print(f"| {' | '.join(cells(rows[key]))} |", flush=True)


if __name__ == "__main__":
    main()
