"""Captions of shapes: five captioners, and where they look.

    python examples/shape_backbone.py
    python examples/caption_shapes.py
    python examples/caption_shapes.py --mistakes

Trains them on generated images of one or two shapes ("a small white square below a
large red ring"), and scores the captions of held-out images, written by a beam of 3. An
object is right if its size, its color and its shape are; a caption counts if all its
objects are right and no other is named.

Of the 96 combinations of size, color and shape 24 are held out: no training image shows
one, and no training caption names one, but each two of the three words occur together.
"New" images show only these, "known" ones only the 72 others, and their captions may
stand in training. All captioners but the ViT, which learns from pixels, read the same
map, of the CNN of `shape_backbone.py`. It was trained before on labels of all
combinations and stays as it is; its channels are normalized over training images.
Without this Show and Tell, which reads the mean of the map, of which an object is 6%,
gets 16.6% of known and none of new images right (seed 0, the same 12 epochs).

Each captioner is saved with its words, and a new image beside them, so that a shell
shows where it looks:

    cd runs/caption-shapes
    keras-attn attention show_attend_tell_soft_0 --image image.png --output looks.html

The last column is the share of attention inside of the object that is named, at each of
the three words that name it, in the captions that the model wrote of new images, and in
brackets the share of the image that the object covers. Nothing says where to look.
Transformers have several heads and blocks, of which it is the mean.

`--mistakes` reads the trained captioners that attend, with the options of their
training, and draws a dozen captions of new images that are wrong: the wrong word, the
object that it should name, and where the captioner looked for it (Xu et al. 2015,
figure 5, arXiv:1502.03044). It prints how often a wrong word is a size, a color or a
shape, and how much attention is inside of the object at wrong words and at right ones.

Results with one thread of an AMD EPYC (AVX-512, no AMX) with two cores, beside other
work: 6,000 images, 12 epochs, 500 known and 500 new images. Means of three seeds of the
weights and the order, on the same images, with their standard deviations. The CNN took
102 to 129 seconds of CPU time. In three runs with `--systems`, 32, 20 and 56 minutes on
the clock.

    % of images right        CPU    known       new         new, two    inside
    show_and_tell           35 s  91.9 ± 2.2  62.9 ± 0.9  29.3 ± 1.8
    show_attend_tell_soft   86 s  97.5 ± 1.1  79.3 ± 0.8  60.4 ± 1.5  0.57 ± 0.08
    show_attend_tell_hard  134 s  97.7 ± 0.2  68.1 ± 1.9  39.2 ± 3.5  0.68 ± 0.02
    cnn_transformer        252 s  98.9 ± 0.6  99.1 ± 1.0  98.5 ± 2.0  0.22 ± 0.04
    vit_transformer         75 s  42.3 ± 4.3   0.6 ± 1.0   0.0 ± 0.0

All but the ViT name nearly every object of a new image that shows only one. What
attention adds are two objects: the mean of the map does not say which color is of which
shape. Of known combinations Show and Tell still gets 78.9 to 86.6% of the images of two
objects right, of new ones 28 to 31%. Hard attention looks more at the object that it
names than soft attention, and yet puts fewer new combinations together. The
Transformer, with more attention and more time, names new combinations as well as known
ones, although its mean attention is in the object only four times as much as chance:
the objects cover 0.06 of the image. The ViT has no such map to start from. In 12 epochs
it learns to name single objects of known combinations from pixels (56 to 66% right),
and remembers whole combinations: of new ones it names almost none.
"""

import collections
import itertools
import json
import textwrap
import time
from dataclasses import dataclass, replace
from pathlib import Path

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from keras_attn import data, models, viz
from keras_attn.data import caption_dataset
from keras_attn.decoding import Beam, generate
from keras_attn.losses import SmoothedCrossEntropy
from keras_attn.metrics import AttentionInside, exact_match, word_objects
from keras_attn.training import AdamW, BackupAndResume, CosineWarmup

