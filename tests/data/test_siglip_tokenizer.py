"""SigLIP's tokenizer: SentencePiece without punctuation, padded with "</s>"."""

import io
import json

import numpy as np
import pytest
from data.tokenizer_cases import HAND, LONG, REFERENCES

from keras_attn.data import SentencePieceTokenizer, load_text_tokenizer

pytest.importorskip("sentencepiece", reason="`sentencepiece` is not installed")

TEXTS = ["a man in a blue shirt", "two men are near a ladder", "it's the σάς"] * 9
SETTINGS = {
    "tokenizer_class": "SiglipTokenizer",
    "do_lower_case": True,
    "eos_token": "</s>",
    "model_max_length": 64,
    "pad_token": "</s>",
    "unk_token": "<unk>",
}


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(TEXTS, 61, "siglip", character_coverage=1.0)


@pytest.fixture(scope="module")
def plain(tokenizer):
    """The same model without normalization."""
    return SentencePieceTokenizer(tokenizer.model, "t5")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("A Man, in (a) BLUE-shirt!", "a man in a blueshirt"),
        ("it's; the_man\t\n near \u3000a\u00a0ladder .", "its theman near a ladder"),
        ("a▁man", "a man"),
        ("ΣΆΣ", "σάς"),
        ("Two Men?", "two men"),
    ],
)
def test_case_and_punctuation(tokenizer, plain, text, read):
    assert plain.unknown_token_id not in plain.encode(read)
    assert tokenizer.encode(text) == plain.encode(read)
    assert tokenizer.decode(tokenizer.encode(text)) == read


def test_only_the_punctuation_of_ascii_is_removed(tokenizer):
    assert tokenizer.encode("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") == []
    for mark in "…¿、«”–":
        assert tokenizer.unknown_token_id in tokenizer.encode(f"a{mark}man")


def test_text_after_nul_is_read(tokenizer):
    start, unknown, *rest = tokenizer.encode("a\x00man")
    assert (start, unknown) == (*tokenizer.encode("a"), tokenizer.unknown_token_id)
    assert tokenizer.decode(rest) == "man"
    xlnet = SentencePieceTokenizer((REFERENCES / "spiece.model").read_bytes(), "xlnet")
    lower = SentencePieceTokenizer(xlnet.model, "xlnet", lower_case=True)
    assert lower.encode("A\x00MAN") == xlnet.encode("a\x00man")
    assert len(lower.encode("A\x00MAN")) > 2


def test_rows_end_and_are_padded_with_the_same_token(tokenizer):
    assert tokenizer.pad_token_id == tokenizer.end_token_id == 1
    texts = ["a man", "", "two men are near a ladder"]
    batch = tokenizer.encode_batch(texts, max_length=64, pad_to_max_length=True)
    rows = [tokenizer.encode(text) for text in texts]
    assert batch["token_ids"].tolist() == [row + [1] * (64 - len(row)) for row in rows]
    lengths = [len(row) + 1 for row in rows]
    assert batch["padding_mask"].sum(axis=1).tolist() == lengths
    cut = tokenizer.encode_batch(["two men " * 64], max_length=64)["token_ids"]
    assert cut.shape == (1, 64) and cut[0, -1] == 1 and 1 not in cut[0, :-1]


def test_published_folders(tokenizer, plain, tmp_path):
    (tmp_path / "spiece.model").write_bytes(tokenizer.model)
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "siglip"}')
    loaded = load_text_tokenizer(tmp_path)
    assert isinstance(loaded, SentencePieceTokenizer) and loaded.lower_case
    assert loaded.convention == tokenizer.convention
    config.unlink()
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps(SETTINGS))
    loaded = load_text_tokenizer(tmp_path)
    assert (
        loaded.encode("A Man!") == tokenizer.encode("A Man!") == plain.encode("a man")
    )
    assert loaded.max_length == 64
    loaded.save(tmp_path / "again")
    again = tmp_path / "again" / "tokenizer_config.json"
    assert json.loads(again.read_text()) == SETTINGS
    settings.write_text(json.dumps(SETTINGS | {"do_lower_case": False}))
    cased = load_text_tokenizer(tmp_path)
    assert cased.encode("a man!") == plain.encode("a man")
    assert cased.unknown_token_id in cased.encode("A man!")
    # Their tokenizer is Gemma's.
    settings.write_text('{"tokenizer_class": "GemmaTokenizer"}')
    with pytest.raises(ValueError, match=r"xlmroberta, siglip\..*of kind 'gemma'"):
        load_text_tokenizer(tmp_path)


def test_training_reads_what_the_model_will_read(tokenizer):
    shouted = [f" {text.upper()}!?" for text in TEXTS]
    again = SentencePieceTokenizer.train(shouted, 61, "siglip", character_coverage=1.0)
    assert set("".join(again.pieces[3:])) == set("".join(tokenizer.pieces[3:]))
    with pytest.raises(ValueError, match="`texts` must have at least one text"):
        SentencePieceTokenizer.train(["!", "?"], 61, "siglip")


@pytest.mark.parity
@pytest.mark.parametrize("rule", ["nmt_nfkc", "identity"])
def test_ids_match_transformers(rule, tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    transformers = pytest.importorskip("transformers")
    lines = [text for text in _lines() if not any(t in text for t in ("</s>", "<unk>"))]
    assert len(lines) > 3000
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text.lower() for text in lines if text.strip()]),
        model_writer=model,
        vocab_size=2003,
        hard_vocab_limit=False,
        character_coverage=0.995,
        normalization_rule_name=rule,
        minloglevel=2,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
    )
    (tmp_path / "spiece.model").write_bytes(model.getvalue())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(SETTINGS))
    ours = load_text_tokenizer(tmp_path)
    theirs = transformers.SiglipTokenizer.from_pretrained(tmp_path)
    options = {"padding": "max_length", "truncation": True, "return_tensors": "np"}
    expected = theirs(lines, return_attention_mask=True, **options)
    assert len(np.unique(expected["input_ids"])) > 1000
    batch = ours.encode_batch(lines, pad_to_max_length=True)
    np.testing.assert_array_equal(batch["padding_mask"], expected["attention_mask"])
    rows = zip(batch["token_ids"].tolist(), expected["input_ids"].tolist(), strict=True)
    differing = [(one, two) for one, two in rows if one != two]
    # Ties: "www" is "ww" and "w" in either order.
    assert all(sorted(one) == sorted(two) for one, two in differing)
    assert len(differing) < len(lines) // 100


def _lines():
    """Texts of all scripts, and joined ones, with punctuation between them."""
    glue = (". ", "", " – ", "!", "\n", " (", "'", "_", "\u3000", "…", "/")
    # Not runs of one letter, whose segmentations are ties.
    texts = [text for text in HAND if text not in LONG]
    joined = [
        one + glue[(row + step) % len(glue)] + texts[(row + step) % len(texts)]
        for step in range(3, 90, 4)
        for row, one in enumerate(texts)
    ]
    return [*texts, *joined]
