"""Texts with labels in tables: what is read, and the lines that are refused."""

import csv
import gzip
import io
import json
from typing import Any

import numpy as np
import pytest
from refusals import refuses

from keras_attn.data import read_labeled_texts
from keras_attn.data.text.tables import (
    column_names,
    empty_rows,
    get_delimiter,
    read_all_columns,
    read_columns,
)


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_texts_and_classes(tmp_path):
    path = write(tmp_path, "a.csv", 'label,text\n no ,"a, ""b"""\nyes,c\n\nno,d\n')
    assert column_names(path) == ["label", "text"]
    data = read_labeled_texts(path)
    assert data.texts == ['a, "b"', "c", "d"] and data.second_texts is None
    assert data.labels == ["no", "yes", "no"] and not data.are_scores
    assert data.rows == ["a.csv, line 2", "a.csv, line 3", "a.csv, line 5"]
    assert data.class_names == ["no", "yes"]
    classes = data.classes(["yes", "no"])
    np.testing.assert_array_equal(classes, [1, 0, 1])
    assert classes.dtype == np.int32
    part = data.subset([2, 1])
    assert (part.texts, part.labels) == (["d", "c"], ["no", "yes"])
    assert part.rows == ["a.csv, line 5", "a.csv, line 3"] and len(part) == 2
    refuses(r"one of .*Received: 'yes' in a.csv, line 3", data.classes, ["no"])


def test_pairs_and_scores(tmp_path):
    rows = [
        {"one": "a", "two": "b", "score": 1},
        {"one": "c", "two": "d", "score": 2.5},
        {"one": "e", "two": "f", "score": "-3e0"},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    path = write(tmp_path, "a.jsonl", lines)
    assert column_names(path) == ["one", "two", "score"]
    names: Any = {"text_column": "one", "second_column": "two"}
    names |= {"label_column": "score"}
    data = read_labeled_texts(path, **names)
    assert data.second_texts == ["b", "d", "f"] and data.are_scores
    np.testing.assert_array_equal(data.scores(), np.array([1, 2.5, -3], "float32"))
    assert data.subset([1]).second_texts == ["d"]
    # Whole numbers are classes, in the order of the numbers.
    data = data.subset([0])
    assert not data.are_scores
    lines = "".join(f'{{"text": "x", "label": {n}}}\n' for n in ("10", "2", "true"))
    data = read_labeled_texts(write(tmp_path, "b.ndjson", lines))
    assert data.labels == ["10", "2", "true"]
    assert data.subset([0, 1]).class_names == ["2", "10"]
    refuses("finite number.*'true' in b.ndjson, line 3", data.scores)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.csv", "text,label\nx,\n", "`label` must be .*not empty.*a.csv, line 2"),
        ("a.csv", "text,label\n ,y\n", "`text` must be .*not empty.*a.csv, line 2"),
        ("a.csv", "text,label\n", "must have rows"),
        ("a.csv", "text,class\nx,y\n", r"without \['label'\], with \['text', 'class'"),
        ("a.csv", "text,label\nx\n", "must have 2 fields.*line 2 with 1"),
        ("a.csv", 'text,label\n"x,y\n', "RFC 4180"),
        ("a.csv", "text,text,label\nx,y,z\n", "each of the columns.*once.*line 1"),
        ("a.jsonl", '{"text": "x"}\n', r"a.jsonl, line 1 without \['label'\]"),
        ("a.jsonl", '{"text": "x", "label": null}\n', "`label` must be.*line 1"),
        ("a.csv", "text,label\nx,é\n".encode("latin-1"), "must be UTF-8; line 2"),
        ("a.csv", "text,label\nx,y\n".encode("utf-16"), "it is UTF-16: save it as"),
        (
            "a.csv",
            "text,label\nx,y\ntext,label\nz,y\n",
            "only once; were two files joined.*a.csv, line 3",
        ),
        ("a.csv", "text,label\nx,0.5\nz,NaN\n", "a number in every row.*line 3"),
        ("a.tsv", "text\tlabel\nx\tNA\nz\t1\n", "a number in every row.*line 2"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "z", "label": NaN}', "line 2"),
        ("a.json", '[{"text": "x", "label": "y"}, ["z"]]', "JSON objects.*object 2"),
        ("a.json", '[{"text": "x"}]', r"a.json, object 1 without \['label'\]"),
        ("a.json", '[{"text": "x", "label": "y"}', "is the file complete"),
        ("a.txt", "text,label\nx,y\n", "must end in one of"),
        ("a.tsv.gz", "text\tlabel\nx\ty\n", "a.tsv.gz must be a complete gzip file"),
        ("a.csv.gz", gzip.compress(b"text,label\nx,\xe9\n", mtime=0), "UTF-8; line 2"),
        (
            "a.tsv",
            'text\tlabel\n"a" b\ty\nx\n',
            "as many tabs in every line.*line 2: .*; without quoting, line 3 has 1 "
            "fields, not 2",
        ),
        ("a.tsv", 'text\tlabel\n"""a"""\ty\nx\n', "must have 2 fields.*line 3 with 1"),
    ],
)
def test_lines_that_are_refused(tmp_path, name, content, message):
    refuses(message, read_labeled_texts, write(tmp_path, name, content))


