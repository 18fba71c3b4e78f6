"""Draws colored shapes with exact masks.

Legend: H and W pixels. Shapes are defined around the origin, within the unit circle; a
pixel belongs to a shape if its center does.
"""

from dataclasses import dataclass

import numpy as np

_STAR_INNER = 0.42
_TRIES = 60
_BACKGROUND = (95, 145)  # Gray, within which red, green and blue vary.


def _circle(x, y):
    return x**2 + y**2 <= 1


def _ring(x, y):
    return (x**2 + y**2 <= 1) & (x**2 + y**2 >= 0.3)


def _square(x, y):
    return np.maximum(np.abs(x), np.abs(y)) <= 0.7


def _cross(x, y):
    low, high = np.minimum(np.abs(x), np.abs(y)), np.maximum(np.abs(x), np.abs(y))
    return (low <= 0.28) & (high <= 0.95)


def _triangle(x, y):
    turns = np.arange(3) * 2 * np.pi / 3
    sides = x[..., None] * np.cos(turns) + y[..., None] * np.sin(turns)
    return (sides <= 0.5).all(-1)


def _star(x, y):
    # All ten edges are folded onto the one from a tip, at angle 0, to a notch.
    fifth = 2 * np.pi / 5
    angle = np.mod(np.arctan2(y, x) + fifth / 2, fifth) - fifth / 2
    radius = np.hypot(x, y)
    along, across = radius * np.cos(angle), radius * np.abs(np.sin(angle))
    notch = _STAR_INNER * np.cos(fifth / 2), _STAR_INNER * np.sin(fifth / 2)
    return (along - 1) * notch[1] <= across * (notch[0] - 1)


SHAPES = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "ring": _ring,
}
COLORS = {
    "red": (214, 40, 40),
    "green": (50, 160, 70),
    "blue": (40, 90, 210),
    "yellow": (240, 205, 50),
    "purple": (130, 60, 170),
    "orange": (240, 130, 30),
    "white": (245, 245, 245),
    "brown": (120, 75, 40),
}
# Radii as shares of the image's shorter side. The largest shape covers less than 15 %.
SIZES = {"small": (0.08, 0.12), "large": (0.16, 0.21)}


@dataclass(frozen=True)
class Object:
    """A shape in an image.

    Attributes:
        shape: A name in `SHAPES`.
        color: The name of its color.
        size: The name of its size.
        x: Horizontal position of its center, in pixels.
        y: Vertical position of its center, in pixels.
    """

    shape: str
    color: str
    size: str
    x: float
    y: float


def draw_mask(shape: str, x, y, radius, angle, image_size) -> np.ndarray:
    """The pixels of a shape, bool (H, W).

    Args:
        shape: A name in `SHAPES`.
        x: Horizontal position of its center, in pixels.
        y: Vertical position of its center, in pixels.
        radius: Radius of the circle around it, in pixels.
        angle: Angle by which it is turned, in radians.
        image_size: (H, W).
    """
    rows, columns = np.mgrid[: image_size[0], : image_size[1]] + 0.5
    right, down = (columns - x) / radius, (rows - y) / radius
    cosine, sine = np.cos(angle), np.sin(angle)
    return SHAPES[shape](right * cosine + down * sine, down * cosine - right * sine)


def draw_objects(world, random: np.random.Generator):
    """Draws random objects, later ones in front of earlier ones.

    Args:
        world: The `Shapes`.
        random: Source of all random numbers.

    Returns:
        The image, uint8 (H, W, 3), the objects, and their visible pixels, bool
        (objects, H, W). There is at least one object; there are fewer than the random
        number drawn if more do not fit.
    """
    height, width = world.image_size
    background = random.integers(*_BACKGROUND, 3)
    image = np.empty((height, width, 3), np.float64)
    image[:] = background
    objects: list[Object] = []
    masks: list[np.ndarray] = []
    whole: list[int] = []  # Areas before anything is hidden.
    low, high = world.num_objects
    for _ in range(random.integers(low, high + 1)):
        if world.kinds is None:
            shape, color, size = (
                list(names)[random.integers(len(names))]
                for names in (world.shapes, world.colors, world.sizes)
            )
        else:
            size, color, shape = world.kinds[random.integers(len(world.kinds))]
        radius = random.uniform(*world.sizes[size]) * min(height, width)
        for _ in range(_TRIES):
            x, y = (random.uniform(radius, side - radius) for side in (width, height))
            angle = random.uniform(0, 2 * np.pi)
            mask = draw_mask(shape, x, y, radius, angle, world.image_size)
            left = [int((each & ~mask).sum()) for each in masks]
            hidden = [1 - now / was for now, was in zip(left, whole, strict=True)]
            limits = [
                0.0 if each.color == color else world.max_overlap for each in objects
            ]
            if mask.any() and all(np.array(hidden) <= limits):
                break
        else:
            continue
        masks = [each & ~mask for each in masks]
        masks.append(mask)
        whole.append(int(mask.sum()))
        objects.append(Object(shape, color, size, x, y))
        image[mask] = world.colors[color]
    image += random.normal(0, world.noise, image.shape) if world.noise else 0.0
    return image.round().clip(0, 255).astype(np.uint8), objects, np.array(masks)
