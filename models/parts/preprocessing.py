"""The preprocessing of a checkpoint as a layer, and in the graph of a model.

Legend: B batch, h and w rows and columns of the images that are given.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_attn.file_reading import shown
from keras_attn.layers.embeddings.image_preprocessing import ImagePreprocessing
from keras_attn.models.parts.functional import Functional

# PIL's codes, which transformers writes.
_RESAMPLING = {1: "lanczos", 2: "bilinear", 3: "bicubic"}
# Up to this size ConvNeXt's processor crops; larger images are only resized.
_CROPPED_BELOW = 384


def image_preprocessing(
    model: keras.Model | Mapping[str, Any], *, name: str = "image_preprocessing"
) -> ImagePreprocessing:
    """The layer that a model's `preprocessing` describes.

    Args:
        model: A model with `preprocessing`, such as `load_checkpoint` returns, or the
            fields themselves: those of transformers' `preprocessor_config.json`, and
            `crop_offset` and `passes` of `ImagePreprocessing`.
        name: Name of the layer.

    Raises:
        ValueError: If the model has no preprocessing, or a field is missing or asks for
            something else than resizing, cropping the center, scaling and normalizing.
    """
    fields = model
    if not isinstance(model, Mapping):
        fields = getattr(model, "preprocessing", None)
        if fields is None:
            raise ValueError(
                "`model` must have a `preprocessing`, as models of `load_checkpoint` "
                "have whose folder says it; otherwise make an `ImagePreprocessing` "
                f"yourself. Received: model={model!r} without it"
            )
    kind = fields.get("image_processor_type", fields.get("feature_extractor_type"))
    kind = kind if isinstance(kind, str) else ""
    is_clip = kind.startswith("CLIP")
    size = crop_size = None
    if fields.get("do_resize", True):
        size = _size_of(fields, "size", is_clip)
    if fields.get("do_center_crop", is_clip):
        crop_size = _sides(fields, "crop_size")
    if kind.startswith("ConvNext") and isinstance(size, int):
        size, crop_size = _convnext(size, fields.get("crop_pct") or 224 / 256)
    options: dict[str, Any] = {
        key: fields[key] for key in ("crop_offset", "passes") if key in fields
    }
    if fields.get("do_normalize", True):
        options |= {"mean": _numbers(fields, "image_mean")}
        options |= {"std": _numbers(fields, "image_std")}
    scale = 1.0
    if fields.get("do_rescale", True):
        scale = fields.get("rescale_factor", 1 / 255)
    if size is not None:
        code = fields.get("resample", 3 if is_clip else 2)
        if code not in _RESAMPLING:
            raise _unsupported("resample", fields, "1, 2 or 3 (lanczos to bicubic)")
        options["resample"] = _RESAMPLING[code]
    if fields.get("do_pad"):
        raise _unsupported("do_pad", fields, "false")
    return ImagePreprocessing(
        size, crop_size=crop_size, scale=scale, name=name, **options
    )


def with_preprocessing(
    model: keras.Model,
    preprocessing: ImagePreprocessing | None = None,
    *,
    image_size: tuple[int | None, int | None] = (None, None),
    name: str | None = None,
) -> keras.Model:
    """A model of images as they are in files, which shares its layers with a model.

    Args:
        model: A model of one input, `images` (B, H, W, C).
        preprocessing: The layer to put before it. Default: the one that
            `model.preprocessing` describes.
        image_size: Rows and columns of the images, None = any. Exported to LiteRT, the
            model takes one size.
        name: Name of the new model. Default: the name of `model`.

    Returns:
        A model from uint8 `images` (B, h, w, C), pixels 0 to 255, to the outputs of
        `model`. Arrays of other types must have whole numbers from 0 to 255.

    Raises:
        ValueError: If `model` takes other inputs, has no preprocessing, or takes images
            of a different size than the preprocessing returns.

    Example:
        ```python
        encoder = load_checkpoint("vit-base-patch16-224")
        served = with_preprocessing(encoder)
        export(served, "encoder")  # Takes photographs of any size.
        ```
    """
    inputs = getattr(model, "inputs", None) or ()
    if len(inputs) != 1 or len(inputs[0].shape) != 4:
        raise ValueError(
            "`model` must take one input, images (B, H, W, C), as the image tower of "
            "CLIP does, `build_clip_image_encoder`. Received: a model with the inputs "
            f"{[tuple(each.shape) for each in inputs]}"
        )
    layer = preprocessing or image_preprocessing(model)
    shape = (*image_size, inputs[0].shape[-1])
    images: Any = keras.Input(shape, dtype="uint8", name="images")
    processed = layer(images)
    sides = zip(processed.shape[1:3], inputs[0].shape[1:3], strict=True)
    if any(None not in pair and pair[0] != pair[1] for pair in sides):
        raise ValueError(
            "`preprocessing` must return images of the size that `model` takes, "
            f"{tuple(inputs[0].shape[1:3])}. Received: {tuple(processed.shape[1:3])}"
        )
    structure = model.input
    if isinstance(structure, Mapping):
        processed = dict.fromkeys(structure, processed)
    elif isinstance(structure, Sequence):
        processed = [processed]
    served = Functional(images, model(processed), name=name or model.name)
    served.class_names = getattr(model, "class_names", None)
    return served


def _size_of(fields: Mapping[str, Any], name: str, keeps_shape: bool) -> Any:
    """One number for the shorter edge, or two sides."""
    size = fields.get(name)
    if isinstance(size, Mapping) and set(size) == {"shortest_edge"}:
        return size["shortest_edge"]
    if isinstance(size, int) and keeps_shape:
        return size
    return _sides(fields, name)


def _sides(fields: Mapping[str, Any], name: str) -> list[int]:
    size = fields.get(name)
    if isinstance(size, int):
        return [size, size]
    if isinstance(size, Mapping) and set(size) == {"height", "width"}:
        return [size["height"], size["width"]]
    raise _unsupported(name, fields, "a number, shortest_edge, or height and width")


def _convnext(size: int, share: float) -> tuple[Any, Any]:
    if size >= _CROPPED_BELOW:
        return [size, size], None
    return int(size / share), size


def _numbers(fields: Mapping[str, Any], name: str) -> Any:
    if fields.get(name) is None:
        raise _unsupported(name, fields, "the numbers of the channels")
    return fields[name]


def _unsupported(name: str, fields: Mapping[str, Any], expected: str) -> ValueError:
    return ValueError(
        f"`{name}` of a preprocessing must be {expected}. "
        f"Received: {name}={shown(fields.get(name))}"
    )
