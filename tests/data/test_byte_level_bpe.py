import json
import sys

import numpy as np
import pytest
from data.tokenizer_cases import CASES, REFERENCES, SPECIAL, check_pairs, read_ids

from keras_attn.data.text.byte_level_bpe import ByteLevelBPETokenizer, StreamDecoder

CONVENTIONS = ["gpt2", "roberta"]


@pytest.fixture(scope="module")
def expected():
    return read_ids("bpe_ids.npz")


@pytest.fixture(scope="module", params=CONVENTIONS)
def tokenizer(request):
    return ByteLevelBPETokenizer.from_folder(REFERENCES / request.param)


@pytest.fixture(scope="module")
def gpt2():
    return ByteLevelBPETokenizer.from_folder(REFERENCES / "gpt2")


@pytest.fixture
def folder(gpt2, tmp_path):
    gpt2.save(tmp_path)
    return tmp_path


def name_of(tokenizer):
    return "gpt2" if "<|endoftext|>" in tokenizer.pieces else "roberta"


def test_ids_of_five_hundred_texts_match_the_reference(tokenizer, expected):
    theirs = expected[name_of(tokenizer)]
    assert len({i for row in theirs for i in row}) > 700
    assert [tokenizer.encode(text) for text in CASES] == theirs
    assert tokenizer._tokenize(CASES) == theirs


def test_decode_inverts_encode(tokenizer):
    assert [tokenizer.decode(tokenizer.encode(text)) for text in CASES] == CASES
    rows = tokenizer.encode_batch(CASES[:11])["token_ids"]
    assert tokenizer.decode_batch(rows) == CASES[:11]


def test_special_tokens_in_a_text_are_parsed_only_on_request(tokenizer, expected):
    theirs = expected[f"{name_of(tokenizer)}_special"]
    special = set(tokenizer.special_token_ids.values())
    assert special & {i for row in theirs for i in row}
    for text, ids in zip(SPECIAL, theirs, strict=True):
        assert tokenizer.encode(text, parse_special_tokens=True) == ids
        assert not special & set(tokenizer.encode(text))


def test_pairs_match_the_reference(tokenizer, expected):
    # transformers gives the second text of GPT-2 segment 1; GPT-2 has no segments.
    if name_of(tokenizer) == "gpt2":
        for length in (7, 8, 13):
            rows = expected[f"gpt2_pairs_{length}_token_type_ids"]
            expected[f"gpt2_pairs_{length}_token_type_ids"] = [
                [0] * len(r) for r in rows
            ]
    check_pairs(tokenizer, f"{name_of(tokenizer)}_pairs", expected)


def test_a_prompt_has_no_special_tokens(gpt2):
    ids = gpt2.encode("A man")
    batch = gpt2.encode_batch(["A man", ""])
    assert batch["token_ids"].tolist() == [ids, [gpt2.end_token_id] * len(ids)]
    assert batch["padding_mask"].tolist() == [[True] * len(ids), [False] * len(ids)]
    assert gpt2.pad_token_id == gpt2.start_token_id == gpt2.end_token_id
    assert gpt2.unknown_token_id is gpt2.mask_token_id is None


def test_a_stream_equals_decode(tokenizer):
    decoder = StreamDecoder(tokenizer)
    for text in CASES:
        ids = tokenizer.encode_batch([text])["token_ids"][0]
        assert "".join(map(decoder.feed, ids)) + decoder.finish() == text


def test_a_stream_buffers_an_incomplete_character(gpt2):
    text = "🪿"
    ids = gpt2.encode(text)
    assert len(ids) > 1
    decoder = StreamDecoder(gpt2)
    assert [decoder.feed(i) for i in ids[:-1]] == [""] * (len(ids) - 1)
    assert decoder.feed(ids[-1]) == text
    assert decoder.finish() == ""
    # If it stays incomplete, it is one U+FFFD, as in `decode`.
    assert decoder.feed(ids[0]) == ""
    assert decoder.finish() == "\ufffd" == gpt2.decode(ids[:1])
    assert decoder.feed(gpt2.encode("x")[0]) == "x"
    # Invalid UTF-8 is returned as soon as it is known to be invalid.
    broken = [ids[0], *gpt2.encode("x"), gpt2.end_token_id]
    stream = [decoder.feed(i) for i in broken]
    assert "".join(stream) + decoder.finish() == gpt2.decode(broken) == "\ufffdx"
    with pytest.raises(ValueError, match=r"`ids` must be in \[0, "):
        decoder.feed(gpt2.vocabulary_size)


