"""Four vision tasks on one image: classification, segmentation, detection, instances.

    python examples/shapes_masks.py     # trains the Mask R-CNN that this one reads
    python examples/four_tasks.py

Four questions about an image of circles, squares, triangles and stars, 64 × 64 pixels,
and what models of this library answer:

    classification           which shape covers the most pixels?   a probability each
    semantic segmentation    which shape is each pixel of?         (64, 64) classes
    detection                where is each object?                 boxes with scores
    instance segmentation    which pixels are of each object?      (objects, 64, 64)

A convolutional network with one self-attention answers the first, a U-Net the second;
both are trained here, on the same images. The Mask R-CNN of `shapes_masks.py` answers
the last two. In `four_tasks.png` the truth is above, the answers are below, for an
image with two objects of one shape, which semantic segmentation does not tell apart.
It is an easy image: the first one with such objects whose boxes do not overlap.

Results on one thread of an AMD EPYC (AVX-512, no AMX) beside other work, about 10
minutes of CPU time, after 5 for the Mask R-CNN; 300 images that are not learned from,
one seed:

    classification           83.3% right     the most frequent shape: 40.0%
    semantic segmentation    mean IoU 0.873  all background: 0.180
    detection                mAP 0.766       0.978 at an IoU of 0.5
    instance segmentation    mAP 0.748       0.976
"""

from pathlib import Path

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from keras_attn import data, models
from keras_attn.metrics import DetectionScores, SegmentationScores
from keras_attn.ops import pairwise_iou, paste_masks
from keras_attn.training import AdamW, BackupAndResume, CosineWarmup
from keras_attn.viz import save_figure

IMAGE_SIZE = 64
SHAPES = ("circle", "square", "triangle", "star")  # The classes of the Mask R-CNN.
COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728")
# Of single objects, whatever their class.
OBJECT_COLORS = ("#9467bd", "#17becf", "#bcbd22", "#e377c2", "#8c564b")
MIN_SCORE = 0.5  # Of the detections that are drawn.
OPACITY = 0.55
TASKS = (
    "classification",
    "semantic segmentation",
    "detection",
    "instance segmentation",
)


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/four-tasks")
    script_arguments.add_image_counts(parser, images=2000, held_out=300)
    script_arguments.add_training_options(
        parser, epochs=15, batch_size=16, learning_rate=2e-3
    )
    parser.add_argument(
        "--detector",
        type=Path,
        default=Path("runs/shapes-masks/model.keras"),
        help="the Mask R-CNN that `shapes_masks.py` writes",
    )
    parser.add_argument(
        "--width", type=int, default=16, help="channels of the first stage"
    )
    arguments = script_arguments.parse(
        parser, images=32, held_out=24, epochs=1, batch_size=8, width=4
    )
    if not arguments.detector.is_file():
        raise SystemExit(
            f"error: {arguments.detector} must be the model that `python "
            "examples/shapes_masks.py` writes; run it, or pass --detector"
        )
    return arguments


def read_examples(shapes, start, count):
    """Examples, and their images, float32 (count, H, W, 3) in [0, 1]."""
    examples = [shapes.example(start + number) for number in range(count)]
    images = np.stack([each.image for each in examples]).astype("float32") / 255
    return examples, images


def largest_shapes(examples):
    """The class that covers the most pixels of each image, (B,)."""
    classes = range(1, 1 + len(SHAPES))
    pixels = [[np.sum(each.labels == c) for c in classes] for each in examples]
    return np.argmax(pixels, axis=1).astype("int32")


