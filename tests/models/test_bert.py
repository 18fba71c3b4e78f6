"""BERT, RoBERTa and XLM, beyond the contract of all models."""

import keras
import numpy as np
import pytest
from model_cases import TINY, create, inputs_for, outputs_of, tiny
from model_family import S, V

from keras_attn import models


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


def test_a_model_with_a_head_is_no_encoder():
    with pytest.raises(TypeError, match="`encoder` must be the name of a variant, or"):
        models.build_bert_classifier(tiny("bert_classifier"), num_classes=2)


def test_the_pooled_output_is_the_first_real_token():
    model = tiny("xlm_mlm_tlm_xnli15")
    inputs = inputs_for(model)
    inputs["padding_mask"][1] = [False, True, True, True, False]
    outputs = outputs_of(model, inputs)
    first = outputs["sequence_output"][[0, 1], [0, 1]]
    np.testing.assert_array_equal(outputs["pooled_output"], first)


def test_positions_may_be_an_input():
    counting, with_input = (
        tiny(f"xlm_mlm_tlm_xnli15{suffix}") for suffix in ("", "-positions")
    )
    inputs = inputs_for(with_input)
    without = {name: inputs[name] for name in counting.input}
    expected = outputs_of(counting, without)["sequence_output"]
    actual = outputs_of(with_input, inputs)["sequence_output"]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)
    inputs["position_ids"][:, 2:] -= 2
    actual = outputs_of(with_input, inputs)["sequence_output"]
    assert np.abs(actual - expected).max() > 1e-2


@pytest.mark.compiled
def test_trains_on_translations():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("the pipeline needs the TensorFlow backend")
    from keras_attn.data import translation_lm_dataset
    from keras_attn.losses import SmoothedCrossEntropy
    from keras_attn.training import MaskedLMMasking, mask_batches

    rng = np.random.default_rng(5)
    texts = [rng.integers(5, V, (13, size)).tolist() for size in (4, 6)]
    pairs = translation_lm_dataset(
        *texts,
        source_language=0,
        target_language=1,
        end_token_id=1,
        max_length=16,
        batch_size=13,
    )
    masking = MaskedLMMasking(V, 4, special_token_ids=[0, 1, 2, 3])
    encoder = create("xlm_mlm_tlm_xnli15-positions", dropout=0.0, attention_dropout=0.0)
    model = models.build_xlm_masked_lm(encoder)
    model.compile(keras.optimizers.Adam(1e-2), SmoothedCrossEntropy())
    batches = mask_batches(pairs, masking, seed=1, same_each_epoch=True)
    history = model.fit(batches, epochs=8, shuffle=False, verbose=0).history["loss"]
    assert history[-1] < 0.6 * history[0]
