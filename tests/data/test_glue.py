"""GLUE's files: small ones in each published layout, and what may be wrong."""

import gzip

import numpy as np
import pytest
from refusals import named_or_left_out, refuses

from keras_attn.data import (
    WordPieceTokenizer,
    read_glue,
    read_sst2,
    shuffled_dataset,
)

PARSES = "sentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse"
MNLI = (
    f"index\tpromptID\tpairID\tgenre\t{PARSES}\tsentence2_parse\tsentence1\tsentence2"
)
STS = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
SEVEN = "\t".join("abcdefg")
# The lines of a file, and for each row: first text, second text, label.
LAYOUTS = {
    ("CoLA", "dev"): (
        ["gj04\t1\t\tThe sailors rode.", 'gj04\t0\t*\tThey "drank the.'],
        [("The sailors rode.", None, 1), ('They "drank the.', None, 0)],
    ),
    ("CoLA", "test"): (
        ["index\tsentence", "0\tBill whistled."],
        [("Bill whistled.", None, None)],
    ),
    ("SST-2", "train"): (
        ["sentence\tlabel", "a dull , odd film \t0", "lovely\t1"],
        [("a dull , odd film", None, 0), ("lovely", None, 1)],
    ),
    ("SST-2", "test"): (
        ["index\tsentence", "0\tuneasy mishmash"],
        [("uneasy mishmash", None, None)],
    ),
    ("MRPC", "train"): (
        [
            "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
            '1\t5\t7\t" Yes , he said .\tHe said , " yes " .',
            "0\t5\t8\tYes .\tNo .",
        ],
        [('" Yes , he said .', 'He said , " yes " .', 1), ("Yes .", "No .", 0)],
    ),
    ("MRPC", "test"): (
        ["index\t#1 ID\t#2 ID\t#1 String\t#2 String", "0\t5\t7\tOne\tTwo"],
        [("One", "Two", None)],
    ),
    ("STS-B", "dev"): (
        [f"{STS}\tscore", f"{SEVEN}\tA man\tA boy\t2.750", f"{SEVEN}\tOne\tTwo\t0"],
        [("A man", "A boy", 2.75), ("One", "Two", 0.0)],
    ),
    ("STS-B", "test"): (
        [STS, f"{SEVEN}\tA man\tA boy"],
        [("A man", "A boy", None)],
    ),
    ("QQP", "train"): (
        [
            "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
            "9\t1\t2\tWhy?\tHow come?\t1",
            "7\t3\t4\tWho?\t\t0",
        ],
        [("Why?", "How come?", 1), ("Who?", "", 0)],
    ),
    ("QQP", "test"): (
        ["id\tquestion1\tquestion2", "0\tWhy?\tWho?"],
        [("Why?", "Who?", None)],
    ),
    ("MNLI-m", "train"): (
        [
            f"{MNLI}\tlabel1\tgold_label",
            f"{SEVEN}\th\tHe ran.\tHe moved.\tneutral\tentailment",
            f"{SEVEN}\th\tHe ran.\tHe ran far.\tneutral\tneutral",
            f"{SEVEN}\th\tHe ran.\tHe sat.\tcontradiction\tcontradiction",
        ],
        [
            ("He ran.", "He moved.", 0),
            ("He ran.", "He ran far.", 1),
            ("He ran.", "He sat.", 2),
        ],
    ),
    ("MNLI-m", "dev"): (
        [f"{MNLI}\tlabel1\tlabel2\tgold_label", f"{SEVEN}\th\tX\tY\tz\tz\tneutral"],
        [("X", "Y", 1)],
    ),
    ("MNLI-mm", "test"): (
        [MNLI, f"{SEVEN}\th\tX\tY"],
        [("X", "Y", None)],
    ),
    ("MNLI", "dev_mismatched"): (
        [f"{MNLI}\tlabel1\tgold_label", f"{SEVEN}\th\tX\tY\tz\tentailment"],
        [("X", "Y", 0)],
    ),
    ("QNLI", "dev"): (
        ["index\tquestion\tsentence\tlabel", "0\tWho?\tHe.\tnot_entailment"],
        [("Who?", "He.", 1)],
    ),
    ("RTE", "dev"): (
        ["index\tsentence1\tsentence2\tlabel", "0\tIt is.\tIt was.\tentailment"],
        [("It is.", "It was.", 0)],
    ),
    ("WNLI", "train"): (
        ["index\tsentence1\tsentence2\tlabel", "0\tIt is.\tIt was.\t1"],
        [("It is.", "It was.", 1)],
    ),
    ("SNLI", "dev"): (
        ["index\tsentence1\tsentence2\tlabel", "0\tTwo play.\tNobody.\tcontradiction"],
        [("Two play.", "Nobody.", 2)],
    ),
    ("XNLI", "dev.zh"): (
        ["index\tgenre\tsentence1\tsentence2\tlabel", "0\tx\t我回来了。\t他\tneutral"],
        [("我回来了。", "他", 1)],
    ),
}
FILES = {
    ("MNLI-m", "train"): "MNLI/train.tsv",
    ("MNLI-m", "dev"): "MNLI/dev_matched.tsv",
    ("MNLI-mm", "test"): "MNLI/test_mismatched.tsv",
}


