"""Pictures of shapes that hang in buildings, and instructions that name what they show.

A picture hangs at each viewpoint of a building, and an instruction names one object of
each picture on its path: "start at the small red circle then pass the large blue star
and stop at the large green ring".
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from keras_attn.data.navigation.buildings import Building
from keras_attn.data.navigation.r2r import WalkData
from keras_attn.data.synthetic.shapes import Shapes, ShapesExample

_STARTS = ("start at the", "go to the")
_STEPS = ("then pass the", "walk past the")
_ENDS = ("and stop at the", "wait by the")


def hang_pictures(
    buildings: Iterable[Building], shapes: Shapes, first: int = 0
) -> dict[str, list[ShapesExample]]:
    """A picture for each viewpoint of each building.

    Args:
        buildings: The buildings; their order has no influence.
        shapes: Makes the pictures.
        first: Number of the first picture.

    Returns:
        The pictures of the viewpoints, by the name of the building.
    """
    pictures: dict[str, list[ShapesExample]] = {}
    for building in sorted(buildings, key=lambda each: each.name):
        count = len(building.viewpoints)
        pictures[building.name] = [shapes.example(first + x) for x in range(count)]
        first += count
    return pictures


def picture_instructions(
    walks: WalkData, pictures: Mapping[str, Sequence[ShapesExample]]
) -> WalkData:
    """One instruction for each path, which names an object of each picture on it.

    Args:
        walks: Walks with any instructions.
        pictures: From `hang_pictures`.

    Returns:
        The first walk of each path, with the new instruction.
    """
    made = {}
    for each in walks.examples:
        if each.path_id in made:
            continue
        random = np.random.default_rng(each.path_id)
        seen = [pictures[each.building.name][viewpoint] for viewpoint in each.path]
        named = [x.objects[random.integers(len(x.objects))] for x in seen]
        start, end = random.integers(2), random.integers(2)
        steps = [_STEPS[number % 2] for number in range(len(named) - 2)]
        words = [f"{x.size} {x.color} {x.shape}" for x in named]
        pairs = zip([_STARTS[start], *steps, _ENDS[end]], words, strict=True)
        text = " ".join(" ".join(pair) for pair in pairs)
        made[each.path_id] = replace(each, instruction=text)
    return replace(walks, examples=list(made.values()))


def instruction_words(shapes: Shapes) -> list[str]:
    """All words of captions and of instructions about pictures, sorted.

    Args:
        shapes: Makes the pictures.
    """
    said = " ".join((*_STARTS, *_STEPS, *_ENDS))
    return sorted({*shapes.vocabulary, *said.split()})
