"""The interface of all text tokenizers, and loading one by its folder."""

import json

import numpy as np
import pytest
import tensorflow as tf
from data.tokenizer_cases import CASES, REFERENCES

from keras_attn.data.text.byte_level_bpe import ByteLevelBPETokenizer
from keras_attn.data.text.clip_tokenizer import CLIPTokenizer
from keras_attn.data.text.load_text_tokenizer import load_text_tokenizer
from keras_attn.data.text.sentencepiece import SentencePieceTokenizer
from keras_attn.data.text.text_tokenizer import TextTokenizer
from keras_attn.data.text.wordpiece import WordPieceTokenizer

KINDS = ["wordpiece", "t5", "xlnet", "xlm_roberta", "siglip"]
KINDS += ["gpt2", "roberta", "clip"]


def make(kind):
    if kind == "wordpiece":
        return WordPieceTokenizer.from_folder(REFERENCES, lower_case=True)
    if kind in ("gpt2", "roberta"):
        return ByteLevelBPETokenizer.from_folder(REFERENCES / kind)
    if kind == "clip":
        return CLIPTokenizer.from_folder(REFERENCES / kind)
    return SentencePieceTokenizer.from_folder(REFERENCES, kind)


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    return make(request.param)


@pytest.fixture(scope="module")
def bert():
    return make("wordpiece")


def test_the_vocabulary_and_its_special_tokens(tokenizer):
    assert isinstance(tokenizer, TextTokenizer)
    assert tokenizer.vocabulary_size == len(tokenizer.pieces)
    for token, index in tokenizer.special_token_ids.items():
        assert tokenizer.pieces[index] == token
    assert tokenizer.encode("") == []


def test_a_batch_has_one_row_per_text(tokenizer):
    texts = ["a man", "", "two men are near a ladder"]
    batch = tokenizer.encode_batch(iter(texts))
    assert {key: value.dtype for key, value in batch.items()} == {
        "token_ids": np.int32,
        "padding_mask": np.int32,
        "segment_ids": np.int32,
    }
    added = len(tokenizer.convention.single) - 1
    lengths = [len(tokenizer.encode(text)) + added for text in texts]
    assert batch["padding_mask"].sum(axis=1).tolist() == lengths
    assert batch["token_ids"].shape == (3, max(lengths))
    pads = batch["token_ids"][batch["padding_mask"] == 0]
    assert set(pads.tolist()) == {tokenizer.pad_token_id}
    empty = tokenizer.encode_batch([])
    assert all(value.shape == (0, 0) for value in empty.values())


def test_a_row_is_truncated_or_padded(tokenizer):
    text = CASES[0]
    added = len(tokenizer.convention.single) - 1
    cut = tokenizer.encode_batch([text], max_length=added + 3)
    kept = [
        i
        for i in cut["token_ids"][0].tolist()
        if i not in tokenizer.special_token_ids.values()
    ]
    assert kept == tokenizer.encode(text)[:3]
    padded = tokenizer.encode_batch(["a"], max_length=61, pad_to_max_length=True)
    assert padded["token_ids"].shape == (1, 61)
    assert tokenizer.encode_batch(["a"], max_length=61)["token_ids"].shape[1] < 61


def test_max_length_must_leave_room_for_text(tokenizer):
    added = len(tokenizer.convention.single) - 1
    tokenizer.encode_batch(["a"], max_length=added + 1)
    if added:
        match = f"`max_length` must leave room .*besides the {added} special"
        with pytest.raises(ValueError, match=match):
            tokenizer.encode_batch(["a"], max_length=added)
    added = len(tokenizer.convention.pair) - 2
    with pytest.raises(ValueError, match="`max_length` must leave room for one token"):
        tokenizer.encode_batch(["a"], ["b"], max_length=added + 1)
    with pytest.raises(ValueError, match="`max_length` must be a positive integer"):
        tokenizer.encode_batch(["a"], max_length=0)
    with pytest.raises(ValueError, match="`pad_to_max_length` needs a `max_length`"):
        tokenizer.encode_batch(["a"], pad_to_max_length=True)


@pytest.mark.parametrize("text", [None, 5, b"bytes", ["list"]])
def test_text_must_be_text(tokenizer, text):
    with pytest.raises(TypeError, match="`text` must be text of type `str`"):
        tokenizer.encode(text)
    with pytest.raises(TypeError, match="`texts` must be text of type `str`"):
        tokenizer.encode_batch(["a", text])
    with pytest.raises(TypeError, match="`second_texts` must be text"):
        tokenizer.encode_batch(["a"], [text])


def test_unpaired_surrogates_are_refused(tokenizer):
    with pytest.raises(ValueError, match="`text` must be text that UTF-8 can encode"):
        tokenizer.encode("a\ud83d")


def test_texts_must_be_a_list_and_pairs_of_equal_length(tokenizer):
    with pytest.raises(ValueError, match=r"`texts` must be a sequence .*texts='one'"):
        tokenizer.encode_batch("one")
    with pytest.raises(ValueError, match="same length as `texts`.*2 texts and 1 s"):
        tokenizer.encode_batch(["a", "b"], ["c"])


