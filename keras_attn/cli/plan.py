"""`keras-attn plan`: FLOPs and memory of a model, counted without allocating it.

Opening a model: `cli/opened_model.py`; counting: `models/plans/planning.py`; a whole
training run: `cli/training_runs.py`; TPUs: `models/plans/tpu_chips.py`, and
`cli/tpu_compile.py`, which compiles.
"""

from typing import TYPE_CHECKING, Annotated, Any

from keras_attn.cli.opened_model import (
    build_model,
    find_model,
    is_checkpoint,
    shown_name,
)
from keras_attn.cli.options import Json, ModelOrName, Panel, Task, with_options
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import naming_options, print_json, print_rows, say, working
from keras_attn.cli.training_runs import (
    RunOptions,
    flops_of_run,
    run_figures,
    run_on,
    say_run,
)

if TYPE_CHECKING:
    from keras_attn.cli.tpu_compile import Answer
    from keras_attn.models import Plan
    from keras_attn.models.plans.tpu_chips import StepBound, Topology

_OPTIONS = Panel()
_TPU = Panel("TPU")
_LOWER_BOUND = "of weights, optimizer and inputs, without activations"


@with_options
def plan(
    model: ModelOrName,
    options: RunOptions,
    task: Task = None,
    batch: Annotated[
        int, _OPTIONS.option("Rows per step, over all devices.", min=1)
    ] = 1,
    sequence: Annotated[
        int | None,
        _OPTIONS.option(
            "Tokens per row. Default: as many as the model has positions, or 128.",
            min=1,
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        _OPTIONS.option(
            "Keras' precision policy, such as mixed_bfloat16. Default: float32, or the "
            "policies that Keras saved with the model."
        ),
    ] = None,
    optimizer: Annotated[
        str, _OPTIONS.option("Optimizer: adamw, adam, adafactor, sgd, lion, ….")
    ] = "adamw",
    devices: Annotated[
        int,
        _OPTIONS.option(
            "Number of devices that share weights, optimizer and batch.", min=1
        ),
    ] = 1,
    tpu: Annotated[
        str | None,
        _TPU.option(
            "Whether a training step fits on TPUs, what bounds it, and its highest "
            "speed. A generation (v5e, v6e, v5p, v4, v3) and the chips along each "
            "axis, such as v5e:1x1, v5e:2x2, v6e:16x16 or v5p:8x8x16. Every device has "
            "all weights and its share of --batch.",
            metavar="TOPOLOGY",
        ),
    ] = None,
    compiled: Annotated[
        bool | None,
        _TPU.option(
            "Whether to read the memory from the program that the compiler of TPUs "
            "makes, which takes minutes and needs no TPU, or to count weights and "
            "optimizer only, which any program needs. Default: the compiler's, if "
            "libtpu is installed.",
            "--compile/--no-compile",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Estimate what a model costs, without building it: FLOPs, memory, days.

    The costs are counted in its graph; a model of a hundred layers takes a minute. The
    memory of training is counted for TensorFlow without XLA, where each operation
    stores its result; --tpu reads it from a step that XLA compiles for a TPU.

    Example: keras-attn plan gpt3_175b --devices 64 --batch 64 --dtype
    mixed_bfloat16

    Example: keras-attn plan checkpoints/bert --task classifier --batch 32

    Example: keras-attn plan gpt3_175b --tokens 300e9 --hardware v100:1024 --price 2.5

    Example: keras-attn plan gpt2_small --tpu v5e:2x2 --batch 32 --dtype mixed_bfloat16

    Example: keras-attn plan gpt2_small --tpu v5p:8x8x16 --batch 8192 --no-compile
    """
    if tpu is None and compiled is not None:
        raise ValueError("--compile and --no-compile need --tpu. Received: no --tpu")
    if tpu is not None and devices != 1:
        raise ValueError(
            "--devices is for devices that share the weights; --tpu says how many "
            f"there are. Received: --tpu {tpu} --devices {devices}"
        )
    with importing_tensorflow():
        from keras_attn import models
        from keras_attn.models.plans.planning import plan_model
        from keras_attn.models.plans.tpu_chips import topology

    options.check(tpu)
    with naming_options(topology="--tpu"):
        chips = None if tpu is None else topology(tpu)
    if chips is not None and batch % chips.devices:
        raise ValueError(
            f"--batch must be a multiple of the {chips.devices} devices of {tpu}, "
            f"among which its rows are divided. Received: {batch}"
        )
    path = find_model(model, task)
    published = models.describe(model).training if path is None else None
    amount = options.amount(model, published)
    if path is None or is_checkpoint(path):
        dtype = "float32" if dtype is None else dtype
    elif dtype is not None:
        raise ValueError(
            "--dtype is for names and checkpoint folders; a model saved by Keras has "
            f"its own policies. Received: {model!r}"
        )
    with working(f"Counting {model}"):
        counted = plan_model(
            lambda: models.create(model) if path is None else build_model(path, task),
            model if path is None else shown_name(path),
            batch=batch if chips is None else batch // chips.devices,
            sequence=sequence,
            dtype=dtype,
            optimizer=optimizer,
            devices=devices,
        )
    if chips is not None:
        answer, why = None, _LOWER_BOUND
        if compiled is not False:
            answer, why = _compile(
                chips,
                counted,
                is_required=compiled is True,
                model=model,
                is_name=path is None,
                task=task,
                batch=batch,
                dtype=dtype,
                optimizer=optimizer,
            )
        _say_tpu(counted, chips, batch, answer, why, as_json=json)
        return
    flops = None if amount is None else flops_of_run(counted, amount)
    run = None if flops is None else run_on(options, flops)
    if json:
        of_run = {} if flops is None else {"training_run": run_figures(flops, run)}
        print_json({**_figures(counted), **of_run})
        return
    size = f"{counted.batch} x {counted.sequence} tokens"
    if not counted.has_tokens:
        size = f"{counted.batch} {'row' if counted.batch == 1 else 'rows'}"
    unit = "token" if counted.has_tokens else "row"
    print_rows(f"{counted.name}: {size}", _rows(counted, unit))
    each = "one device" if counted.devices == 1 else f"each of {devices} devices"
    say(
        f"In {counted.dtype}. Memory is for {each}; FLOPs count matrix products, 2 per "
        "multiply-add. Without XLA, on a CPU or a GPU, each operation stores its "
        "result, and the arrays that it needs while it runs come on top."
        + (" Weights are random, as in a new model." if path is None else ""),
        "dim",
    )
    if amount is not None:
        say_run(counted, amount, run, published)


def _figures(counted: "Plan") -> dict[str, Any]:
    """The output of `--json` for a plan, in FLOPs and bytes."""
    derived = ["training_memory", "generation_memory"]
    derived += ["forward_flops_per_token", "training_flops_per_token"]
    return {**vars(counted), **{name: getattr(counted, name) for name in derived}}


def _compile(
    chips: "Topology", counted: "Plan", *, is_required: bool, **request: Any
) -> "tuple[Answer | None, str]":
    """The compiler's answer, and in words whose memory is shown."""
    from keras_attn.cli.tpu_compile import Request, compile_in_a_process

    length = counted.sequence if counted.has_tokens else None
    try:
        with working(f"Compiling {counted.name} for {chips.name}: this takes minutes"):
            answer = compile_in_a_process(
                Request(**request, sequence=length, topology=chips.name)
            )
    except ImportError as error:
        if is_required:
            raise
        return None, f"{_LOWER_BOUND}. {error}"
    if answer.error is not None and not answer.refused:
        if is_required:
            raise ValueError(f"--compile: compiling failed. {answer.error}")
        return None, f"{_LOWER_BOUND}: libtpu made no program: {answer.error}"
    if answer.refused:
        return answer, "of libtpu, which refuses to compile what does not fit"
    return answer, f"of the program that libtpu compiled in {answer.seconds:.0f} s"


def _say_tpu(
    counted: "Plan",
    chips: "Topology",
    batch: int,
    answer: "Answer | None",
    why: str,
    *,
    as_json: bool,
) -> None:
    """Prints whether a training step fits, what bounds it and how fast it can be."""
    from keras_attn.models.plans.tpu_chips import StepBound

    state = counted.weights + counted.optimizer_state
    arguments = state + counted.inputs
    memory: dict[str, Any] = {
        "arguments": arguments,
        "results": state,
        "temporary": None,
        "gradients": counted.gradients,
    }
    if answer is not None:
        memory = {
            "arguments": answer.arguments or arguments,
            "results": answer.results or state,
            "temporary": answer.temporary or max(answer.refused - arguments, 0),
            "gradients": answer.reduced or counted.gradients,
        }
    bound = StepBound(chips, batch, counted.training_flops, **memory)
    if as_json:
        found = {
            **memory,
            "memory": bound.memory,
            "memory_of_device": chips.chip.memory,
            "fits": bound.fits,
            "seconds": bound.seconds,
            "bound": bound.bound,
            "rows_per_second": None if bound.fits is False else bound.rows_per_second,
        }
        print_json({**_figures(counted), "tpu": {"topology": chips.name, **found}})
        return
    tokens = f" of {counted.sequence} tokens" if counted.has_tokens else ""
    title = f"{counted.name} on {chips.name}: {batch} rows{tokens}"
    print_rows(title, _tpu_rows(counted, bound))
    say(
        f"In {counted.dtype}; data-parallel, with {counted.optimizer}. The memory is "
        f"that {why}. Times are the least that published figures of the chip allow, "
        "as if compute, memory and communication overlapped entirely; products in "
        "bfloat16, which is what TPUs make of float32 by default, too.",
        "dim",
    )


def _tpu_rows(counted: "Plan", bound: "StepBound") -> list[tuple[str, str]]:
    chips, chip, seconds = bound.topology, bound.topology.chip, bound.seconds
    each = "chip" if chip.devices == 1 else "device (2 per chip)"
    step = seconds[bound.bound]
    fits = {True: "fits", False: "DOES NOT FIT", None: "may fit"}[bound.fits]
    at_least, temporary = "at least ", "unknown"
    if bound.temporary is not None:
        at_least, temporary = "", f"{short(bound.temporary)}B"
    speed = f"{short(bound.rows_per_second)}rows/s at most"
    if counted.has_tokens:
        speed += f", {short(bound.rows_per_second * counted.sequence)}tokens/s"
    rows = [
        (
            "chips",
            f"{chips.chips} x {chips.kind}: {short(chip.flops)}FLOP/s, "
            f"{short(chip.bandwidth)}B/s of memory, "
            f"{chips.links} x {short(chip.link)}B/s to others",
        ),
        (
            "memory",
            f"{at_least}{short(bound.memory)}B of {short(chip.memory)}B per {each}: "
            f"{fits}",
        ),
        ("  arguments", f"{short(bound.arguments)}B: weights, optimizer, inputs"),
        ("  temporary", f"{temporary}: activations, gradients"),
        ("compute", _least(seconds["compute"], bound.flops, "FLOP", each)),
        ("memory traffic", _least(seconds["memory"], bound.traffic, "B", each)),
        (
            "communication",
            _least(seconds["communication"], bound.sent, "B", "chip")
            + (": all-reduce of gradients" if chips.chips > 1 else ""),
        ),
    ]
    if bound.fits is False:
        return rows
    return [
        *rows,
        ("bound by", bound.bound),
        ("step", f"{_time(step)} at least"),
        ("speed", speed),
    ]


def _least(seconds: float, amount: float, unit: str, each: str) -> str:
    return f"{_time(seconds)} for {short(amount)}{unit} per {each}"


def _time(seconds: float) -> str:
    """Three significant digits, in the unit that needs no exponent."""
    for size, unit in ((3600, "h"), (1, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(seconds * 1e6)} µs"


def _three(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def _rows(counted: "Plan", unit: str) -> list[tuple[str, str]]:
    """Label and quantity of each row of the table; `unit` is what a row consists of."""
    forward, both = counted.forward_flops_per_token, counted.training_flops_per_token
    rows = [
        ("parameters", f"{counted.parameters:,}"),
        (f"FLOPs per {unit}", f"{short(forward)}FLOP forward"),
        ("", f"{short(both)}FLOP forward and backward"),
        ("FLOPs per step", f"{short(counted.training_flops)}FLOP"),
        ("weights", f"{short(counted.weights)}B"),
        ("gradients", f"{short(counted.gradients)}B"),
        (counted.optimizer, f"{short(counted.optimizer_state)}B"),
        ("activations", f"{short(counted.activations)}B"),
        ("training", f"{short(counted.training_memory)}B at least, without XLA"),
    ]
    if counted.cache is not None:
        rows += [
            ("cache", f"{short(counted.cache)}B of keys, values or states"),
            ("generation", f"{short(counted.generation_memory)}B in total"),
        ]
    return rows


def short(number: float | None) -> str:
    """Three significant digits and the prefix of the unit."""
    number = float(number or 0)
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:.3g} "
