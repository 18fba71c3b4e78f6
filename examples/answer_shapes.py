"""Questions about images of colored shapes: two models, and where they look.

    python examples/shape_backbone.py
    python examples/answer_shapes.py

As in both papers, the CNN is pre-trained and frozen: `shape_backbone.py` writes it.
Attention is learned from the answers alone.

Results on one thread of an AMD EPYC (AVX-512) with two cores, beside other processes:
the CNN, 147,363 parameters, predicts 95.6% of the locations that are mostly covered by
an object correctly, after 267 seconds. Then the models train for 16 epochs on 12,000
images of 64 x 64 pixels with one question each. For 1,000 held-out questions, the table
gives the share of right answers, and the same for the best constant answer to each kind
of question; the area of the named objects as a share of the image, which is the score
of uniform attention; the share of each map's attention inside the objects; and the same
for the objects with 4 pixels, one location, around them. Objects that cover more than
15% of the image do not count.

    show, ask, attend and answer: 145,111 parameters, 145 seconds
                right  constant  object  map 0  map 1    near  map 0  map 1
    how many     0.97    0.39     0.07   0.55   0.55     0.20   0.67   0.68
    is there     1.00    0.52     0.06   0.72   0.75     0.16   0.84   0.86
    what color   1.00    0.14     0.06   0.87   0.88     0.16   0.93   0.94
    what shape   0.99    0.19     0.06   0.87   0.88     0.16   0.93   0.93
    what size    0.99    0.53     0.06   0.86   0.87     0.16   0.93   0.94
    all          0.99    0.36     0.06   0.81   0.81     0.17   0.88   0.89

    ask, attend and answer: 16,287 parameters, 178 seconds
    how many     0.93    0.39     0.07   0.07   0.70     0.20   0.20   0.80
    is there     1.00    0.52     0.06   0.00   0.93     0.16   0.10   0.98
    what color   1.00    0.14     0.06   0.18   0.97     0.16   0.26   1.00
    what shape   0.99    0.19     0.06   0.27   0.97     0.16   0.34   1.00
    what size    1.00    0.53     0.06   0.04   0.98     0.16   0.14   1.00
    all          0.99    0.36     0.06   0.13   0.93     0.17   0.22   0.97

"Ask" answers from its second hop, which attends to the object; the first hop, which
compares single words with locations, stays on the background. By shape, for right
answers about one object, the share inside is 0.90 (ring) to 0.96 (square) in the second
hop, and 0.75 (ring) to 0.86 (circle) in "show". Counting is the exception: if there is
no such object, or there are two, the models also attend to the background.

The share inside depends on what the CNN predicts. If it predicts the class of the
object that covers half of a location, instead of the share that each object covers,
"show" has 0.74 inside and "ask" 0.82, because the border of an object then has the same
features as its middle. With a CNN trained together with the models (20,000 images, 14
epochs, smaller objects) they answered 0.77 and 0.72 correctly, and both had 0.39
inside, because the receptive fields of locations beside an object cover it, too.
"""

import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
import tensorflow as tf

from keras_attn import data, metrics, models, training
from keras_attn.viz import plot_glimpses, save_figure
from keras_attn.viz.callbacks import GlimpseMaps

IMAGE_SIZE = 64
STRIDE = 4  # Side of a location in pixels.
GRID_SIZE = IMAGE_SIZE // STRIDE
# Radii, as shares of the side. The largest circle covers 14.5% of the image.
SIZES = {"small": (0.13, 0.15), "large": (0.19, 0.215)}
NUM_OBJECTS = (2, 4)
MAX_AREA = 0.15  # Of the image. Larger objects don't count in the share of attention.
NEAR = 4  # Pixels around an object that count as near it: one location.
NUM_WORDS = 8
MODELS = {"show": "show, ask, attend and answer", "ask": "ask, attend and answer"}


@dataclass(frozen=True)
class Questions:
    """Questions about images, one per image.

    Attributes:
        images: uint8 (B, H, W, 3).
        inputs: A model's: `features` of the images, `token_ids` and `padding_mask`.
        answers: Classes, (B,).
        masks: The pixels of the objects that the question names, bool (B, H, W).
        texts: The questions.
        shapes: The shape of the object that each question names, "" if it names none
            or several.
    """

    images: np.ndarray
    inputs: dict
    answers: np.ndarray
    masks: np.ndarray
    texts: list
    shapes: np.ndarray

    @property
    def kinds(self):
        """The first two words of each question."""
        return np.array([" ".join(text.split()[:2]) for text in self.texts])


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/answer-shapes")
    script_arguments.add_image_counts(parser, images=12_000, held_out=1000)
    parser.add_argument(
        "--models",
        nargs="+",
        choices=list(MODELS),
        default=list(MODELS),
        help="models to train",
    )
    parser.add_argument(
        "--width", type=int, default=32, help="base width; see `new_model`"
    )
    parser.add_argument(
        "--backbone",
        type=Path,
        default=Path("runs/shape-backbone/model.keras"),
        help="the CNN that shape_backbone.py writes",
    )
    script_arguments.add_training_options(
        parser, epochs=16, batch_size=32, learning_rate=3e-3
    )
    tiny = {"images": 64, "held_out": 40, "width": 4, "epochs": 1}
    return script_arguments.parse(parser, **tiny)


