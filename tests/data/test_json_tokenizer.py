"""Any `tokenizer.json` gives the ids of the library `tokenizers`, which wrote it."""

import json

import pytest
import tensorflow as tf
from data.test_text_tokenizer import make
from data.tokenizer_cases import CASES
from refusals import refuses

from keras_attn.data import (
    ByteLevelBPETokenizer,
    JSONTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
    load_text_tokenizer,
)
from keras_attn.data.text.byte_pairs import LETTER_OF_BYTE
from keras_attn.data.text.tokenizer_json import sentencepiece_json

tokenizers = pytest.importorskip("tokenizers", reason="the library writes the files")
models, processors = tokenizers.models, tokenizers.processors
normalizers = tokenizers.normalizers
splitters, decoders = tokenizers.pre_tokenizers, tokenizers.decoders

CORPUS = [text for text in CASES if text.strip()][:200]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = [
    "",
    " ",
    "Hello World",
    "  two  spaces  ",
    "Ein Mädchen überquert die Straße",
    "cafe\u0301 CAFÉ naïve Å",
    "今天天气很好，我们去公园吧。",
    "東京 Tokyo 한국어",
    "12345 3.14 1,000 x2y3",
    "a<ent>b <ent> c",
    "NewTok newtok xNewToky NEWTOK",
    "whole wholesale whole",
    "left <l> right <r> end",
    "don't!!! --- ...",
    "😀 👩🏾‍💻 🇩🇪",
    "tab\tline\nbreak\u00a0no\u3000wide",
    "zero\u200bwidth \ufffd ﬁ",
    "a" * 120,
    "мир Ελληνικά עברית",
]


def add(tokenizer):
    """Tokens of every flag, some of them special."""
    token = tokenizers.AddedToken
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens(
        [
            "NewTok",
            token("whole", single_word=True),
            token("<l>", lstrip=True, normalized=False),
            token("<r>", rstrip=True, special=True),
        ]
    )
    tokenizer.add_special_tokens(["<ent>"])
    return tokenizer


def template(tokenizer):
    ids = {name: tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]")}
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=list(ids.items()),
    )
    return tokenizer


def wordpiece(normalizer, splitter, **options):
    model = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]", **options))
    model.normalizer = normalizer
    model.pre_tokenizer = splitter
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=SPECIAL, show_progress=False
    )
    model.train_from_iterator(CORPUS, trainer)
    model.decoder = decoders.WordPiece()
    return model


def byte_level(splitter, normalizer=None, **options):
    model = tokenizers.Tokenizer(models.BPE(**options))
    model.normalizer = normalizer
    model.pre_tokenizer = splitter
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=list(LETTER_OF_BYTE.values()),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    model.train_from_iterator(CORPUS, trainer)
    model.decoder = decoders.ByteLevel()
    return model


