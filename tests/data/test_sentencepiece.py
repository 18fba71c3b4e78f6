import numpy as np
import pytest
from data.test_text_tokenizer import make
from data.tokenizer_cases import (
    CASES,
    REFERENCES,
    is_tie,
    read_ids,
    xlnet_ids,
    xlnet_text,
)
from refusals import refuses

from keras_attn.data.text.sentencepiece import SentencePieceTokenizer

MODEL = (REFERENCES / "spiece.model").read_bytes()


def check_ids(ours, theirs, ties):
    """Checks that ids are equal, or in ties a permutation of the same pieces.

    Ties are runs of one letter. The reference and tensorflow-text add the same scores
    in another order, so rounding decides, in most of them alike.
    """
    rows = enumerate(zip(ours, theirs, strict=True))
    differing = {number for number, (one, two) in rows if one != two}
    assert not differing - set(ties), [CASES[n] for n in differing - set(ties)]
    assert len(differing) < len(CASES) // 20
    for number in differing:
        assert sorted(ours[number]) == sorted(theirs[number]), CASES[number]


@pytest.mark.parametrize("convention", ["t5", "xlnet", "xlm_roberta"])
def test_ids_of_five_hundred_texts_match_the_reference(convention):
    tokenizer, expected = make(convention), read_ids("sentencepiece_ids.npz")
    kind = "xlnet" if convention == "xlnet" else "plain"
    theirs = expected[kind]
    (ties,) = expected[f"{kind}_ties"]
    if convention == "xlm_roberta":
        # fairseq's ids: 3 is unknown, and the others are one higher.
        theirs = [[i + 1 if i else 3 for i in row] for row in theirs]
    flat = [i for row in theirs for i in row]
    assert len(set(flat)) > 700
    check_ids([tokenizer.encode(text) for text in CASES], theirs, ties)
    check_ids(tokenizer._tokenize(CASES), theirs, ties)


def test_ids_match_the_library_with_its_default_normalization():
    library = pytest.importorskip("sentencepiece")
    tokenizer = SentencePieceTokenizer.train(
        CASES, 1301, "xlnet", character_coverage=0.98
    )
    theirs = library.SentencePieceProcessor(model_proto=tokenizer.model)
    # Only this model has a table of characters: full width, ligatures, blanks.
    assert theirs.encode("ﬁ　ｘ") == theirs.encode("fi x")
    prepared = [xlnet_text(text) for text in CASES]
    ties = [n for n, text in enumerate(prepared) if is_tie(theirs, text)]
    check_ids(
        [tokenizer.encode(text) for text in CASES],
        [xlnet_ids(theirs, text) for text in prepared],
        ties,
    )
    plain = SentencePieceTokenizer(tokenizer.model, "t5")
    ties = [n for n, text in enumerate(CASES) if is_tie(theirs, text)]
    check_ids(plain._tokenize(CASES), theirs.encode(CASES), ties)
    for ids in theirs.encode(CASES):
        known = [i for i in ids if i > 0]
        assert plain.decode(ids) == theirs.decode(known)


def test_xlnet_splits_a_comma_from_the_number_before_it():
    pytest.importorskip("sentencepiece")
    texts = ["in 1990, 1990, 2000, and 2000, or 17,5 17, x"] * 50
    tokenizer = SentencePieceTokenizer.train(texts, 59, "xlnet")
    plain = SentencePieceTokenizer(tokenizer.model, "t5")
    joined = plain.tokens(plain.encode(texts[0]))
    assert any(len(p) > 1 and p[-1] == "," and p[-2].isdigit() for p in joined)
    split = tokenizer.tokens(tokenizer.encode(texts[0]))
    assert not any(len(p) > 1 and p[-1] == "," for p in split)
    assert "".join(split) == "▁" + texts[0].replace(" ", "▁")


