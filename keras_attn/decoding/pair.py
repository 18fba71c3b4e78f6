"""The two models of incremental decoding."""

from dataclasses import dataclass

import keras


@dataclass(frozen=True)
class IncrementalPair:
    """A model cut in two for decoding one token at a time.

    Both halves are functional models that share their layers with the training
    model, with dictionaries in and out:

        prefill: {the model's inputs}           -> {"logits": (B, V), **state}
        step:    {"token_ids": (B,), **state}   -> {"logits": (B, V), **changes}

    State tensors are batch first. What `step` takes and `prefill` doesn't return is
    passed on from the inputs of `prefill`. A change is the new value of the state of
    that name, or `new_<name>`, what is written into the cache `<name>`; `next_state`
    applies them. What `step` returns neither of did not change.
    A mask of the prompt, which the training model may lack, is `padding_mask` beside
    `token_ids` and `decoder_padding_mask` beside `decoder_token_ids`.

    Attributes:
        prefill: Reads the prompt (and an encoder's input) once.
        step: Takes the last token and the state, one position at a time.
        prompt: Name of the input of `prefill` that holds the prompt's tokens, (B, P).
        max_length: Most tokens that prompt and continuation may have together;
            None where the model sets no limit.
        source_vocabulary_size: Tokens that an encoder's `token_ids` are chosen from;
            None where there is no such input, or it is not known.
    """

    prefill: keras.Model
    step: keras.Model
    prompt: str = "token_ids"
    max_length: int | None = None
    source_vocabulary_size: int | None = None