def read_questions(shapes, backbone, count, start):
    """Makes questions once, and keeps them in memory for all epochs."""
    ids = {word: 1 + index for index, word in enumerate(shapes.vocabulary)}
    batches = list(shapes.dataset("questions", count, start=start, batch_size=100))
    texts = [text.decode() for batch in batches for text in batch["questions"].numpy()]
    token_ids = keras.utils.pad_sequences(
        [[ids[word] for word in text.split()] for text in texts],
        NUM_WORDS,
        padding="post",
    )
    masks = [
        np.array(metrics.named_objects(batch["masks"], batch["is_named"]))
        for batch in batches
    ]
    named_shapes = []
    for batch in batches:
        named, classes = batch["is_named"].numpy(), batch["classes"].numpy()
        only = np.where(
            named.sum(1) == 1, classes[range(len(named)), named.argmax(1)], -1
        )
        named_shapes += [
            shapes.shapes[number] if number >= 0 else "" for number in only
        ]
    images = [batch["images"].numpy().astype("uint8") for batch in batches]
    images = np.concatenate(images)
    inputs = {
        "features": features_of(backbone, images),
        "token_ids": token_ids,
        "padding_mask": token_ids > 0,
    }
    answers = np.concatenate([batch["answer_ids"].numpy() for batch in batches])
    masks, named_shapes = np.concatenate(masks), np.array(named_shapes)
    return Questions(images, inputs, answers, masks, texts, named_shapes)


def new_model(kind, shapes, width, **options):
    """One of the models, with its attention among the outputs."""
    options |= {
        "vocabulary_size": 1 + len(shapes.vocabulary),
        "num_answers": len(shapes.answers),
        "dropout": 0.0,
        "return_attention_scores": True,
    }
    if kind == "ask":
        return models.build_vqa_ask_attend_answer(
            embedding_dim=4 * width, max_question_length=NUM_WORDS, **options
        )
    return models.build_vqa_show_ask_attend_answer(
        embedding_dim=2 * width,
        hidden_dim=4 * width,
        attention_dim=4 * width,
        classifier_dim=4 * width,
        **options,
    )


