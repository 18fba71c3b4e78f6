"""Recurrent translators, beyond the contract of all models."""

import numpy as np
import pytest
from model_cases import dropout_rates, make_inputs, tiny
from model_family import B, T

from keras_attn.viz import capture_attention

WEIGHTS = {
    "source_embedding/embeddings",
    "target_embedding/embeddings",
    "logits/kernel",
    "logits/bias",
    *(
        f"{side}_{index}/{side}_{index}_cell/{weight}"
        for side in ("encoder", "decoder")
        for index in range(2)
        for weight in ("kernel", "recurrent_kernel", "bias")
    ),
}


def test_weights_have_fixed_paths():
    assert {weight.path for weight in tiny("seq2seq_sutskever").weights} == WEIGHTS
    paths = {weight.path for weight in tiny("rnnsearch_50").weights}
    assert {path for path in paths if path.startswith("decoder/")} == {
        "decoder/decoder_cell/kernel",
        "decoder/decoder_cell/recurrent_kernel",
        "decoder/decoder_cell/bias",
        "decoder/attention/query/kernel",
        "decoder/attention/key/kernel",
        "decoder/attention/score_vector",
    }


def test_dropout_is_of_embeddings_and_of_the_readout():
    names = ("source_dropout", "target_dropout", "readout_dropout")
    assert dropout_rates(tiny("rnnsearch_50-scores")) == dict.fromkeys(names, 0.3)


def test_the_alignment_that_is_captured_is_the_one_returned():
    model, inputs = tiny("rnnsearch_50-scores"), make_inputs()
    (captured,) = capture_attention(model, inputs).values()
    returned = np.array(model(inputs)["attention_scores"])
    np.testing.assert_allclose(returned, captured, rtol=0, atol=1e-6)


def test_attention_scores_of_models_with_a_fixed_context():
    inputs = make_inputs()
    captured = capture_attention(tiny("seq2seq_context"), inputs)["decoder"]
    np.testing.assert_array_equal(captured, np.ones((B, 1, T, 1)))
    with pytest.raises(ValueError, match="must have an attention layer"):
        capture_attention(tiny("seq2seq_sutskever"), inputs)
