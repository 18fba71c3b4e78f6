"""Recurrent translators, beyond the contract of all models."""

import numpy as np
import pytest
from model_cases import dropout_rates, make_inputs, tiny
from model_family import B, T

from keras_attn.viz import capture_attention


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
