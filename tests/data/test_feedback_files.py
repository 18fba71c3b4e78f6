"""Completions, preferences and rankings in files, and the lines that are refused."""

import json

import pytest
from refusals import refuses

from keras_attn.data import read_completions, read_preferences, read_rankings

ROWS = [
    {"prompt": "Who, me?", "chosen": ' A "yes"', "rejected": "No\nno", "n": 1},
    {"prompt": "", "chosen": "ä\u2028b", "rejected": "c", "n": None},
]
RANKINGS = [
    {"prompt": "p", "answers": ["a", "b", "c"], "ratings": [1, 0.5, 1]},
    {"prompt": "", "answers": ["x", "y"], "ratings": [-1, 3]},
]


def write(path, content):
    """Writes text, or JSON lines of objects."""
    if isinstance(content, list):
        content = "".join(json.dumps(x, ensure_ascii=False) + "\n" for x in content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.JSON", "a.ndjson"])
def test_json_lines(tmp_path, name):
    path = write(tmp_path / name, ROWS)
    found = read_preferences(path)
    assert found.prompts == ["Who, me?", ""]
    assert found.chosen == [' A "yes"', "ä\u2028b"]
    assert found.rejected == ["No\nno", "c"]
    found = read_completions(path, completion_column="rejected")
    assert found == (["Who, me?", ""], ["No\nno", "c"])


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name, comma", [("a.csv", ","), ("a.tsv", "\t")])
def test_csv(tmp_path, mark, end, name, comma):
    lines = [
        f"n{comma}rejected{comma}question{comma}chosen",
        f'1{comma}"No\nno"{comma}"Who, me?"{comma}" A ""yes"""',
        "",
        f"2{comma}c{comma}{comma}ä\u2028b",
    ]
    path = write(tmp_path / name, mark + end.join(lines) + end)
    found = read_preferences(path, prompt_column="question")
    assert found.prompts == ["Who, me?", ""]
    assert found.chosen == [' A "yes"', "ä\u2028b"]
    assert found.rejected == ["No\nno", "c"]


def test_rankings(tmp_path):
    found = read_rankings(write(tmp_path / "a.jsonl", RANKINGS))
    assert found.prompts == ["p", ""]
    assert found.answers == [["a", "b", "c"], ["x", "y"]]
    assert found.ratings == [[1.0, 0.5, 1.0], [-1.0, 3.0]]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"chosen": "c"}, "`chosen` and `rejected` must differ. .*a.jsonl, line 3"),
        ({"chosen": " "}, "`chosen` must be a text that is not empty. .*line 3"),
        ({"rejected": ""}, "`rejected` must be a text that is not empty. .*line 3"),
        ({"rejected": 7}, "`rejected` must be a text .*Received: 7 in a.jsonl, line 3"),
        ({"prompt": None}, "`prompt` must be a text. Received: None in .* line 3"),
    ],
)
def test_pairs_that_are_refused(tmp_path, change, message):
    row = json.dumps({**ROWS[1], **change})
    path = write(tmp_path / "a.jsonl", json.dumps(ROWS[0]) + "\n\n" + row)
    refuses(message, read_preferences, path)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"answers": ["x"], "ratings": [1]}, "1 answers and 1 ratings in .*line 2"),
        ({"ratings": [2, 2]}, r"must not all be equal.*\[2, 2\] in a.jsonl, line 2"),
        ({"ratings": [2]}, "2 answers and 1 ratings in a.jsonl, line 2"),
        ({"ratings": [2, float("nan")]}, "`ratings` must be finite numbers.*line 2"),
        ({"ratings": [2, "3"]}, "`ratings` a list of numbers. .*line 2"),
        ({"ratings": [2, True]}, "`ratings` a list of numbers. .*line 2"),
        ({"ratings": 5}, "`ratings` a list of numbers. .*line 2"),
        ({"answers": "xy"}, "`answers` must be a list of texts.*line 2"),
        ({"answers": ["x", " "]}, "`answers` must be a text that is not empty.*line 2"),
        ({"answers": ["x", 1]}, "`answers` must be a text that .*Received: 1 in"),
    ],
)
def test_rankings_that_are_refused(tmp_path, change, message):
    path = write(tmp_path / "a.jsonl", [RANKINGS[0], {**RANKINGS[1], **change}])
    refuses(message, read_rankings, path)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.csv", "prompt,chosen\n", r"must name the columns.*line 1 without \['rej"),
        ("a.csv", "prompt,chosen,rejected\na,b\n", "must have 3 fields.*line 2 with 2"),
        ("a.csv", "prompt,chosen,rejected\n", "The table must have rows"),
        ("a.csv", "", "The table must have rows"),
        ("a.csv", 'prompt,chosen,rejected\na,"b"c,d\n', "as in RFC 4180.*line 2"),
        (
            "a.csv",
            "prompt,chosen,rejected\na,b,\xe9\n".encode("latin-1"),
            "a.csv must be UTF-8; line 2 is not",
        ),
        ("a.jsonl", b"{}\n\xff\n", "a.jsonl must be UTF-8; line 2 is not"),
        ("a.jsonl", "{}\n", r"must have \['prompt', .*line 1 without \['prompt', "),
        ("a.jsonl", "\n[1]\n", "one JSON object. Received: a.jsonl, line 2.*a list"),
        ("a.jsonl", "{\n", "one JSON object. Received: a.jsonl, line 1: .*complete"),
        ("a.jsonl", "\n", "The table must have rows"),
        ("a.txt", "", r"must end in one of \['.csv', '.tsv', '.jsonl'.*a.txt"),
    ],
)
def test_files_that_are_refused(tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    refuses(message, read_preferences, path)


def test_an_empty_completion(tmp_path):
    path = write(tmp_path / "a.csv", "prompt,completion\nYes,no\nNo, \n")
    refuses("`completion` must be .*a.csv, line 3", read_completions, path)
