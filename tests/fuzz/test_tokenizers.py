"""Damaged tokenizer files are refused by name, quickly, and in bounded memory."""

import functools
import json
import os
import shutil

import pytest
from data.tokenizer_cases import REFERENCES
from fuzz.harmless import MAX_MIB, SECONDS, check_each, damaged_files, peak_mib
from refusals import refuses

from keras_attn.data import (
    ByteLevelBPETokenizer,
    CharacterTokenizer,
    CLIPTokenizer,
    SubwordTokenizer,
    WordPieceTokenizer,
    load_text_tokenizer,
    load_tokenizer,
)
from keras_attn.data.text.tokenizer_json import (
    byte_level_json,
    clip_json,
    wordpiece_json,
)

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "man", "##s", "é", "，"]
CORPUS = ["a man sleeps", "two men sleep near a ladder", "the man is on the ladder"]


def _wordpiece(folder):
    WordPieceTokenizer(PIECES).save(folder)


def _packed_wordpiece(folder):
    content = wordpiece_json(PIECES, WordPieceTokenizer(PIECES).convention)
    (folder / "tokenizer.json").write_text(json.dumps(content))


def _byte_level(folder):
    ByteLevelBPETokenizer.from_folder(REFERENCES / "roberta").save(folder)


def _packed_byte_level(folder):
    model = ByteLevelBPETokenizer.from_folder(REFERENCES / "roberta")
    pieces = model.pieces[:300]
    merges = [pair for pair in model.merges if "".join(pair) in pieces]
    content = byte_level_json(pieces, merges, model.convention)
    (folder / "tokenizer.json").write_text(json.dumps(content))


def _clip(folder):
    CLIPTokenizer.from_folder(REFERENCES / "clip").save(folder)


def _packed_clip(folder):
    model = CLIPTokenizer.from_folder(REFERENCES / "clip")
    content = clip_json(model.pieces, model.merges, model.convention)
    (folder / "tokenizer.json").write_text(json.dumps(content))


def _digits(folder):
    _packed_byte_level(folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    steps = [{"type": "Digits", "individual_digits": True}, content["pre_tokenizer"]]
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    (folder / "tokenizer.json").write_text(json.dumps(content))


def _sentencepiece(folder):
    shutil.copy(REFERENCES / "spiece.model", folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "XLNetTokenizer", "do_lower_case": False})
    )


