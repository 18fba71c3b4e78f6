"""Predictions for texts: classes, scores, continuations.

Legend: B rows of a batch, T tokens, C classes.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_attn.cli.finetuning.kinds import TEXT_COLUMNS
from keras_attn.cli.generation_settings import note_settings
from keras_attn.cli.prediction.inputs import TextRow, read_rows
from keras_attn.cli.prediction.network import Network
from keras_attn.cli.terminal import in_parts, note
from keras_attn.decoding import generate
from keras_attn.export.signature_info import TEXT, TEXT_PAIR

_MULTIPLE = 8
_MAX_NEW_TOKENS = 64


def predict_texts(
    network: Network,
    sources: Sequence[str],
    *,
    columns: Sequence[str],
    batch_size: int,
    all_scores: bool,
    max_new_tokens: int | None,
    header: bool = True,
) -> Iterator[dict[str, Any]]:
    """The rows of the output: each row of the input with its prediction.

    A row without a text has a prediction of nothing. A column of the input that is
    called as one of the predictions becomes `input_…`.

    Args:
        network: The model.
        sources: See `read_rows`.
        columns: `--columns`; none = those that the model learned from.
        batch_size: B.
        all_scores: Whether each class has a column.
        max_new_tokens: Length of continuations.
        header: Whether the first line of a table names its columns.

    Raises:
        ValueError: As in `read_rows`; or if a text has too many tokens to continue it.
    """
    result = network.result
    is_continued = result.task in ("completion", "preference")
    known = [result.columns[x] for x in ("prompt", "text") if x in result.columns]
    if result.task == "reward":
        known = [*known[:1], "completion"] if "prompt" in result.columns else known
        known = known or ["completion"]
    elif "second" in result.columns:
        known.append(result.columns["second"])
    names = list(columns) or known or ["prompt" if is_continued else "text"]
    usual = ("prompt", *TEXT_COLUMNS) if is_continued else TEXT_COLUMNS
    rows = read_rows(sources, names, usual, header=header)
    given = [row for row in rows if not row.is_empty]
    if len(given) < len(rows):
        missing = next(row.label for row in rows if row.is_empty)
        note(
            f"{len(rows) - len(given):,} of {len(rows):,} rows have no text, and no "
            f"prediction; the first is {missing}"
        )
    if is_continued:
        found = _continued(network, given, batch_size, max_new_tokens)
    else:
        outputs = text_outputs(network, given, batch_size)
        found = (predicted(result, output, all_scores) for output in outputs)
    yield from _beside(rows, found)


def text_outputs(
    network: Network, rows: Sequence[TextRow], batch_size: int
) -> Iterator[np.ndarray]:
    """The outputs of the model for each row, (C,).

    Args:
        network: The model.
        rows: The texts.
        batch_size: B.
    """
    tokenizer = None if network.takes_strings else network.tokenizer()
    for part in in_parts(rows, network.choose_batch_size(batch_size), "Predicting"):
        yield from network(_encoded(network, tokenizer, part))


def _beside(
    rows: Sequence[TextRow], found: Iterator[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Each row of the input with its prediction, as soon as that is known."""
    columns = dict.fromkeys(name for row in rows for name in row.fields)
    names: dict[str, str] = {}
    nothing: dict[str, Any] = {}
    waiting: list[TextRow] = []  # Empty rows, before the predictions have names.
    for row in rows:
        waiting.append(row)
        if row.is_empty and not nothing:
            continue
        prediction = nothing if row.is_empty else next(found)
        if not nothing:
            nothing = dict.fromkeys(prediction)
            names = _input_names(columns, prediction)
        for each in waiting:
            fields = {names[x]: each.fields.get(x) for x in columns}
            yield {**fields, **(prediction if each is row else nothing)}
        waiting.clear()


def _input_names(columns: Iterable[str], prediction: Iterable[str]) -> dict[str, str]:
    """The names in the output of the columns of the input."""
    taken = {*columns, *prediction}
    names = {}
    for column in columns:
        name = column
        while name in prediction or (name != column and name in taken):
            name = f"input_{name}"
        taken.add(name)
        names[column] = name
    return names


