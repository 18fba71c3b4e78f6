"""Compiles a training step for TPUs, in a process of its own: `keras-attn plan --tpu`.

JAX, libtpu and their environment are settings of a process, and the commands run on
TensorFlow. The request is the last argument and the answer the last line of the output,
both JSON.

Legend: B batch.
"""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "f32": 4}
# The result of an all-reduce: one shape, or a tuple of them.
_ALL_REDUCE = re.compile(r" = (\(.*?\)|\S+) all-reduce(?:-start)?\(")
_SHAPE = re.compile(rf"({'|'.join(_WIDTHS)})\[([\d,]*)\]")
# The line of a traceback that names the exception.
_EXCEPTION = re.compile(r"^(?:[\w.]*Error|[\w.]*Exception): .*", re.M)
_TOO_MUCH = re.compile(
    r"\(?([\d.]+)([MG])\)? (?:exceeds available|of [\d.]+G) ?hbm", re.I
)


@dataclass(frozen=True)
class Request:
    """A program to compile.

    Attributes:
        model: What the user calls the model: a name or a path.
        is_name: Whether it is a name of the registry.
        task: The head of a checkpoint folder.
        batch: B, of all devices together.
        sequence: Tokens per row; None for a model without.
        dtype: The dtype policy; None: the model's own.
        optimizer: Name of the optimizer.
        topology: Of the TPUs.
        overrides: Arguments of the builder of a name.
    """

    model: str
    is_name: bool
    task: str | None
    batch: int
    sequence: int | None
    dtype: str | None
    optimizer: str
    topology: str
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """The compiler's result, in bytes of one device.

    Attributes:
        arguments: Weights, state of the optimizer, inputs and labels.
        results: Weights, state of the optimizer and metrics.
        temporary: At the peak, besides these.
        reduced: What is added up over all devices.
        seconds: How long the compilation took.
        refused: What the compiler needed, if that is more than a device has; the other
            fields are then 0.
        error: Why compiling failed; None if it succeeded.
    """

    arguments: int = 0
    results: int = 0
    temporary: int = 0
    reduced: int = 0
    seconds: float = 0.0
    refused: int = 0
    error: str | None = None


def compile_in_a_process(request: Request) -> Answer:
    """Compiles a request in a new process.

    Raises:
        ImportError: If libtpu is not installed.
    """
    from keras_attn.models.plans.tpu import environment

    variables = {**os.environ, **environment()}
    command = [sys.executable, "-m", "keras_attn.cli.tpu_compile"]
    done = subprocess.run(
        [*command, json.dumps(vars(request))],
        env=variables,
        capture_output=True,
        text=True,
        errors="replace",
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        errors = _EXCEPTION.findall(done.stderr)
        last = errors[-1] if errors else f"exit code {done.returncode}"
        return Answer(error=last)
    return Answer(**json.loads(lines[-1]))


def answer(request: Request) -> Answer:
    """Compiles a request in this process."""
    import jax
    import keras

    from keras_attn import models
    from keras_attn.cli.opened_model import build_model
    from keras_attn.models.parts.keras_state import undone, without_allocating
    from keras_attn.models.plans.step_graph import dtype_policy, input_specs
    from keras_attn.models.plans.tpu import compile_training_step

    def specs_of(tree):
        return jax.tree.map(
            lambda each: jax.ShapeDtypeStruct(
                each.shape, keras.backend.standardize_dtype(each.dtype)
            ),
            tree,
        )

    with undone(), dtype_policy(request.dtype), without_allocating():
        if request.is_name:
            model = models.create(request.model, **request.overrides)
        else:
            model = build_model(Path(request.model), request.task)
        inputs = specs_of(input_specs(model, request.batch, request.sequence))
        outputs = jax.eval_shape(lambda x: model(x, training=False), inputs)
    model.compile(request.optimizer, keras.tree.map_structure(_loss, outputs))
    try:
        program = compile_training_step(
            model,
            inputs,
            keras.tree.map_structure(_labels, outputs),
            topology=request.topology,
        )
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        found = _TOO_MUCH.search(str(error))
        scale = {"M": 2**20, "G": 2**30}
        needed = int(float(found[1]) * scale[found[2]]) if found else 0
        return Answer(refused=needed, error=str(error).partition("\n")[0])
    memory = program.memory
    return Answer(
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        memory.temp_size_in_bytes,
        reduced_bytes(program.text) if program.devices > 1 else 0,
        program.seconds,
    )


def reduced_bytes(text: str) -> int:
    """Bytes of the results of all all-reduces of a program.

    Args:
        text: HLO.
    """
    return sum(
        _WIDTHS[kind] * math.prod(int(n) for n in sizes.split(",") if n)
        for result in _ALL_REDUCE.findall(text)
        for kind, sizes in _SHAPE.findall(result)
    )


def _has_classes(output) -> bool:
    return len(output.shape) > 1 and output.shape[-1] > 1


def _loss(output) -> Any:
    """A loss for an output: cross-entropy of its last axis, or squares of a number."""
    import keras
    import numpy as np

    if not np.issubdtype(output.dtype, np.floating) and output.dtype != "bfloat16":
        return None
    if _has_classes(output):
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return keras.losses.MeanSquaredError()


def _labels(output) -> Any:
    import jax

    if _has_classes(output):
        return jax.ShapeDtypeStruct(output.shape[:-1], "int32")
    return jax.ShapeDtypeStruct(output.shape, "float32")


def main() -> None:
    """Answers the request of the last argument on the last line."""
    request = Request(**json.loads(sys.argv[-1]))
    print(json.dumps(vars(answer(request))))


if __name__ == "__main__":
    main()
