"""DALL·E on shapes: pictures for captions, and a judge that says what they show.

    python examples/dalle_shapes.py

Images of 32 × 32 pixels show one object in one of two sizes, six colors and four
shapes, "a large red ring". A quarter of the pairs of a color and a shape is held out:
no model but the judge sees a red circle. Three models are trained: a discrete VAE of
8 × 8 codes of 64, a DALL·E of three blocks over captions and codes, and a CLIP, which
chooses among samples. For each of the 36 known and 12 new captions DALL·E draws 64
images. CLIP keeps the best of each 1, 8 or 64.

The judge is a CNN that tells size, color and shape of an object, trained on other
images of all kinds. It is right about 97.8% of held-out images of known pairs and about
98.4% of new ones; after the discrete VAE has encoded and decoded these images, about
76.4 and 79.2%, which bounds what DALL·E can reach with a sample. A training image that
is chosen in the same way, by the same CLIP from as many random ones, is the baseline:
no training image shows a new pair.

Results with one thread of an AMD EPYC (AVX-512, no AMX) with two cores, beside other
work: 111 s of CPU time for the discrete VAE, 47 s for the judge, 37 s for a CLIP, 110 s
for a DALL·E, 25 s to draw and to judge for a seed; 11 minutes in all. One discrete VAE
and one judge; means of three seeds of CLIP, DALL·E and the samples, with their standard
deviations.

    % of images that show their caption   best of 1     best of 8     best of 64
    DALL·E, known pairs                  49.0 ± 0.3    59.5 ± 1.1    56.5 ± 5.8
    DALL·E, new pairs                    28.8 ± 2.9    41.0 ± 0.6    47.2 ± 9.6
    training images, known pairs          2.5 ± 0.0    17.5 ± 0.7    81.5 ± 7.0
    training images, new pairs            0             0             0

DALL·E puts colors and shapes together that it has never seen together, less often than
known ones. What it misses are shapes: of all samples for known pairs the judge sees the
right color in 97.6%, the right size in 78.4% and the right shape in 60.8%; for new
pairs in 89.7, 81.0 and 42.5%. Choosing among 8 helps by 10 points. Whether choosing
among 64 helps more does not show: that is one image for each caption, 36 and 12 a seed,
and CLIP itself finds the caption of only 38.8 ± 7.8% of real images of new pairs among
all 48, of 98.4 ± 0.4% of known ones. For a known caption it is better to show a
training image: CLIP finds one among 64 more often than DALL·E draws one.
"""

import functools
import json
import time
from dataclasses import dataclass, replace

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
import tensorflow as tf

from keras_attn import data, models, viz
from keras_attn.data import Shapes
from keras_attn.decoding import Sample
from keras_attn.training import AdamW, BackupAndResume, CosineWarmup
from keras_attn.viz.callbacks import CodeMaps, GeneratedImageMaps

ROWS = 64  # Images that are computed at once.
IMAGE_SIZE = 32
SIZES = {"small": (0.18, 0.22), "large": (0.3, 0.36)}  # Radii, as shares of the side.
COLORS = ("red", "green", "blue", "yellow", "purple", "white")
SHAPES = ("circle", "triangle", "cross", "ring")
BACKGROUND = 120  # Gray.
LEARNING_RATE = 1e-3
# Without noise the density of a pixel of the background has no bound, and a discrete
# VAE learns little else.
NOISE = 8
TEXT_LENGTH = 4  # "a large red ring"
PARTS = ("size", "color", "shape")  # What the judge says of an object.
NUM_SHOWN = 8  # Images of a caption that are drawn.
# Drawn while DALL·E is trained, the second one of a new pair.
WATCHED = ["a large red ring", "a small blue cross"]
FIRST_JUDGED = 10_000_000  # The judge's images are counted from here.