def test_ids_in_random_order_decode_as_in_the_library(gpt2):
    library = pytest.importorskip("tokenizers")
    numbers = {piece: index for index, piece in enumerate(gpt2.pieces)}
    theirs = library.Tokenizer(library.models.BPE(numbers, list(gpt2.merges)))
    theirs.decoder = library.decoders.ByteLevel()
    generator = np.random.default_rng(7)
    for _ in range(101):
        ids = generator.integers(1, gpt2.vocabulary_size, 13)
        assert gpt2.decode(ids) == theirs.decode(ids.tolist())


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parity
def test_transformers_reads_a_saved_folder(tmp_path, convention):
    transformers = pytest.importorskip("transformers")
    ours = ByteLevelBPETokenizer.train(iter(CASES), 701, convention)
    assert ours.vocabulary_size == 701
    ours.save(tmp_path / "ours")
    names = {"gpt2": "GPT2Tokenizer", "roberta": "RobertaTokenizer"}
    kind = getattr(transformers, names[convention])
    theirs = kind.from_pretrained(tmp_path / "ours")
    options = {"add_special_tokens": False, "split_special_tokens": True}
    assert ours._tokenize(CASES) == theirs(CASES, **options)["input_ids"]
    single = theirs(CASES[0])["input_ids"]
    assert ours.encode_batch(CASES[:1])["token_ids"].tolist() == [single]
    # It saves only a `tokenizer.json`, which can be read back.
    theirs.save_pretrained(tmp_path / "theirs")
    assert not (tmp_path / "theirs" / "vocab.json").exists()
    again = ByteLevelBPETokenizer.from_folder(tmp_path / "theirs")
    assert (again.pieces, again.merges) == (ours.pieces, ours.merges)
    assert again.convention == ours.convention


def test_training_is_deterministic():
    one, two = (ByteLevelBPETokenizer.train(CASES, 499, "roberta") for _ in range(2))
    assert (one.pieces, one.merges) == (two.pieces, two.merges)
    assert one.pieces[:5] == ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    # A special token that is frequent in the corpus is not a merge.
    odd = ByteLevelBPETokenizer.train(["<s><s> <|endoftext|>"] * 50, 301, "roberta")
    assert "<s>" not in odd.tokens(odd.encode("<s><s>"))
    assert odd.decode(odd.encode("<s>")) == "<s>"


@pytest.mark.parametrize("least, merged", [(2, True), (3, False)])
def test_a_pair_that_is_too_rare_is_not_merged(least, merged):
    texts = ["qz qz", "a b"]
    tokenizer = ByteLevelBPETokenizer.train(texts, 300, min_frequency=least)
    assert (("q", "z") in [tuple(pair) for pair in tokenizer.merges]) == merged


def test_training_needs_texts_and_a_minimum_size():
    with pytest.raises(ValueError, match="`texts` must have at least one text"):
        ByteLevelBPETokenizer.train([])
    with pytest.raises(ValueError, match="`vocabulary_size` must be at least 257"):
        ByteLevelBPETokenizer.train(CASES, 256)
    with pytest.raises(
        ValueError, match="`vocabulary_size` must be a positive integer"
    ):
        ByteLevelBPETokenizer.train(CASES, 1.5)  # type: ignore
    with pytest.raises(ValueError, match="`convention` must be one of 'gpt2'"):
        ByteLevelBPETokenizer.train(CASES, 500, "bert")


def test_add_prefix_space(gpt2, tmp_path):
    ours = ByteLevelBPETokenizer(gpt2.pieces, gpt2.merges, add_prefix_space=True)
    assert ours.encode("man") == gpt2.encode(" man") != gpt2.encode("man")
    ours.save(tmp_path)
    again = ByteLevelBPETokenizer.from_folder(tmp_path)
    assert again.encode("man") == ours.encode("man")


def test_a_vocabulary_that_lacks_tokens_or_bytes_is_refused(gpt2):
    with pytest.raises(ValueError, match=r"must have the special tokens <\|endoftext"):
        ByteLevelBPETokenizer(gpt2.pieces[1:], gpt2.merges)
    with pytest.raises(ValueError, match="must have the special tokens </s>, <mask>"):
        ByteLevelBPETokenizer(gpt2.pieces, gpt2.merges, "roberta")
    pieces = [piece for piece in gpt2.pieces if piece not in ("a", "Ġ")]
    match = "one for each of the 256 bytes.*without 2 of them, such as 'a'"
    with pytest.raises(ValueError, match=match):
        ByteLevelBPETokenizer(pieces, [])
    with pytest.raises(ValueError, match="`convention` must be one of 'gpt2'"):
        ByteLevelBPETokenizer(pieces, [], "xlm")


