"""Settings of `tokenizer_config.json` do what they do in transformers 5.23."""

import json
import pickle
import threading

import numpy as np
import pytest
import tensorflow as tf
from data.test_json_tokenizer import KINDS, TEXTS, compare
from data.test_text_tokenizer import change, make, save
from refusals import refuses

from keras_attn.data import JSONTokenizer, load_text_tokenizer
from keras_attn.data.text import setting_keys

tokenizers = pytest.importorskip("tokenizers", reason="the library writes the files")


def write(folder, kind, **settings):
    """A folder with the `tokenizer.json` of a kind, and these settings."""
    library = KINDS[kind]()
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return library


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("bert", {"do_lower_case": False}),
        ("no_chinese", {"tokenize_chinese_chars": True}),
        ("keeps_accents", {"strip_accents": True}),
        ("bert", {"add_bos_token": False, "add_eos_token": False}),
        ("bert", {"add_bos_token": False, "tokenizer_class": "DebertaTokenizer"}),
        ("byte_level", {"add_prefix_space": True}),
        ("unigram", {"add_prefix_space": False}),
        ("unigram", {"add_prefix_space": False, "tokenizer_class": "T5Tokenizer"}),
        (
            "unigram_lower",
            {"add_prefix_space": False, "tokenizer_class": "DebertaV2Tokenizer"},
        ),
    ],
)
def test_what_a_tokenizer_json_says_itself(kind, settings, tmp_path):
    """As `save_pretrained` of `PreTrainedTokenizerFast` and of other classes writes."""
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    library = write(tmp_path, kind, **settings)
    compare(load_text_tokenizer(tmp_path), library)


