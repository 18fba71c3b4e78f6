"""Captions of images of shapes, and questions about them with answers.

Every text consists of lower-case words separated by blanks. Each text comes with the
objects that it is about, so that attention can be compared with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from keras_attn.data.synthetic.shape_drawing import Object

_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")
_NUMBERS += ("nine", "ten")
MAX_OBJECTS = len(_NUMBERS) - 1
_WORDS = (
    "a above an and are below color how is left many object of right shape size the "
    "there what"
).split()
_ANSWERS = ("no", "yes")


@dataclass(frozen=True)
class Question:
    """A question about an image.

    Attributes:
        text: The question.
        answer: One word.
        objects: Numbers of the objects that the question names.
    """

    text: str
    answer: str
    objects: tuple[int, ...]


def make_caption(objects: Sequence[Object], random) -> tuple[str, list[int]]:
    """Describes all objects.

    Args:
        objects: At least one.
        random: Draws their order.

    Returns:
        The text, such as "a small red circle left of a large blue star", and for each
        word the number of the object that it describes, or -1.
    """
    order = random.permutation(len(objects)).tolist()
    words, owners = [], []
    for place, number in enumerate(order):
        if place:
            between = ["and"]
            if len(order) == 2:
                between = _relation(objects[order[0]], objects[order[1]])
            words += between
            owners += [-1] * len(between)
        each = objects[number]
        words += [_article(each.size), each.size, each.color, each.shape]
        owners += [-1, number, number, number]
    return " ".join(words), owners


def _relation(one: Object, other: Object) -> list[str]:
    if abs(one.x - other.x) >= abs(one.y - other.y):
        return ["left" if one.x < other.x else "right", "of"]
    return ["above" if one.y < other.y else "below"]


def make_questions(objects: Sequence[Object], world) -> list[Question]:
    """All questions that have one answer, in a fixed order.

    Args:
        objects: At least one.
        world: The `Shapes`, whose names are asked for.
    """
    questions = []
    for number, each in enumerate(objects):
        names = (each.size, each.color, each.shape)
        # An attribute is asked for if the other two identify one object.
        for hidden, kind in enumerate(("size", "color", "shape")):
            given = [name for place, name in enumerate(names) if place != hidden]
            if len(_matching(objects, given)) == 1:
                named = given if hidden < 2 else [*given, "object"]
                text = f"what {kind} is the {' '.join(named)}"
                questions.append(Question(text, names[hidden], (number,)))
            short = [each.shape if hidden < 2 else each.color]
            if len(_matching(objects, short)) == 1:
                named = short if hidden < 2 else [*short, "object"]
                text = f"what {kind} is the {' '.join(named)}"
                questions.append(Question(text, names[hidden], (number,)))
    for color in world.colors:
        for shape in world.shapes:
            found = _matching(objects, [color, shape])
            text = f"is there {_article(color)} {color} {shape}"
            questions.append(Question(text, "yes" if found else "no", tuple(found)))
    for name in (*world.colors, *world.shapes):
        found = _matching(objects, [name])
        what = f"{name} object" if name in world.colors else name
        text = f"how many {what} are there"
        questions.append(Question(text, _NUMBERS[len(found)], tuple(found)))
    return questions


def choose_question(
    questions: Sequence[Question], random: np.random.Generator
) -> Question:
    """Draws one of the kinds of questions, then one of its answers, then a question.

    Otherwise "no" and "zero" would be the answers to most questions.
    """
    kinds: dict[str, dict[str, list[Question]]] = {}
    for question in questions:
        kind = " ".join(question.text.split()[:2])
        kinds.setdefault(kind, {}).setdefault(question.answer, []).append(question)
    answers = kinds[sorted(kinds)[random.integers(len(kinds))]]
    chosen = answers[sorted(answers)[random.integers(len(answers))]]
    return chosen[random.integers(len(chosen))]


def make_vocabulary(world) -> list[str]:
    """All words of captions, questions and answers, sorted."""
    numbers = _NUMBERS[: world.num_objects[1] + 1]
    names = (*world.shapes, *world.colors, *world.sizes)
    return sorted({*_WORDS, *_ANSWERS, *numbers, *names})


def make_answers(world) -> list[str]:
    """All answers, sorted."""
    numbers = _NUMBERS[: world.num_objects[1] + 1]
    return sorted({*_ANSWERS, *numbers, *world.shapes, *world.colors, *world.sizes})


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _matching(objects: Sequence[Object], names) -> list[int]:
    return [
        number
        for number, each in enumerate(objects)
        if all(name in (each.size, each.color, each.shape) for name in names)
    ]
