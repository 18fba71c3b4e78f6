"""Prompts of different lengths, for a language model that answers them.

Legend: B batch, P tokens of the longest prompt.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf

from keras_attn.checks.arguments import check_positive
from keras_attn.data.pipelines.epochs import Epoch, batches_of_rows


def prompt_dataset(
    prompts: Sequence[Sequence[int]],
    *,
    batch_size: int,
    max_length: int | None = None,
    pad_token_id: int = 0,
    shuffle_seed: int | None = None,
    epoch: Epoch = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Batches of prompts for `PPO.fit`, `RLOO.fit`, `GRPO.fit` and `generate`.

    Padding is at the left, so that all completions start in the same column.

    Args:
        prompts: Token ids of each prompt, at least one: what the model reads before it
            writes, such as a start token.
        batch_size: B.
        max_length: Maximum number of tokens of a prompt: the positions of the model
            less the tokens that are to be sampled. None sets no limit.
        pad_token_id: Token of the padding.
        shuffle_seed: Shuffles the prompts; see `completion_dataset`.
        epoch: Epoch whose order is read; see `completion_dataset`.
        drop_remainder: Drops a last batch of fewer than `batch_size` prompts.

    Returns:
        A dataset of known cardinality of dictionaries with `token_ids` and
        `padding_mask`, int32 (B, P), 1 = real token.

    Raises:
        ValueError: If prompts are missing; if a row, which is named, is empty, a text
            instead of ids, or longer than `max_length`.

    Example:
        ```python
        from keras_attn import data

        texts = ["Once upon a time", "The film was"]
        tokenizer = data.CharacterTokenizer.train(texts)
        prompts = [tokenizer.encode_prompt(text) for text in texts]
        batches = data.prompt_dataset(prompts, batch_size=2, shuffle_seed=0)
        next(iter(batches))["token_ids"]  # (2, 16), padded on the left.
        ```
    """
    batch_size = check_positive("batch_size", batch_size)
    if max_length is not None:
        check_positive("max_length", max_length)
    if not len(prompts):
        raise ValueError("`prompts` must not be empty. Received: 0 prompts")
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, str | bytes):
            raise ValueError(
                "`prompts` must be lists of token ids; encode the texts with the "
                f"model's tokenizer. Received: {prompt[:50]!r} in row {number}"
            )
        if not len(prompt):
            raise ValueError(
                "`prompts` must have at least one token each, such as a start token. "
                f"Received: none in row {number}"
            )
        if max_length is not None and len(prompt) > max_length:
            raise ValueError(
                f"`prompts` must have at most {max_length} tokens each, this "
                f"`max_length`. Received: {len(prompt)} tokens in row {number}"
            )
    pad = keras.utils.pad_sequences  # At the left.
    all_ids = tf.constant(pad(prompts, value=pad_token_id))
    all_masks = tf.constant(pad([[1] * len(prompt) for prompt in prompts]))

    def make_batch(rows):
        return {
            "token_ids": tf.gather(all_ids, rows),
            "padding_mask": tf.gather(all_masks, rows),
        }

    return batches_of_rows(
        len(prompts),
        make_batch,
        batch_size=batch_size,
        shuffle_seed=shuffle_seed,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )
