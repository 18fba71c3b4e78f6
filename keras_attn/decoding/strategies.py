"""Strategies that choose the next token: greedy decoding, sampling, beam search.

A `Strategy` is three pure functions over a dictionary of tensors, the *search*:
`start` creates it, `advance` adds one token to it, `finish` reads the result. The same
code runs inside a compiled loop and on the host with an exported model. `uniform` gives
the random numbers of a whole call, which are drawn on the host.

It needs `num_beams` rows for each row of the prompt, and has `revises` set if a
later token may change earlier ones. `numbers` are the settings that a compiled loop
takes as inputs; a change of any other setting compiles a new loop.

Legend: B batch, K beams, V vocabulary, M length of the buffer of new tokens.
"""

import copy
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Literal

import numpy as np
from keras import ops

from keras_attn.checks.arguments import check_choice, check_positive
from keras_attn.docstrings.descriptions import described_as
from keras_attn.ops import MASKED

# Values of `top_k` and `top_p` inside a compiled loop if they are None: no limit.
_ALL_TOKENS, _ALL_PROBABILITY = 2**31 - 1, 2.0
# Up to this `top_k` the whole vocabulary need not be sorted.
_FEW = 128


def traced_settings(strategy) -> dict:
    """The settings of a strategy that a compiled loop takes as inputs, as arrays."""
    getter = getattr(strategy, "numbers", dict)
    return {name: np.asarray(number) for name, number in getter().items()}


def with_traced_settings(strategy, settings):
    """A copy of the strategy with these settings, which may be tensors."""
    if not settings:
        return strategy
    other = copy.copy(strategy)
    for name, value in settings.items():
        object.__setattr__(other, name, value)
    return other


def compilation_key(strategy):
    """A key that is equal for strategies that can share one compiled loop."""
    if not is_dataclass(strategy):
        return strategy
    traced = traced_settings(strategy)
    fixed = [
        (each.name, getattr(strategy, each.name))
        for each in fields(strategy)
        if each.compare and each.name not in traced
    ]
    return type(strategy), tuple(fixed)


class Strategy:
    """The methods of all strategies, by default with one beam and no random numbers."""

    num_beams = 1
    revises = False

    def uniform(self, batch, length) -> np.ndarray | None:
        """The random numbers of a whole call, uniform in [0, 1).

        Args:
            batch: B, the number of prompts.
            length: M, the maximum number of new tokens.

        Returns:
            A NumPy array (B, M), or None if the strategy needs none.
        """
        return None

    def start(self, batch, length, pad_token_id, uniform):
        """The search before the first token.

        Args:
            batch: B, the number of prompts.
            length: M, the maximum number of new tokens.
            pad_token_id: The token after the end of a row.
            uniform: What the method `uniform` returned, as a tensor.

        Returns:
            A dictionary of tensors whose axis 0 is the batch.
        """
        return _start_rows(batch, length, pad_token_id)

    def advance(self, search, logits, index, end_token_id, pad_token_id):
        """Chooses one token per row.

        Args:
            search: From `start` or the last `advance`.
            logits: (B·K, V).
            index: Position of the token among the new ones, from 0.
            end_token_id: One token or several; any of them ends its row.
            pad_token_id: Written to a row after it has ended.

        Returns:
            The tokens, (B·K,), the row that each beam continues, (B·K,) or None if
            every row continues itself, and the new search.
        """
        raise NotImplementedError

    def finish(self, search, length, count=1):
        """The continuations of each prompt, and their log-probabilities.

        Args:
            search: From the last `advance`; without beams, it has B·n rows.
            length: Number of tokens of the rows that have not ended.
            count: n, how many continuations a prompt has.

        Returns:
            Tokens, (B, n, M), and the sums of their log-probabilities, (B, n).
        """
        shape = (-1, count, search["token_ids"].shape[-1])
        token_ids = ops.reshape(search["token_ids"], shape)
        return token_ids, ops.reshape(search["scores"], shape[:2])


@dataclass(frozen=True)
class Greedy(Strategy):
    """Always the most probable token."""

    @described_as(Strategy.advance)
    def advance(self, search, logits, index, end_token_id, pad_token_id):
        """Chooses the most probable token of each row.

        Returns:
            As from `Strategy.advance`.
        """
        token = ops.argmax(logits, axis=-1)
        return _advance_rows(search, logits, token, index, end_token_id, pad_token_id)


