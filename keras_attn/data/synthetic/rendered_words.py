"""Images of rendered words, with the position of every character.

Images are made while they are read, from a seed and the number of the image, so a set
of any size costs no memory. They serve to train a reader, and to see whether it looks
at the character that it writes.

Legend: B batch, H and W pixels, N characters of a word, L characters with padding.
"""

import math
import os
import string
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_choice, check_pair, check_positive
from keras_attn.data.images.geometry import normalization
from keras_attn.data.images.instance_masks import box_around
from keras_attn.data.pipelines.bad_files import Skipped
from keras_attn.data.pipelines.epochs import Epoch
from keras_attn.data.pipelines.examples import example_dataset
from keras_attn.data.synthetic.word_drawing import Look, draw_color, draw_word
from keras_attn.data.synthetic.word_fonts import FONTS, font_characters, font_path
from keras_attn.data.text.tokenizers import CharacterTokenizer

LETTERS_AND_DIGITS = string.digits + string.ascii_letters
_TRUTH = ("words", "fonts", "boxes", "centers", "masks")


@dataclass(frozen=True)
class WordExample:
    """An image of a word and everything that is known about it.

    Attributes:
        image: uint8 (H, w, 3), w at most W.
        word: The text.
        font: Name of the font.
        masks: bool (N, H, w), the pixels whose ink of a character is at least half the
            maximum over all pixels.
        boxes: float32 (N, 4), around the mask of each character: left, top, right,
            bottom.
        centers: float32 (N, 2), x and y of the middle of each character's ink.
    """

    image: np.ndarray
    word: str
    font: str
    masks: np.ndarray
    boxes: np.ndarray
    centers: np.ndarray


