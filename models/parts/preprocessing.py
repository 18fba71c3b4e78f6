"""The preprocessing of a checkpoint as a layer, and in the graph of a model.

Legend: B batch, h and w rows and columns of the images that are given.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_attn.files.hub import local_folder
from keras_attn.files.hub_names import naming_hub_folders
from keras_attn.layers.embeddings.image_preprocessing import ImagePreprocessing
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.preprocessing_fields import read_steps


@naming_hub_folders()
def image_preprocessing(
    model: keras.Model | Mapping[str, Any] | str | os.PathLike,
    *,
    name: str = "image_preprocessing",
) -> ImagePreprocessing:
    """The layer that a model's `preprocessing` describes.

    Args:
        model: A model with `preprocessing`, such as `load_checkpoint` returns; the
            folder of one, or its name on the hub, `hf://owner/name[@revision]`, of
            which no weights are read; or the fields of transformers'
            `preprocessor_config.json` themselves, whose `image_processor_type` says
            what is left out, and `crop_offset`, `passes` and `covers` of
            `ImagePreprocessing`.
        name: Name of the layer.

    Raises:
        ValueError: If the model has no preprocessing, or a field is missing or asks for
            something else than resizing, cropping the center, scaling and normalizing.
        FileNotFoundError, PermissionError, ConnectionError: Of a name on the hub, as in
            `load_checkpoint`.
    """
    fields: Mapping[str, Any] | None
    if isinstance(model, str | os.PathLike):
        from keras_attn.models.checkpoints.description import read_preprocessing

        path = local_folder(model, "preprocessing")
        fields = read_preprocessing(path) if path.is_dir() else None
        if fields is None:
            raise ValueError(
                "`model` must be a folder that says how images are prepared, in "
                "preprocessor_config.json or in its configuration. "
                f"Received: model={str(path)!r}"
            )
    elif isinstance(model, Mapping):
        fields = model
    else:
        fields = getattr(model, "preprocessing", None)
        if fields is None:
            raise ValueError(
                "`model` must have a `preprocessing`, as models of `load_checkpoint` "
                "have whose folder says it; otherwise make an `ImagePreprocessing` "
                f"yourself. Received: model={model!r} without it"
            )
    steps = read_steps(fields)
    options = {
        key: fields[key] for key in ("crop_offset", "passes", "covers") if key in fields
    }
    return ImagePreprocessing(name=name, **steps._asdict(), **options)


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
        import numpy as np
        from keras_attn import layers, models

        vit = models.build_vit(num_layers=1, hidden_dim=64, num_heads=4, image_size=32)
        resize = layers.ImagePreprocessing(32, crop_size=32, mean=0.5, std=0.5)
        served = models.with_preprocessing(vit, resize)
        served(np.random.randint(0, 256, (1, 48, 64, 3), "uint8"))  # (1, 1000)
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
