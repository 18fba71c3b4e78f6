"""SegNet, FCN-8s and U-Net at equal cost: what is where on a street.

    python examples/segment_streets.py            all three, in one table
    python examples/segment_streets.py --model unet
    tensorboard --logdir runs/segment-streets

Each network takes 1.00 to 1.03 GFLOPs for an image of 240 × 180 pixels. At that cost
the FCN is the narrowest, because it pads the image by 99 pixels on each side.

The table has the IoU on the 101 validation images of CamVid, the mean of three seeds.
Ten epochs do not rank the networks: SegNet and U-Net miss most trees then, in the
training images, too. The sixty epochs of the default have not been made to the end, so
there is no ranking here yet. Ten epochs of one network, in batches of 2, took about 5
minutes of one core of an Intel Xeon (AMX).
"""

import argparse
import itertools
from dataclasses import replace

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
import tensorflow as tf

from keras_attn import models
from keras_attn.data import (
    RandomColors,
    RandomMirror,
    RandomScaleAndCrop,
    read_segmentation,
    segmentation_dataset,
)
from keras_attn.losses import SegmentationCrossEntropy
from keras_attn.metrics import SegmentationScores
from keras_attn.training import AdamW, BackupAndResume, CosineWarmup
from keras_attn.viz import plot_segmentation, save_figure
from keras_attn.viz.callbacks import SegmentationMaps

# The 11 classes of CamVid, in the order of their numbers; 11 marks all other pixels.
CLASSES = [
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
]
VOID = 11

# Published networks with narrower layers, so that each takes 1 GFLOP for an image of
# 240 × 180 pixels.
MODELS = {
    "segnet": ("segnet", {"hidden_dims": (8, 16, 32, 64, 96)}),
    "fcn8s": (
        "fcn8s_vgg16",
        {"hidden_dims": (6, 12, 24, 44, 44), "fully_connected_dims": (256, 256)},
    ),
    "unet": (
        "unet",
        {
            "hidden_dims": (8, 16, 32, 64, 128),
            "padding": "same",
            "num_channels": 3,
            "dropout": 0.2,
        },
    ),
}


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/segment-streets")
    script_arguments.add_data_dir(parser, "camvid", "folder of the images and masks")
    script_arguments.add_training_options(
        parser, epochs=60, batch_size=4, learning_rate=1e-3
    )
    parser.add_argument("--model", choices=MODELS, help="train only this model")
    parser.add_argument(
        "--seeds", type=int, default=3, help="number of seeds, counted from --seed"
    )
    parser.add_argument(
        "--balance",
        type=float,
        default=0.5,
        help="exponent of the class weights, median frequency / frequency: 1, as in "
        "the SegNet paper, finds more of the rare classes; 0: no weights",
    )
    return parser.parse_args()


def class_weights(data, exponent):
    """Weights of the classes: (median frequency / frequency) ** exponent.

    The frequency of a class is its share of the pixels of the images that have it
    (Eigen and Fergus 2015, arXiv:1411.4734).
    """
    labels = (data.read(i)[1].ravel() for i in range(len(data)))
    counts = np.stack([np.bincount(each, minlength=256)[:VOID] for each in labels])
    pixels = (counts > 0) * counts.sum(1, keepdims=True)
    frequency = counts.sum(0) / np.maximum(pixels.sum(0), 1)
    found = frequency > 0
    weights = np.ones(len(frequency), "float32")
    weights[found] = (np.median(frequency[found]) / frequency[found]) ** exponent
    return weights


def training_batches(data, weights, size, arguments, epoch):
    """Batches of augmented images, labels, and the weights of their pixels."""
    batches = segmentation_dataset(
        data,
        augmentations=[
            RandomMirror(),
            RandomScaleAndCrop(size, scale=(0.9, 1.4)),
            RandomColors(),
        ],
        image_size=size,
        normalize="imagenet",
        shuffle=True,
        epoch=epoch,
        **script_arguments.selected(arguments, "batch_size", "seed"),
    )
    # The loss ignores the label 255, whatever its weight.
    table = tf.constant(np.pad(weights, (0, 256 - len(weights))))
    return batches.map(
        lambda images, labels: (images, labels, tf.gather(table, labels))
    )


