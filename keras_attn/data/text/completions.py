"""Prompts and completions, for a language model that learns only the completions.

Legend: B batch, T tokens of a row.
"""

from collections.abc import Sequence

import tensorflow as tf

from keras_attn.checks.arguments import check_positive, check_same_length
from keras_attn.data.pipelines.epochs import Epoch, batches_of_rows
from keras_attn.data.text.completion_rows import (
    FlatRows,
    check_lengths,
    make_row,
    pack_rows,
)


def completion_dataset(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    max_length: int,
    batch_size: int,
    end_token_id: int | None,
    packed: bool = False,
    pad_to_multiple_of: int | None = None,
    pad_token_id: int = 0,
    shuffle_seed: int | None = None,
    epoch: Epoch = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Batches for supervised fine-tuning with `model.fit`: the loss of completions.

    A row is a prompt, its completion and the end token. Labels are the next tokens;
    tokens of prompts and padding have weight 0. Compile with `SmoothedCrossEntropy()`,
    whose mean is over the tokens that count.

    Args:
        prompts: Token ids of each prompt. It may be empty; then the first token of its
            completion is not learned, because nothing precedes it.
        completions: Token ids of each completion, at least one.
        max_length: T, at most the positions of the model. A longer completion is cut,
            and then has no end token: it did not end there.
        batch_size: B.
        end_token_id: Token after every completion. None adds none.
        packed: Whether rows hold as many pairs as fit, none of them cut in two, for
            less padding. A third input, `document_ids`, tells them apart for models of
            `build_gpt`, in which no pair sees another one; other models raise an error.
        pad_to_multiple_of: Rounds the longest row of a batch up to a multiple of this,
            instead of padding to `max_length`: faster, but compiled once per length.
        pad_token_id: Token of the padding, which is at the right.
        shuffle_seed: Shuffles the rows, in a new order each epoch and the same orders
            in every run (given the same `keras.utils.set_random_seed`). None keeps the
            order, except that packing sorts pairs by length.
        epoch: Epoch whose order is read, or a `tf.Variable` that holds it, such as
            `BackupAndResume.epoch`. None counts the iterations.
        drop_remainder: Drops a last batch of fewer than `batch_size` rows.

    Returns:
        A dataset of known cardinality of `(inputs, labels, sample_weight)`, each (B,
        T): inputs are `token_ids` and `padding_mask` int32, 1 = real token, and if
        `packed` `document_ids` int32, the number of the pair in its row from 1, 0 in
        padding; labels are int32; sample weights are float32, 1 on the tokens of
        completions and end tokens.

    Raises:
        ValueError: If pairs are missing, or the numbers of prompts and completions
            differ; if a row, which is named, is a text instead of ids, has an empty
            completion, or a prompt of more than `max_length` tokens.

    Example:
        ```python
        from keras_attn import data

        texts = ["2+2=4", "3+4=7"]
        tokenizer = data.CharacterTokenizer.train(texts)
        prompts = [tokenizer.encode_prompt(text[:4]) for text in texts]
        answers = [tokenizer.encode(text[4:]) for text in texts]
        sizes, end = {"max_length": 8, "batch_size": 2}, tokenizer.end_token_id
        train = data.completion_dataset(prompts, answers, **sizes, end_token_id=end)
        ```

    Reference:
        Ouyang et al. 2022, section 3.5 (arXiv:2203.02155); packing: Krell et al. 2021
        (arXiv:2107.02027).
    """
    max_length = check_lengths(max_length, pad_to_multiple_of)
    batch_size = check_positive("batch_size", batch_size)
    if not check_same_length(prompts=prompts, completions=completions):
        raise ValueError(
            "`prompts` and `completions` must not be empty. "
            "Received: 0 prompts, 0 completions"
        )
    # One token more than `max_length`: inputs drop the last, labels drop the first.
    rows = [
        make_row(
            prompt,
            completion,
            end_token_id=end_token_id,
            max_tokens=max_length + 1,
            label=f"row {number}",
        )
        for number, (prompt, completion) in enumerate(
            zip(prompts, completions, strict=True)
        )
    ]
    if packed:
        rows = pack_rows(rows, max_length + 1)
    flat = FlatRows(rows, max_length, pad_to_multiple_of, pad_token_id, packed=packed)
    return batches_of_rows(
        len(rows),
        flat.next_tokens,
        batch_size=batch_size,
        shuffle_seed=shuffle_seed,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )
