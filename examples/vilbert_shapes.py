"""ViLBERT on images of shapes: what pre-training is worth, and where it stops.

    python examples/shape_detector.py
    python examples/vilbert_shapes.py

A Faster R-CNN, which the first command trains, finds the regions of each image: the
features of its last layer, and boxes. What it finds is computed once and kept in a
file, so models train without it. Two tasks are learned from them: answers to
questions, and the region that a phrase names, such as "the small red object". A model
starts from nothing; from a BERT of the same widths, which has read 8,000 captions and
questions and predicts their masked words, but has seen no image
(`load_checkpoint(folder, "vilbert", …)`); from pre-training on 4,000 images with
captions (masked words, masked regions, alignment), images that no task has; or from
both. Then it learns a task from 1%, 10% and 100% of 4,000 labels, in 100, 300 and 1,500
steps, as many from every start. Each finished run is kept in a file, and a run that was
killed resumes.

Results on one thread of an AMD EPYC (AVX-512 and VNNI, no AMX) with two cores, beside
other work: 10 minutes of CPU time for the detector, mAP@0.5 0.990, and 87 minutes on
the clock for three seeds. Percent of 500 held-out questions that are answered right,
and of phrases whose best region overlaps the object by at least half (IoU); means and
standard deviations:

                                       40 labels   400 labels   4,000 labels
    questions   nothing               11.3 ± 1.5   44.2 ± 1.6    47.3 ± 1.2
                BERT                  31.9 ± 3.8   48.1 ± 2.1    47.7 ± 2.2
                captions              16.5 ± 5.4   48.9 ± 3.7    74.7 ± 4.2
                BERT and captions     16.9 ± 2.8   45.4 ± 5.0    66.6 ± 2.1
                most frequent answer to the kind of question: 33.2
    phrases     nothing               41.7 ± 2.1   71.5 ± 2.6    92.1 ± 1.0
                BERT                  40.9 ± 2.7   54.7 ± 6.6    73.8 ± 11.9
                captions              61.1 ± 5.5   89.3 ± 0.1    94.2 ± 0.4
                BERT and captions     57.9 ± 5.4   88.3 ± 2.9    93.2 ± 0.4
                a random region: 41.4, the best region: 99.8

Captions help phrases by 18 to 19 points from few labels; it stops at 4,000 labels,
which make up for all but 2 points of it. They help questions by 27 points from 4,000
labels, by 5 from 400, and from 40 no start is better than the most frequent answer.
BERT's start gets questions there, 21 points above nothing, and no further; with
captions it adds nothing. For phrases it costs 17 and 18 points. Perhaps it needs
another rate or more steps than the others: with twice the rate it hardly learned
phrases from 4,000 labels (52%, one seed), and with 4e-4 its score still rose at the
end. The settings were chosen by a few runs of seed 0.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
from matplotlib.figure import Figure

from keras_attn import data, losses, metrics, models, training, viz
from keras_attn.ops import pairwise_iou

IMAGE_SIZE = 64
NUM_REGIONS = 5
NUM_OBJECTS = (2, 3)
SPECIAL = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[MASK]": 3}
# Numbers of tokens with [CLS] and [SEP].
LENGTHS = {"captions": 16, "questions": 9, "phrases": 6}
TASKS = ("questions", "phrases")
# What a model starts from: a BERT for its words, and pre-training on captions.
STARTS = {
    "nothing": (False, False),
    "bert": (True, False),
    "captions": (False, True),
    "bert_captions": (True, True),
}
BLOCKS = {"num_layers": 4, "num_heads": 4}
REGIONS = {
    "num_region_layers": 2,
    "num_region_heads": 4,
    "num_co_attention_heads": 4,
    "text_co_layers": (2, 3),
    "region_co_layers": (0, 1),
}
WARM_UP = 0.1  # Share of the steps.


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/vilbert-shapes")
    script_arguments.add_image_counts(parser, images=4000, held_out=500)
    parser.add_argument(
        "--captions", type=int, default=4000, help="images with captions"
    )
    parser.add_argument(
        "--detector",
        type=Path,
        default=Path("runs/shape-detector/model.keras"),
        help="the detector that shape_detector.py writes",
    )
    parser.add_argument(
        "--starts",
        nargs="+",
        choices=list(STARTS),
        default=list(STARTS),
        help="what models start from",
    )
    parser.add_argument("--width", type=int, default=64, help="width of both streams")
    parser.add_argument(
        "--shares",
        type=float,
        nargs="+",
        default=[0.01, 0.1, 1.0],
        help="shares of the labels to learn from",
    )
    parser.add_argument(
        "--steps",
        type=int,
        nargs="+",
        default=[100, 300, 1500],
        help="steps of learning a task, for each share",
    )
    parser.add_argument(
        "--bert-epochs", type=int, default=4, help="epochs of the BERT of words alone"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the runs"
    )
    parser.add_argument(
        "--task-learning-rate",
        type=float,
        default=5e-4,
        help="peak learning rate of the tasks",
    )
    script_arguments.add_training_options(
        parser, epochs=16, batch_size=32, learning_rate=1e-3
    )
    tiny = {"captions": 16, "images": 16, "held_out": 8, "width": 8, "seeds": [0]}
    tiny |= {"epochs": 1, "bert_epochs": 1, "batch_size": 8, "steps": [2, 2]}
    tiny |= {"shares": [0.5, 1.0], "starts": ["bert_captions"]}
    return script_arguments.parse(parser, **tiny)


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
            detected(detector, shapes, begin, min(100, start + count - begin))
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


def detected(detector, shapes, start, count):
    """The arrays of `Images` for some images."""
    examples = [shapes.example(start + number) for number in range(count)]
    images = np.stack([example.image for example in examples])
    found = data.detect_regions(detector, images, num_regions=NUM_REGIONS)
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


def sizes(arguments, vocabulary, images):
    """The arguments of the BERT, and of the regions."""
    width = arguments.width
    words = {
        **BLOCKS,
        "vocabulary_size": len(SPECIAL) + len(vocabulary),
        "hidden_dim": width,
        "mlp_dim": 2 * width,
        "max_sequence_length": max(LENGTHS.values()),
    }
    regions = {
        **REGIONS,
        "feature_dim": images.regions["region_features"].shape[-1],
        "region_dim": width,
        "region_mlp_dim": 2 * width,
        "co_attention_dim": width,
    }
    return words, regions


def new_masking(vocabulary):
    """Masks words as BERT does."""
    size = len(SPECIAL) + len(vocabulary)
    special = [number for number in SPECIAL.values() if number != SPECIAL["[MASK]"]]
    return training.MaskedLMMasking(size, SPECIAL["[MASK]"], special_token_ids=special)


def compile_for(model, loss, arguments, steps, metrics=None):
    """Compiles a model for a run of so many steps."""
    rate = training.LinearWarmup(arguments.learning_rate, steps // 10, steps)
    optimizer = training.AdamW(rate, weight_decay=0.01, global_clipnorm=1.0)
    model.compile(optimizer, loss, weighted_metrics=metrics, jit_compile=False)


def pretrain(folder, build, inputs, prepare, loss, epochs, arguments, seed):
    """Trains a model and saves it, or resumes; nothing to do if the folder is there.

    Args:
        folder: Folder of the checkpoint.
        build: Makes the model.
        inputs: Arrays, one row an example.
        prepare: Maps batches and an epoch to batches for `fit`.
        loss: As for `compile`.
        epochs: Passes over the inputs.
        arguments: Command-line arguments.
        seed: Seed of weights and masks.
    """
    if (folder / "config.json").is_file():
        return
    start = time.perf_counter()
    keras.utils.set_random_seed(seed)
    model = build()
    backup = training.BackupAndResume(folder / "backup", delete_checkpoint=False)
    dataset = data.shuffled_dataset(inputs, seed=seed, epoch=backup.epoch)
    dataset = dataset.batch(arguments.batch_size, drop_remainder=True)
    dataset = prepare(dataset, backup.epoch)
    compile_for(model, loss, arguments, epochs * int(dataset.cardinality()))
    log = keras.callbacks.TensorBoard(folder / "logs", write_graph=False)
    model.fit(dataset, epochs=epochs, shuffle=False, verbose=2, callbacks=[log, backup])
    models.save_checkpoint(model, folder)
    backup.delete()
    print(f"{folder}: {time.perf_counter() - start:.0f} seconds", flush=True)


def pretrain_bert(folder, images, vocabulary, arguments, seed):
    """A BERT of the captions' and questions' words, which has seen no image."""
    words, _ = sizes(arguments, vocabulary, images)
    masking = new_masking(vocabulary)
    texts = np.concatenate([images.texts["captions"], images.texts["questions"]])

    def prepare(dataset, epoch):
        return training.mask_batches(dataset, masking, seed=seed, epoch=epoch)

    pretrain(
        folder,
        lambda: models.build_bert_masked_lm(models.build_bert("tiny", **words)),
        encode(texts, vocabulary, LENGTHS["captions"]),
        prepare,
        losses.SmoothedCrossEntropy(),
        arguments.bert_epochs,
        arguments,
        seed,
    )


def pretrain_vilbert(folder, bert, images, vocabulary, arguments, seed):
    """A ViLBERT of the captions, whose words start from a BERT's folder or anew."""
    masking = new_masking(vocabulary)
    inputs = images.inputs("captions", vocabulary)
    inputs["class_distributions"] = images.regions["class_distributions"]
    classes = inputs["class_distributions"].shape[-1]

    def prepare(dataset, epoch):
        return training.mask_pairs(
            dataset, masking, seed=seed, epoch=epoch, masked_losses="aligned"
        )

    def build():
        words, regions = sizes(arguments, vocabulary, images)
        if bert is None:
            encoder = models.build_vilbert(**words, **regions)
            return models.build_vilbert_pretrainer(encoder, num_region_classes=classes)
        regions["num_region_classes"] = classes
        return models.load_checkpoint(bert, "vilbert_pretrainer", **regions)

    loss = {
        "masked_lm": losses.SmoothedCrossEntropy(),
        "masked_regions": losses.MaskedRegionLoss(),
        "alignment": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    }
    epochs = arguments.epochs
    pretrain(folder, build, inputs, prepare, loss, epochs, arguments, seed)


