"""Damaged settings of sentence folders are refused by name, or change nothing else."""

import warnings

import pytest
from fuzz.json_mutations import json_mutations
from fuzz.mutations import rounds

from keras_attn import data, models

pytest.importorskip("tokenizers", reason="the extra `text` is not installed")
SECONDS = 60


def _read_model(folder):
    return models.load_checkpoint(folder, "sentence_encoder")


# The file to damage, what reads it, and the number of mutations.
FILES = {
    "modules.json": (_read_model, 12),
    "1_Pooling/config.json": (_read_model, 8),
    "2_Dense/config.json": (_read_model, 12),
    "sentence_bert_config.json": (data.load_text_tokenizer, 12),
    "config_sentence_transformers.json": (data.load_text_tokenizer, 12),
}


@pytest.mark.parametrize("name", FILES)
def test_damaged_settings(name, sentence_folder, time_limit):
    read, count = FILES[name]
    path = sentence_folder / name
    for text in json_mutations(path.read_text(), seed=3, count=rounds(count)):
        path.write_text(text)
        with time_limit(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                read(sentence_folder)
            except (ValueError, FileNotFoundError) as error:
                assert str(sentence_folder) in str(error)
                assert len(str(error)) < 3000


@pytest.fixture
def sentence_folder(tmp_path):
    """A small sentence folder with a dense layer, written by this library."""
    sizes = {"num_layers": 1, "hidden_dim": 12, "num_heads": 3, "mlp_dim": 20}
    encoder = models.build_bert(vocabulary_size=9, max_sequence_length=17, **sizes)
    model = models.build_bert_sentence_encoder(encoder, projections=((5,),))
    models.save_checkpoint(model, tmp_path)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "man", "##s", "é"]
    tokenizer = data.WordPieceTokenizer(pieces)
    tokenizer.prompt = "a man "
    tokenizer.save(tmp_path)
    settings = '{"max_seq_length": 9, "do_lower_case": false}'
    (tmp_path / "sentence_bert_config.json").write_text(settings)
    return tmp_path
