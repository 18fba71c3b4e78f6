"""The two models of incremental decoding, and what any runtime must offer."""

from dataclasses import dataclass
from typing import Protocol

import keras


@dataclass(frozen=True)
class IncrementalPair:
    """A model cut in two for decoding one token at a time.

    Both halves are functional models that share their layers with the training
    model, with dictionaries in and out:

        prefill: {the model's inputs}           -> {"logits": (B, V), **state}
        step:    {"token_ids": (B,), **state}   -> {"logits": (B, V), **changed state}

    State tensors are batch first. What `step` does not return did not change.

    Attributes:
        prefill: Reads the prompt (and an encoder's input) once.
        step: Takes the last token and the state, one position at a time.
        prompt: Name of the input of `prefill` that holds the prompt's tokens, (B, P).
        max_length: Most tokens that prompt and continuation may have together;
            None where the model sets no limit.
    """

    prefill: keras.Model
    step: keras.Model
    prompt: str = "token_ids"
    max_length: int | None = None


class Steppable(Protocol):
    """What `generate` needs of an exported artefact: two callables, dict to dict."""

    def prefill(self, inputs: dict) -> dict:
        """Runs the prompt: `{"logits": (B, V), **state}`."""
        ...

    def step(self, inputs: dict) -> dict:
        """Runs one token: `{"logits": (B, V), **changed state}`."""
        ...
