"""Completions: how they are sampled, where they end, and what a missing end costs.

Legend: B rows, P tokens of a prompt, C sampled tokens, T = P + C.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from keras import ops

from keras_attn.checks.arguments import (
    check_above_zero,
    check_boolean,
    check_choice,
    check_positive,
    fits,
    is_whole,
)
from keras_attn.decoding import Sample, generate
from keras_attn.losses.masked_means import masked


@dataclass(frozen=True)
class CompletionSampling:
    """How completions are sampled, and which of their tokens are learned.

    Args:
        max_new_tokens: C, the tokens sampled for each prompt.
        end_token_id: The token that ends a completion, or several such tokens.
        pad_token_id: Token after the end.
        temperature: Divides the logits in sampling, and in every log-probability of
            the policy and the reference.
        min_length: Tokens before the first one that can end a completion; OpenAI's
            experiments use 16, of 24.
        learn_after_end: Whether all C tokens are sampled and learned, as in OpenAI's
            experiments, where only the reward sees the text cut after its end. False
            learns the tokens up to the end, as TRL.

    Raises:
        ValueError: If a number is out of range.

    Reference:
        Ziegler et al. 2019, section 2.3 (arXiv:1909.08593).
    """

    max_new_tokens: int
    end_token_id: int | Sequence[int]
    pad_token_id: int = 0
    temperature: float = 1.0
    min_length: int = 0
    learn_after_end: bool = False

    def __post_init__(self):
        check_positive("max_new_tokens", self.max_new_tokens)
        check_above_zero("temperature", self.temperature)
        check_boolean("learn_after_end", self.learn_after_end)
        # Checks the tokens.
        self._truncated(np.zeros((1, 1), "int32"))
        if self.min_length >= self.max_new_tokens:
            raise ValueError(
                "`min_length` must be less than `max_new_tokens`, or no completion "
                f"could end. Received: min_length={self.min_length}, "
                f"max_new_tokens={self.max_new_tokens}"
            )

    def sample(
        self, network, prompts, *, seed: int | None = None, jit_compile="auto"
    ) -> "Completions":
        """Samples one completion for each prompt.

        Args:
            network: A model that `generate` takes, from `token_ids` and `padding_mask`
                to logits.
            prompts: A dictionary of `token_ids` and, unless every token is real,
                `padding_mask`, both (B, P), padded on either side.
            seed: Seed of the sampling. None = different completions in every call.
            jit_compile: As of `generate`.

        Raises:
            ValueError: As `generate`, such as for a prompt without room for C tokens.
        """
        token_ids = np.asarray(prompts["token_ids"])
        mask = np.asarray(prompts.get("padding_mask", np.ones_like(token_ids)), bool)
        # Padding at the left.
        token_ids, mask = _ordered(token_ids, mask, mask, self.pad_token_id)
        ends_early = not (self.learn_after_end or self.min_length)
        sampled = generate(
            network,
            {"token_ids": token_ids, "padding_mask": mask},
            self.max_new_tokens,
            strategy=Sample(temperature=self.temperature, seed=seed),
            end_token_id=self.end_token_id if ends_early else None,
            pad_token_id=self.pad_token_id,
            jit_compile=jit_compile,
        ).token_ids
        cut, is_text, has_end = map(
            ops.convert_to_numpy, self._truncated(np.asarray(sampled))
        )
        is_learned = np.ones_like(is_text) if self.learn_after_end else is_text
        completion = sampled if self.learn_after_end else cut
        return Completions(
            np.concatenate([token_ids, completion], axis=1).astype("int32"),
            np.concatenate([mask, is_learned], axis=1),
            is_learned,
            is_text,
            has_end,
        )

    def _truncated(self, token_ids):
        return truncate_completions(
            token_ids,
            self.end_token_id,
            min_length=self.min_length,
            pad_token_id=self.pad_token_id,
        )


class Completions(NamedTuple):
    """Prompts with sampled completions; the last C columns are the completions.

    Attributes:
        token_ids: int32 (B, T).
        padding_mask: Booleans (B, T), real tokens; padding is at the left of prompts
            and after the end of completions.
        is_learned: Booleans (B, C), the tokens that are learned, the end token too.
        is_text: Booleans (B, C), the tokens that the reward sees.
        has_end: Booleans (B,), whether a completion ends.
    """

    token_ids: np.ndarray
    padding_mask: np.ndarray
    is_learned: np.ndarray
    is_text: np.ndarray
    has_end: np.ndarray

    @property
    def prompt_length(self) -> int:
        """P."""
        return self.token_ids.shape[1] - self.is_text.shape[1]

    def texts(self, tokenizer) -> tuple[list[str], list[str]]:
        """The prompts and the completions up to their ends, as texts.

        Args:
            tokenizer: An object with `decode`, from ids to a text.
        """
        start = self.prompt_length
        prompts, completions = [], []
        for ids, real, is_text in zip(
            self.token_ids, self.padding_mask, self.is_text, strict=True
        ):
            prompts.append(tokenizer.decode(ids[:start][real[:start]]))
            completions.append(tokenizer.decode(ids[start:][is_text]))
        return prompts, completions

    def right_padded(self, pad_token_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of prompts and texts without padding between them, and their mask.

        Args:
            pad_token_id: Token of the padding, which is at the right.

        Returns:
            Both (B, T), int32.
        """
        start = self.prompt_length
        real = np.concatenate([self.padding_mask[:, :start], self.is_text], axis=1)
        token_ids, mask = _ordered(self.token_ids, real, ~real, pad_token_id)
        return token_ids.astype("int32"), mask.astype("int32")


