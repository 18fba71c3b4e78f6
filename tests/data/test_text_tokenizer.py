"""The interface of all text tokenizers, and loading one by its folder."""

import functools
import json
import sys

import numpy as np
import pytest
import tensorflow as tf
from data.tokenizer_cases import CASES, REFERENCES, SPECIAL, read_ids
from refusals import refuses
from variations import in_turn

from keras_attn.data import SubwordTokenizer
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


def change(folder, **settings):
    """Adds settings to a folder, and removes those that are None."""
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | settings
    left = {key: value for key, value in settings.items() if value is not None}
    path.write_text(json.dumps(left))


def save(kind, folder, **settings):
    """The tokenizer of a kind, of which the folder has further settings."""
    tokenizer = make(kind)
    tokenizer.save(folder)
    change(folder, **settings)
    return tokenizer


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


# The file of a kind, and what its ids of texts with special tokens and of pairs are.
REFERENCE_IDS = {
    "wordpiece": ("wordpiece_ids.npz", "special", "pairs"),
    "gpt2": ("bpe_ids.npz", "gpt2_special", "gpt2_pairs"),
    "roberta": ("bpe_ids.npz", "roberta_special", "roberta_pairs"),
    "clip": ("clip_ids.npz", "special", "pairs"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_in_a_text_are_parsed_only_on_request(kind):
    tokenizer = make(kind)
    for token, index in tokenizer.special_token_ids.items():
        parsed = tokenizer.encode(f"a {token}a", parse_special_tokens=True)
        assert parsed.count(index) == 1
        if index == tokenizer.mask_token_id:
            batch = tokenizer.encode_batch([token], parse_special_tokens=True)
            assert index in batch["token_ids"][0]
        # "<eop>" is a piece that XLNet's model finds itself.
        if index != tokenizer.unknown_token_id and token != "<eop>":
            assert index not in tokenizer.encode(token)
    if kind in REFERENCE_IDS:
        file, name, _ = REFERENCE_IDS[kind]
        for text, ids in zip(SPECIAL, read_ids(file)[name], strict=True):
            assert tokenizer.encode(text, parse_special_tokens=True) == ids


@pytest.mark.parametrize("kind", REFERENCE_IDS)
def test_pairs_match_the_reference(kind):
    file, _, name = REFERENCE_IDS[kind]
    expected, tokenizer = read_ids(file), make(kind)
    for length in (7, 8, 13):
        batch = tokenizer.encode_batch(
            CASES[:23], CASES[29:52], max_length=length, pad_to_max_length=True
        )
        names = ("input_ids", "attention_mask", "token_type_ids")
        keys = ("token_ids", "padding_mask", "segment_ids")
        for ours, theirs in zip(keys, names, strict=True):
            rows = expected[f"{name}_{length}_{theirs}"]
            # For transformers the second text is segment 1; GPT-2 has no segments.
            if (kind, ours) == ("gpt2", "segment_ids"):
                rows = [[0] * length] * len(rows)
            assert batch[ours].tolist() == rows, (length, ours)


def test_a_batch_has_one_row_per_text(tokenizer):
    texts = ["a man", "", "two men are near a ladder"]
    batch = tokenizer.encode_batch(iter(texts))
    names = ("token_ids", "padding_mask", "segment_ids")
    assert {key: x.dtype for key, x in batch.items()} == dict.fromkeys(names, np.int32)
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
    added, encode = len(tokenizer.convention.single) - 1, tokenizer.encode_batch
    encode(["a"], max_length=added + 1)
    if added:
        match = f"`max_length` must leave room .*besides the {added} special"
        refuses(match, encode, ["a"], max_length=added)
    added = len(tokenizer.convention.pair) - 2
    match = "`max_length` must leave room for one token"
    refuses(match, encode, ["a"], ["b"], max_length=added + 1)
    refuses("`max_length` must be a positive integer", encode, ["a"], max_length=0)
    match = "`pad_to_max_length` needs a `max_length`"
    refuses(match, encode, ["a"], pad_to_max_length=True)


@pytest.mark.parametrize("text", [None, 5, b"bytes", ["list"]])
def test_text_must_be_text(tokenizer, text):
    with pytest.raises(TypeError, match="`text` must be text of type `str`"):
        tokenizer.encode(text)
    with pytest.raises(TypeError, match="`texts` must be text of type `str`"):
        tokenizer.encode_batch(["a", text])
    with pytest.raises(TypeError, match="`second_texts` must be text"):
        tokenizer.encode_batch(["a"], [text])


def test_unpaired_surrogates_are_refused(tokenizer):
    refuses("`text` must be text that UTF-8 can encode", tokenizer.encode, "a\ud83d")


def test_texts_must_be_a_list_and_pairs_of_equal_length(tokenizer):
    refuses(r"`texts` must be a sequence .*texts='one'", tokenizer.encode_batch, "one")
    with pytest.raises(ValueError, match="same length as `texts`.*2 texts and 1 s"):
        tokenizer.encode_batch(["a", "b"], ["c"])


def test_ids_of_another_vocabulary_are_refused(tokenizer):
    size = tokenizer.vocabulary_size
    for method in (tokenizer.decode, tokenizer.tokens):
        refuses(rf"`ids` must be in \[0, {size}\)", method, [0, size])
        refuses("Received: ids from -1 to 5", method, [5, -1])
        for ids in ([[4, 5]], 4, [4.0]):
            refuses("`ids` must be integers of shape", method, ids)


def test_the_longer_text_of_a_pair_is_cut_first(bert):
    rows = []
    for first, second in [(1, 9), (9, 1), (9, 9), (4, 9), (9, 4), (2, 2)]:
        batch = bert.encode_batch(["a " * first], ["b " * second], max_length=10)
        segments = batch["segment_ids"][0].tolist()
        rows.append((segments.count(0) - 2, segments.count(1) - 1))
    # Seven tokens remain besides the special ones.
    assert rows == [(1, 6), (6, 1), (3, 4), (3, 4), (4, 3), (2, 2)]


@pytest.mark.parametrize("kind", ["wordpiece", "xlnet", "clip"])
def test_a_graph_matches_the_host(kind):
    tokenizer = make(kind)
    padded: dict = {"max_length": 97, "pad_to_max_length": True}
    short: dict = {"max_length": 7}
    for options in ({}, short, padded):
        pack = tf.function(functools.partial(tokenizer.pack, **options))
        pack = pack.get_concrete_function(tf.TensorSpec([None], tf.string))
        graph = pack(tf.constant(CASES[:61]))
        host = tokenizer.encode_batch(CASES[:61], **options)
        assert graph.keys() == host.keys()
        for key, value in host.items():
            assert graph[key].dtype == value.dtype
            np.testing.assert_array_equal(graph[key], value)
    assert {spec.shape[1] for spec in pack.structured_outputs.values()} == {97}
    none = tokenizer.pack(tf.constant([], tf.string), max_length=7)
    assert all(value.shape == (0, 0) for value in none.values())
    blank = tokenizer.pack(tf.constant(["", " "]))["token_ids"]
    assert blank.shape == (2, len(tokenizer.convention.single) - 1)


@pytest.mark.parametrize(
    "kind", in_turn(["wordpiece", "t5", "xlnet", "xlm_roberta", "siglip"], 2)
)
def test_the_graph_of_pairs_and_a_saved_model_match_the_host(tmp_path, kind):
    class Server(tf.Module):
        def __init__(self):
            super().__init__()
            self.tokenizer = make(kind)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)] * 2)
        def serve(self, texts, second_texts):
            return self.tokenizer.pack(texts, second_texts, max_length=23)

    server = Server()
    tf.saved_model.save(server, str(tmp_path), signatures={"serve": server.serve})
    loaded = tf.saved_model.load(str(tmp_path)).signatures["serve"]
    texts, seconds = CASES[:31], CASES[200:231]
    host = server.tokenizer.encode_batch(texts, seconds, max_length=23)
    graph = server.serve(tf.constant(texts), tf.constant(seconds))
    saved = loaded(texts=tf.constant(texts), second_texts=tf.constant(seconds))
    for key, value in host.items():
        np.testing.assert_array_equal(graph[key], value)
        np.testing.assert_array_equal(saved[key], value)


