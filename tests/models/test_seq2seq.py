"""Recurrent translators, beyond the contract of all models."""

import keras
import numpy as np
import pytest
from model_cases import (
    CASES,
    SEQ2SEQ,
    B,
    S,
    T,
    V,
    create,
    dropout_rates,
    layer_names,
    logits_of,
    make_inputs,
    numpy,
    tiny,
)

from keras_attn.viz import capture_attention

LABELS = np.random.default_rng(3).integers(1, V, (B, T))
LAYERS = {
    "seq2seq_sutskever": {
        "source_embedding",
        "source_dropout",
        "target_embedding",
        "target_dropout",
        "encoder_0",
        "encoder_1",
        "decoder_0",
        "decoder_1",
        "logits",
    },
    "seq2seq_context": {
        "source_embedding",
        "source_dropout",
        "target_embedding",
        "target_dropout",
        "encoder",
        "initial_state",
        "decoder",
        "readout_inputs",
        "readout",
        "maxout",
        "readout_dropout",
        "logits",
    },
}
LAYERS["rnnsearch_50"] = LAYERS["seq2seq_context"]
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


@pytest.mark.parametrize("case", SEQ2SEQ)
def test_layers_have_their_documented_names(case):
    assert layer_names(tiny(case)) == LAYERS[CASES[case].name]


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


@pytest.mark.parametrize("case", ["seq2seq_sutskever", "rnnsearch_50"])
def test_trains_on_the_published_objective(case):
    model = create(case)
    expected = keras.ops.log_softmax(logits_of(model, make_inputs()))
    chosen = np.take_along_axis(numpy(expected), LABELS[..., None], -1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss=loss, jit_compile=False)
    history = model.fit(make_inputs(), LABELS, batch_size=B, verbose=0)
    np.testing.assert_allclose(history.history["loss"][0], -chosen.mean(), rtol=1e-5)


def test_attention_scores_may_be_an_output():
    model, inputs = tiny("rnnsearch_50-scores"), make_inputs()
    shapes = {name: tensor.shape for name, tensor in model.output.items()}
    assert shapes == {
        "logits": (None, None, V),
        "attention_scores": (None, 1, None, None),
    }
    assert model(inputs)["attention_scores"].shape == (B, 1, T, S)


def test_dropout_is_active_in_training_only():
    model, inputs = tiny("rnnsearch_50-scores"), make_inputs()
    inference = [logits_of(model, inputs) for _ in range(2)]
    np.testing.assert_array_equal(*inference)
    np.testing.assert_array_equal(inference[0], logits_of(tiny("rnnsearch_50"), inputs))
    training = [numpy(model(inputs, training=True)["logits"]) for _ in range(2)]
    assert np.abs(training[0] - training[1]).max() > 0.1
    assert dropout_rates(model) == {
        "source_dropout": 0.3,
        "target_dropout": 0.3,
        "readout_dropout": 0.3,
    }


RNNSEARCH = [case for case in SEQ2SEQ if case.startswith("rnnsearch")]


@pytest.mark.parametrize("case", RNNSEARCH)
def test_the_alignment_can_be_captured(case):
    model, inputs = tiny(case), make_inputs()
    captured = capture_attention(model, inputs)
    assert list(captured) == ["decoder"]
    scores = captured["decoder"]
    assert scores.shape == (B, 1, T, S)
    np.testing.assert_allclose(scores.sum(-1), 1, rtol=0, atol=1e-6)
    padding = ~inputs["padding_mask"][:, None, None] & np.ones_like(scores, bool)
    assert padding.sum() == 2 * T
    assert (scores[padding] == 0).all()
    assert (scores[~padding] > 0).all()
    if case.endswith("-scores"):
        returned = numpy(model(inputs)["attention_scores"])
        np.testing.assert_allclose(returned, scores, rtol=0, atol=1e-6)


def test_attention_scores_of_models_with_a_fixed_context():
    inputs = make_inputs()
    captured = capture_attention(tiny("seq2seq_context"), inputs)["decoder"]
    np.testing.assert_array_equal(captured, np.ones((B, 1, T, 1)))
    with pytest.raises(ValueError, match="must have an attention layer"):
        capture_attention(tiny("seq2seq_sutskever"), inputs)


def test_linear_scores_do_not_depend_on_the_query():
    scores = capture_attention(tiny("rnnsearch_50-linear"), make_inputs())["decoder"]
    np.testing.assert_allclose(scores, scores[:, :, :1].repeat(T, 2), atol=1e-6)
    other = capture_attention(tiny("rnnsearch_50"), make_inputs())["decoder"]
    assert np.abs(other - other[:, :, :1]).max() > 1e-3