@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_of_objects(tmp_path, indent):
    """As `DataFrame.to_json(orient="records")` and Alpaca's files."""
    rows = [{"text": "a [b]", "label": 1}, {"label": 2, "text": "c"}]
    path = write(tmp_path, "a.json", "\n" + json.dumps(rows, indent=indent))
    data = read_labeled_texts(path)
    assert (data.texts, data.labels) == (["a [b]", "c"], ["1", "2"])
    assert data.rows == ["a.json, object 1", "a.json, object 2"]
    assert column_names(path) == ["text", "label"] and not empty_rows(path)
    assert [row for _, row in read_all_columns(path)] == rows


def test_an_empty_table_has_no_columns(tmp_path):
    for name in ("a.csv", "a.jsonl"):
        with pytest.raises(ValueError, match="name its columns.*which is empty"):
            column_names(write(tmp_path, name, "\n"))
    with pytest.raises(FileNotFoundError, match="has no b.csv"):
        column_names(tmp_path / "b.csv")


# As GLUE publishes them: a quotation mark is a letter, wherever it is.
LETTERS = ['he said " yes " .', '" yes " , he said', '"yes"', 'he said , " yes']
LETTERS += ['"', 'said ""', "a\u2028b"]


@pytest.mark.parametrize("name, end", [("a.tsv", "\n"), ("a.tsv.gz", "\r\n")])
def test_quotation_marks_that_are_letters(tmp_path, name, end):
    """Unquoted; the rows of one file are those of each part of it."""
    header = ["Quality", "#1 String", "#2 String"]
    rows = [["1", LETTERS[0], LETTERS[1]], ["0", LETTERS[2], LETTERS[3]]]
    rows += [["0", LETTERS[4], LETTERS[5]], ["1", LETTERS[6], LETTERS[0]]]
    for chosen in (rows, rows[1:], rows[:1], rows[2:3]):
        text = "\ufeff" + "".join("\t".join(row) + end for row in [header, *chosen])
        content = text.encode()
        path = write(
            tmp_path, name, gzip.compress(content) if "gz" in name else content
        )
        assert column_names(path) == header
        data = read_labeled_texts(
            path,
            text_column="#1 String",
            second_column="#2 String",
            label_column="Quality",
        )
        found = zip(data.labels, data.texts, data.second_texts or (), strict=True)
        assert [list(row) for row in found] == chosen
    assert data.rows == [f"{name}, line 2"]
    # Quoting would join the lines, and each has all its fields.
    path = write(tmp_path, "b.tsv", 'text\tlabel\n"a\tx\nb"\ty\n')
    assert read_labeled_texts(path).texts == ['"a', 'b"']


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_quotation_marks_around_fields(tmp_path, quoting):
    """As pandas writes them, which calls Python's writer."""
    rows = [[text, "x"] for text in (*LETTERS, "a\tb", 'a\n"b"\n', "\n", "a\r\nb")]
    chosen = [row for row in rows if row[0].strip()]
    for part in (chosen, chosen[:1], chosen[2:3], chosen[-1:]):
        file = io.StringIO(newline="")
        writer = csv.writer(file, delimiter="\t", quoting=quoting, lineterminator="\n")
        writer.writerows([["text", "label"], *part])
        path = write(tmp_path, "a.tsv", file.getvalue())
        assert read_labeled_texts(path).texts == [text for text, _ in part]
    # A single column: lines of a text look like rows.
    path = write(tmp_path, "a.tsv", 'text\n"a\nb"\n')
    assert [values for _, values in read_columns(path, ["text"])] == [["a\nb"]]


def test_a_text_may_be_as_long_as_a_book(tmp_path):
    """Longer than the fields that Python's reader takes by itself."""
    book, limit = "a b\n" * 50_000, csv.field_size_limit()
    path = write(tmp_path, "a.csv", f'text,label\n"{book}",x\n')
    assert read_labeled_texts(path).texts == [book]
    assert csv.field_size_limit() == limit


def test_columns_without_names(tmp_path):
    path = write(tmp_path, "a.tsv", 'gj04\t1\t\tHe said "no".\ngj04\t0\t*\tSaid no.\n')
    assert column_names(path, header=False) == ["1", "2", "3", "4"]
    given = {"text_column": "4", "label_column": "2"}
    data = read_labeled_texts(path, **given, header=False)
    assert data.texts == ['He said "no".', "Said no."] and data.labels == ["1", "0"]
    assert data.rows == ["a.tsv, line 1", "a.tsv, line 2"]
    path = write(tmp_path, "a.jsonl", '{"4": "a", "2": "b"}\n')
    with pytest.raises(ValueError, match=r"without a header must be .csv or .tsv"):
        read_labeled_texts(path, **given, header=False)