@dataclass(frozen=True)
class Sample(Strategy):
    """Samples each token from the model's distribution.

    The randomness comes from NumPy, one uniform number per token, so the same seed
    gives the same text compiled, on the host and on every backend.

    Args:
        temperature: Divides the logits: below 1 sharpens the distribution, above 1
            flattens it.
        top_k: Samples from the k most probable tokens only. None = all.
        top_p: Samples from the smallest set of most probable tokens whose total
            probability reaches this, in (0, 1] (nucleus sampling). None = all.
        seed: Seed of the random numbers. None = different random numbers in every call.

    Raises:
        ValueError: If `temperature`, `top_k` or `top_p` is out of range.

    Reference:
        Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration"
        (arXiv:1904.09751); Fan et al. 2018 for top-k (arXiv:1805.04833).
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    # Not compared: one compiled loop serves every seed.
    seed: int | None = field(default=None, compare=False)

    def __post_init__(self):
        if not self.temperature > 0:
            raise ValueError(
                "`temperature` must be above 0; for the most probable token use "
                f"Greedy(). Received: temperature={self.temperature}"
            )
        if self.top_k is not None:
            check_positive("top_k", self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(
                f"`top_p` must be a probability in (0, 1]. Received: top_p={self.top_p}"
            )

    def numbers(self):
        """The settings that a compiled loop takes as inputs."""
        return {
            "temperature": np.float32(self.temperature),
            "top_k": np.int32(
                _ALL_TOKENS if self.top_k is None else min(self.top_k, _ALL_TOKENS)
            ),
            "top_p": np.float32(_ALL_PROBABILITY if self.top_p is None else self.top_p),
        }

    @described_as(Strategy.uniform)
    def uniform(self, batch, length):
        """Uniform random numbers in [0, 1), one per token: (B, M)."""
        return np.random.default_rng(self.seed).random((batch, length), "float32")

    @described_as(Strategy.start)
    def start(self, batch, length, pad_token_id, uniform):
        """Empty rows, and the random numbers for all of their tokens."""
        return {**_start_rows(batch, length, pad_token_id), "uniform": uniform}

    @described_as(Strategy.advance)
    def advance(self, search, logits, index, end_token_id, pad_token_id):
        """Samples a token for each row.

        Returns:
            As from `Strategy.advance`.
        """
        kept = self.probabilities(logits)
        token = draw(kept, ops.take(search["uniform"], index, axis=1))
        return _advance_rows(search, logits, token, index, end_token_id, pad_token_id)

    def probabilities(self, logits):
        """The distribution of the tokens: zero for those that a filter excludes.

        Args:
            logits: (N, V).

        Returns:
            Probabilities, float32 (N, V), which sum to 1 in each row.
        """
        logits = ops.cast(logits, "float32") / self.temperature
        if self.top_k is not None:
            logits = ops.cond(
                self.top_k < logits.shape[-1],
                lambda: _only_top_k(logits, self.top_k),
                lambda: logits,
            )
        probabilities = ops.softmax(logits, axis=-1)
        if self.top_p is None:
            return probabilities
        return ops.cond(
            self.top_p < 1,
            lambda: _only_top_p(probabilities, self.top_p),
            lambda: probabilities,
        )


@dataclass(frozen=True)
class Beam(Strategy):
    """Beam search: keeps the K most probable continuations of each prompt.

    A continuation is finished when its end token is among the K best extensions. The
    search ends with K finished continuations, ranked by `log p(y) / lp(y)`:

        lp(y) = ((5 + |y|) / 6)^α   normalization "wu"; |y| counts the end token
        lp(y) = |y|^α               "length"; |y| counts no end token, at least 1

    With one beam this is greedy decoding.

    Args:
        num_beams: K, the number of beams per row.
        length_penalty: α. 0 ranks only by probability, which favors short answers;
            Vaswani et al. use 0.6, and Chan et al. divide by the number of characters:
            1, with "length".
        normalization: "wu" or "length".

    Raises:
        ValueError: If `num_beams` is less than 1, or `normalization` is unknown.

    Reference:
        Wu et al. 2016, "Google's Neural Machine Translation System", section 7
        (arXiv:1609.08144); Chan et al. 2016, "Listen, Attend and Spell", section 3.4
        (arXiv:1508.01211).
    """

    num_beams: int = 4
    length_penalty: float = 0.6
    normalization: Literal["wu", "length"] = "wu"

    # The best beam at one step may be overtaken at the next.
    revises = True

    def __post_init__(self):
        check_positive("num_beams", self.num_beams)
        check_choice("normalization", self.normalization, ("wu", "length"))

    def numbers(self):
        """The settings that a compiled loop takes as inputs."""
        return {"length_penalty": np.float32(self.length_penalty)}

    @described_as(Strategy.start)
    def start(self, batch, length, pad_token_id, uniform):
        """One live beam per row: K identical ones would stay identical."""
        beams = self.num_beams
        alone = ops.where(ops.equal(ops.arange(beams), 0), 0.0, MASKED)
        empty = ops.full((batch, beams, length), pad_token_id, dtype="int32")
        return {
            "live_ids": empty,
            "live_scores": ops.broadcast_to(alone, (batch, beams)),
            "finished_ids": empty,
            "finished_scores": ops.full((batch, beams), MASKED, dtype="float32"),
            "done": ops.zeros((batch,), dtype="bool"),
        }

    @described_as(Strategy.advance)
    def advance(self, search, logits, index, end_token_id, pad_token_id):
        """Extends the live beams of each row by one token.

        Returns:
            As from `Strategy.advance`.
        """
        beams, vocabulary = self.num_beams, logits.shape[-1]
        log_probs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
        totals = ops.add(
            ops.expand_dims(search["live_scores"], -1),
            ops.reshape(log_probs, (-1, beams, vocabulary)),
        )
        # 2K candidates with one end token: at most K of them, one per beam, can be end
        # tokens, so at least K live candidates remain. Each further end token needs K
        # more candidates.
        count = min(1 + _ends(end_token_id).shape[0], vocabulary) * beams
        scores, flat = ops.top_k(ops.reshape(totals, (-1, beams * vocabulary)), count)
        parent, token = flat // vocabulary, ops.cast(flat % vocabulary, "int32")
        ids = _take_rows(search["live_ids"], parent)  # (B, 2K or more, M)
        ids = set_token(ids, token, index)
        ends = is_end(token, end_token_id)

        among_best = ops.less(ops.arange(count), beams)
        # Ignore extensions of empty beams also after the penalty changed their scores.
        real = ops.greater(scores, MASKED / 2)
        accepted = ops.logical_and(
            ops.logical_and(ends, ops.logical_and(among_best, real)),
            ops.logical_not(ops.expand_dims(search["done"], 1)),
        )
        penalised = scores / self._penalty(index + 1, num_ends=1)
        finished_ids, finished_scores = _best(
            beams,
            ops.concatenate([search["finished_ids"], ids], axis=1),
            ops.concatenate(
                [search["finished_scores"], ops.where(accepted, penalised, MASKED)],
                axis=1,
            ),
        )
        live_scores, live = ops.top_k(ops.where(ends, MASKED, scores), beams)
        full = ops.all(ops.greater(finished_scores, MASKED / 2), axis=1)
        search = {
            "live_ids": _take_rows(ids, live),
            "live_scores": live_scores,
            "finished_ids": finished_ids,
            "finished_scores": finished_scores,
            "done": ops.logical_or(search["done"], full),
        }
        first = ops.expand_dims(ops.arange(ops.shape(live)[0]) * beams, 1)
        parents = ops.cast(first, "int32") + ops.cast(_take_rows(parent, live), "int32")
        next_token = ops.reshape(_take_rows(token, live), (-1,))
        return next_token, ops.reshape(parents, (-1,)), search

    @described_as(Strategy.finish)
    def finish(self, search, length, count=1):
        """The best continuations of each prompt, the best first.

        Args:
            count: n, at most K.

        Returns:
            Tokens, (B, n, M), and penalized scores, (B, n), `MASKED` where a row has
            fewer continuations.
        """
        # Live beams count too if the maximum length ended the search; of empty ones a
        # penalty would make others.
        live = search["live_scores"]
        counts = ops.logical_and(
            ops.greater(live, MASKED / 2),
            ops.expand_dims(ops.logical_not(search["done"]), 1),
        )
        live = ops.where(counts, live / self._penalty(length, num_ends=0), MASKED)
        return _best(
            count,
            ops.concatenate([search["finished_ids"], search["live_ids"]], axis=1),
            ops.concatenate([search["finished_scores"], live], axis=1),
        )

    def _penalty(self, length, num_ends):
        """lp(y) of `length` tokens, of which so many are end tokens."""
        length = ops.cast(length, "float32")
        if self.normalization == "length":
            base = ops.maximum(length - num_ends, 1.0)
        else:
            base = (5.0 + length) / 6.0
        return ops.power(base, self.length_penalty)


def _only_top_k(logits, k):
    """Logits, MASKED where below the row's k-th largest; `k` may be a tensor."""
    size = logits.shape[-1]
    few = min(_FEW, size)
    index = ops.reshape(ops.cast(k, "int32"), (1,)) - 1
    least = ops.cond(
        k <= few,
        lambda: ops.take(ops.top_k(logits, few)[0], index, axis=-1),
        lambda: ops.take(ops.sort(logits, axis=-1), size - 1 - index, axis=-1),
    )
    return ops.where(ops.less(logits, least), MASKED, logits)