def published(task, split):
    """Name of a file, its lines, and its rows."""
    name = FILES.get((task, split), f"{task}/{split}.tsv")
    return name, *LAYOUTS[task, split]


NAMES = {
    "CoLA": ("unacceptable", "acceptable"),
    "SST-2": ("negative", "positive"),
    "MRPC": ("not_equivalent", "equivalent"),
    "STS-B": (),
    "QQP": ("not_duplicate", "duplicate"),
    **dict.fromkeys(("QNLI", "RTE"), ("entailment", "not_entailment")),
    "WNLI": ("not_entailment", "entailment"),
    **dict.fromkeys(
        ("MNLI", "MNLI-m", "MNLI-mm", "SNLI", "XNLI"),
        ("entailment", "neutral", "contradiction"),
    ),
}


def write(folder, name, lines, end="\n", start=b""):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    content = start + "".join(line + end for line in lines).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def check(data, rows):
    firsts, seconds, labels = (list(part) for part in zip(*rows, strict=True))
    assert len(data) == len(rows)
    assert data.texts == firsts
    assert data.second_texts == (None if seconds[0] is None else seconds)
    if labels[0] is None:
        assert data.labels is None
    else:
        np.testing.assert_array_equal(data.labels, labels)
        assert data.labels.dtype == ("float32" if data.task == "STS-B" else "int32")
    assert data.label_names == NAMES[data.task]
    assert data.num_classes == max(len(NAMES[data.task]), 1)
    assert not data.skipped


@pytest.mark.parametrize(("task", "split"), LAYOUTS)
def test_the_published_layouts(tmp_path, task, split):
    name, lines, rows = published(task, split)
    path = write(tmp_path, name, lines)
    data = read_glue(tmp_path, task, split)
    assert data.task == task
    check(data, rows)
    path.unlink()
    write(tmp_path, f"{name}.gz", lines)
    check(read_glue(str(tmp_path), task, split), rows)
    # As on Windows, and with a mark of the encoding, as MRPC is published.
    write(tmp_path, name, lines, end="\r\n", start=b"\xef\xbb\xbf")
    check(read_glue(tmp_path, task, split), rows)


def test_every_task_has_a_layout():
    assert {task for task, _ in LAYOUTS} == set(NAMES)


def test_lines_end_at_newlines_alone(tmp_path):
    text = 'One\u2028two\x85 "three\x0b four'
    write(tmp_path, "SST-2/dev.tsv", ["sentence\tlabel", f"{text}\t1", '" five\t0'])
    check(read_glue(tmp_path, "SST-2", "dev"), [(text, None, 1), ('" five', None, 0)])


def test_train_is_the_default_split(tmp_path):
    write(tmp_path, "SST-2/dev.tsv", ["sentence\tlabel", "dev\t1"])
    write(tmp_path, "SST-2/train.tsv", ["sentence\tlabel", "train\t1"])
    assert read_glue(tmp_path, "SST-2").texts == ["train"]


def test_columns_are_found_by_name(tmp_path):
    lines = ["label\tsentence2\tsentence1", "entailment\tTwo\tOne"]
    write(tmp_path, "RTE/train.tsv", lines)
    check(read_glue(tmp_path, "RTE"), [("One", "Two", 0)])


