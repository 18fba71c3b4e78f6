"""Recurrent captioners, beyond the contract of all models."""

import math

import caption_reference as reference
import keras
import numpy as np
import pytest
from model_cases import (
    B,
    T,
    V,
    create,
    inputs_for,
    layer_names,
    logits_of,
    numpy,
    tiny,
)

from keras_attn import models
from keras_attn.decoding import Beam, Greedy, Sample, generate
from keras_attn.layers import HardAttentionRNN
from keras_attn.losses import SmoothedCrossEntropy
from keras_attn.models import show_attend_tell
from keras_attn.viz import capture_attention

CASES = (
    "caption_show_and_tell",
    "caption_show_and_tell-context",
    "caption_show_attend_tell",
)
SOFT = "caption_show_attend_tell"
LABELS = np.random.default_rng(3).integers(1, V, (B, T)).astype("int32")
LAYERS = {
    "caption_show_and_tell": (
        "places image_vector image_embedding word_embedding word_dropout decoder "
        "hidden_dropout logits"
    ),
    SOFT: (
        "places image_vector initial_hidden initial_dropout initial_state "
        "initial_cell word_embedding decoder attention_objective hidden_dropout "
        "hidden_readout context_readout readout readout_dropout logits"
    ),
}
LAYERS["caption_show_and_tell-context"] = (
    LAYERS["caption_show_and_tell"] + " initial_state initial_cell"
)


def close(found, expected, atol=1e-5):
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("case", CASES)
def test_layers_have_their_documented_names(case):
    assert layer_names(tiny(case)) == set(LAYERS[case].split())


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


@pytest.mark.parametrize("case", CASES)
def test_one_image_and_one_word(case):
    model = tiny(case)
    inputs = inputs_for(model)
    expected = logits_of(model, inputs)
    first = {name: value[:1] for name, value in inputs.items()}
    first["decoder_token_ids"] = first["decoder_token_ids"][:, :1]
    close(logits_of(model, first), expected[:1, :1], atol=2e-6)


# On JAX each loop takes 8 s to compile.
@pytest.mark.parametrize(
    "case", CASES[1:] if keras.backend.backend() == "tensorflow" else CASES[-1:]
)
def test_strategies_continue_what_the_model_predicts(case):
    model = tiny(case)
    inputs = inputs_for(model)
    start = inputs["decoder_token_ids"][:, :2]
    prompt = {**inputs, "decoder_token_ids": start}
    found = {
        name: generate(model, prompt, 4, strategy=strategy)
        for name, strategy in {
            "greedy": Greedy(),
            "sample": Sample(seed=3),
            "again": Sample(seed=3),
            "beam": Beam(3, length_penalty=0.0),
        }.items()
    }
    for generated in found.values():
        # The scores are those of the whole model for the same words.
        tokens = np.concatenate([start, generated.token_ids], axis=1)
        given = {**inputs, "decoder_token_ids": tokens[:, :-1]}
        logits = numpy(keras.ops.log_softmax(logits_of(model, given)))[:, 1:]
        chosen = np.take_along_axis(logits, generated.token_ids[..., None], 2)[..., 0]
        close(chosen.sum(1), generated.scores, atol=1e-4)
    greedy = found["greedy"].token_ids
    tokens = np.concatenate([start, greedy], axis=1)
    logits = logits_of(model, {**inputs, "decoder_token_ids": tokens[:, :-1]})
    np.testing.assert_array_equal(logits[:, 1:].argmax(-1), greedy)
    np.testing.assert_array_equal(found["sample"].token_ids, found["again"].token_ids)
    assert (found["beam"].scores >= found["greedy"].scores - 1e-5).all()


@pytest.mark.parametrize("case", CASES)
def test_images_by_a_backbone(case):
    images = keras.Input((7, 9, 3))
    features = keras.layers.Conv2D(5, 3, strides=2, name="stem")(images)
    backbone = keras.Model(images, features)
    model = create(case, backbone=backbone)
    inputs = inputs_for(model)
    assert set(inputs) == {"images", "decoder_token_ids"}
    by_features = create(case, grid_size=(3, 4))
    by_features.set_weights(model.get_weights()[2:])
    given = {
        "features": numpy(backbone(inputs["images"])),
        "decoder_token_ids": inputs["decoder_token_ids"],
    }
    close(logits_of(model, inputs), logits_of(by_features, given))
    words = generate(model, {"images": inputs["images"]}, 3, start_token_id=1)
    assert words.token_ids.shape == (B, 3)
    # Both parts learn.
    before = [numpy(w).copy() for w in model.trainable_weights]
    model.compile("sgd", loss=SmoothedCrossEntropy(), run_eagerly=True)
    model.fit(inputs, LABELS, batch_size=B, verbose=0)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert np.abs(numpy(weight) - old).max() > 0, weight.path


