"""Options, training and a count of errors that the examples of detection share."""

import keras
import numpy as np
from cifar10 import Stopwatch

from keras_attn.metrics import DetectionScoreLogger, DetectionScores
from keras_attn.ops import pairwise_iou
from keras_attn.training import AdamW, BackupAndResume, CosineWarmup
from keras_attn.viz import plot_detections, save_figure
from keras_attn.viz.callbacks import DetectionBoxes

MIN_SCORE = 0.5  # Of the detections that are counted and drawn.
NUM_SHOWN = 3  # Images in a figure.


def add_detector_options(parser, *, width, image_size):
    """Adds the sizes of a detector, with their defaults."""
    parser.add_argument(
        "--image-size",
        type=int,
        nargs=2,
        default=image_size,
        metavar=("HEIGHT", "WIDTH"),
        help="size in pixels to which images are resized",
    )
    parser.add_argument(
        "--width",
        type=int,
        default=width,
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


def detector_sizes(arguments, anchor_sizes, max_objects):
    """Arguments of a small detector that is trained from scratch.

    Args:
        arguments: Command-line arguments.
        anchor_sizes: √(w h) of anchors in pixels, for each map, finest first.
        max_objects: Maximum number of detections per image; there are four times as
            many proposals, and three times as many samples.
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
        "num_proposals": 4 * max_objects,
        "num_training_proposals": 4 * max_objects,
        "proposal_options": {
            "candidates_per_level": 8 * max_objects,
            "training_candidates_per_level": 8 * max_objects,
        },
        "detection_options": {
            "num_samples": 3 * max_objects,
            "max_candidates": 8 * max_objects,
        },
        "max_detections": max_objects,
        "seed": arguments.seed,
    }


def fit_detector(model, train, validation, class_names, arguments, backup):
    """Trains a detector, or resumes; returns its seconds per epoch.

    Args:
        model: A `Detector`.
        train: Batches of images and ground-truth objects.
        validation: Batches of held-out images and ground-truth objects.
        class_names: Names of the classes.
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
            DetectionScoreLogger(validation, class_names, every=arguments.every),
            keras.callbacks.TensorBoard(run_dir / "logs", write_graph=False),
            DetectionBoxes(
                run_dir / "logs",
                images,
                truth,
                class_names,
                max_examples=NUM_SHOWN,
                min_score=MIN_SCORE,
            ),
            backup,
        ],
    )
    model.save(run_dir / "model.keras")
    backup.delete()
    return watch.seconds_per_epoch()


def new_backup(arguments):
    """The backup of a run, which is kept until the model is saved."""
    return BackupAndResume(arguments.run_dir / "backup", delete_checkpoint=False)


def score(model, batches, class_names, masks=False):
    """Scores a detector, and counts its errors in each image.

    Args:
        model: A `Detector`.
        batches: Images and ground-truth objects.
        class_names: Names of the classes.
        masks: Whether to compare masks, too.

    Returns:
        COCO's figures by name, `boxes` and, if they are compared, `masks`; and the
        errors of each image, (N, classes, 3): objects, missed objects, and false
        detections.
    """
    scores = {"boxes": DetectionScores(class_names)}
    if masks:
        scores["masks"] = DetectionScores(class_names, masks=True)
    errors = []
    for images, truth in batches:
        found = model.predict_on_batch(images)
        for each in scores.values():
            each.add(truth, found, images.shape[1:3])
        errors += _errors(truth, found, len(class_names))
    figures = {kind: each.result() for kind, each in scores.items()}
    return figures, np.stack(errors)


def report_errors(model, batches, errors, class_names, arguments):
    """Prints the errors by class, and draws the images with the most, `worst.png`.

    Args:
        model: A `Detector`.
        batches: As for `score`.
        errors: From `score`.
        class_names: Names of the classes.
        arguments: Command-line arguments.
    """
    for name, (objects, missed, false) in zip(class_names, errors.sum(0), strict=True):
        print(f"{name}: {missed} of {objects} objects missed, {false} false detections")
    worst = np.argsort(-errors[:, :, 1:].sum((1, 2)), kind="stable")[:NUM_SHOWN]
    rows = batches.unbatch()
    chosen = [next(iter(rows.skip(int(number)).batch(1))) for number in worst]
    images, truth = keras.tree.map_structure(lambda *x: np.concatenate(x), *chosen)
    figure = plot_detections(
        images,
        model.predict_on_batch(images),
        truth,
        class_names=class_names,
        min_score=MIN_SCORE,
    )
    picture = arguments.run_dir / "worst.png"
    save_figure(figure, picture)
    print(f"\nMost errors: {picture}; tensorboard --logdir {arguments.run_dir}")


def _errors(truth, found, num_classes):
    """Objects, missed objects and false detections of each class, for each image."""
    iou = np.asarray(pairwise_iou(found["boxes"], truth["boxes"]))  # (B, K, M)
    wanted, classes = np.asarray(truth["classes"]), np.asarray(found["classes"])
    is_kept = (classes >= 0) & (np.asarray(found["scores"]) >= MIN_SCORE)
    counts = np.zeros((len(wanted), num_classes, 3), int)
    for row, (true, claimed) in enumerate(zip(wanted, classes, strict=True)):
        is_free = true >= 0
        np.add.at(counts[row, :, 0], true[is_free], 1)
        # In order of their scores, each takes an object of its class that is free.
        for index in np.flatnonzero(is_kept[row]):
            overlap = np.where(is_free & (true == claimed[index]), iou[row, index], 0)
            if overlap.max(initial=0) >= 0.5:
                is_free[overlap.argmax()] = False
            else:
                counts[row, claimed[index], 2] += 1
        np.add.at(counts[row, :, 1], true[is_free], 1)
    return list(counts)
