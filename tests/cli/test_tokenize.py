"""`keras-attn tokenize` with every kind of tokenizer."""

import io
import json
import shutil

import pytest
from rich.console import Console

from keras_attn import data
from keras_attn.cli import terminal, tokenize
from keras_attn.data.text.json_tokenizer import JSONTokenizer
from keras_attn.data.text.load_text_tokenizer import load_json_tokenizer
from keras_attn.data.text.tokenizer_files import find_file

pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")

TEXT = "aé 3"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A tokenizer of each kind by its name, on disk."""
    from data.tokenizer_cases import REFERENCES

    folder = tmp_path_factory.mktemp("tokenizers")
    made = {name: REFERENCES / name for name in ("gpt2", "roberta", "clip")}
    for name, file in (("bert", "vocab.txt"), ("t5", "spiece.model")):
        (folder / name).mkdir()
        made[name] = folder / name
        shutil.copy(REFERENCES / file, folder / name)
    load_json_tokenizer(made["gpt2"]).save(folder / "json")
    made["json"] = folder / "json"
    # What no other tokenizer does.
    content = json.loads((made["json"] / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Lowercase"}
    (made["json"] / "tokenizer.json").write_text(json.dumps(content))
    texts = [TEXT, "aé aé 33"]
    for kind in (data.CharacterTokenizer, data.SubwordTokenizer):
        made[kind.kind] = folder / f"{kind.kind}.json"
        kind.train(texts).save(made[kind.kind])
    return made


def test_two_ways_to_cut_that_need_no_folder(command):
    options = ["--tokenizer", "character", "--tokenizer", "byte"]
    assert command("tokenize", TEXT, *options) == 0
    character, cut, byte, cut_bytes, _, *table = command.out.splitlines()
    assert character == "character: CharacterTokenizer, 8 pieces, 4 tokens"
    assert byte == "byte: ByteLevelBPETokenizer, 257 pieces, 5 tokens"
    assert cut == "  a│é│␣│3"
    # A character of two bytes is two tokens.
    assert cut_bytes == r"  a│\xc3│\xa9│␣│3"
    assert [line.split() for line in table] == [
        ["character", "byte"],
        ["0", "a", "6", "a", "64"],
        ["1", "é", "7", "Ã", "127"],
        ["2", "␣", "4", "©", "102"],
        ["3", "3", "5", "Ġ", "220"],
        ["4", "3", "18"],
    ]
    assert table[1].index("64") == table[4].index("220")  # Columns are aligned.


@pytest.mark.parametrize(
    ("name", "kind", "texts"),
    [
        ("gpt2", "ByteLevelBPETokenizer", ["a", "é", " ", "3"]),
        ("roberta", "ByteLevelBPETokenizer", ["<s>", "a", "é", " ", "3", "</s>"]),
        ("json", "JSONTokenizer", ["a", "é", " ", "3"]),
        ("character", "CharacterTokenizer", ["a", "é", " ", "3"]),
    ],
)
def test_what_is_cut_is_the_text(command, folders, name, kind, texts):
    row = cut(command, folders[name])
    assert row["kind"] == kind
    assert "".join(row["texts"]) == "".join(texts)
    assert row["texts"][0] == texts[0] and row["texts"][-1] == texts[-1]


@pytest.mark.parametrize("name", ["gpt2", "roberta", "clip", "bert", "t5", "json"])
def test_the_row_is_that_of_the_model(command, folders, name):
    tokenizer = data.load_text_tokenizer(folders[name])
    assert isinstance(tokenizer, JSONTokenizer) == (name == "json")
    row = cut(command, folders[name])
    assert row["ids"] == tokenizer.encode_batch([TEXT])["token_ids"][0].tolist()
    assert row["pieces"] == tokenizer.tokens(row["ids"])
    special = tokenizer.special_token_ids
    assert row["is_special"] == [piece in special for piece in row["pieces"]]
    assert len(row["texts"]) == len(row["ids"])


def test_spaces_of_subwords_and_both_tokenizers_of_a_run(
    command, folders, untrained_run
):
    assert command("tokenize", TEXT, "--tokenizer", folders["subword"]) == 0
    about, cut_text, _, header, *_ = command.out.splitlines()
    assert about.startswith(f"{folders['subword']}: SubwordTokenizer, ")
    assert cut_text.startswith("  ␣") and header.split() == ["subword.json"]
    assert command("tokenize", "a", "--tokenizer", "character") == 0
    assert command.out.startswith("character: CharacterTokenizer, 5 pieces, 1 token\n")
    assert command("tokenize", "3 mar", "--tokenizer", untrained_run, "--json") == 0
    labels = [row["tokenizer"] for row in json.loads(command.out)["tokenizers"]]
    assert labels == [f"{untrained_run} (source)", f"{untrained_run} (target)"]


def test_special_tokens_are_text_unless_they_are_parsed(command, folders):
    options = ["--tokenizer", folders["bert"], "--json"]
    assert command("tokenize", "a [MASK]", *options) == 0
    assert "[MASK]" not in json.loads(command.out)["tokenizers"][0]["pieces"]
    assert command("tokenize", "a [MASK]", *options, "--parse-special-tokens") == 0
    (row,) = json.loads(command.out)["tokenizers"]
    assert row["pieces"] == ["[CLS]", "a", "[MASK]", "[SEP]"]


def test_nothing_is_truncated(command, folders, tmp_path):
    folder = shutil.copytree(folders["bert"], tmp_path / "short")
    settings = find_file(folder, "tokenizer_config.json") or (
        folder / "tokenizer_config.json"
    )
    settings.write_text('{"tokenizer_class": "BertTokenizer", "model_max_length": 5}')
    assert command("tokenize", "a " * 7, "--tokenizer", folder) == 0
    assert "9 of at most 5 tokens" in command.out


def test_colors_of_a_terminal(command, monkeypatch):
    """Tokens side by side have unlike colors there, and no line between them."""
    screen = Console(file=io.StringIO(), force_terminal=True, color_system="standard")
    for module in (terminal, tokenize):
        monkeypatch.setattr(module, "console", screen)
    assert command("tokenize", "ab", "--tokenizer", "character") == 0
    printed = screen.file.getvalue()
    assert "\x1b[30;46ma\x1b[0m\x1b[30;43mb\x1b[0m" in printed and "│" not in printed
    monkeypatch.setattr(screen, "no_color", True)
    assert command("tokenize", "ab", "--tokenizer", "character") == 0
    assert "a│b" in screen.file.getvalue()


def test_what_is_refused(command, folders, tmp_path):
    command.refuses_each(
        ["tokenize"],
        ("TEXT must not be empty. Received: ''", "", "--tokenizer", "byte"),
        ("Missing option '--tokenizer'", "a"),
        ("one of character, byte. Received: --tokenizer 'words'", "a", "--tokenizer",
         "words"),
        ("is for tokenizers of pretrained models", "a", "--tokenizer", "character",
         "--parse-special-tokens"),
        ("--tokenizer", "a", "--tokenizer", tmp_path),
        ("--tokenizer must be a file that", "a", "--tokenizer", __file__),
    )  # fmt: skip


def cut(command, folder):
    """What `--json` prints of one tokenizer."""
    assert command("tokenize", TEXT, "--tokenizer", folder, "--json") == 0
    found = json.loads(command.out)
    assert found["text"] == TEXT
    (row,) = found["tokenizers"]
    assert row["tokenizer"] == str(folder)
    return row
