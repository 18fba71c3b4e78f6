"""Batches of images and questions, for `model.fit`.

Legend: B batch, H and W pixels, T words of a question, K answers to a question.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_pair, check_positive
from keras_attn.data.images.geometry import fit_into, normalization
from keras_attn.data.images.vqa import VQAData, encode_question, make_word_ids
from keras_attn.data.pipelines.epochs import Epoch
from keras_attn.data.pipelines.examples import (
    check_batches,
    example_dataset,
    image_loader,
)


def vqa_dataset(
    data: VQAData,
    *,
    image_size: int | tuple[int, int],
    batch_size: int,
    max_question_length: int | None = None,
    keep_aspect_ratio: bool = False,
    normalize: str | None = None,
    seed: int = 0,
    shuffle: bool = False,
    epoch: Epoch = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Batches of images and questions with their answers, for `model.fit`.

    Args:
        data: From `read_vqa`.
        image_size: H and W of the batches, one number or two.
        batch_size: B.
        max_question_length: T. The end of a longer question is cut off. None takes the
            length of the longest question.
        keep_aspect_ratio: Whether an image keeps its aspect ratio, and is padded at the
            right or at the bottom; otherwise it is stretched.
        normalize: "imagenet", "unit" or None; see `detection_dataset`.
        seed: Seed of the order.
        shuffle: Whether each epoch has a new random order.
        epoch: Number of the epoch, or a `tf.Variable` that holds it. None counts the
            iterations.
        drop_remainder: Whether the last batch is left out if it is smaller.

    Returns:
        A dataset of known cardinality: a dictionary of `images` float32 (B, H, W, 3),
        `token_ids` and `padding_mask` int32 (B, T); and the answers, int32 (B, K), -1
        for one that is not among `data.answers`, for `SoftAnswerCrossEntropy` and
        `VQAAccuracy`.

    Raises:
        ValueError: If `data` has no questions, or an argument is out of range.
        tf.errors.InvalidArgumentError: If an image is corrupt, unless `data` was read
            with `on_error="skip"`. It is raised while the dataset is read, and names
            the file.
    """
    size = check_pair("image_size", image_size)
    check_batches(data, batch_size, "questions")
    ids = make_word_ids(data.words)
    encoded = [
        encode_question(each.question, ids, data.unknown_words)
        for each in data.examples
    ]
    if max_question_length is None:
        max_question_length = max(map(len, encoded))
    length = check_positive("max_question_length", max_question_length)
    token_ids = keras.utils.pad_sequences(
        encoded, length, padding="post", truncating="post"
    )
    classes = {answer: number for number, answer in enumerate(data.answers)}
    answers = np.array(
        [[classes.get(text, -1) for text in each.answers] for each in data.examples],
        np.int32,
    )
    mean, deviation = normalization(normalize)

    paths = [each.image_path for each in data.examples]
    load_image = image_loader(paths, list(map(str, paths)), data.skipped)

    def load(row):
        image, is_valid = load_image(row)
        example = {
            "image": image,
            "token_ids": tf.gather(token_ids, row),
            "answers": tf.gather(answers, row),
        }
        return example, is_valid

    def finish(example):
        fitted = fit_into(example, size, keep_aspect_ratio, fill=mean)
        inputs = {
            "images": (fitted["image"] - mean) / deviation,
            "token_ids": example["token_ids"],
            "padding_mask": tf.cast(example["token_ids"] > 0, tf.int32),
        }
        return inputs, example["answers"]

    return example_dataset(
        load,
        finish,
        len(data),
        data.skipped,
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )
