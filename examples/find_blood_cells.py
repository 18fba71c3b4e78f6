"""Faster R-CNN from scratch: red and white blood cells and platelets, with boxes.

    python examples/find_blood_cells.py

Results on one of two cores of an Intel Xeon (AMX), beside other work: 16 epochs in 28
minutes, of which 6 are CPU time; 205 images of BCCD at 144 × 192 pixels, 1,270,163
parameters. On the 87 held-out images mAP@0.5 is 0.876, mAP (IoU 0.5 to 0.95) 0.550:

                 mAP@0.5   objects   missed   false detections
    platelets     0.818        83       18            19
    red cells     0.817       968      178           319
    white cells   0.994        87        0             1

An object is missed if no detection of its class has a score of at least 0.5 and an IoU
of at least 0.5 with it. One of these red cells is labeled as a single pixel. The three
images with the most errors, in `worst.png`, show why red cells have so many: in one
image, none of about twenty red cells is labeled, and the others show heaps of cells,
whose labels are guesses, too.
"""

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np

from keras_attn import data, models
from keras_attn.metrics import (
    DetectionScoreLogger,
    DetectionScores,
    count_detection_errors,
)
from keras_attn.training import AdamW, BackupAndResume, CosineWarmup, Stopwatch
from keras_attn.viz import plot_detections, save_figure
from keras_attn.viz.callbacks import DetectionBoxes

MIN_SCORE = 0.5  # Of the detections that are counted and drawn.
NUM_SHOWN = 3  # Images in a figure.
CLASSES = ["Platelets", "RBC", "WBC"]
# √(w h) in the original images, 480 pixels high. 90% of the platelets have 30 to 54
# pixels, of the red cells 83 to 120, of the white cells 120 to 240.
ANCHOR_SIZES = (40, 104, 184, 264, 376)
ORIGINAL_HEIGHT = 480
MAX_OBJECTS = 50  # No image has more than 30.


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/blood-cells")
    content = "JPEGImages/, Annotations/, ImageSets/train.txt and val.txt"
    script_arguments.add_data_dir(
        parser, "bccd", f"folder in VOC's format, with {content}"
    )
    parser.add_argument(
        "--image-size",
        type=int,
        nargs=2,
        default=(144, 192),
        metavar=("HEIGHT", "WIDTH"),
        help="size in pixels to which images are resized",
    )
    parser.add_argument(
        "--width",
        type=int,
        default=16,
        help="channels of the ResNet's first map; each stage doubles them",
    )
    parser.add_argument(
        "--blocks",
        type=int,
        nargs="+",
        default=[1, 2, 2],
        help="number of blocks of each stage of the ResNet",
    )
    parser.add_argument(
        "--every", type=int, default=5, help="epochs between scores on held-out images"
    )
    script_arguments.add_training_options(
        parser, epochs=16, batch_size=4, learning_rate=1e-3
    )
    return parser.parse_args()


def load_cells(arguments, epoch):
    """Batches of randomly augmented training images, and of held-out images."""
    script_arguments.check_folders(
        arguments.data_dir, "JPEGImages", "Annotations", "ImageSets"
    )
    sizes = {"image_size": arguments.image_size, "batch_size": arguments.batch_size}
    train, held_out = (
        data.read_voc(arguments.data_dir, split, CLASSES) for split in ("train", "val")
    )
    batches = data.detection_dataset(
        train,
        **sizes,
        normalize="imagenet",
        augmentations=[
            data.RandomMirror(horizontal=0.5, vertical=0.5),
            data.RandomScaleAndCrop(arguments.image_size, scale=(0.8, 1.25)),
            data.RandomColors(),
        ],
        shuffle=True,
        seed=arguments.seed,
        epoch=epoch,
        # The statistics of one image would disturb the batch norms.
        drop_remainder=True,
    )
    return batches, data.detection_dataset(held_out, **sizes, normalize="imagenet")


def detector_sizes(arguments, anchor_sizes):
    """Arguments of a small detector that is trained from scratch.

    Args:
        arguments: Command-line arguments.
        anchor_sizes: √(w h) of anchors in pixels, for each map, finest first.
    """
    num_levels = len(arguments.blocks) + 1
    return {
        "image_size": tuple(arguments.image_size),
        "num_blocks": tuple(arguments.blocks),
        "stem_dim": arguments.width,
        # No checkpoint: all of the ResNet is trained, with its batch norms.
        "num_frozen": 0,
        "frozen_norms": False,
        "pyramid_dim": 4 * arguments.width,
        "head_dim": 16 * arguments.width,
        "anchor_sizes": anchor_sizes[:num_levels],
        "num_proposals": 4 * MAX_OBJECTS,
        "num_training_proposals": 4 * MAX_OBJECTS,
        "proposal_options": {
            "candidates_per_level": 8 * MAX_OBJECTS,
            "training_candidates_per_level": 8 * MAX_OBJECTS,
        },
        "detection_options": {
            "num_samples": 3 * MAX_OBJECTS,
            "max_candidates": 8 * MAX_OBJECTS,
        },
        "max_detections": MAX_OBJECTS,
        "seed": arguments.seed,
    }