@dataclass(frozen=True)
class Pictures:
    """Images of one object each, uint8 (B, H, W, 3), their captions and objects."""

    images: np.ndarray
    captions: list[str]
    kinds: list[tuple[str, str, str]]


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/dalle-shapes")
    script_arguments.add_image_counts(parser, images=6000, held_out=500)
    for name, default, text in (
        ("width", 96, "width of DALL·E's blocks"),
        ("layers", 3, "blocks of DALL·E"),
        ("codes", 64, "different codes of the discrete VAE"),
        ("dvae-width", 24, "channels of the discrete VAE"),
        ("dvae-epochs", 6, "epochs of the discrete VAE"),
        ("dvae-batch-size", 8, "images per step of the discrete VAE"),
        ("epochs", 10, "epochs of DALL·E"),
        ("clip-epochs", 8, "epochs of CLIP"),
        ("judge-epochs", 6, "epochs of the judge"),
        ("batch-size", 32, "examples per step"),
        ("candidates", 64, "images that are sampled for each caption"),
        ("seed", 0, "the first seed"),
        ("seeds", 3, "number of seeds of DALL·E, of CLIP and of the samples"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    return script_arguments.parse(
        parser,
        images=72,
        held_out=24,
        width=32,
        layers=2,
        codes=8,
        dvae_width=4,
        dvae_epochs=1,
        dvae_batch_size=24,
        epochs=1,
        clip_epochs=1,
        judge_epochs=1,
        batch_size=24,
        candidates=8,
        seeds=1,
    )


def fit(model, train, held_out, folder, *, callbacks=(), seed=0, **options):
    """Trains a model that has its own loss, or reads it from its folder.

    Args:
        model: The model.
        train: Its inputs, arrays (count, …); pixels as uint8.
        held_out: The same of other examples.
        folder: Folder of the model, of the backup and of TensorBoard's logs.
        callbacks: Further callbacks.
        seed: Seed of the order.
        **options: `epochs`, `batch_size` and `learning_rate`, the highest one.

    Returns:
        The trained model.
    """
    path = folder / "model.keras"
    if path.is_file():
        return keras.saving.load_model(path)
    start = time.process_time()
    backup = BackupAndResume(folder / "backup", delete_checkpoint=False)
    order = data.shuffled_dataset(train, seed=seed, epoch=backup.epoch)
    batches = order.batch(options["batch_size"], drop_remainder=True).map(as_floats)
    others = tf.data.Dataset.from_tensor_slices(held_out).batch(100).map(as_floats)
    steps = options["epochs"] * len(batches)
    schedule = CosineWarmup(options["learning_rate"], max(1, steps // 20), steps + 1)
    model.compile(AdamW(schedule, clipnorm=1.0), jit_compile=False)
    logs = keras.callbacks.TensorBoard(folder / "logs", write_graph=False)
    model.fit(
        batches.prefetch(tf.data.AUTOTUNE),
        validation_data=others,
        epochs=options["epochs"],
        callbacks=[logs, *callbacks, backup],
        shuffle=False,
        verbose=2,
    )
    model.save(path)
    backup.delete()
    seconds = time.process_time() - start
    print(f"{folder.name}: {model.count_params():,} parameters, {seconds:.0f} s of CPU")
    return model


def as_floats(inputs):
    """The inputs, with pixels in [0, 1]."""
    return tf.nest.map_structure(
        lambda x: tf.cast(x, tf.float32) / 255 if x.dtype == tf.uint8 else x, inputs
    )


def build_dvae(image_size, seed, *, updates, width, vocabulary_size):
    """A small discrete VAE, of one code for each 4 × 4 pixels.

    As in the paper, temperature and weight of the divergence move in a first part of
    training. The weight is smaller, since a code here stands for 48 sub-pixels, not
    for 192.

    Args:
        image_size: H and W, one number.
        seed: Seed of the noise.
        updates: Number of updates of the training.
        width: Channels of the first group, and of the vector of a code.
        vocabulary_size: Number of different codes.
    """
    return models.build_dvae(
        image_size=image_size,
        vocabulary_size=vocabulary_size,
        num_groups=3,
        num_blocks=1,
        base_dim=width,
        code_dim=width,
        final_temperature=0.25,
        temperature_steps=max(1, updates // 2),
        kl_weight=1.5,
        kl_steps=max(1, updates // 50),
        seed=seed,
    )


def build_clip(tokenizer, image_size, text_length, *, width):
    """A small CLIP with a ResNet, which puts new pairs together better than a ViT.

    Args:
        tokenizer: The tokenizer of captions.
        image_size: Pixels of a side.
        text_length: Maximum number of words; the end token is one more.
        width: Of the embeddings, 32 or 64; the other widths follow from it.
    """
    text_width = width + 32
    return models.build_clip(
        "rn50",
        image_size=image_size,
        num_blocks=(1, 1),
        stem_dim=width // 2,
        num_heads=4,
        embedding_dim=width,
        vocabulary_size=tokenizer.vocabulary_size,
        max_sequence_length=text_length + 1,
        text_num_layers=2,
        text_hidden_dim=text_width,
        text_num_heads=text_width // 32,
        text_mlp_dim=2 * text_width,
        end_token_id=tokenizer.end_token_id,
    )


def build_dalle(dvae, tokenizer, text_length, *, num_layers, width):
    """A small Transformer over the codes of a discrete VAE.

    Args:
        dvae: The discrete VAE.
        tokenizer: The tokenizer of the captions.
        text_length: Maximum number of tokens of a caption.
        num_layers: Number of blocks.
        width: Width of the blocks; a head has 32 units.
    """
    grid = dvae.get_layer("encoder_output").output.shape[1:3]
    return models.build_dalle(
        text_vocabulary_size=tokenizer.vocabulary_size,
        image_vocabulary_size=dvae.get_layer("decoder_input").vocabulary_size,
        text_length=text_length,
        grid_size=tuple(grid),
        num_layers=num_layers,
        hidden_dim=width,
        num_heads=max(1, width // 32),
        mlp_dim=4 * width,
        window_size=5,
        dropout=0.1,
    )


def dalle_inputs(dvae, images, captions, tokenizer):
    """The inputs of DALL·E: captions with padding, and the codes of their images."""
    codes = encode(dvae, images)
    token_ids = tokenizer.encode_batch(captions)
    return {
        "token_ids": token_ids,
        "padding_mask": (token_ids != tokenizer.pad_token_id).astype("int32"),
        "decoder_token_ids": codes.reshape(len(codes), -1),
    }


def outputs_of(model, inputs):
    """What a model returns; faster than `predict` for few rows."""
    parts = [
        model.predict_on_batch(inputs[begin : begin + ROWS])
        for begin in range(0, len(inputs), ROWS)
    ]
    return tf.nest.map_structure(lambda *x: np.concatenate(x), *parts)


def encode(dvae, images):
    """The codes of images uint8 (B, H, W, 3), int32 (B, h, w)."""
    return outputs_of(dvae.encode_model(), images.astype("float32") / 255)


def decoder(dvae):
    """The function from codes (B, h, w) to images (B, H, W, 3) in [0, 1]."""
    return functools.partial(outputs_of, dvae.decode_model())


def clip_inputs(images, captions, tokenizer):
    """The inputs of CLIP: images, and captions that end with the end token."""
    return {
        "images": images,
        "token_ids": tokenizer.encode_batch(captions, add_end=True),
    }


def clip_scorer(clip, tokenizer):
    """The function from images in [0, 1] and a caption to similarities (B,).

    With a list of captions it returns (B, captions).
    """
    image_encoder, text_encoder = clip.image_encoder(), clip.text_encoder()

    def score(images, caption):
        captions = [caption] if isinstance(caption, str) else caption
        token_ids = tokenizer.encode_batch(captions, add_end=True)
        texts = outputs_of(text_encoder, token_ids)
        scores = outputs_of(image_encoder, images) @ texts.T
        return scores[:, 0] if isinstance(caption, str) else scores

    return score


def candidates(dalle, decode, tokenizer, captions, count, seed):
    """Yields the images that DALL·E draws for each caption, (count, H, W, 3)."""
    for number, caption in enumerate(captions):
        found = models.generate_images(
            dalle,
            decode,
            tokenizer,
            caption,
            count,
            strategy=Sample(seed=1000 * seed + number),
            batch_size=ROWS,
        )
        yield found.images


def best_of(scores, count):
    """The highest score of each `count` candidates in turn: their indices (N/count,).

    Args:
        scores: (N,), of candidates in the order in which they were sampled.
        count: A divisor of N.
    """
    groups = np.asarray(scores).reshape(-1, count)
    return groups.argmax(1) + count * np.arange(len(groups))


def split_kinds(shapes):
    """All sizes, colors and shapes: those for training, and those held out.

    A quarter of the pairs of a color and a shape is held out, in both sizes. Each color
    and each shape occurs in training.
    """
    parts = {True: [], False: []}
    for size in shapes.sizes:
        for i, color in enumerate(shapes.colors):
            for j, shape in enumerate(shapes.shapes):
                parts[(i + j) % 4 == 0].append((size, color, shape))
    return parts[False], parts[True]


def new_shapes(seed):
    """The images of the example, of all sizes, colors and shapes."""
    return Shapes(
        IMAGE_SIZE,
        num_objects=(1, 1),
        shapes=SHAPES,
        colors={name: Shapes().colors[name] for name in COLORS},
        sizes=SIZES,
        noise=NOISE,
        seed=seed,
    )


def draw(shapes, start, count):
    """Images of one object on gray: captions do not mention the background."""
    images, captions, kinds = [], [], []
    for number in range(start, start + count):
        example = shapes.example(number)
        image, outside = example.image.astype("float32"), ~example.masks[0]
        image[outside] += BACKGROUND - image[outside].mean(0)
        (only,) = example.objects
        images.append(image.round().clip(0, 255).astype(np.uint8))
        captions.append(example.caption)
        kinds.append((only.size, only.color, only.shape))
    return Pictures(np.array(images), captions, kinds)


def caption_of(kind):
    """The caption of an object, such as "a large red ring"."""
    return f"a {' '.join(kind)}"


def build_judge(shapes):
    """A CNN from an image to logits of the object's size, color and shape."""
    images = keras.Input((IMAGE_SIZE, IMAGE_SIZE, 3))
    hidden = images
    for units, stride in ((32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
        hidden = keras.layers.Conv2D(
            units, 3, strides=stride, padding="same", use_bias=False
        )(hidden)
        hidden = keras.layers.ReLU()(keras.layers.BatchNormalization()(hidden))
    hidden = keras.layers.GlobalMaxPooling2D()(hidden)
    outputs = {
        part: keras.layers.Dense(len(getattr(shapes, f"{part}s")), name=part)(hidden)
        for part in PARTS
    }
    return keras.Model(images, outputs)


def trained_judge(shapes, arguments):
    """The judge, trained on images of all kinds, which no other model sees."""
    path = arguments.run_dir / "judge.keras"
    if path.is_file():
        return keras.saving.load_model(path)
    start = time.process_time()
    train = draw(shapes, FIRST_JUDGED, arguments.images)
    judge = build_judge(shapes)
    judge.compile(
        keras.optimizers.Adam(2e-3),
        {
            part: keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            for part in PARTS
        },
        jit_compile=False,
    )
    judge.fit(
        train.images.astype("float32") / 255,
        {
            part: np.array(
                [
                    list(getattr(shapes, f"{part}s")).index(kind[i])
                    for kind in train.kinds
                ]
            )
            for i, part in enumerate(PARTS)
        },
        batch_size=64,
        epochs=arguments.judge_epochs,
        verbose=2,
    )
    judge.save(path)
    print(f"judge: {time.process_time() - start:.0f} s of CPU")
    return judge


def shows(judge, shapes, images, kinds):
    """Whether the judge sees size, color and shape in each image, bool (B, 3).

    Args:
        judge: The judge.
        shapes: The `Shapes` that name what it sees.
        images: (B, H, W, 3) in [0, 1].
        kinds: What the images should show, B triples.
    """
    found = outputs_of(judge, images)
    columns = []
    for i, part in enumerate(PARTS):
        names = np.array(list(getattr(shapes, f"{part}s")))
        columns.append(names[found[part].argmax(-1)] == [kind[i] for kind in kinds])
    return np.stack(columns, axis=1)


def clip_accuracy(score, pictures, captions):
    """Share of images whose own caption is the most similar of all captions."""
    images = pictures.images.astype("float32") / 255
    best = score(images, captions).argmax(1)
    return np.mean(np.array(captions)[best] == pictures.captions)


def shares(drawn, score, is_right, counts):
    """How many of the images that CLIP chooses show their caption.

    Args:
        drawn: For each kind its candidates, in the order in which they were sampled.
        score: From `clip_scorer`.
        is_right: Function of images and their kinds, to bool (B, parts).
        counts: CLIP chooses the best of each so many candidates.

    Returns:
        The share for each of `counts`, and of all candidates for each part.
    """
    found = {count: [] for count in counts}
    parts = []
    for kind, images in drawn.items():
        scores = score(images, caption_of(kind))
        right = is_right(images, [kind] * len(images))
        parts.append(right.mean(0))
        for count in counts:
            found[count].append(right.all(1)[best_of(scores, count)].mean())
    shares = {f"best of {count}": float(np.mean(x)) for count, x in found.items()}
    means = np.mean(parts, axis=0)
    return shares | {name: float(x) for name, x in zip(PARTS, means, strict=True)}


def watch(dalle, decode, tokenizer, folder):
    """A callback that draws for two captions in TensorBoard."""

    def generate(caption):
        same = Sample(seed=0)
        return models.generate_images(
            dalle, decode, tokenizer, caption, NUM_SHOWN, strategy=same
        )

    return GeneratedImageMaps(
        folder / "logs", WATCHED, generate, show_scores=False, every=5
    )


def print_table(results):
    """Prints means and standard deviations over the seeds."""
    for name, first in results[0].items():
        told = []
        for figure in first:
            values = 100 * np.array([each[name][figure] for each in results])
            spread = values.std(ddof=1) if len(values) > 1 else 0.0
            told.append(f"{figure} {values.mean():.1f} ± {spread:.1f}")
        print(f"{name}: {', '.join(told)}")


def draw_samples(drawn, score, path):
    """Draws the best images of some captions, known and new, and of all candidates."""
    images, scores, captions = [], [], []
    for part, those in drawn.items():
        for number in np.linspace(1, len(those) - 1, 3).astype(int):
            kind = list(those)[number]
            found = score(those[kind], caption_of(kind))
            best = np.argsort(-found, kind="stable")[:NUM_SHOWN]
            images.append(those[kind][best])
            scores.append(found[best])
            captions.append(f"{caption_of(kind)} ({part})")
    figure = viz.plot_generated_images(
        np.stack(images), captions, np.stack(scores), title="the best by CLIP"
    )
    viz.save_figure(figure, path)


def trained_dvae(arguments, train, held_out):
    """The discrete VAE, of which there is one for all seeds."""
    folder = arguments.run_dir / "dvae"
    steps = arguments.images // arguments.dvae_batch_size
    shown = held_out["new"].images[:4].astype("float32") / 255
    return fit(
        build_dvae(
            IMAGE_SIZE,
            arguments.seed,
            updates=arguments.dvae_epochs * steps,
            width=arguments.dvae_width,
            vocabulary_size=arguments.codes,
        ),
        train.images,
        held_out["known"].images,
        folder,
        callbacks=[CodeMaps(folder / "logs", shown)],
        seed=arguments.seed,
        epochs=arguments.dvae_epochs,
        batch_size=arguments.dvae_batch_size,
        learning_rate=LEARNING_RATE,
    )


def trained_clip(arguments, train, held_out, tokenizer, seed):
    """A CLIP of this seed."""
    return fit(
        build_clip(tokenizer, IMAGE_SIZE, TEXT_LENGTH, width=32),
        clip_inputs(train.images, train.captions, tokenizer),
        clip_inputs(held_out.images, held_out.captions, tokenizer),
        arguments.run_dir / f"clip_{seed}",
        seed=seed,
        epochs=arguments.clip_epochs,
        batch_size=arguments.batch_size,
        learning_rate=LEARNING_RATE,
    )


def trained_dalle(arguments, train, held_out, tokenizer, dvae, seed):
    """A DALL·E of this seed."""
    folder = arguments.run_dir / f"dalle_{seed}"
    dalle = build_dalle(
        dvae,
        tokenizer,
        TEXT_LENGTH,
        num_layers=arguments.layers,
        width=arguments.width,
    )
    return fit(
        dalle,
        dalle_inputs(dvae, train.images, train.captions, tokenizer),
        dalle_inputs(dvae, held_out.images, held_out.captions, tokenizer),
        folder,
        callbacks=[watch(dalle, decoder(dvae), tokenizer, folder)],
        seed=seed,
        epochs=arguments.epochs,
        batch_size=arguments.batch_size,
        learning_rate=LEARNING_RATE,
    )


def main():
    """Trains all models, samples images for every caption and has them judged."""
    arguments = parse_arguments()
    run_dir = arguments.run_dir
    run_dir.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(arguments.seed)
    shapes = new_shapes(arguments.seed)
    kinds = dict(zip(("known", "new"), split_kinds(shapes), strict=True))
    known, new = (replace(shapes, kinds=x) for x in kinds.values())
    train = draw(known, 0, arguments.images)
    held_out = {
        "known": draw(known, arguments.images, arguments.held_out),
        "new": draw(new, arguments.images, arguments.held_out),
    }
    tokenizer = data.SubwordTokenizer.train(train.captions)
    judge = trained_judge(shapes, arguments)
    dvae = trained_dvae(arguments, train, held_out)
    decode = decoder(dvae)

    def is_right(images, wanted):
        return shows(judge, shapes, images, wanted)

    for part, pictures in held_out.items():
        pixels = pictures.images.astype("float32") / 255
        seen, redrawn = (
            is_right(images, pictures.kinds).all(1).mean()
            for images in (pixels, decode(encode(dvae, pictures.images)))
        )
        print(
            f"{part}: judged right {seen:.1%} of images, {redrawn:.1%} after the dVAE"
        )

    counts = [count for count in (1, 8, 64) if arguments.candidates % count == 0]
    results = []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        keras.utils.set_random_seed(seed)
        clip = trained_clip(arguments, train, held_out["known"], tokenizer, seed)
        dalle = trained_dalle(
            arguments, train, held_out["known"], tokenizer, dvae, seed
        )
        score, random = clip_scorer(clip, tokenizer), np.random.default_rng(seed)
        result, samples = {}, {}
        for part, those in kinds.items():
            captions = list(map(caption_of, those))
            count = arguments.candidates
            drawn = candidates(dalle, decode, tokenizer, captions, count, seed)
            samples[part] = dict(zip(those, drawn, strict=True))
            result[part] = shares(samples[part], score, is_right, counts)
            # What the same CLIP finds among as many training images.
            found = {
                kind: train.images[random.integers(len(train.images), size=count)]
                / np.float32(255)
                for kind in those
            }
            result[f"{part}, training images"] = shares(found, score, is_right, counts)
        captions = [caption_of(kind) for those in kinds.values() for kind in those]
        for part, pictures in held_out.items():
            accuracy = clip_accuracy(score, pictures, captions)
            result[f"{part}, CLIP"] = {"accuracy": float(accuracy)}
        print(json.dumps({"seed": seed, **result}), flush=True)
        results.append(result)
        draw_samples(samples, score, run_dir / f"samples_{seed}.png")
    print_table(results)
    (run_dir / "scores.json").write_text(json.dumps(results, indent=1), "utf-8")
    print(f"\nPictures and models: {run_dir}; tensorboard --logdir {run_dir}")


if __name__ == "__main__":
    main()
