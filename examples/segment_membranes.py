"""U-Net on electron microscopy: membranes between cells, from twenty slices.

    python examples/segment_membranes.py
    tensorboard --logdir runs/segment-membranes

Results on ISBI 2012, slices 0 to 19 for training and 20 to 24 for testing, in 14.5
minutes of CPU time of one of two cores of an Intel Xeon (AMX), an hour by the clock
beside other work; "all cell" predicts no membrane:

    pixel error    8.53%     all cell: 20.32%
    IoU            membrane 0.637, cell 0.900, mean 0.769
    Rand score     0.852     split 0.973, merge 0.762; all cell: 0.093

This is after 30 epochs: the run was started with 40, stopped after 23, and resumed with
`--epochs 30`, which lowers the learning rates of the remaining epochs. The thresholds
of the probability, 0.15 for the pixels and 0.85 for the Rand score, are the best ones
for five training slices. In the picture, wrong pixels are at the borders of membranes,
in faint membranes, and in dark regions outside of cells; gaps in thin membranes merge
cells.
"""

from dataclasses import replace

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
import tensorflow as tf
from scipy import ndimage

from keras_attn.data import (
    ElasticDeformation,
    RandomColors,
    RandomMirror,
    RandomQuarterTurns,
    RandomScaleAndCrop,
    read_segmentation,
    segmentation_dataset,
)
from keras_attn.losses import SegmentationCrossEntropy, border_weights
from keras_attn.metrics import SegmentationScores, foreground_rand_scores
from keras_attn.models import build_unet
from keras_attn.tiling import predict_tiles
from keras_attn.training import AdamW, BackupAndResume, CosineWarmup
from keras_attn.viz import plot_segmentation, save_figure
from keras_attn.viz.callbacks import SegmentationMaps

CLASSES = ["membrane", "cell"]
CELL = CLASSES.index("cell")
NUM_TEST = 5
TILE_SIZE = 256  # Whole slices are predicted tile by tile.
# Each output depends on 44 pixels on each side, and the last maps are 8 times smaller.
OVERLAP = 48
THRESHOLDS = np.arange(1, 20) / 20  # Of the probability of a cell.


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/segment-membranes")
    script_arguments.add_data_dir(
        parser, "isbi_membrane", "folder of the images and masks"
    )
    script_arguments.add_training_options(
        parser, epochs=40, batch_size=4, learning_rate=1e-3
    )
    parser.add_argument(
        "--width", type=int, default=16, help="channels of the first stage; paper: 64"
    )
    parser.add_argument(
        "--crop-size", type=int, default=256, help="side of a training image in pixels"
    )
    parser.add_argument(
        "--crops", type=int, default=8, help="training images per slice and epoch"
    )
    parser.add_argument(
        "--border-weight",
        type=float,
        default=10.0,
        help="weight of the pixels between two cells that nearly touch; 0: none",
    )
    return parser.parse_args()


def read_slices(arguments):
    """The slices for training, and the last five, for testing."""
    image_folder, label_folder = script_arguments.check_folders(
        arguments.data_dir, "image", "label"
    )
    slices = read_segmentation(
        image_folder, label_folder, CLASSES, palette={0: 0, 255: CELL}, channels=1
    )
    # 2.png before 10.png.
    pairs = sorted(slices.pairs, key=lambda pair: (len(pair[0].stem), pair[0].stem))
    train, test = pairs[:-NUM_TEST], pairs[-NUM_TEST:]
    return replace(slices, pairs=train), replace(slices, pairs=test)


def training_batches(slices, arguments, epoch):
    """Batches of deformed crops, their labels, and the weights of their pixels."""
    size = arguments.crop_size
    whole = slices.read(0)[0].shape[0] / size  # Scale 1 is the whole slice.
    batches = segmentation_dataset(
        replace(slices, pairs=slices.pairs * arguments.crops),
        augmentations=[
            RandomScaleAndCrop(size, (0.9 * whole, 1.1 * whole)),
            RandomMirror(),
            RandomQuarterTurns(),
            # U-Net's 10 pixels on 3 × 3 points are for images of 512 pixels.
            ElasticDeformation(sigma=10 * size / 512),
            RandomColors(),
        ],
        image_size=size,
        normalize="unit",
        shuffle=True,
        epoch=epoch,
        **script_arguments.selected(arguments, "batch_size", "seed"),
    )

    def weights(labels):
        cells = [ndimage.label(each == CELL)[0] for each in labels]
        return border_weights(np.stack(cells), border_weight=arguments.border_weight)

    def weighted(images, labels):
        found = tf.numpy_function(weights, [labels], tf.float32, stateful=False)
        return images, labels, tf.ensure_shape(found, labels.shape)

    return batches.map(weighted, num_parallel_calls=1).prefetch(2)