# Function that writes a folder, name of the file to damage, number of mutations.
FOLDERS = {
    "wordpiece_vocabulary": (_wordpiece, "vocab.txt", 12),
    "wordpiece_settings": (_wordpiece, "tokenizer_config.json", 20),
    "wordpiece_packed": (_packed_wordpiece, "tokenizer.json", 40),
    "byte_level_vocabulary": (_byte_level, "vocab.json", 20),
    "byte_level_merges": (_byte_level, "merges.txt", 20),
    "byte_level_settings": (_byte_level, "tokenizer_config.json", 20),
    "byte_level_packed": (_packed_byte_level, "tokenizer.json", 40),
    "digits": (_digits, "tokenizer.json", 40),
    "clip_vocabulary": (_clip, "vocab.json", 8),
    "clip_packed": (_packed_clip, "tokenizer.json", 20),
    "sentencepiece_model": (_sentencepiece, "spiece.model", 40),
    "sentencepiece_settings": (_sentencepiece, "tokenizer_config.json", 8),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_folders(case, tmp_path, time_limit):
    write, name, count = FOLDERS[case]
    write(tmp_path)
    load_text_tokenizer(tmp_path)
    path = tmp_path / name
    counts = (count // 4, 3, count) if path.suffix == ".json" else (count,)
    damaged = damaged_files(path.read_bytes(), 5, *counts)
    names = name, str(tmp_path)
    load = functools.partial(load_text_tokenizer, tmp_path)
    check_each(path, damaged, load, time_limit, *names, max_mib=MAX_MIB)


@pytest.mark.parametrize("kind", [CharacterTokenizer, SubwordTokenizer])
def test_files(kind, tmp_path, time_limit):
    path = tmp_path / "tokenizer.json"
    kind.train(CORPUS).save(path)

    def load_and_use():
        tokenizer = load_tokenizer(path)
        tokenizer.decode(tokenizer.encode(CORPUS[0]))

    damaged = damaged_files(path.read_bytes(), 11, 20, json_seed=7, json_count=60)
    check_each(path, damaged, load_and_use, time_limit, path.name, max_mib=MAX_MIB)


# Cases that random mutations would not find.


@pytest.mark.parametrize(
    "case, content, message",
    [
        ("wordpiece_settings", '{"do_lower_case": "no"}', "`do_lower_case` .* true"),
        ("wordpiece_settings", '{"strip_accents": 0}', "`strip_accents` .* true, f"),
        ("wordpiece_settings", '{"pad_token": 3}', "`pad_token` .* must be a string"),
        ("wordpiece_settings", '{"tokenizer_class": []}', "`tokenizer_class` .* str"),
        ("wordpiece_settings", "[" * 200_000, "must be JSON nested at most 64 deep"),
        ("wordpiece_packed", "[" * 200_000, "must be JSON nested at most 64 deep"),
        ("wordpiece_packed", '{"model": []}', "`model` .* must be an object"),
        (
            "wordpiece_packed",
            '{"model": {"type": "WordPiece", "vocab": [1]}}',
            "tokenizer.json must be one that the library `tokenizers` reads",
        ),
        (
            "wordpiece_packed",
            '{"model": {"type": "WordPiece", "vocab": {"\\ud800": 0}}}',
            "unpaired surrogates",
        ),
        (
            "byte_level_packed",
            '{"model": {"type": "BPE", "vocab": {}, "merges": [[1, 2]]}, '
            '"added_tokens": [], "pre_tokenizer": {"type": "ByteLevel"}}',
            "tokenizer.json must be one that the library `tokenizers` reads",
        ),
        ("byte_level_packed", '{"model": "BPE"}', "`model` .* must be an object"),
        ("byte_level_settings", '{"add_prefix_space": "no"}', "`add_prefix_space`"),
    ],
)
def test_values_of_a_wrong_type(case, content, message, tmp_path):
    write, name, _ = FOLDERS[case]
    write(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as raised:
        load_text_tokenizer(tmp_path)
    assert name in str(raised.value)


@pytest.mark.parametrize("kind", ["folder", "pipe"])
@pytest.mark.parametrize("case", [*FOLDERS, "model_type"])
def test_folders_and_pipes_are_refused(case, kind, tmp_path, time_limit):
    write, name, _ = FOLDERS.get(case, (_packed_wordpiece, "config.json", 0))
    write(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir() if kind == "folder" else os.mkfifo(tmp_path / name)
    with time_limit(SECONDS), pytest.raises(ValueError, match=f"{name} must be a reg"):
        load_text_tokenizer(tmp_path)
    with time_limit(SECONDS), pytest.raises(ValueError, match="`path` must be an exi"):
        load_tokenizer(tmp_path / name)


def test_files_that_are_too_large_are_not_parsed(tmp_path):
    entries = ",".join(f'"{index}":{index}' for index in range(1_000_001))
    before = peak_mib()
    many = b'{"a": [' + b"[]," * 1_600_000 + b"[]]}"
    (tmp_path / "merges.txt").write_text("")
    for name in ("vocab.json", "tokenizer.json"):
        (tmp_path / name).write_bytes(many)
        with pytest.raises(ValueError, match=f"{name} must have at most 3000000 entri"):
            ByteLevelBPETokenizer.from_folder(tmp_path)
        (tmp_path / name).unlink()
    with open(tmp_path / "tokenizer.json", "wb") as file:
        file.truncate(2**34)  # Takes no space on the disk.
    refuses("tokenizer.json must have at most 67108864 ", load_text_tokenizer, tmp_path)
    with pytest.raises(ValueError, match="tokenizer.json must have at most 67108864 "):
        load_tokenizer(tmp_path / "tokenizer.json")
    assert peak_mib() - before < MAX_MIB
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("\n" * 1_000_001)
    refuses("vocab.txt must have at most 1000000 pieces", load_text_tokenizer, tmp_path)
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "vocab.json").write_text(f"{{{entries}}}")
    with pytest.raises(ValueError, match="vocab.json must have at most 1000000 pieces"):
        ByteLevelBPETokenizer.from_folder(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(["a" * 4_000_001] * 2))
    refuses("at most 8000000 letters .*vocab.txt", load_text_tokenizer, tmp_path)
