"""Captions of shapes: five captioners, and where they look.

    python examples/shape_backbone.py
    python examples/caption_shapes.py

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

What a captioner that attends wrote of new images, and its attention at each word, is
beside it in `new.npz`, from which `caption_mistakes.py` draws what is wrong. All that
is compared here is in one file, since only `build` and `SYSTEMS` tell captioners apart.

Results with one thread of an AMD EPYC (AVX-512, no AMX) with two cores, beside other
work: 6,000 images, 12 epochs, 500 known and 500 new images. Means of three seeds of the
weights and the order, on the same images, with their standard deviations. The CNN took
102 to 129 seconds of CPU time.

    % of images right        CPU    known       new         new, two    inside
    show_and_tell           35 s  91.9 ± 2.2  62.9 ± 0.9  29.3 ± 1.8
    show_attend_tell_soft   63 s  98.0 ± 0.5  77.1 ± 5.8  56.4 ± 11.1 0.57 ± 0.07
    show_attend_tell_hard  112 s  97.7 ± 0.4  72.3 ± 5.6  47.2 ± 10.8 0.68 ± 0.05
    cnn_transformer        152 s  98.9 ± 0.6  99.1 ± 1.0  98.5 ± 2.0  0.22 ± 0.04
    vit_transformer         71 s  42.3 ± 4.3   0.6 ± 1.0   0.0 ± 0.0

All but the ViT name nearly every object of a new image that shows only one. What
attention adds are two objects: the mean of the map does not say which color is of which
shape. Of known combinations Show and Tell still gets 78.9 to 86.6% of the images of two
objects right, of new ones 28 to 31%. Hard attention looks more at the object that it
names than soft attention, and yet does not name more; between the two, seeds differ
more than kinds. The Transformer, with more attention and more time, names new
combinations as well as known ones, although its mean attention is in the object only
four times as much as chance: the objects cover 0.06 of the image. The ViT has no such
map to start from. In 12 epochs it learns to name single objects of known combinations
from pixels (56 to 66% right), and remembers whole combinations: of new ones it names
almost none.
"""

import collections
import itertools
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
import tensorflow as tf

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
    """A captioner's attention at each word of captions, (B, T, rows, columns).

    It is that at the word's first token. For a Transformer, it is the mean over blocks
    and heads, without the class token.
    """
    tokens = np.full((len(captions), MAX_LENGTH + 1), tokenizer.pad_token_id, np.int32)
    firsts = np.zeros((len(captions), MAX_LENGTH), int)
    for row, first, caption in zip(tokens, firsts, captions, strict=True):
        pieces = [tokenizer.encode(word) for word in caption.split()[:MAX_LENGTH]]
        ids = [tokenizer.start_token_id, *itertools.chain(*pieces)]
        row[: len(ids)] = ids[: len(row)]
        first[: len(pieces)] = np.cumsum([0, *map(len, pieces)])[:-1]
    firsts = np.minimum(firsts, MAX_LENGTH - 1)
    inputs = {**inputs_of(model, held_out.arrays), "decoder_token_ids": tokens[:, :-1]}
    maps = model.predict(inputs, batch_size=100, verbose=0)["attention_scores"]
    side = int(maps.shape[-1] ** 0.5)
    maps = maps.mean(1)[np.arange(len(maps))[:, None], firsts, -(side**2) :]
    return maps.reshape(*maps.shape[:2], side, side)


def objects_named(captions, objects, shapes):
    """For each word of a caption, the object of the image that it names, or -1.

    An object is named by three words, its size, color and shape, and all of them count.
    Objects that are not in the image, or are twice in it, do not count, because they
    have no unique place.
    """
    numbers = np.full((len(captions), MAX_LENGTH), -1, np.int32)
    for row, caption, known in zip(numbers, captions, objects, strict=True):
        for place, named in named_in(caption, shapes):
            if known.count(named) == 1:
                row[place : place + 3] = known.index(named)
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
        folder: Folder for captions and their attention, if the model attends.

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
        numbers = objects_named(captions, images.objects, shapes)
        scores["inside"], scores["area"] = share_inside(maps, images.masks, numbers)
        if folder is not None:
            draw_captions(images, captions, maps, folder)
            keep_captions(images, captions, maps, folder / "new.npz")
    for ours, theirs in list(zip(captions, references, strict=True))[:NUM_SHOWN]:
        print(f"  {ours}\n    ({theirs})")
    return scores


def draw_captions(held_out, captions, maps, folder):
    """Writes a picture of each of the first captions."""
    for row in range(min(NUM_SHOWN, len(captions))):
        words = captions[row].split()[:MAX_LENGTH]
        if words:
            figure = viz.plot_caption_attention(
                held_out.arrays["images"][row], words, maps[row]
            )
            viz.save_figure(figure, folder / f"caption_{row}.png")


def keep_captions(held_out, captions, maps, path):
    """Writes captions, attention and what is in the images, for another script."""
    objects = np.full((len(captions), NUM_OBJECTS[1], 3), "", "U16")
    for row, known in zip(objects, held_out.objects, strict=True):
        row[: len(known)] = known
    np.savez_compressed(
        path,
        images=held_out.arrays["images"],
        objects=objects,
        masks=held_out.masks,
        captions=np.array(captions),
        attention=maps.astype("float16"),
    )


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
    path = script_arguments.written_by("shape_backbone.py", arguments.backbone)
    backbone = keras.saving.load_model(path)
    images = np.stack([known.example(i).image for i in range(NUM_MEASURED)])
    backbone = normalized(backbone, images)
    train = draw(known, backbone, 0, arguments.images)
    held_out = {
        "known": draw(known, backbone, arguments.images, arguments.held_out),
        "new": draw(new, backbone, 0, arguments.held_out),
    }
    image = held_out["new"].arrays["images"][0]
    run_dir.mkdir(parents=True, exist_ok=True)
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
            part: score(
                model, those, tokenizer, shapes, folder if part == "new" else None
            )
            for part, those in held_out.items()
        }
        print(json.dumps({"seconds": seconds, **scores}), flush=True)
        runs[name].append({"seconds": seconds, **scores})
    print_table(runs, counts)
    (run_dir / "scores.json").write_text(json.dumps(runs, indent=1), "utf-8")
    for backup in backups:
        backup.delete()
    print(f"\nPictures and models: {run_dir}; tensorboard --logdir {run_dir}")


if __name__ == "__main__":
    main()