def test_merges_of_another_vocabulary_are_refused(gpt2, folder):
    match = r"`merges` must join .*merge 2, \('Ġ', 'qqq'\), but no piece 'qqq'"
    with pytest.raises(ValueError, match=match):
        ByteLevelBPETokenizer(gpt2.pieces, [gpt2.merges[0], ("Ġ", "qqq")])
    merges = folder / "merges.txt"
    merges.write_text("#version: 0.2\nq q\n")
    with pytest.raises(ValueError, match=r"vocab\.json: `merges` must join .*'qq'"):
        ByteLevelBPETokenizer.from_folder(folder)
    merges.write_text("#version: 0.2\na b c\n")
    with pytest.raises(ValueError, match=r"merges\.txt must have two.*line 2: 'a b c'"):
        ByteLevelBPETokenizer.from_folder(folder)
    merges.write_bytes(b"#version: 0.2\na b\n\xc3\x28 x\n")
    with pytest.raises(ValueError, match=r"merges\.txt must be UTF-8; line 3 is not"):
        ByteLevelBPETokenizer.from_folder(folder)


def test_windows_line_endings_are_removed(gpt2, folder):
    content = (folder / "merges.txt").read_bytes()
    (folder / "merges.txt").write_bytes(content.replace(b"\n", b"\r\n"))
    assert ByteLevelBPETokenizer.from_folder(folder).merges == gpt2.merges


def test_errors_name_a_bad_vocabulary(folder):
    path = folder / "vocab.json"
    path.write_text('{"a": 0,')
    with pytest.raises(
        ValueError, match=r"vocab\.json must be JSON; is the file complete"
    ):
        ByteLevelBPETokenizer.from_folder(folder)
    for content in ('{"a": 0, "b": 0}', '{"a": 1}', '{"a": "0"}', '{"a": false}'):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"vocab\.json must number its . pieces 0"):
            ByteLevelBPETokenizer.from_folder(folder)


def test_a_folder_without_its_files_is_refused(folder):
    (folder / "merges.txt").unlink()
    match = r"must have vocab\.json with merges\.txt, or tokenizer\.json\..*vocab\.json"
    with pytest.raises(ValueError, match=match):
        ByteLevelBPETokenizer.from_folder(folder)


def packed_json(gpt2, **changes):
    ids = {piece: index for index, piece in enumerate(gpt2.pieces) if index}
    content = {
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "vocab": ids,
            "merges": [f"{first} {second}" for first, second in gpt2.merges],
        },
        "added_tokens": [{"content": gpt2.pieces[0], "id": 0}],
    }
    for name, value in changes.items():
        part, _, key = name.partition("__")
        if key:
            content[part][key] = value
        else:
            content[part] = value
    return json.dumps(content)


def test_tokenizer_json_alone(gpt2, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(packed_json(gpt2))
    loaded = ByteLevelBPETokenizer.from_folder(tmp_path)
    assert (loaded.pieces, loaded.merges) == (gpt2.pieces, gpt2.merges)
    assert loaded.add_prefix_space


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model__type": "Unigram"}, "must hold a BPE model.*type 'Unigram'"),
        ({"pre_tokenizer": None}, "pre_tokenizer=None"),
        ({"pre_tokenizer__use_regex": False}, "pre_tokenizer=.*'use_regex': False"),
        ({"normalizer": {"type": "NFC"}}, "normalizer={'type': 'NFC'}"),
        ({"model__dropout": 0.1}, "model.dropout=0.1"),
        ({"model__end_of_word_suffix": "</w>"}, "model.end_of_word_suffix='</w>'"),
        (
            {"model__continuing_subword_prefix": "##"},
            "model.continuing_subword_prefix='##'",
        ),
        ({"model__byte_fallback": True}, "model.byte_fallback=True"),
        ({"model__ignore_merges": True}, "model.ignore_merges=True"),
        ({"model__merges": ["abc"]}, "must hold a vocabulary, merges.*ValueError"),
        ({"added_tokens": [1]}, "must hold a vocabulary, merges.*TypeError"),
        (
            {"model": {}, "added_tokens": []},
            "must hold a vocabulary.*KeyError: 'vocab'",
        ),
    ],
)
def test_tokenizer_json_of_another_kind_is_refused(gpt2, tmp_path, changes, match):
    (tmp_path / "tokenizer.json").write_text(packed_json(gpt2, **changes))
    with pytest.raises(ValueError, match=match):
        ByteLevelBPETokenizer.from_folder(tmp_path)


def test_a_missing_library_is_named_with_its_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r'pip install "keras-attn\[text\]"'):
        ByteLevelBPETokenizer.from_folder(REFERENCES / "gpt2")
