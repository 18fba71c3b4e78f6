"""Predictions for images: classes, masks, objects.

Legend: h and w pixels of a file, H and W pixels of an input.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.prediction.drawn import (
    SIDES,
    save_classes,
    save_objects,
    save_png,
    targets_in,
)
from keras_attn.cli.prediction.image_inputs import Outputs, Tiling, predict_images
from keras_attn.cli.prediction.inputs import list_files
from keras_attn.cli.prediction.network import Network
from keras_attn.cli.prediction.texts import predicted
from keras_attn.cli.terminal import in_parts, working
from keras_attn.data.images.image_files import read_image
from keras_attn.data.images.instance_masks import encode_mask
from keras_attn.export.signature_info import IMAGE_BYTES
from keras_attn.models import image_preprocessing
from keras_attn.ops.instance_masks import masks_in_image
from keras_attn.ops.tiles import average_tiles, join_boxes


def predict_classes(
    network: Network, sources: Sequence[str], *, batch_size: int, all_scores: bool
) -> Iterator[dict[str, Any]]:
    """The file, class and probability of each image.

    Args:
        network: The model.
        sources: See `list_files`.
        batch_size: Images per step.
        all_scores: Whether each class has a column.
    """
    result = network.result
    for path, output in class_outputs(network, list_files(sources), batch_size):
        yield {"file": str(path), **predicted(result, output, all_scores)}


def class_outputs(
    network: Network, files: Sequence[Path], batch_size: int
) -> Iterator[tuple[Path, np.ndarray]]:
    """Each image, and the outputs of a classifier for it, (C,).

    Args:
        network: The model.
        files: The images.
        batch_size: Images per step.
    """
    result = network.result
    takes_bytes = network.image_input == IMAGE_BYTES
    layer = None if takes_bytes else image_preprocessing(result.preprocessing or {})
    for part in in_parts(files, network.choose_batch_size(batch_size), "Predicting"):
        if layer is None:
            images = np.array([path.read_bytes() for path in part], object)
        else:
            images = np.concatenate(
                [
                    np.asarray(layer(read_image(path, result.channels)[None]))
                    for path in part
                ]
            )
        yield from zip(part, network({network.image_input: images}), strict=True)


def predict_masks(
    network: Network,
    sources: Sequence[str],
    *,
    folder: Path | None,
    drawn: Path | None = None,
    tiling: Tiling | None = None,
) -> Iterator[dict[str, Any]]:
    """The file of each image, its mask, and the share of each class in it.

    Args:
        network: The model.
        sources: See `list_files`.
        folder: Where to write masks, PNG files of the size of their images whose
            numbers are the classes. None writes none.
        drawn: Where to write the images with their masks in color. None writes none.
        tiling: How images are cut into tiles; see `label_maps`.
    """
    files = list_files(sources)
    names = network.result.class_names
    targets = targets_in(folder, files, "--masks") if folder else []
    pictures = targets_in(drawn, files, "--save-images") if drawn else []
    if folder and drawn and folder.resolve() == drawn.resolve():
        raise ValueError(
            "--masks and --save-images must be different folders: their files have the "
            f"same names. Received: {str(folder)!r} for both"
        )
    if targets or pictures:
        # No file is written if there is a bad one among the images.
        with working("Checking the images"):
            for path in files:
                read_image(path, network.result.channels)
    for number, (path, image, labels) in enumerate(label_maps(network, files, tiling)):
        row: dict[str, Any] = {"file": str(path)}
        if targets:
            save_png(targets[number], labels)
            row["mask"] = str(targets[number])
        if pictures:
            save_classes(pictures[number], image, labels, names)
        counts = np.bincount(labels.reshape(-1), minlength=len(names)) / labels.size
        pairs = zip(names, counts, strict=True)
        yield row | {f"share_{name}": round(float(x), 6) for name, x in pairs}


def label_maps(
    network: Network, files: Sequence[Path], tiling: Tiling | None = None
) -> Iterator[tuple[Path, np.ndarray, np.ndarray]]:
    """Each file, its image, and the class of each of its pixels, uint8 (h, w).

    Args:
        network: The model.
        files: The images.
        tiling: How they are cut into tiles, whose logits are averaged where they
            overlap.
    """
    for path, image, tiles, outputs in predict_images(network, files, tiling):
        if len(tiles) == 1:
            ((logits, size),) = outputs
            labels = logits.argmax(-1).astype(np.uint8)
            if size is not None:
                # What was padded is cut off, and the rest is as large as the image.
                picture = Image.fromarray(labels[: size[0], : size[1]])
                nearest = Image.Resampling.NEAREST
                labels = np.asarray(picture.resize(image.shape[1::-1], nearest))
        else:
            height, width = tiles[0].bottom, tiles[0].right
            scores = (_stretched(*each, (height, width)) for each in outputs)
            rows = average_tiles(tiles, scores)
            labels = np.concatenate([x.argmax(-1).astype(np.uint8) for x in rows])
        yield path, image, labels


def _stretched(
    logits: np.ndarray, size: tuple[int, int] | None, tile_size: tuple[int, int]
) -> np.ndarray:
    """Logits as large as their tile: each pixel has the logits of the nearest one."""
    if size in (None, tile_size):
        return logits[: tile_size[0], : tile_size[1]]
    rows, columns = (
        (2 * np.arange(large) + 1) * small // (2 * large)
        for small, large in zip(size, tile_size, strict=True)
    )
    return logits[rows][:, columns]


def predict_objects(
    network: Network,
    sources: Sequence[str],
    *,
    min_score: float,
    as_lists: bool,
    drawn: Path | None = None,
    tiling: Tiling | None = None,
) -> Iterator[dict[str, Any]]:
    """The objects of each image, with boxes in pixels of the file.

    An object of a model with masks has a `segmentation`, COCO's run lengths in pixels
    of the file; if a row is an object, as JSON.

    Args:
        network: The model.
        sources: See `list_files`.
        min_score: Smallest score of an object.
        as_lists: Whether a row is an image with a list of its objects; otherwise it is
            an object, or an image without objects, with None for all but its file.
        drawn: Where to write the images with their objects. None writes none.
        tiling: How images are cut into tiles; see `join_boxes`.
    """
    files = list_files(sources)
    pictures = targets_in(drawn, files, "--save-images") if drawn else []
    result = network.result
    for number, each in enumerate(predict_images(network, files, tiling)):
        objects, has_masks = _objects(result, each, min_score)
        if pictures:
            save_objects(pictures[number], each.image, objects, result.class_names)
        if as_lists:
            yield {"file": str(each.path), "objects": objects}
            continue
        names = ("label", "score", *SIDES, *(["segmentation"] if has_masks else []))
        # An image without objects is a line, too: it was looked at.
        for one in objects or [dict.fromkeys(names)]:
            if one.get("segmentation") is not None:
                one["segmentation"] = json.dumps(one["segmentation"])
            yield {"file": str(each.path), **one}


def _objects(
    result: Result, image: Outputs, min_score: float
) -> tuple[list[dict[str, Any]], bool]:
    """The objects of an image, each once for several tiles; whether they have masks.

    Args:
        result: What the model was fine-tuned to.
        image: What the model says of it.
        min_score: Smallest score of an object.
    """
    names = ("boxes", "scores", "classes")
    parts: list[list[np.ndarray]] = []
    masks: list[np.ndarray] = []  # Of each object, in its tile or in its box.
    has_masks = False
    for tile, (found, size) in zip(image.tiles, image.outputs, strict=True):
        kept = (found["classes"] >= 0) & (found["scores"] >= min_score)
        boxes, scores, classes = (found[name][kept] for name in names)
        sides = tile.bottom - tile.top, tile.right - tile.left
        scale = np.array(size or sides) / sides
        boxes = boxes / np.tile(scale[::-1], 2)
        parts.append([boxes, scores, classes, np.full(len(boxes), len(parts))])
        has_masks = "masks" in found
        masks += list(found["masks"][kept]) if has_masks else []
    boxes, scores, classes, numbers = map(np.concatenate, zip(*parts, strict=True))
    tiles = np.array(image.tiles)[numbers]
    limits = tiles[:, 2:] - tiles[:, :2]
    shown = np.clip(boxes, 0, np.tile(limits[:, ::-1], 2))
    shown = shown + np.tile(tiles[:, 1::-1], 2)
    order = range(len(boxes))
    if len(image.tiles) > 1:
        order = join_boxes(image.tiles, shown, scores, classes, numbers)
    objects: list[dict[str, Any]] = []
    for row in order:
        places = [round(float(side), 2) for side in shown[row]]
        objects.append(
            {
                "label": result.class_names[int(classes[row])],
                "score": float(f"{float(scores[row]):.6g}"),
                **dict(zip(SIDES, places, strict=True)),
            }
        )
        if has_masks:
            top, left, bottom, right = image.tiles[numbers[row]]
            (mask,) = masks_in_image(
                masks[row][None],
                boxes[row][None],
                (bottom - top, right - left),
                result.aligned_masks,
            )
            whole = np.zeros(image.image.shape[:2], bool)
            whole[top:bottom, left:right] = mask
            objects[-1]["segmentation"] = encode_mask(whole)
    return objects, has_masks