def fit(model, questions, callback, arguments, folder):
    """Trains on the answers alone, or resumes; attention has no targets."""
    backup = training.BackupAndResume(folder / "backup")
    steps = arguments.epochs * (len(questions.answers) // arguments.batch_size)
    rate = training.CosineWarmup(arguments.learning_rate, max(1, steps // 20), steps)
    model.compile(
        keras.optimizers.Adam(rate, clipnorm=1.0),
        {"logits": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        metrics={
            "logits": ["accuracy"],
            "attention_scores": metrics.AttentionInside(GRID_SIZE, max_area=MAX_AREA),
        },
        jit_compile=False,
    )
    labels = {"logits": questions.answers, "attention_scores": questions.masks}
    dataset = data.shuffled_dataset(
        (questions.inputs, labels), seed=arguments.seed, epoch=backup.epoch
    )
    dataset = dataset.batch(arguments.batch_size, drop_remainder=True)
    dataset = dataset.map(lambda inputs, labels: (as_float(inputs), labels))
    model.fit(
        dataset.prefetch(tf.data.AUTOTUNE),
        epochs=arguments.epochs,
        shuffle=False,
        verbose=2,
        callbacks=[callback, backup],
    )


def as_float(inputs):
    """Inputs with features in float32."""
    return {**inputs, "features": tf.cast(inputs["features"], tf.float32)}


def best_constants(questions):
    """The most frequent answer to each kind of question."""
    counts = defaultdict(Counter)
    for kind, answer in zip(questions.kinds, questions.answers, strict=True):
        counts[kind][int(answer)] += 1
    return {kind: count.most_common(1)[0][0] for kind, count in counts.items()}


def print_scores(outputs, questions, constants):
    """Prints accuracy and shares of attention, by kind of question and by shape.

    Args:
        outputs: Logits and attention of a model.
        questions: The questions that it was asked.
        constants: From `best_constants`.
    """
    kinds, maps = questions.kinds, outputs["attention_scores"]
    is_right = outputs["logits"].argmax(-1) == questions.answers
    constant = np.array([constants.get(kind, -1) for kind in kinds])
    near = keras.ops.max_pool(
        questions.masks[..., None].astype("float32"), 2 * NEAR + 1, 1, "same"
    )
    near = np.array(near)[..., 0]
    numbers = range(maps.shape[1])
    columns = ["object", *(f"map {number}" for number in numbers)]
    columns += ["near", *(f"map {number}" for number in numbers)]
    print("| question | count | right | constant | " + " | ".join(columns), "|")
    groups = {kind: kinds == kind for kind in sorted(set(kinds))}
    groups["all"] = kinds != ""
    groups["all, answered right"] = is_right
    for shape in sorted(set(questions.shapes) - {""}):
        groups[f"one {shape}, answered right"] = is_right & (questions.shapes == shape)
    for name, chosen in groups.items():
        rows = np.flatnonzero(chosen)
        if not len(rows):
            continue
        figures = [is_right[rows].mean(), (constant == questions.answers)[rows].mean()]
        area, shares = attention_figures(maps[rows], questions.masks[rows])
        near_area, near_shares = attention_figures(
            maps[rows], near[rows], counted=questions.masks[rows]
        )
        figures += [area, *shares, near_area, *near_shares]
        line = " | ".join(f"{figure:.2f}" for figure in figures)
        print(f"| {name} | {len(rows)} | {line} |", flush=True)


def attention_figures(maps, masks, counted=None):
    """The area of the objects, and the share of each map's attention inside them.

    Args:
        maps: (B, C, L).
        masks: (B, H, W).
        counted: Masks that decide which objects count: those that are visible and not
            too large. Default: `masks`.
    """
    areas = (masks if counted is None else counted).mean((1, 2))
    weights = (areas > 0) & (areas <= MAX_AREA)
    shares, area = [], 0.0
    for number in range(maps.shape[1]):
        metric = metrics.AttentionInside(GRID_SIZE)
        metric.update_state(masks, maps[:, number], weights)
        figures = metric.result()
        shares.append(float(figures["attention_inside"]))
        area = float(figures["object_area"])
    return area, shares


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


def main():
    """Trains both models, and compares where they look with where they should."""
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    shapes = data.Shapes(
        image_size=IMAGE_SIZE,
        num_objects=NUM_OBJECTS,
        sizes=SIZES,
        seed=arguments.seed,
    )
    path = script_arguments.written_by("shape_backbone.py", arguments.backbone)
    backbone = keras.saving.load_model(path)
    train = read_questions(shapes, backbone, arguments.images, start=0)
    held_out = read_questions(
        shapes, backbone, arguments.held_out, start=arguments.images
    )
    constants = best_constants(train)
    inputs = {name: np.array(x) for name, x in as_float(held_out.inputs).items()}
    shown = {name: value[:6] for name, value in inputs.items()}
    answers = shapes.answers
    truths = [answers[number] for number in held_out.answers[:6]]
    for kind in arguments.models:
        folder = arguments.run_dir / kind
        options = {"grid_size": GRID_SIZE, "feature_dim": backbone.output_shape[-1]}
        model = new_model(kind, shapes, arguments.width, **options)
        print(f"\n{MODELS[kind]}: {model.count_params():,} parameters", flush=True)
        watch = GlimpseMaps(
            folder,
            shown,
            held_out.texts[:6],
            answers,
            images=held_out.images[:6],
            truths=truths,
            max_examples=2,
        )
        start = time.perf_counter()
        fit(model, train, watch, arguments, folder)
        print(f"{time.perf_counter() - start:.0f} seconds", flush=True)
        with_images = new_model(kind, shapes, arguments.width, backbone=backbone)
        with_backbone(with_images, model).save(folder / "model.keras")
        outputs = model.predict(inputs, batch_size=100, verbose=0)
        print_scores(outputs, held_out, constants)
        chances = np.array(keras.ops.softmax(outputs["logits"]))
        for row in range(6):
            maps = outputs["attention_scores"][row].reshape(-1, GRID_SIZE, GRID_SIZE)
            figure = plot_glimpses(
                held_out.images[row],
                held_out.texts[row],
                maps,
                answers,
                chances[row],
                truth=truths[row],
            )
            save_figure(figure, folder / f"question_{row}.png")
    print(f"\nPictures: {arguments.run_dir}; tensorboard --logdir {arguments.run_dir}")


if __name__ == "__main__":
    main()
