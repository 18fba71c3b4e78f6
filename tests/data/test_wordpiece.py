import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from data.tokenizer_cases import CASES, CHARACTERS, REFERENCES, read_ids
from refusals import refuses

from keras_attn.data.text.tokenizer_json import wordpiece_json
from keras_attn.data.text.wordpiece import WordPieceTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "b", ".", "é", "e"]
from_folder = WordPieceTokenizer.from_folder
SETTINGS: dict[str, Any] = {
    "uncased": {"lower_case": True},
    "cased": {"lower_case": False},
    "cased_no_accents": {"lower_case": False, "strip_accents": True},
    "uncased_accents": {"lower_case": True, "strip_accents": False},
}


@pytest.fixture(scope="module")
def tokenizer():
    return from_folder(REFERENCES, lower_case=True)


@pytest.fixture(scope="module")
def expected():
    return read_ids("wordpiece_ids.npz")


def differing(ours, theirs):
    rows = zip(CASES, ours, theirs, strict=True)
    return [(text, one, two) for text, one, two in rows if one != two]


@pytest.mark.parametrize("setting", SETTINGS)
def test_ids_of_five_hundred_texts_match_the_reference(tokenizer, expected, setting):
    assert len(set(CASES)) == 500
    ours = WordPieceTokenizer(tokenizer.pieces, **SETTINGS[setting])
    # The cases have both known and unknown words, and many different pieces.
    flat = [i for row in expected[setting] for i in row]
    assert 0.02 < flat.count(1) / len(flat) < 0.5
    assert len(set(flat)) > 400
    batch = ours.encode_batch(CASES)
    lengths = batch["padding_mask"].sum(axis=1)
    rows = [
        row[1 : length - 1].tolist()
        for row, length in zip(batch["token_ids"], lengths, strict=True)
    ]
    assert not differing(rows, expected[setting])
    assert not differing([ours.encode(text) for text in CASES], expected[setting])


@pytest.mark.parametrize("setting", ["uncased", "cased"])
def test_every_unicode_character_is_treated_as_by_the_reference(setting):
    library = pytest.importorskip("tokenizers")
    lower = SETTINGS[setting]["lower_case"]
    normalize = library.normalizers.BertNormalizer(lowercase=lower).normalize_str
    split = library.pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    texts = [f"x{character}y" for character in CHARACTERS]
    words = [[word for word, _ in split(normalize(text))] for text in texts]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += sorted({word for row in words for word in row})
    ours = WordPieceTokenizer(pieces, lower_case=lower)
    ids = ours._tokenize(texts)
    assert len(texts) > 60_000
    assert [[pieces[i] for i in row] for row in ids] == words


def test_the_limit_of_a_word_is_a_hundred_characters_not_bytes():
    pieces = [*PIECES[:5], "a", "##a", "ж", "##ж", "😀", "##😀", "-"]
    tokenizer = WordPieceTokenizer(pieces)
    for letter, first in (("a", 5), ("ж", 7), ("😀", 9)):
        fits = [first] + [first + 1] * 99
        assert tokenizer.encode(letter * 100) == fits
        assert tokenizer.encode(letter * 101) == [1]
        row = f"{letter * 100} {letter * 101}-{letter * 100}"
        assert tokenizer.encode(row) == [*fits, 1, 11, *fits]


def test_invalid_utf8_in_a_tensor_is_removed(tokenizer):
    broken = tokenizer.pack(tf.constant([b"a \xff man", b"a man"]))["token_ids"]
    np.testing.assert_array_equal(broken[0], broken[1])


def test_decoding(tokenizer):
    ids = tokenizer.encode_batch(["The man's standing on a ladder."])["token_ids"][0]
    assert tokenizer.tokens(ids)[0] == "[CLS]"
    assert tokenizer.decode(ids) == "the man ' s standing on a ladder."


def test_ids_of_the_roles(tokenizer):
    roles = "pad unknown classify separate mask start end".split()
    ids = [getattr(tokenizer, f"{role}_token_id") for role in roles]
    assert ids == [0, 1, 2, 3, 4, None, None]


@pytest.mark.parametrize("setting", SETTINGS)
def test_saving_and_loading(tmp_path, setting):
    one = WordPieceTokenizer([*PIECES, "", "a"], **SETTINGS[setting])
    one.save(tmp_path)
    two = from_folder(tmp_path)
    assert two.pieces == one.pieces
    assert (two.lower_case, two.strip_accents) == (one.lower_case, one.strip_accents)
    assert two.encode("ab É. e") == one.encode("ab É. e")


