"""The least time of a training step on TPUs: chips, topologies and a roofline.

A step is data-parallel: every device has all weights and its share of the rows, and the
gradients are added up over the devices. It takes at least the longest of

    compute        FLOPs / peak of the matrix units, in bfloat16, in which a TPU also
                   multiplies float32 unless the highest precision is asked for
    memory         (arguments + results + 2 x temporary tensors at the peak) / memory
                   bandwidth: all of it is read or written at least once
    communication  2 (n - 1) / n x gradients / bandwidth of the links: what each of n
                   chips sends in an all-reduce around rings (Patarasu and Yuan 2009,
                   doi:10.1016/j.jpdc.2008.09.002)

as if the three overlapped entirely and nothing else took time. So the figures are upper
bounds of the speed, and not predictions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

_GIB = 2**30
_SQUARES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = (
    *("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8"),
    "8x8x16",
)


@dataclass(frozen=True)
class Chip:
    """A generation of TPUs; all but the memory are published figures.

    Attributes:
        flops: Peak FLOPs per second of a chip, in bfloat16.
        bandwidth: Bytes per second between a chip and its memory.
        link: Bytes per second of one link to another chip, in one direction.
        memory: Bytes of one device that a program can use: what libtpu 0.0.42 says is
            available when a program does not fit.
        shapes: Topologies that are offered, up to 1,024 chips.
        devices: Devices of a chip, as JAX counts them.
    """

    flops: float
    bandwidth: float
    link: float
    memory: int
    shapes: tuple[str, ...]
    devices: int = 1


# https://cloud.google.com/tpu/docs/v5e, v6e, v5p, v4 and v3, read in 2026: peak compute
# and bandwidth of the memory of a chip. The same pages give the interconnect of a chip,
# 400, 800 and 1,200 GB/s in both directions together, over 4, 4 and 6 links. v4 has 6
# links of 50 GB/s (Jouppi et al. 2023, arXiv:2304.01433), v3 has 4 of 656 Gbit/s
# (Jouppi et al. 2020, doi:10.1145/3360307). The topologies are those pages' too.
CHIPS: Mapping[str, Chip] = {
    "v5e": Chip(197e12, 819e9, 50e9, int(15.75 * _GIB), _SQUARES),
    "v6e": Chip(918e12, 1638e9, 100e9, int(31.25 * _GIB), _SQUARES),
    "v5p": Chip(459e12, 2765e9, 100e9, int(95.74 * _GIB), _CUBES),
    "v4": Chip(275e12, 1200e9, 50e9, int(15.25 * _GIB), _CUBES, 2),
    "v3": Chip(
        *(123e12, 900e9, 82e9, int(15.48 * _GIB)),
        ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32"),
        2,
    ),
}


@dataclass(frozen=True)
class Topology:
    """Chips that are connected.

    Attributes:
        name: Generation and number of chips along each axis, such as `"v5e:2x2"`.
        kind: The generation.
        shape: Number of chips along each axis.
    """

    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def chip(self) -> Chip:
        """The generation's figures."""
        return CHIPS[self.kind]

    @property
    def chips(self) -> int:
        """Number of chips."""
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        """Number of devices, as JAX counts them: two for each chip of v3 and v4."""
        return self.chips * self.chip.devices

    @property
    def links(self) -> int:
        """Links of a chip to others; an axis of 2 has one, a longer one is a ring."""
        return sum(min(n - 1, 2) for n in self.shape)


def topology(name: str) -> Topology:
    """Reads a name such as `"v5e:2x2"`.

    Args:
        name: A generation of `CHIPS` and one of its shapes.

    Raises:
        ValueError: If the generation or the shape is unknown.
    """
    kind, _, shape = name.partition(":")
    if kind not in CHIPS:
        known = ", ".join(f"{each}:{CHIPS[each].shapes[1]}" for each in CHIPS)
        raise ValueError(
            "`topology` must be a generation of TPUs and the number of chips along "
            f"each axis, such as {known}. Received: topology={name!r}"
        )
    if shape not in CHIPS[kind].shapes:
        known = ", ".join(CHIPS[kind].shapes)
        raise ValueError(
            f"`topology` of {kind} must be {kind}: and one of {known}. "
            f"Received: topology={name!r}"
        )
    return Topology(name, kind, tuple(map(int, shape.split("x"))))


@dataclass(frozen=True)
class StepBound:
    """The work of a data-parallel training step, and its least time.

    Attributes:
        topology: The chips.
        batch: Rows of all devices together.
        flops: FLOPs of one device.
        arguments: Bytes of one device that the step reads: weights, state of the
            optimizer, inputs.
        results: Bytes of one device that it writes: weights, state of the optimizer.
        temporary: Bytes of one device at the peak, besides the arguments; None if that
            is unknown, and the memory and its traffic are lower bounds.
        gradients: Bytes of the gradients that are added up over the devices.
    """

    topology: Topology
    batch: int
    flops: float
    arguments: int
    results: int
    temporary: int | None
    gradients: int

    @property
    def memory(self) -> int:
        """Bytes of one device; the results take the place of the arguments."""
        return self.arguments + (self.temporary or 0)

    @property
    def fits(self) -> bool | None:
        """Whether the memory of a device is enough; None if that is unknown."""
        if self.memory > self.topology.chip.memory:
            return False
        return None if self.temporary is None else True

    @property
    def traffic(self) -> int:
        """Bytes that one device moves to and from its memory, at least."""
        return self.arguments + self.results + 2 * (self.temporary or 0)

    @property
    def sent(self) -> float:
        """Bytes that each chip sends to its neighbours, at least."""
        chips = self.topology.chips
        return 2 * (chips - 1) / chips * self.gradients

    @property
    def seconds(self) -> dict[str, float]:
        """Least time of each of `"compute"`, `"memory"` and `"communication"`."""
        chip, links = self.topology.chip, self.topology.links
        return {
            "compute": self.flops * chip.devices / chip.flops,
            "memory": self.traffic * chip.devices / chip.bandwidth,
            "communication": self.sent / (links * chip.link) if links else 0.0,
        }

    @property
    def bound(self) -> str:
        """The key of the longest of `seconds`."""
        return max(self.seconds, key=self.seconds.__getitem__)

    @property
    def rows_per_second(self) -> float:
        """Rows per second, at most."""
        return self.batch / self.seconds[self.bound]