def test_ids_of_another_vocabulary_are_refused(tokenizer):
    size = tokenizer.vocabulary_size
    for method in (tokenizer.decode, tokenizer.tokens):
        with pytest.raises(ValueError, match=rf"`ids` must be in \[0, {size}\)"):
            method([0, size])
        with pytest.raises(ValueError, match="Received: ids from -1 to 5"):
            method([5, -1])
        for ids in ([[4, 5]], 4, [4.0]):
            with pytest.raises(ValueError, match="`ids` must be integers of shape"):
                method(ids)


def test_the_longer_text_of_a_pair_is_cut_first(bert):
    rows = []
    for first, second in [(1, 9), (9, 1), (9, 9), (4, 9), (9, 4), (2, 2)]:
        batch = bert.encode_batch(["a " * first], ["b " * second], max_length=10)
        segments = batch["segment_ids"][0].tolist()
        rows.append((segments.count(0) - 2, segments.count(1) - 1))
    # Seven tokens remain besides the special ones.
    assert rows == [(1, 6), (6, 1), (3, 4), (3, 4), (4, 3), (2, 2)]


@pytest.mark.parametrize("kind", ["wordpiece", "xlnet", "clip"])
def test_a_graph_of_empty_batches_and_texts(kind):
    tokenizer = make(kind)
    none = tokenizer.pack(tf.constant([], tf.string), max_length=7)
    assert all(value.shape == (0, 0) for value in none.values())
    blank = tokenizer.pack(tf.constant(["", " "]))["token_ids"]
    assert blank.shape == (2, len(tokenizer.convention.single) - 1)


def test_a_graph_refuses_other_than_string_vectors(bert):
    for bad in (tf.constant("a"), tf.constant([["a"]]), tf.constant([1])):
        with pytest.raises(
            ValueError, match=r"`texts` must be strings of shape \(B,\)"
        ):
            bert.pack(bad)
    with pytest.raises(ValueError, match="`second_texts` must be strings of shape"):
        bert.pack(tf.constant(["a"]), tf.constant("b"))
    with pytest.raises(ValueError, match="`max_length` must leave room"):
        bert.pack(tf.constant(["a"]), max_length=2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_folder_loads_as_its_kind(tmp_path, kind):
    tokenizer = make(kind)
    tokenizer.save(tmp_path)
    loaded = load_text_tokenizer(tmp_path)
    assert type(loaded) is type(tokenizer)
    assert loaded.convention == tokenizer.convention
    assert loaded._tokenize(CASES[:31]) == tokenizer._tokenize(CASES[:31])
    # By its files alone, which are of one name for T5, XLNet and SigLIP.
    (tmp_path / "tokenizer_config.json").unlink()
    loaded = load_text_tokenizer(tmp_path)
    assert type(loaded) is type(tokenizer)
    if kind not in ("t5", "siglip"):
        assert loaded.convention == tokenizer.convention


@pytest.mark.parametrize(
    ("model_type", "kind", "convention"),
    [
        ("bert", "wordpiece", None),
        ("gpt2", "gpt2", "gpt2"),
        ("roberta", "roberta", "roberta"),
        ("xlnet", "xlnet", "xlnet"),
        ("t5", "t5", "t5"),
        ("xlm-roberta", "xlm_roberta", "xlm_roberta"),
        ("clip", "clip", None),
        ("siglip", "siglip", "siglip"),
    ],
)
def test_model_type_gives_the_kind_if_the_settings_do_not(
    tmp_path, model_type, kind, convention
):
    tokenizer = make(kind)
    tokenizer.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    for generic in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        settings = json.dumps({"tokenizer_class": generic})
        (tmp_path / "tokenizer_config.json").write_text(settings)
        loaded = load_text_tokenizer(tmp_path)
        assert loaded.convention == tokenizer.convention


def test_tokenizer_json_alone_gives_the_kind(tmp_path):
    transformers = pytest.importorskip("transformers")
    for kind, name in [("wordpiece", "BertTokenizer"), ("gpt2", "GPT2Tokenizer")]:
        tokenizer = make(kind)
        tokenizer.save(tmp_path / kind)
        theirs = getattr(transformers, name).from_pretrained(tmp_path / kind)
        theirs.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
        loaded = load_text_tokenizer(tmp_path)
        assert type(loaded) is type(tokenizer)
        assert loaded.pieces == tokenizer.pieces


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`folder` must be an existing folder"):
        load_text_tokenizer(tmp_path / "none")
    (tmp_path / "merges.txt").write_text("")
    match = (
        r"must have vocab\.txt, or spiece\.model, or sentencepiece\.bpe\.model, or "
        r"tokenizer\.model, or vocab\.json with merges\.txt, or tokenizer\.json\. "
        r".*which has merges\.txt"
    )
    with pytest.raises(ValueError, match=match):
        load_text_tokenizer(tmp_path)


def test_an_unsupported_kind_is_refused(tmp_path):
    make("gpt2").save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": null}')
    (tmp_path / "config.json").write_text('{"model_type": "xlm"}')
    with pytest.raises(ValueError, match=r"one of these kinds: bert, .*kind 'xlm'"):
        load_text_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "MarianTokenizer"}'
    )
    with pytest.raises(ValueError, match="of kind 'marian'"):
        load_text_tokenizer(tmp_path)
