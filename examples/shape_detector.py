"""A Faster R-CNN of colored shapes, whose regions models of words and regions read.

    python examples/shape_detector.py

`vilbert_shapes.py` and the examples of VLN-BERT read what it writes. It has a class for
each color and shape: a detector that learns shapes alone forgets their colors. Features
of a region are the last layer before its classes, since a location of the backbone's
last map is as large as half of these images.
"""

import time

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
import tensorflow as tf

from keras_attn import data, models
from keras_attn.metrics import DetectionScores
from keras_attn.training import AdamW, BackupAndResume, CosineWarmup

IMAGE_SIZE = 64
# √(w h) of anchors as a share of the image, from small shapes to large ones.
ANCHOR_SHARES = (0.15, 0.22, 0.31, 0.42)
MAX_OBJECTS = 10
NUM_OBJECTS = (2, 3)
# Images of other numbers than those of models: two of one number are alike.
FIRST_IMAGE = 1_000_000


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/shape-detector")
    parser.add_argument("--images", type=int, default=4000, help="training images")
    parser.add_argument(
        "--width", type=int, default=16, help="channels of the ResNet's first map"
    )
    script_arguments.add_training_options(
        parser, epochs=8, batch_size=8, learning_rate=2e-3
    )
    return script_arguments.parse(parser, images=16, epochs=1, width=4)


def read_objects(shapes, start, count):
    """Images, uint8 (N, H, W, 3), with the boxes and classes of their objects."""
    examples = [shapes.example(start + number) for number in range(count)]
    boxes = np.zeros((count, NUM_OBJECTS[1], 4), "float32")
    classes = np.full((count, NUM_OBJECTS[1]), -1, "int32")
    colors = list(shapes.colors)
    for row, example in enumerate(examples):
        boxes[row, : len(example.boxes)] = example.boxes
        for place, each in enumerate(example.objects):
            shape = list(shapes.shapes).index(each.shape)
            classes[row, place] = colors.index(each.color) * len(shapes.shapes) + shape
    images = np.stack([example.image for example in examples])
    return images, {"boxes": boxes, "classes": classes}


def as_float(images, truth):
    """Pixels from 0 to 1."""
    return tf.cast(images, tf.float32) / 255, truth


def new_detector(num_classes, arguments):
    """A small Faster R-CNN that is trained from scratch."""
    return models.build_faster_rcnn(
        num_classes=num_classes,
        image_size=(IMAGE_SIZE, IMAGE_SIZE),
        num_blocks=(1, 2, 2),
        stem_dim=arguments.width,
        # No checkpoint: all of the ResNet is trained, with its batch norms.
        num_frozen=0,
        frozen_norms=False,
        pyramid_dim=4 * arguments.width,
        head_dim=16 * arguments.width,
        anchor_sizes=[IMAGE_SIZE * share for share in ANCHOR_SHARES],
        num_proposals=4 * MAX_OBJECTS,
        num_training_proposals=4 * MAX_OBJECTS,
        proposal_options={
            "candidates_per_level": 8 * MAX_OBJECTS,
            "training_candidates_per_level": 8 * MAX_OBJECTS,
        },
        detection_options={
            "num_samples": 3 * MAX_OBJECTS,
            "max_candidates": 8 * MAX_OBJECTS,
        },
        max_detections=MAX_OBJECTS,
        seed=arguments.seed,
    )


def main():
    """Trains the detector, or resumes, and prints how well it detects."""
    arguments = parse_arguments()
    start = time.process_time()
    keras.utils.set_random_seed(arguments.seed)
    shapes = data.Shapes(
        image_size=IMAGE_SIZE, num_objects=NUM_OBJECTS, noise=8.0, seed=arguments.seed
    )
    count, run_dir = arguments.images, arguments.run_dir
    names = [f"{color} {shape}" for color in shapes.colors for shape in shapes.shapes]
    train = read_objects(shapes, FIRST_IMAGE, count)
    held_out = read_objects(shapes, FIRST_IMAGE + count, max(count // 20, 8))
    backup = BackupAndResume(run_dir / "backup", delete_checkpoint=False)
    dataset = data.shuffled_dataset(train, seed=arguments.seed, epoch=backup.epoch)
    dataset = dataset.batch(arguments.batch_size, drop_remainder=True).map(as_float)
    model = new_detector(len(names), arguments)
    steps = arguments.epochs * int(dataset.cardinality())
    rate = CosineWarmup(arguments.learning_rate, max(1, steps // 20), steps)
    # XLA takes minutes to compile all losses, longer than it saves here.
    model.compile(AdamW(rate, weight_decay=0.05, clipnorm=5.0), jit_compile=False)
    model.fit(
        dataset.prefetch(2),
        epochs=arguments.epochs,
        shuffle=False,
        verbose=2,
        callbacks=[backup],
    )
    scores = DetectionScores(names)
    images, truth = as_float(*held_out)
    scores.add(truth, model.predict_on_batch(images), images.shape[1:3])
    print(
        f"{model.count_params():,} parameters, mAP@0.5 "
        f"{scores.result()['map_50']:.3f}, {time.process_time() - start:.0f} s of CPU "
        "time",
        flush=True,
    )
    model.save(run_dir / "model.keras")
    backup.delete()
    print(f"The detector: {run_dir / 'model.keras'}")


if __name__ == "__main__":
    main()
