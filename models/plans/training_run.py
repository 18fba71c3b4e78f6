"""What a training run costs: time, energy and price, from its FLOPs.

    time         FLOPs / (devices x peak x utilization)                       [s]
    device-days  devices x time / 86,400
    energy       devices x watts x time / 3.6e6                             [kWh]
    price        devices x time / 3,600 x price of a device-hour

The utilization is the share of the peak that becomes FLOPs of the model itself, as
`plan` counts them: not what is computed twice to save memory, nor waiting. The watts
are the device's at full load, all the time.
"""

from dataclasses import dataclass

from keras_attn.checks.arguments import check_above_zero, check_share
from keras_attn.models.plans.accelerators import (
    ACCELERATORS,
    Accelerator,
    parse_hardware,
)


@dataclass(frozen=True)
class TrainingRun:
    """The cost of a training run.

    Attributes:
        flops: FLOPs of the whole run.
        hardware: Name of the accelerator in `ACCELERATORS`.
        devices: Number of devices; chips of a TPU.
        utilization: Share of the peak that is reached, in (0, 1].
        watts: Power of one device; None if it is not known.
        price: Of one device for an hour, in any currency; None if none was given.
    """

    flops: float
    hardware: str
    devices: int
    utilization: float
    watts: float | None
    price: float | None

    @property
    def accelerator(self) -> Accelerator:
        """The published figures of the device."""
        return ACCELERATORS[self.hardware]

    @property
    def hours(self) -> float:
        """Time from the beginning to the end."""
        rate = self.devices * self.accelerator.flops * self.utilization
        return self.flops / rate / 3600

    @property
    def device_days(self) -> float:
        """Days that one device would need."""
        return self.devices * self.hours / 24

    @property
    def kilowatt_hours(self) -> float | None:
        """Energy of the devices; None without their power."""
        if self.watts is None:
            return None
        return self.devices * self.watts * self.hours / 1000

    @property
    def cost(self) -> float | None:
        """The price of the run; None without the price of an hour."""
        return None if self.price is None else self.devices * self.hours * self.price


def training_run(
    flops: float,
    hardware: str,
    *,
    utilization: float = 0.3,
    price: float | None = None,
    watts: float | None = None,
) -> TrainingRun:
    """The time, energy and price of a training run.

    Args:
        flops: FLOPs of the whole run, such as `training_flops_per_token` of a `Plan`
            times the tokens.
        hardware: An accelerator and the number of devices, such as `"v100:1024"`.
        utilization: Share of the devices' peak that becomes FLOPs of the model, in
            (0, 1].
        price: Of one device for an hour, in any currency.
        watts: Power of one device. Default: the published one, if there is one.

    Returns:
        A `TrainingRun`, with `hours`, `device_days`, `kilowatt_hours` and `cost`.

    Raises:
        ValueError: If the accelerator is unknown, which lists those that are known, or
            a number is not finite and positive.

    Example:
        ```python
        from keras_attn import models

        run = models.training_run(3.14e23, "v100:1024", price=2.5)  # GPT-3.
        print(run.hours / 24, run.kilowatt_hours, run.cost)
        ```
    """
    name, devices = parse_hardware(hardware)
    check_above_zero("flops", flops)
    check_above_zero("utilization", check_share("utilization", utilization))
    if price is not None:
        check_above_zero("price", price)
    if watts is None:
        watts = ACCELERATORS[name].watts
    else:
        check_above_zero("watts", watts)
    return TrainingRun(flops, name, devices, utilization, watts, price)


def reached_utilization(flops: float, hardware: str, hours: float) -> float:
    """The share of the peak that a published run reached.

    Args:
        flops: FLOPs of the model in the whole run.
        hardware: An accelerator and the number of devices, such as `"v100:512"`.
        hours: How long it took.

    Raises:
        ValueError: As in `training_run`.
    """
    check_above_zero("hours", hours)
    return training_run(flops, hardware, utilization=1.0).hours / hours