def test_a_graph_refuses_other_than_string_vectors(bert):
    for bad in (tf.constant("a"), tf.constant([["a"]]), tf.constant([1])):
        refuses(r"`texts` must be strings of shape \(B,\)", bert.pack, bad)
    with pytest.raises(ValueError, match="`second_texts` must be strings of shape"):
        bert.pack(tf.constant(["a"]), tf.constant("b"))
    refuses("`max_length` must leave room", bert.pack, tf.constant(["a"]), max_length=2)


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


@pytest.mark.parametrize("kind", KINDS)
def test_model_type_gives_the_kind_if_the_settings_do_not(tmp_path, kind):
    tokenizer = make(kind)
    tokenizer.save(tmp_path)
    model_type = {"wordpiece": "bert", "xlm_roberta": "xlm-roberta"}.get(kind, kind)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    for generic in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        settings = json.dumps({"tokenizer_class": generic})
        (tmp_path / "tokenizer_config.json").write_text(settings)
        assert load_text_tokenizer(tmp_path).convention == tokenizer.convention


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
    refuses(match, load_text_tokenizer, tmp_path)


@pytest.mark.parametrize(
    "kind, files",
    [
        ("wordpiece", r"vocab\.txt, or tokenizer\.json"),
        ("t5", r"spiece\.model, or .*tokenizer\.model"),
        ("gpt2", r"vocab\.json with merges\.txt, or tokenizer\.json"),
        ("clip", r"vocab\.json with merges\.txt, or tokenizer\.json"),
    ],
)
def test_a_folder_without_the_files_of_a_class_is_refused(tmp_path, kind, files):
    load = type(make(kind)).from_folder
    refuses(rf"must have {files}\..*which has no files", load, tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    refuses(rf"must have {files}\..*which has vocab\.json", load, tmp_path)


EXTRA = r'pip install "keras-attn\[text\]"'


@pytest.mark.parametrize(
    "library, use, match",
    [
        ("tensorflow_text", lambda: WordPieceTokenizer.train(CASES), EXTRA),
        ("tensorflow_text", lambda: make("t5"), EXTRA),
        ("tokenizers", lambda: WordPieceTokenizer.train(CASES), EXTRA),
        ("tokenizers", lambda: make("gpt2"), EXTRA),
        ("tokenizers", lambda: SubwordTokenizer.train(CASES), EXTRA),
        (
            "sentencepiece",
            lambda: SentencePieceTokenizer.train(CASES),
            "pip install sentencepiece",
        ),
    ],
)
def test_a_missing_library_is_named_with_its_install_command(
    monkeypatch, library, use, match
):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=match):
        use()


def test_an_unsupported_kind_is_refused(tmp_path):
    make("gpt2").save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": null}')
    (tmp_path / "config.json").write_text('{"model_type": "xlm"}')
    refuses(r"one of these kinds: bert, .*kind 'xlm'", load_text_tokenizer, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "MarianTokenizer"}'
    )
    refuses("of kind 'marian'", load_text_tokenizer, tmp_path)
