"""Preprocessing of images, for all tasks of images."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.finetuning.source import Source
from keras_attn.cli.samples import NORMALIZATIONS
from keras_attn.data import RandomColors, RandomMirror, RandomQuarterTurns
from keras_attn.models.catalog.registry import entry

DEFAULT_SIZE = 224


def choose_pixels(source: Source, given: str | None) -> str:
    """The value range of images.

    Args:
        source: The model.
        given: `--pixels`.

    Returns:
        A key of `NORMALIZATIONS`.

    Raises:
        ValueError: If a model that Keras saved does not say it.
    """
    if given is not None:
        return given
    if source.path is None:
        text = " ".join(entry(source.name).card.inputs.values())
        return "imagenet" if "0.485" in text else "signed" if "0.5" in text else "unit"
    if source.has_own_policy:
        raise ValueError(
            "--pixels must be the value range of the images that MODEL was trained on, "
            f"{', '.join(NORMALIZATIONS)}. Received: {source.name!r}, a model saved by "
            "Keras, without --pixels"
        )
    return "imagenet"


def normalization_of(source: Source, given: str | None, what: str) -> str | None:
    """The `normalize` of data sets whose pixels keep their places.

    Args:
        source: The model.
        given: `--pixels`.
        what: What they are, for the message.

    Raises:
        ValueError: If it is another value range.
    """
    pixels = choose_pixels(source, given)
    if pixels not in ("imagenet", "unit", "bytes"):
        raise ValueError(
            f"--pixels must be imagenet, unit or bytes for {what}. "
            f"Received: --pixels {pixels}"
        )
    return None if pixels == "bytes" else pixels


def names_outside_backbone(model: Any) -> list[str]:
    """The names of a model's layers with weights that are in no stage of a backbone."""
    return [
        layer.name
        for layer in model.layers
        if layer.weights and not layer.name.startswith(("stem_", "stage_"))
    ]


def preprocessing_fields(
    pixels: str, size: tuple[int, int], channels: int
) -> dict[str, Any]:
    """The fields of a `preprocessor_config.json` that squeezes images to a size.

    Args:
        pixels: A key of `NORMALIZATIONS`.
        size: Rows and columns.
        channels: Number of channels.
    """
    mean, deviation = (
        list(each) if isinstance(each, tuple) else [each] * channels
        for each in NORMALIZATIONS[pixels]
    )
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": size[0], "width": size[1]},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": deviation,
    }


def image_shape(model: Any) -> tuple[int | None, int | None, int]:
    """Rows, columns and channels of a model's images.

    Raises:
        ValueError: If it takes other inputs.
    """
    inputs = model.inputs
    shape = tuple(inputs[0].shape)[1:]
    if len(inputs) != 1 or len(shape) != 3 or shape[-1] not in (1, 3):
        names = ", ".join(each.name for each in inputs)
        raise ValueError(
            "MODEL must take images (B, H, W, 1 or 3). Received: a model with the "
            f"inputs {names}"
        )
    return shape


def size_of_images(
    model: Any, given: tuple[int, int] | None, default: int | None = DEFAULT_SIZE
) -> tuple[int, int] | None:
    """Rows and columns of the inputs: the model's, the given ones, or the default.

    Raises:
        ValueError: If the model takes another size than the given one.
    """
    rows, columns, _ = image_shape(model)
    wanted = given or (None if default is None else (default, default))
    if rows is None or columns is None:
        return wanted
    if given is not None and given != (rows, columns):
        raise ValueError(
            f"--image-size must be {rows}x{columns}, the size of MODEL. "
            f"Received: --image-size {given[0]}x{given[1]}"
        )
    return rows, columns


class RandomCrop:
    """Cuts out a part of an image, of at least this share of it, at a random place.

    Its aspect ratio is the image's, times a random factor; what follows resizes it. As
    in Szegedy et al. 2015 (arXiv:1409.4842), but not as small.

    Args:
        smallest: The smallest share, in (0, 1].
        aspect: The largest factor of the aspect ratio.
    """

    def __init__(self, smallest: float = 1 / 3, aspect: float = 4 / 3):
        self.smallest = smallest
        self.aspect = aspect

    def __call__(self, example: Any, seed: tf.Tensor) -> Any:
        """Returns the example with a part of its image."""
        numbers = tf.random.stateless_uniform([4], seed)
        share = self.smallest + numbers[0] * (1 - self.smallest)
        factor = tf.exp((2 * numbers[1] - 1) * math.log(self.aspect) / 2)
        size = tf.shape(example["image"])[:2]
        sides = tf.sqrt(share) * tf.stack([factor, 1 / factor])
        whole = tf.cast(size, tf.float32)
        part = tf.clip_by_value(tf.round(tf.minimum(sides, 1.0) * whole), 1.0, whole)
        start = tf.cast(tf.floor(numbers[2:] * (whole - part + 1)), tf.int32)
        start = tf.minimum(start, size - tf.cast(part, tf.int32))
        end = start + tf.cast(part, tf.int32)
        image = example["image"][start[0] : end[0], start[1] : end[1]]
        return {**example, "image": image}


_ALL = ("segmentation", "detection", "instance_segmentation", "image_classification")
# Where only the whole image has a class, it may be cut and turned.
_AUGMENTATIONS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "mirror": (RandomMirror, _ALL),
    "vertical": (lambda: RandomMirror(0.0, 0.5), _ALL),
    "colors": (RandomColors, _ALL),
    "crop": (RandomCrop, ("image_classification",)),
    "turns": (RandomQuarterTurns, ("image_classification",)),
}


def augmentations(settings: Settings, task: str) -> list[Any]:
    """The random augmentations of training images.

    Args:
        settings: The command line.
        task: One of `kinds.TASKS`.

    Raises:
        ValueError: If one is unknown, or not for this task.
    """
    given = settings.augmentation
    if given is None:
        return [RandomMirror()] if settings.augment else []
    known = [name for name, (_, tasks) in _AUGMENTATIONS.items() if task in tasks]
    names = [part.strip() for part in given.split(",")]
    wrong = next((name for name in names if name not in known), None)
    if wrong is not None or len(set(names)) < len(names):
        raise ValueError(
            f"--augmentation must be different ones of {', '.join(known)} for {task}, "
            f"with commas between them. Received: --augmentation {given!r}"
        )
    return [_AUGMENTATIONS[name][0]() for name in names]