DELIMITERS = {
    "semicolon": ("text;label\ngut, ja;x\nschlecht;y\n", ";"),
    "header with both": ("text, german;label\ngut, ja, so;x\nschlecht;y\n", ";"),
    "tab": ('text\tlabel\n"gut; ja"\tx\nno\ty\n', "\t"),
    "bar": ("text|label\na,b|x\nno|y\n", "|"),
    "comma": ("text,label;\na;b,x\nno,y\n", ","),
    "quoted": ('"te;xt","label"\n"a;b",x\nno,y\n', ","),
    "excel": ("sep=;\r\ntext;label\r\ngut;x\r\nno;y\r\n", ";"),
    "excel's comma": ("sep=,\ntext;a,label\ngut;b,x\nno,y\n", ","),
    "line break": ('text;label\n"a;\nb";x\nno;y\n', ";"),
    "one column": ("text\na;b\nc,d\n", ","),
}


@pytest.mark.parametrize("kind", DELIMITERS)
def test_what_is_between_fields(tmp_path, kind):
    text, delimiter = DELIMITERS[kind]
    path = write(tmp_path, "a.csv", "\ufeff" + text)
    assert get_delimiter(path) == delimiter
    if kind == "one column":
        # Commas in a text need quotation marks.
        refuses("must have 1 fields.*line 3 with 2", list, read_columns(path, ["text"]))
        return
    names = column_names(path)
    data = read_labeled_texts(path, text_column=names[0], label_column=names[-1])
    assert data.labels == ["x", "y"] and data.texts[1][:1] in "sn"
    assert get_delimiter(write(tmp_path, "a.jsonl", "{}")) is None
    assert get_delimiter(write(tmp_path, "a.tsv", "a;b\n1;2\n")) == "\t"


def test_semicolons_of_texts_are_no_columns(tmp_path):
    path = write(tmp_path, "a.csv", "well; yes\nno\n")
    rows = [values for _, values in read_columns(path, ["1"], header=False)]
    assert rows == [["well; yes"], ["no"]]
    path = write(tmp_path, "a.csv", "text;label\na, b;x\nno\n")
    refuses("must have 2 fields.*line 3 with 1", read_labeled_texts, path)


def test_lines_of_a_file_with_a_separator_line_are_counted(tmp_path):
    path = write(tmp_path, "a.csv", 'sep=;\ntext;label\n"a\nb";x\n\nno;y\n')
    rows = ["a.csv, line 3", "a.csv, line 6"]
    assert read_labeled_texts(path).rows == rows
    assert empty_rows(path) == ["a.csv, line 5"]


@pytest.mark.parametrize(
    "name, text, empty",
    [
        ("a.csv", "\ntext,label\na,x\n,\n \t,\n\nb,y\n\n", [1, 4, 5, 6, 8]),
        ("a.csv", "text;label\n;;;;\na;x\nb;y\n", [2]),
        ("a.tsv", 'text\tlabel\n\n"\tx\n\t\nb\ty\n', [2, 4]),
        ("a.jsonl", '{"text": "a", "label": "x"}\n \n{"text": "b", "label": "y"}', [2]),
    ],
)
def test_empty_rows_are_left_out(tmp_path, name, text, empty):
    path = write(tmp_path, name, text)
    assert read_labeled_texts(path).labels == ["x", "y"]
    assert empty_rows(path) == [f"{name}, line {number}" for number in empty]
    rows = list(read_all_columns(path))
    after = [row for row in empty if row > 1]
    assert [label for label, row in rows if not row] == [
        f"{name}, line {number}" for number in after
    ]
    assert [row["label"] for _, row in rows if row] == ["x", "y"]


def test_decimal_commas(tmp_path):
    text = "text;label\na;3,5\nb;-1.250,75\nc;4\nd;0,125\n"
    data = read_labeled_texts(write(tmp_path, "a.csv", text))
    assert data.are_scores
    np.testing.assert_allclose(data.scores(), [3.5, -1250.75, 4, 0.125])
    data = read_labeled_texts(write(tmp_path, "a.csv", "text;label\na;1,250\nb;3\n"))
    for read in (data.scores, lambda: data.are_scores):
        refuses("commas mean one .*'1,250' in a.csv, line 2", read)
    # Names of classes, not numbers.
    text = 'text,label\na,"1,250"\nb,other\n'
    data = read_labeled_texts(write(tmp_path, "a.csv", text))
    assert data.class_names == ["1,250", "other"] and not data.are_scores


@pytest.mark.parametrize(
    "labels, pair",
    [
        (["cat", "Cat ", "dog"], "'Cat' and 'cat'"),
        (["new  york", "New York"], "'New York' and 'new  york'"),
        (["a\u0301b", "\u00e1b"], "and"),
        (["1", "1.0", "2"], "'1' and '1.0'"),
        (["01", "1"], "'01' and '1'"),
    ],
)
def test_labels_of_one_class_in_two_ways(tmp_path, labels, pair):
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"x,{each}\n" for each in labels), "utf-8")
    data = read_labeled_texts(path)
    with pytest.raises(ValueError, match=f"`label` must not name one class .*{pair}"):
        _ = data.class_names


def test_letters_may_differ_in_case(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\nx,a\ny,A\n")
    assert read_labeled_texts(path).class_names == ["A", "a"]
