"""The rows of `keras-attn predict` are those of its input, with all their columns."""

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from parity.folders import altered
from refusals import refuses

from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.generation_settings import note_settings
from keras_attn.cli.opened_model import load_folder_tokenizer
from keras_attn.cli.prediction.network import Network, open_network
from keras_attn.cli.prediction.output import writing
from keras_attn.cli.prediction.texts import predict_texts


def network(columns=("text",)):
    """Says "long" of texts of more than four letters, and does not take empty ones."""

    def classify(inputs, signature=""):
        rows = list(zip(*inputs.values(), strict=True))
        assert all("".join(row).strip() for row in rows)
        sizes = [sum(map(len, row)) for row in rows]
        logits = [[0.0, 9.0] if size > 4 else [9.0, 0.0] for size in sizes]
        return {"logits": np.array(logits)}

    names: dict[str, str] = dict(zip(("text", "second"), columns, strict=False))
    result = Result("text_classification", ["short", "long"], columns=names)
    shapes = {name: (None,) for name in ("text", "text_pair")[: len(columns)]}
    return Network(classify, shapes, result, None, is_exported=True)


def predict(*sources, columns=(), model=None, **options):
    given = {"columns": columns, "batch_size": 2, "all_scores": False}
    given |= {"max_new_tokens": None}
    sources = [str(each) for each in sources]
    return list(predict_texts(model or network(), sources, **given, **options))


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_empty_lines_have_rows(tmp_path, monkeypatch, capsys):
    text = "\ufeff\n  \nshort\n\nto long\n\n\n"
    path = write(tmp_path / "a.txt", text)
    rows = predict(path)
    assert [row["text"] for row in rows] == ["", "  ", "short", "", "to long", "", ""]
    labels = [None, None, "long", None, "long", None, None]
    assert [row["label"] for row in rows] == labels
    assert rows[0] == {"text": "", "label": None, "score": None}
    error = capsys.readouterr().err
    assert "5 of 7 rows have no text, and no prediction; the first is a.txt" in error
    monkeypatch.setattr("sys.stdin", io.StringIO(text.replace("\n", "\r\n")))
    assert predict("-") == rows
    latin = io.TextIOWrapper(io.BytesIO("Stra\u00dfe".encode("latin-1")), "utf-8")
    monkeypatch.setattr("sys.stdin", latin)
    refuses("Standard input must be UTF-8", predict, "-")
    refuses("INPUT must have a text", predict, write(path, "\n\n"))


def test_columns_of_a_table_come_through(tmp_path):
    text = 'id;text;label;score;input_label\n7;"a\nb";x;1;y\n;;;;\n9;longer;z;2;\n'
    path = write(tmp_path / "a.csv", text)
    rows = predict(path)
    names = ["id", "text", "input_input_label", "input_score", "input_label"]
    assert list(rows[0]) == [*names, "label", "score"]
    assert [row["id"] for row in rows] == ["7", None, "9"]
    assert [row["text"] for row in rows] == ["a\nb", None, "longer"]
    assert [row["input_input_label"] for row in rows] == ["x", None, "z"]
    assert [row["label"] for row in rows] == ["short", None, "long"]
    # A row whose text alone is missing, a name that is there twice, no names.
    path = write(tmp_path / "b.csv", "id,text,id\n1,,2\n3,word,4\n")
    assert [(row["id"], row["id.1"], row["label"]) for row in predict(path)] == [
        ("1", "2", None),
        ("3", "4", "short"),
    ]
    path = write(tmp_path / "c.tsv", "\n5\tlonger\n")
    rows = predict(path, columns=["2"], header=False)
    assert [(row["1"], row["label"]) for row in rows] == [(None, None), ("5", "long")]
    path = write(tmp_path / "d.csv", "text,text\na,b\n")
    refuses(r"each of the columns \['text'\] once", predict, path)