def test_the_settings_of_a_folder_come_before_those_of_its_packed_vocabulary(tmp_path):
    convention = WordPieceTokenizer(PIECES).convention
    packed = wordpiece_json(PIECES, convention, strip_accents=True)
    (tmp_path / "tokenizer.json").write_text(json.dumps(packed))
    read = from_folder(tmp_path)
    assert (read.lower_case, read.strip_accents) == (True, True)
    settings = {"do_lower_case": False, "strip_accents": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    read = from_folder(tmp_path)
    assert (read.lower_case, read.strip_accents) == (False, False)


def test_transformers_reads_a_saved_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = WordPieceTokenizer.train(CASES, vocabulary_size=701, lower_case=False)
    ours.save(tmp_path / "ours")
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path / "ours")
    options = {"add_special_tokens": False, "split_special_tokens": True}
    assert not differing(ours._tokenize(CASES), theirs(CASES, **options)["input_ids"])
    # It saves only a `tokenizer.json`, which can be read back.
    theirs.save_pretrained(tmp_path / "theirs")
    assert not (tmp_path / "theirs" / "vocab.txt").exists()
    again = from_folder(tmp_path / "theirs")
    assert (again.pieces, again.lower_case) == (ours.pieces, False)


def test_of_equal_pieces_the_last_counts():
    tokenizer = WordPieceTokenizer([*PIECES, "a", ""])
    assert tokenizer.encode("a ab b") == [11, 11, 6, 7]


def test_training_is_deterministic_and_limited_in_size():
    one, two = (WordPieceTokenizer.train(iter(CASES), 499) for _ in range(2))
    assert one.pieces == two.pieces
    assert one.vocabulary_size == 499
    assert one.pieces[:5] == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    assert WordPieceTokenizer.train(CASES, vocabulary_size=17).vocabulary_size <= 17
    cased = WordPieceTokenizer.train(["Straße É"] * 3, 97, lower_case=False)
    assert cased.decode(cased.encode("Straße É")) == "Straße É"
    uncased = WordPieceTokenizer.train(["Straße É"] * 3, 97)
    assert uncased.decode(uncased.encode("Straße É")) == "straße e"


@pytest.mark.parametrize("least, merged", [(2, True), (3, False)])
def test_a_pair_that_is_too_rare_is_not_merged(least, merged):
    texts = ["qz qz", "a b"]
    tokenizer = WordPieceTokenizer.train(texts, 99, min_frequency=least)
    assert ("qz" in tokenizer.pieces) == merged


def test_training_needs_texts_and_a_minimum_size():
    train = WordPieceTokenizer.train
    refuses("`texts` must have at least one text", train, ["", " "])
    refuses(r"`texts` must be a sequence .*texts='Mann'", train, "Mann")
    refuses("`vocabulary_size` must be at least 7", train, ["Mann"], 6)
    refuses("`vocabulary_size` must be a positive integer", train, ["Mann"], 0)


def test_a_vocabulary_without_its_special_tokens_is_refused(tmp_path):
    match = r"must have the special tokens \[MASK\], \[SEP\].*Received: 4 pieces"
    refuses(match, WordPieceTokenizer, ["[PAD]", "[UNK]", "[CLS]", "a"])
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    refuses(r"vocab\.txt: The vocabulary must have", from_folder, tmp_path)


def test_special_tokens_may_have_other_names(tmp_path):
    pieces = ["<pad>", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    (tmp_path / "special_tokens_map.json").write_text('{"pad_token": "<pad>"}')
    (tmp_path / "tokenizer_config.json").write_text(
        '{"mask_token": {"content": "[MASK]", "lstrip": true}, "do_lower_case": false}'
    )
    tokenizer = from_folder(tmp_path)
    assert tokenizer.special_token_ids["<pad>"] == tokenizer.pad_token_id == 0
    assert tokenizer.lower_case is False
    assert tokenizer.encode("A a") == [1, 5]
    assert tokenizer.convention.left_stripped == {"[MASK]"}


def test_errors_name_a_bad_file(tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_bytes(b"[PAD]\nb\n\xff\n")
    refuses(r"vocab\.txt must be UTF-8; line 3 is not", from_folder, tmp_path)
    vocabulary.write_text("\n".join(PIECES))
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text('{"do_lower_case": ')
    refuses(r"tokenizer_config\.json must be JSON.*at line 1", from_folder, tmp_path)
    settings.write_text("[1]")
    refuses("must hold a JSON object.*holds a list", from_folder, tmp_path)
    settings.write_text('{"tokenize_chinese_chars": false}')
    match = "must have only .*normalizer=.*'handle_chinese_chars': False"
    refuses(match, from_folder, tmp_path)


def test_folders_of_other_vocabularies_are_refused(tmp_path):
    refuses("`folder` must be an existing folder", from_folder, tmp_path / "none")
    packed = tmp_path / "tokenizer.json"
    packed.write_text('{"model": {"type": "BPE", "vocab": {}}}')
    refuses("must hold a WordPiece model.*type 'BPE'", from_folder, tmp_path)
    packed.write_text('{"model": {"type": "WordPiece", "vocab": {"a": 0, "b": 2}}}')
    refuses("must number its 2 pieces 0 to 1", from_folder, tmp_path)


def test_a_vocabulary_that_tensorflow_text_rejects_is_refused():
    with pytest.raises(ValueError, match="`pieces` must be a vocabulary that tensor"):
        WordPieceTokenizer([*PIECES, "x" * 100_000])