def test_rows_of_xlnet_are_padded_at_the_left():
    xlnet = make("xlnet")
    batch = xlnet.encode_batch(["a man", ""], ["b", "a ladder"], max_length=11)
    a, b, ladder = (xlnet.encode(text) for text in ("a man", "b", "a ladder"))
    sep, cls, pad = (xlnet.pieces.index(p) for p in ("<sep>", "<cls>", "<pad>"))
    rows = [[*a, sep, *b, sep, cls], [sep, *ladder, sep, cls]]
    width = max(map(len, rows))
    assert batch["token_ids"].tolist() == [
        [pad] * (width - len(row)) + row for row in rows
    ]
    segments = [
        [0] * (len(a) + 1) + [1] * (len(b) + 1) + [2],
        [0] + [1] * (len(ladder) + 1) + [2],
    ]
    assert batch["segment_ids"].tolist() == [
        [3] * (width - len(row)) + row for row in segments
    ]
    np.testing.assert_array_equal(batch["padding_mask"], batch["segment_ids"] != 3)


@pytest.mark.parametrize("convention", ["t5", "xlnet", "xlm_roberta"])
def test_decode_inverts_encode(convention):
    tokenizer = SentencePieceTokenizer(MODEL, convention)
    text = "A man in a blue shirt is standing on a ladder."
    ids = tokenizer.encode_batch([text])["token_ids"][0]
    assert tokenizer.unknown_token_id not in ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([]) == ""


def test_lower_case_is_for_some_conventions(tmp_path):
    SentencePieceTokenizer(MODEL, "xlnet", lower_case=True).save(tmp_path)
    tokenizer = SentencePieceTokenizer.from_folder(tmp_path)
    assert tokenizer.model == MODEL and tokenizer.lower_case
    assert tokenizer.encode("A MAN É") == tokenizer.encode("a man e")
    with pytest.raises(ValueError, match=r"`lower_case` is for .*convention=\'t5\'"):
        SentencePieceTokenizer(MODEL, "t5", lower_case=True)


def test_the_convention_follows_from_the_model_file(tmp_path):
    (tmp_path / "spiece.model").write_bytes(MODEL)
    loaded = SentencePieceTokenizer.from_folder(tmp_path)
    assert loaded.classify_token_id == loaded.pieces.index("<cls>")
    fairseq = tmp_path / "fairseq"
    fairseq.mkdir()
    (fairseq / "sentencepiece.bpe.model").write_bytes(MODEL)
    loaded = SentencePieceTokenizer.from_folder(fairseq)
    assert loaded.pieces[:4] == ("<s>", "<pad>", "</s>", "<unk>")


def test_training_for_each_convention():
    pytest.importorskip("sentencepiece")
    train = SentencePieceTokenizer.train
    for convention in ("t5", "xlm_roberta"):
        tokenizer = train(CASES, 1103, convention, 0.98)
        assert 900 < tokenizer.vocabulary_size <= 1103
        assert tokenizer.decode(tokenizer.encode("a man")) == "a man"
    refuses("`vocabulary_size` must leave room for the", train, CASES, 11)
    refuses("`vocabulary_size` must be a positive integer", train, CASES, -1)
    message = r"`character_coverage` must be in \[0\.98, 1"
    refuses(message, train, CASES, 1103, character_coverage=0.97)
    refuses("`texts` must have at least one text", train, [""])
    refuses("`convention` must be one of 't5'", train, CASES, 997, "bert")


@pytest.mark.parametrize("size", [0, 5, 997, len(MODEL) - 3])
def test_a_broken_model_is_refused(tmp_path, size):
    with pytest.raises(ValueError, match=f"`model` must be .*complete.*{size} bytes"):
        SentencePieceTokenizer(MODEL[:size])
    (tmp_path / "spiece.model").write_bytes(MODEL[:size])
    with pytest.raises(ValueError, match=r"spiece\.model: `model` must be the content"):
        SentencePieceTokenizer.from_folder(tmp_path)


def test_a_model_of_another_convention_is_refused():
    pytest.importorskip("sentencepiece")
    model = SentencePieceTokenizer.train(CASES, 1103, "t5", 0.98).model
    for convention, message in (
        ("xlnet", "must have the special tokens <cls>, <mask>"),
        ("xlm_roberta", 'must begin with the pieces "<unk>"'),
        ("bert", "`convention` must be one of 't5', 'xlnet'"),
    ):
        refuses(message, SentencePieceTokenizer, model, convention)
