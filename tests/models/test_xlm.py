"""XLM, beyond the contract of all models."""

import keras
import numpy as np
import pytest
from model_cases import create, inputs_for, layer_names, outputs_of, tiny
from model_family import V

from keras_attn import models

LAYERS = {
    "token_embedding",
    "position_embedding",
    "language_embedding",
    "embeddings_norm",
    "embeddings_dropout",
    "block_0",
    "block_1",
    "first_token",
}


def test_layers_have_their_documented_names():
    assert layer_names(tiny("xlm_mlm_tlm_xnli15")) == LAYERS
    # The output matrix is the embedding itself, without a layer before it.
    head = {layer.name for layer in tiny("xlm_masked_lm").layers} - LAYERS
    assert head - set(tiny("xlm_masked_lm").input) == {"masked_lm_logits"}


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
