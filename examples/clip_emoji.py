"""CLIP on emoji: learns two drawing styles with their names, and searches a third.

    python examples/clip_emoji.py --data-dir emoji

Emoji are 1,618 things, each drawn in three styles, with a name and keywords in English
and names in German and French: pictures made by people, and words chosen by people. The
model learns the pictures of two styles. The third style, Noto, is never seen. Neither
are the pictures and the names of 166 emoji, in any style: a tenth of the families,
where a family is what differs in small details, such as "judge", "man judge" and "woman
judge", a person who faces the other way, all clock faces, all keycaps and all arrows.
Hearts of other colors are families of their own. Known names were seen with the
pictures of the other two styles. OpenMoji draws 26 pairs of emoji alike to the pixel:
there either name is right. The data has no skin tones and no country flags.

The baselines learn nothing. They take the name of the nearest training picture, of
either style, by its colors, by 8 x 8 pixels, by the directions of edges, or by all
three, after both pictures were cut to what is drawn. A new name has no training
picture, so the words of near pictures vote for names with the same words (tf-idf of
names and keywords). The sharpness of the votes was chosen with Twemoji as the unseen
style, and so were the settings of the CLIP: 2.1 million parameters, images of 32 x 32
pixels, a vocabulary of 4,000 pieces trained on the known texts.

Results of three seeds, on one thread of an AMD EPYC (AVX-512 and VNNI, no AMX) with two
cores, beside other work: 60 epochs took 213 to 581 seconds of CPU time. Percent of
queries with a right answer among the first 1, 5 and 10; known names are compared with
the 1,452 known ones, new names with the 166 new ones:

                         known names                        new names
                   text to picture  picture to text   text to picture  picture to text
    chance           0.1  0.3  0.7   0.1  0.3  0.7     0.6  3.0  6.0    0.6  3.0  6.0
    colors           3.4 11.0 16.7   2.6  8.4 13.4     1.9 11.4 24.1    4.2 14.7 19.3
    pixels          33.1 50.7 58.9  31.5 48.0 54.3     9.8 29.5 39.1    8.0 22.9 30.5
    edges           49.4 67.3 73.0  42.8 61.1 65.8    15.8 31.9 40.4   11.1 31.0 39.2
    all three       50.0 67.2 72.9  42.6 60.4 68.1    12.2 33.7 45.2   12.2 30.5 37.6
    CLIP            14.8 36.8 48.4  13.6 35.4 47.4     7.4 19.9 31.9    7.2 21.7 30.9
      deviation      2.8  3.6  3.7   2.8  3.2  3.6     2.0  2.8  2.8    2.2  2.1  1.3

Zero-shot among all 1,618 names CLIP is right for 13.1 ± 2.7% of the pictures with a
known name (edges: 40.0%) and 0.8 ± 1.0% of the others (3.3%).

So this CLIP learns what carries over to a new style and to new names, far above chance,
but the nearest picture by edges is better at everything: styles draw one thing alike,
and after 60 epochs the model has not even learned its training pictures. Five times as
many steps are not enough either: with Twemoji as the unseen style, `--epochs 150
--batch-size 128 --learning-rate 2e-3`, 18 minutes of CPU time, the right picture is
first for 26.1% of known names (edges: 55.4%) and 7.2% of new ones (17.6%), though 88%
of training pictures then find their caption in a batch.
"""

import csv
import json
import re
import time
from dataclasses import dataclass

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure
from PIL import Image

from keras_attn import data, models, training
from keras_attn.data import ImageTextExample, read_image_texts
from keras_attn.data.images.image_files import read_image
from keras_attn.viz import save_figure

