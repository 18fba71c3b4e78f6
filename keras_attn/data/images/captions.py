"""Captions of images for `model.fit`: tokens with teacher forcing.

Legend: B batch, T length in tokens.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_positive
from keras_attn.data.text.base_tokenizer import Tokenizer

_IMAGES = ("images", "features")


def caption_dataset(
    batches: tf.data.Dataset,
    tokenizer: Tokenizer,
    *,
    max_length: int,
    pad_to_multiple_of: int = 8,
) -> tf.data.Dataset:
    """Tokenizes the captions of batches of images, or of features of images.

    A caption that is truncated at `max_length` has no end token: it did not end there.

    Args:
        batches: Dictionaries with `images` (B, H, W, channels) or `features` (B, rows,
            columns, C), and `captions`, strings (B,), such as from
            `Shapes.dataset("captions", …)`. Anything else in them is left out.
        tokenizer: Encodes the captions.
        max_length: Maximum number of tokens of a caption, including its end token.
        pad_to_multiple_of: Lengths are rounded up to a multiple of this, at most to
            `max_length`, so that few shapes are compiled.

    Returns:
        A dataset of the same number of `(inputs, labels, sample_weight)`: inputs are
        the images or features and `decoder_token_ids` int32 (B, T), the start token and
        the caption; labels are int32 (B, T), the caption and the end token; sample
        weights are float32 (B, T), 1 on labels and 0 on padding.

    Raises:
        ValueError: If batches lack captions or images, or `max_length` or
            `pad_to_multiple_of` is not a positive integer.

    Example:
        ```python
        from keras_attn import data

        shapes = data.Shapes(image_size=32)
        captions = [shapes.example(index).caption for index in range(40)]
        tokenizer = data.CharacterTokenizer.train(captions)
        batches = shapes.dataset("captions", 40, batch_size=8, shuffle=True)
        train = data.caption_dataset(batches, tokenizer, max_length=48)  # For `fit`.
        ```
    """
    max_length = check_positive("max_length", max_length)
    multiple = check_positive("pad_to_multiple_of", pad_to_multiple_of)
    image = _image_name(batches.element_spec)

    def encode(captions):
        rows = [_row(tokenizer, text.decode(), max_length) for text in captions]
        longest = max(len(row) for row in rows) - 1
        width = min(-(-longest // multiple) * multiple, max_length) + 1
        pad = tokenizer.pad_token_id
        tokens = keras.utils.pad_sequences(rows, width, padding="post", value=pad)
        lengths = np.array([[len(row)] for row in rows])
        is_label = np.arange(1, width) < lengths
        return tokens, is_label.astype(np.float32)

    def finish(batch):
        types = (tf.int32, tf.float32)
        tokens, weights = tf.numpy_function(encode, [batch["captions"]], types)
        rows = batch["captions"].shape[0]
        tokens = tf.ensure_shape(tokens, [rows, None])
        inputs = {image: batch[image], "decoder_token_ids": tokens[:, :-1]}
        return inputs, tokens[:, 1:], tf.ensure_shape(weights, [rows, None])

    dataset = batches.map(finish, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.prefetch(tf.data.AUTOTUNE)


def _row(tokenizer, caption, max_length):
    """One token more than `max_length`: inputs drop the last, labels the first."""
    ids = tokenizer.encode(caption)
    row = [tokenizer.start_token_id, *ids, tokenizer.end_token_id]
    return row[: max_length + 1]


def _image_name(spec) -> str:
    """The name of the images or features; raises unless there are captions too."""
    names = [name for name in _IMAGES if isinstance(spec, dict) and name in spec]
    if len(names) == 1 and "captions" in spec and spec["captions"].dtype == tf.string:
        return names[0]
    raise ValueError(
        "`batches` must be dictionaries of `images` or `features`, and `captions`, "
        "strings (batch,), as `Shapes.dataset('captions', …)` yields them. Received: "
        f"batches of {spec}"
    )