def test_objects_come_through(tmp_path):
    rows = [{"id": 1, "text": "ab", "more": {"a": [1, True]}}, {"text": "longer"}]
    text = json.dumps(rows[0]) + "\n\n" + json.dumps(rows[1]) + "\n"
    path = write(tmp_path / "a.jsonl", text)
    found = predict(path, write(tmp_path / "b.csv", "text,tag\nx,y\n"))
    assert [row["id"] for row in found] == [1, None, None, None]
    assert [row["tag"] for row in found] == [None, None, None, "y"]
    assert found[0]["more"] == {"a": [1, True]}
    output = tmp_path / "out.csv"
    with writing(output, "csv") as written:
        for row in found:
            written(row)
    first, empty, *_ = csv.DictReader(output.read_text().splitlines())
    assert json.loads(first["more"]) == {"a": [1, True]} and first["id"] == "1"
    assert set(empty.values()) == {""}
    with pytest.raises(ValueError, match="Every object must have .*a.jsonl, line 2"):
        predict(write(path, '{"text": "a"}\n{"id": 1}\n'))
    with pytest.raises(ValueError, match="`text` must be a text.*a.jsonl, line 1"):
        predict(write(path, '{"text": 3}\n'))


def test_pairs(tmp_path):
    model = network(("one", "two"))
    path = write(tmp_path / "a.csv", "two,id,one\na,1,b\n,2,long one\n,3,\n")
    rows = predict(path, model=model)
    assert [list(row) for row in rows] == [["two", "id", "one", "label", "score"]] * 3
    assert [row["label"] for row in rows] == ["short", "long", None]
    rows = predict(write(tmp_path / "a.txt", "a\tb\n\nlong\tone\n"), model=model)
    assert [row["label"] for row in rows] == ["short", None, "long"]
    assert rows[1]["one"] == rows[1]["two"] == ""


def test_outputs_that_are_no_scores_of_one_class(tmp_path):
    """transformers: `BertForSequenceClassification` with a `problem_type`."""
    for kind in ("multi_label_classification", "regression"):
        folder = altered(tmp_path / kind, "bert_classifier", {"problem_type": kind})
        refuses(f"`problem_type` in .*='{kind}'", open_network, folder, None)
    single = {"problem_type": "single_label_classification"}
    folder = altered(tmp_path / "single", "bert_classifier", single)
    assert open_network(folder, None).result.task == "text_classification"


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"eos_token_id": 2, "bos_token_id": 1, "max_length": 20, "top_k": 9}, []),
        ({"num_beams": 1, "repetition_penalty": 1.0, "do_sample": False}, []),
        (
            {"num_beams": 4, "no_repeat_ngram_size": 3, "suppress_tokens": [7]},
            ["num_beams=4", "no_repeat_ngram_size=3", "suppress_tokens=[7]"],
        ),
        ({"do_sample": True, "top_k": 9}, ["do_sample=True", "top_k=9"]),
        ({"eos_token_id": [2, 5]}, ["eos_token_id=[2, 5]"]),
    ],
)
def test_settings_of_a_generation_that_are_not_applied(fields, said, tmp_path, capsys):
    """transformers: `generation_config.json` of `save_pretrained`."""
    (tmp_path / "generation_config.json").write_text(json.dumps(fields))
    note_settings(tmp_path, end_token_id=2)
    error = capsys.readouterr().err
    assert ("not applied" in error) == bool(said)
    assert all(each in error for each in said)
    note_settings(tmp_path / "nowhere", end_token_id=2)
    assert capsys.readouterr().err == ""


def test_settings_of_a_tokenizer_that_are_not_known_are_noted(tmp_path, capsys):
    """On stderr: standard output has the predictions."""
    folder = tmp_path / "gpt2"
    shutil.copytree(Path(__file__).parents[1] / "data/references/gpt2", folder)
    (folder / "tokenizer_config.json").write_text('{"later_setting": "x"}')
    load_folder_tokenizer(folder)
    out, err = capsys.readouterr()
    assert not out and "not known, and not applied: ['later_setting']" in err
