import functools
import json

import numpy as np
import pytest
import tensorflow as tf
from data.test_text_tokenizer import change
from data.tokenizer_cases import CASES, CHARACTERS, REFERENCES, read_ids
from refusals import refuses

from keras_attn.data.text.byte_pairs import CLIP_WORD
from keras_attn.data.text.clip_tokenizer import (
    END,
    START,
    BytePairMerges,
    CLIPTokenizer,
)
from keras_attn.data.text.load_text_tokenizer import load_text_tokenizer
from keras_attn.data.text.tokenizer_json import clip_json

LONG = "a man in a blue shirt is standing on a ladder"


@pytest.fixture(scope="module")
def tokenizer():
    return CLIPTokenizer.from_folder(REFERENCES / "clip")


def test_ids_of_five_hundred_texts_match_the_reference(tokenizer):
    theirs = read_ids("clip_ids.npz")["clip"]
    assert len({i for row in theirs for i in row}) > 500
    ours = tokenizer._tokenize(CASES)
    assert ours == theirs
    assert [tokenizer.encode(text) for text in CASES[::9]] == theirs[::9]


def test_words(tokenizer):
    def words(text):
        (row,) = tokenizer._words(tf.constant([text])).to_list()
        return [word.decode() for word in row]

    assert words("It's  1999,\tisn't it?!") == (
        ["it", "'s", "1", "9", "9", "9", ",", "isn", "'t", "it", "?!"]
    )
    # An apostrophe that a run of other characters has taken begins no ending.
    assert words("''s !'s 'S") == ["''", "s", "!'", "s", "'s"]
    assert words("e\u0301\u3000ΣΑΣ İ ½٣") == ["é", "σασ", "i", "\u0307", "½", "٣"]
    assert words("") == words(" \n\u2028\x85") == []
    assert words("a\x1fb") == ["a", "\x1f", "b"]


def test_every_unicode_character_is_treated_as_by_the_reference(tokenizer):
    library = pytest.importorskip("tokenizers")
    steps = library.normalizers
    normalizer = steps.Sequence([steps.NFC(), steps.Lowercase()])
    split = library.pre_tokenizers.Split(
        library.Regex(CLIP_WORD), behavior="removed", invert=True
    )
    # Between a mark that others move across and one that letters are composed with.
    texts = [f"x\u0345{character}\u0307y5" for character in CHARACTERS]
    theirs = [
        [word for word, _ in split.pre_tokenize_str(normalizer.normalize_str(text))]
        for text in texts
    ]
    ours = tokenizer._words(tf.constant(texts)).to_list()
    assert len(texts) > 60_000
    decoded = [[word.decode() for word in row] for row in ours]
    differing = [
        row for row in zip(texts, decoded, theirs, strict=True) if row[1] != row[2]
    ]
    assert not differing


def test_merges_are_applied_by_priority_and_from_the_left():
    merges = BytePairMerges([(1, 1), (2, 1), (5, 5)], [5, 6, 7], 8)

    def joined(*words):
        symbols = tf.constant([i for word in words for i in word], tf.int32)
        rows = np.repeat(np.arange(len(words)), [len(word) for word in words])
        ids, rows = merges(symbols, tf.constant(rows, tf.int32))
        ids, rows = ids.numpy(), rows.numpy()
        return [ids[rows == row].tolist() for row in range(len(words))]

    assert joined([1, 1, 1], [2, 1, 1], [2, 1], [3]) == [[5, 1], [2, 5], [6], [3]]
    assert joined([1, 1, 1, 1], [1], [1, 1]) == [[7], [1], [5]]
    # Never across words, and not of no words.
    assert joined([1], [1]) == [[1], [1]]
    assert joined() == []


def test_of_equal_merges_the_last_counts_as_in_the_library():
    library = pytest.importorskip("tokenizers")
    numbers = {piece: index for index, piece in enumerate(["a", "b", "ab", "aa"])}
    pairs = [("a", "a"), ("a", "b"), ("a", "a")]
    theirs = library.Tokenizer(library.models.BPE(numbers, pairs))
    ids = [[numbers[piece] for piece in pair] for pair in pairs]
    ours = BytePairMerges(ids, [3, 2, 3], 4)
    for text in ("aab", "aaab", "abaa"):
        symbols = tf.constant([numbers[letter] for letter in text], tf.int32)
        found, _ = ours(symbols, tf.zeros_like(symbols))
        assert found.numpy().tolist() == theirs.encode(text).ids


def test_a_long_word_and_a_long_text(tokenizer):
    library = pytest.importorskip("tokenizers")
    ids = {piece: index for index, piece in enumerate(tokenizer.pieces)}
    model = library.models.BPE(ids, list(tokenizer.merges), end_of_word_suffix="</w>")
    theirs = library.Tokenizer(model)
    word = "standingonaladder" * 40
    found = tokenizer.encode(f"{word} {word[:-1]}")
    assert found == theirs.encode(word).ids + theirs.encode(word[:-1]).ids


def test_truncation_keeps_the_end_token(tokenizer):
    (row,) = tokenizer.encode_batch([LONG], max_length=7)["token_ids"].tolist()
    start, end = tokenizer.start_token_id, tokenizer.end_token_id
    assert row == [start, *tokenizer.encode(LONG)[:5], end]


