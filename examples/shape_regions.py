"""Images of shapes as regions of a detector, with captions, questions and phrases.

The detector is from `shapes_masks.py`. What it finds is computed once and kept in a
file, so a model of words and regions trains without it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_attn import data
from keras_attn.ops import pairwise_iou

NUM_REGIONS = 5
MIN_SCORE = 0.3  # Of a region's best class.
NUM_OBJECTS = (2, 3)
SPECIAL = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[MASK]": 3}
# Numbers of tokens with [CLS] and [SEP].
LENGTHS = {"captions": 16, "questions": 9, "phrases": 6}


@dataclass(frozen=True)
class Images:
    """Images, of which only the regions are left.

    Attributes:
        regions: The inputs of ViLBERT that are about regions, and
            `class_distributions`.
        texts: Of each kind in `LENGTHS`, one text for each image.
        answers: The answer of each question, a number.
        overlaps: Intersection over union of each region with the object that the phrase
            names, (B, R).
    """

    regions: dict
    texts: dict
    answers: np.ndarray
    overlaps: np.ndarray

    def inputs(self, kind, vocabulary, rows=slice(None)):
        """The inputs of ViLBERT.

        Args:
            kind: Of the texts.
            vocabulary: The words, in the order of their ids after `SPECIAL`.
            rows: Which images.
        """
        regions = {name: array[rows] for name, array in self.regions.items()}
        regions.pop("class_distributions")
        words = encode(self.texts[kind][rows], vocabulary, LENGTHS[kind])
        return {**words, **regions}


def new_shapes(detector, shapes, seed):
    """The images; as those that the detector learned from, apart from overlaps."""
    height, width = detector.input.shape[1:3]
    return data.Shapes(
        image_size=(height, width),
        num_objects=NUM_OBJECTS,
        shapes=shapes,
        noise=8.0,
        seed=seed,
    )


def encode(texts, vocabulary, length):
    """`[CLS] words [SEP]` as the inputs of ViLBERT and BERT that are about words."""
    ids = {word: len(SPECIAL) + number for number, word in enumerate(vocabulary)}
    start, end = [SPECIAL["[CLS]"]], [SPECIAL["[SEP]"]]
    rows = [[*start, *(ids[word] for word in text.split()), *end] for text in texts]
    token_ids = keras.utils.pad_sequences(rows, length, padding="post")
    return {
        "token_ids": token_ids,
        "padding_mask": (token_ids > 0).astype("int32"),
        "segment_ids": np.zeros_like(token_ids),
    }


def read_images(path, detector, shapes, start, count):
    """Images by number, from the file at `path`, which is written if it is missing."""
    path = Path(path)
    if not path.is_file():
        parts: list[Any] = [
            _detect(detector, shapes, begin, min(100, start + count - begin))
            for begin in range(start, start + count, 100)
        ]
        arrays: dict[str, Any] = {
            name: np.concatenate([part[name] for part in parts]) for name in parts[0]
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path.with_suffix(".new.npz"), **arrays)
        path.with_suffix(".new.npz").rename(path)
    with np.load(path) as file:
        arrays = dict(file)
    texts = {kind: arrays.pop(kind) for kind in LENGTHS}
    return Images(
        answers=arrays.pop("answers"),
        overlaps=arrays.pop("overlaps"),
        texts=texts,
        regions=arrays,
    )


def _detect(detector, shapes, start, count):
    """The arrays of `Images` for some images."""
    examples = [shapes.example(start + number) for number in range(count)]
    pixels = np.stack([example.image for example in examples]).astype("float32") / 255
    found = detector.region_model(NUM_REGIONS).predict_on_batch(pixels)
    is_real = found["scores"] > MIN_SCORE
    # A model needs one region.
    is_real[:, 0] = True
    for name in ("features", "boxes", "class_distributions"):
        found[name] = np.where(is_real[..., None], found[name], 0).astype("float32")
    height, width = shapes.image_size
    sides = np.array([width, height, width, height], "float32")
    random = [np.random.default_rng([start + number, 1]) for number in range(count)]
    pairs = zip(examples, random, strict=True)
    phrases = [phrase_of(example.objects, random) for example, random in pairs]
    true = np.stack(
        [
            example.boxes[number]
            for example, (_, number) in zip(examples, phrases, strict=True)
        ]
    )
    answers = list(shapes.answers)
    return {
        "region_features": found["features"],
        "region_boxes": found["boxes"] / sides,
        "region_padding_mask": is_real.astype("int32"),
        "class_distributions": found["class_distributions"],
        "overlaps": np.asarray(pairwise_iou(found["boxes"], true[:, None]))[..., 0],
        "captions": np.array([example.caption for example in examples]),
        "questions": np.array([example.question.text for example in examples]),
        "answers": np.array([answers.index(x.question.answer) for x in examples]),
        "phrases": np.array([text for text, _ in phrases]),
    }


def phrase_of(objects, random):
    """A phrase that only one object fits, such as "the small red object".

    Returns:
        The phrase and the number of the object; of the last resort, two objects that
        are equal, it names the first.
    """
    order = random.permutation(len(objects))
    for number in order:
        each = objects[number]
        choices = [each.size, each.color, each.shape]
        for bits in random.permutation(np.arange(1, 8)):
            given = [name for place, name in enumerate(choices) if bits >> place & 1]
            fits = [
                all(name in (x.size, x.color, x.shape) for name in given)
                for x in objects
            ]
            if sum(fits) == 1:
                noun = [] if bits & 4 else ["object"]
                return " ".join(["the", *given, *noun]), int(number)
    each = objects[0]
    return f"the {each.size} {each.color} {each.shape}", 0
