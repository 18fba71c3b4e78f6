"""The options and the output of `keras-attn plan` about a whole training run.

The arithmetic: `models/plans/training_run.py`; what is published: the model's card.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from keras_attn.cli.options import Panel
from keras_attn.cli.published import count, spell_hours, spell_training
from keras_attn.cli.terminal import naming_options, print_rows, say

if TYPE_CHECKING:
    from keras_attn.models import Plan, TrainingRun
    from keras_attn.models.catalog.cards import Training

_RUN = Panel("Training run")


@dataclass(frozen=True)
class RunOptions:
    """What is to be trained, on which devices, at which price."""

    tokens: Annotated[
        float | None,
        _RUN.number(
            "Tokens of the whole run, such as 300e9, on each side of an "
            "encoder-decoder. Default, with --hardware: as many as were published.",
            min=0,
        ),
    ] = None
    rows: Annotated[
        float | None,
        _RUN.number(
            "In place of --tokens, rows of the whole run, such as 384e6: images, "
            "pairs, utterances; epochs times the size of the data.",
            min=0,
        ),
    ] = None
    hardware: Annotated[
        str | None,
        _RUN.option(
            "Accelerator and number of devices, or chips of a TPU: v100:1024, a100:8, "
            "h100:64, tpu_v4:256, ….",
            metavar="NAME:N",
        ),
    ] = None
    utilization: Annotated[
        float | None,
        _RUN.number(
            "Share of the peak that is reached, above 0, at most 1. Default: 0.3.",
            min=0,
            max=1,
        ),
    ] = None
    price: Annotated[
        float | None, _RUN.number("Dollars for one device for an hour.", min=0)
    ] = None
    watts: Annotated[
        float | None,
        _RUN.number("Watts of one device. Default: as published.", min=0),
    ] = None

    def __post_init__(self):
        if self.tokens is not None and self.rows is not None:
            raise ValueError("--tokens and --rows exclude each other. Received: both")
        if self.hardware is not None:
            return
        for name in ("utilization", "price", "watts"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"--{name} needs --hardware. "
                    f"Received: --{name} {getattr(self, name):g}"
                )

    def check(self, tpu: str | None) -> None:
        """Refuses `--tpu` beside these options, unknown hardware, and numbers of 0."""
        from keras_attn.checks.arguments import check_above_zero

        for name in ("tokens", "rows", "hardware"):
            if tpu is not None and getattr(self, name) is not None:
                raise ValueError(
                    f"--tpu is of one step, --{name} of a whole run, whose --hardware "
                    "may be a TPU, too; they exclude each other. Received: both"
                )
        with naming_options(tokens="--tokens", rows="--rows"):
            for name in ("tokens", "rows"):
                if getattr(self, name) is not None:
                    check_above_zero(name, getattr(self, name))
        run_on(self, 1.0)

    def amount(
        self, model: str, published: "Training | None"
    ) -> tuple[float | None, float | None]:
        """Tokens or rows of the run, the other one None; both if none is asked for.

        Args:
            model: As it was given.
            published: What its card says.

        Raises:
            ValueError: If nothing is given, and nothing is published.
        """
        if self.hardware is None or (self.tokens, self.rows) != (None, None):
            return self.tokens, self.rows
        if published is not None and published.tokens is not None:
            return published.tokens, None
        if published is not None and published.images is not None:
            return None, published.images
        raise ValueError(
            "--hardware needs --tokens, or --rows of images, pairs or utterances: how "
            f"many this model saw is not published. Received: {model!r}"
        )


def flops_of_run(
    counted: "Plan", tokens: float | None, rows: float | None
) -> float | None:
    """FLOPs of a run of so many tokens or rows; None without both."""
    if rows is not None:
        return counted.training_flops / counted.batch * rows
    if tokens is None:
        return None
    if not counted.has_tokens:
        raise ValueError(
            f"--tokens is for models of tokens; {counted.name} needs --rows. "
            f"Received: --tokens {tokens:g}"
        )
    return counted.training_flops_per_token * tokens


def run_on(options: RunOptions, flops: float) -> "TrainingRun | None":
    """The run on the devices of the options; None if they name none."""
    from keras_attn.models import training_run

    if options.hardware is None:
        return None
    names = ("hardware", "utilization", "price", "watts")
    with naming_options(**{name: f"--{name}" for name in names}):
        return training_run(
            flops,
            options.hardware,
            utilization=0.3 if options.utilization is None else options.utilization,
            price=options.price,
            watts=options.watts,
        )


def run_figures(flops: float, run: "TrainingRun | None") -> dict[str, Any]:
    """The output of `--json` for a training run."""
    if run is None:
        return {"flops": flops}
    derived = ("hours", "device_days", "kilowatt_hours", "cost")
    return {**vars(run), **{name: getattr(run, name) for name in derived}}


def say_run(
    title: str, flops: float, run: "TrainingRun | None", published: "Training | None"
) -> None:
    """Prints what a training run costs, and what is published about one."""
    rows = [("FLOPs", f"{flops:.3g}")]
    note = "FLOPs are the model's: what is computed twice to save memory counts once."
    if run is not None:
        rows += _rows(run)
        note += (
            " Energy is that of the devices alone, at full load. Their figures: "
            f"{run.accelerator.source}."
        )
    if published is not None:
        rows += [("published", _published(published, flops))]
    print_rows(title, rows)
    say(note, "dim")


def _rows(run: "TrainingRun") -> list[tuple[str, str]]:
    device, energy = run.accelerator, "unknown: needs --watts, which are not published"
    if run.watts is not None and run.kilowatt_hours is not None:
        energy = f"{count(run.kilowatt_hours)} kWh at {run.watts:g} W per device"
    rows = [
        (
            "hardware",
            f"{run.devices:,} x {run.hardware}: {device.flops / 1e12:g} TFLOP/s in "
            f"{device.precision}, of which {run.utilization:.0%} are reached",
        ),
        ("device-days", count(run.device_days)),
        ("time", spell_hours(run.hours)),
        ("energy", energy),
    ]
    if run.cost is not None:
        rows += [("price", f"${count(run.cost)} at ${run.price:g} per device-hour")]
    return rows


def _published(training: "Training", flops: float) -> str:
    """The published figures of a run, and the share of the peak that they imply."""
    from keras_attn.models.plans.accelerators import ACCELERATORS
    from keras_attn.models.plans.training_run import reached_utilization

    words = spell_training(training)
    known = training.hardware in ACCELERATORS
    if known and training.devices is not None and training.hours is not None:
        hardware = f"{training.hardware}:{training.devices}"
        share = reached_utilization(flops, hardware, training.hours)
        words += f". In that time, these FLOPs are {share:.0%} of the peak"
    return words
