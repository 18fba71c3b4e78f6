"""Several continuations of a prompt, numbered, the best first.

Decoding: `decoding/generate.py`; log-likelihoods of texts: `decoding/rescoring.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras_attn.cli.printed_text import TokenStream
from keras_attn.cli.terminal import console

# The log-probabilities of texts after a prompt, and their numbers of tokens.
Scorer = Callable[[str, list[str]], tuple[Sequence[float], Sequence[int]]]


class _Text(NamedTuple):
    """A continuation: its text, its tokens with their end, whether a stop cut it."""

    text: str
    ids: list[int]
    is_cut: bool


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
    search.

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
    texts = [_read(tokenizer, prompt_ids, row, stops) for row in found.token_ids[0]]
    scores = np.asarray(found.scores[0], "float64")
    counts = np.array([len(each.ids) for each in texts])
    if scorer is not None:
        scores, counts = scorer(prompt, [each.text for each in texts])
    elif is_sample and any(each.is_cut for each in texts):
        rows = [[*prompt_ids, *each.ids] for each in texts]
        scores = log_likelihood(model, rows, num_given=len(prompt_ids))
    if not is_total and (is_sample or scorer is not None):
        scores = np.asarray(scores) / np.maximum(counts, 1)
    for number, index in enumerate(np.argsort(-np.asarray(scores), kind="stable"), 1):
        print(f"{number}. ({scores[index]:.2f}) {texts[index].text}", flush=True)


def _read(tokenizer, prompt_ids: list[int], row, stops: Sequence[str]) -> _Text:
    """The continuation in a row of new tokens."""
    stream, text, ids = TokenStream(tokenizer, prompt_ids), "", []
    for token in row.tolist():
        ids.append(token)
        if token == tokenizer.end_token_id:
            break
        text += stream.feed(token)
        if any(stop in text for stop in stops):
            break
    else:
        text += stream.finish()
    ends = [text.find(stop) for stop in stops if stop in text]
    return _Text(text[: min(ends)] if ends else text, ids, bool(ends))