def train_one(kind, seed, train, validation, shown, arguments):
    """Trains one model.

    Returns:
        Its scores, and its parameters and GFLOPs as `parameters` and `gflops`.
    """
    keras.utils.set_random_seed(seed)
    name, sizes = MODELS[kind]
    size = tuple(shown[0].shape[1:3])
    sizes = {**sizes, "image_size": size, "num_classes": len(CLASSES)}
    model, cost = models.create(name, **sizes), models.plan(name, **sizes)
    # All learn from the same normalization, whatever their cards say.
    model.preprocessing = None
    gflops = cost.forward_flops / 1e9
    print(f"\n{kind}, seed {seed}: {cost.parameters:,} parameters, {gflops:.2f} GFLOPs")
    held_out = segmentation_dataset(validation, batch_size=8, normalize="imagenet")
    weights = class_weights(train, arguments.balance)
    folder = arguments.run_dir / f"{kind}_{seed}"
    options = argparse.Namespace(**{**vars(arguments), "run_dir": folder, "seed": seed})
    fit_segmenter(
        model,
        lambda epoch: training_batches(train, weights, size, options, epoch),
        held_out,
        SegmentationCrossEntropy(),
        SegmentationScores(len(CLASSES), CLASSES),
        shown,
        options,
    )
    scores = model.evaluate(held_out, return_dict=True, verbose=0)
    images, labels = shown
    logits = model.predict(images, verbose=0)
    figure = plot_segmentation(images, labels, logits, class_names=CLASSES, title=kind)
    save_figure(figure, folder / "segmentation.png")
    print(f"{kind}, seed {seed}: mean IoU {scores['mean_iou']:.1%}", flush=True)
    return {**scores, "parameters": cost.parameters, "gflops": gflops}


def row_of(kind, runs):
    """A row of the table: means over the seeds, and the spread of the mean IoU."""
    mean = {name: np.mean([run[name] for run in runs]) for name in runs[0]}
    spread = np.std([run["mean_iou"] for run in runs], ddof=min(1, len(runs) - 1))
    return [
        kind,
        f"{mean['mean_iou']:.1%} ± {spread:.1%}",
        f"{mean['pixel_accuracy']:.1%}",
        *(f"{mean[f'iou_{each}']:.0%}" for each in CLASSES),
        f"{mean['parameters']:,.0f}",
        f"{mean['gflops']:.2f}",
    ]


def evenly_spaced(data, count=3):
    """Some of the images and labels, for the pictures."""
    rows = np.linspace(0, len(data) - 1, min(count, len(data))).astype(int)
    few = replace(data, pairs=[data.pairs[row] for row in rows])
    batches = segmentation_dataset(few, batch_size=count, normalize="imagenet")
    return next(iter(batches))


def fit_segmenter(model, make_train, validation, loss, scores, shown, arguments):
    """Trains a model in its own folder, and saves it there.

    Args:
        model: From images to logits (B, H, W, C).
        make_train: Function that takes `epoch` and returns the training batches.
        validation: Held-out batches of images and labels.
        loss: Loss of labels and logits.
        scores: A `SegmentationScores`.
        shown: Images and labels for the pictures in TensorBoard.
        arguments: Command-line arguments; all results go to `run_dir`.
    """
    backup = BackupAndResume(arguments.run_dir / "backup", delete_checkpoint=False)
    train, logs = make_train(backup.epoch), arguments.run_dir / "logs"
    images, labels = shown
    steps = arguments.epochs * int(train.cardinality())
    model.compile(
        AdamW(
            CosineWarmup(arguments.learning_rate, max(steps // 20, 1), steps),
            weight_decay=1e-4,
        ),
        loss,
        metrics=[scores],
        # On a CPU the convolutions of oneDNN are up to twice as fast as XLA's.
        jit_compile=False,
    )
    model.fit(
        train,
        epochs=arguments.epochs,
        shuffle=False,
        validation_data=validation,
        verbose="auto",
        callbacks=[
            keras.callbacks.TensorBoard(logs, write_graph=False),
            SegmentationMaps(logs, images, labels, scores.class_names, errors=True),
            backup,
        ],
    )
    model.save(arguments.run_dir / "model.keras")
    backup.delete()


def main():
    """Trains each model with each seed, then prints the table."""
    arguments = parse_arguments()
    folders = script_arguments.check_folders(
        arguments.data_dir, "train", "trainannot", "val", "valannot"
    )
    train, validation = (
        read_segmentation(images, labels, CLASSES, void=(VOID,))
        for images, labels in (folders[:2], folders[2:])
    )
    print(f"{len(train)} images for training, {len(validation)} held out")
    shown = evenly_spaced(validation)
    kinds = [arguments.model] if arguments.model else list(MODELS)
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    runs = {kind: [] for kind in kinds}
    # Seed by seed, so that an interrupted run has all models.
    for seed, kind in itertools.product(seeds, kinds):
        runs[kind].append(train_one(kind, seed, train, validation, shown, arguments))
    rows = [row_of(kind, results) for kind, results in runs.items()]
    names = ["model", "mean IoU", "pixel accuracy", *CLASSES, "parameters", "GFLOPs"]
    print("\nIoU of held-out images, mean over the seeds, and by class\n")
    for row in (names, ["---"] * len(names), *rows):
        print(f"| {' | '.join(row)} |")
    print(f"\nPictures: tensorboard --logdir {arguments.run_dir}")


if __name__ == "__main__":
    main()
