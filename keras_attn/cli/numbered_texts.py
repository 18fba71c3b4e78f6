"""Several continuations of a prompt, numbered, the best first.

Decoding: `decoding/generate.py`; log-likelihoods of texts: `decoding/rescoring.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras_attn.cli.printed_text import TokenStream
from keras_attn.cli.terminal import console


class Continuation(NamedTuple):
    """A continuation of a prompt.

    Attributes:
        text: What is printed: it ends before a stop text.
        whole: The text with its stop text.
        ids: Its tokens, with their end token or stop text.
        is_ended: Whether they have an end token.
    """

    text: str
    whole: str
    ids: list[int]
    is_ended: bool


# The log-probabilities of continuations of a prompt, and their numbers of tokens.
Scorer = Callable[[str, Sequence[Continuation]], tuple[Sequence[float], Sequence[int]]]


def print_numbered(
    model: Any,
    tokenizer: Any,
    prompt: str,
    prompt_ids: list[int],
    length: int,
    strategy: Any,
    stops: Sequence[str],
    count: int,
    *,
    is_total: bool,
    scorer: Scorer | None,
) -> None:
    """Prints continuations with their scores, the best first.

    The score of a sample is its log-probability per token, without temperature, `top_k`
    and `top_p`, its end token or stop text included; that of a beam is the one of the
    search. A beam search may find fewer.

    Args:
        model: The model or the runner that continues.
        tokenizer: Its tokenizer.
        prompt: The prompt.
        prompt_ids: Its tokens.
        length: Maximum number of new tokens.
        strategy: A `Sample` or a `Beam`.
        stops: Texts before which a continuation is cut.
        count: Number of continuations.
        is_total: Whether the score is not per token.
        scorer: Gives the log-probabilities instead of the model.

    Raises:
        ValueError: If samples of a runner have stop texts: it cannot score what is
            before them.
    """
    import numpy as np

    from keras_attn.decoding import Sample, generate, log_likelihood
    from keras_attn.ops import MASKED

    is_sample = isinstance(strategy, Sample)
    is_exported = not hasattr(model, "incremental")
    if is_exported and is_sample and stops and scorer is None:
        raise ValueError(
            "--num-samples with --stop needs a model of Keras, which scores what is "
            f"before the stop text. Received: --stop {' --stop '.join(stops)}"
        )
    with console.status("Generating"):
        found = generate(
            model,
            {"token_ids": np.array([prompt_ids])},
            length,
            strategy=strategy,
            num_results=count,
            end_token_id=tokenizer.end_token_id,
        )
    rows = found.token_ids[0][found.scores[0] > MASKED / 2]
    texts = [_read(tokenizer, prompt_ids, row, stops) for row in rows.tolist()]
    scores: Any = found.scores[0].astype("float64")
    counts: Any = [len(each.ids) for each in texts]
    if scorer is not None:
        scores, counts = scorer(prompt, texts)
    elif is_sample and any(each.text != each.whole for each in texts):
        rows = [[*prompt_ids, *each.ids] for each in texts]
        scores = log_likelihood(model, rows, num_given=len(prompt_ids))
    scores, counts = np.asarray(scores)[: len(texts)], np.asarray(counts)
    if not is_total and (is_sample or scorer is not None):
        scores = scores / np.maximum(counts, 1)
    # Of a text without tokens nothing is known.
    scores = np.where(counts > 0, scores, -np.inf)
    for number, index in enumerate(np.argsort(-scores, kind="stable"), 1):
        print(f"{number}. ({scores[index]:.2f}) {texts[index].text}", flush=True)


def _read(tokenizer, prompt_ids: list[int], row: list[int], stops) -> Continuation:
    """The continuation in a row of new tokens."""
    end, is_ended = tokenizer.end_token_id, False
    stream, text, ids = TokenStream(tokenizer, prompt_ids), "", []
    for token in row:
        ids.append(token)
        is_ended = token == end
        text += stream.finish() if is_ended else stream.feed(token)
        if is_ended or any(stop in text for stop in stops):
            break
    else:
        text += stream.finish()
    ends = [text.find(stop) for stop in stops if stop in text]
    return Continuation(text[: min(ends)] if ends else text, text, ids, is_ended)
