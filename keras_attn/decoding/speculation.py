"""Speculative decoding: several guessed tokens are checked by one pass of the model.

A guess costs little: it is copied from the text so far (`PromptLookup`), or comes from
a small model (`DraftModel`). The model reads the last token and the K guesses at once,
for about the time of one token where weights are read from memory, and keeps those that
it would have chosen itself. With target p and draft q, guess x is kept with
probability min(1, p(x) / q(x)); the first that is not is replaced by a token drawn
from max(p − q, 0), normalized, and after K kept guesses a token is drawn from p. The
tokens then have distribution p exactly, for any q. `Greedy` keeps a guess if it is the
most probable token.

All rows of a batch advance together, as they share one `cache_index`: by as many
guesses as the row with the fewest kept ones, and one token more. That token is the
replacement in rows that reject there, and the kept guess in all others, so nothing is
discarded that depends on its own value.

The slots of rejected tokens are not cleared: the next pass begins at the first of them,
and until then `visible` hides them.

Legend: B batch, K guesses of a pass, V vocabulary, P prompt length, L cache length,
M length of the buffer of new tokens.

Reference:
    Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding"
    (arXiv:2211.17192); Chen et al. 2023 (arXiv:2302.01318). Copying from the prompt:
    Saxena 2023, "Prompt Lookup Decoding".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_attn.cache_names import CACHE_INDEX
from keras_attn.checks.arguments import check_positive
from keras_attn.decoding.loop import Settings, loop_variables, next_state
from keras_attn.decoding.pair import DecodingFunctions
from keras_attn.decoding.strategies import Greedy, Sample, draw, is_end

# Random numbers of a token: for its guess or the first token, to keep the guess, and to
# replace it.
_GUESS, _KEEP, _REPLACE = range(3)
# Never the id of a token: before the prompts in the text that is looked up.
_NO_TOKEN = -1
# What `prefill` returns besides the caches; it follows from the number of tokens.
_COUNTERS = ("visible", "position", CACHE_INDEX)


class Speculated(NamedTuple):
    """The result of `generate` with a `speculation`.

    Attributes:
        token_ids: As in `Generated`.
        scores: As in `Generated`: the log-probability of the tokens.
        num_passes: Number of passes of the model after the prompt.
        num_guessed: Number of guesses in rows that had not ended.
        num_kept: How many of them became tokens.
    """

    token_ids: np.ndarray
    scores: np.ndarray
    num_passes: int
    num_guessed: int
    num_kept: int

    @property
    def acceptance_rate(self) -> float:
        """The share of guesses that became tokens, from 0 to 1."""
        return self.num_kept / max(self.num_guessed, 1)


@dataclass(frozen=True)
class PromptLookup:
    """Guesses that the text continues as after an earlier occurrence.

    The last tokens of a row are looked for earlier in its prompt and continuation, the
    longest match of up to `ngram` tokens first, of these the last one. The guesses are
    the tokens that followed; at the end of the text they are repeated. So answers that
    quote their prompt, such as summaries and edited code, are guessed well.

    Args:
        ngram: Largest number of tokens to look for.
        tokens: K, the number of guesses of a pass.

    Raises:
        ValueError: If an argument is not a positive integer.
    """

    ngram: int = 3
    tokens: int = 8

    def __post_init__(self):
        _keep_as_int(self, "ngram")
        _keep_as_int(self, "tokens")


@dataclass(frozen=True)
class DraftModel:
    """Guesses by a smaller model with the same vocabulary.

    It guesses with the strategy of the call: its temperature, `top_k` and `top_p`.

    Args:
        model: A decoder-only model, such as one of `models.build_gpt`.
        tokens: K, the number of guesses of a pass; each costs a step of `model`.

    Raises:
        ValueError: If `tokens` is not a positive integer.
    """

    model: Any
    tokens: int = 4

    def __post_init__(self):
        _keep_as_int(self, "tokens")


def _keep_as_int(speculation, name: str) -> None:
    """Makes a field an `int`: TensorFlow adds no int64 of NumPy to an int32."""
    value = check_positive(name, getattr(speculation, name))
    object.__setattr__(speculation, name, value)  # The class is frozen.


def check_speculation(speculation, strategy, on_token) -> None:
    """Raises unless a call of `generate` can speculate.

    Raises:
        TypeError: If `speculation` is neither a `PromptLookup` nor a `DraftModel`.
        ValueError: If it cannot be combined with the other arguments.
    """
    if not isinstance(speculation, PromptLookup | DraftModel):
        raise TypeError(
            "`speculation` must be a `PromptLookup(...)` or a `DraftModel(...)`. "
            f"Received: speculation={speculation!r}"
        )
    if not isinstance(strategy, Greedy | Sample):
        raise ValueError(
            "`speculation` needs a strategy that chooses one token after the other, "
            f"`Greedy()` or `Sample(...)`. Received: strategy={strategy!r}"
        )
    if on_token is not None:
        raise ValueError(
            "`speculation` runs as one compiled loop in Keras; leave out `on_token`. "
            f"Received: on_token={on_token!r}"
        )


def check_draft(functions: DecodingFunctions, draft: DecodingFunctions) -> None:
    """Raises unless a draft model predicts the tokens of the model.

    Raises:
        ValueError: If the inputs or the vocabularies differ.
    """
    for what in ("prefill_inputs", "new_vocabulary"):
        ours, its = getattr(functions, what), getattr(draft, what)
        if ours != its:
            raise ValueError(
                "`speculation.model` must have the inputs and the vocabulary of "
                f"`model`. Received: {what}={its} instead of {ours}"
            )


def text_before(token_ids, padding_mask, ngram: int) -> np.ndarray:
    """The prompts, as they are looked up: without padding, and aligned at the right.

    Args:
        token_ids: (B, P).
        padding_mask: (B, P), True = a real token.
        ngram: Number of positions to add.

    Returns:
        int32 (B, ngram + P), with -1 before each prompt.
    """
    order = np.argsort(padding_mask, axis=1, kind="stable")
    ids = np.where(padding_mask, token_ids, _NO_TOKEN)
    aligned = np.take_along_axis(ids, order, axis=1).astype("int32")
    return np.pad(aligned, [(0, 0), (ngram, 0)], constant_values=_NO_TOKEN)


def look_up(text, length, ngram: int, tokens: int):
    """The tokens that followed the last earlier occurrence of the last tokens.

    Args:
        text: int32 (B, W); -1 is not a token.
        length: How many of the W are known, at least `ngram`; may be a tensor, as may
            W.
        ngram: Largest number of tokens to look for.
        tokens: K.

    Returns:
        The guesses, (B, K), and whether the row has any, bool (B,). Otherwise its
        guesses are of no meaning.
    """
    batch, width = ops.shape(text)
    last = ops.slice(text, (0, length - ngram), (batch, ngram))
    # Number of tokens before and at each position that equal the last ones.
    is_equal, matched = True, 0
    for back in range(ngram):
        shifted = ops.pad(text, [(0, 0), (back, 0)], constant_values=_NO_TOKEN)
        here = ops.equal(shifted[:, :width], last[:, ngram - 1 - back :][:, :1])
        here = ops.logical_and(here, shifted[:, :width] >= 0)
        is_equal = ops.logical_and(is_equal, here)
        matched = matched + ops.cast(is_equal, "int32")
    position = ops.arange(width, dtype="int32")
    rank = ops.where(
        ops.logical_and(position < length - 1, matched > 0),
        matched * width + position,
        -1,
    )
    best = ops.cast(ops.argmax(rank, axis=1), "int32")
    found = ops.max(rank, axis=1) >= 0
    # What is repeated if the text ends before the guesses do.
    period = ops.maximum(length - 1 - best, 1)
    steps = ops.expand_dims(ops.arange(tokens, dtype="int32"), 0)
    at = ops.expand_dims(best, 1) + 1 + steps % ops.expand_dims(period, 1)
    guesses = ops.take_along_axis(text, ops.minimum(at, width - 1), axis=1)
    return ops.maximum(guesses, 0), found


class Checked(NamedTuple):
    """Guesses that the model has checked.

    Attributes:
        num_kept: How many guesses of each row are kept, (B,).
        replace: A function of a number of guesses, the same for all rows, that returns
            the token which follows them in a row that keeps no more, (B,).
    """

    num_kept: Any
    replace: Callable[[Any], Any]


def check_guesses(strategy, logits, guesses, found, draft, uniform) -> Checked:
    """Keeps guesses so that the tokens have the distribution of the model.

    Args:
        strategy: `Greedy` or `Sample`.
        logits: The model's, (B, K + 1, V): of each guess, and of the token after them.
        guesses: (B, K).
        found: Whether the guesses of a row are any, bool (B,).
        draft: The distributions that the guesses were drawn from, (B, K, V); None if
            they were not drawn.
        uniform: Random numbers in [0, 1), (B, K + 1, 3); None for `Greedy`.
    """
    count = guesses.shape[1]
    found = ops.expand_dims(found, 1)
    if isinstance(strategy, Greedy):
        chosen = ops.cast(ops.argmax(logits, axis=-1), "int32")
        kept = ops.logical_and(ops.equal(chosen[:, :count], guesses), found)
        return Checked(_length_of_run(kept), lambda index: ops.take(chosen, index, 1))
    vocabulary = logits.shape[-1]
    target = strategy.probabilities(ops.reshape(logits, (-1, vocabulary)))
    target = ops.reshape(target, (-1, count + 1, vocabulary))
    by_target = _get_probability(target[:, :count], guesses)
    by_draft = 1.0 if draft is None else _get_probability(draft, guesses)
    kept = ops.less(uniform[:, :count, _KEEP] * by_draft, by_target)
    kept = ops.logical_and(kept, found)

    def replace(index):
        wanted = ops.take(target, index, axis=1)
        guess = ops.minimum(index, count - 1)
        # After the last guess, and without any, the token is drawn from the target.
        is_guessed = ops.cast(ops.logical_and(index < count, found), wanted.dtype)
        if draft is None:
            token = ops.take(guesses, guess, axis=1)
            drawn_from = ops.one_hot(token, vocabulary, dtype=wanted.dtype)
        else:
            drawn_from = ops.take(draft, guess, axis=1)
        left = ops.maximum(wanted - is_guessed * drawn_from, 0.0)
        # By rounding nothing may be left where the two are equal.
        is_left = ops.sum(left, axis=-1, keepdims=True) > 0
        left = ops.where(is_left, left, wanted)
        return draw(left, ops.take(uniform[:, :, _REPLACE], index, axis=1))

    return Checked(_length_of_run(kept), replace)


def speculate(
    functions: DecodingFunctions,
    draft: DecodingFunctions | None,
    inputs: dict,
    text,
    uniform,
    buffer_length: int,
    settings: Settings,
    speculation,
) -> dict:
    """`loop.decode` with several tokens per pass.

    Args:
        functions: The model's, with `extend`.
        draft: The draft model's, or None for `PromptLookup`.
        inputs: Inputs of `prefill`.
        text: From `text_before`, or None for a draft model.
        uniform: Random numbers, (B, M, 3), or None.
        buffer_length: M, at least `max_new_tokens` + K.
        settings: Strategy, number of tokens and special tokens.
        speculation: A `PromptLookup` or a `DraftModel`.

    Returns:
        The fields of `Speculated`, by name.
    """
    strategy, count = settings.strategy, speculation.tokens
    limit, ends = settings.max_new_tokens, settings.end_token_ids
    pad = settings.pad_token_id
    mask = inputs["padding_mask"]
    outputs = functions.prefill(inputs)
    caches = _caches(outputs)
    drafted = {} if draft is None else _caches(draft.prefill(inputs))
    batch = ops.shape(mask)[0]

    first = None if uniform is None else uniform[:, :, _GUESS]
    search = strategy.start(batch, buffer_length, pad, first)
    token, _, search = strategy.advance(search, outputs["logits"], 0, ends, pad)
    search = {name: search[name] for name in ("token_ids", "scores", "done")}
    counts = {
        name: ops.zeros((), "int32")
        for name in ("num_passes", "num_guessed", "num_kept")
    }

    def unfinished(known, token, search, counts, caches, drafted):
        return ops.logical_and(
            ops.less(known, limit), ops.logical_not(ops.all(search["done"]))
        )

    def body(known, token, search, counts, caches, drafted):
        # Tokens of the next `count + 1` positions; the last known token is not in the
        # caches yet.
        numbers = None
        if uniform is not None:
            numbers = ops.slice(uniform, (0, known, 0), (batch, count + 1, 3))
        before = counters(mask, known, _get_length(caches))
        probabilities = None
        if draft is None:
            whole = ops.concatenate([text, search["token_ids"]], axis=1)
            length = ops.shape(text)[1] + known
            guesses, found = look_up(whole, length, speculation.ngram, count)
        else:
            guesses, probabilities, drafted = _guess(
                draft, strategy, mask, known, token, drafted, count, numbers
            )
            found = ops.ones_like(search["done"])
        read = ops.concatenate([ops.expand_dims(token, 1), guesses], axis=1)
        state = {**before, **caches}
        outputs = functions.extend({**state, "token_ids": read})
        logits = ops.cast(outputs.pop("logits"), "float32")
        caches = loop_variables(next_state(state, outputs), caches)
        checked = check_guesses(
            strategy, logits, guesses, found, probabilities, numbers
        )

        done = search["done"]
        num_kept = ops.where(done, count, checked.num_kept)
        shared = ops.min(num_kept)
        last = ops.where(
            num_kept > shared,
            ops.take(guesses, ops.minimum(shared, count - 1), axis=1),
            ops.cast(checked.replace(shared), "int32"),
        )
        index = ops.expand_dims(ops.arange(count + 1, dtype="int32"), 0)
        # (B, K + 1): the kept guesses, then `last`.
        new = ops.where(
            index < shared,
            ops.concatenate([guesses, guesses[:, :1]], axis=1),
            ops.expand_dims(last, 1),
        )
        ended = ops.cast(is_end(new, ends), "int32")
        is_new = ops.logical_and(
            ops.logical_and(index <= shared, index + known < limit),
            ops.equal(ops.cumsum(ended, axis=1) - ended, 0),
        )
        is_new = ops.logical_and(is_new, ops.logical_not(ops.expand_dims(done, 1)))
        log_probs = _get_probability(ops.log_softmax(logits, axis=-1), new)
        new = ops.where(is_new, new, pad)
        search = {
            "token_ids": ops.slice_update(search["token_ids"], (0, known), new),
            "scores": search["scores"]
            + ops.sum(ops.where(is_new, log_probs, 0.0), axis=1),
            "done": ops.logical_or(
                done, ops.any(ops.logical_and(is_new, ended > 0), axis=1)
            ),
        }
        guessed = ops.logical_and(found, ops.logical_not(done))
        is_kept = ops.logical_and(is_new, index < ops.expand_dims(num_kept, 1))
        counts = {
            "num_passes": counts["num_passes"] + 1,
            "num_guessed": counts["num_guessed"]
            + count * ops.sum(ops.cast(guessed, "int32")),
            "num_kept": counts["num_kept"] + ops.sum(ops.cast(is_kept, "int32")),
        }
        return known + shared + 1, last, search, counts, caches, drafted

    carry = (ops.convert_to_tensor(1, "int32"), token, search, counts, caches, drafted)
    _, _, search, counts, _, _ = ops.while_loop(unfinished, body, carry)
    token_ids, scores = search["token_ids"], search["scores"]
    return {"token_ids": token_ids, "scores": scores, **counts}


def counters(mask, known, length):
    """The state besides the caches, before the last known token is read.

    Args:
        mask: The padding mask of the prompts, (B, P).
        known: Number of new tokens that are known, at least 1.
        length: L.
    """
    mask = ops.cast(mask, "bool")
    batch, prompt = ops.shape(mask)
    # The slots from here on hold nothing, or rejected tokens.
    cache_index = prompt + known - 1
    slots = ops.expand_dims(ops.arange(length, dtype="int32"), 0)
    # P may be unknown in a graph, but L is not.
    added = ops.ones((batch, length), "bool")
    visible = ops.concatenate([mask, added], axis=1)[:, :length]
    count = ops.sum(ops.cast(mask, "int32"), axis=1)
    return {
        "visible": ops.logical_and(visible, slots < cache_index),
        "position": count + known - 1,
        CACHE_INDEX: ops.zeros_like(count) + cache_index,
    }


def _guess(draft, strategy, mask, known, token, caches, count, uniform):
    """The guesses of a draft model, their distributions, and its caches."""
    guesses, probabilities = [], []
    state = {**counters(mask, known, _get_length(caches)), **caches}
    # One step more than guesses, so that all of them are in the caches.
    for index in range(count + 1):
        outputs = draft.step({**state, "token_ids": token})
        state = next_state(state, outputs)
        logits = ops.cast(state.pop("logits"), "float32")
        if index == count:
            break
        if isinstance(strategy, Greedy):
            token = ops.cast(ops.argmax(logits, axis=-1), "int32")
        else:
            probabilities.append(strategy.probabilities(logits))
            token = ops.cast(
                draw(probabilities[-1], uniform[:, index, _GUESS]), "int32"
            )
        guesses.append(token)
    probabilities = ops.stack(probabilities, axis=1) if probabilities else None
    return ops.stack(guesses, axis=1), probabilities, loop_variables(state, caches)


def _caches(outputs: dict) -> dict:
    return {
        name: tensor
        for name, tensor in outputs.items()
        if name != "logits" and name not in _COUNTERS
    }


def _get_length(caches: dict) -> int:
    return next(iter(caches.values())).shape[2]


def _length_of_run(kept):
    """Number of True before the first False, (B, K) -> (B,)."""
    return ops.sum(ops.cumprod(ops.cast(kept, "int32"), axis=1), axis=1)


def _get_probability(values, tokens):
    """Entries of values (B, K, V) at tokens (B, K)."""
    at = ops.expand_dims(tokens, -1)
    return ops.take_along_axis(values, at, axis=-1)[..., 0]
