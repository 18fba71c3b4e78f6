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

import json
import time

import cpu_settings  # noqa: F401  TensorFlow reads it when imported.
import keras
import numpy as np
import tensorflow as tf
from emoji import (
    FEATURES,
    STYLES,
    chance,
    features_of,
    nearest_scores,
    pixels_of,
    read_emoji,
    retrieval,
    same_pictures,
    split_names,
    style_examples,
    word_similarity,
)
from matplotlib.figure import Figure
from options import (
    add_data_dir,
    add_training_options,
    new_parser,
    parse_with_smoke,
)

from keras_attn import data, models, training
from keras_attn.viz import save_figure

MAX_LENGTH = 20  # Tokens of a caption.
VOCABULARY = 4000
# How near a training picture must be for the baseline to use its words, in standard
# deviations of all nearnesses; the best of six on Twemoji.
TEMPERATURE = 0.2
QUERIES = ("a red heart", "a green animal", "sleeping", "music", "something to drink")


def parse_arguments():
    """Parses the command line."""
    parser = new_parser(__doc__, "runs/clip-emoji")
    add_data_dir(parser, "emoji", "folder with emoji.tsv and a ZIP archive per style")
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
    add_training_options(parser, epochs=60, batch_size=256, learning_rate=4e-3)
    tiny = {"epochs": 1, "batch_size": 8, "width": 4, "image_size": 32, "seeds": 1}
    return parse_with_smoke(parser, **tiny)


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


if __name__ == "__main__":
    main()
