"""Reads GLUE's tasks: sentences or pairs of sentences, with a class or a score each.

And SST-2 as files of lines, with other splits than GLUE's.

The files are read as GLUE publishes them: tab-separated, without quoting. By default,
Python's `csv` would take a quotation mark for the start of a quoted field, and join the
lines up to the next one.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from keras_attn.checks.arguments import check_choice
from keras_attn.data.pipelines.bad_files import Skipped
from keras_attn.files.reading import (
    MIB,
    read_bytes,
    read_gzip,
    read_text,
    shortened,
    shown,
)

# Far above the largest file, MNLI's training split with its parses.
_MAX_BYTES = 1024 * MIB
_MARK = b"\xef\xbb\xbf"  # Byte-order mark, which MRPC's files may begin with.


@dataclass(frozen=True)
class GlueTask:
    """Files and columns of a task, as published.

    Attributes:
        texts: Columns of the texts.
        label: Names that the column of the label may have.
        label_names: Names of the classes in the order of their numbers; none if the
            label is a score.
        written: The classes as files write them.
        folder: Folder of the files, if it has another name than the task.
        suffix: What follows `dev` and `test` in the names of the files.
    """

    texts: tuple[str, ...]
    label: tuple[str, ...] = ("label",)
    label_names: tuple[str, ...] = ()
    written: tuple[str, ...] = ("0", "1")
    folder: str | None = None
    suffix: str = ""


_PAIR = ("sentence1", "sentence2")
_TWO = ("entailment", "not_entailment")
_THREE = ("entailment", "neutral", "contradiction")
_inference = partial(GlueTask, _PAIR, ("gold_label", "label"), _THREE, _THREE)
# In the order of the leaderboard.
TASKS = {
    "CoLA": GlueTask(("sentence",), label_names=("unacceptable", "acceptable")),
    "SST-2": GlueTask(("sentence",), label_names=("negative", "positive")),
    "MRPC": GlueTask(
        ("#1 String", "#2 String"), ("Quality",), ("not_equivalent", "equivalent")
    ),
    "STS-B": GlueTask(_PAIR, ("score",)),
    "QQP": GlueTask(
        ("question1", "question2"), ("is_duplicate",), ("not_duplicate", "duplicate")
    ),
    "MNLI-m": _inference(folder="MNLI", suffix="_matched"),
    "MNLI-mm": _inference(folder="MNLI", suffix="_mismatched"),
    "QNLI": GlueTask(("question", "sentence"), label_names=_TWO, written=_TWO),
    "RTE": GlueTask(_PAIR, label_names=_TWO, written=_TWO),
    "WNLI": GlueTask(_PAIR, label_names=("not_entailment", "entailment")),
    "MNLI": _inference(),
    "SNLI": _inference(),
    "XNLI": _inference(),
}
# CoLA's files have no header, but for the test split.
_COLA_COLUMNS = ["source", "label", "mark", "sentence"]
_COLA_TEST_HEADER = b"index\tsentence"
_MAX_SCORE = 5.0


@dataclass(frozen=True)
class GlueData:
    """A split of a task: N examples.

    Attributes:
        task: Name of the task.
        texts: N texts, or the first text of each pair, without surrounding blanks.
        second_texts: The second text of each pair. None for a task of single texts.
        labels: Classes, int32 (N,), or scores in [0, 5], float32 (N,). None for a test
            split without labels.
        label_names: Names of the classes in the order of their numbers; none if the
            labels are scores.
        skipped: What was left out, with reasons.
    """

    task: str
    texts: list[str]
    second_texts: list[str] | None
    labels: np.ndarray | None
    label_names: tuple[str, ...]
    skipped: Skipped = field(default_factory=partial(Skipped, "raise"))

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def num_classes(self) -> int:
        """Number of outputs of a classifier: 1 for scores."""
        return max(len(self.label_names), 1)


def read_glue(
    folder: str | os.PathLike,
    task: str,
    split: str = "train",
    *,
    on_error: str = "raise",
) -> GlueData:
    """Reads a split of a task of GLUE, or of SNLI or XNLI in the same layout.

    A file is UTF-8 without quoting: a `"` is a letter. Columns are found by their
    names, and every row must have as many as the header.

    Args:
        folder: The folder with a folder per task, such as `CoLA` and `SST-2`. The two
            parts of MNLI are in `MNLI`.
        task: "CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m" (matched), "MNLI-mm"
            (mismatched), "QNLI", "RTE" or "WNLI". "MNLI", "SNLI" and "XNLI" take the
            name of a file as `split`.
        split: "train", "dev" or "test": the file `<split>.tsv` or `<split>.tsv.gz`, of
            "MNLI-m" `dev_matched.tsv` and `test_matched.tsv`. For "XNLI" with the
            language, such as "dev.en".
        on_error: "raise" refuses a bad row. "skip" leaves it out, such as the few of
            QQP that are broken as published; a warning counts them, `skipped` of the
            result lists them.

    Returns:
        The examples in the order of the file. Classes are numbered as in Hugging Face's
        `glue`: 1 is "acceptable", "positive", "equivalent" and "duplicate", and for
        QNLI and RTE "not_entailment"; MNLI, SNLI and XNLI have 0 entailment, 1 neutral,
        2 contradiction. In WNLI 1 is "entailment". A text may be empty, as some
        questions of QQP are.

    Raises:
        FileNotFoundError: If the file does not exist. The message says which names were
            looked for, and which splits there are.
        ValueError: If the task is unknown; the file is not complete, is too large, is
            empty or lacks a column; or if a row is not UTF-8, has another number of
            columns than the header, or a label that is missing or unknown, and
            `on_error="raise"`. The message names the file and the line. Also if no row
            is left.

    Example:
        Needs the files of GLUE and the tokenizer of a checkpoint:

        ```python
        from keras_attn import data

        train = data.read_glue("glue", "MRPC")
        tokenizer = data.load_text_tokenizer("bert-base-uncased")
        inputs = tokenizer.encode_batch(train.texts, train.second_texts, max_length=128)
        batches = data.shuffled_dataset((inputs, train.labels), seed=0).batch(32)
        ```

    Reference:
        Wang et al. 2018, "GLUE: A Multi-Task Benchmark and Analysis Platform for
        Natural Language Understanding" (arXiv:1804.07461); SNLI: Bowman et al. 2015
        (arXiv:1508.05326); XNLI: Conneau et al. 2018 (arXiv:1809.05053).
    """
    check_choice("task", task, TASKS)
    layout, skipped = TASKS[task], Skipped(on_error)
    path = _find(Path(folder), task, split)
    lines = _read_lines(path)
    name = f"{path.parent.name}/{path.name}"
    if not lines:
        raise ValueError(f"{name} must not be empty. Received: {str(path)!r}")
    has_header = task != "CoLA" or lines[0].rstrip(b"\r") == _COLA_TEST_HEADER
    header = _fields(lines[0], f"{name}, line 1") if has_header else _COLA_COLUMNS
    places, label_place = _columns(header, layout, split, path)
    rows: list[list[str]] = []
    labels: list[float] = []
    for number, line in enumerate(lines[has_header:], start=1 + has_header):
        label = f"{name}, line {number}"
        with skipped.collecting(label):
            fields = _fields(line, label)
            if len(fields) != len(header):
                raise ValueError(
                    f"{label} must have {len(header)} columns with tabs between them, "
                    f"{', '.join(header)}; `on_error='skip'` leaves such a line out. "
                    f"Received: {len(fields)} columns, {shown(fields)}"
                )
            if label_place is not None:
                labels.append(_label(fields[label_place], layout, label))
            rows.append([fields[place].strip() for place in places])
    if not rows:
        raise ValueError(
            f"{name} must have a row that can be read. Received: {str(path)!r} with "
            f"{len(lines) - has_header} rows{skipped.first}"
        )
    skipped.report(name)
    columns = [list(column) for column in zip(*rows, strict=True)]
    dtype = np.int32 if layout.label_names else np.float32
    return GlueData(
        task,
        columns[0],
        columns[1] if len(columns) > 1 else None,
        None if label_place is None else np.array(labels, dtype),
        layout.label_names,
        skipped,
    )


def _find(folder: Path, task: str, split: str) -> Path:
    """The file of a split, plain or compressed."""
    layout = TASKS[task]
    inside = folder / (layout.folder or task)
    stem = split if split == "train" else f"{split}{layout.suffix}"
    names = [f"{stem}.tsv", f"{stem}.tsv.gz"]
    for name in names:
        if (inside / name).exists():
            return inside / name
    found = sorted(
        {path.name.partition(".tsv")[0] for path in inside.glob("*.tsv*")}
        if inside.is_dir()
        else ()
    )
    there = f"has the splits {', '.join(found)}" if found else "has no such files"
    raise FileNotFoundError(
        f"`folder` must have the file {inside.name}/{names[0]} or "
        f"{inside.name}/{names[1]}; {inside.name} {there}. Received: "
        f"folder={str(folder)!r}, task={task!r}, split={split!r}"
    )


def _read_lines(path: Path) -> list[bytes]:
    """The lines of a file, split only at newlines.

    `str.splitlines` would also split at U+2028 and the like, which occur in texts.
    """
    read = read_gzip if path.suffix == ".gz" else read_bytes
    content = read(path, _MAX_BYTES)
    lines = content.removeprefix(_MARK).split(b"\n")
    return lines if lines[-1] else lines[:-1]


def _fields(line: bytes, label: str) -> list[str]:
    try:
        return line.decode().removesuffix("\r").split("\t")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{label} must be UTF-8. Received: {error.reason} at byte {error.start}, "
            f"{shown(line)}"
        ) from error


def _columns(
    header: Sequence[str], layout: GlueTask, split: str, path: Path
) -> tuple[list[int], int | None]:
    """The columns of the texts, and of the label unless a test split lacks it."""
    given = [name for name in layout.label if name in header]
    missing = [name for name in layout.texts if name not in header]
    if not given and not split.startswith("test"):
        missing.append(layout.label[0])
    if missing:
        raise ValueError(
            f"{path.parent.name}/{path.name} must name its columns in its first line, "
            f"with tabs between them; {', '.join(missing)} is missing. Received: "
            f"{str(path)!r} with {shortened(', '.join(header), 300)}"
        )
    places = [header.index(name) for name in layout.texts]
    return places, header.index(given[0]) if given else None


def _label(text: str, layout: GlueTask, label: str) -> float:
    """The number of a class, or a score."""
    if layout.label_names:
        if text in layout.written:
            return layout.written.index(text)
        expected = "one of " + ", ".join(layout.written)
    else:
        try:
            score = float(text)
        except ValueError:
            score = float("nan")
        if 0 <= score <= _MAX_SCORE:
            return score
        expected = f"a number from 0 to {_MAX_SCORE:g}"
    raise ValueError(
        f"The label in {label} must be {expected}. "
        f"Received: {layout.label[0]}={shown(text)}"
    )


def read_sst2(folder: str | os.PathLike, split: str) -> tuple[list[str], list[int]]:
    """Film reviews of the Stanford Sentiment Treebank, each positive or negative.

    Args:
        folder: Folder with `stsa.binary.train`, `stsa.binary.dev` and
            `stsa.binary.test`, of lines such as "1 a stirring , funny film".
        split: "train", "dev" or "test".

    Returns:
        The texts, and their labels: 1 = positive.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If a line does not begin with 0 or 1 and a blank.

    Reference:
        Socher et al., "Recursive Deep Models for Semantic Compositionality Over a
        Sentiment Treebank", 2013; the two classes of Kim 2014, arXiv:1408.5882.
    """
    path = Path(folder, f"stsa.binary.{split}")
    texts, labels = [], []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        label, blank, text = line.partition(" ")
        if label not in ("0", "1") or not blank:
            raise ValueError(
                "A line must be 0 or 1, a blank and a text. Received: "
                f"{shown(line)} in {path.name}, line {number}"
            )
        texts.append(text)
        labels.append(int(label))
    return texts, labels
