"""How images become the inputs of a model, for all tasks of images."""

from typing import Any

from keras_attn.cli.finetuning.source import Source
from keras_attn.cli.samples import NORMALIZATIONS
from keras_attn.data import RandomMirror
from keras_attn.models.parts.registry import entry

DEFAULT_SIZE = 224


def pixels_of(source: Source, given: str | None) -> str:
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


def augmentations(augment: bool) -> list[Any]:
    """What changes training images at random: left and right are exchanged."""
    return [RandomMirror()] if augment else []
