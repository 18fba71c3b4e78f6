"""Reward models of any encoder: they learn rankings, and are normalized for use."""

import keras
import numpy as np
import pytest
from backend import skip_module_without_tensorflow
from feedback_cases import untyped
from policy_cases import END, tiny_policy

from keras_attn import models
from keras_attn.data import ranking_dataset
from keras_attn.losses import RankingLoss
from keras_attn.metrics import RankingAccuracy
from keras_attn.models import as_reward_model, normalize_scores

pytestmark = pytest.mark.compiled

skip_module_without_tensorflow("its data is a tf.data pipeline")

# More of token 5 is better; two answers are a tie, and the last ranking is shorter.
PROMPTS = [[1, 3], [1], [1, 4], [1, 6]]
ANSWERS = [[[5, 5], [5], [4]], [[3], [5, 3], [4, 4]], [[6], [4], [5, 5]], [[5], [3]]]
RATINGS = [[2, 1, 0], [0, 1, 0], [0, 0, 2], [1, 0]]


def rankings(**options):
    """The rankings of up to three answers, in one batch."""
    return ranking_dataset(
        PROMPTS, ANSWERS, RATINGS, max_length=6, batch_size=4, end_token_id=END
    )


def bert():
    """A tiny BERT, which has segments too."""
    keras.utils.set_random_seed(3)
    sizes = {"num_layers": 1, "hidden_dim": 8, "num_heads": 2, "mlp_dim": 11}
    options = {"dropout": 0.0, "attention_dropout": 0.0, "max_sequence_length": 13}
    return models.create("bert_base", vocabulary_size=7, **sizes, **options)


def learned(encoder):
    """A reward model that has learned the rankings, eagerly, and its history."""
    model = as_reward_model(encoder)
    model.compile(
        keras.optimizers.Adam(0.1),
        RankingLoss(3, margin=0.1),
        weighted_metrics=[RankingAccuracy(3)],
        jit_compile=False,
    )
    return model, model.fit(rankings(), epochs=20, shuffle=False, verbose=0).history


@pytest.fixture(scope="module")
def trained():
    """A reward model from a GPT."""
    return learned(tiny_policy(dropout=0.0, attention_dropout=0.0))


def scores_of(model, inputs):
    """Its scores, (B,)."""
    return model.predict_on_batch(inputs)[:, 0].astype("float64")


def test_a_decoder_learns_to_rank(trained):
    _, history = trained
    assert history["ranking_accuracy"][-1] == 1
    assert history["loss"][-1] < history["loss"][0] / 3


def test_an_encoder_has_one_score_and_its_other_inputs_are_zero():
    encoder = bert()
    keras.utils.set_random_seed(4)
    model = as_reward_model(encoder)
    assert set(model.input) == {"token_ids", "padding_mask"}
    ((inputs, _, _),) = rankings().as_numpy_iterator()
    pooled = encoder({**inputs, "segment_ids": np.zeros_like(inputs["token_ids"])})
    kernel, bias = model.get_layer("score").get_weights()
    wanted = keras.ops.convert_to_numpy(pooled["pooled_output"]) @ kernel + bias
    found = keras.ops.convert_to_numpy(model(inputs))
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert len(model.trainable_variables) == len(encoder.trainable_variables) + 2
    wide = [as_reward_model(encoder).get_layer("score").kernel for _ in range(40)]
    deviation = np.std([keras.ops.convert_to_numpy(x) for x in wide])
    assert deviation == pytest.approx(1 / 3, rel=0.2)  # 1 / √(8 + 1), of 320 numbers.


def test_scores_are_normalized_once_and_saved(trained, tmp_path):
    model, _ = trained
    ((inputs, _, weights),) = rankings().as_numpy_iterator()
    raw = scores_of(model, inputs)
    assert abs(raw.mean()) > 0.01 and abs(raw.std() - 1) > 0.01
    normalized = normalize_scores(model, inputs)
    found = scores_of(normalized, inputs)
    np.testing.assert_allclose(found, (raw - raw.mean()) / raw.std(), atol=1e-5)
    # On other texts a second call replaces the first.
    some = {name: values[:5] for name, values in inputs.items()}
    twice = normalize_scores(normalized, some)
    part = raw[:5]
    np.testing.assert_allclose(
        scores_of(twice, inputs), (raw - part.mean()) / part.std(), atol=1e-4
    )
    assert len(twice.layers) == len(normalized.layers)
    twice.save(tmp_path / "reward.keras")
    again = keras.saving.load_model(tmp_path / "reward.keras")
    np.testing.assert_allclose(
        scores_of(again, inputs), scores_of(twice, inputs), atol=1e-6
    )


def test_wrong_arguments_are_named(trained):
    model, _ = trained
    with pytest.raises(TypeError, match="`encoder` must be a model with a `pooled_o"):
        untyped(as_reward_model)("gpt2_small")
    with pytest.raises(TypeError, match="`encoder` must be a model with a `pooled_o"):
        as_reward_model(model)
    ((inputs, _, _),) = rankings().as_numpy_iterator()
    same = {name: values[:1].repeat(3, 0) for name, values in inputs.items()}
    with pytest.raises(ValueError, match="must differ.*Received: 3 scores"):
        normalize_scores(model, same)
    weights = model.get_weights()
    model.set_weights([np.full_like(w, np.nan) for w in weights])
    with pytest.raises(ValueError, match="must be finite.*Received: nan in row 0"):
        normalize_scores(model, inputs)
    model.set_weights(weights)