def fit(model, images, labels, name, arguments):
    """Trains a model from images to logits, or resumes, and saves it."""
    folder = arguments.run_dir / name
    backup = BackupAndResume(folder / "backup", delete_checkpoint=False)
    dataset = data.shuffled_dataset(
        (images, labels), seed=arguments.seed, epoch=backup.epoch
    )
    dataset = dataset.batch(arguments.batch_size).prefetch(2)
    steps = arguments.epochs * int(dataset.cardinality())
    rate = CosineWarmup(arguments.learning_rate, max(steps // 20, 1), steps)
    model.compile(
        AdamW(rate, weight_decay=1e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    model.fit(
        dataset,
        epochs=arguments.epochs,
        shuffle=False,
        verbose=2,
        callbacks=[backup],
    )
    model.save(folder / "model.keras")
    return model


def padded(examples):
    """Boxes, classes and masks of the objects of each image, padded to as many."""
    most = max(len(each.classes) for each in examples)
    truth = {
        "boxes": np.zeros((len(examples), most, 4), "float32"),
        "classes": np.full((len(examples), most), -1, "int32"),
        "masks": np.zeros((len(examples), most, IMAGE_SIZE, IMAGE_SIZE), bool),
    }
    for row, each in enumerate(examples):
        for name, values in truth.items():
            values[row, : len(each.classes)] = getattr(each, name)
    return truth


def report(examples, classes, segmented, found):
    """Prints the scores of the four tasks on held-out images."""
    largest = largest_shapes(examples)
    right = np.mean(classes.argmax(-1) == largest)
    most = np.bincount(largest).max() / len(largest)
    print(f"classification: {right:.1%} of {len(examples)} images are right ", end="")
    print(f"(the most frequent shape: {most:.1%})")
    labels = np.stack([each.labels for each in examples])
    background = np.zeros_like(segmented)
    background[..., 0] = 1
    segmentations = {"semantic segmentation": segmented, "  all background": background}
    for name, scored in segmentations.items():
        scores = SegmentationScores(1 + len(SHAPES), ["background", *SHAPES])
        scores.update_state(labels, scored)
        print(f"{name}: mean IoU {float(scores.result()['mean_iou']):.3f}")
    truth = padded(examples)
    for task, has_masks in (("detection", False), ("instance segmentation", True)):
        scores = DetectionScores(list(SHAPES), masks=has_masks)
        scores.add(truth, found, (IMAGE_SIZE, IMAGE_SIZE))
        result = scores.result()
        print(f"{task}: mAP {result['map']:.3f}, at 0.5 {result['map_50']:.3f}")


def choose(examples):
    """The first image of at least three objects, two of one shape, in boxes apart."""
    for number, each in enumerate(examples):
        counts = np.bincount(each.classes, minlength=len(SHAPES))
        overlaps = np.triu(pairwise_iou(each.boxes, each.boxes), k=1)
        if len(each.classes) >= 3 and counts.max() == 2 and not overlaps.any():
            return number
    return 0


def answers(found, number):
    """The boxes, classes, scores and masks that a detector found in an image."""
    kept = np.flatnonzero(
        (found["classes"][number] >= 0) & (found["scores"][number] >= MIN_SCORE)
    )
    boxes = found["boxes"][number][kept]
    masks = found["masks"][number][kept]
    pasted = paste_masks(masks[None], boxes[None], IMAGE_SIZE)
    return {
        "boxes": boxes,
        "classes": found["classes"][number][kept],
        "scores": found["scores"][number][kept],
        "masks": keras.ops.convert_to_numpy(pasted)[0],
    }


def paint(image, masks, colors):
    """An image in gray, with a color over each mask."""
    painted = np.repeat(image.mean(-1, keepdims=True), 3, axis=-1)
    for mask, color in zip(masks, colors, strict=True):
        value = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        painted[mask] = (1 - OPACITY) * painted[mask] + OPACITY * value
    return painted


def draw_boxes(axis, image, objects):
    """Draws the box and the class of each object, and its score if there is one."""
    axis.imshow(image)
    for number, (box, shape) in enumerate(
        zip(objects["boxes"], objects["classes"], strict=True)
    ):
        left, top, right, bottom = box
        color = COLORS[shape]
        axis.add_patch(
            Rectangle(
                (left - 0.5, top - 0.5),
                right - left,
                bottom - top,
                fill=False,
                color=color,
            )
        )
        text = SHAPES[shape]
        if "scores" in objects:
            text += f" {objects['scores'][number]:.2f}"
        axis.text(
            left,
            max(top - 1, 3),
            text,
            fontsize=7,
            color="white",
            bbox={"facecolor": color, "edgecolor": "none", "pad": 0.8},
        )


def draw_row(axes, image, labels, objects):
    """Draws semantic segmentation, boxes, and a color for each object."""
    masks = [labels == 1 + number for number in range(len(SHAPES))]
    axes[1].imshow(paint(image, masks, COLORS))
    draw_boxes(axes[2], image, objects)
    count = len(objects["masks"])
    colors = [OBJECT_COLORS[i % len(OBJECT_COLORS)] for i in range(count)]
    axes[3].imshow(paint(image, objects["masks"], colors))


def plot_tasks(example, probabilities, labels, objects):
    """The truth above, the answers below, a column for each task."""
    image = example.image / 255
    figure = Figure(figsize=(10, 5.6), dpi=150, layout="compressed")
    axes = figure.subplots(2, len(TASKS))
    for axis, task in zip(axes[0], TASKS, strict=True):
        axis.set_title(task, fontsize=10)
    shape = SHAPES[largest_shapes([example])[0]]
    axes[0, 0].imshow(image)
    axes[0, 0].set_xlabel(f"most pixels: {shape}", fontsize=8)
    truth = {name: getattr(example, name) for name in ("boxes", "classes", "masks")}
    draw_row(axes[0], image, example.labels, truth)
    bars = axes[1, 0].barh(SHAPES, probabilities, color=COLORS)
    axes[1, 0].bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
    axes[1, 0].set(xlim=(0, 1.2), xticks=(0, 0.5, 1), xlabel="probability")
    axes[1, 0].invert_yaxis()
    axes[1, 0].tick_params(labelsize=8)
    axes[1, 0].set_box_aspect(1)
    draw_row(axes[1], image, labels, objects)
    for axis in [*axes[0], *axes[1, 1:]]:
        axis.set(xticks=[], yticks=[])
    for axis, text in zip(axes[:, 0], ("truth", "answers"), strict=True):
        axis.set_ylabel(text, fontsize=10, fontweight="bold")
    handles = [Patch(color=color) for color in COLORS]
    figure.legend(
        handles, SHAPES, loc="outside lower center", ncols=len(SHAPES), frameon=False
    )
    axes[1, 3].set_xlabel("a color for each object", fontsize=8)
    axes[1, 1].set_xlabel("a color for each class", fontsize=8)
    return figure


def main():
    """Trains two models, reads a third, prints scores and draws one image."""
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    path = script_arguments.written_by("shapes_masks.py", arguments.detector)
    detector = keras.saving.load_model(path)
    # As `shapes_masks.py` makes its images, other ones.
    shapes = data.Shapes(
        image_size=IMAGE_SIZE,
        num_objects=(1, 4),
        shapes=SHAPES,
        max_overlap=0.3,
        noise=8.0,
        seed=arguments.seed + 1,
    )
    train, images = read_examples(shapes, 0, arguments.images)
    held_out, shown = read_examples(shapes, arguments.images, arguments.held_out)
    stages = [arguments.width * 2**stage for stage in range(3)]
    classifier = models.build_cnn_self_attention(
        image_size=IMAGE_SIZE, num_classes=len(SHAPES), hidden_dims=stages
    )
    segmenter = models.build_unet(
        image_size=IMAGE_SIZE,
        hidden_dims=stages,
        padding="same",
        num_channels=3,
        num_classes=1 + len(SHAPES),
        dropout=0.0,
    )
    fit(classifier, images, largest_shapes(train), "classifier", arguments)
    labels = np.stack([each.labels for each in train])
    fit(segmenter, images, labels, "segmenter", arguments)
    logits = classifier.predict(shown, batch_size=50, verbose=0)
    segmented = segmenter.predict(shown, batch_size=50, verbose=0)
    found = detector.predict(shown, batch_size=8, verbose=0)
    report(held_out, logits, segmented, found)

    number = choose(held_out)
    probabilities = np.exp(logits[number] - logits[number].max())
    figure = plot_tasks(
        held_out[number],
        probabilities / probabilities.sum(),
        segmented[number].argmax(-1),
        answers(found, number),
    )
    save_figure(figure, arguments.run_dir / "four_tasks.png")
    print(f"Picture: {arguments.run_dir / 'four_tasks.png'}")


if __name__ == "__main__":
    main()
