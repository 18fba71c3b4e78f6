"""Sentence pairs: reading line-aligned files, and batches for an encoder–decoder.

Legend: B batch, S source length, U target length, in tokens.
"""

import gzip
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_positive, check_same_length
from keras_attn.data.pipelines.epochs import Epoch, row_indices
from keras_attn.data.text.base_tokenizer import Tokenizer
from keras_attn.data.text.ragged import to_ragged

_HOW_TO_GET_IT = (
    "Put the files of `data/task1/raw` of the GitHub repository multi30k/dataset "
    "in one folder and pass it, or set `KERAS_ATTN_DATA` to the folder above "
    "`multi30k`."
)


def read_parallel(
    source_path: str | os.PathLike,
    target_path: str | os.PathLike,
    *,
    max_words: int | None = None,
) -> tuple[list[str], list[str]]:
    """Reads two aligned files: line n of one translates line n of the other.

    Args:
        source_path: UTF-8 text, gzip where the name ends in `.gz`.
        target_path: The same, in the target language.
        max_words: Maximum number of blank-separated words on either side; longer pairs
            are left out, as Bahdanau et al. do with 30 and 50. None keeps all.

    Returns:
        Equally long lists of sources and targets, with surrounding blanks stripped.

    Raises:
        ValueError: If a file is missing, is not UTF-8 (file and line are named), or
            the two have different numbers of lines.
    """
    sources = _read_lines("source_path", Path(source_path))
    targets = _read_lines("target_path", Path(target_path))
    if len(sources) != len(targets):
        raise ValueError(
            "`source_path` and `target_path` must have the same number of lines, "
            "where line n of one translates line n of the other. Received: "
            f"{len(sources)} lines in {str(source_path)!r}, "
            f"{len(targets)} lines in {str(target_path)!r}"
        )
    if max_words is None:
        return sources, targets
    max_words = check_positive("max_words", max_words)
    kept = [
        (source, target)
        for source, target in zip(sources, targets, strict=True)
        if max(len(source.split()), len(target.split())) <= max_words
    ]
    return [source for source, _ in kept], [target for _, target in kept]


def load_multi30k(
    data_dir: str | os.PathLike | None = None,
    split: str = "train",
    *,
    source_language: str = "en",
    target_language: str = "de",
) -> tuple[list[str], list[str]]:
    """Reads a split of Multi30k: captions of photographs, with human translations.

    Args:
        data_dir: The folder with `train.en.gz`, `train.de.gz`, `val.en.gz`, …, with
            or without `.gz`. None means `multi30k` in the folder that the
            environment variable `KERAS_ATTN_DATA` names.
        split: "train" (29,000 pairs), "val" (1,014), or any other the folder has.
        source_language: "en", "de", "fr", …
        target_language: The same, to translate into.

    Returns:
        Equally long lists of sources and targets.

    Reference:
        Elliott et al., "Multi30K: Multilingual English-German Image Descriptions",
        2016, arXiv:1605.00459. For non-commercial research.
    """
    if data_dir is None and "KERAS_ATTN_DATA" not in os.environ:
        raise ValueError(
            "`data_dir` must be the folder of Multi30k if the environment variable "
            f"`KERAS_ATTN_DATA` is not set. {_HOW_TO_GET_IT} Received: data_dir=None"
        )
    if data_dir is None:
        data_dir = Path(os.environ["KERAS_ATTN_DATA"], "multi30k")
    paths = []
    for language in (source_language, target_language):
        plain = Path(data_dir, f"{split}.{language}")
        candidates = [plain.with_name(plain.name + ".gz"), plain]
        found = [path for path in candidates if path.is_file()]
        if not found:
            raise ValueError(
                f"`data_dir` must be a folder with `{plain.name}.gz` or "
                f"`{plain.name}`. {_HOW_TO_GET_IT} "
                f"Received: data_dir={str(data_dir)!r}"
            )
        paths.append(found[0])
    return read_parallel(*paths)


