"""Images of shapes as regions of a detector, with captions, questions and phrases.

The detector is a Faster R-CNN with a class for each color and shape: one that learns
shapes alone forgets their colors. Features are the last layer before its classes, since
a location of the backbone's last map is as large as half of these images. What it
finds is computed once and kept in a file, so a model of words and regions trains
without it.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import detectors
import keras
import numpy as np
import tensorflow as tf

from keras_attn import data, models
from keras_attn.ops import pairwise_iou
from keras_attn.training import AdamW, BackupAndResume, CosineWarmup

IMAGE_SIZE = 64
# √(w h) of anchors as a share of the image, from small shapes to large ones.
ANCHOR_SHARES = (0.15, 0.22, 0.31, 0.42)
MAX_OBJECTS = 10
# Images of other numbers than all that follow: those of one number are alike.
FIRST_DETECTOR_IMAGE = 1_000_000
DETECTOR_DIR = Path("runs/shape-detector")
# For `--smoke`.
TINY_DETECTOR = {"detector_images": 16, "detector_epochs": 1, "detector_width": 4}
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


def new_shapes(seed):
    """The images."""
    return data.Shapes(
        image_size=IMAGE_SIZE, num_objects=NUM_OBJECTS, noise=8.0, seed=seed
    )


def add_detector_options(parser):
    """Adds the options of the detector."""
    parser.add_argument(
        "--detector-dir",
        type=Path,
        help="folder of the detector, which is trained if it is not there; by default "
        f"{DETECTOR_DIR}, with --smoke in the folder of the run",
    )
    parser.add_argument(
        "--detector-images", type=int, default=4000, help="its training images"
    )
    parser.add_argument("--detector-epochs", type=int, default=8, help="its epochs")
    parser.add_argument(
        "--detector-width", type=int, default=16, help="channels of its first map"
    )


def trained_detector(arguments):
    """Reads the detector, or trains it and prints how well it detects.

    Args:
        arguments: `seed`, `smoke`, `run_dir` and the options of
            `add_detector_options`.
    """
    folder = arguments.detector_dir
    if folder is None:
        folder = arguments.run_dir / "detector" if arguments.smoke else DETECTOR_DIR
    if (folder / "model.keras").is_file():
        return keras.saving.load_model(folder / "model.keras", compile=False)
    start = time.process_time()
    keras.utils.set_random_seed(arguments.seed)
    shapes, count = new_shapes(arguments.seed), arguments.detector_images
    names = [f"{color} {shape}" for color in shapes.colors for shape in shapes.shapes]
    train = _objects(shapes, FIRST_DETECTOR_IMAGE, count)
    held_out: Any = _objects(shapes, FIRST_DETECTOR_IMAGE + count, max(count // 20, 8))
    backup = BackupAndResume(folder / "backup", delete_checkpoint=False)
    dataset = data.shuffled_dataset(train, seed=arguments.seed, epoch=backup.epoch)
    dataset = dataset.batch(8, drop_remainder=True).map(_as_float)
    sizes = SimpleNamespace(
        image_size=(IMAGE_SIZE, IMAGE_SIZE),
        width=arguments.detector_width,
        blocks=[1, 2, 2],
        seed=arguments.seed,
    )
    anchors = [IMAGE_SIZE * share for share in ANCHOR_SHARES]
    model = models.build_faster_rcnn(
        num_classes=len(names), **detectors.detector_sizes(sizes, anchors, MAX_OBJECTS)
    )
    steps = arguments.detector_epochs * int(dataset.cardinality())
    rate = CosineWarmup(2e-3, max(1, steps // 20), steps)
    # XLA takes minutes to compile all losses, longer than it saves here.
    model.compile(AdamW(rate, weight_decay=0.05, clipnorm=5.0), jit_compile=False)
    model.fit(
        dataset.prefetch(2),
        epochs=arguments.detector_epochs,
        shuffle=False,
        verbose=2,
        callbacks=[backup],
    )
    batches = tf.data.Dataset.from_tensors(held_out).map(_as_float)
    scores, _ = detectors.score(model, list(batches), names)
    print(
        f"detector: {model.count_params():,} parameters, mAP@0.5 "
        f"{scores['boxes']['map_50']:.3f}, {time.process_time() - start:.0f} s of CPU "
        "time",
        flush=True,
    )
    model.save(folder / "model.keras")
    backup.delete()
    return model


def _objects(shapes, start, count):
    """Images, uint8 (N, H, W, 3), with the boxes and classes of their objects."""
    examples = [shapes.example(start + number) for number in range(count)]
    boxes = np.zeros((count, NUM_OBJECTS[1], 4), "float32")
    classes = np.full((count, NUM_OBJECTS[1]), -1, "int32")
    colors = list(shapes.colors)
    for row, example in enumerate(examples):
        boxes[row, : len(example.boxes)] = example.boxes
        for place, each in enumerate(example.objects):
            shape = list(shapes.shapes).index(each.shape)
            classes[row, place] = colors.index(each.color) * len(shapes.shapes) + shape
    images = np.stack([example.image for example in examples])
    return images, {"boxes": boxes, "classes": classes}


def _as_float(images, truth):
    """Pixels from 0 to 1."""
    return tf.cast(images, tf.float32) / 255, truth


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


def detect(detector, images, num_regions=NUM_REGIONS):
    """The regions of images, from a detector.

    Args:
        detector: From `trained_detector`.
        images: uint8 (B, H, W, 3).
        num_regions: R.

    Returns:
        A dictionary of `features` (B, R, F), `boxes` (B, R, 4) as shares of the image,
        `class_distributions` (B, R, 1 + C) and `is_real` (B, R). What is not real is
        zero.
    """
    pixels = np.asarray(images, "float32") / 255
    model = detector.region_model(num_regions, source="head")
    found = model.predict_on_batch(pixels)
    is_real = found["scores"] > MIN_SCORE
    # A model needs one region.
    is_real[:, 0] = True
    found["boxes"] = found["boxes"] / IMAGE_SIZE
    names = ("features", "boxes", "class_distributions")
    regions = {
        name: np.where(is_real[..., None], found[name], 0).astype("float32")
        for name in names
    }
    return {**regions, "is_real": is_real}


def _detect(detector, shapes, start, count):
    """The arrays of `Images` for some images."""
    examples = [shapes.example(start + number) for number in range(count)]
    found = detect(detector, np.stack([example.image for example in examples]))
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
        "region_boxes": found["boxes"],
        "region_padding_mask": found["is_real"].astype("int32"),
        "class_distributions": found["class_distributions"],
        "overlaps": np.asarray(
            pairwise_iou(IMAGE_SIZE * found["boxes"], true[:, None])
        )[..., 0],
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
