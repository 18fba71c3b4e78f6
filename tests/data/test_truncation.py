"""Texts that are longer than a folder allows, and what a saved folder keeps."""

import numpy as np
import pytest
import tensorflow as tf
from data.test_text_tokenizer import KINDS, make, save

from keras_attn.data.text.graph_tokenizer import GraphTokenizer
from keras_attn.data.text.load_text_tokenizer import load_text_tokenizer
from keras_attn.data.text.tokenizer_files import read_settings

LONGEST = 13


def load(folder, kind, **settings):
    """The tokenizer of a folder with further settings."""
    save(kind, folder, **settings)
    return load_text_tokenizer(folder)


def texts():
    """Texts of 0 to 19 words, of which two make a row too long, or one does."""
    rng = np.random.default_rng(3)
    words = "a man in a blue shirt two males are outside near many bushes".split()
    counts = [0, 1, 19, *rng.integers(1, 20, 14).tolist()]
    return [" ".join(rng.choice(words, count)) for count in counts]


@pytest.mark.each_value
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_truncated_to_the_length_of_the_folder(kind, side, tmp_path):
    transformers = pytest.importorskip("transformers")
    settings = {"model_max_length": LONGEST, "truncation_side": side}
    ours = load(tmp_path, kind, **settings)
    assert ours.max_length == LONGEST
    options = {"extra_ids": 0} if kind == "t5" else {}
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, **options)
    if theirs.pad_token is None:
        theirs.pad_token = theirs.eos_token
    firsts = texts()
    seconds = firsts[::-1]
    # SigLIP takes single texts. Its tokenizer there is written in Python, and gives a
    # place that is left over to the first text of a pair; all others to the second.
    for others in (None,) if kind == "siglip" else (None, seconds):
        batch = ours.encode_batch(firsts, others)
        expected = theirs(
            firsts, others, truncation=True, padding=True, return_tensors="np"
        )
        real = batch["padding_mask"] == 1
        assert real.sum(1).max() == LONGEST
        np.testing.assert_array_equal(real, expected["attention_mask"] == 1)
        np.testing.assert_array_equal(
            batch["token_ids"][real], expected["input_ids"][real]
        )
    if isinstance(ours, GraphTokenizer):
        batch = ours.encode_batch(firsts, seconds)
        packed = ours.pack(tf.constant(firsts), tf.constant(seconds))
        for name, array in batch.items():
            np.testing.assert_array_equal(packed[name], array)


@pytest.mark.parametrize("kind", ["wordpiece", "gpt2"])
def test_an_argument_or_an_attribute_takes_precedence(kind, tmp_path):
    tokenizer = load(tmp_path, kind, model_max_length=LONGEST)
    long = ["man " * 40]

    def length(**options):
        return tokenizer.encode_batch(long, **options)["token_ids"].shape[1]

    assert length() == LONGEST
    assert length(max_length=7) == 7
    assert length(max_length=31) == 31
    padded = tokenizer.encode_batch(["man"], pad_to_max_length=True)
    assert padded["token_ids"].shape == (1, LONGEST)
    assert len(tokenizer.encode(long[0])) >= 40
    tokenizer.max_length = None
    assert length() >= 40
    tokenizer.max_length = 11
    tokenizer.save(tmp_path)
    assert load_text_tokenizer(tmp_path).max_length == 11


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_folder_keeps_what_other_libraries_read(kind, tmp_path):
    settings = {
        "model_max_length": LONGEST,
        "truncation_side": "left",
        "padding_side": "left",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    private = {"auto_map": {"AutoTokenizer": "code.Tokenizer"}, "name_or_path": "/x"}
    tokenizer = load(tmp_path / "one", kind, **settings, **private)
    tokenizer.save(tmp_path / "two")
    found = read_settings(tmp_path / "two")
    assert settings.items() <= found.items()
    assert not set(private) & set(found)
    make(kind).save(tmp_path / "three")
    assert "model_max_length" not in read_settings(tmp_path / "three")


def test_an_unlimited_length_is_none(tmp_path):
    for longest in (10**30, 1e30):
        assert load(tmp_path, "gpt2", model_max_length=longest).max_length is None
    path = tmp_path / "tokenizer_config.json"
    path.write_text(path.read_text().replace("1e+30", "null"))
    assert load_text_tokenizer(tmp_path).max_length is None


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"model_max_length": 0}, "`model_max_length` in tok.* positive integer"),
        ({"model_max_length": "512"}, "`model_max_length` .*model_max_length='512'"),
        ({"model_max_length": float("nan")}, "`model_max_length` .*=nan"),
        ({"model_max_length": True}, "`model_max_length` .*=True"),
        ({"padding_side": "top"}, "`padding_side` .* left or right.*='top'"),
        ({"truncation_side": "top"}, "`truncation_side` .* left or right.*='top'"),
    ],
)
def test_bad_settings_are_refused(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, "wordpiece", **settings)
