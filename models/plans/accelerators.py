"""Accelerators: how fast and at which power each computes, as published.

The peak is of dense matrix products in the precision that models are trained in on that
device: float32 before tensor cores, float16 with the first ones, bfloat16 since the
A100 and on TPUs. Numbers that makers state for sparse matrices are halved.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from keras_attn.models.plans.tpu_chips import CHIPS


@dataclass(frozen=True)
class Accelerator:
    """A device that models are trained on.

    Attributes:
        flops: Peak FLOPs per second.
        precision: Of the factors of the products.
        watts: Power of the device alone, without host, network and cooling: the
            maker's limit, of TPUs the highest measured; None if none is published.
        source: Where the figures are from.
    """

    flops: float
    precision: str
    watts: float | None
    source: str


def _nvidia(flops: float, precision: str, watts: float, name: str) -> Accelerator:
    return Accelerator(flops, precision, watts, f"NVIDIA, data sheet of {name}")


def _tpu(generation: str, watts: float | None = None) -> Accelerator:
    page = f"https://cloud.google.com/tpu/docs/{generation}"
    return Accelerator(CHIPS[generation].flops, "bfloat16", watts, page)


# Of two versions the one on a board (SXM, OAM), not the card.
ACCELERATORS: Mapping[str, Accelerator] = {
    "k40": _nvidia(4.29e12, "float32", 235, "Tesla K40"),
    "m40": _nvidia(7e12, "float32", 250, "Tesla M40"),
    "p100": _nvidia(10.6e12, "float32", 300, "Tesla P100 SXM2"),
    "v100": _nvidia(125e12, "float16", 300, "V100 SXM2"),
    "t4": _nvidia(65e12, "float16", 70, "T4"),
    "a100": _nvidia(312e12, "bfloat16", 400, "A100 SXM"),
    "l4": _nvidia(121e12, "bfloat16", 72, "L4"),
    "h100": _nvidia(989e12, "bfloat16", 700, "H100 SXM"),
    "h200": _nvidia(989e12, "bfloat16", 700, "H200 SXM"),
    "b200": _nvidia(2250e12, "bfloat16", 1000, "B200"),
    "mi250x": Accelerator(383e12, "bfloat16", 560, "AMD, data sheet of MI250X"),
    "mi300x": Accelerator(1307e12, "bfloat16", 750, "AMD, data sheet of MI300X"),
    "tpu_v3": _tpu("v3", 262),
    "tpu_v4": _tpu("v4", 192),
    "tpu_v5e": _tpu("v5e"),
    "tpu_v5p": _tpu("v5p"),
    "tpu_v6e": _tpu("v6e"),
}


def parse_hardware(hardware: str) -> tuple[str, int]:
    """Reads a name such as `"v100:1024"`.

    Args:
        hardware: A name of `ACCELERATORS`, and after a colon how many devices (chips of
            a TPU); without a colon one.

    Returns:
        The name, and the number of devices.

    Raises:
        ValueError: If the accelerator is unknown, or the number is not one.
    """
    name, colon, number = hardware.partition(":")
    name = name.lower()
    if name not in ACCELERATORS:
        raise ValueError(
            f"`hardware` must be one of {', '.join(ACCELERATORS)}, and after a colon "
            f"the number of devices, such as v100:1024. Received: hardware={hardware!r}"
        )
    number = number if colon else "1"
    if not (number.isascii() and number.isdigit() and int(number) > 0):
        raise ValueError(
            "`hardware` must have a positive number of devices after its colon, such "
            f"as {name}:1024. Received: hardware={hardware!r}"
        )
    return name, int(number)