def fit_detector(model, train, validation, arguments, backup):
    """Trains a detector, or resumes; returns its seconds per epoch.

    Args:
        model: A `Detector`.
        train: Batches of images and ground-truth objects.
        validation: Batches of held-out images and ground-truth objects.
        arguments: Command-line arguments.
        backup: The `BackupAndResume` whose epoch the data follow.
    """
    run_dir = arguments.run_dir
    steps = arguments.epochs * int(train.cardinality())
    model.compile(
        AdamW(
            CosineWarmup(arguments.learning_rate, max(steps // 20, 1), steps),
            weight_decay=0.05,
            clipnorm=5.0,
        ),
        # XLA takes minutes to compile all losses, longer than it saves here.
        jit_compile=False,
    )
    watch = Stopwatch()
    images, truth = next(iter(validation))
    model.fit(
        train,
        epochs=arguments.epochs,
        shuffle=False,
        verbose=2,
        callbacks=[
            watch,
            # Before TensorBoard, which writes the scores too.
            DetectionScoreLogger(validation, CLASSES, every=arguments.every),
            keras.callbacks.TensorBoard(run_dir / "logs", write_graph=False),
            DetectionBoxes(
                run_dir / "logs",
                images,
                truth,
                CLASSES,
                max_examples=NUM_SHOWN,
                min_score=MIN_SCORE,
            ),
            backup,
        ],
    )
    model.save(run_dir / "model.keras")
    backup.delete()
    return watch.seconds_per_epoch()


def score(model, batches):
    """Scores a detector, and counts its errors in each image.

    Args:
        model: A `Detector`.
        batches: Images and ground-truth objects.

    Returns:
        COCO's figures by name; and the errors of each image, (N, classes, 3): objects,
        missed objects, and false detections.
    """
    scores, errors = DetectionScores(CLASSES), []
    for images, truth in batches:
        found = model.predict_on_batch(images)
        scores.add(truth, found, images.shape[1:3])
        errors.append(
            count_detection_errors(truth, found, len(CLASSES), min_score=MIN_SCORE)
        )
    return scores.result(), np.concatenate(errors)


def report_errors(model, batches, errors, arguments):
    """Prints the errors by class, and draws the images with the most, `worst.png`.

    Args:
        model: A `Detector`.
        batches: As for `score`.
        errors: From `score`.
        arguments: Command-line arguments.
    """
    for name, (objects, missed, false) in zip(CLASSES, errors.sum(0), strict=True):
        print(f"{name}: {missed} of {objects} objects missed, {false} false detections")
    worst = np.argsort(-errors[:, :, 1:].sum((1, 2)), kind="stable")[:NUM_SHOWN]
    rows = batches.unbatch()
    chosen = [next(iter(rows.skip(int(number)).batch(1))) for number in worst]
    images, truth = keras.tree.map_structure(lambda *x: np.concatenate(x), *chosen)
    figure = plot_detections(
        images,
        model.predict_on_batch(images),
        truth,
        class_names=CLASSES,
        min_score=MIN_SCORE,
    )
    picture = arguments.run_dir / "worst.png"
    save_figure(figure, picture)
    print(f"\nMost errors: {picture}; tensorboard --logdir {arguments.run_dir}")


def main():
    """Trains the detector, scores it, and draws where it fails."""
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    backup = BackupAndResume(arguments.run_dir / "backup", delete_checkpoint=False)
    train, validation = load_cells(arguments, backup.epoch)
    scale = arguments.image_size[0] / ORIGINAL_HEIGHT
    anchor_sizes = [scale * size for size in ANCHOR_SIZES]
    model = models.build_faster_rcnn(
        num_classes=len(CLASSES),
        **detector_sizes(arguments, anchor_sizes),
    )
    print(f"{model.count_params():,} parameters", flush=True)
    seconds = fit_detector(model, train, validation, arguments, backup)
    figures, errors = score(model, validation)
    print(f"\n{seconds:.1f} seconds per epoch")
    print(f"mAP {figures['map']:.3f}, mAP@0.5 {figures['map_50']:.3f}")
    for name in CLASSES:
        print(f"{name}: mAP@0.5 {figures[f'ap_50_{name}']:.3f}")
    report_errors(model, validation, errors, arguments)


if __name__ == "__main__":
    main()