@pytest.mark.parametrize(
    ("builder", "options", "message"),
    [
        ("and", {"image_as": "last"}, "`image_as` must be one of 'first_word', 'cont"),
        ("and", {"dropout": 1.0}, r"`dropout` must be a probability in \[0, 1\)"),
        ("and", {"grid_size": 0}, "`grid_size` must be a positive integer"),
        ("attend", {"dropout": -0.1}, r"`dropout` must be a probability in \[0, 1\)"),
        ("attend", {"attention": "firm"}, "`attention` must be one of 'soft', 'hard'"),
        ("attend", {"inference": "drawn"}, "`inference` must be one of 'mean', 'most_"),
        (
            "attend",
            {"mean_rate": 1.5},
            r"`mean_rate` must be a probability in \[0, 1\)",
        ),
        ("attend", {"feature_dim": 0}, "`feature_dim` must be a positive integer"),
        ("attend", {"backbone": keras.Sequential()}, "backbone"),
        ("attend", {"coverage_weight": -1}, "`coverage_weight` must be a non-negative"),
        (
            "attend",
            {"reinforce_weight": math.nan},
            "`reinforce_weight` must be",
        ),
        (
            "attend",
            {"entropy_weight": "small"},
            "`entropy_weight` must be a",
        ),
    ],
)
def test_bad_options(builder, options, message):
    build_model = {
        "and": models.build_caption_show_and_tell,
        "attend": models.build_caption_show_attend_tell,
    }[builder]
    with pytest.raises((ValueError, TypeError), match=message):
        build_model(**options)


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


def test_without_sample_weights_all_words_count():
    model = without_dropout()
    inputs = inputs_for(model)
    expected, _ = expected_loss(model, inputs, LABELS, np.ones((B, T)), 1.0)
    model.compile(
        keras.optimizers.SGD(0.0), loss=SmoothedCrossEntropy(), run_eagerly=True
    )
    history = model.fit(inputs, LABELS, batch_size=B, verbose=0)
    close(history.history["loss"], expected)


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
    found = model.evaluate(inputs, LABELS, B, verbose=0, return_dict=True)
    expected, _ = expected_loss(model, inputs, LABELS, np.ones((B, T)), 0.0)
    close(found["loss"], expected)
    assert set(found) == {"loss", "accuracy"}


def test_a_weight_of_zero_leaves_the_term_out():
    model = without_dropout(coverage_weight=0.0)
    outputs = model(inputs_for(model), training=True)
    assert outputs.shape == (B, T, V)


def test_a_loaded_model_has_the_same_loss(tmp_path):
    model = without_dropout(coverage_weight=0.7)
    model.save(tmp_path / "model.keras")
    losses = []
    for each in (model, keras.saving.load_model(tmp_path / "model.keras")):
        each.compile("sgd", loss=SmoothedCrossEntropy(), run_eagerly=True)
        losses.append(each.fit(inputs_for(model), LABELS, B, verbose=0).history["loss"])
    close(*losses, atol=1e-5)


@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_the_terms_come_with_a_call_in_training(attention):
    model = without_dropout(attention=attention)
    outputs = model(inputs_for(model), training=True)
    places = {"places": (B, 1, T, 6)} if attention == "hard" else {}
    assert {name: tuple(x.shape) for name, x in outputs.items()} == {
        "outputs": (B, T, V),
        "attention_scores": (B, 1, T, 6),
        **places,
    }


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


def test_weights_have_fixed_paths():
    paths = {weight.path for weight in tiny(SOFT).weights}
    assert {path for path in paths if path.startswith("decoder/")} == {
        "decoder/gate_kernel",
        "decoder/gate_bias",
        *(f"decoder/decoder_cell/{x}" for x in ("kernel", "recurrent_kernel", "bias")),
        *(
            f"decoder/attention/{name}"
            for name in ("query/kernel", "key/kernel", "score_vector", "key/bias")
        ),
    }
