"""Images of colored shapes whose objects, masks and texts are known exactly.

Images are made while they are read, from a seed and the number of the image, so a set
of any size costs no memory. They serve for tests, and to see whether a model looks
where it should.

Legend: B batch, M objects with padding, H and W pixels, T words of a caption.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import (
    check_choice,
    check_fraction,
    check_pair,
    check_positive,
)
from keras_attn.data.images.detection import pad_objects
from keras_attn.data.images.geometry import Augmentation, fit_into, normalization
from keras_attn.data.images.instance_masks import box_around
from keras_attn.data.pipelines.bad_files import Skipped
from keras_attn.data.pipelines.epochs import Epoch
from keras_attn.data.pipelines.examples import example_dataset
from keras_attn.data.synthetic.shape_drawing import (
    COLORS,
    SHAPES,
    SIZES,
    Object,
    draw_objects,
)
from keras_attn.data.synthetic.shape_texts import (
    MAX_OBJECTS,
    Question,
    choose_question,
    make_answers,
    make_caption,
    make_questions,
    make_vocabulary,
)

_OBJECTS = ("boxes", "classes", "masks")
# What an element of each kind consists of, besides the image.
_FIELDS = {
    "detection": _OBJECTS,
    "segmentation": ("labels",),
    "captions": (*_OBJECTS, "captions", "caption_objects"),
    "questions": (*_OBJECTS, "questions", "answers", "answer_ids", "is_named"),
}
# Dtype and shape; None where the size of the image decides.
_SPECS: dict[str, tuple[tf.DType, list | None]] = {
    "image": (tf.uint8, None),
    "boxes": (tf.float32, [None, 4]),
    "classes": (tf.int32, [None]),
    "masks": (tf.bool, None),
    "labels": (tf.int32, None),
    "captions": (tf.string, []),
    "caption_objects": (tf.int32, [None]),
    "questions": (tf.string, []),
    "answers": (tf.string, []),
    "answer_ids": (tf.int32, []),
    "is_named": (tf.bool, [None]),
}
_SMALLEST_RADIUS = 2  # Pixels. A smaller shape might cover no pixel at all.


@dataclass(frozen=True)
class ShapesExample:
    """An image and everything that is known about it.

    Attributes:
        image: uint8 (H, W, 3).
        objects: The objects, from the back to the front.
        boxes: float32 (N, 4), around the visible pixels of each object: left, top,
            right, bottom.
        classes: int32 (N,), the number of each object's shape.
        masks: bool (N, H, W), the visible pixels of each object.
        labels: int32 (H, W), 0 for the background, else 1 + the class.
        caption: A text about all objects.
        caption_objects: For each word of the caption, the object that it describes, or
            -1.
        question: A question about the image, with its answer.
        questions: All questions about the image.
    """

    image: np.ndarray
    objects: list[Object]
    boxes: np.ndarray
    classes: np.ndarray
    masks: np.ndarray
    labels: np.ndarray
    caption: str
    caption_objects: list[int]
    question: Question
    questions: list[Question]


@dataclass(frozen=True)
class Shapes:
    """An endless set of images of shapes.

    Attributes:
        image_size: H and W, one number or two.
        num_objects: Minimum and maximum number of objects, at most 10. There are fewer
            where more do not fit.
        shapes: Names, of circle, square, triangle, star, cross and ring. Class i is
            the i-th.
        colors: Name of each color, and its red, green and blue from 0 to 255.
        sizes: Name of each size, and its minimum and maximum radius as shares of the
            shorter side, at most 0.5.
        max_overlap: Maximum share of an object that others hide, in [0, 1); 0 draws all
            objects apart. Objects of the same color never overlap, since they would be
            indistinguishable.
        noise: Standard deviation of noise on the pixels, in units of 0 to 255.
        seed: Seed of all random numbers.
        kinds: Size, color and shape of the objects that occur, equally often, such as
            ("small", "red", "ring"), to hold combinations out. None means all.

    Raises:
        ValueError: If an argument is out of range, or a name has two meanings.

    Example:
        ```python
        from keras_attn import data

        shapes = data.Shapes(image_size=96, num_objects=(1, 5), max_overlap=0.5)
        train = shapes.dataset("detection", 10_000, batch_size=16, shuffle=True)
        val = shapes.dataset("detection", 500, start=10_000, batch_size=16)
        print(shapes.example(0).caption)
        ```
    """

    image_size: int | tuple[int, int] = 64
    num_objects: tuple[int, int] = (1, 4)
    shapes: Sequence[str] = ("circle", "square", "triangle", "star", "cross", "ring")
    colors: Mapping[str, tuple[int, int, int]] = field(default_factory=COLORS.copy)
    sizes: Mapping[str, tuple[float, float]] = field(default_factory=SIZES.copy)
    max_overlap: float = 0.0
    noise: float = 0.0
    seed: int = 0
    kinds: Sequence[tuple[str, str, str]] | None = None

    def __post_init__(self):
        size = check_pair("image_size", self.image_size)
        low, high = check_pair("num_objects", self.num_objects)
        object.__setattr__(self, "image_size", size)
        object.__setattr__(self, "num_objects", (low, high))
        object.__setattr__(self, "shapes", tuple(self.shapes))
        check_fraction("max_overlap", self.max_overlap)
        if not low <= high <= MAX_OBJECTS:
            raise ValueError(
                "`num_objects` must be the minimum and the maximum number of objects, "
                f"at most {MAX_OBJECTS}. Received: num_objects={self.num_objects!r}"
            )
        for shape in self.shapes:
            check_choice("shapes", shape, SHAPES)
        for name, (smallest, largest) in self.sizes.items():
            if not 0 < smallest <= largest <= 0.5:
                raise ValueError(
                    "`sizes` must be radii above 0 and at most 0.5, the smaller one "
                    f"first. Received: {name!r}: {(smallest, largest)}"
                )
            if smallest * min(size) < _SMALLEST_RADIUS:
                raise ValueError(
                    f"A shape must have a radius of at least {_SMALLEST_RADIUS} "
                    "pixels; make the images or `sizes` larger. Received: "
                    f"image_size={size}, {name!r}: {(smallest, largest)}"
                )
        if not self.noise >= 0:
            raise ValueError(
                f"`noise` must be at least 0. Received: noise={self.noise!r}"
            )
        for name, color in self.colors.items():
            if len(color) != 3 or not all(0 <= part <= 255 for part in color):
                raise ValueError(
                    "`colors` must be red, green and blue from 0 to 255. "
                    f"Received: {name!r}: {color!r}"
                )
        names = [*self.shapes, *self.colors, *self.sizes]
        is_empty = not (self.shapes and self.colors and self.sizes)
        are_words = all(name.split() == [name] for name in names)
        if is_empty or len(set(names)) < len(names) or not are_words:
            raise ValueError(
                "`shapes`, `colors` and `sizes` must have names of one word each, all "
                f"different. Received: {names}"
            )
        if self.kinds is not None:
            known = list(itertools.product(self.sizes, self.colors, self.shapes))
            is_list = isinstance(self.kinds, list | tuple) and self.kinds
            if not is_list or any(
                not isinstance(kind, list | tuple) or tuple(kind) not in known
                for kind in self.kinds
            ):
                raise ValueError(
                    "`kinds` must be a list of triples: a name in `sizes`, one in "
                    "`colors` and one in `shapes`. Pass None to allow all. "
                    f"Received: kinds={self.kinds!r}"
                )
            object.__setattr__(self, "kinds", tuple(map(tuple, self.kinds)))

    @property
    def vocabulary(self) -> list[str]:
        """All words of captions, questions and answers, sorted."""
        return make_vocabulary(self)

    @property
    def answers(self) -> list[str]:
        """All answers, sorted; label i of the questions' dataset is the i-th."""
        return make_answers(self)

    def example(self, index: int) -> ShapesExample:
        """Makes one image.

        Args:
            index: Its number, from 0.

        Returns:
            The same example for the same number and the same options.
        """
        random = np.random.default_rng([self.seed, index])
        image, objects, masks = draw_objects(self, random)
        classes = [list(self.shapes).index(each.shape) for each in objects]
        labels = np.zeros(image.shape[:2], np.int32)
        for number, mask in zip(classes, masks, strict=True):
            labels[mask] = number + 1
        caption, caption_objects = make_caption(objects, random)
        questions = make_questions(objects, self)
        return ShapesExample(
            image=image,
            objects=objects,
            boxes=np.array([box_around(mask) for mask in masks], np.float32),
            classes=np.array(classes, np.int32),
            masks=masks,
            labels=labels,
            caption=caption,
            caption_objects=caption_objects,
            question=choose_question(questions, random),
            questions=questions,
        )

    def dataset(
        self,
        kind: str,
        count: int,
        *,
        batch_size: int,
        start: int = 0,
        augmentations: Sequence[Augmentation] = (),
        normalize: str | None = None,
        shuffle: bool = False,
        epoch: Epoch = None,
        drop_remainder: bool = False,
    ) -> tf.data.Dataset:
        """Batches of images, for `model.fit`.

        Args:
            kind: What comes with the images, see below.
            count: Number of images.
            batch_size: B.
            start: Number of the first image; a different range gives a different set.
            augmentations: For detection and segmentation: functions of an example and
                a seed, see `detection_dataset`.
            normalize: "imagenet", "unit" or None; see `detection_dataset`.
            shuffle: Whether each epoch has a new random order.
            epoch: Number of the epoch, or a `tf.Variable` that holds it. None counts
                the iterations.
            drop_remainder: Whether the last batch is left out if it is smaller.

        Returns:
            A dataset of known cardinality. Images are float32 (B, H, W, 3).

            - "detection": images and a dictionary of `boxes` float32 (B, M, 4),
              `classes` int32 (B, M) with -1 in padding, and `masks` bool (B, M, H, W).
            - "segmentation": images and labels int32 (B, H, W), 0 for the background.
            - "captions": one dictionary of `images`, boxes, classes and masks as
              above, `captions`, strings (B,), and `caption_objects` int32 (B, T), the
              object of each word or -1.
            - "questions": one dictionary of `images`, boxes, classes and masks as
              above, `questions` and `answers`, strings (B,), `answer_ids` int32 (B,),
              indices in the list `answers`, and `is_named` bool (B, M), the objects
              that the question is about.

        Raises:
            ValueError: If `kind` is not one of these, or an argument is out of range.
        """
        check_choice("kind", kind, tuple(_FIELDS))
        check_positive("count", count)
        check_positive("batch_size", batch_size)
        if kind in ("captions", "questions") and augmentations:
            raise ValueError(
                "`augmentations` are for detection and segmentation: they would change "
                f"what the texts describe. Received: kind={kind!r}"
            )
        mean, deviation = normalization(normalize)
        names = ("image", *_FIELDS[kind])
        size = check_pair("image_size", self.image_size)

        def load(row):
            types = [_SPECS[name][0] for name in names]
            values = tf.numpy_function(
                lambda index: self._values(int(index) + start, names), [row], types
            )
            known = {"image": [*size, 3], "masks": [None, *size], "labels": size}
            example = {
                name: tf.ensure_shape(value, known.get(name, _SPECS[name][1]))
                for name, value in zip(names, values, strict=True)
            }
            return {
                **example,
                "image": tf.cast(example["image"], tf.float32),
            }, tf.constant(True)

        def finish(example):
            example = fit_into(example, size, keep_aspect_ratio=True, fill=mean)
            image = (example.pop("image") - mean) / deviation
            if kind == "segmentation":
                return image, example["labels"]
            padded = pad_objects(example, check_pair("", self.num_objects)[1])
            if kind == "detection":
                return image, padded
            return {"images": image, **padded}

        return example_dataset(
            load,
            finish,
            count,
            Skipped("raise"),
            augmentations=augmentations,
            batch_size=batch_size,
            # Captions differ in length.
            padding_values={"caption_objects": -1} if kind == "captions" else None,
            seed=self.seed,
            shuffle=shuffle,
            epoch=epoch,
            drop_remainder=drop_remainder,
        )

    def _values(self, index: int, names: Sequence[str]) -> list:
        """Some fields of an example, as arrays."""
        example = self.example(index)
        is_named = np.zeros(len(example.objects), bool)
        is_named[list(example.question.objects)] = True
        values = {
            "image": example.image,
            "boxes": example.boxes,
            "classes": example.classes,
            "masks": example.masks,
            "labels": example.labels,
            "captions": example.caption.encode(),
            "caption_objects": np.array(example.caption_objects, np.int32),
            "questions": example.question.text.encode(),
            "answers": example.question.answer.encode(),
            "answer_ids": np.int32(self.answers.index(example.question.answer)),
            "is_named": is_named,
        }
        return [values[name] for name in names]
