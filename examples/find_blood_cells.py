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

import cpu_settings  # noqa: F401  TensorFlow reads it when imported.
import detectors
import keras
from options import add_data_dir, add_training_options, new_parser
from segmentation import check_folders

from keras_attn import data, models

CLASSES = ["Platelets", "RBC", "WBC"]
# √(w h) in the original images, 480 pixels high. 90% of the platelets have 30 to 54
# pixels, of the red cells 83 to 120, of the white cells 120 to 240.
ANCHOR_SIZES = (40, 104, 184, 264, 376)
ORIGINAL_HEIGHT = 480
MAX_OBJECTS = 50  # No image has more than 30.


def parse_arguments():
    """Parses the command line."""
    parser = new_parser(__doc__, "runs/blood-cells")
    content = "JPEGImages/, Annotations/, ImageSets/train.txt and val.txt"
    add_data_dir(parser, "bccd", f"folder in VOC's format, with {content}")
    detectors.add_detector_options(parser, width=16, image_size=(144, 192))
    add_training_options(parser, epochs=16, batch_size=4, learning_rate=1e-3)
    return parser.parse_args()


def load_cells(arguments, epoch):
    """Batches of randomly augmented training images, and of held-out images."""
    check_folders(arguments, "JPEGImages", "Annotations", "ImageSets")
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


def main():
    """Trains the detector, scores it, and draws where it fails."""
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    backup = detectors.new_backup(arguments)
    train, validation = load_cells(arguments, backup.epoch)
    scale = arguments.image_size[0] / ORIGINAL_HEIGHT
    anchor_sizes = [scale * size for size in ANCHOR_SIZES]
    model = models.build_faster_rcnn(
        num_classes=len(CLASSES),
        **detectors.detector_sizes(arguments, anchor_sizes, MAX_OBJECTS),
    )
    print(f"{model.count_params():,} parameters", flush=True)
    seconds = detectors.fit_detector(
        model, train, validation, CLASSES, arguments, backup
    )
    scores, errors = detectors.score(model, validation, CLASSES)
    figures = scores["boxes"]
    print(f"\n{seconds:.1f} seconds per epoch")
    print(f"mAP {figures['map']:.3f}, mAP@0.5 {figures['map_50']:.3f}")
    for name in CLASSES:
        print(f"{name}: mAP@0.5 {figures[f'ap_50_{name}']:.3f}")
    detectors.report_errors(model, validation, errors, CLASSES, arguments)


if __name__ == "__main__":
    main()
