"""`preprocess_input` and `decode_predictions`, as Keras' applications have them.

Legend: B batch, H and W rows and columns, C classes.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn.checks.indices import known_values
from keras_attn.checks.inputs import MOST_NORMALIZED
from keras_attn.class_predictions import decode_predictions as decode
from keras_attn.models.parts.preprocessing import image_preprocessing


def preprocess_input(x: Any, model: keras.Model | Mapping[str, Any]) -> Any:
    """Scales and normalizes images as a model takes them, without resizing.

    As `keras.applications.<model>.preprocess_input`, for images of the model's size,
    such as `keras.utils.load_img(path, target_size=(224, 224))` reads. The layer
    `image_preprocessing(model)` also resizes and crops, as `preprocessing` says.

    Args:
        x: Pixels 0 to 255, (B, H, W, C) or (H, W, C), integers or floats, of an image
            of Pillow, an array, or a tensor of the backend.
        model: A model with `preprocessing`, such as `create` and `load_checkpoint`
            return, or the preprocessing itself.

    Returns:
        float32 of the same shape: a NumPy array of an array, otherwise a tensor, such
        as in `dataset.map`.

    Raises:
        ValueError: If the model has no preprocessing, or `x` are not images of its
            channels, or are scaled already.

    Example:
        ```python
        import numpy as np
        from keras_attn import models

        model = models.create("vit_tiny_patch16", image_size=32, num_layers=1)
        photos = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3))
        logits = model.predict_on_batch(models.preprocess_input(photos, model))
        models.decode_predictions(logits, model, top=3)  # [[(7, "7", 0.02), …], …]
        ```
    """
    layer = image_preprocessing(model)
    is_array = not ops.is_tensor(x) and not isinstance(x, keras.KerasTensor)
    pixels = np.asarray(x) if is_array else x
    mean, std = (np.asarray(each, "float64") for each in (layer.mean, layer.std))
    # Of TensorFlow's shapes, even the rank may be unknown.
    if getattr(pixels.shape, "rank", 0) is not None:
        _check_shape(tuple(pixels.shape), len(mean) if mean.ndim else None)
    _check_pixels(known_values(pixels))
    factor, shift = np.float32(layer.scale / std), np.float32(-mean / std)
    if is_array:
        return pixels.astype("float32") * factor + shift
    return ops.cast(pixels, "float32") * factor + shift


def _check_pixels(known: np.ndarray | None) -> None:
    """Raises for scaled images; what bicubic resizing adds at an edge is allowed."""
    if known is None or not known.size:
        return
    low, high = float(known.min()), float(known.max())
    is_share = high <= 1 and (known != np.rint(known)).any()
    is_normalized = low < 0 and high <= MOST_NORMALIZED
    if is_share or is_normalized or low < -64 or high > 255 + 64:
        raise ValueError(
            "`x` must be pixels from 0 to 255, as they are in files. "
            f"Received: x from {low:g} to {high:g}"
        )


def _check_shape(shape: tuple[int | None, ...], channels: int | None) -> None:
    known = {None, channels or shape[-1]} if shape else set()
    if len(shape) not in (3, 4) or shape[-1] not in known:
        raise ValueError(
            f"`x` must be images, (rows, columns, {channels or 'channels'}), or a "
            f"batch of them. Received: x of shape {shape}"
        )


def decode_predictions(
    preds: Any, model: keras.Model, top: int = 5, from_logits: bool | None = None
) -> list[list[tuple[int, str, float]]]:
    """The classes with the highest scores of each row, the best first.

    As `keras.applications.<model>.decode_predictions`, with the number of the class in
    place of WordNet's, and of logits, which our models return, as of probabilities.

    Args:
        preds: Logits or probabilities (B, C), as `model.predict` returns them: one
            output, of a model of several.
        model: A model with `class_names`, such as `load_checkpoint` returns; without
            them, a name is the number as text.
        top: How many classes of each row; all, if there are fewer.
        from_logits: Whether `preds` are logits, of which the softmax is taken.
            None = unless each row is of probabilities, whose sum is 1.

    Returns:
        A list for each row, of the number, name and probability of each class.

    Raises:
        ValueError: If an argument is wrong, or there are not as many classes as names.
    """
    names = getattr(model, "class_names", None)
    array = preds if isinstance(preds, Mapping) else ops.convert_to_numpy(preds)
    return decode(array, names, top, from_logits)
