"""The inputs of `keras-attn attention`: texts, token ids and images as arrays."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_attn.cli.opened_model import (
    OpenedModel,
    is_text_tokenizer,
    load_folder_tokenizer,
)

if TYPE_CHECKING:
    import numpy as np


class Example(NamedTuple):
    """One row of inputs and the labels of its tokens."""

    inputs: "dict[str, np.ndarray]"
    source_tokens: list[str]
    target_tokens: list[str] | None = None


def encode_text(
    opened: OpenedModel, text: str, text_pair: str | None, folder: Path | None
) -> Example:
    """Encodes a text or a pair, by the tokenizer in `folder` or beside the model."""
    tokenizer = load_folder_tokenizer(folder or opened.path)
    if not is_text_tokenizer(tokenizer):
        if text_pair is not None:
            raise ValueError(
                "--text-pair needs a tokenizer with special tokens, such as WordPiece. "
                f"Received: {type(tokenizer).__name__}"
            )
        return _example_of_ids(opened, tokenizer.encode(text), None, tokenizer)
    batch = tokenizer.encode_batch([text], None if text_pair is None else [text_pair])
    ids = batch["token_ids"][0].tolist()
    example = _example_of_ids(opened, ids, None, tokenizer)
    return example._replace(
        inputs={name: batch.get(name, array) for name, array in example.inputs.items()}
    )


def encode_ids(
    opened: OpenedModel, ids: str, target_ids: str | None, folder: Path | None
) -> Example:
    """Parses ids, labelled by the tokenizer in `folder` or by their numbers."""
    if opened.translator is not None:
        raise ValueError(
            "--ids is for models without a tokenizer; pass a text to the folder of a "
            f"translator. Received: {str(opened.path)!r}"
        )
    tokenizer = load_folder_tokenizer(folder) if folder else None
    targets = None if target_ids is None else _parse_ids("--translation", target_ids)
    return _example_of_ids(opened, _parse_ids("--ids", ids), targets, tokenizer)


def _parse_ids(option: str, text: str) -> list[int]:
    try:
        ids = [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        ids = []
    if not ids or not all(0 <= index < 2**31 for index in ids):
        raise ValueError(
            f'{option} must be non-negative integers, such as "1 2 3". '
            f"Received: {option} {text!r}"
        )
    return ids


def _example_of_ids(
    opened: OpenedModel, ids: list[int], target_ids: list[int] | None, tokenizer: Any
) -> Example:
    """One row of inputs for a model of tokens, with zeros for segments and the like."""
    import numpy as np

    names = opened.input_names
    row = np.array([ids], "int32").reshape(1, -1)
    inputs = {
        "token_ids": row,
        "padding_mask": np.ones_like(row, bool),
        "segment_ids": np.zeros_like(row),
        "language_ids": np.zeros_like(row),
        "masked_positions": np.zeros((1, 1), "int32"),
    }
    if target_ids is not None:
        inputs["decoder_token_ids"] = np.array([target_ids], "int32")
    if "token_ids" not in names:
        raise ValueError(
            "MODEL must be a text model for TEXT or --ids; use --image for an image "
            f"model. Received: {str(opened.path)!r}"
        )
    if "decoder_token_ids" in names and target_ids is None:
        raise ValueError(
            "--ids and --translation must both be given as token ids for an "
            f"encoder-decoder. Received: {str(opened.path)!r}"
        )
    if not names <= set(inputs) or (target_ids and "decoder_token_ids" not in names):
        missing = names.symmetric_difference(inputs) & (names | {"decoder_token_ids"})
        raise ValueError(
            "MODEL must take only token ids, masks and segments. Received: "
            f"{str(opened.path)!r} and the input {', '.join(sorted(missing))}"
        )
    if not row.size:
        raise ValueError("TEXT must have at least one token. Received: ''")
    labels = [
        [str(index) for index in each] if tokenizer is None else tokenizer.tokens(each)
        for each in (ids, target_ids or [])
    ]
    return Example(
        {name: inputs[name] for name in names},
        labels[0],
        labels[1] if target_ids is not None else None,
    )


def read_image(
    file: Path, shape: tuple[int | None, ...], opened: OpenedModel
) -> "tuple[np.ndarray, np.ndarray]":
    """The image as the model sees it, from 0 to 1, and the input, both (H, W, C).

    By the preprocessing of the model; without one, images are resized to its input and
    normalized to [-1, 1].
    """
    import numpy as np
    from PIL import Image

    from keras_attn.data.images import image_files
    from keras_attn.models import image_preprocessing

    height, width, channels = shape
    if channels not in (1, 3):
        raise ValueError(
            "MODEL must take images of 1 or 3 channels for --image. "
            f"Received: {channels} channels"
        )
    try:
        image = image_files.read_image(file, channels)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"--image must be an image file, such as .png or .jpg: {error}"
        ) from error
    fields = getattr(opened.model, "preprocessing", None)
    if fields is not None:
        layer = image_preprocessing(fields)
        prepared = np.asarray(layer(image[None]))[0]
        sides = zip((height, width), prepared.shape, strict=False)
        if any(side not in (None, found) for side, found in sides):
            raise ValueError(
                "MODEL must have a preprocessing that gives images of its input's size "
                f"for --image. Received: {prepared.shape[:2]}, for {(height, width)}"
            )
        shares = prepared * np.asarray(layer.std) + np.asarray(layer.mean)
        return np.clip(shares / (layer.scale * 255), 0, 1), prepared
    if height and width:
        picture = Image.fromarray(image.squeeze(-1) if channels == 1 else image)
        image = np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC))
        image = image.reshape(height, width, channels)
    shares = (image / 255).astype("float32")
    return shares, (shares - 0.5) / 0.5