@pytest.mark.parametrize("prefix", [True, False])
def test_a_class_that_puts_a_blank_before_texts(prefix, tmp_path):
    library = write(
        tmp_path, "unigram", tokenizer_class="AlbertTokenizer", add_prefix_space=prefix
    )
    scheme = "always" if prefix else "never"
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=scheme)
    ours = load_text_tokenizer(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", ["Llama", "CodeLlama", "Gemma", "Cohere", "Siglip2"])
def test_classes_that_pad_at_the_left(name, tmp_path):
    settings = {"tokenizer_class": f"{name}Tokenizer", "pad_token": "<unk>"}
    write(tmp_path, "byte_fallback", **settings)
    for side in (None, "left", "right"):
        change(tmp_path, padding_side=side)
        mask = load_text_tokenizer(tmp_path).encode_batch(["a", "aaa"])["padding_mask"]
        assert mask[0, 0] == (side == "right")


def test_tokens_with_names_of_their_own(tmp_path):
    """`image_token` of a multimodal folder."""
    named = {"image": "<image>", "video": {"content": "<video>", "special": True}}
    tokens = {"image_token": named["image"], "video_token": named["video"]}
    size = save("wordpiece", tmp_path, **tokens).vocabulary_size
    for _ in range(2):
        ours = load_text_tokenizer(tmp_path)
        ids = ours.encode("a <image><video> man")
        assert ids[1:3] == [size, size + 1] and ours.decode(ids) == "a man"
        unnamed = {"image_token": None, "video_token": None}
        change(tmp_path, **unnamed, model_specific_special_tokens=named)


def test_the_maximum_of_older_folders(tmp_path):
    save("wordpiece", tmp_path, max_len=7, model_max_length=None)
    assert load_text_tokenizer(tmp_path).max_length == 7
    change(tmp_path, model_max_length=9)
    assert load_text_tokenizer(tmp_path).max_length == 9
    change(tmp_path, max_len=0)
    refuses("`max_len` in tokenizer_config.json must be", load_text_tokenizer, tmp_path)


@pytest.mark.parametrize("kind", ["wordpiece", "gpt2", "t5", "clip", "json"])
def test_a_setting_that_is_not_known_gives_a_warning(kind, tmp_path):
    if kind == "json":
        write(tmp_path, "digits")
    else:
        make(kind).save(tmp_path)
    change(tmp_path, later_setting="x", empty_setting=[])
    with pytest.warns(UserWarning) as found:
        load_text_tokenizer(tmp_path)
    (message,) = (str(each.message) for each in found)
    assert "tokenizer_config.json has settings that are not known" in message
    assert "['later_setting']" in message and str(tmp_path) in message


def test_what_a_tokenizer_json_holds_is_refused_without_it(tmp_path):
    save("roberta", tmp_path, special_tokens_pattern="cls_sep")
    refuses("`special_tokens_pattern` in tokenizer_conf", load_text_tokenizer, tmp_path)
    write(tmp_path, "digits", special_tokens_pattern="cls_sep", split_by_punct=True)
    assert load_text_tokenizer(tmp_path)


def test_byte_pairs_are_cleaned_up_where_a_folder_insists(tmp_path):
    """As those of LUKE."""
    settings = {setting_keys.CLEAN_UP_BYTE_PAIRS: True}
    save("gpt2", tmp_path, clean_up_tokenization_spaces=True, **settings)
    ours = load_text_tokenizer(tmp_path)
    ours.save(tmp_path / "again")
    for each in (ours, load_text_tokenizer(tmp_path / "again")):
        assert each.decode(each.encode("a man , two .")) == "a man, two."
    change(tmp_path, **{setting_keys.CLEAN_UP_BYTE_PAIRS: False})
    ours = load_text_tokenizer(tmp_path)
    assert ours.decode(ours.encode("a man , two .")) == "a man , two ."


def test_rows_of_robertas_have_the_classify_token(tmp_path):
    save("roberta", tmp_path, bos_token="a", eos_token="b")
    ours = load_text_tokenizer(tmp_path)
    ids = ours.encode_batch(["x"])["token_ids"][0].tolist()
    assert (ids[0], ids[-1]) == (ours.classify_token_id, ours.separate_token_id)
    assert ours.start_token_id not in ids


def test_a_clip_with_an_added_token_decodes_its_word_ends(tmp_path):
    """In transformers that belongs to the class: the file has `ByteLevel` alone."""
    save("clip", tmp_path, extra_special_tokens=["<e1>"])
    ours = load_text_tokenizer(tmp_path)
    assert isinstance(ours, JSONTokenizer)
    ours.save(tmp_path / "packed")
    path = tmp_path / "packed/tokenizer.json"
    content = json.loads(path.read_text())
    content["decoder"] = content["decoder"]["decoders"][0]
    path.write_text(json.dumps(content))
    change(tmp_path / "packed", tokenizer_class="CLIPTokenizer")
    for each in (ours, load_text_tokenizer(tmp_path / "packed")):
        assert each.decode(each.encode("a man, <e1>two.")) == "a man , two ."
        assert each.decode([]) == ""


def test_what_the_library_cannot_decode_is_refused(tmp_path):
    """A panic of Rust: `Strip` at the right of an empty piece."""
    library = KINDS["bert"]()
    library.add_tokens([" "])
    library.decoder = tokenizers.decoders.Strip(" ", 0, 2)
    library.save(str(tmp_path / "tokenizer.json"))
    ours = load_text_tokenizer(tmp_path)
    assert ours.decode([]) == ""
    refuses("`ids` must be ids that the decoder of this", ours.decode, ours.encode(" "))


def test_blanks_after_pieces_of_a_vocabulary_do_not_count(tmp_path):
    ours = make("wordpiece")
    ours.save(tmp_path)
    path = tmp_path / "vocab.txt"
    path.write_text(path.read_text("utf-8").replace("\nman\n", "\nman \u3000\n"))
    assert load_text_tokenizer(tmp_path).encode("a man") == ours.encode("a man")


def test_threads_and_copies_have_the_same_ids(tmp_path):
    write(tmp_path, "unigram")
    ours = load_text_tokenizer(tmp_path)
    rows = [ours.encode(text, parse_special_tokens=True) for text in TEXTS]
    texts = TEXTS * 20
    found = [[] for _ in range(4)]

    def encode(answers):
        answers += [ours.encode(text, parse_special_tokens=True) for text in texts]

    threads = [threading.Thread(target=encode, args=(each,)) for each in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [rows * 20] * 4

    def ids_of(text):
        ids = ours.encode(text.numpy().decode(), parse_special_tokens=True)
        return np.array(ids, np.int32)

    dataset = tf.data.Dataset.from_tensor_slices(TEXTS).map(
        lambda text: tf.py_function(ids_of, [text], tf.int32), num_parallel_calls=4
    )
    assert [each.tolist() for each in dataset.as_numpy_iterator()] == rows
    copied = pickle.loads(pickle.dumps(ours))
    assert [copied.encode(text, parse_special_tokens=True) for text in TEXTS] == rows