TABLE = "emoji.tsv"
STYLES = ("noto", "twemoji", "openmoji")
# What tells a man, a woman and a person apart, in names and in code points.
_SIGNS = re.compile(r"-(FE0F|200D-(2640|2642|27A1))")
_PERSON = re.compile(r"^(1F468|1F469|1F9D1)(?=-)")
_CLOCK = re.compile(r"o’clock|-thirty")
_WHITE = 245  # A pixel is empty if all its channels are above this.
_SIDE = 64
_WORD = re.compile(r"\w+")
FEATURES = ("colors", "pixels", "edges", "all three")
MAX_LENGTH = 20  # Tokens of a caption.
VOCABULARY = 4000
# How near a training picture must be for the baseline to use its words, in standard
# deviations of all nearnesses; the best of six on Twemoji.
TEMPERATURE = 0.2
QUERIES = ("a red heart", "a green animal", "sleeping", "music", "something to drink")


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/clip-emoji")
    script_arguments.add_data_dir(
        parser, "emoji", "folder with emoji.tsv and a ZIP archive per style"
    )
    parser.add_argument(
        "--style", choices=STYLES, default="noto", help="the style to hold out"
    )
    parser.add_argument(
        "--image-size", type=int, default=32, help="pixels, a multiple of 32"
    )
    parser.add_argument(
        "--width", type=int, default=16, help="base width of the image tower"
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of runs")
    script_arguments.add_training_options(
        parser, epochs=60, batch_size=256, learning_rate=4e-3
    )
    tiny = {"epochs": 1, "batch_size": 8, "width": 4, "image_size": 32, "seeds": 1}
    return script_arguments.parse(parser, **tiny)


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


def new_captions(emoji, seed):
    """A function from an emoji to captions, of which each epoch draws one.

    Six times its name, its names in German and French, and two captions of up to four
    keywords, drawn once.
    """
    random = np.random.default_rng(seed)

    def captions(one):
        drawn = [
            ", ".join(random.permutation(one.keywords)[: random.integers(1, 5)])
            for _ in range(2)
        ]
        return (*[one.name] * 6, *one.others, *drawn)

    return captions


def new_clip(arguments, vocabulary_size):
    """A small CLIP: a ResNet of four bottlenecks, and one block for texts."""
    clip = models.build_clip(
        "rn50",
        image_size=arguments.image_size,
        num_blocks=(1, 1, 1, 1),
        stem_dim=arguments.width,
        num_heads=max(1, arguments.width // 2),
        embedding_dim=128,
        vocabulary_size=vocabulary_size,
        max_sequence_length=MAX_LENGTH,
        text_num_layers=1,
        text_hidden_dim=128,
        text_num_heads=4,
        text_mlp_dim=512,
        dropout=0.1,
    )
    side = arguments.image_size
    # With it, the folder of the model can be searched with by `keras-attn search`.
    clip.preprocessing = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": side},
        "crop_size": {"height": side, "width": side},
        "resample": 3,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    return clip


def sometimes_gray(example, seed):
    """Takes the color from one picture in five: styles differ in their colors."""
    gray = tf.image.grayscale_to_rgb(tf.image.rgb_to_grayscale(example["image"]))
    is_gray = tf.random.stateless_uniform([], seed) < 0.2
    return {**example, "image": tf.where(is_gray, gray, example["image"])}


def fit(clip, tokenizer, examples, arguments, seed, folder):
    """Trains on pairs of a picture and one of its captions, or resumes."""
    side = arguments.image_size
    backup = training.BackupAndResume(folder / "backup")
    pairs = data.image_text_dataset(
        data.ImageTextData(examples),
        tokenizer,
        lambda images: images / 127.5 - 1,
        batch_size=arguments.batch_size,
        max_length=MAX_LENGTH,
        augmentations=[
            # Pictures of other styles are larger or smaller in their squares.
            data.RandomScaleAndCrop(side, scale=(0.75, 1.1), fill=255.0),
            data.RandomColors(0.1, 0.3, 0.4, 0.05),
            sometimes_gray,
        ],
        seed=seed,
        shuffle=True,
        epoch=backup.epoch,
        drop_remainder=True,
    )
    # The model needs no mask: it reads a text up to its end token.
    pairs = pairs.map(lambda pair: {x: pair[x] for x in ("images", "token_ids")})
    steps = arguments.epochs * len(pairs)
    rate = training.CosineWarmup(arguments.learning_rate, max(1, steps // 20), steps)
    optimizer = training.AdamW(rate, weight_decay=0.05, clipnorm=1.0)
    optimizer.exclude_from_weight_decay(
        var_names=["bias", "gamma", "beta", "logit_scale"]
    )
    clip.compile(optimizer, jit_compile=False)
    clip.fit(
        pairs.prefetch(tf.data.AUTOTUNE),
        epochs=arguments.epochs,
        shuffle=False,
        verbose=2,
        callbacks=[backup],
    )


def trained_clip(emoji, examples, texts, arguments, seed):
    """A CLIP with its tokenizer, trained or read from its folder."""
    folder = arguments.run_dir / f"{arguments.style}_{seed}"
    if not (folder / "clip").exists():
        keras.utils.set_random_seed(seed)
        tokenizer = data.CLIPTokenizer.train(texts, vocabulary_size=VOCABULARY)
        clip = new_clip(arguments, tokenizer.vocabulary_size)
        start = time.process_time()
        fit(clip, tokenizer, examples, arguments, seed, folder)
        print(f"{time.process_time() - start:.0f} s of CPU time", flush=True)
        models.save_checkpoint(clip, folder / "partial")
        tokenizer.save(folder / "partial")
        (folder / "partial").rename(folder / "clip")
    clip = models.load_checkpoint(folder / "clip")
    return clip, data.load_text_tokenizer(folder / "clip")


def scores_of(scores, is_right, is_new):
    """Recall at 1, 5 and 10, in both directions, of known and of new names.

    Args:
        scores: Of each picture with each name, (N, N).
        is_right: From `same_pictures`.
        is_new: Which names were held out, bool (N,).
    """
    found = {}
    for name, chosen in (("known", ~is_new), ("new", is_new)):
        part, right = (each[chosen][:, chosen] for each in (scores, is_right))
        found[f"{name} names, text to picture"] = retrieval(part.T, right.T)
        found[f"{name} names, picture to text"] = retrieval(part, right)
    # Among all names, those with the other kind of pictures too.
    for name, chosen in (("known", ~is_new), ("new", is_new)):
        found[f"{name} names, among all"] = retrieval(scores[chosen], is_right[chosen])
    return found


def baseline_scores(pictures, trained, is_new, words):
    """Scores of each picture with each name by the nearest training pictures, (N, N).

    A known name is as good as the nearest of its pictures. A new name has none: it is
    as good as the words of near pictures, each weighted by how near it is.

    Args:
        pictures: Features of the unseen style, (N, D).
        trained: Features of each training style, (M, D), in the order of known names.
        is_new: As in `scores_of`.
        words: The similarity of each name with the words of each known emoji, (N, M).
    """
    near = np.maximum(*(nearest_scores(pictures, each) for each in trained))
    # Standard deviations below the nearest picture.
    near = (near - near.max(axis=1, keepdims=True)) / max(near.std(), 1e-9)
    scores = np.empty(words.shape[:1] * 2)
    weights = np.exp(near / TEMPERATURE)
    weights /= weights.sum(axis=1, keepdims=True)
    scores[:] = weights @ words.T
    # Known names keep the order of nearness; between 0 and 1, to compare with new ones.
    scores[:, ~is_new] = np.where(weights > 1e-12, weights, 1e-12 * np.exp(near))
    return scores


def print_row(name, found):
    """Prints recall at 1, 5 and 10 in percent, or mean and deviation over seeds."""
    runs = np.array(found) * 100
    if runs.ndim == 1:
        cells = [f"{share:5.1f}" for share in runs]
    else:
        deviations = runs.std(0, ddof=min(1, len(runs) - 1))
        cells = [
            f"{mean:5.1f} ± {deviation:.1f}"
            for mean, deviation in zip(runs.mean(0), deviations, strict=True)
        ]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def plot_search(clip, tokenizer, pixels, queries, count=6):
    """A figure: the pictures that fit each text best, the best one first."""
    pictures = models.picture_encoder(clip, batch_size=64)(pixels)
    texts = models.caption_encoder(clip, tokenizer)(queries)
    figure = Figure(figsize=(1.5 + count, len(queries)), dpi=100, layout="constrained")
    axes = figure.subplots(len(queries), count, squeeze=False)
    for row, (query, scores) in enumerate(
        zip(queries, texts @ pictures.T, strict=True)
    ):
        for place, number in zip(axes[row], np.argsort(-scores), strict=False):
            place.imshow(pixels[number])
            place.set(xticks=[], yticks=[])
            place.set_frame_on(False)
        label = query.replace(" ", "\n", 1) if len(query) > 12 else query
        axes[row, 0].set_ylabel(label, rotation=0, ha="right", va="center")
    return figure


def main():
    """Trains, and compares the search of unseen pictures with nearest pictures."""
    arguments = parse_arguments()
    folder = arguments.data_dir
    emoji = read_emoji(folder)
    is_new = split_names(emoji)
    known = [one for one, new in zip(emoji, is_new, strict=True) if not new]
    names = [one.name for one in emoji]
    texts = [text for x in known for text in (x.name, *x.keywords, *x.others)]
    is_right = same_pictures(folder, arguments.style, emoji)
    print(f"{len(known)} emoji with {len(texts)} texts, {is_new.sum()} held out")
    pixels, examples = {}, []
    for style in STYLES:
        found = style_examples(folder, style, emoji, new_captions(emoji, seed=0))
        pixels[style] = pixels_of(found)
        if style != arguments.style:
            examples += [x for x, new in zip(found, is_new, strict=True) if not new]

    runs = []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        clip, tokenizer = trained_clip(emoji, examples, texts, arguments, seed)
        encode = models.caption_encoder(clip, tokenizer)
        pictures = models.picture_encoder(clip, batch_size=64)(pixels[arguments.style])
        found = scores_of(pictures @ encode(names).T, is_right, is_new)
        runs.append(found)
        print(f"seed {seed}: {json.dumps(found)}", flush=True)
        if seed == arguments.seed:
            held_out = [names[number] for number in np.flatnonzero(is_new)]
            queries = [*QUERIES, *held_out[:: max(1, len(held_out) // 3)][:3]]
            figure = plot_search(clip, tokenizer, pixels[arguments.style], queries)
            save_figure(figure, arguments.run_dir / "search.png")

    words = word_similarity(names, [" ".join((x.name, *x.keywords)) for x in known])
    baselines = {}
    for kind in FEATURES:
        features = np.split(
            features_of(np.concatenate([pixels[style] for style in STYLES]), kind), 3
        )
        features = dict(zip(STYLES, features, strict=True))
        trained = [
            x[~is_new] for name, x in features.items() if name != arguments.style
        ]
        scores = baseline_scores(features[arguments.style], trained, is_new, words)
        baselines[kind] = scores_of(scores, is_right, is_new)
    random = {}
    for name, chosen in (("known", ~is_new), ("new", is_new)):
        right = is_right[chosen][:, chosen]
        random[f"{name} names, text to picture"] = chance(right.T)
        random[f"{name} names, picture to text"] = chance(right)
        random[f"{name} names, among all"] = chance(is_right[chosen])
    for kind in runs[0]:
        print(f"\n| {kind} | at 1 | at 5 | at 10 |")
        print_row("chance", random[kind])
        for name, found in baselines.items():
            print_row(f"nearest by {name}", found[kind])
        print_row("CLIP", [found[kind] for found in runs])
    print(f"\nA search: {arguments.run_dir / 'search.png'}")


if __name__ == "__main__":
    main()
