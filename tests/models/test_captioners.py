"""Recurrent captioners, beyond the contract of all models."""

import caption_reference as reference
import keras
import numpy as np
import pytest
from model_cases import create, inputs_for, logits_of, numpy, tiny
from model_family import B, T, V

from keras_attn import models
from keras_attn.decoding import Beam, Greedy, Sample, generate
from keras_attn.layers import HardAttentionRNN
from keras_attn.losses import SmoothedCrossEntropy
from keras_attn.models import show_attend_tell
from keras_attn.viz import capture_attention

SOFT = "caption_show_attend_tell"
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
LABELS = np.random.default_rng(3).integers(1, V, (B, T)).astype("int32")


def close(found, expected, atol=1e-5):
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def test_show_attend_tell_follows_xu_et_al():
    model = tiny(f"{SOFT}-scores")
    inputs = inputs_for(model, batch=3, target=5)
    teller = reference.ShowAttendTell(model)
    rows = zip(inputs["features"], inputs["decoder_token_ids"], strict=True)
    logits, scores = zip(*[teller.tell(*row) for row in rows], strict=True)
    found = numpy(model(inputs))
    close(found["logits"], np.array(logits))
    close(found["attention_scores"], np.array(scores)[:, None])
    (captured,) = capture_attention(model, inputs).values()
    close(captured, found["attention_scores"], atol=0)


# On JAX each loop takes 8 s to compile.
@pytest.mark.parametrize(
    "case", [SOFT, *(["caption_show_and_tell-context"] if ON_TENSORFLOW else [])]
)
def test_strategies_continue_what_the_model_predicts(case):
    """The scores are those of the whole model for the same words."""
    model = tiny(case)
    inputs = inputs_for(model)
    start = inputs["decoder_token_ids"][:, :2]
    prompt = {**inputs, "decoder_token_ids": start}
    for strategy in (Greedy(), Sample(seed=3), Beam(3, length_penalty=0.0)):
        generated = generate(model, prompt, 4, strategy=strategy)
        tokens = np.concatenate([start, generated.token_ids], axis=1)
        given = {**inputs, "decoder_token_ids": tokens[:, :-1]}
        logits = numpy(keras.ops.log_softmax(logits_of(model, given)))[:, 1:]
        chosen = np.take_along_axis(logits, generated.token_ids[..., None], 2)[..., 0]
        close(chosen.sum(1), generated.scores, atol=1e-4)
        if isinstance(strategy, Greedy):
            np.testing.assert_array_equal(logits.argmax(-1), generated.token_ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean_rate": 1.5}, r"`mean_rate` must be a probability in \[0, 1\)"),
        ({"coverage_weight": -1}, "`coverage_weight` must be a non-negative"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        models.build_caption_show_attend_tell(**options)


# The loss


def without_dropout(case=SOFT, **options):
    return create(case, dropout=0.0, **options)


def expected_loss(model, inputs, labels, weights, coverage_weight):
    """The paper's objective per word, and the coverage per caption."""
    teller = reference.ShowAttendTell(model)
    likelihood, penalty = 0.0, 0.0
    for row in range(len(labels)):
        count = int(weights[row].sum())
        logits, alphas = teller.tell(
            inputs["features"][row], inputs["decoder_token_ids"][row, :count]
        )
        likelihood += reference.log_likelihood(logits, labels[row, :count]).sum()
        penalty += reference.coverage(alphas)
    words = weights.sum()
    total = -likelihood / words + coverage_weight * penalty / words
    return total, penalty / len(labels)


# The contract of all models compares a fit with XLA.
@pytest.mark.parametrize("case", [SOFT, f"{SOFT}-scores"])
def test_the_loss_is_the_papers(case):
    model = without_dropout(case, coverage_weight=0.7)
    inputs = inputs_for(model, target=5)
    labels = np.random.default_rng(1).integers(1, V, (B, 5))
    weights = (np.arange(5) < [[5], [2]]).astype("float32")
    expected, coverage = expected_loss(model, inputs, labels, weights, 0.7)
    loss, given, weighted = SmoothedCrossEntropy(), labels, weights
    if case != SOFT:
        given, weighted = {"logits": labels}, {"logits": weights}
        loss = {"logits": loss}
    model.compile("sgd", loss=loss, run_eagerly=True)
    history = model.fit(inputs, given, B, sample_weight=weighted, verbose=0).history
    close(history["loss"], expected)
    close(history["coverage"], coverage)


def test_padding_changes_no_gradient():
    model = without_dropout()
    inputs, weights = inputs_for(model), np.ones((B, T), "float32")
    longer = {
        **inputs,
        "decoder_token_ids": np.pad(inputs["decoder_token_ids"], [(0, 0), (0, 4)]),
    }
    start, found = model.get_weights(), []
    for x, pad in ((inputs, 0), (longer, 4)):
        model.set_weights(start)
        model.compile("sgd", loss=SmoothedCrossEntropy(), run_eagerly=True)
        padding = [(0, 0), (0, pad)]
        y, weight = np.pad(LABELS, padding), np.pad(weights, padding)
        model.fit(x, y, B, sample_weight=weight, verbose=0)
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        close(one, other, atol=1e-6)


def test_evaluation_is_of_the_words_alone():
    model = without_dropout()
    inputs = inputs_for(model)
    model.compile(
        keras.optimizers.SGD(0.0),
        loss=SmoothedCrossEntropy(),
        weighted_metrics=["accuracy"],
        run_eagerly=True,
    )
    logged = model.fit(inputs, LABELS, B, validation_data=(inputs, LABELS), verbose=0)
    assert set(logged.history) == {
        *("loss", "coverage", "accuracy", "val_loss", "val_accuracy")
    }
    # Without sample weights all words count.
    expected, _ = expected_loss(model, inputs, LABELS, np.ones((B, T)), 1.0)
    close(logged.history["loss"], expected)
    found = model.evaluate(inputs, LABELS, B, verbose=0, return_dict=True)
    expected, _ = expected_loss(model, inputs, LABELS, np.ones((B, T)), 0.0)
    close(found["loss"], expected)
    assert set(found) == {"loss", "accuracy"}


def test_a_weight_of_zero_leaves_the_term_out():
    model = without_dropout(coverage_weight=0.0)
    outputs = model(inputs_for(model), training=True)
    assert outputs.shape == (B, T, V)


class _MoreOutputs(HardAttentionRNN):
    """Has further outputs, before, between and after the others in alphabetic order."""

    def call(self, inputs, memory, initial_state, *, training=None, **options):
        results = super().call(
            inputs, memory, initial_state, training=training, **options
        )
        more = keras.ops.zeros_like(results["states"])
        return {**results, **dict.fromkeys(("a", "d", "o", "z"), more)}


@pytest.mark.parametrize("returns_scores", [False, True])
def test_the_terms_do_not_depend_on_other_outputs_of_the_decoder(
    monkeypatch, returns_scores
):
    options = {"attention": "hard", "mean_rate": 0.0, "seed": 1}
    options["return_attention_scores"] = returns_scores
    plain = without_dropout(**options)
    monkeypatch.setattr(show_attend_tell, "HardAttentionRNN", _MoreOutputs)
    model = without_dropout(**options)
    model.set_weights(plain.get_weights())
    inputs = inputs_for(model)
    found, expected = (numpy(x(inputs, training=True)) for x in (model, plain))
    assert np.any(expected["places"] != expected["attention_scores"])
    keras.tree.map_structure(np.testing.assert_array_equal, found, expected)
