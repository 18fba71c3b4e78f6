"""Added tokens and folders that transformers wrote, of every kind of tokenizer."""

import inspect
import json

import pytest
from data.test_text_tokenizer import KINDS, change, make, save
from refusals import refuses

from keras_attn.data import JSONTokenizer, load_text_tokenizer
from keras_attn.data.text import setting_keys
from keras_attn.data.text.clip_tokenizer import CLIPTokenizer
from keras_attn.data.text.text_tokenizer import TextTokenizer
from keras_attn.data.text.wordpiece import WordPieceTokenizer

CLASSES = {
    "wordpiece": "BertTokenizer",
    "t5": "T5Tokenizer",
    "xlnet": "XLNetTokenizer",
    "xlm_roberta": "XLMRobertaTokenizer",
    "siglip": "SiglipTokenizer",
    "gpt2": "GPT2Tokenizer",
    "roberta": "RobertaTokenizer",
    "clip": "CLIPTokenizer",
}
# The reference of SigLIP, in Python, keeps a blank at the start of a text.
TEXTS = [
    "",
    "a man",
    "A man in a blue shirt, cleaning a window.",
    "a<e1>man",
    "two <e1> men [E2]",
    "xnewword newword NEWWORD",
    "whole window, wholesale",
    "Straße café 3.14 12345",
    "near many bushes<l>  and <r> a ladder",
]
ADDED = ["newword", "<e1>", "[E2]"]


def add(transformers, theirs):
    token = transformers.AddedToken
    theirs.add_tokens(["newword"])
    theirs.add_special_tokens({"additional_special_tokens": ["<e1>", "[E2]"]})
    if theirs.is_fast:
        theirs.add_tokens(
            [
                token("whole", single_word=True),
                token("<l>", rstrip=True, normalized=False),
                token("<r>", lstrip=True, special=True),
            ]
        )


def reference(transformers, kind, folder):
    options = {"extra_ids": 0} if kind == "t5" else {}
    return getattr(transformers, CLASSES[kind]).from_pretrained(folder, **options)


def compare(ours, theirs):
    for text in TEXTS:
        batch = ours.encode_batch([text])["token_ids"][0].tolist()
        assert batch == theirs(text)["input_ids"], text
        pair = ours.encode_batch([text], ["a man"])["token_ids"][0].tolist()
        assert pair == theirs(text, "a man")["input_ids"], text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parity
def test_tokens_that_transformers_added_are_found(kind, tmp_path):
    transformers = pytest.importorskip("transformers", reason="writes the folders")
    make(kind).save(tmp_path / "plain")
    theirs = reference(transformers, kind, tmp_path / "plain")
    add(transformers, theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_text_tokenizer(tmp_path / "theirs")
    assert isinstance(ours, JSONTokenizer)
    for token in ADDED:
        assert theirs.convert_tokens_to_ids(token) in ours.encode(f"a {token} man")
    compare(ours, theirs)
    ours.save(tmp_path / "ours")
    compare(load_text_tokenizer(tmp_path / "ours"), theirs)


@pytest.mark.parametrize("form", ["added_tokens.json", "added_tokens_decoder"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parity
def test_added_tokens_beside_plain_files(kind, form, tmp_path):
    transformers = pytest.importorskip("transformers", reason="reads the folders")
    plain = make(kind)
    plain.save(tmp_path)
    size = plain.vocabulary_size
    if form == "added_tokens.json":
        numbers = {token: size + number for number, token in enumerate(ADDED)}
        (tmp_path / form).write_text(json.dumps(numbers))
        listed = {"additional_special_tokens": ADDED[1:]}
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(listed))
    else:
        flags = {"lstrip": False, "rstrip": False, "single_word": False}
        decoder = {
            str(size + n): {"content": token, "normalized": not n, "special": n > 0}
            for n, token in enumerate(ADDED)
        }
        change(tmp_path, **{form: {key: x | flags for key, x in decoder.items()}})
    ours = load_text_tokenizer(tmp_path)
    assert isinstance(ours, JSONTokenizer)
    assert ours.vocabulary_size == size + 3
    for number, token in enumerate(ADDED):
        ids = ours.encode(f"a {token} man")
        assert size + number in ids
        # Special ones are left out of a decoded text.
        assert (token in ours.decode(ids)) == (number == 0)
    compare(ours, reference(transformers, kind, tmp_path))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "siglip"])