def _only_top_p(probabilities, p):
    """Probabilities given the nucleus of mass `p`, which may be a tensor."""
    ordered = ops.flip(ops.sort(probabilities, axis=-1), axis=-1)
    before = ops.cumsum(ordered, axis=-1) - ordered
    # The least probable token of the nucleus, which always contains the first token.
    needed = ops.where(ops.less(before, p), ordered, 2.0)
    least = ops.min(needed, axis=-1, keepdims=True)
    nucleus = ops.where(ops.less(probabilities, least), 0.0, probabilities)
    return nucleus / ops.sum(nucleus, axis=-1, keepdims=True)


def draw(probabilities, uniform):
    """Inverse transform sampling: the first token whose cumulative one is beyond.

    Args:
        probabilities: (B, V); a row need not sum to 1.
        uniform: Random numbers in [0, 1), (B,).

    Returns:
        Token ids, (B,).
    """
    cumulative = ops.cumsum(probabilities, axis=-1)
    beyond = ops.greater(cumulative, ops.expand_dims(uniform * cumulative[:, -1], 1))
    possible = ops.logical_and(beyond, ops.greater(probabilities, 0))
    return ops.argmax(ops.cast(possible, "int32"), axis=-1)


def _start_rows(batch, length, pad_token_id):
    return {
        "token_ids": ops.full((batch, length), pad_token_id, dtype="int32"),
        "scores": ops.zeros((batch,), dtype="float32"),
        "done": ops.zeros((batch,), dtype="bool"),
    }


