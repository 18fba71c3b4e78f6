"""Emoji in three drawing styles: reading, the split, and search without learning.

Legend: P pictures, N names, M training pictures, D numbers of a feature.
"""

import csv
import re
from dataclasses import dataclass

import numpy as np
from PIL import Image

from keras_attn.data import ImageTextExample, read_image_texts
from keras_attn.data.images.image_files import read_image

STYLES = ("noto", "twemoji", "openmoji")
TABLE = "emoji.tsv"
# What tells a man, a woman and a person apart, in names and in code points.
_SIGNS = re.compile(r"-(FE0F|200D-(2640|2642|27A1))")
_PERSON = re.compile(r"^(1F468|1F469|1F9D1)(?=-)")
_CLOCK = re.compile(r"o’clock|-thirty")
_WHITE = 245  # A pixel is empty if all its channels are above this.
_SIDE = 64
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Emoji:
    """One thing, which every style draws.

    Attributes:
        code: Its code points in hexadecimal, the name of its pictures.
        name: In English.
        keywords: In English.
        others: Its names in German and French.
        family: The same for emoji that differ in small details.
    """

    code: str
    name: str
    keywords: tuple[str, ...]
    others: tuple[str, ...]
    family: str


def read_emoji(folder):
    """All emoji, in the order of the table."""
    with (folder / TABLE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [
        Emoji(
            row["hexcode"],
            row["name"],
            tuple(row["keywords"].split(", ")),
            (row["name_de"], row["name_fr"]),
            _family(row),
        )
        for row in rows
    ]


def _family(row):
    """Emoji of one family are learned together or held out together.

    "judge", "man judge" and "woman judge" are one, each with the directions in which it
    may face; so are all clock faces, all keycaps and all arrows.
    """
    if row["subgroup"] in ("keycap", "arrow"):
        return row["subgroup"]
    if _CLOCK.search(row["name"]):
        return "clock face"
    return _PERSON.sub("person", _SIGNS.sub("", row["hexcode"]))


def split_names(emoji, share=0.1, seed=0):
    """Which emoji are held out: whole families, bool (N,)."""
    families = sorted({each.family for each in emoji})
    random = np.random.default_rng(seed)
    count = max(1, round(share * len(families)))
    chosen = set(random.permutation(families)[:count].tolist())
    return np.array([each.family in chosen for each in emoji])


def same_pictures(folder, style, emoji):
    """Which names are right for which picture of a style, bool (N, N).

    Its own; and the name of an emoji that is drawn alike to the pixel.
    """
    is_right = np.eye(len(emoji), dtype=bool)
    file = folder / "same_picture.tsv"
    numbers = {each.code: number for number, each in enumerate(emoji)}
    for line in file.read_text("utf-8").split("\n")[1:] if file.exists() else ():
        name, _, codes = line.partition("\t")
        if name == style:
            one, other = (numbers[code] for code in codes.split())
            is_right[one, other] = is_right[other, one] = True
    return is_right


def style_examples(folder, style, emoji, new_captions):
    """The pictures of a style, each with captions that `new_captions` makes."""
    found = read_image_texts(
        folder / TABLE,
        folder / f"{style}.zip",
        image_column="hexcode",
        text_columns=["name"],
    )
    return [
        ImageTextExample(f"{style}/{each.code}", example.image_path, new_captions(each))
        for each, example in zip(emoji, found.examples, strict=True)
    ]


def pixels_of(examples):
    """uint8 (P, 64, 64, 3)."""
    return np.stack([read_image(example.image_path) for example in examples])


def retrieval(scores, is_right, counts=(1, 5, 10)):
    """The share of rows that have a right column among the first 1, 5 and 10.

    Args:
        scores: (rows, columns). Equal scores count as if in a random order.
        is_right: bool, of the same shape.
        counts: The numbers of columns.
    """
    best = np.where(is_right, scores, -np.inf).max(axis=1, keepdims=True)
    better = (scores > best).sum(axis=1)
    equal = ((scores == best) & ~is_right).sum(axis=1)
    # With e wrong columns as good as the best right one, its place is uniform.
    return [
        float(np.clip((count - better) / (equal + 1), 0, 1).mean()) for count in counts
    ]


def chance(is_right, counts=(1, 5, 10)):
    """The same of a random order."""
    columns, right = is_right.shape[1], is_right.sum(axis=1)
    shares = []
    for count in counts:
        missed = np.ones(len(right))
        for place in range(min(count, columns)):
            missed *= np.clip((columns - right - place) / (columns - place), 0, 1)
        shares.append(float(1 - missed.mean()))
    return shares


FEATURES = ("colors", "pixels", "edges", "all three")


def features_of(pixels, kind):
    """What pictures are compared by without learning, float32 (P, D).

    Pictures are first cut to what is drawn, because styles leave different margins.

    Args:
        pixels: uint8 (P, 64, 64, 3).
        kind: One of `FEATURES`: roots of a histogram of 6 · 6 · 6 colors; the colors of
            8 × 8 squares; roots of a histogram of 8 directions of edges in each square.
    """
    if kind == "all three":
        parts = [features_of(pixels, each) for each in FEATURES[:3]]
        # Each is worth the same.
        parts = [part / max(np.sqrt(part.var(axis=0).sum()), 1e-9) for part in parts]
        return np.concatenate(parts, axis=1)
    pixels = np.stack([_trim(picture) for picture in pixels])
    count, bins = len(pixels), 6
    squares = (count, 8, _SIDE // 8, 8, _SIDE // 8)
    if kind == "colors":
        levels = pixels.astype(int) * bins // 256
        colors = (levels @ np.array([bins * bins, bins, 1])).reshape(count, -1)
        found = [np.bincount(row, minlength=bins**3) for row in colors]
        return np.sqrt(np.stack(found) / _SIDE**2).astype("float32")
    if kind == "pixels":
        means = pixels.reshape(*squares, 3).mean(axis=(2, 4))
        return means.reshape(count, -1).astype("float32") / 255
    down, right = np.gradient(pixels.mean(axis=-1), axis=(1, 2))
    directions = ((np.arctan2(down, right) % np.pi) / np.pi * 8).astype(int) % 8
    strength = np.hypot(down, right)
    found = [
        np.where(directions == each, strength, 0).reshape(squares).sum(axis=(2, 4))
        for each in range(8)
    ]
    found = np.sqrt(np.stack(found, axis=-1)).reshape(count, -1)
    norm = np.linalg.norm(found, axis=1, keepdims=True)
    return (found / np.maximum(norm, 1e-9)).astype("float32")


def _trim(picture):
    """The part of a picture that is not white, in the middle of a square."""
    rows, columns = np.nonzero(picture.min(axis=-1) < _WHITE)
    if not len(rows):
        return picture
    part = Image.fromarray(
        picture[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    )
    side = max(part.size)
    square = Image.new("RGB", (side, side), "white")
    square.paste(part, ((side - part.width) // 2, (side - part.height) // 2))
    return np.asarray(square.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC))


def nearest_scores(pictures, training):
    """How near each picture is to each training picture, (P, M).

    Args:
        pictures: Features, (P, D).
        training: Features, (M, D).
    """
    squares = (pictures**2).sum(axis=1)[:, None] + (training**2).sum(axis=1)
    return 2 * pictures @ training.T - squares


def word_similarity(names, texts):
    """Similarity of names with texts by common words, (N, M).

    The cosine of vectors with a number for each word: its frequency in the text, times
    the logarithm of how rare it is (tf-idf).

    Args:
        names: N names.
        texts: M texts.
    """
    words = [[_WORD.findall(text.lower()) for text in each] for each in (names, texts)]
    numbers = {
        word: n for n, word in enumerate(sorted({w for t in words[1] for w in t}))
    }
    vectors = []
    for rows in words:
        counts = np.zeros((len(rows), len(numbers)), "float32")
        for row, found in enumerate(rows):
            for word in found:
                if word in numbers:
                    counts[row, numbers[word]] += 1
        vectors.append(counts)
    rarity = np.log(len(texts) / np.maximum(1, (vectors[1] > 0).sum(axis=0)))
    vectors = [counts * rarity for counts in vectors]
    vectors = [
        counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-9)
        for counts in vectors
    ]
    return vectors[0] @ vectors[1].T