@pytest.mark.parity
def test_folders_of_transformers_5_load(kind, tmp_path):
    """They have `tokenizer.json` and `tokenizer_config.json` alone."""
    transformers = pytest.importorskip("transformers", reason="writes the folders")
    make(kind).save(tmp_path / "plain")
    theirs = reference(transformers, kind, tmp_path / "plain")
    theirs.save_pretrained(tmp_path / "theirs")
    names = {path.name for path in (tmp_path / "theirs").iterdir()}
    assert names == {"tokenizer.json", "tokenizer_config.json"}
    ours = load_text_tokenizer(tmp_path / "theirs")
    compare(ours, theirs)
    if theirs.pad_token is not None:
        batch = ours.encode_batch(TEXTS)
        expected = theirs(TEXTS, padding=True, return_tensors="np")
        assert (batch["token_ids"] == expected["input_ids"]).all()
        assert (batch["padding_mask"] == expected["attention_mask"]).all()
        assert batch["segment_ids"][0, 0] == (3 if kind == "xlnet" else 0)
    # What the plain files would say stays in the graph.
    in_graph = {"wordpiece": WordPieceTokenizer, "clip": CLIPTokenizer}
    if kind in in_graph:
        assert isinstance(ours, in_graph[kind])
    settings = json.loads((tmp_path / "theirs/tokenizer_config.json").read_text())
    content = json.loads((tmp_path / "theirs/tokenizer.json").read_text())
    check_known(settings, content)


def check_known(settings, content):
    """Every key of a folder is in the table."""
    known = {
        *setting_keys.APPLIED,
        *setting_keys.REFUSED,
        *setting_keys.WITHOUT_EFFECT,
    }
    assert set(settings) <= known
    assert set(content) <= set(setting_keys.OF_TOKENIZER_JSON)


OTHER_CLASSES = """Albert BigBird Camembert CodeGen CodeLlama Cohere DebertaV2 FNet
    Gemma GPTNeoX Llama Luke MPNet OpenAIGPT Pegasus Qwen2 Splinter Whisper"""


@pytest.mark.parametrize(
    "name",
    [
        *CLASSES.values(),
        "TokenizersBackend",
        *(f"{name}Tokenizer" for name in OTHER_CLASSES.split()),
    ],
)
@pytest.mark.parity
def test_every_argument_of_transformers_is_known(name):
    """Or names a token, or is one that `save_pretrained` of 5.23 does not write."""
    transformers = pytest.importorskip("transformers", reason="has the classes")
    arguments = inspect.signature(getattr(transformers, name).__init__).parameters
    public = {
        key: None
        for key, each in arguments.items()
        if key not in ("self", "normalizer_file")
        and not key.startswith("_")
        and (name in CLASSES.values() or not key.endswith("_token"))
        and each.kind not in (2, 4)
    }
    check_known(public, {})


def test_a_key_has_one_meaning():
    keys = setting_keys
    tables = [set(x) for x in (keys.APPLIED, keys.REFUSED, keys.WITHOUT_EFFECT)]
    assert sum(map(len, tables)) == len(set.union(*tables))
    assert setting_keys.HELD_BY_TOKENIZER_JSON <= set(setting_keys.REFUSED)


def test_the_extra_ids_of_t5_are_the_last(tmp_path):
    """In a folder of its class, whose model does not list them."""
    size = save("t5", tmp_path, extra_ids=None).vocabulary_size
    ours = load_text_tokenizer(tmp_path)
    assert ours.vocabulary_size == size + 100
    assert size + 99 in ours.encode("a <extra_id_0> man")
    assert size in ours.encode("a<extra_id_99>")
    change(tmp_path, extra_ids=3)
    assert load_text_tokenizer(tmp_path).encode("<extra_id_2>") == [size]


def test_a_pad_token_that_is_added_pads(tmp_path):
    """GPT-2 with `[PAD]`, as for classification."""
    size = save("gpt2", tmp_path, pad_token="[PAD]").vocabulary_size
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[PAD]": size}))
    ours = load_text_tokenizer(tmp_path)
    assert ours.pad_token_id == size
    batch = ours.encode_batch(["a man", "a"])
    assert batch["token_ids"][1].tolist() == [*ours.encode("a"), size]
    # Without the file it gets the next id, as in transformers.
    (tmp_path / "added_tokens.json").unlink()
    assert load_text_tokenizer(tmp_path).pad_token_id == size