def predict_cells(model, slices):
    """Images, masks of cells and predicted probabilities, each (slices, H, W)."""
    images, labels = (
        np.stack(each)
        for each in zip(*(slices.read(i) for i in range(len(slices))), strict=True)
    )
    logits = [
        predict_tiles(model, image / 255.0, TILE_SIZE, overlap=OVERLAP)
        for image in images
    ]
    probabilities = keras.ops.softmax(np.stack(logits))[..., CELL]
    return images, labels == CELL, keras.ops.convert_to_numpy(probabilities)


def pixel_error(truth, predicted):
    """Share of wrong pixels."""
    return np.mean(truth != predicted)


def rand_scores(truth, predicted):
    """Mean scores of the slices: rand, split and merge."""
    pairs = zip(truth, predicted, strict=True)
    scores = [foreground_rand_scores(*pair) for pair in pairs]
    return {name: np.mean([each[name] for each in scores]) for name in scores[0]}


def choose_thresholds(truth, probabilities):
    """The thresholds with the minimum pixel error and the maximum Rand score."""
    errors = [pixel_error(truth, probabilities > each) for each in THRESHOLDS]
    rand = [rand_scores(truth, probabilities > each)["rand"] for each in THRESHOLDS]
    return THRESHOLDS[np.argmin(errors)], THRESHOLDS[np.argmax(rand)]


def report(truth, probabilities, threshold, best_for_rand):
    """Prints the scores of the test slices."""
    predicted = probabilities > threshold
    scores = SegmentationScores(len(CLASSES), CLASSES)
    scores.update_state(truth, np.eye(len(CLASSES))[predicted.astype(int)])
    iou = {name: float(value) for name, value in scores.result().items()}
    print(f"\n{len(truth)} test slices; thresholds chosen on training slices")
    print(f"pixel error    {pixel_error(truth, predicted):.2%} at {threshold:.2f}")
    print(
        f"IoU            membrane {iou['iou_membrane']:.3f}, "
        f"cell {iou['iou_cell']:.3f}, mean {iou['mean_iou']:.3f}"
    )
    rand = rand_scores(truth, probabilities > best_for_rand)
    print(
        f"Rand score     {rand['rand']:.3f} at {best_for_rand:.2f}: "
        f"split {rand['split']:.3f}, merge {rand['merge']:.3f}"
    )
    whole = rand_scores(truth, np.ones_like(truth))["rand"]
    print(f"baseline, all cell: {np.mean(~truth):.2%}, Rand score {whole:.3f}")


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
    """Trains the U-Net, then measures it on whole slices."""
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    train, test = read_slices(arguments)
    print(f"{len(train)} slices for training, {len(test)} for testing")
    model = build_unet(
        hidden_dims=[arguments.width * 2**stage for stage in range(4)],
        padding="same",
        num_channels=1,
        num_classes=len(CLASSES),
        dropout=0.2,
    )
    print(f"{model.count_params():,} parameters", flush=True)
    held_out = segmentation_dataset(test, batch_size=1, normalize="unit")
    fit_segmenter(
        model,
        lambda epoch: training_batches(train, arguments, epoch),
        held_out,
        SegmentationCrossEntropy(),
        SegmentationScores(len(CLASSES), CLASSES),
        next(iter(held_out.rebatch(2))),
        arguments,
    )
    few = replace(train, pairs=train.pairs[:NUM_TEST])
    _, truth, probabilities = predict_cells(model, few)
    thresholds = choose_thresholds(truth, probabilities)
    images, truth, probabilities = predict_cells(model, test)
    report(truth, probabilities, *thresholds)
    figure = plot_segmentation(
        images[:1],
        truth[:1].astype(int),
        (probabilities[:1] > thresholds[0]).astype(int),
        class_names=CLASSES,
        errors=True,
    )
    save_figure(figure, arguments.run_dir / "segmentation.png")
    print(f"\nPictures: tensorboard --logdir {arguments.run_dir}")


if __name__ == "__main__":
    main()