IMAGE_SIZE = 64
STRIDE = 4  # Side of a location in pixels.
GRID_SIZE = IMAGE_SIZE // STRIDE
# Radii, as shares of the side. The largest circle covers 14.5% of the image.
SIZES = {"small": (0.13, 0.15), "large": (0.19, 0.215)}
MAX_LENGTH = 12  # Tokens of a caption.
NUM_OBJECTS = (1, 2)
PATCH_SIZE = 8  # Of the ViT.
NUM_SHOWN = 3  # Captions that are printed and drawn.
MISTAKE_ROWS, MISTAKE_COLUMNS = 3, 4  # Of the picture of wrong captions.
WRONG = "#c0272d"
NUM_MEASURED = 500  # Training images from which the channels are normalized.
# Shares of right captions: of all images, and of images with one and two objects.
SHARES = ("all", "one", "two")
# Captioner to the factor of its learning rate. The last reads pixels, the others maps.
SYSTEMS = {
    "show_and_tell": 1.0,
    "show_attend_tell_soft": 1.0,
    "show_attend_tell_hard": 1.0,
    "cnn_transformer": 1 / 3,
    "vit_transformer": 1 / 3,
}


@dataclass(frozen=True)
class Captions:
    """Images with their captions.

    Attributes:
        arrays: `images` uint8 (B, H, W, 3), their `features`, and `captions`.
        objects: For each image, the size, color and shape of each of its objects.
        masks: bool (B, M, H, W), the pixels of each object; M objects with padding.
    """

    arrays: dict
    objects: list
    masks: np.ndarray


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/caption-shapes")
    script_arguments.add_image_counts(parser, images=6000, held_out=500)
    parser.add_argument(
        "--hidden-dim", type=int, default=128, help="units of the decoders"
    )
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=SYSTEMS,
        default=list(SYSTEMS),
        help="captioners to train",
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="number of seeds, counted from --seed"
    )
    parser.add_argument(
        "--backbone",
        type=Path,
        default=Path("runs/shape-backbone/model.keras"),
        help="the CNN that shape_backbone.py writes",
    )
    parser.add_argument(
        "--mistakes",
        action="store_true",
        help="draw what the captioners in --run-dir get wrong; do not train",
    )
    script_arguments.add_training_options(
        parser, epochs=12, batch_size=32, learning_rate=3e-3
    )
    return parser.parse_args()


def split_kinds(shapes):
    """Combinations of size, color and shape for training, and those held out.

    A quarter is held out. Each pair of a size, color or shape occurs in training.
    """
    parts = {True: [], False: []}
    for (i, size), (j, color), (k, shape) in itertools.product(
        *map(enumerate, (shapes.sizes, shapes.colors, shapes.shapes))
    ):
        parts[(2 * i + j + k) % 4 == 0].append((size, color, shape))
    return parts[False], parts[True]


def normalized(backbone, images):
    """The backbone with channels of mean 0 and deviation 1 over these images.

    The share of a location that one color covers is small almost everywhere, and its
    mean over the locations is even smaller: too small for the learning rate of the
    other captioners.
    """
    maps = features_of(backbone, images).astype("float32")
    axes = tuple(range(maps.ndim - 1))
    norm = keras.layers.Normalization(mean=maps.mean(axes), variance=maps.var(axes))
    model = keras.Model(backbone.input, norm(backbone.output))
    model.trainable = False
    return model


def draw(shapes, backbone, start, count):
    """Images and their captions, drawn once: drawing takes longer than a step."""
    examples = [shapes.example(start + number) for number in range(count)]
    images = np.stack([example.image for example in examples])
    masks = np.zeros((count, NUM_OBJECTS[1], *shapes.image_size), bool)
    for row, example in zip(masks, examples, strict=True):
        row[: len(example.masks)] = example.masks
    arrays = {
        "images": images,
        "features": features_of(backbone, images),
        "captions": np.array([example.caption for example in examples]),
    }
    objects = [
        [(each.size, each.color, each.shape) for each in example.objects]
        for example in examples
    ]
    return Captions(arrays, objects, masks)


