"""The options and the output of `keras-attn plan` about a whole training run.

The arithmetic: `models/plans/training_run.py`; what is published: the model's card.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from keras_attn.cli.options import Panel
from keras_attn.cli.published import count, spell_hours, spell_training
from keras_attn.cli.terminal import naming_options, print_rows, say

if TYPE_CHECKING:
    from keras_attn.models import Plan, TrainingRun
    from keras_attn.models.catalog.cards import Training

_RUN = Panel("Training run")
_MOST = 1e30  # So that the FLOPs are finite.
Amount = tuple[float, Literal["token", "row"]]


@dataclass(frozen=True)
class RunOptions:
    """What is to be trained, on which devices, at which price."""

    tokens: Annotated[
        float | None,
        _RUN.number(
            "Tokens of the whole run, such as 300e9, on each side of an "
            "encoder-decoder. Default, with --hardware: as many as were published.",
            min=0,
            max=_MOST,
        ),
    ] = None
    rows: Annotated[
        float | None,
        _RUN.number(
            "In place of --tokens, rows of the whole run, such as 384e6: images, "
            "pairs, utterances; epochs times the size of the data.",
            min=0,
            max=_MOST,
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
            "How much of the devices' peak becomes FLOPs of the model, above 0, at "
            "most 1. Default: 0.3, which is an assumption.",
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

    def amount(self, model: str, published: "Training | None") -> Amount | None:
        """What the run reads; None if there is no run.

        Args:
            model: As it was given.
            published: What its card says.

        Raises:
            ValueError: If nothing is given, and nothing is published.
        """
        if self.tokens is not None:
            return self.tokens, "token"
        if self.rows is not None:
            return self.rows, "row"
        if self.hardware is None:
            return None
        amount = published_amount(published)
        if amount is None:
            raise ValueError(
                "--hardware needs --tokens, or --rows of images, pairs or utterances: "
                f"how many this model saw is not published. Received: {model!r}"
            )
        return amount


def published_amount(training: "Training | None") -> Amount | None:
    """What a published run read; None if that is not published."""
    if training is not None and training.tokens is not None:
        return training.tokens, "token"
    if training is not None and training.images is not None:
        return training.images, "row"
    return None


def flops_of_run(counted: "Plan", amount: Amount) -> float:
    """FLOPs of a run that reads so many tokens or rows."""
    number, unit = amount
    if unit == "row":
        return counted.training_flops / counted.batch * number
    if not counted.has_tokens:
        raise ValueError(
            f"--tokens is for models of tokens; {counted.name} needs --rows. "
            f"Received: --tokens {number:g}"
        )
    return counted.training_flops_per_token * number


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
    counted: "Plan",
    amount: Amount,
    run: "TrainingRun | None",
    published: "Training | None",
) -> None:
    """Prints what a training run costs, and what is published about one."""
    (number, unit), flops = amount, flops_of_run(counted, amount)
    each = f"{flops / number:.3g} per {unit}, forward and backward"
    rows = [("FLOPs", f"{flops:.3g}: {each}")]
    note = "FLOPs are the model's: what is computed twice to save memory counts once."
    if run is not None:
        rows += _rows(run)
        note += (
            " The utilization is an assumption, --utilization: how much of the "
            "devices' peak becomes these FLOPs. Energy counts the devices at full "
            "load, without hosts, network and cooling. Their figures: "
            f"{run.accelerator.source}."
        )
    if published is not None:
        rows += [("published", _published(published, counted))]
    print_rows(f"{counted.name}, trained on {number:,.0f} {unit}s", rows)
    say(note, "dim")


def _rows(run: "TrainingRun") -> list[tuple[str, str]]:
    device, energy = run.accelerator, "unknown: needs --watts, which are not published"
    if run.watts is not None and run.kilowatt_hours is not None:
        energy = f"{count(run.kilowatt_hours)} kWh at {run.watts:g} W per device"
    rows = [
        (
            "hardware",
            f"{run.devices:,} x {run.hardware}: {device.flops / 1e12:g} TFLOP/s each "
            f"in {device.precision}, at {100 * run.utilization:.3g}% utilization",
        ),
        ("device-days", count(run.device_days)),
        ("time", spell_hours(run.hours)),
        ("energy", energy),
    ]
    if run.cost is not None:
        rows += [("price", f"${count(run.cost)} at ${run.price:g} per device-hour")]
    return rows


def _published(training: "Training", counted: "Plan") -> str:
    """The published figures of a run, and the utilization that they imply."""
    from keras_attn.models.plans.accelerators import ACCELERATORS
    from keras_attn.models.plans.training_run import reached_utilization

    words = spell_training(training)
    amount = published_amount(training)
    if amount is None or training.hardware not in ACCELERATORS:
        return words
    if training.devices is not None and training.hours is not None:
        hardware = f"{training.hardware}:{training.devices}"
        flops = flops_of_run(counted, amount)
        share = reached_utilization(flops, hardware, training.hours)
        words += f". Counted as above, its utilization was {share:.0%}"
    return words