def new_model(task, folders, images, vocabulary, answers, arguments):
    """A model of a task, with new weights of its head.

    Args:
        task: One of `TASKS`.
        folders: The folder of the BERT and of the ViLBERT to start from, each or None.
        images: Any images, for the sizes.
        vocabulary: The words.
        answers: The answers.
        arguments: Command-line arguments.
    """
    words, regions = sizes(arguments, vocabulary, images)
    bert, vilbert = folders
    if vilbert is not None:
        encoder = models.load_checkpoint(vilbert, "encoder")
    elif bert is not None:
        encoder = models.load_checkpoint(bert, "vilbert", **regions)
    else:
        encoder = models.build_vilbert(**words, **regions)
    if task == "phrases":
        return models.build_vilbert_referring(encoder)
    return models.build_vilbert_classifier(
        encoder, num_classes=len(answers), hidden_dim=2 * arguments.width
    )


def learn(model, schedule, weights, inputs, labels, steps, arguments, seed):
    """Trains a compiled model from given weights, for so many steps.

    The models of a task differ only in their weights, so that one is traced for all.
    """
    model.set_weights(weights)
    for variable in model.optimizer.variables:
        variable.assign(keras.ops.zeros_like(variable))
    schedule.steps.assign(steps)
    random, count = np.random.default_rng(seed), len(labels)
    needed = steps * arguments.batch_size
    passes = [random.permutation(count) for _ in range(-(-needed // count))]
    order = np.concatenate(passes)[:needed]
    model.fit(
        {name: array[order] for name, array in inputs.items()},
        labels[order],
        batch_size=arguments.batch_size,
        shuffle=False,
        verbose=0,
    )


class UpAndDown(keras.optimizers.schedules.LearningRateSchedule):
    """A line from 0 up to the highest rate and one down to 0.

    As `training.LinearWarmup`, but the number of steps may change between runs.

    Args:
        rate: The highest rate.
    """

    def __init__(self, rate):
        self.rate = rate
        self.steps = keras.Variable(1.0, trainable=False, name="steps")

    def __call__(self, step):
        """The rate of a step."""
        done = (keras.ops.cast(step, "float32") + 1) / (self.steps + 1)
        return self.rate * keras.ops.minimum(done / WARM_UP, (1 - done) / (1 - WARM_UP))


def compiled(model, task, arguments):
    """The model, compiled for its task, and the schedule of its learning rate."""
    if task == "phrases":
        loss, metric = losses.ReferringCrossEntropy(), metrics.ReferringAccuracy()
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metric = keras.metrics.SparseCategoricalAccuracy()
    schedule = UpAndDown(arguments.task_learning_rate)
    optimizer = training.AdamW(schedule, weight_decay=0.01, global_clipnorm=1.0)
    model.compile(optimizer, loss, metrics=[metric], jit_compile=False)
    # Its variables, which a run resets.
    optimizer.build(model.trainable_variables)
    return model, schedule


def labels_of(images, task):
    """The labels of a task."""
    return images.overlaps if task == "phrases" else images.answers


def constants(train, held_out):
    """Scores without learning from images, by task.

    For questions: the most frequent answer to each kind of question, its first two
    words. For phrases: a random region, and the best region.
    """
    kinds = [
        np.array([" ".join(text.split()[:2]) for text in each.texts["questions"]])
        for each in (train, held_out)
    ]
    right = 0
    for kind in set(kinds[1]):
        answers = train.answers[kinds[0] == kind]
        if len(answers):
            common = np.bincount(answers).argmax()
            right += (held_out.answers[kinds[1] == kind] == common).sum()
    is_right = held_out.overlaps >= 0.5
    real = held_out.regions["region_padding_mask"].sum(1)
    return {
        "questions, most frequent answer": right / len(held_out.answers),
        "phrases, a random region": float((is_right.sum(1) / real).mean()),
        "phrases, the best region": float(is_right.any(1).mean()),
    }


def run_seed(seed, parts, vocabulary, answers, traced, arguments):
    """All runs of a seed; those that are done are read.

    Args:
        seed: The seed.
        parts: Images with captions, with labels, and held out.
        vocabulary: The words.
        answers: The answers.
        traced: Task to what `compiled` returns; filled when it is first needed.
        arguments: Command-line arguments.

    Returns:
        (task, start, share) to accuracy.
    """
    captions, train, held_out = parts
    root, scores = arguments.run_dir, {}
    bert = root / f"bert_{seed}"
    pretrain_bert(bert, captions, vocabulary, arguments, seed)
    for start in arguments.starts:
        with_bert, with_captions = STARTS[start]
        folders = [bert if with_bert else None, None]
        if with_captions:
            folders[1] = root / f"{start}_{seed}"
            pretrain_vilbert(
                folders[1], folders[0], captions, vocabulary, arguments, seed
            )
        for task in TASKS:
            file = root / f"{task}_{start}_{seed}.json"
            if not file.is_file():
                keras.utils.set_random_seed(seed)
                model = new_model(task, folders, train, vocabulary, answers, arguments)
                weights = model.get_weights()
                if task not in traced:
                    traced[task] = compiled(model, task, arguments)
                found = {}
                for share, steps in zip(arguments.shares, arguments.steps, strict=True):
                    count = max(1, round(share * len(train.answers)))
                    rows = np.random.default_rng(seed).permutation(len(train.answers))
                    rows = rows[:count]
                    inputs = train.inputs(task, vocabulary, rows)
                    labels = labels_of(train, task)[rows]
                    model, schedule = traced[task]
                    learn(
                        model, schedule, weights, inputs, labels, steps, arguments, seed
                    )
                    _, found[share] = model.evaluate(
                        held_out.inputs(task, vocabulary),
                        labels_of(held_out, task),
                        batch_size=100,
                        verbose=0,
                    )
                file.write_text(json.dumps(found))
                print(f"{task}, {start}, seed {seed}: {found}", flush=True)
            found = json.loads(file.read_text())
            for share in arguments.shares:
                scores[task, start, share] = found[str(share)]
    return scores


def plot_scores(scores, baselines, arguments):
    """A figure: what is right of held-out images by the number of labels.

    Args:
        scores: For each seed, (task, start, share) to accuracy.
        baselines: For each task, the accuracy without learning from images.
        arguments: Command-line arguments.
    """
    figure = Figure(figsize=(9, 3.2), dpi=100, layout="constrained")
    labels = [round(share * arguments.images) for share in arguments.shares]
    places = figure.subplots(1, len(TASKS))
    for place, task in zip(places, TASKS, strict=True):
        for start in arguments.starts:
            each = [
                [found[task, start, share] for share in arguments.shares]
                for found in scores
            ]
            mean = np.mean(each, axis=0)
            spread = np.std(each, axis=0, ddof=min(1, len(each) - 1))
            name = start.replace("_", " and ")
            place.errorbar(labels, mean, spread, marker="o", capsize=3, label=name)
        place.axhline(baselines[task], color="gray", linestyle=":", label="no learning")
        place.set(xscale="log", xlabel="labels", ylabel="right", title=task)
    handles, names = places[-1].get_legend_handles_labels()
    figure.legend(handles, names, title="pre-training", loc="outside right center")
    return figure


def main():
    """Trains from every start, and compares what is learned from few labels."""
    arguments = parse_arguments()
    arguments.run_dir.mkdir(parents=True, exist_ok=True)
    path = script_arguments.written_by("shape_detector.py", arguments.detector)
    detector = keras.saving.load_model(path, compile=False)
    shapes = data.Shapes(
        image_size=IMAGE_SIZE, num_objects=NUM_OBJECTS, noise=8.0, seed=arguments.seed
    )
    parts, first = [], 0
    for name in ("captions", "images", "held_out"):
        count = getattr(arguments, name)
        path = arguments.run_dir / f"{name}.npz"
        parts.append(read_images(path, detector, shapes, first, count))
        first += count
    vocabulary, answers = shapes.vocabulary, shapes.answers
    without = constants(*parts[1:])
    for name, score in without.items():
        print(f"{name}: {score:.3f}", flush=True)
    traced: dict = {}
    scores = [
        run_seed(seed, parts, vocabulary, answers, traced, arguments)
        for seed in arguments.seeds
    ]
    print("\n| task | start | " + " | ".join(map("{:.0%}".format, arguments.shares)))
    for task in TASKS:
        for start in arguments.starts:
            cells = []
            for share in arguments.shares:
                each = [found[task, start, share] for found in scores]
                spread = np.std(each, ddof=min(1, len(each) - 1))
                cells.append(f"{np.mean(each):.3f} ± {spread:.3f}")
            print(f"| {task} | {start} | {' | '.join(cells)} |", flush=True)
    # Of each task the first one.
    baselines = {
        task: next(score for name, score in without.items() if name.startswith(task))
        for task in TASKS
    }
    picture = arguments.run_dir / "labels.png"
    viz.save_figure(plot_scores(scores, baselines, arguments), picture)
    print(f"\nPicture: {picture}")


if __name__ == "__main__":
    main()
