"""The scores of images: classes, masks and objects."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from keras_attn.cli.finetuning.kinds import Kind
from keras_attn.cli.finetuning.mask_classes import classes_file, mask_classes, reordered
from keras_attn.cli.finetuning.object_data import (
    find_splits,
    get_common_folder,
    read_objects,
)
from keras_attn.cli.finetuning.objects import figures_of, object_scores
from keras_attn.cli.finetuning.pixels import validation_kind
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.prediction.network import Network
from keras_attn.cli.prediction.pictures import class_outputs, label_maps
from keras_attn.cli.prediction.scores import (
    Evaluation,
    Row,
    count_confusion,
    score_classes,
)
from keras_attn.cli.terminal import note
from keras_attn.data import detection_dataset, read_image_classes, read_segmentation
from keras_attn.data.images.image_files import read_image
from keras_attn.ops.boxes import pairwise_iou

_MATCH = 0.5  # IoU from which a box is found, for the worst images.


def score_pictures(network: Network, settings: Settings, count: int) -> Evaluation:
    """The scores of images with a class each."""
    data = read_image_classes(settings.data, network.result.class_names or None)
    data.check()
    for line in [*data.notes, *data.skipped.values()]:
        note(line)
    outputs = np.stack(
        [x for _, x in class_outputs(network, data.paths, settings.batch_size)]
    ).reshape(len(data), -1)
    found = score_classes(
        "image_classification",
        data.class_names,
        data.classes,
        outputs,
        [{"file": str(path)} for path in data.paths],
        f"{len(data):,} images",
        count,
    )
    if found.worst:
        found.pictures["worst.png"] = lambda: _draw_wrong(found.worst)
    return found


def _draw_wrong(worst: Sequence[Row]) -> Any:
    from keras_attn.cli.prediction.drawn import draw_grid

    return draw_grid(
        [read_image(Path(row["file"])) for row in worst],
        [
            [
                Path(row["file"]).name,
                row["label"],
                f"predicted {row['score']:.2f} {row['predicted']}",
            ]
            for row in worst
        ],
    )


def score_pixels(
    network: Network, settings: Settings, kind: Kind, count: int
) -> Evaluation:
    """The scores of masks, in the size of their files."""
    result = network.result
    names = result.class_names
    if classes_file(settings) is None and result.mask_values is not None:
        palette: Any = {
            tuple(value) if isinstance(value, list) else value: label
            for value, label in result.mask_values
        }
    else:
        named, palette = mask_classes(settings, kind)
        if classes_file(settings) is not None:
            palette = reordered(named, palette, names)
    if settings.images is None and settings.masks is None:
        # Of a data set with splits, not what was trained on.
        kind = validation_kind(settings, kind) or kind
    data = read_segmentation(kind.images, kind.masks, names, palette=palette)
    data = replace(data, channels=result.channels).check()
    for line in data.notes:
        note(line)
    confusion = np.zeros((len(names), len(names)), np.int64)
    shares = []
    files = [image for image, _ in data.pairs]
    for index, (_, _, predicted) in enumerate(label_maps(network, files)):
        _, labels = data.read(index)
        known = labels < len(names)
        part = count_confusion(labels[known], predicted[known], len(names))
        confusion += part
        shares.append(float(np.trace(part) / max(part.sum(), 1)))
    hits = np.diag(confusion)
    either = confusion.sum(0) + confusion.sum(1) - hits
    ious = {
        f"iou_{name}": float(hits[number] / either[number])
        for number, name in enumerate(names)
        if either[number]
    }
    figures = {
        "mean_iou": float(np.mean(list(ious.values()) or [0.0])),
        "pixel_accuracy": float(hits.sum() / max(confusion.sum(), 1)),
        **ious,
    }
    order = np.argsort(shares, kind="stable")[:count]
    worst = [
        {"file": str(files[row]), "pixel_accuracy": round(shares[row], 6)}
        for row in order
    ]

    def draw(row: int) -> Any:
        from keras_attn.viz import plot_segmentation

        image, labels = data.read(row)
        ((_, _, predicted),) = label_maps(network, [files[row]])
        return plot_segmentation(
            image[None], labels[None], predicted[None], class_names=names, errors=True
        )

    pictures = {
        f"worst_{place}_{files[row].stem}.png": (lambda row=row: draw(int(row)))
        for place, row in enumerate(order, 1)
    }
    what = f"{len(files):,} images with masks in {kind.images}"
    return Evaluation(result.task, what, figures, names, confusion, worst, pictures)


def score_objects(
    network: Network, settings: Settings, kind: Kind, count: int, min_score: float
) -> Evaluation:
    """The scores of boxes, and of the masks of objects."""
    result = network.result
    has_masks = result.task == "instance_segmentation"
    # Of a data set with splits, not what was trained on.
    _, split = find_splits(settings, kind)
    data = read_objects(settings.data, kind, split, result.class_names).check()
    for line in data.notes:
        note(line)
    scores = object_scores(result.class_names, has_masks, result.aligned_masks)
    sides = result.image_size or [0, 0]
    rows = network.choose_batch_size(1)

    def batches() -> Iterator[tuple[Any, Any]]:
        for pictures, truth in detection_dataset(
            data,
            image_size=(sides[0], sides[1]),
            batch_size=rows,
            normalize=result.normalize,
            masks=has_masks,
            crowds=True,  # mAP does not count what is found in them.
        ):
            arrays = {name: np.asarray(value) for name, value in truth.items()}
            yield np.asarray(pictures), arrays

    wrong: list[int] = []
    for pictures, truth in batches():
        found = network({network.image_input: pictures})
        for each in scores.values():
            each.add(truth, found, pictures.shape[1:3])
        for row in range(len(pictures)):
            wrong.append(_count_wrong(truth, found, row, min_score))
    figures = figures_of(scores)
    order = [row for row in np.argsort(wrong, kind="stable")[::-1] if wrong[row]]
    files = [example.image_path for example in data.examples]
    worst = [
        {"file": str(files[row]), "missed_or_wrong": wrong[row]}
        for row in order[:count]
    ]

    def draw(row: int) -> Any:
        from keras_attn.viz import plot_detections

        pictures, truth = next(
            batch for number, batch in enumerate(batches()) if number == row // rows
        )
        found = network({network.image_input: pictures})
        place = slice(row % rows, row % rows + 1)
        return plot_detections(
            pictures[place],
            {name: value[place] for name, value in found.items()},
            {name: value[place] for name, value in truth.items()},
            class_names=result.class_names,
            min_score=min_score,
            aligned_masks=result.aligned_masks,
        )

    drawn = {
        f"worst_{place}_{files[row].stem}.png": (lambda row=row: draw(int(row)))
        for place, row in enumerate(order[:count], 1)
    }
    what = f"{len(files):,} images with {'masks' if has_masks else 'boxes'}"
    what += f" of {split}.txt" if kind.layout == "voc" and split == "val" else ""
    what += f" in {get_common_folder(data)}"
    return Evaluation(
        result.task, what, figures, list(result.class_names), None, worst, drawn
    )


def _count_wrong(truth: Row, found: Row, row: int, min_score: float) -> int:
    """True objects of an image that were not found, and objects that are none."""
    is_true = truth["classes"][row] >= 0
    if "is_crowd" in truth:
        is_true &= ~truth["is_crowd"][row].astype(bool)
    kept = (found["classes"][row] >= 0) & (found["scores"][row] >= min_score)
    true, classes = truth["boxes"][row][is_true], truth["classes"][row][is_true]
    boxes, labels = found["boxes"][row][kept], found["classes"][row][kept]
    if not len(true) or not len(boxes):
        return len(true) + len(boxes)
    overlaps = np.asarray(pairwise_iou(boxes, true), np.float64)
    overlaps[labels[:, None] != classes[None]] = 0
    matched = 0
    while overlaps.max() >= _MATCH:
        box, object_ = np.unravel_index(overlaps.argmax(), overlaps.shape)
        overlaps[box], overlaps[:, object_] = 0, 0
        matched += 1
    return len(true) + len(boxes) - 2 * matched