def parallel_dataset(
    sources: Sequence[str],
    targets: Sequence[str],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    *,
    batch_size: int,
    max_length: int,
    bucket_boundaries: Sequence[int] | None = None,
    shuffle_seed: int | None = None,
    epoch: Epoch = None,
    drop_remainder: bool = False,
    pad_to_multiple_of: int = 8,
) -> tf.data.Dataset:
    """Batches sentence pairs for `model.fit`, teacher forcing included.

    Sources are encoded without start or end token, as by `encode_batch(texts)`. A
    target truncated at `max_length` has no end token: the sentence did not end there.

    Args:
        sources: The texts to translate.
        targets: Their translations.
        source_tokenizer: Encodes the sources.
        target_tokenizer: Encodes the targets.
        batch_size: Number of pairs per batch.
        max_length: Maximum number of tokens of a source, and of a target with its end
            token.
        bucket_boundaries: Ascending lengths, in tokens, exclusive upper bounds: a
            batch has pairs whose longer side falls into the same bucket, so that
            little is padded. None batches pairs in the order they come.
        shuffle_seed: Seed of the order, which differs between epochs and is the same in
            each run (given the same `keras.utils.set_random_seed`). None keeps the
            order.
        epoch: Number of the epoch whose order is read, or a `tf.Variable` that holds
            it, such as `BackupAndResume.epoch`. None counts the iterations.
        drop_remainder: Whether batches smaller than `batch_size` are left out.
        pad_to_multiple_of: Lengths are rounded up to a multiple of this, at most to
            `max_length`, so that few shapes are compiled.

    Returns:
        A dataset of known cardinality of `(inputs, labels, sample_weight)`: inputs
        are `token_ids` int32 (B, S), `padding_mask` int32 (B, S), 1 = real token,
        and `decoder_token_ids` int32 (B, U), the start token and the target; labels
        are int32 (B, U), the target and the end token; sample weights are float32
        (B, U), 1 on real labels and 0 on padding.
    """
    if not check_same_length(sources=sources, targets=targets):
        raise ValueError(
            "`sources` and `targets` must not be empty. Received: 0 sources, 0 targets"
        )
    batch_size = check_positive("batch_size", batch_size)
    max_length = check_positive("max_length", max_length)
    multiple = check_positive("pad_to_multiple_of", pad_to_multiple_of)
    boundaries = _check_boundaries(bucket_boundaries)

    start, end = target_tokenizer.start_token_id, target_tokenizer.end_token_id
    source_rows = [source_tokenizer.encode(text)[:max_length] for text in sources]
    # One token more than `max_length`: inputs drop the last, labels drop the first.
    target_rows = [
        [start, *target_tokenizer.encode(text), end][: max_length + 1]
        for text in targets
    ]
    lengths = np.maximum(_lengths(source_rows), _lengths(target_rows) - 1)
    source_ragged, target_ragged = to_ragged(source_rows), to_ragged(target_rows)

    def make_batch(indices):
        token_ids = _pad(tf.gather(source_ragged, indices), max_length, multiple)
        rows = tf.gather(target_ragged, indices)
        labels = _pad(rows[:, 1:], max_length, multiple)
        is_real = tf.not_equal(token_ids, source_tokenizer.pad_token_id)
        inputs = {
            "token_ids": token_ids,
            "padding_mask": tf.cast(is_real, tf.int32),
            "decoder_token_ids": _pad(rows[:, :-1], max_length, multiple),
        }
        real = tf.not_equal(labels, target_tokenizer.pad_token_id)
        return inputs, labels, tf.cast(real, tf.float32)

    lengths_tensor = tf.constant(lengths, tf.int32)
    dataset = row_indices(len(sources), shuffle_seed, epoch)
    dataset = dataset.bucket_by_sequence_length(
        lambda index: tf.gather(lengths_tensor, index),
        bucket_boundaries=boundaries,
        bucket_batch_sizes=[batch_size] * (len(boundaries) + 1),
        drop_remainder=drop_remainder,
    )
    dataset = dataset.map(make_batch, num_parallel_calls=tf.data.AUTOTUNE)
    # With a known cardinality, `fit` shows the progress of the first epoch.
    sizes = Counter(np.searchsorted(boundaries, lengths, side="right").tolist())
    spare = 0 if drop_remainder else batch_size - 1
    num_batches = sum((size + spare) // batch_size for size in sizes.values())
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(num_batches))
    return dataset.prefetch(tf.data.AUTOTUNE)


def _read_lines(name: str, path: Path) -> list[str]:
    """The lines of a text file, split only at newlines.

    `str.splitlines` would also split at U+2028 and the like, which occur within
    sentences, and so misalign the two files.
    """
    if not path.is_file():
        raise ValueError(
            f"`{name}` must be an existing file. Received: {name}={str(path)!r}"
        )
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(
                f"`{name}` must be a complete gzip file, as its name says ({error}). "
                f"Received: {name}={str(path)!r}"
            ) from error
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    texts = []
    for number, line in enumerate(lines, start=1):
        try:
            texts.append(line.decode("utf-8").strip())
        except UnicodeDecodeError as error:
            raise ValueError(
                f"`{name}` must be UTF-8 text; line {number} is not ({error.reason} at "
                f"byte {error.start}). Received: {name}={str(path)!r}"
            ) from error
    return texts


def _check_boundaries(boundaries: Sequence[int] | None) -> list[int]:
    values = [] if boundaries is None else list(boundaries)
    values = [check_positive("bucket_boundaries", value) for value in values]
    if values != sorted(set(values)):
        raise ValueError(
            "`bucket_boundaries` must be strictly ascending. "
            f"Received: bucket_boundaries={boundaries!r}"
        )
    return values


def _lengths(rows: list[list[int]]) -> np.ndarray:
    return np.array([len(row) for row in rows], np.int64)


def _pad(rows: tf.RaggedTensor, max_length: int, multiple: int) -> tf.Tensor:
    """Pads rows with 0 to the longest, rounded up: (B, width)."""
    # A batch of empty texts has a width of at least 1: layers fail at length 0.
    longest = tf.maximum(tf.reduce_max(rows.row_lengths()), 1)
    width = tf.minimum(-(-longest // multiple) * multiple, max_length)
    dense = rows.to_tensor()
    missing = width - tf.shape(dense, tf.int64)[1]
    return tf.pad(dense, tf.convert_to_tensor([[0, 0], [0, missing]]))
