"""Readers of completions, preferences and rankings, from tables and JSON lines."""

import os
from typing import NamedTuple

from keras_attn.data.text.preferences import check_ranking
from keras_attn.data.text.tables import check_text, read_columns


class CompletionTexts(NamedTuple):
    """Prompts and their completions.

    Attributes:
        prompts: N texts.
        completions: N texts.
    """

    prompts: list[str]
    completions: list[str]


class PreferenceTexts(NamedTuple):
    """Prompts, each with a better and a worse completion.

    Attributes:
        prompts: N texts.
        chosen: The better ones.
        rejected: The worse ones.
    """

    prompts: list[str]
    chosen: list[str]
    rejected: list[str]


class RankingTexts(NamedTuple):
    """Prompts, each with answers and their ratings.

    Attributes:
        prompts: N texts.
        answers: N lists of at least two texts.
        ratings: N lists of numbers, larger for the better answer.
    """

    prompts: list[str]
    answers: list[list[str]]
    ratings: list[list[float]]


def read_completions(
    path: str | os.PathLike,
    *,
    prompt_column: str = "prompt",
    completion_column: str = "completion",
) -> CompletionTexts:
    """Reads prompts and completions.

    Args:
        path: A UTF-8 file: `.csv` or `.tsv` whose first line names its columns, or
            `.jsonl` with one JSON object per line.
        prompt_column: Column, or key, of the prompts, which may be empty.
        completion_column: Column, or key, of the completions.

    Returns:
        The texts, in the order of the file, unchanged: whether a blank belongs to the
        prompt or to the completion decides how it is encoded.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is of another kind, not UTF-8, lacks a column, or has no
            rows; if a completion is empty. File and line are named.
    """
    rows = []
    for label, (prompt, completion) in read_columns(
        path, [prompt_column, completion_column]
    ):
        check_text(prompt, prompt_column, label, may_be_empty=True)
        check_text(completion, completion_column, label)
        rows.append((prompt, completion))
    return CompletionTexts(*_columns(rows, path))


def read_preferences(
    path: str | os.PathLike,
    *,
    prompt_column: str | None = "prompt",
    chosen_column: str = "chosen",
    rejected_column: str = "rejected",
) -> PreferenceTexts:
    """Reads pairs of a better and a worse completion.

    Args:
        path: As of `read_completions`.
        prompt_column: Column, or key, of the prompts, which may be empty. None: all
            prompts are.
        chosen_column: Column, or key, of the better completions.
        rejected_column: Column, or key, of the worse completions.

    Returns:
        The texts, in the order of the file, unchanged.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: As `read_completions`; and if the two completions of a prompt are
            equal. File and line are named.
    """
    prompts = [] if prompt_column is None else [prompt_column]
    rows = []
    for label, (*found, chosen, rejected) in read_columns(
        path, [*prompts, chosen_column, rejected_column]
    ):
        prompt = found[0] if found else ""
        check_text(prompt, prompt_column or "prompt", label, may_be_empty=True)
        check_text(chosen, chosen_column, label)
        check_text(rejected, rejected_column, label)
        if chosen == rejected:
            raise ValueError(
                f"`{chosen_column}` and `{rejected_column}` must differ. "
                f"Received: equal ones in {label}"
            )
        rows.append((prompt, chosen, rejected))
    return PreferenceTexts(*_columns(rows, path))


def read_rankings(
    path: str | os.PathLike,
    *,
    prompt_column: str = "prompt",
    answers_column: str = "answers",
    ratings_column: str = "ratings",
) -> RankingTexts:
    """Reads answers to prompts with their ratings.

    Args:
        path: A UTF-8 file with one JSON object per line, `.jsonl`, such as
            `{"prompt": "…", "answers": ["…", "…", "…"], "ratings": [2, 0, 0]}`.
        prompt_column: Key of the prompts, which may be empty.
        answers_column: Key of the list of answers, at least two.
        ratings_column: Key of the list of ratings, larger for the better answer. Equal
            ones are a tie.

    Returns:
        The texts and ratings, in the order of the file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is of another kind, not UTF-8, lacks a key, or has no
            rows; if a ranking has one answer, an empty one, another number of ratings,
            one that is not a finite number, or nothing but ties. File and line are
            named.
    """
    columns = [prompt_column, answers_column, ratings_column]
    rows = []
    for label, (prompt, answers, ratings) in read_columns(path, columns):
        check_text(prompt, prompt_column, label, may_be_empty=True)
        numbers = ratings if isinstance(ratings, list) else []
        if not isinstance(answers, list) or any(
            type(number) not in (int, float) for number in numbers or [None]
        ):
            raise ValueError(
                f"`{answers_column}` must be a list of texts, and `{ratings_column}` a "
                f"list of numbers. Received: {answers_column}={answers!r}, "
                f"{ratings_column}={ratings!r} in {label}"
            )
        for answer in answers:
            check_text(answer, answers_column, label)
        check_ranking(ratings, len(answers), label)
        rows.append((prompt, answers, [float(rating) for rating in ratings]))
    return RankingTexts(*_columns(rows, path))


def _columns(rows, path):
    """The columns of rows; raises if there are none."""
    if not rows:
        raise ValueError(f"The table must have rows. Received: {str(path)!r}")
    return [list(column) for column in zip(*rows, strict=True)]
