"""Causal language modelling on blocks of a long text, with the next token as label.

Legend: B batch, T length of a block, N tokens of the text.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_positive
from keras_attn.data.pipelines.epochs import Epoch, batches_of_rows


def pack_documents(
    documents: Iterable[Sequence[int]], end_token_id: int, dtype: str = "int32"
) -> np.ndarray:
    """Concatenates documents into one text, with the end token after each.

    Save the result by `np.save` and load it by `np.load(path, mmap_mode="r")`, and
    training reads it from disk as needed.

    Args:
        documents: Sequences of token ids.
        end_token_id: Token after every document, including the last.
        dtype: Dtype of the result: `"uint16"` holds the ids of GPT-2's vocabulary in
            half the memory.

    Returns:
        (N,).

    Raises:
        ValueError: If an id does not fit into `dtype`.
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
    """Batches of blocks of a long text for `model.fit`, with labels.

    Block b starts at token `b · stride`, and its labels are the same tokens shifted by
    one. Documents are not separated: a block may hold the end of one and the start of
    the next, and attention crosses the boundary, as in GPT's training.

    With the default stride every token except the text's first is a label once, apart
    from an incomplete last block of `(N - 1) mod T` labels, which `keep_tail` keeps.
    With a smaller stride, blocks overlap, and every token is still a label once: labels
    that occurred in the previous block get weight 0. So labels after the first block
    have a context of more than `T - stride` tokens, as a fair perplexity of a long text
    requires.

    Args:
        token_ids: (N,), integers; read as needed, so this may be a memory-mapped array.
        block_length: T.
        batch_size: Blocks per batch.
        stride: Tokens from the start of one block to the next, 1 … T. Default: T.
        keep_tail: Whether the last labels get a block of their own, padded at the end.
        shuffle_seed: Shuffles the blocks, in a new order each epoch and the same orders
            in every run (given the same `keras.utils.set_random_seed`). None keeps the
            order.
        epoch: Epoch whose order is read, or a `tf.Variable` that holds it, such as
            `BackupAndResume.epoch`. None counts the iterations.
        drop_remainder: Drops a last batch of fewer than `batch_size` blocks.

    Returns:
        A dataset of known cardinality of `(inputs, labels, sample_weight)`, each of
        shape (B, T): inputs are `token_ids` and `padding_mask` int32, 1 = real token;
        labels are int32; sample weights are float32, 1 on labels that count.

    Raises:
        ValueError: If the text is not a one-dimensional array of integers, or too short
            for a block.

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
    num_labels = _count_labels(token_ids, 1 if keep_tail else block_length)
    rest = max(num_labels - block_length, 0)  # Labels after the first block.
    num_blocks = 1 + (-(-rest // stride) if keep_tail else rest // stride)

    def read(blocks):
        positions = blocks[:, None] * stride + np.arange(block_length + 1)
        tokens = token_ids[np.minimum(positions, num_labels)].astype(np.int32)
        real = positions <= num_labels
        tokens = np.where(real, tokens, 0)
        is_new = np.arange(block_length) >= block_length - stride
        is_new = is_new | (blocks == 0)[:, None]
        weights = (real[:, 1:] & is_new).astype(np.float32)
        # A token without a label is padding too: nothing depends on it.
        return tokens[:, :-1], real[:, 1:].astype(np.int32), tokens[:, 1:], weights

    def make_batch(blocks):
        types = (tf.int32, tf.int32, tf.int32, tf.float32)
        parts = tf.numpy_function(read, [blocks], types, stateful=False)
        parts = [tf.ensure_shape(part, [None, block_length]) for part in parts]
        tokens, real, labels, weights = parts
        return {"token_ids": tokens, "padding_mask": real}, labels, weights

    return batches_of_rows(
        num_blocks,
        make_batch,
        batch_size=batch_size,
        shuffle_seed=shuffle_seed,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )


def _count_labels(token_ids, at_least):
    """Number of labels in a text; raises for a wrong shape or dtype, or too few."""
    if token_ids.ndim != 1 or not np.issubdtype(token_ids.dtype, np.integer):
        raise ValueError(
            "`token_ids` must be a one-dimensional array of integers. Received: "
            f"token_ids.shape={token_ids.shape}, token_ids.dtype={token_ids.dtype}"
        )
    if len(token_ids) - 1 < at_least:
        raise ValueError(
            f"`token_ids` must have at least {at_least + 1} tokens, for one block and "
            f"the label of its last token. Received: {len(token_ids)} tokens"
        )
    return len(token_ids) - 1
