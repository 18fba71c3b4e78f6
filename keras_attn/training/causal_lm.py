"""Causal language modelling: one long text, cut into blocks; each token asks the next.

Legend: B batch, T length of a block, N tokens of the text.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from keras_attn.checks import check_positive
from keras_attn.data.epochs import Epoch
from keras_attn.data.ragged import index_batches


def pack_documents(
    documents: Iterable[Sequence[int]], end_token_id: int, dtype: str = "int32"
) -> np.ndarray:
    """One long text of many: each document, and the end token behind it.

    Saved by `np.save` and loaded by `np.load(path, mmap_mode="r")` it takes no memory
    to train on.

    Args:
        documents: Each a sequence of token ids.
        end_token_id: Closes every document, the last one too.
        dtype: Of the result: `"uint16"` holds the ids of GPT-2's vocabulary in half
            the room.

    Returns:
        (N,).

    Raises:
        ValueError: for an id that does not fit into the type.
    """
    parts = []
    for document in documents:
        parts += [np.asarray(document, np.int64), [end_token_id]]
    ids = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    limits = np.iinfo(dtype)
    if len(ids) and (ids.min() < max(limits.min, 0) or ids.max() > limits.max):
        raise ValueError(
            f"`documents` must hold ids in [0, {limits.max}], for `dtype`. Received: "
            f"ids from {ids.min()} to {ids.max()}, dtype={dtype!r}"
        )
    return ids.astype(dtype)


def causal_lm_dataset(
    token_ids: np.ndarray,
    *,
    block_length: int,
    batch_size: int,
    stride: int | None = None,
    keep_tail: bool = False,
    shuffle_seed: int | None = None,
    epoch: Epoch = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Batches of blocks of a long text for `model.fit`, teacher forcing included.

    Block b holds the tokens from `b · stride` on, and its labels are the tokens one
    further. Documents are not kept apart: a block may hold the end of one and the
    start of the next, and a token sees what is in front of it in both, as GPT was
    trained.

    With the default stride every token but the text's first is a label once, and only
    a tail of less than a block is lost, `(N - 1) mod T` labels; with `keep_tail` none
    is. A smaller stride lets blocks overlap, and every token is a label once all the
    same: of labels that the block before had, the weight is 0. So a longer context
    than `stride` is seen, as for a fair perplexity of a long text.

    Args:
        token_ids: (N,), whole numbers; read where needed, so that it may be an array
            that is mapped from a file.
        block_length: T.
        batch_size: Blocks a batch.
        stride: Tokens from one block's start to the next, 1 … T. Default: T.
        keep_tail: Whether the last labels get a block of their own, with padding
            behind.
        shuffle_seed: Shuffles the blocks, anew each epoch and alike in each run (given
            the same `keras.utils.set_random_seed`). None keeps the order.
        epoch: Number of the epoch whose order is read, or a `tf.Variable` that holds
            it, such as that of `BackupAndResume`. None counts the iterations.
        drop_remainder: Leaves out a last batch of less than `batch_size`.

    Returns:
        A dataset of known cardinality of `(inputs, labels, sample_weight)`, each of
        the shape (B, T): inputs are `token_ids` and `padding_mask` int32, 1 =
        real token; labels are int32; sample weights are float32, 1 on labels that
        count.

    Raises:
        ValueError: if the text is no row of whole numbers, or not long enough for a
            block.

    Reference:
        Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
    """
    block_length = check_positive("block_length", block_length)
    batch_size = check_positive("batch_size", batch_size)
    stride = check_positive("stride", block_length if stride is None else stride)
    if stride > block_length:
        raise ValueError(
            "`stride` must be at most `block_length`, or tokens between blocks would "
            f"be lost. Received: stride={stride}, block_length={block_length}"
        )
    if token_ids.ndim != 1 or not np.issubdtype(token_ids.dtype, np.integer):
        raise ValueError(
            "`token_ids` must be a row of whole numbers, (tokens,). Received: "
            f"token_ids.shape={token_ids.shape}, token_ids.dtype={token_ids.dtype}"
        )
    num_labels = len(token_ids) - 1
    shortest = 1 if keep_tail else block_length
    if num_labels < shortest:
        raise ValueError(
            f"`token_ids` must be at least {shortest + 1}, so many that there is a "
            f"block and the label of its last token. Received: {len(token_ids)} tokens"
        )
    beyond = max(num_labels - block_length, 0)
    num_blocks = 1 + (-(-beyond // stride) if keep_tail else beyond // stride)

    def read(blocks):
        places = blocks[:, None] * stride + np.arange(block_length + 1)
        tokens = token_ids[np.minimum(places, num_labels)].astype(np.int32)
        real = places <= num_labels
        tokens = np.where(real, tokens, 0)
        new = (np.arange(block_length) >= block_length - stride) | (blocks == 0)[
            :, None
        ]
        weights = (real[:, 1:] & new).astype(np.float32)
        # What has no label is padding as well: nothing comes of reading it.
        return tokens[:, :-1], real[:, 1:].astype(np.int32), tokens[:, 1:], weights

    def batch_of(blocks):
        types = (tf.int32, tf.int32, tf.int32, tf.float32)
        parts = tf.numpy_function(read, [blocks], types, stateful=False)
        parts = [tf.ensure_shape(part, [None, block_length]) for part in parts]
        tokens, real, labels, weights = parts
        return {"token_ids": tokens, "padding_mask": real}, labels, weights

    dataset = index_batches(
        num_blocks,
        batch_size=batch_size,
        shuffle_seed=shuffle_seed,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )
    dataset = dataset.map(batch_of, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.prefetch(tf.data.AUTOTUNE)
