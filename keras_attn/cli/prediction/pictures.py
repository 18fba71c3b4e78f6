"""Predictions for images: classes, masks, objects.

Legend: h and w pixels of a file, H and W pixels of an input.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.prediction.drawn import (
    save_classes,
    save_objects,
    save_png,
    targets_in,
)
from keras_attn.cli.prediction.inputs import list_files
from keras_attn.cli.prediction.network import Network
from keras_attn.cli.prediction.texts import predicted
from keras_attn.cli.terminal import in_parts, working
from keras_attn.data.images.geometry import fit_into, fitting_scale, normalization
from keras_attn.data.images.image_files import read_image
from keras_attn.data.images.instance_masks import encode_mask
from keras_attn.export.signature_info import IMAGE_BYTES
from keras_attn.models import image_preprocessing
from keras_attn.ops.instance_masks import masks_in_image

_SIDES = ("left", "top", "right", "bottom")


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
    for part in in_parts(files, network.rows_of(batch_size), "Predicting"):
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
) -> Iterator[dict[str, Any]]:
    """The file of each image, its mask, and the share of each class in it.

    Args:
        network: The model.
        sources: See `list_files`.
        folder: Where to write masks, PNG files of the size of their images whose
            numbers are the classes. None writes none.
        drawn: Where to write the images with their masks in color. None writes none.
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
    for number, (path, image, labels) in enumerate(label_maps(network, files)):
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
    network: Network, files: Sequence[Path]
) -> Iterator[tuple[Path, np.ndarray, np.ndarray]]:
    """Each file, its image, and the class of each of its pixels, uint8 (H, W).

    Args:
        network: The model.
        files: The images.
    """
    for path, image, fitted, size in _fitted(network, files):
        logits = network({network.image_input: fitted})
        labels = np.asarray(logits)[0].argmax(-1).astype(np.uint8)
        height, width = image.shape[:2]
        if size is not None:
            # What was padded is cut off, and the rest is as large as the image.
            picture = Image.fromarray(labels[: size[0], : size[1]])
            nearest = Image.Resampling.NEAREST
            labels = np.asarray(picture.resize((width, height), nearest))
        yield path, image, labels


def predict_objects(
    network: Network,
    sources: Sequence[str],
    *,
    min_score: float,
    as_lists: bool,
    drawn: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """The objects of each image, with boxes in pixels of the file.

    An object of a model with masks has a `segmentation`, COCO's run lengths in pixels
    of the file; if a row is an object, as JSON.

    Args:
        network: The model.
        sources: See `list_files`.
        min_score: Smallest score of an object.
        as_lists: Whether a row is an image with a list of its objects; otherwise it is
            an object.
        drawn: Where to write the images with their objects. None writes none.
    """
    files = list_files(sources)
    pictures = targets_in(drawn, files, "--save-images") if drawn else []
    for number, (path, image, fitted, size) in enumerate(_fitted(network, files)):
        found = network({network.image_input: fitted})
        objects = _objects(network.result, found, image.shape[:2], size, min_score)
        if pictures:
            names = network.result.class_names
            save_objects(pictures[number], image, objects, names)
        if as_lists:
            yield {"file": str(path), "objects": objects}
            continue
        for each in objects:
            if "segmentation" in each:
                each["segmentation"] = json.dumps(each["segmentation"])
            yield {"file": str(path), **each}


def _objects(
    result: Result,
    found: Mapping[str, np.ndarray],
    image_size: tuple[int, int],
    size: tuple[int, int] | None,
    min_score: float,
) -> list[dict[str, Any]]:
    """The objects of an image.

    Args:
        result: What the model was fine-tuned to.
        found: The outputs for one image.
        image_size: h and w of the file.
        size: h and w of the image in the input; None = the same.
        min_score: Smallest score of an object.
    """
    height, width = image_size
    kept = (found["classes"][0] >= 0) & (found["scores"][0] >= min_score)
    boxes, scores, classes = (
        np.asarray(found[name])[0][kept] for name in ("boxes", "scores", "classes")
    )
    scale = np.array(size or image_size) / image_size
    boxes = boxes / np.tile(scale[::-1], 2)
    objects: list[dict[str, Any]] = []
    for box, score, label in zip(boxes, scores, classes, strict=True):
        sides = np.clip(box, 0, [width, height] * 2)
        places = [round(float(side), 2) for side in sides]
        objects.append(
            {
                "label": result.class_names[int(label)],
                "score": float(f"{float(score):.6g}"),
                **dict(zip(_SIDES, places, strict=True)),
            }
        )
    if "masks" in found:
        masks = np.asarray(found["masks"])[0][kept]
        aligned = result.aligned_masks
        pasted = masks_in_image(masks, boxes, image_size, aligned)
        for each, mask in zip(objects, pasted, strict=True):
            each["segmentation"] = encode_mask(mask)
    return objects


def _fitted(
    network: Network, files: Sequence[Path]
) -> Iterator[tuple[Path, np.ndarray, np.ndarray, tuple[int, int] | None]]:
    """Each file, its image, the input (1, H, W, C), and the image's size in it."""
    for (path,) in in_parts(files, 1, "Predicting"):
        image = read_image(path, network.result.channels)
        fitted, size = fitted_image(network.result, image)
        yield path, image, fitted[None], size


def fitted_image(
    result: Result, image: np.ndarray
) -> tuple[np.ndarray, tuple[int, int] | None]:
    """An image as an input, (H, W, C), and its own size in it.

    As in training: the aspect ratio is kept, and the rest is padded.

    Args:
        result: What the model was fine-tuned to: its size and normalization.
        image: Pixels 0 to 255, (h, w, C).
    """
    mean, deviation = normalization(result.normalize, result.channels)
    example = {"image": image.astype(np.float32)}
    size = None
    if result.image_size is not None:
        wanted = (result.image_size[0], result.image_size[1])
        scale = np.asarray(fitting_scale(image.shape[:2], wanted, True))
        height, width = np.rint(scale * image.shape[:2]).astype(int).tolist()
        size = (height, width)
        example = fit_into(example, wanted, True, fill=mean)
    inputs = (np.asarray(example["image"]) - mean) / deviation
    return np.asarray(inputs, np.float32), size
