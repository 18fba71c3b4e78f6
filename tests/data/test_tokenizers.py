import json
import unicodedata

import numpy as np
import pytest
from refusals import refuses

from keras_attn.data import (
    CharacterTokenizer,
    SubwordTokenizer,
    Tokenizer,
    load_tokenizer,
)

CORPUS = [
    "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
    "Ein Mann schläft in einem grünen Raum auf einem Sofa.",
    "Eine Gruppe von Männern lädt Baumwolle auf einen Lastwagen",
    'Ein Mädchen (mit "Zöpfen") überquert die Straße, oder?',
]


@pytest.fixture(params=["character", "subword"], scope="module")
def tokenizer(request):
    if request.param == "character":
        return CharacterTokenizer.train(CORPUS)
    return SubwordTokenizer.train(CORPUS, vocabulary_size=113)


def test_special_ids_come_first(tokenizer):
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.tokens([0, 1, 2, 3]) == ["<pad>", "<start>", "<end>", "<unk>"]
    assert (tokenizer.pad_token_id, tokenizer.start_token_id) == (0, 1)
    assert (tokenizer.end_token_id, tokenizer.unknown_token_id) == (2, 3)


@pytest.mark.parametrize("text", CORPUS)
def test_decode_inverts_encode(tokenizer, text):
    ids = tokenizer.encode(text)
    assert min(ids) > 3
    assert max(ids) < tokenizer.vocabulary_size
    assert tokenizer.decode(ids) == text
    assert len(tokenizer.tokens(ids)) == len(ids)


def test_characters_not_in_the_corpus_are_unknown(tokenizer):
    ids = tokenizer.encode("漢Mann")
    assert ids.count(tokenizer.unknown_token_id) == 1
    assert tokenizer.decode(ids) == "Mann"


def test_special_pieces_in_a_text_are_ordinary_text(tokenizer):
    assert not {0, 1, 2} & set(tokenizer.encode("<pad>Mann<end> <start>"))


@pytest.mark.parametrize("text", [b"Mann", ["Mann"], None])
def test_what_is_no_text_is_refused(tokenizer, text):
    """The bytes of a `tf.data.Dataset` were unknown characters, one by one."""
    with pytest.raises(TypeError, match="`text` must be text of type `str`"):
        tokenizer.encode(text)
    with pytest.raises(TypeError, match="`texts` must be text of type `str`"):
        tokenizer.encode_batch(["Mann", text])
    with pytest.raises(TypeError, match="`texts` must be text of type `str`"):
        type(tokenizer).train([text])
    refuses("`text` must be text that UTF-8 can encode", tokenizer.encode, "a\udcff")


def test_the_empty_text(tokenizer):
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""
    assert tokenizer.tokens([]) == []


def test_decoding_stops_at_the_end_and_skips_special_ids(tokenizer):
    ids = tokenizer.encode("Ein Mann")
    noisy = [1, 0, *ids, 3, 2, *ids, 2, 0]
    assert tokenizer.decode(noisy) == "Ein Mann"
    assert tokenizer.decode(np.array(noisy, np.int64)) == "Ein Mann"
    assert tokenizer.decode_batch([noisy, ids]) == ["Ein Mann", "Ein Mann"]


def test_a_batch_is_padded_to_its_longest_row(tokenizer):
    texts = ["Mann", "", "Ein Mann schläft"]
    batch = tokenizer.encode_batch(texts, add_start=True, add_end=True)
    rows = [[1, *tokenizer.encode(text), 2] for text in texts]
    width = max(map(len, rows))
    assert batch.dtype == np.int32
    assert batch.tolist() == [row + [0] * (width - len(row)) for row in rows]
    assert tokenizer.decode_batch(batch) == texts
    assert tokenizer.encode_batch(["Mann"]).tolist() == [tokenizer.encode("Mann")]
    assert tokenizer.encode_batch([]).shape == (0, 0)


def test_a_truncated_row_keeps_its_end_token(tokenizer):
    ids = tokenizer.encode(CORPUS[0])
    cut = tokenizer.encode_batch(CORPUS[:1], max_length=7, add_start=True, add_end=True)
    assert cut.tolist() == [[1, *ids[:5], 2]]
    assert tokenizer.encode_batch(CORPUS[:1], max_length=7).tolist() == [ids[:7]]
    # A limit, not a width: shorter rows are not padded to it.
    assert tokenizer.encode_batch(["M"], max_length=97).shape[1] < 97


def test_saving_and_loading(tokenizer, tmp_path):
    path = tmp_path / "new" / "tokenizer.json"
    tokenizer.save(path)
    loaded = load_tokenizer(path)
    assert type(loaded) is type(tokenizer)
    assert loaded.pieces == tokenizer.pieces
    for text in [*CORPUS, "漢 <end>"]:
        assert loaded.encode(text) == tokenizer.encode(text)
        assert loaded.decode(loaded.encode(text)) == tokenizer.decode(
            tokenizer.encode(text)
        )