@pytest.mark.parametrize(("pad", "index"), [("!", 0), (END, -1)])
def test_the_folder_names_the_token_that_pads(tokenizer, tmp_path, pad, index):
    tokenizer.save(tmp_path)
    change(tmp_path, pad_token=pad, model_max_length=7)
    loaded = load_text_tokenizer(tmp_path)
    # As in OpenAI's order of the bytes, "!" is 0.
    assert loaded.pieces[0] == "!"
    index %= loaded.vocabulary_size
    batch = loaded.encode_batch(["a", LONG])["token_ids"]
    assert batch.shape == (2, 7)
    assert batch[0, 3:].tolist() == [index] * 4
    assert loaded.encode("!") == [loaded.pieces.index("!</w>")]
    loaded.save(tmp_path / "again")
    again = load_text_tokenizer(tmp_path / "again")
    assert (again.pad_token_id, again.max_length) == (index, 7)


def test_decode_returns_lower_case_words(tokenizer):
    text = "It's  a Café, 10 men!"
    assert tokenizer.decode(tokenizer.encode(text)) == "it 's a café , 1 0 men !"
    row = tokenizer.encode_batch([text])["token_ids"][0]
    assert tokenizer.decode(row) == "it 's a café , 1 0 men !"
    assert tokenizer.decode([tokenizer.pieces.index("Ā")]) == "\x00"


def test_transformers_reads_a_saved_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = CLIPTokenizer.train(iter(CASES), 701)
    ours.max_length = 17
    ours.save(tmp_path / "ours")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(theirs) is transformers.CLIPTokenizer
    options = {"max_length": 17, "truncation": True, "padding": "max_length"}
    expected = theirs(CASES, split_special_tokens=True, **options)
    found = ours.encode_batch(CASES, pad_to_max_length=True, max_length=17)
    assert found["token_ids"].tolist() == expected["input_ids"]
    assert found["padding_mask"].tolist() == expected["attention_mask"]
    for ids in expected["input_ids"][::17]:
        assert ours.decode(ids) == theirs.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
    # It saves only a `tokenizer.json`, which can be read back.
    theirs.save_pretrained(tmp_path / "theirs")
    assert not (tmp_path / "theirs" / "vocab.json").exists()
    again = load_text_tokenizer(tmp_path / "theirs")
    assert (again.pieces, again.merges) == (ours.pieces, ours.merges)
    assert again.max_length == 17
    # Without its settings, it is known by the ends of words.
    (tmp_path / "theirs" / "tokenizer_config.json").unlink()
    assert isinstance(load_text_tokenizer(tmp_path / "theirs"), CLIPTokenizer)


def test_training_is_deterministic_and_in_clips_order():
    one, two = (CLIPTokenizer.train(CASES, 601) for _ in range(2))
    assert (one.pieces, one.merges) == (two.pieces, two.merges)
    assert one.vocabulary_size == 601
    assert one.pieces[:2] == ("!", '"') and one.pieces[256:258] == ("!</w>", '"</w>')
    assert one.pieces[-2:] == (START, END)
    joined = tuple("".join(pair) for pair in one.merges)
    assert one.pieces[512:-2] == joined
    rare = CLIPTokenizer.train(["qz qz", "a b"], 600, min_frequency=3)
    assert not rare.merges
    assert rare.vocabulary_size == 514
    refuses("`vocabulary_size` must be at least 514", CLIPTokenizer.train, CASES, 513)
    refuses("`texts` must have at least one text", CLIPTokenizer.train, [" "])


def test_a_vocabulary_that_lacks_tokens_or_bytes_is_refused(tokenizer):
    pieces = [piece for piece in tokenizer.pieces if piece != "a</w>"]
    for given, message in (
        ((tokenizer.pieces[:-1], tokenizer.merges), r"special tokens <\|endoftext"),
        ((pieces, []), "without 1 of them, such as 'a</w>'"),
        ((tokenizer.pieces, [("a", "qqq")]), "`merges` must join .* no piece 'qqq'"),
    ):
        refuses(message, CLIPTokenizer, *given)


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        (("model", "end_of_word_suffix"), "", "model.end_of_word_suffix=None"),
        (("normalizer",), None, "normalizer=None"),
        (("normalizer", "normalizers"), [{"type": "NFC"}], "normalizer=.*'NFC'"),
        (("pre_tokenizer", "pretokenizers"), [3], r"pre_tokenizer=.*\[3\]"),
        (("pre_tokenizer", "pretokenizers"), 3, "pre_tokenizer=.*: 3"),
        (
            ("pre_tokenizer", "pretokenizers", 0, "pattern"),
            {"Regex": "x"},
            "pre_tokenizer=.*'Regex': 'x'",
        ),
        (("pre_tokenizer", "pretokenizers", 0, "pattern"), None, "'pattern': None"),
    ],
)
def test_tokenizer_json_of_another_kind_is_refused(
    tokenizer, tmp_path, field, value, match
):
    content = clip_json(tokenizer.pieces, tokenizer.merges, tokenizer.convention)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    assert load_text_tokenizer(tmp_path).pieces == tokenizer.pieces
    *outer, last = field
    functools.reduce(lambda part, key: part[key], outer, content)[last] = value
    path.write_text(json.dumps(content))
    refuses(match, CLIPTokenizer.from_folder, tmp_path)
