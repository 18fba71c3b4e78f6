"""Mask R-CNN from scratch: each object of generated images, pixel by pixel.

    python examples/shapes_masks.py

Results on one of two cores of an Intel Xeon (AMX), beside other work, with 6 minutes of
CPU time: 800 images of 96 × 96 pixels, 6 epochs, 1,306,089 parameters; mAP on 200
held-out images, IoU from 0.5 to 0.95, and of boxes or masks with IoU 0.5:

             mAP   mAP@0.5   circle  square  triangle   star   cross   ring
    boxes   0.475   0.669     0.700   0.404    0.261    0.376  0.406  0.701
    masks   0.336   0.605     0.630   0.375    0.238    0.184  0.226  0.363

The run was stopped after 3 of 10 epochs, with a box mAP of 0.317, and resumed with 6,
so only its last 3 epochs had the learning rates that the command gives them.

600 steps are too few to tell the shapes apart: the pictures of the worst images show
triangles taken for stars and squares drawn around circles, and 78% of the triangles
have no detection of their class with IoU 0.5 and a score of 0.5. Masks are coarser than
boxes where shapes have thin arms or a hole.
"""

import cpu_settings  # noqa: F401  TensorFlow reads it when imported.
import keras
from detectors import (
    add_detector_options,
    detector_sizes,
    fit_detector,
    new_backup,
    report_errors,
    score,
)
from options import add_training_options, new_parser

from keras_attn import data, models

# √(w h) of a box as a share of the image: of small shapes 0.13 to 0.24, of large ones
# 0.25 to 0.42, and less where a shape is partly hidden.
ANCHOR_SHARES = (0.15, 0.22, 0.31, 0.42, 0.6)
NUM_OBJECTS = (1, 6)
MAX_OVERLAP = 0.4
NOISE = 8.0
MAX_OBJECTS = 20


def parse_arguments():
    """Parses the command line."""
    parser = new_parser(__doc__)
    parser.add_argument(
        "--run-dir", default="runs/shapes-masks", help="for all results"
    )
    parser.add_argument("--images", type=int, default=800, help="to train on")
    parser.add_argument("--held-out", type=int, default=200, help="images to score")
    add_detector_options(parser, width=16, image_size=(96, 96))
    add_training_options(parser, epochs=6, batch_size=8, learning_rate=1e-3)
    return parser.parse_args()


def main():
    """Trains the detector, scores boxes and masks, and draws where it fails."""
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    shapes = data.Shapes(
        image_size=tuple(arguments.image_size),
        num_objects=NUM_OBJECTS,
        max_overlap=MAX_OVERLAP,
        noise=NOISE,
        seed=arguments.seed,
    )
    names = list(shapes.shapes)
    options = {"batch_size": arguments.batch_size, "normalize": "unit"}
    backup = new_backup(arguments)
    train = shapes.dataset(
        "detection",
        arguments.images,
        shuffle=True,
        epoch=backup.epoch,
        augmentations=[data.RandomMirror(horizontal=0.5, vertical=0.5)],
        drop_remainder=True,
        **options,
    )
    validation = shapes.dataset(
        "detection", arguments.held_out, start=arguments.images, **options
    )
    anchor_sizes = [min(arguments.image_size) * share for share in ANCHOR_SHARES]
    model = models.build_mask_rcnn(
        num_classes=len(names),
        mask_dim=2 * arguments.width,
        num_mask_layers=2,
        **detector_sizes(arguments, anchor_sizes, MAX_OBJECTS),
    )
    print(f"{model.count_params():,} parameters", flush=True)
    seconds = fit_detector(model, train, validation, names, arguments, backup)
    scores, errors = score(model, validation, names, masks=True)
    print(f"\n{seconds:.1f} seconds per epoch")
    for kind, figures in scores.items():
        by_class = ", ".join(f"{name} {figures[f'ap_{name}']:.3f}" for name in names)
        print(f"{kind}: mAP {figures['map']:.3f}, mAP@0.5 {figures['map_50']:.3f}")
        print(f"{kind}, mAP by class: {by_class}")
    report_errors(model, validation, errors, names, arguments)


if __name__ == "__main__":
    main()
