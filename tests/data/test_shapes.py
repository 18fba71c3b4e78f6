"""Shapes: exact masks and boxes, texts that are true, the same for the same seed."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from backend import skip_module_without_tensorflow
from refusals import refuses

from keras_attn.data import RandomScaleAndCrop, Shapes
from keras_attn.data.synthetic.shape_drawing import SHAPES, draw_mask

skip_module_without_tensorflow("tf.data feeds TensorFlow")

WORLD = Shapes(image_size=(47, 61), num_objects=(2, 5), max_overlap=0.5, seed=3)
EXAMPLES = [WORLD.example(index) for index in range(60)]


def test_masks_are_the_pixels_of_their_color():
    for example in EXAMPLES:
        assert example.image.shape == (47, 61, 3) and example.image.dtype == np.uint8
        # No pixel is of two objects.
        assert example.masks.sum(0).max() == 1
        for each, mask, number in zip(
            example.objects, example.masks, example.classes, strict=True
        ):
            assert (example.image[mask] == WORLD.colors[each.color]).all()
            assert WORLD.shapes[number] == each.shape
            assert (example.labels[mask] == number + 1).all()
        background = ~example.masks.any(0)
        assert (example.labels[background] == 0).all()
        assert len(np.unique(example.image[background], axis=0)) == 1


def test_boxes_surround_what_is_visible():
    for example in EXAMPLES:
        for (left, top, right, bottom), mask in zip(
            example.boxes.astype(int), example.masks, strict=True
        ):
            assert mask[top:bottom, left:right].sum() == mask.sum()
            assert mask[top].any() and mask[bottom - 1].any()
            assert mask[:, left].any() and mask[:, right - 1].any()


@pytest.mark.parametrize("max_overlap", [0.0, 0.5])
def test_at_most_the_given_share_is_hidden(max_overlap):
    world = Shapes(
        image_size=(97, 103),
        num_objects=(4, 4),
        shapes=["circle"],
        sizes={"middle": (0.2, 0.2)},
        max_overlap=max_overlap,
    )
    area = np.pi * (0.2 * 97) ** 2
    shares = np.array(
        [mask.sum() / area for i in range(30) for mask in world.example(i).masks]
    )
    assert shares.max() < 1.02
    if max_overlap:
        assert 0.48 < shares.min() < 0.7
    else:
        assert shares.min() > 0.98


def test_the_number_of_objects_varies():
    counts = Counter(len(example.objects) for example in EXAMPLES)
    assert set(counts) == {2, 3, 4, 5}
    crowded = Shapes(num_objects=(10, 10), sizes={"large": (0.3, 0.4)})
    assert {len(crowded.example(i).objects) for i in range(9)} <= {1, 2, 3}


@pytest.mark.parametrize("shape", SHAPES)
def test_areas_of_shapes(shape):
    """Counted pixels against the area in closed form, whatever the rotation."""
    tip, notch = 1.0, 0.42
    expected = {
        "circle": np.pi,
        "ring": np.pi * 0.7,
        "square": 1.4**2,
        "triangle": 3 * np.sqrt(3) / 4,
        "cross": 4 * 0.95 * 0.56 - 0.56**2,
        "star": 5 * tip * notch * np.sin(np.pi / 5),
    }[shape]
    for angle in (0.0, 0.3, 2.0):
        mask = draw_mask(shape, 250.3, 240.2, 211.3, angle, (500, 480))
        np.testing.assert_allclose(mask.sum() / 211.3**2, expected, rtol=0.005)
        # Turned around its center, which is its center of mass.
        rows, columns = np.nonzero(mask)
        np.testing.assert_allclose(
            [columns.mean(), rows.mean()], [249.8, 239.7], atol=1
        )


def test_captions_are_true():
    vocabulary = set(WORLD.vocabulary)
    two = Shapes(image_size=64, num_objects=(2, 2), seed=5)
    relations = Counter()
    for example in [*EXAMPLES, *(two.example(index) for index in range(40))]:
        words = example.caption.split()
        assert set(words) <= vocabulary
        assert len(words) == len(example.caption_objects)
        named = []
        for place, owner in enumerate(example.caption_objects):
            if owner >= 0:
                each = example.objects[owner]
                assert words[place] in (each.size, each.color, each.shape)
                named.append(owner)
        assert Counter(named) == dict.fromkeys(range(len(example.objects)), 3)
        if len(example.objects) == 2:
            first = next(owner for owner in example.caption_objects if owner >= 0)
            one, other = example.objects[first], example.objects[1 - first]
            right, down = other.x - one.x, other.y - one.y
            between = " ".join(words[4:-4])
            assert {
                "left of": right >= abs(down),
                "right of": -right >= abs(down),
                "above": down >= abs(right),
                "below": -down >= abs(right),
            }[between]
            relations[between] += 1
    assert len(relations) == 4


def test_questions_have_one_true_answer():
    vocabulary, answers = set(WORLD.vocabulary), WORLD.answers
    numbers = ["zero", "one", "two", "three", "four", "five"]
    seen = Counter()
    for example in EXAMPLES:
        for question in example.questions:
            words = question.text.split()
            assert set(words) <= vocabulary and question.answer in answers
            names = set(words) & {*WORLD.colors, *WORLD.shapes, *WORLD.sizes}
            fits = tuple(
                number
                for number, each in enumerate(example.objects)
                if names <= {each.shape, each.color, each.size}
            )
            assert question.objects == fits
            kind = " ".join(words[:2])
            if kind == "how many":
                assert question.answer == numbers[len(fits)]
            elif kind == "is there":
                assert question.answer == ("yes" if fits else "no")
            else:
                (number,) = fits
                assert getattr(example.objects[number], words[1]) == question.answer
            seen[kind] += 1
        assert example.question in example.questions
    assert set(seen) == {
        "what color",
        "what shape",
        "what size",
        "how many",
        "is there",
    }


def test_answers_are_balanced():
    asked = Counter()
    for index in range(400):
        question = WORLD.example(index).question
        asked[" ".join(question.text.split()[:2]), question.answer] += 1
    yes, no = asked["is there", "yes"], asked["is there", "no"]
    assert 0.5 < yes / no < 2
    assert max(asked.values()) < 400 * 0.2


def test_images_are_functions_of_seed_and_number():
    again = Shapes(image_size=(47, 61), num_objects=(2, 5), max_overlap=0.5, seed=3)
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(again.example, reversed(range(20))))
    for index, example in zip(reversed(range(20)), made, strict=True):
        np.testing.assert_array_equal(example.image, EXAMPLES[index].image)
        assert example.caption == EXAMPLES[index].caption
        assert example.question == EXAMPLES[index].question
    other = Shapes(image_size=(47, 61), num_objects=(2, 5), max_overlap=0.5, seed=4)
    assert other.example(0).caption != EXAMPLES[0].caption


def test_detection_and_segmentation():
    options = {"batch_size": 7, "shuffle": True}
    dataset = WORLD.dataset("detection", 20, **options, epoch=1, start=10)
    assert int(dataset.cardinality()) == 3
    batches = list(dataset.as_numpy_iterator())
    assert [len(images) for images, _ in batches] == [7, 7, 6]
    _, targets = cast(Any, dataset.element_spec)
    assert targets["boxes"].shape == (None, 5, 4)
    assert targets["masks"].shape == (None, 5, 47, 61)
    found = {
        images[i].tobytes(): (targets, i)
        for images, targets in batches
        for i in range(len(images))
    }
    for example in EXAMPLES[10:30]:
        targets, row = found.pop(example.image.astype("float32").tobytes())
        count = len(example.objects)
        np.testing.assert_array_equal(targets["boxes"][row, :count], example.boxes)
        np.testing.assert_array_equal(targets["masks"][row, :count], example.masks)
        assert (targets["classes"][row, count:] == -1).all()
        assert not targets["boxes"][row, count:].any()
    assert not found

    again = WORLD.dataset("detection", 20, **options, epoch=1, start=10)
    other = WORLD.dataset("detection", 20, **options, epoch=2, start=10)
    first = batches[0][0]
    np.testing.assert_array_equal(first, next(again.as_numpy_iterator())[0])
    assert (first != next(other.as_numpy_iterator())[0]).any()

    dataset = WORLD.dataset("segmentation", 3, batch_size=3, normalize="unit")
    images, labels = next(dataset.as_numpy_iterator())
    assert images.max() <= 1
    np.testing.assert_array_equal(labels[2], EXAMPLES[2].labels)


def test_augmented_shapes():
    crop = RandomScaleAndCrop((29, 31), scale=(0.7, 1.5))
    dataset = WORLD.dataset("detection", 6, batch_size=6, augmentations=[crop], epoch=0)
    images, targets = next(dataset.as_numpy_iterator())
    assert images.shape == (6, 47, 61, 3)
    real = targets["classes"] >= 0
    assert real.any() and targets["masks"][real].any((1, 2)).all()


def test_captions_and_questions():
    dataset = WORLD.dataset("captions", 9, batch_size=9)
    batch = next(dataset.as_numpy_iterator())
    longest = max(len(example.caption.split()) for example in EXAMPLES[:9])
    assert batch["caption_objects"].shape == (9, longest)
    for row, example in enumerate(EXAMPLES[:9]):
        assert batch["captions"][row].decode() == example.caption
        count = len(example.caption_objects)
        found = batch["caption_objects"][row]
        assert found[:count].tolist() == example.caption_objects
        assert (found[count:] == -1).all()
        np.testing.assert_array_equal(
            batch["masks"][row, : len(example.masks)], example.masks
        )
    dataset = WORLD.dataset("questions", 9, batch_size=9)
    batch = next(dataset.as_numpy_iterator())
    for row, example in enumerate(EXAMPLES[:9]):
        question = example.question
        assert batch["questions"][row].decode() == question.text
        assert batch["answers"][row].decode() == question.answer
        assert WORLD.answers[batch["answer_ids"][row]] == question.answer
        named = np.flatnonzero(batch["is_named"][row])
        assert tuple(named) == question.objects


def test_objects_are_of_the_given_kinds():
    kinds = [("small", "red", "ring"), ("large", "blue", "star")]
    world = Shapes(num_objects=(1, 3), kinds=kinds)
    drawn = {
        (each.size, each.color, each.shape)
        for number in range(20)
        for each in world.example(number).objects
    }
    assert drawn == set(kinds)
    # Without kinds, images are those of a set that has no such option.
    assert replace(world, kinds=None).example(3).caption == (
        Shapes(num_objects=(1, 3)).example(3).caption
    )


def test_the_largest_shape_covers_less_than_15_percent():
    for shape in SHAPES:
        mask = draw_mask(shape, 50, 50, 0.21 * 100, 0, (100, 100))
        assert mask.mean() < 0.15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shapes": ["circle", "blob"]}, "`shapes` must be one of 'circle'.*'blob'"),
        ({"shapes": []}, "must have names of one word each"),
        ({"colors": {"dark red": (9, 0, 0)}}, "must have names of one word each"),
        ({"colors": {"": (9, 0, 0)}}, "must have names of one word each"),
        ({"colors": {"small": (9, 0, 0)}}, "all different"),
        ({"colors": {"red": (256, 0, 0)}}, "from 0 to 255. Received: 'red'"),
        ({"colors": {"red": (25, 0)}}, "from 0 to 255. Received: 'red'"),
        ({"sizes": {"tiny": (0.2, 0.1)}}, "`sizes` must be radii.*'tiny'"),
        ({"sizes": {"huge": (0.2, 0.6)}}, "at most 0.5"),
        ({"sizes": {"tiny": (0.02, 0.1)}}, "radius of at least 2 pixels"),
        ({"image_size": 17}, "radius of at least 2 pixels"),
        ({"image_size": 0}, "`image_size` must be a positive integer"),
        ({"num_objects": (3, 2)}, "`num_objects` must be the minimum"),
        ({"num_objects": (0, 2)}, "`num_objects` must be a positive integer"),
        ({"num_objects": 11}, "at most 10"),
        ({"max_overlap": 1.0}, "`max_overlap` must be a probability"),
        ({"noise": -1}, "`noise` must be at least 0"),
        ({"kinds": []}, "`kinds` must be a list of triples"),
        ({"kinds": 7}, "`kinds` must be a list of triples.*kinds=7"),
        ({"kinds": [7]}, "`kinds` must be a list of triples"),
        ({"kinds": ["red"]}, "`kinds` must be a list of triples.*'red'"),
        ({"kinds": [("red", "small", "ring")]}, "a name in `sizes`, one in `colors`"),
    ],
)
def test_invalid_options(options, message):
    refuses(message, Shapes, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "boxes"}, "`kind` must be one of 'detection', 'segmentation'"),
        ({"count": 0}, "`count` must be a positive integer"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"normalize": "x"}, "`normalize` must be one of"),
        (
            {"kind": "captions", "augmentations": [lambda x, _: x]},
            "`augmentations` are for detection and segmentation",
        ),
    ],
)
def test_invalid_datasets(options, message):
    given = {"kind": "detection", "count": 3, "batch_size": 2, **options}
    refuses(message, WORLD.dataset, given.pop("kind"), given.pop("count"), **given)
