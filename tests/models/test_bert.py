"""BERT and RoBERTa, beyond the contract of all models."""

import keras
import numpy as np
import pytest
from model_cases import TINY, inputs_for, layer_names, numpy, outputs_of, tiny
from model_family import C, S

from keras_attn import models

LAYERS = {
    *("token_embedding", "segment_embedding", "position_embedding", "embeddings_norm"),
    *("embeddings_dropout", "block_0", "block_1", "first_token", "pooler"),
}
HEAD_LAYERS = {
    "masked_lm": {"masked_lm_transform", "masked_lm_norm", "masked_lm_logits"},
    "next_sentence": {"next_sentence"},
    "classifier": {"classifier_dropout", "classifier"},
    "token_classifier": {"classifier_dropout", "classifier"},
    "span_qa": {"span_dropout", "span"},
    "sentence_encoder": {"sentence_pooling", "sentence_norm"},
}
ROBERTA_CLASSIFIER = {"classifier_hidden", "classifier_hidden_dropout"}


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_layers_have_their_documented_names(family):
    encoder = tiny(f"{family}_base")
    assert layer_names(encoder) == LAYERS
    for head, own in HEAD_LAYERS.items():
        options = {"num_classes": C} if head.endswith("classifier") else {}
        model = getattr(models, f"build_{family}_{head}")(encoder, **options)
        if (family, head) == ("roberta", "classifier"):
            own = own | ROBERTA_CLASSIFIER
        # A head leaves out encoder layers that it does not use.
        assert layer_names(model) - LAYERS == own


def test_logits_at_masked_positions_equal_those_of_the_whole_sequence():
    everywhere, model = tiny("bert_masked_lm"), tiny("bert_masked_lm-positions")
    inputs = inputs_for(model)
    positions = inputs["masked_positions"]
    expected = numpy(everywhere({k: inputs[k] for k in everywhere.input}))
    expected = np.take_along_axis(expected, positions[..., None], axis=1)
    np.testing.assert_allclose(numpy(model(inputs)), expected, rtol=0, atol=1e-5)


def test_segment_ids_change_the_outputs():
    model = tiny("bert_base")
    inputs = inputs_for(model)
    other = {**inputs, "segment_ids": 1 - inputs["segment_ids"]}
    difference = outputs_of(model, other)["pooled_output"]
    difference = difference - outputs_of(model, inputs)["pooled_output"]
    assert np.abs(difference).max() > 1e-2


def test_roberta_positions_count_real_tokens():
    """BERT positions count padding between tokens too, as in the published code."""
    between = np.array([[True, False, True, False, True]])
    right = np.array([[True, True, True, False, False]])
    token_ids = np.array([[5, 7, 11]], "int32")
    changes = {}
    for case in ("roberta_base", "bert_base"):
        model = tiny(case)
        rows = []
        for mask in (between, right):
            inputs = {**inputs_for(model, batch=1), "padding_mask": mask}
            inputs["token_ids"] = np.ones((1, S), "int32")
            inputs["token_ids"][mask] = token_ids[0]
            if "segment_ids" in inputs:
                inputs["segment_ids"] = np.zeros((1, S), "int32")
            rows.append(outputs_of(model, inputs)["sequence_output"][mask])
        changes[case] = np.abs(rows[0] - rows[1]).max()
    assert changes["roberta_base"] < 1e-5
    assert changes["bert_base"] > 1e-2


@pytest.mark.parametrize("name", ["bert_base", "roberta_base"])
def test_sequences_may_be_as_long_as_the_position_table(name):
    model = models.create(name, **{**TINY[name], "max_sequence_length": 6})
    inputs = {
        key: value[:, :1].repeat(6, 1) for key, value in inputs_for(model).items()
    }
    inputs["padding_mask"][:] = True
    assert np.isfinite(outputs_of(model, inputs)["sequence_output"]).all()


def test_sentence_vectors_are_normalized_means_of_real_tokens():
    model = tiny("bert_sentence_encoder")
    inputs = inputs_for(model)
    features = keras.Model(model.input, model.get_layer("block_1").output)
    real = inputs["padding_mask"][..., None]
    mean = (numpy(features(inputs)) * real).sum(1) / real.sum(1)
    mean /= np.linalg.norm(mean, axis=-1, keepdims=True)
    np.testing.assert_allclose(numpy(model(inputs)), mean, rtol=0, atol=1e-5)


def test_a_model_with_a_head_is_no_encoder():
    with pytest.raises(TypeError, match="`encoder` must be the name of a variant, or"):
        models.build_bert_classifier(tiny("bert_classifier"), num_classes=2)


def test_sizes_override_those_of_the_variant():
    sizes = {**TINY["bert_base"], "num_layers": 3}
    built = models.build_bert("large", **sizes)
    assert sum(layer.name.startswith("block_") for layer in built.layers) == 3
