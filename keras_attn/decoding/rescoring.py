"""Rescoring: the texts of a search, ranked again by length and a language model.

    s(y | x) = log P(y | x) / |y|_c + λ log P_LM(y)

`generate(..., num_results=n)` finds texts y of an input x, with log P(y | x);
`language_model_scorer` gives log P_LM(y), by `log_likelihood`; `rescore` ranks the
texts by s. |y|_c is the number of characters of y, without an end token.

Legend: B rows, n texts of a row, N sequences, T tokens of the longest, V vocabulary.

Reference:
    Chan et al. 2016, "Listen, Attend and Spell", section 3.4 (arXiv:1508.01211).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_attn.checks.arguments import check_positive, check_same_length
from keras_attn.ops import MASKED, token_log_probabilities

# Lengths are padded to a multiple of this, so that few shapes are compiled.
_MULTIPLE = 32
_INPUTS = {"token_ids", "padding_mask"}


class ScoredText(NamedTuple):
    """A text of `rescore`.

    Attributes:
        text: The text, y.
        score: s(y | x); the larger, the better.
    """

    text: str
    score: float


def rescore(
    texts: Sequence[Sequence[str]],
    log_probs,
    *,
    scorer: Callable[[list[str]], Any] | None = None,
    weight: float | None = None,
) -> list[list[ScoredText]]:
    """Ranks the texts of each row by `log P(y | x) / |y|_c + λ log P_LM(y)`.

    The log-probability of a text grows with its length, so that a search prefers short
    texts; here it is one per character. An empty text counts as one character.

    Args:
        texts: For each of B rows its n texts, such as `tokenizer.decode_batch` gives.
        log_probs: log P(y | x), (B, n): the scores of `generate` with `num_results`,
            from `Sample(...)` or from `Beam(K, length_penalty=0.0)`, whose scores are
            not divided yet. Texts with the score `ops.MASKED`, which a search did not
            find, are left out.
        scorer: log P_LM(y): a function of a list of texts that returns a number for
            each, such as `language_model_scorer(...)`; or any other score to be added.
            None = none.
        weight: λ, the weight of `scorer`, which needs it. Chosen on held-out data.

    Returns:
        For each row its texts with their scores, the best first.

    Raises:
        ValueError: If the numbers of texts and of `log_probs` differ, `scorer` and
            `weight` are not given together, or `scorer` does not return a number for
            each text.

    Example:
        ```python
        import numpy as np
        from keras_attn import decoding

        def spelled(texts):
            return [-5.0 * ("sevn" in text) for text in texts]

        texts, log_probs = [["seven two", "sevn too"]], np.array([[-3.2, -2.9]])
        decoding.rescore(texts, log_probs, scorer=spelled, weight=0.1)
        ```

    Reference:
        Chan et al. 2016, section 3.4 (arXiv:1508.01211).
    """
    log_probs = np.asarray(log_probs, "float64")
    counts = tuple(len(row) for row in texts)
    if log_probs.ndim != 2 or counts != (log_probs.shape[1],) * len(log_probs):
        raise ValueError(
            "`log_probs` must be (rows, texts), one number for each text. Received: "
            f"log_probs.shape={log_probs.shape}, for rows of {list(counts)} texts"
        )
    if (scorer is None) != (weight is None):
        raise ValueError(
            "`scorer` and `weight` must be given together. "
            f"Received: scorer={scorer!r}, weight={weight}"
        )
    ranked = []
    for row, found in zip(texts, log_probs, strict=True):
        kept = np.flatnonzero(found > MASKED / 2)
        row = [row[index] for index in kept.tolist()]
        scores = found[kept] / np.array([max(len(text), 1) for text in row])
        if scorer is not None and weight is not None and row:
            scores = scores + weight * _scores(scorer, row)
        order = np.argsort(-scores, kind="stable").tolist()
        ranked.append([ScoredText(row[index], float(scores[index])) for index in order])
    return ranked


def _scores(scorer, texts: list[str]) -> np.ndarray:
    """A number for each text, (n,)."""
    scores = np.asarray(ops.convert_to_numpy(scorer(texts)), "float64")
    if scores.shape != (len(texts),) or np.isnan(scores).any():
        raise ValueError(
            f"`scorer` must return a number for each of {len(texts)} texts. "
            f"Received: {scores!r}"
        )
    return scores


def language_model_scorer(
    model, tokenizer, *, start_token_id: int | None = None, batch_size: int = 8
) -> Callable[[list[str]], np.ndarray]:
    """The function log P_LM of texts, as the `scorer` of `rescore`.

    The probability is of the whole text: its first token after a start token, and the
    end token after its last.

    Args:
        model: A language model such as `models.build_gpt`; see `log_likelihood`.
        tokenizer: Its tokenizer, with an `end_token_id`.
        start_token_id: The token before each text. Default: the tokenizer's. A model
            that learned from `data.pack_documents` has seen the end token there.
        batch_size: Texts that are read together.

    Returns:
        A function of N texts that returns float64 (N,), in nats.

    Raises:
        ValueError: If the tokenizer has no start or no end token.

    Example:
        ```python
        from keras_attn import data, decoding, models

        texts = ["seven two", "sevn too"]
        tokenizer = data.CharacterTokenizer.train(texts)
        gpt = models.build_gpt(num_layers=1, hidden_dim=32, vocabulary_size=20)
        scorer = decoding.language_model_scorer(gpt, tokenizer)
        scorer(texts)  # (2,), the first larger once the model is trained.
        ```
    """
    start = start_token_id
    if start is None:
        start = getattr(tokenizer, "start_token_id", None)
    end = getattr(tokenizer, "end_token_id", None)
    if start is None or end is None:
        raise ValueError(
            "`tokenizer` must have a start and an end token, or `start_token_id` be "
            f"given. Received: start_token_id={start}, end_token_id={end}"
        )

    def score(texts: list[str]) -> np.ndarray:
        rows = [[start, *tokenizer.encode(text), end] for text in texts]
        return log_likelihood(model, rows, batch_size=batch_size)

    return score


def log_likelihood(
    model,
    sequences: Sequence[Sequence[int]],
    *,
    num_given: int | Sequence[int] = 1,
    batch_size: int = 8,
) -> np.ndarray:
    """The log-probability of the last tokens of sequences, given the first ones.

        Σ_t log p(y_t | y_<t), t from `num_given` on

    Each sequence is read once, all of its tokens together.

    Args:
        model: A Keras model from `token_ids` (B, T), and `padding_mask` (B, T) if it
            takes one, to logits (B, T, V) of the next tokens, with `incremental()`:
            such as `models.build_gpt`.
        sequences: Token ids of each sequence, of any lengths.
        num_given: How many tokens are given: of a prompt, or 1, a start token. One
            number, or one for each sequence.
        batch_size: Sequences that are read together.

    Returns:
        float64 (N,), in nats; 0 for a sequence of only given tokens.

    Raises:
        TypeError: If `model` is not such a model.
        ValueError: If a sequence has fewer than `num_given` tokens, is too long for the
            model, or has tokens that are not in its vocabulary.

    Example:
        ```python
        from keras_attn import decoding, models

        gpt = models.build_gpt(num_layers=1, hidden_dim=32, vocabulary_size=100)
        prompt, answers = [5, 6, 7], [[8], [9, 10]]
        rows = [prompt + answer for answer in answers]
        decoding.log_likelihood(gpt, rows, num_given=3)  # (2,), of the answers.
        ```
    """
    names = getattr(model, "input", None)
    if not hasattr(model, "incremental") or not (
        isinstance(names, dict) and {"token_ids"} <= set(names) <= _INPUTS
    ):
        raise TypeError(
            "`model` must be a language model, from `token_ids` to the logits of the "
            f"next tokens. Received: model={type(model).__name__}"
        )
    check_positive("batch_size", batch_size)
    rows = [np.asarray(row) for row in sequences]
    counts = np.asarray(num_given)
    given = list(counts) if counts.ndim else [counts] * len(rows)
    check_same_length(sequences=rows, num_given=given)
    for row, count in zip(rows, given, strict=True):
        if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
            raise ValueError(
                "`sequences` must be rows of token ids, which are integers. "
                f"Received: a row of shape {row.shape} and dtype {row.dtype}"
            )
        if not 1 <= count <= len(row):
            raise ValueError(
                "`num_given` must be from 1 to the length of its sequence. "
                f"Received: num_given={count}, a sequence of {len(row)} tokens"
            )
    limit = getattr(model, "max_length", None)
    found = np.zeros(len(rows))
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        longest = len(rows[chosen[-1]])
        length = -(-longest // _MULTIPLE) * _MULTIPLE
        length = length if limit is None else max(longest, min(length, limit))
        found[chosen] = _sums(
            model, [rows[index] for index in chosen], [given[x] for x in chosen], length
        )
    return found


def _sums(model, rows, given, length: int) -> np.ndarray:
    """The log-likelihoods of rows that are padded to one length, (b,)."""
    token_ids = np.zeros((len(rows), length), "int32")
    for tokens, row in zip(token_ids, rows, strict=True):
        tokens[: len(row)] = row
    places = np.arange(length)
    lengths = np.array([[len(row)] for row in rows])
    inputs = {"token_ids": token_ids, "padding_mask": places < lengths}
    logits = model.predict_on_batch({name: inputs[name] for name in model.input})
    log_probs = token_log_probabilities(logits[:, :-1], token_ids[:, 1:])
    log_probs = ops.convert_to_numpy(log_probs).astype("float64")
    counts = (places >= np.array(given)[:, None]) & (places < lengths)
    return np.where(counts[:, 1:], log_probs, 0.0).sum(axis=1)