def test_labels_of_a_test_split_are_read_where_it_has_them(tmp_path):
    lines = ["index\tsentence1\tsentence2\tlabel", "0\tOne\tTwo\tneutral"]
    write(tmp_path, "XNLI/test.en.tsv", lines)
    check(read_glue(tmp_path, "XNLI", "test.en"), [("One", "Two", 1)])


BAD_ROWS = {
    "too few columns": ("One\tentailment", r"line 3 must have 4 columns.*Received: 2"),
    "too many columns": ("0\tA\tB\tentailment\t", r"must have 4 columns.*Received: 5"),
    "an empty line": ("", "line 3 must have 4 columns.*Received: 1"),
    "unknown label": (
        "0\tA\tB\tneutral",
        "The label in RTE/train.tsv, line 3 must be one of entailment, not_entailment. "
        "Received: label='neutral'",
    ),
    "missing label": ("0\tA\tB\t", "line 3 must be one of .*Received: label=''"),
    "another encoding": (
        "0\tCafé\tB\tentailment".encode("latin-1"),
        "RTE/train.tsv, line 3 must be UTF-8. Received: invalid continuation byte at "
        "byte 5",
    ),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_bad_rows_are_named_or_left_out(tmp_path, kind):
    row, message = BAD_ROWS[kind]
    good = "0\tOne\tTwo\tnot_entailment"
    path = write(tmp_path, "RTE/train.tsv", ["index\tsentence1\tsentence2\tlabel"])
    row = row if isinstance(row, bytes) else row.encode()
    content = path.read_bytes()
    path.write_bytes(content + b"\n".join([good.encode(), row, good.encode(), b""]))
    data = named_or_left_out(message, read_glue, tmp_path, "RTE")
    assert list(data.skipped) == ["RTE/train.tsv, line 3"]
    assert data.texts == ["One", "One"]
    np.testing.assert_array_equal(data.labels, [1, 1])
    path.write_bytes(content + row + b"\n")
    message = "a row that can be read.*1 rows, the first"
    refuses(message, read_glue, tmp_path, "RTE", on_error="skip")


@pytest.mark.parametrize("score", ["", "nan", "-0.1", "5.001", "inf", "three"])
def test_scores_out_of_range_are_refused(tmp_path, score):
    write(tmp_path, "STS-B/train.tsv", [f"{STS}\tscore", f"{SEVEN}\tA\tB\t{score}"])
    message = f"STS-B/train.tsv, line 2 must be a number from 0 to 5.*score='{score}'"
    refuses(message, read_glue, tmp_path, "STS-B")


def test_the_first_line_of_cola_is_a_row(tmp_path):
    path = write(tmp_path, "CoLA/train.tsv", ["gj04\t1\t\tGood."])
    path.write_bytes(b"gj04\t1\t\tCaf\xe9.\n" + path.read_bytes())
    message = "CoLA/train.tsv, line 1 must be UTF-8"
    assert named_or_left_out(message, read_glue, tmp_path, "CoLA").texts == ["Good."]
    write(tmp_path, "CoLA/train.tsv", ["sentence\tlabel", "Good.\t1"])
    refuses("line 1 must have 4 columns.*source, label", read_glue, tmp_path, "CoLA")


def test_headers_without_a_column_are_refused(tmp_path):
    write(tmp_path, "RTE/train.tsv", ["0\tOne\tTwo\tentailment"])
    message = "sentence1, sentence2, label is missing.* with 0, One, Two, entailment"
    refuses(message, read_glue, tmp_path, "RTE")
    # Only a test split may lack labels.
    write(tmp_path, "MNLI/train.tsv", [MNLI, f"{SEVEN}\th\tX\tY"])
    refuses(r"MNLI/train.tsv.*; gold_label is missing", read_glue, tmp_path, "MNLI-m")
    path = write(tmp_path, "RTE/test.tsv", ["index\tsentence1\tsentence2", "0\tA\tB"])
    path.write_bytes(path.read_text("utf-8").encode("utf-16"))
    refuses("RTE/test.tsv, line 1 must be UTF-8", read_glue, tmp_path, "RTE", "test")


def test_empty_and_damaged_files_are_refused(tmp_path):
    write(tmp_path, "RTE/train.tsv", [])
    refuses("RTE/train.tsv must not be empty", read_glue, tmp_path, "RTE")
    write(tmp_path, "RTE/train.tsv", ["index\tsentence1\tsentence2\tlabel"])
    refuses("a row that can be read.* with 0 rows", read_glue, tmp_path, "RTE")
    name, lines, _ = published("MRPC", "train")
    path = write(tmp_path, f"{name}.gz", lines)
    path.write_bytes(path.read_bytes()[:-9])
    refuses("train.tsv.gz must be a complete gzip file", read_glue, tmp_path, "MRPC")
    (tmp_path / "QNLI" / "train.tsv").mkdir(parents=True)
    refuses("train.tsv must be a regular file", read_glue, tmp_path, "QNLI")


def test_sizes_are_limited(tmp_path, monkeypatch):
    name, lines, _ = published("SST-2", "train")
    write(tmp_path, f"{name}.gz", [*lines, f"{'a' * 9999}\t1"])
    monkeypatch.setattr("keras_attn.data.text.glue._MAX_BYTES", 1000)
    refuses("at most 1000 bytes when it is decompressed", read_glue, tmp_path, "SST-2")
    write(tmp_path, name, [*lines, f"{'a' * 9999}\t1"])
    refuses("train.tsv must have at most 1000 bytes", read_glue, tmp_path, "SST-2")


def test_missing_files_say_what_was_looked_for(tmp_path):
    with pytest.raises(FileNotFoundError, match="MNLI has no such files") as raised:
        read_glue(tmp_path, "MNLI-mm", "dev")
    message = str(raised.value)
    assert "MNLI/dev_mismatched.tsv or MNLI/dev_mismatched.tsv.gz" in message
    assert str(tmp_path) in message and "task='MNLI-mm', split='dev'" in message
    write(tmp_path, "MNLI/dev_matched.tsv", [])
    write(tmp_path, "MNLI/train.tsv.gz", [])
    with pytest.raises(FileNotFoundError, match="has the splits dev_matched, train"):
        read_glue(tmp_path, "MNLI", "dev")


def test_unknown_arguments_are_refused(tmp_path):
    refuses("`task` must be one of 'CoLA', 'SST-2'", read_glue, tmp_path, "cola")
    refuses("`on_error` must be one of", read_glue, tmp_path, "CoLA", on_error="ignore")


def test_tokenizers_and_pipelines_take_the_texts(tmp_path):
    name, lines, _ = published("MNLI-m", "train")
    write(tmp_path, name, lines)
    data = read_glue(tmp_path, "MNLI-m")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "far", "he", "ran"]
    tokenizer = WordPieceTokenizer([*pieces, "moved", "sat"])
    inputs = tokenizer.encode_batch(data.texts, data.second_texts)
    batches = shuffled_dataset((inputs, data.labels), seed=3).batch(2)
    seen = []
    for tensors, labels in batches:
        assert tensors["token_ids"].dtype == labels.dtype == "int32"
        ids = tensors["token_ids"].numpy()
        for row, segments, label in zip(
            ids, tensors["segment_ids"].numpy(), labels.numpy(), strict=True
        ):
            seen.append((tokenizer.decode(row[segments == 1]), int(label)))
    assert sorted(seen) == [("he moved.", 0), ("he ran far.", 1), ("he sat.", 2)]


def test_sst2_as_lines(tmp_path):
    path = tmp_path / "stsa.binary.dev"
    path.write_text("1 a stirring , funny film\n0 no , no\n", encoding="utf-8")
    assert read_sst2(tmp_path, "dev") == (
        ["a stirring , funny film", "no , no"],
        [1, 0],
    )
    for line in ("2 a film", "1", "a film"):
        path.write_text(f"1 good\n{line}\n", encoding="utf-8")
        refuses(r"0 or 1.*stsa\.binary\.dev, line 2", read_sst2, tmp_path, "dev")
    with pytest.raises(FileNotFoundError):
        read_sst2(tmp_path, "train")
