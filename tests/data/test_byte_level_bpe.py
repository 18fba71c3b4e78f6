import json

import numpy as np
import pytest
from data.tokenizer_cases import CASES, REFERENCES, read_ids
from refusals import refuses

from keras_attn.data.text.byte_level_bpe import ByteLevelBPETokenizer, StreamDecoder

from_folder = ByteLevelBPETokenizer.from_folder


@pytest.fixture(scope="module", params=["gpt2", "roberta"])
def tokenizer(request):
    return from_folder(REFERENCES / request.param)


@pytest.fixture(scope="module")
def gpt2():
    return from_folder(REFERENCES / "gpt2")


@pytest.fixture
def folder(gpt2, tmp_path):
    gpt2.save(tmp_path)
    return tmp_path


def test_ids_of_five_hundred_texts_match_the_reference(tokenizer):
    name = "gpt2" if "<|endoftext|>" in tokenizer.pieces else "roberta"
    theirs = read_ids("bpe_ids.npz")[name]
    assert len({i for row in theirs for i in row}) > 700
    assert [tokenizer.encode(text) for text in CASES] == theirs
    assert tokenizer._tokenize(CASES) == theirs


def test_decode_inverts_encode(tokenizer):
    assert [tokenizer.decode(tokenizer.encode(text)) for text in CASES] == CASES
    rows = tokenizer.encode_batch(CASES[:11])["token_ids"]
    assert tokenizer.decode_batch(rows) == CASES[:11]


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
    refuses(r"`ids` must be in \[0, ", decoder.feed, gpt2.vocabulary_size)


def test_ids_in_random_order_decode_as_in_the_library(gpt2):
    library = pytest.importorskip("tokenizers")
    numbers = {piece: index for index, piece in enumerate(gpt2.pieces)}
    theirs = library.Tokenizer(library.models.BPE(numbers, list(gpt2.merges)))
    theirs.decoder = library.decoders.ByteLevel()
    generator = np.random.default_rng(7)
    for _ in range(101):
        ids = generator.integers(1, gpt2.vocabulary_size, 13)
        assert gpt2.decode(ids) == theirs.decode(ids.tolist())


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
    train = ByteLevelBPETokenizer.train
    refuses("`texts` must have at least one text", train, [])
    refuses("`vocabulary_size` must be at least 257", train, CASES, 256)
    refuses("`vocabulary_size` must be a positive integer", train, CASES, 1.5)
    refuses("`convention` must be one of 'gpt2'", train, CASES, 500, "bert")


def test_add_prefix_space(gpt2, tmp_path):
    ours = ByteLevelBPETokenizer(gpt2.pieces, gpt2.merges, add_prefix_space=True)
    assert ours.encode("man") == gpt2.encode(" man") != gpt2.encode("man")
    ours.save(tmp_path)
    again = from_folder(tmp_path)
    assert again.encode("man") == ours.encode("man")


def test_a_vocabulary_that_lacks_tokens_or_bytes_is_refused(gpt2):
    pieces = [piece for piece in gpt2.pieces if piece not in ("a", "Ġ")]
    for given, message in (
        ((gpt2.pieces[1:], gpt2.merges), r"have the special tokens <\|endoftext"),
        ((gpt2.pieces, gpt2.merges, "roberta"), "special tokens </s>, <mask>"),
        ((pieces, []), "of the 256 bytes.*without 2 of them, such as 'a'"),
        ((pieces, [], "xlm"), "`convention` must be one of 'gpt2'"),
    ):
        refuses(message, ByteLevelBPETokenizer, *given)


def test_merges_of_another_vocabulary_are_refused(gpt2, folder):
    match = r"`merges` must join .*merge 2, \('Ġ', 'qqq'\), but no piece 'qqq'"
    refuses(match, ByteLevelBPETokenizer, gpt2.pieces, [gpt2.merges[0], ("Ġ", "qqq")])
    merges = folder / "merges.txt"
    merges.write_text("#version: 0.2\nq q\n")
    refuses(r"vocab\.json: `merges` must join .*'qq'", from_folder, folder)
    merges.write_text("#version: 0.2\na b c\n")
    refuses(r"merges\.txt must have two.*line 2: 'a b c'", from_folder, folder)
    merges.write_bytes(b"#version: 0.2\na b\n\xc3\x28 x\n")
    refuses(r"merges\.txt must be UTF-8; line 3 is not", from_folder, folder)


def test_windows_line_endings_are_removed(gpt2, folder):
    content = (folder / "merges.txt").read_bytes()
    (folder / "merges.txt").write_bytes(content.replace(b"\n", b"\r\n"))
    assert from_folder(folder).merges == gpt2.merges


def test_errors_name_a_bad_vocabulary(folder):
    path = folder / "vocab.json"
    path.write_text('{"a": 0,')
    refuses(r"vocab\.json must be JSON; is the file complete", from_folder, folder)
    for content in ('{"a": 0, "b": 0}', '{"a": 1}', '{"a": "0"}', '{"a": false}'):
        path.write_text(content)
        refuses(r"vocab\.json must number its . pieces 0", from_folder, folder)


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
    loaded = from_folder(tmp_path)
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
            "continuing_subword_prefix='##'",
        ),
        ({"model__byte_fallback": True}, "model.byte_fallback=True"),
        ({"model__ignore_merges": True}, "model.ignore_merges=True"),
        ({"model__merges": ["abc"]}, "must hold a vocabulary, merges.*ValueError"),
        ({"added_tokens": [1]}, "must hold a vocabulary, merges.*TypeError"),
        ({"model": {}, "added_tokens": []}, "hold a vocabulary.*KeyError: 'vocab'"),
    ],
)
def test_tokenizer_json_of_another_kind_is_refused(gpt2, tmp_path, changes, match):
    (tmp_path / "tokenizer.json").write_text(packed_json(gpt2, **changes))
    refuses(match, ByteLevelBPETokenizer.from_folder, tmp_path)