def byte_fallback():
    spelt = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {
        piece: i for i, piece in enumerate(["<unk>", "<s>", *spelt, "▁", "a"])
    }
    vocabulary["▁a"] = len(vocabulary)
    model = models.BPE(
        vocabulary, [("▁", "a")], byte_fallback=True, unk_token="<unk>", fuse_unk=True
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.add_special_tokens(["<s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def unigram(normalizer, splitter):
    model = tokenizers.Tokenizer(models.Unigram())
    model.normalizer = normalizer
    model.pre_tokenizer = splitter
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=200,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    model.train_from_iterator([text for text in CORPUS if text.isascii()], trainer)
    model.decoder = decoders.Metaspace()
    model.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return model


BERT, CLEAN = splitters.BertPreTokenizer, normalizers.BertNormalizer
DIGITS = splitters.Sequence(
    [splitters.Digits(individual_digits=True), splitters.ByteLevel(False)]
)
KINDS = {
    "bert": lambda: template(wordpiece(CLEAN(), BERT())),
    "no_normalizer": lambda: template(wordpiece(None, BERT())),
    "nfc": lambda: template(wordpiece(normalizers.NFC(), BERT())),
    "sequence": lambda: wordpiece(
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), BERT()
    ),
    "no_chinese": lambda: template(
        wordpiece(CLEAN(handle_chinese_chars=False), BERT())
    ),
    "keeps_accents": lambda: template(wordpiece(CLEAN(strip_accents=False), BERT())),
    "no_cleaning": lambda: template(wordpiece(CLEAN(clean_text=False), BERT())),
    "whitespace": lambda: template(wordpiece(CLEAN(), splitters.WhitespaceSplit())),
    "short_words": lambda: template(
        wordpiece(CLEAN(), BERT(), max_input_chars_per_word=5)
    ),
    "no_rows": lambda: wordpiece(CLEAN(), BERT()),
    "byte_level": lambda: byte_level(splitters.ByteLevel(add_prefix_space=False)),
    "prefix": lambda: byte_level(splitters.ByteLevel(add_prefix_space=True)),
    "no_regex": lambda: byte_level(splitters.ByteLevel(False, use_regex=False)),
    "digits": lambda: byte_level(DIGITS),
    "byte_level_nfc": lambda: byte_level(splitters.ByteLevel(False), normalizers.NFC()),
    "ignore_merges": lambda: byte_level(splitters.ByteLevel(False), ignore_merges=True),
    "byte_fallback": byte_fallback,
    "unigram": lambda: unigram(normalizers.NFKC(), splitters.Metaspace()),
    "unigram_lower": lambda: unigram(
        normalizers.Sequence([normalizers.Lowercase(), normalizers.Strip()]),
        splitters.Metaspace(prepend_scheme="first"),
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def written(request):
    return KINDS[request.param]()


def check(tokenizer, folder):
    """Our ids are the library's: alone, in rows, in pairs; and after saving."""
    tokenizer.save(str(folder / "tokenizer.json"))
    ours = load_text_tokenizer(folder)
    ours.save(folder / "again")
    for each in (ours, load_text_tokenizer(folder / "again")):
        compare(each, tokenizer)
    return ours


def compare(ours, tokenizer):
    assert ours.vocabulary_size == tokenizer.get_vocab_size()
    for first, second in zip(TEXTS, TEXTS[::-1], strict=True):
        expected = tokenizer.encode(first, add_special_tokens=False).ids
        assert ours.encode(first) == expected, first
        for second_texts in (None, [second]):
            expected = tokenizer.encode(first, *(second_texts or []))
            row = ours.encode_batch([first], second_texts)
            assert row["token_ids"][0].tolist() == expected.ids, first
            # Byte-level models have no segments.
            if not hasattr(ours, "token_bytes"):
                assert row["segment_ids"][0].tolist() == expected.type_ids
            assert row["padding_mask"].all()
        if not isinstance(ours, JSONTokenizer):
            continue  # Ours decode without the file's decoder.
        ids = tokenizer.encode(first).ids
        special = set(ours.special_token_ids.values())
        kept = [index for index in ids if index not in special]
        assert ours.decode(ids) == tokenizer.decode(kept, skip_special_tokens=False)


def test_ids_are_those_of_the_library(written, tmp_path):
    check(written, tmp_path)


def test_added_tokens_are_found(written, tmp_path):
    before = written.get_vocab_size()
    ours = check(add(tokenizers.Tokenizer.from_str(written.to_str())), tmp_path)
    assert isinstance(ours, JSONTokenizer)
    ids = ours.encode("a<ent>b")
    assert any(index >= before for index in ids)
    assert "<ent>" not in ours.decode(ids)
    assert "newtok" in ours.decode(ours.encode("x NewTok y")).lower()


def test_a_batch_is_truncated_and_padded(tmp_path):
    library = add(KINDS["digits"]())
    library.save(str(tmp_path / "tokenizer.json"))
    ours = load_text_tokenizer(tmp_path)
    for side in ("right", "left"):
        ours.truncation_side = side
        library.enable_truncation(7, direction=side)
        pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
        expected = [each.ids for each in library.encode_batch(pairs)]
        batch = ours.encode_batch(TEXTS, TEXTS[::-1], max_length=7)
        rows = [
            row[mask == 1].tolist()
            for row, mask in zip(batch["token_ids"], batch["padding_mask"], strict=True)
        ]
        assert rows == expected
    assert ours.encode_batch([])["token_ids"].shape == (0, 0)
    assert ours.encode_batch([""])["token_ids"].shape == (1, 0)


def test_a_control_token_in_a_text_is_text(tmp_path):
    """Also where the model itself has it as a piece."""
    for kind, token in (("unigram", "</s>"), ("whitespace", "[SEP]")):
        folder = tmp_path / kind
        folder.mkdir()
        library = KINDS[kind]()
        library.save(str(folder / "tokenizer.json"))
        ours = load_text_tokenizer(folder)
        index = library.token_to_id(token)
        assert index not in ours.encode(f"a {token} b")
        assert index in ours.encode(f"a {token} b", parse_special_tokens=True)
        assert ours.encode_batch([token])["token_ids"][0].tolist().count(index) == 1


def test_truncation_and_padding_of_the_file(tmp_path):
    library = template(KINDS["nfc"]())
    library.enable_truncation(6, direction="left")
    library.enable_padding(direction="left", pad_id=0, pad_token="[PAD]", pad_type_id=2)
    library.save(str(tmp_path / "tokenizer.json"))
    ours = load_text_tokenizer(tmp_path)
    expected = library.encode_batch(TEXTS)
    batch = ours.encode_batch(TEXTS)
    assert batch["token_ids"].tolist() == [each.ids for each in expected]
    assert batch["segment_ids"].tolist() == [each.type_ids for each in expected]
    assert batch["padding_mask"].tolist() == [each.attention_mask for each in expected]
    # transformers cuts at `model_max_length`.
    settings = {"model_max_length": 9, "truncation_side": "right"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = load_text_tokenizer(tmp_path)
    assert (ours.max_length, ours.truncation_side) == (9, "right")
    library.enable_truncation(6, strategy="only_first")
    library.save(str(tmp_path / "tokenizer.json"))
    load_text_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    refuses("`truncation.strategy` in tokenizer.json", load_text_tokenizer, tmp_path)


def test_rows_that_repeat_a_text_are_refused(tmp_path):
    library = KINDS["nfc"]()
    library.post_processor = processors.TemplateProcessing(
        single="$A $A", pair="$A $B", special_tokens=[]
    )
    library.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="`post_processor` in tokenizer.json must put"):
        load_text_tokenizer(tmp_path)


def test_a_graph_is_refused(tmp_path):
    KINDS["digits"]().save(str(tmp_path / "tokenizer.json"))
    ours = load_text_tokenizer(tmp_path)
    with pytest.raises(TypeError, match="`JSONTokenizer` does not work inside a Tens"):
        ours.pack(tf.constant(["a"]))
    rows = ours.encode_batch(TEXTS)["token_ids"]
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(3)
    assert sum(len(each) for each in dataset) == len(TEXTS)


def test_a_folder_of_smollm2_has_the_ids_of_its_tokenizer_json(tmp_path):
    """Its `vocab.json` and `merges.txt` alone would be a GPT-2's."""
    library = KINDS["digits"]()
    library.save(str(tmp_path / "tokenizer.json"))
    model = json.loads(library.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = "".join(f"{first} {second}\n" for first, second in model["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{lines}")
    settings = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = load_text_tokenizer(tmp_path)
    compare(ours, library)
    assert ours.end_token_id == ours.pad_token_id == 0
    with pytest.raises(ValueError, match="must have only .*pre_tokenizer="):
        ByteLevelBPETokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("rows", ["template", "bert"])
def test_a_folder_that_says_the_same_works_in_a_graph(rows, tmp_path):
    """As that of all-MiniLM-L6-v2, with older forms of the same rows."""
    ours = make("wordpiece")
    ours.save(tmp_path)
    pieces = {piece: index for index, piece in enumerate(ours.pieces)}
    library = tokenizers.Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    library.normalizer = CLEAN()
    library.pre_tokenizer = BERT()
    library.add_special_tokens(SPECIAL)
    template(library)
    if rows == "bert":
        ends = [(name, pieces[name]) for name in ("[SEP]", "[CLS]")]
        library.post_processor = processors.BertProcessing(*ends)
    compare(ours, library)
    library.enable_truncation(128)
    library.enable_padding(length=128)
    library.save(str(tmp_path / "tokenizer.json"))
    loaded = load_text_tokenizer(tmp_path)
    assert isinstance(loaded, WordPieceTokenizer)
    assert loaded.max_length == 128
    library.normalizer = CLEAN(clean_text=False)
    library.save(str(tmp_path / "tokenizer.json"))
    assert isinstance(load_text_tokenizer(tmp_path), JSONTokenizer)


def test_older_forms_of_a_sentencepiece_tokenizer_work_in_a_graph(tmp_path):
    ours = make("xlm_roberta")
    ours.save(tmp_path)
    plain = sentencepiece_json(ours.model, ours.pieces, ours.convention, "xlm_roberta")
    blanks = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    space = {"type": "Metaspace", "replacement": "▁"}
    for splitter in (
        plain["pre_tokenizer"],
        {**space, "add_prefix_space": True},
        {**space, "prepend_scheme": "always", "split": True},
    ):
        content = {**plain, "normalizer": blanks, "pre_tokenizer": splitter}
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        assert isinstance(load_text_tokenizer(tmp_path), SentencePieceTokenizer)
    content["pre_tokenizer"] = {**space, "prepend_scheme": "never"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert isinstance(load_text_tokenizer(tmp_path), JSONTokenizer)


def test_random_ids_are_refused(tmp_path):
    content = json.loads(KINDS["byte_level"]().to_str())
    content["model"]["dropout"] = 0.1
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    refuses("`model.dropout` in tokenizer.json must be", load_text_tokenizer, tmp_path)


def test_a_model_without_its_unknown_token_is_named(tmp_path):
    library = tokenizers.Tokenizer(models.WordPiece({"a": 0}, unk_token="[UNK]"))
    library.save(str(tmp_path / "tokenizer.json"))
    ours = load_text_tokenizer(tmp_path)
    assert ours.encode("a") == [0]
    refuses("that this tokenizer.json can encode; does", ours.encode, "b")