def test_a_start_token_of_the_settings_is_added(tmp_path):
    for flags in ({"add_bos_token": True}, {"add_eos_token": True}):
        save("gpt2", tmp_path, **flags)
        ours = load_text_tokenizer(tmp_path)
        ids, end = ours.encode("a man"), ours.end_token_id
        row = [end, *ids] if "add_bos_token" in flags else [*ids, end]
        assert ours.encode_batch(["a man"])["token_ids"][0].tolist() == row
        # What a language model continues has no end token.
        start = [end] if "add_bos_token" in flags else []
        assert ours.encode_prompt("a man") == [*start, *ids]
        ours.save(tmp_path / "again")
        again = load_text_tokenizer(tmp_path / "again")
        assert again.encode_batch(["a man"])["token_ids"][0].tolist() == row
    save("gpt2", tmp_path, add_bos_token=False)
    assert not isinstance(load_text_tokenizer(tmp_path), JSONTokenizer)


def test_blanks_before_a_mask_belong_to_it(tmp_path):
    save("roberta", tmp_path, mask_token=None)
    mask = {"mask_token": {"content": "<mask>", "lstrip": True}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(mask))
    ours = load_text_tokenizer(tmp_path)
    expected = [*ours.encode("a"), ours.mask_token_id, *ours.encode(" b")]
    assert ours.encode("a  <mask> b", parse_special_tokens=True) == expected
    ours.save(tmp_path / "again")
    again = load_text_tokenizer(tmp_path / "again")
    assert again.encode("a  <mask> b", parse_special_tokens=True) == expected


def test_padding_and_cleaning_of_the_settings(tmp_path):
    for kind in ("wordpiece", "gpt2"):
        more = {"pad_token_type_id": 2, "clean_up_tokenization_spaces": True}
        save(kind, tmp_path / kind, padding_side="left", **more)
        ours = load_text_tokenizer(tmp_path / kind)
        batch = ours.encode_batch(["a man", "a"])
        assert batch["padding_mask"].tolist()[1][0] == 0
        assert batch["segment_ids"].tolist()[1][0] == 2
        text = ours.decode(ours.encode("a man , two ."))
        # Byte pairs are decoded as they were written.
        assert text == ("a man, two." if kind == "wordpiece" else "a man , two .")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("do_basic_tokenize", False),
        ("never_split", ["a"]),
        ("sp_model_kwargs", {"enable_sampling": True}),
        ("keep_accents", True),
        ("remove_space", False),
        ("src_lang", "de"),
    ],
)
def test_settings_that_are_not_supported_are_refused(name, value, tmp_path):
    save("xlnet", tmp_path, **{name: value})
    refuses(f"`{name}` in tokenizer_config.json must be", load_text_tokenizer, tmp_path)


def test_added_tokens_with_other_ids_are_refused(tmp_path):
    size = save("wordpiece", tmp_path).vocabulary_size
    path = tmp_path / "added_tokens.json"
    path.write_text(json.dumps({"<e1>": size + 5}))
    refuses(f"'<e1>' with the id {size + 5}, not {size}", load_text_tokenizer, tmp_path)
    for content in ({"<e1>": "3"}, {"": 3}, {"<e1>": -1}):
        path.write_text(json.dumps(content))
        refuses("in added_tokens.json must be", load_text_tokenizer, tmp_path)


def test_saving_removes_what_an_earlier_tokenizer_left(tmp_path):
    make("wordpiece").save(tmp_path)
    (tmp_path / "added_tokens.json").write_text('{"<e1>": 2003}')
    load_text_tokenizer(tmp_path).save(tmp_path)
    assert not (tmp_path / "added_tokens.json").exists()
    assert "<e1>" in load_text_tokenizer(tmp_path).pieces
    make("wordpiece").save(tmp_path)
    loaded = load_text_tokenizer(tmp_path)
    assert isinstance(loaded, WordPieceTokenizer)


def test_a_class_of_its_own_refuses_a_folder_that_says_more(tmp_path):
    for kind in KINDS:
        tokenizer: TextTokenizer = make(kind)
        tokenizer.save(tmp_path / kind)
        content = {"<e1>": tokenizer.vocabulary_size}
        (tmp_path / kind / "added_tokens.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match="must have only .*token='<e1>'"):
            type(tokenizer).from_folder(tmp_path / kind)  # pyright: ignore