def test_ids_of_another_vocabulary_are_refused(tokenizer):
    size = tokenizer.vocabulary_size
    match = rf"`ids` must be in \[0, {size}\).*Received: ids from 0 to {size}"
    for method in (tokenizer.decode, tokenizer.tokens):
        refuses(match, method, [0, size])
        refuses("Received: ids from -1 to 5", method, [5, -1])


@pytest.mark.parametrize("ids", [[[4, 5]], 4, [4.0, 5.0]])
def test_ids_of_another_shape_or_dtype_are_refused(tokenizer, ids):
    refuses(r"`ids` must be integers of shape \(T,\)", tokenizer.decode, ids)


def test_arguments_of_a_batch_are_checked(tokenizer):
    encode = tokenizer.encode_batch
    refuses(r"`max_length` must be .*max_length=0", encode, CORPUS, max_length=0)
    match = r"`max_length` must leave room .*max_length=2, add_start=True, add_end=True"
    refuses(match, encode, CORPUS, max_length=2, add_start=True, add_end=True)
    refuses(r"`texts` must be a sequence .*texts='Mann'", encode, "Mann")


@pytest.mark.parametrize("kind", [CharacterTokenizer, SubwordTokenizer])
def test_training_needs_a_corpus(kind):
    for empty in ([], ["", "  "], iter(())):
        refuses("`texts` must have at least one text", kind.train, empty)
    refuses(r"`texts` must be a sequence .*texts='Mann'", kind.train, "Mann")


def test_characters_are_numbered_in_order():
    tokenizer = CharacterTokenizer.train(iter(["ba", "c a"]))
    assert tokenizer.pieces[4:] == (" ", "a", "b", "c")
    assert tokenizer.encode("abc d") == [5, 6, 7, 4, 3]
    assert tokenizer.decode([5, 4, 4, 5]) == "a  a"
    assert tokenizer.vocabulary_size == 8


@pytest.mark.parametrize("characters", ["", None, ["a"]])
def test_characters_must_be_a_string(characters):
    refuses("`characters` must be a string of at least", CharacterTokenizer, characters)


def test_characters_must_not_repeat():
    refuses("must not repeat .*characters='aba'", CharacterTokenizer, "aba")


def test_subwords_mark_the_beginning_of_words():
    tokenizer = SubwordTokenizer.train(CORPUS, vocabulary_size=997)
    pieces = tokenizer.tokens(tokenizer.encode("Männer, Ein Sofa."))
    assert "".join(pieces) == "▁Männer,▁Ein▁Sofa."
    # Punctuation is always separate from words.
    assert pieces[-1] == "."
    assert "," in pieces


def test_subwords_of_both_normal_forms_are_equal():
    tokenizer = SubwordTokenizer.train(CORPUS, vocabulary_size=113)
    apart = unicodedata.normalize("NFD", CORPUS[0])
    assert apart != CORPUS[0]
    assert tokenizer.encode(apart) == tokenizer.encode(CORPUS[0])
    assert tokenizer.decode(tokenizer.encode(" Ein \t Mann\n")) == "Ein Mann"


def test_training_subwords_is_deterministic_and_limited_in_size():
    one = SubwordTokenizer.train(CORPUS, vocabulary_size=101)
    two = SubwordTokenizer.train(CORPUS, vocabulary_size=101)
    assert one.pieces == two.pieces
    assert one.vocabulary_size == 101
    # Less than the alphabet: the rarest characters become unknown.
    tiny = SubwordTokenizer.train(CORPUS, vocabulary_size=17)
    assert tiny.vocabulary_size == 17
    assert 3 in tiny.encode("(")


def test_subword_arguments_are_checked():
    import tokenizers

    train = SubwordTokenizer.train
    refuses("`vocabulary_size` must be at least 5", train, CORPUS, vocabulary_size=4)
    refuses("`vocabulary_size` must be .*=0", train, CORPUS, vocabulary_size=0)
    refuses("must be a tokenizer in the JSON", SubwordTokenizer, {"no": "model"})
    foreign = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    message = r"`model` must have the pieces .*<pad>"
    refuses(message, SubwordTokenizer, json.loads(foreign.to_str()))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"format": "other", "kind": "character", "state": "a"}',
        b'{"format": "keras_attn.tokenizer", "kind": "morse", "state": "a"}',
        b'{"format": "keras_attn.tokenizer", "kind": "character"}',
    ],
)
def test_a_file_that_is_not_a_tokenizer_is_refused(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    refuses(r"this one is not.*other\.json", load_tokenizer, path)