def predicted(result: Any, output: np.ndarray, all_scores: bool) -> dict[str, Any]:
    """The class and its probability, from logits (C,); or a score, from (1,).

    Args:
        result: What the model was fine-tuned to.
        output: The outputs of a row.
        all_scores: Whether each class has an entry.
    """
    output = np.asarray(output, np.float64).reshape(-1)
    if result.task in ("text_regression", "reward") or len(output) == 1:
        return {"score": _rounded(output[0])}
    shares = np.exp(output - output.max())
    shares /= shares.sum()
    names = result.class_names or [str(index) for index in range(len(output))]
    if len(names) != len(output):
        raise ValueError(
            f"MODEL must have an output for each of its {len(names)} classes. "
            f"Received: {len(output)} outputs"
        )
    best = int(shares.argmax())
    found: dict[str, Any] = {"label": names[best], "score": _rounded(shares[best])}
    if all_scores:
        pairs = zip(names, shares, strict=True)
        found |= {f"score_{name}": _rounded(share) for name, share in pairs}
    return found


def _rounded(number: Any) -> float:
    return float(f"{float(number):.6g}")


def _encoded(network: Network, tokenizer: Any, rows: Sequence[TextRow]) -> dict:
    """The inputs of a batch."""
    first, *second = zip(*(row.texts.values() for row in rows), strict=True)
    if tokenizer is None:
        arrays = [np.array(texts, object) for texts in (first, *second)]
        return dict(zip((TEXT, TEXT_PAIR), arrays, strict=False))
    texts = (list(first), list(second[0]) if second else None)
    fixed = network.shapes["token_ids"][1]
    longest = network.result.max_length
    encoded = tokenizer.encode_batch(
        *texts, max_length=fixed or longest, pad_to_max_length=fixed is not None
    )
    if fixed is None:
        encoded = _padded(encoded, tokenizer, longest)
    return {name: array for name, array in encoded.items() if name in network.shapes}


def _padded(encoded: dict, tokenizer: Any, longest: int | None) -> dict:
    """Rows of a multiple of tokens: each length is compiled anew."""
    length = encoded["token_ids"].shape[1]
    missing = -length % _MULTIPLE
    if longest is not None:
        missing = min(missing, max(0, longest - length))
    is_left = tokenizer.convention.pad_left
    width = (missing, 0) if is_left else (0, missing)
    padding = {"token_ids": tokenizer.pad_token_id, "padding_mask": 0}
    padding["segment_ids"] = tokenizer.convention.pad_segment
    return {
        name: np.pad(array, ((0, 0), width), constant_values=padding[name])
        for name, array in encoded.items()
    }


def _continued(
    network: Network,
    rows: Sequence[TextRow],
    batch_size: int,
    max_new_tokens: int | None,
) -> Iterator[dict[str, Any]]:
    """The most probable continuations of prompts."""
    tokenizer = network.tokenizer()
    if network.folder is not None:
        note_settings(network.folder, tokenizer.end_token_id)
    limit = getattr(network.model, "max_length", None)
    count = max_new_tokens or _MAX_NEW_TOKENS
    for part in in_parts(rows, network.choose_batch_size(batch_size), "Generating"):
        prompts = []
        for row in part:
            (prompt,) = row.texts.values()
            ids = list(tokenizer.encode_prompt(prompt))
            ids = ids or [tokenizer.start_token_id]
            if limit is not None and len(ids) >= limit:
                raise ValueError(
                    f"A prompt must have at most {limit - 1} tokens: the model has "
                    f"{limit} positions. Received: {len(ids)} tokens in {row.label}"
                )
            prompts.append(ids)
        longest = max(map(len, prompts))
        token_ids = keras.utils.pad_sequences(
            prompts, longest, padding="post", value=tokenizer.pad_token_id
        )
        mask = np.arange(longest) < np.array([[len(ids)] for ids in prompts])
        answer = generate(
            network.model,
            {"token_ids": token_ids, "padding_mask": mask},
            count if limit is None else min(count, limit - longest),
            end_token_id=tokenizer.end_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        for ids in answer.token_ids.tolist():
            if tokenizer.end_token_id in ids:
                ids = ids[: ids.index(tokenizer.end_token_id)]
            yield {"completion": tokenizer.decode(ids)}