def _ordered(token_ids, mask, keys, pad_token_id):
    """Tokens and mask, (B, T), each row in the order of its keys, padding replaced."""
    order = np.argsort(keys, axis=1, kind="stable")
    token_ids, mask = (np.take_along_axis(x, order, axis=1) for x in (token_ids, mask))
    return np.where(mask, token_ids, pad_token_id), mask


class Truncated(NamedTuple):
    """Completions up to their first stop token.

    Attributes:
        token_ids: (B, C), the padding token after the stop token.
        mask: Booleans (B, C), True up to the stop token, which counts too.
        has_end: Booleans (B,), whether there was a stop token.
    """

    token_ids: Any
    mask: Any
    has_end: Any


def truncate_completions(
    token_ids,
    stop_token_ids: int | Sequence[int],
    *,
    mask=None,
    min_length: int = 0,
    pad_token_id: int = 0,
) -> Truncated:
    """Cuts each completion after the first stop token that is late enough.

    Args:
        token_ids: The sampled tokens, (B, C), integers.
        stop_token_ids: One or several tokens that end a text, such as the end token;
            OpenAI's experiments end at the first full stop.
        mask: Real tokens, (B, C), for rows that have padding. Default: all are.
        min_length: Real tokens before the first token that can end a text. OpenAI's
            experiments use 16, of 24.
        pad_token_id: Token that replaces what was cut off, and any other padding.

    Returns:
        Tokens, mask and `has_end`. In OpenAI's experiments only the reward model sees
        the truncated text, and the policy learns from all tokens; in TRL it learns from
        those up to the end.

    Raises:
        ValueError: If `token_ids` and `mask` are not both (B, C), or a number is not a
            token's id, or is negative.

    Reference:
        Ziegler et al. 2019, section 2.3 (arXiv:1909.08593).
    """
    token_ids = ops.convert_to_tensor(token_ids)
    mask = ops.ones_like(token_ids) if mask is None else mask
    _, mask = masked("token_ids", token_ids, mask)
    stops = stop_token_ids if isinstance(stop_token_ids, Sequence) else [stop_token_ids]
    given = {
        "stop_token_ids": list(stops),
        "min_length": [min_length],
        "pad_token_id": [pad_token_id],
    }
    for name, values in given.items():
        if not values or not all(is_whole(x) and x >= 0 for x in values):
            raise ValueError(
                f"`{name}` must be an integer of at least 0, and only stop tokens may "
                f"be several. Received: {name}={values}"
            )
    is_stop = ops.zeros_like(mask)
    for stop in stops:
        is_stop = ops.logical_or(is_stop, ops.equal(token_ids, stop))
    before = _before(mask)
    is_stop = ops.logical_and(is_stop, ops.logical_and(mask, before >= min_length))
    kept = ops.logical_and(mask, ops.equal(_before(is_stop), 0))
    token_ids = ops.where(kept, token_ids, ops.cast(pad_token_id, token_ids.dtype))
    return Truncated(token_ids, kept, ops.any(is_stop, axis=1))


def penalize_missing_end(
    scores,
    has_end,
    penalty: float = 1.0,
    *,
    how: Literal["replace", "subtract"] = "replace",
) -> Any:
    """Lowers the scores of completions that do not end.

    Args:
        scores: (B,).
        has_end: Whether a completion ends, (B,).
        penalty: Above 0.
        how: `"replace"` gives them the score `-penalty` instead of their own, as
            OpenAI's code; `"subtract"` subtracts it, as TRL.

    Returns:
        (B,), the dtype of `scores`.

    Raises:
        ValueError: If the shapes differ, `penalty` is not above 0, or `how` is neither.
    """
    check_choice("how", how, ("replace", "subtract"))
    penalty = check_above_zero("penalty", penalty)
    scores, has_end = map(ops.convert_to_tensor, (scores, has_end))
    if len(scores.shape) != 1 or not fits(has_end.shape, scores.shape, empty_axes=(0,)):
        raise ValueError(
            "`scores` and `has_end` must both be (batch,). Received: "
            f"scores.shape={tuple(scores.shape)}, has_end.shape={tuple(has_end.shape)}"
        )
    lower = 0.0 if how == "replace" else scores
    return ops.where(ops.cast(has_end, "bool"), scores, lower - penalty)


def _before(flags):
    """How many of the flags before a token are True, (B, C)."""
    counts = ops.cast(flags, "int32")
    return ops.cumsum(counts, axis=1) - counts