@dataclass(frozen=True)
class RenderedWords:
    """An endless set of images of words in many fonts.

    Image i shows the word number i modulo the number of words; font, colors and shape
    are drawn at random.

    Attributes:
        words: The words, without blanks, such as from `random_words`.
        fonts: Names of `FONTS`, or paths of TrueType or OpenType files.
        alphabet: All characters that the reader knows, in the order of their ids.
        max_length: Maximum number of characters of a word that the reader can write.
        image_size: H and the maximum W, in pixels.
        rotation: Maximum angle in degrees, below 90.
        curvature: Maximum height of the arc of the baseline, as a share of half the
            length of the word, at most 0.5.
        perspective: Maximum share by which one end becomes smaller than the middle, at
            most 0.25.
        fill: Minimum and maximum share of the image that the word fills.
        contrast: Minimum and maximum difference in brightness between characters and
            background; 1 is the difference between black and white.
        blur: Maximum standard deviation of a Gaussian blur, in pixels.
        noise: Maximum standard deviation of noise, in units of 0 to 255.
        seed: Seed of all random numbers.

    Raises:
        ValueError: If an argument is out of range; if a word is empty, too long, or has
            a character that is not in the alphabet or that a font lacks; or if a font
            cannot be read.

    Example:
        ```python
        from keras_attn import data

        train, held_out = data.hold_out(data.random_words(100, seed=1), 0.1)
        words = data.RenderedWords(train, max_length=8)
        dataset = words.dataset("reading", 10_000, batch_size=32, shuffle=True)
        ```
    """

    words: Sequence[str]
    fonts: Sequence[str | os.PathLike] = FONTS
    alphabet: str = LETTERS_AND_DIGITS
    max_length: int = 25
    image_size: int | tuple[int, int] = (48, 160)
    rotation: float = 8.0
    curvature: float = 0.2
    perspective: float = 0.15
    fill: tuple[float, float] = (0.8, 1.0)
    contrast: tuple[float, float] = (0.3, 1.0)
    blur: float = 0.8
    noise: float = 8.0
    seed: int = 0

    def __post_init__(self):
        object.__setattr__(
            self, "image_size", check_pair("image_size", self.image_size)
        )
        check_positive("max_length", self.max_length)
        for name, least, most in (
            ("rotation", 0, 89.0),
            ("curvature", 0, 0.5),
            ("perspective", 0, 0.25),
            ("blur", 0, math.inf),
            ("noise", 0, math.inf),
        ):
            value = getattr(self, name)
            # NaN is outside every range.
            if not least <= value <= most or value == math.inf:
                raise ValueError(
                    f"`{name}` must be from {least} to {most}. Received: {name}={value}"
                )
        for name in ("fill", "contrast"):
            low, high = getattr(self, name)
            if not 0 < low <= high <= 1:
                raise ValueError(
                    f"`{name}` must be two fractions above 0 and at most 1, the "
                    f"smaller one first. Received: {name}={getattr(self, name)}"
                )
        for name in ("words", "fonts"):
            values = getattr(self, name)
            if isinstance(values, str) or not len(values):
                raise ValueError(
                    f"`{name}` must be a list that is not empty. Received: "
                    f"{name}={values!r}"
                )
            object.__setattr__(self, name, tuple(values))
        _check_words(self.words, self.tokenizer.pieces, self.max_length)
        used = frozenset().union(*self.words)
        for font in self.fonts:
            if missing := sorted(used - font_characters(font)):
                raise ValueError(
                    "`fonts` must have every character of the words. Received: "
                    f"{str(font)!r}, which lacks {''.join(missing)!r}"
                )

    @property
    def tokenizer(self) -> CharacterTokenizer:
        """The tokenizer of the alphabet, whose ids the data sets have."""
        return CharacterTokenizer(self.alphabet)

    def example(self, index: int) -> WordExample:
        """Makes one image.

        Args:
            index: Its number, from 0.

        Returns:
            The same example for the same number and the same options.

        Raises:
            ValueError: If the word is too long for the image, or a character has no ink
                in the font.
        """
        random = np.random.default_rng([self.seed, index])
        word = self.words[index % len(self.words)]
        font = self.fonts[int(random.integers(len(self.fonts)))]
        size = check_pair("image_size", self.image_size)
        look = self._look(random)
        image, coverage = draw_word(word, font_path(font), look, size, random)
        masks = coverage >= 0.5 * coverage.max((1, 2), keepdims=True)
        return WordExample(
            image=image,
            word=word,
            font=font_path(font).stem,
            masks=masks,
            boxes=np.array([box_around(mask) for mask in masks], np.float32),
            centers=np.array([_center(ink) for ink in coverage], np.float32),
        )

    def dataset(
        self,
        kind: str,
        count: int,
        *,
        batch_size: int,
        start: int = 0,
        normalize: str | None = "unit",
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
            normalize: "imagenet", "unit" or None; see `detection_dataset`.
            shuffle: Whether each epoch has a new random order.
            epoch: Number of the epoch, or a `tf.Variable` that holds it. None counts
                the iterations.
            drop_remainder: Whether the last batch is left out if it is smaller.

        Returns:
            A dataset of known cardinality, with L = `max_length`.

            - "reading": a dictionary of `images` float32 (B, H, W, 3), zero to the
              right of the image, `widths` int32 (B,) and `decoder_token_ids` int32
              (B, L + 1); and the labels int32 (B, L + 1), the tokens one step later and
              the end token, then padding.
            - "characters": one dictionary of these, the labels as `labels`, and of
              `words` and `fonts`, strings (B,), `boxes` float32 (B, L, 4), `centers`
              float32 (B, L, 2) and `masks` bool (B, L, H, W), zero after the last
              character. See `WordExample`.

        Raises:
            ValueError: If `kind` is not one of these, or an argument is out of range.
        """
        check_choice("kind", kind, ("reading", "characters"))
        check_positive("count", count)
        check_positive("batch_size", batch_size)
        mean, deviation = normalization(normalize)
        height, width = check_pair("image_size", self.image_size)
        length, tokenizer = self.max_length, self.tokenizer
        specs = {
            "image": (tf.uint8, [height, None, 3]),
            "tokens": (tf.int32, [length + 2]),
            "words": (tf.string, []),
            "fonts": (tf.string, []),
            "boxes": (tf.float32, [length, 4]),
            "centers": (tf.float32, [length, 2]),
            "masks": (tf.bool, [length, height, width]),
        }
        if kind == "reading":
            specs = {name: specs[name] for name in ("image", "tokens")}

        def make(index):
            values = self._values(self.example(int(index) + start), tokenizer)
            return [values[name] for name in specs]

        def load(row):
            types = [dtype for dtype, _ in specs.values()]
            values = tf.numpy_function(make, [row], types)
            return {
                name: tf.ensure_shape(value, shape)
                for (name, (_, shape)), value in zip(specs.items(), values, strict=True)
            }, tf.constant(True)

        def finish(example):
            image = (tf.cast(example.pop("image"), tf.float32) - mean) / deviation
            columns = tf.shape(image)[1]
            padding = tf.convert_to_tensor([[0, 0], [0, width - columns], [0, 0]])
            image = tf.pad(image, padding)
            tokens = example.pop("tokens")
            labels = tokens[1:]
            inputs = {
                "images": tf.ensure_shape(image, [height, width, 3]),
                "widths": columns,
                # The end token is never an input.
                "decoder_token_ids": tf.where(
                    tokens[:-1] == tokenizer.end_token_id,
                    tokenizer.pad_token_id,
                    tokens[:-1],
                ),
            }
            if kind == "reading":
                return inputs, labels
            return {**inputs, "labels": labels, **example}

        return example_dataset(
            load,
            finish,
            count,
            Skipped("raise"),
            batch_size=batch_size,
            seed=self.seed,
            shuffle=shuffle,
            epoch=epoch,
            drop_remainder=drop_remainder,
        )

    def _look(self, random: np.random.Generator) -> Look:
        contrast = random.uniform(*self.contrast)
        dark = random.uniform(0, 1 - contrast)
        lumas = random.permutation([dark, dark + contrast])
        return Look(
            angle=math.radians(random.uniform(-self.rotation, self.rotation)),
            curvature=random.uniform(-self.curvature, self.curvature),
            perspective=tuple(random.uniform(-self.perspective, self.perspective, 2)),
            fill=random.uniform(*self.fill),
            text=draw_color(lumas[0], random),
            background=draw_color(lumas[1], random),
            blur=random.uniform(0, self.blur),
            noise=random.uniform(0, self.noise),
        )

    def _values(self, example: WordExample, tokenizer: CharacterTokenizer) -> dict:
        """The fields of an example as arrays, all padded except the image."""
        missing = self.max_length - len(example.word)
        height, width = check_pair("image_size", self.image_size)
        masks = np.zeros((self.max_length, height, width), bool)
        count, _, columns = example.masks.shape
        masks[:count, :, :columns] = example.masks
        ids = [tokenizer.start_token_id, *tokenizer.encode(example.word)]
        ids += [tokenizer.end_token_id, *missing * [tokenizer.pad_token_id]]
        return {
            "image": example.image,
            "tokens": np.array(ids, np.int32),
            "words": example.word.encode(),
            "fonts": example.font.encode(),
            "boxes": np.pad(example.boxes, [(0, missing), (0, 0)]),
            "centers": np.pad(example.centers, [(0, missing), (0, 0)]),
            "masks": masks,
        }


def _check_words(words, pieces, max_length):
    known = set(pieces)
    for word in words:
        if not isinstance(word, str) or not word:
            raise ValueError(
                f"`words` must be texts of at least one character. Received: {word!r}"
            )
        if blanks := [x for x in word if x.isspace()]:
            raise ValueError(
                f"`words` must have no blanks. Received: {word!r} with {blanks[0]!r}"
            )
        if unknown := sorted(set(word) - known):
            raise ValueError(
                "`words` must consist of characters of the `alphabet`. "
                f"Received: {word!r}, with {''.join(unknown)!r}"
            )
        if len(word) > max_length:
            raise ValueError(
                f"`words` must have at most {max_length} characters, the `max_length` "
                f"of the reader. Received: {word!r}, of {len(word)}"
            )


def _center(ink: np.ndarray) -> list[float]:
    """X and y of the center of mass."""
    rows, columns = np.indices(ink.shape) + 0.5
    return [float((at * ink).sum() / ink.sum()) for at in (columns, rows)]