def _advance_rows(search, logits, token, index, end_token_id, pad_token_id):
    """Writes one token per row, unless the row is done."""
    done = search["done"]
    log_probs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
    token = ops.cast(token, "int32")
    gained = _take_rows(log_probs, ops.expand_dims(token, 1))[:, 0]
    token = ops.where(done, pad_token_id, token)
    search = {
        **search,
        "token_ids": set_token(search["token_ids"], token, index),
        "scores": search["scores"] + ops.where(done, 0.0, gained),
        "done": ops.logical_or(done, is_end(token, end_token_id)),
    }
    return token, None, search


def is_end(token, end_token_id):
    """Whether each token, (...), is an end token."""
    ends = _ends(end_token_id)
    return ops.any(ops.equal(ops.expand_dims(token, -1), ends), axis=-1)


def _ends(end_token_id):
    """One id, or several, as int32 (E,)."""
    if isinstance(end_token_id, int | tuple | list):
        end_token_id = np.array(end_token_id, "int32")
    return ops.reshape(ops.convert_to_tensor(end_token_id, "int32"), (-1,))


def set_token(ids, token, index):
    """`ids`, (..., M), with `token`, (...), at `index`, one or (..., 1) of them."""
    here = ops.equal(ops.arange(ids.shape[-1], dtype="int32"), index)
    return ops.where(here, ops.expand_dims(token, -1), ids)


def _take_rows(values, indices):
    """Along axis 1: values (B, M, …) at indices (B, K) gives (B, K, …)."""
    indices = ops.cast(indices, "int32")
    if len(values.shape) == 3:
        indices = ops.expand_dims(indices, -1)
    return ops.take_along_axis(values, indices, axis=1)


def _best(count, ids, scores):
    """The `count` best rows of ids (B, R, M) by scores (B, R)."""
    scores, order = ops.top_k(scores, count)
    return _take_rows(ids, order), scores