def build(name, arguments, seed, vocabulary_size, **image):
    """A captioner at the sizes of the command line.

    Args:
        name: One of `SYSTEMS`.
        arguments: Command-line arguments.
        seed: Seed of the locations that hard attention draws.
        vocabulary_size: Number of tokens.
        **image: `backbone`, or `grid_size` and `feature_dim` of its maps.
    """
    units = arguments.hidden_dim
    blocks = {"num_layers": 2, "hidden_dim": units // 2, "num_heads": 4}
    blocks |= {"mlp_dim": 2 * units}
    shared = {"vocabulary_size": vocabulary_size, "dropout": 0.0}
    if name == "vit_transformer":
        encoder = {"image_size": IMAGE_SIZE, "patch_size": PATCH_SIZE, **blocks}
        return models.build_caption_vit_transformer(
            encoder=encoder,
            max_sequence_length=MAX_LENGTH + 1,
            attention_dropout=0.0,
            return_attention_scores=True,
            **blocks,
            **shared,
        )
    if name == "cnn_transformer":
        return models.build_caption_cnn_transformer(
            return_attention_scores=True, **blocks, **shared, **image
        )
    lstm = {"embedding_dim": units // 2, "hidden_dim": units, **shared, **image}
    if name == "show_and_tell":
        return models.build_caption_show_and_tell(**lstm)
    return models.build_caption_show_attend_tell(
        attention_dim=units // 2,
        initial_dim=units,
        attention=name.rpartition("_")[-1],
        # A dozen words can't look at each of 256 locations, as the penalty demands.
        coverage_weight=0.0,
        # For hard attention: a larger REINFORCE term, and no reward for entropy.
        reinforce_weight=1.0,
        entropy_weight=0.0,
        seed=seed,
        return_attention_scores=True,
        **lstm,
    )


def inputs_of(model, arrays):
    """The model's inputs: images in [0, 1], or maps."""
    name = "images" if "images" in model.input else "features"
    scale = 1 / 255 if name == "images" else 1.0
    return {name: arrays[name].astype("float32") * scale}


def fit(model, name, train, tokenizer, arguments, seed, folder):
    """Trains a captioner, or resumes.

    Returns:
        The seconds of CPU time, and the callback whose backup to delete in the end.
    """
    backup = BackupAndResume(folder / "backup", delete_checkpoint=False)
    order = data.shuffled_dataset(
        {**inputs_of(model, train.arrays), "captions": train.arrays["captions"]},
        seed=seed,
        epoch=backup.epoch,
    )
    batches = order.batch(arguments.batch_size, drop_remainder=True)
    dataset = caption_dataset(batches, tokenizer, max_length=MAX_LENGTH)
    if isinstance(model.output, dict):
        dataset = dataset.map(
            lambda inputs, labels, weights: (
                inputs,
                {"logits": labels},
                {"logits": weights},
            )
        )
    steps = arguments.epochs * len(dataset)
    rate = SYSTEMS[name] * arguments.learning_rate
    schedule = CosineWarmup(rate, max(1, steps // 20), steps + 1)
    loss = SmoothedCrossEntropy()
    if isinstance(model.output, dict):
        loss = {"logits": loss}
    # The gradients of an LSTM are sometimes large.
    model.compile(AdamW(schedule, clipnorm=5.0), loss=loss, jit_compile=False)
    start = time.process_time()
    logs = keras.callbacks.TensorBoard(folder / "logs", write_graph=False)
    model.fit(
        dataset.prefetch(tf.data.AUTOTUNE),
        epochs=arguments.epochs,
        callbacks=[logs, backup],
        shuffle=False,
        verbose=2,
    )
    return time.process_time() - start, backup


def write_captions(model, held_out, tokenizer):
    """One caption for each image, by a beam of 3."""
    inputs, captions = inputs_of(model, held_out.arrays), []
    for begin in range(0, len(held_out.objects), 100):
        found = generate(
            model,
            {name: value[begin : begin + 100] for name, value in inputs.items()},
            MAX_LENGTH,
            strategy=Beam(3),
            start_token_id=tokenizer.start_token_id,
            end_token_id=tokenizer.end_token_id,
        )
        captions += tokenizer.decode_batch(found.token_ids)
    return captions


def attention_of(model, held_out, captions, tokenizer):
    """A captioner's attention at each token of captions, (B, T, rows, columns).

    For a Transformer, it is the mean over blocks and heads, without the class token.
    """
    tokens = np.full((len(captions), MAX_LENGTH + 1), tokenizer.pad_token_id, np.int32)
    for row, caption in zip(tokens, captions, strict=True):
        ids = [tokenizer.start_token_id, *tokenizer.encode(caption)]
        row[: len(ids)] = ids[: len(row)]
    inputs = {**inputs_of(model, held_out.arrays), "decoder_token_ids": tokens[:, :-1]}
    maps = model.predict(inputs, batch_size=100, verbose=0)["attention_scores"]
    side = int(maps.shape[-1] ** 0.5)
    maps = maps.mean(1)[..., -(side**2) :]
    return maps.reshape(*maps.shape[:2], side, side)


def token_objects(captions, objects, tokenizer):
    """For each token of a caption, the object of the image that it names, or -1.

    An object is named by three words, its size, color and shape, and all of them count.
    Objects that are not in the image, or are twice in it, do not count, because they
    have no unique place.
    """
    numbers = np.full((len(captions), MAX_LENGTH), -1, np.int32)
    for row, caption, known in zip(numbers, captions, objects, strict=True):
        words = caption.split()
        ends = np.cumsum([len(tokenizer.encode(word)) for word in words])
        for first in range(len(words) - 2):
            named = tuple(words[first : first + 3])
            if known.count(named) == 1:
                begin = ends[first - 1] if first else 0
                row[begin : ends[first + 2]] = known.index(named)
    return numbers


def share_inside(maps, masks, numbers):
    """The share of attention inside the objects that words name, and their area."""
    metric = AttentionInside()
    for begin in range(0, len(maps), 50):
        rows = slice(begin, begin + 50)
        metric.update_state(
            word_objects(masks[rows], numbers[rows]), maps[rows], numbers[rows] >= 0
        )
    figures = metric.result()
    return float(figures["attention_inside"]), float(figures["object_area"])


def named_in(caption, shapes):
    """The objects that a caption names: the place of their first word, and the words.

    Args:
        caption: The caption.
        shapes: The `Shapes` whose words name objects.
    """
    words = caption.split()
    kinds = (shapes.sizes, shapes.colors, shapes.shapes)
    return [
        (place, triple)
        for place, triple in enumerate(zip(words, words[1:], words[2:], strict=False))
        if all(word in kind for word, kind in zip(triple, kinds, strict=True))
    ]


def objects_of(caption, shapes):
    """The objects that a caption names: how often each (size, color, shape)."""
    return collections.Counter(triple for _, triple in named_in(caption, shapes))


def exact_objects(captions, references, shapes):
    """Share of captions that name exactly the objects of the reference."""
    return exact_match(
        [str(sorted(objects_of(text, shapes).items())) for text in captions],
        [str(sorted(objects_of(text, shapes).items())) for text in references],
    )


def score(model, images, tokenizer, shapes, folder=None):
    """How well a captioner names the objects of images, and where it looks.

    Args:
        model: The captioner.
        images: `Captions`.
        tokenizer: The tokenizer of the captions.
        shapes: The `Shapes` whose words name objects.
        folder: Folder for pictures of the first captions.

    Returns:
        Shares of captions with the right objects, for `all` images, and for images of
        `one` and of `two` objects; if the model attends, also the share of attention
        `inside` the named object, and the `area` of the object.
    """
    captions = write_captions(model, images, tokenizer)
    references = images.arrays["captions"].tolist()
    scores = {"all": exact_objects(captions, references, shapes)}
    for name, count in (("one", 1), ("two", 2)):
        chosen = [i for i, x in enumerate(images.objects) if len(x) == count]
        ours, theirs = ([x[i] for i in chosen] for x in (captions, references))
        scores[name] = exact_objects(ours, theirs, shapes)
    if isinstance(model.output, dict):
        maps = attention_of(model, images, captions, tokenizer)
        numbers = token_objects(captions, images.objects, tokenizer)
        scores["inside"], scores["area"] = share_inside(maps, images.masks, numbers)
        if folder is not None:
            draw_captions(images, captions, maps, tokenizer, folder)
    for ours, theirs in list(zip(captions, references, strict=True))[:NUM_SHOWN]:
        print(f"  {ours}\n    ({theirs})")
    return scores


def print_table(runs, counts):
    """Prints means and standard deviations over the seeds, one row per captioner.

    Args:
        runs: For each captioner, the scores of each seed, by the set of images.
        counts: The number of parameters of each captioner.
    """
    print(
        "\n| captioner | parameters | CPU s | known combinations | new combinations "
        "| of one | of two | attention inside (area) |"
    )
    print("|---" * 8 + "|")
    for name, results in runs.items():

        def told(part, figure, results=results, digits="1%"):
            values = np.array([each[part][figure] for each in results])
            spread = values.std(ddof=1) if len(values) > 1 else 0.0
            return f"{values.mean():.{digits}} ± {spread:.{digits}}"

        inside = "–"
        if "inside" in results[0]["new"]:
            area = np.mean([each["new"]["area"] for each in results])
            inside = f"{told('new', 'inside', digits='2f')} ({area:.2f})"
        seconds = np.mean([each["seconds"] for each in results])
        figures = [told("known", "all"), *(told("new", x) for x in SHARES)]
        print(f"| {name} | {counts[name]:,} | {seconds:.0f} | ", end="")
        print(f"{' | '.join(figures)} | {inside} |")


def features_of(backbone, images):
    """The map of each image, computed once, float16 (count, h, w, channels)."""
    maps = [
        backbone.predict_on_batch(images[begin : begin + 100].astype("float32"))
        for begin in range(0, len(images), 100)
    ]
    return np.concatenate([part.astype("float16") for part in maps])


def with_backbone(model, trained):
    """Copies the weights of a model trained on maps to one with the backbone."""
    for layer in trained.layers:
        if layer.weights:
            model.get_layer(layer.name).set_weights(layer.get_weights())
    return model


def save(model, tokenizer, folder, takes_shares):
    """Saves a captioner with its words, and how images become its inputs.

    Args:
        model: A captioner of images.
        tokenizer: Of its captions.
        folder: An existing folder.
        takes_shares: Whether its pixels are from 0 to 1, not as in files.
    """
    model.preprocessing = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
        "do_rescale": takes_shares,
        "do_normalize": False,
    }
    model.save(folder / "model.keras")
    tokenizer.save(folder / "tokenizer.json")


def wrong_words(caption, objects, shapes):
    """The wrong words of a caption: size, color or shape of an object.

    An object that is not in the image stands for the one that it shares most words
    with, of those that no other part of the caption names.

    Args:
        caption: The caption.
        objects: The size, color and shape of each object of the image.
        shapes: The `Shapes` whose words name objects.

    Returns:
        For each wrong word its place in the caption, the right word, the number of the
        object, and 0, 1 or 2 for a size, a color or a shape. Objects that are left out,
        or named beyond those of the image, have no wrong word.
    """
    left, unknown, found = list(range(len(objects))), [], []
    for place, triple in named_in(caption, shapes):
        same = [number for number in left if tuple(objects[number]) == triple]
        if same:
            left.remove(same[0])
        else:
            unknown.append((place, triple))
    for place, triple in unknown:
        if left:
            alike = [sum(map(str.__eq__, triple, objects[number])) for number in left]
            number = left.pop(int(np.argmax(alike)))
            found += [
                (place + part, right, number, part)
                for part, right in enumerate(objects[number])
                if right != triple[part]
            ]
    return found


def first_tokens(caption, tokenizer):
    """The place of the first token of each word of a caption."""
    lengths = [len(tokenizer.encode(word)) for word in caption.split()]
    return np.cumsum([0, *lengths])[:-1]


def draw_mistakes(images, captions, maps, mistakes, title):
    """A grid of wrong captions, each with its image and the attention at the word.

    Args:
        images: `Captions`.
        captions: The captions that were written.
        maps: Attention at each token, (B, T, rows, columns).
        mistakes: The number of the image, the place of the word and of its first token,
            the right word and the number of its object.
        title: Title of the figure.
    """
    shown = mistakes[: MISTAKE_ROWS * MISTAKE_COLUMNS]
    rows = -(-len(shown) // MISTAKE_COLUMNS)
    figure = Figure(figsize=(13, 2.6 * rows + 0.4), dpi=150, layout="compressed")
    axes = figure.subplots(rows, 2 * MISTAKE_COLUMNS, squeeze=False)
    for axis in axes.ravel():
        axis.set_axis_off()
    for (left, right), (row, place, token, truth, number) in zip(
        axes.reshape(-1, 2), shown, strict=False
    ):
        words = captions[row].split()
        said, words[place] = words[place], f"[{words[place]}]"
        left.imshow(images.arrays["images"][row])
        viz.plot_image_attention(
            images.arrays["images"][row], maps[row, token], ax=right
        )
        for axis in (left, right):
            axis.contour(images.masks[row, number], [0.5], colors="#19c3b2")
        left.set_title(textwrap.fill(" ".join(words), 34), fontsize=8, loc="left")
        left.text(
            0,
            -0.03,
            f"“{said}” should be “{truth}”",
            transform=left.transAxes,
            va="top",
            fontsize=8,
            color=WRONG,
        )
    figure.suptitle(title, fontsize=10)
    return figure


def report_mistakes(model, name, images, tokenizer, shapes, folder):
    """Prints and draws what a captioner gets wrong.

    Args:
        model: A captioner that returns its attention.
        name: Its name.
        images: `Captions`.
        tokenizer: The tokenizer of the captions.
        shapes: The `Shapes` whose words name objects.
        folder: Folder for the picture.
    """
    captions = write_captions(model, images, tokenizer)
    maps = attention_of(model, images, captions, tokenizer)
    mistakes, parts, num_wrong = [], collections.Counter(), 0
    numbers = np.full(maps.shape[:2], -1, np.int32)
    for row, (caption, objects) in enumerate(
        zip(captions, images.objects, strict=True)
    ):
        num_wrong += objects_of(caption, shapes) != collections.Counter(objects)
        tokens = first_tokens(caption, tokenizer)
        wrong = [
            each
            for each in wrong_words(caption, objects, shapes)
            if tokens[each[0]] < maps.shape[1]
        ]
        for place, _, number, part in wrong:
            numbers[row, tokens[place]] = number
            parts[("sizes", "colors", "shapes")[part]] += 1
        if wrong:
            place, truth, number, _ = wrong[0]
            mistakes.append((row, place, tokens[place], truth, number))
    print(
        f"{name}: {num_wrong} of {len(captions)} captions are wrong, "
        f"{len(mistakes)} of them by a word; wrong words: {dict(parts)}"
    )
    if not mistakes:
        return
    right = token_objects(captions, images.objects, tokenizer)
    for kind, each in (("wrong", numbers), ("right", right)):
        inside, area = share_inside(maps, images.masks, each)
        print(f"  attention inside the object at {kind} words: {inside:.2f} ", end="")
        print(f"(area {area:.2f})")
    title = f"{name}: wrong words in brackets, the object outlined, and where it looked"
    path = folder / f"mistakes_{name}.png"
    viz.save_figure(draw_mistakes(images, captions, maps, mistakes, title), path)
    print(f"  picture: {path}")


def show_mistakes(arguments, images, tokenizer, shapes):
    """Reads the captioners of the first seed that attend, and shows their mistakes."""
    for name in arguments.systems:
        path = arguments.run_dir / f"{name}_{arguments.seed}" / "model.keras"
        if not path.is_file():
            raise SystemExit(f"error: --mistakes needs {path}: run without it first")
        model = keras.saving.load_model(path)
        if isinstance(model.output, dict):
            report_mistakes(model, name, images, tokenizer, shapes, arguments.run_dir)


def main():
    """Trains every captioner with every seed, writes captions and scores them."""
    arguments = parse_arguments()
    run_dir = arguments.run_dir
    keras.utils.set_random_seed(arguments.seed)
    shapes = data.Shapes(
        image_size=IMAGE_SIZE,
        num_objects=NUM_OBJECTS,
        sizes=SIZES,
        seed=arguments.seed,
    )
    known, new = (replace(shapes, kinds=kinds) for kinds in split_kinds(shapes))
    backbone = keras.saving.load_model(arguments.backbone)
    images = np.stack([known.example(i).image for i in range(NUM_MEASURED)])
    backbone = normalized(backbone, images)
    if arguments.mistakes:
        texts = [known.example(i).caption for i in range(arguments.images)]
        tokenizer = data.SubwordTokenizer.train(texts)
        images = draw(new, backbone, 0, arguments.held_out)
        show_mistakes(arguments, images, tokenizer, shapes)
        return
    train = draw(known, backbone, 0, arguments.images)
    held_out = {
        "known": draw(known, backbone, arguments.images, arguments.held_out),
        "new": draw(new, backbone, 0, arguments.held_out),
    }
    image = held_out["new"].arrays["images"][0]
    keras.utils.save_img(run_dir / "image.png", image, scale=False)
    tokenizer = data.SubwordTokenizer.train(train.arrays["captions"].tolist())
    maps_of = {"grid_size": GRID_SIZE, "feature_dim": backbone.output_shape[-1]}
    runs, counts, backups = collections.defaultdict(list), {}, []
    # Seed by seed, so that an interrupted run has captioners of all kinds.
    for seed, name in itertools.product(
        range(arguments.seed, arguments.seed + arguments.seeds), arguments.systems
    ):
        keras.utils.set_random_seed(seed)
        sizes = (arguments, seed, tokenizer.vocabulary_size)
        model = build(name, *sizes, **maps_of)
        counts[name] = model.count_params()
        folder = run_dir / f"{name}_{seed}"
        print(f"\n{folder.name}: {counts[name]:,} parameters", flush=True)
        seconds, backup = fit(model, name, train, tokenizer, arguments, seed, folder)
        backups.append(backup)
        whole = model
        if "features" in model.input:
            whole = with_backbone(build(name, *sizes, backbone=backbone), model)
        save(whole, tokenizer, folder, takes_shares=whole is model)
        scores = {
            part: score(model, those, tokenizer, shapes, folder)
            for part, those in held_out.items()
        }
        print(json.dumps({"seconds": seconds, **scores}), flush=True)
        runs[name].append({"seconds": seconds, **scores})
    print_table(runs, counts)
    (run_dir / "scores.json").write_text(json.dumps(runs, indent=1), "utf-8")
    for backup in backups:
        backup.delete()
    print(f"\nPictures and models: {run_dir}; tensorboard --logdir {run_dir}")


def draw_captions(held_out, captions, maps, tokenizer, folder):
    """Writes a picture of each of the first captions."""
    for row in range(min(NUM_SHOWN, len(captions))):
        tokens = [
            tokenizer.decode([token]) for token in tokenizer.encode(captions[row])
        ]
        if tokens[:MAX_LENGTH]:
            figure = viz.plot_caption_attention(
                held_out.arrays["images"][row], tokens[:MAX_LENGTH], maps[row]
            )
            viz.save_figure(figure, folder / f"caption_{row}.png")


if __name__ == "__main__":
    main()
