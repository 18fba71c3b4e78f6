"""Captions and pictures as embeddings: a CLIP with its tokenizer and preprocessing.

Legend: N captions or pictures, h and w rows and columns of a picture, C channels,
T tokens, E width of the embeddings.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_attn.checks.arguments import check_positive
from keras_attn.models.parts.dual_encoder import DualEncoder
from keras_attn.models.parts.functional import by_name
from keras_attn.models.parts.preprocessing import image_preprocessing


def picture_encoder(
    clip: DualEncoder, *, batch_size: int = 8
) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
    """A function from pictures as they are in files to their embeddings.

    Args:
        clip: A model from `build_clip` or `build_siglip` with a `preprocessing`, as
            models of `load_checkpoint` have.
        batch_size: Number of pictures to embed at a time.

    Returns:
        A function from a list of N pictures of any size, each uint8 (h, w, C), to
        float32 (N, E), of length 1.

    Raises:
        TypeError: If `clip` is not such a model.
        ValueError: If it has no preprocessing, or one of a different image size.
    """
    check_pairs_model(clip)
    check_positive("batch_size", batch_size)
    preprocessing, encoder = image_preprocessing(clip), clip.image_encoder()
    wanted = encoder.inputs[0].shape[1:]
    returned = preprocessing.compute_output_shape((1, None, None, wanted[-1]))[1:]
    if tuple(returned) != tuple(wanted):
        raise ValueError(
            "`clip.preprocessing` must return images of the size that the model takes, "
            f"{tuple(wanted)}. Received: {tuple(returned)}"
        )

    def encode(pictures):
        found = []
        for start in range(0, len(pictures), batch_size):
            # One by one, because their sizes differ.
            images = [
                keras.ops.convert_to_numpy(preprocessing(picture[None]))
                for picture in pictures[start : start + batch_size]
            ]
            found.append(encoder.predict_on_batch(np.concatenate(images)))
        return _joined(found, encoder)

    return encode


def caption_encoder(
    clip: DualEncoder, tokenizer: Any, *, batch_size: int = 64
) -> Callable[[Sequence[str]], np.ndarray]:
    """A function from captions to their embeddings.

    Args:
        clip: A model from `build_clip` or `build_siglip`.
        tokenizer: Makes token ids from captions: a tokenizer from
            `load_text_tokenizer`, or a function from a list of strings to integers
            (N, T), or to a dictionary with these as `token_ids`.
        batch_size: Number of captions to embed at a time.

    Returns:
        A function from a list of N captions to float32 (N, E), of length 1. It raises a
        `ValueError` if a caption has more tokens than the text tower has positions, or
        `tokenizer` returns something else than a row of token ids for each.

    Raises:
        TypeError: If `clip` is not such a model.
    """
    check_pairs_model(clip)
    check_positive("batch_size", batch_size)
    encoder = clip.text_encoder()
    max_length = encoder.get_layer("text_position_embedding").max_sequence_length
    pads = attends_to_padding(encoder)

    def encode(captions):
        token_ids = _tokenize(tokenizer, list(captions), max_length, pads)
        found = [
            keras.ops.convert_to_numpy(encoder(token_ids[start : start + batch_size]))
            for start in range(0, len(captions), batch_size)
        ]
        return _joined(found, encoder)

    return encode


def attends_to_padding(encoder: keras.Model) -> bool:
    """Whether this is SigLIP's text tower, which was trained on texts of full length.

    CLIP's tower is causal and read at the end token, so that it never sees the padding.
    """
    names = by_name(encoder.layers)
    return "text_position_embedding" in names and "text_pooling" not in names


def check_pairs_model(clip: Any) -> None:
    """Raises a `TypeError` unless `clip` is a `DualEncoder`."""
    if not isinstance(clip, DualEncoder):
        raise TypeError(
            "`clip` must be a model from `build_clip` or `build_siglip`. "
            f"Received: clip={clip!r}"
        )


def _joined(batches, encoder):
    """The rows of all batches; (0, E) if there are none."""
    empty = np.zeros((0, encoder.outputs[0].shape[-1]), "float32")
    return np.concatenate([empty, *batches])


def _tokenize(tokenizer, captions, max_length, pads):
    """Token ids of captions, int32 (N, T).

    Args:
        tokenizer: As in `zero_shot_classifier`.
        captions: The captions.
        max_length: Number of positions of the text tower.
        pads: Whether to pad to `max_length`.
    """
    if not captions:
        return np.zeros((0, 1), "int32")
    encode: Callable[..., Any] | None = getattr(tokenizer, "encode_batch", None)
    if encode is None:
        rows = tokenizer(captions)
        rows = np.asarray(rows["token_ids"] if isinstance(rows, dict) else rows)
        if rows.ndim != 2 or len(rows) != len(captions):
            raise ValueError(
                "`tokenizer` must return one row of token ids for each caption, "
                f"({len(captions)}, T). Received: shape={rows.shape}"
            )
        _check_length(rows.shape[1], max_length, captions[0])
        return rows.astype("int32")
    # Without truncation, which would go unnoticed.
    encoded = encode(captions, max_length=2**31 - 1)
    lengths = np.asarray(encoded["padding_mask"]).sum(axis=1)
    longest = int(lengths.argmax())
    _check_length(int(lengths[longest]), max_length, captions[longest])
    if pads:
        encoded = encode(captions, max_length=max_length, pad_to_max_length=True)
    return np.asarray(encoded["token_ids"], "int32")


def _check_length(length, max_length, caption):
    if length > max_length:
        raise ValueError(
            f"Captions must have at most {max_length} tokens, the positions of the "
            f"text tower: shorten the label or the template. Received: {length} "
            f"tokens, {caption!r}"
        )
