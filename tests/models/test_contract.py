"""What every model of the registry promises, each at a tiny size."""

import copy
import json

import keras
import numpy as np
import pytest
from decoding.tiny_models import (
    CASES,
    TINY,
    B,
    S,
    T,
    V,
    create,
    logits_of,
    make_inputs,
    numpy,
    tiny,
)

from keras_attn import models
from keras_attn.viz import capture_attention

BACKEND = keras.backend.backend()
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
LAYERS["rnnsearch_30"] = LAYERS["rnnsearch_50"] = LAYERS["seq2seq_context"]
BUILDERS = {
    "rnnsearch_30": "build_rnnsearch",
    "rnnsearch_50": "build_rnnsearch",
    "seq2seq_context": "build_seq2seq_context",
    "seq2seq_sutskever": "build_seq2seq_sutskever",
}
WEIGHTS = {
    "seq2seq_sutskever": [
        "source_embedding/embeddings",
        "target_embedding/embeddings",
        "encoder_0/encoder_0_cell/kernel",
        "encoder_0/encoder_0_cell/recurrent_kernel",
        "encoder_0/encoder_0_cell/bias",
        "decoder_0/decoder_0_cell/kernel",
        "decoder_0/decoder_0_cell/recurrent_kernel",
        "decoder_0/decoder_0_cell/bias",
        "encoder_1/encoder_1_cell/kernel",
        "encoder_1/encoder_1_cell/recurrent_kernel",
        "encoder_1/encoder_1_cell/bias",
        "decoder_1/decoder_1_cell/kernel",
        "decoder_1/decoder_1_cell/recurrent_kernel",
        "decoder_1/decoder_1_cell/bias",
        "logits/kernel",
        "logits/bias",
    ],
}


def train(model, jit_compile):
    """The loss of one step, the first of a fit."""
    inputs = make_inputs()
    model.compile(
        keras.optimizers.SGD(0.1),
        # A model that shows its attention has one output more, without a loss.
        loss={"logits": cross_entropy}
        if isinstance(model.output, dict)
        else cross_entropy,
        jit_compile=jit_compile,
    )
    labels = {"logits": LABELS} if isinstance(model.output, dict) else LABELS
    history = model.fit(inputs, labels, batch_size=B, verbose=0)
    return history.history["loss"][0]


def cross_entropy(labels, logits):
    return keras.losses.sparse_categorical_crossentropy(
        labels, logits, from_logits=True
    )


@pytest.mark.parametrize("case", CASES)
def test_layers_and_inputs_have_their_documented_names(case):
    model, name = tiny(case), CASES[case][0]
    inputs = {"token_ids", "padding_mask", "decoder_token_ids"}
    layers = {
        layer.name
        for layer in model.layers
        if not isinstance(layer, keras.layers.InputLayer)
    }
    assert layers == LAYERS[name]
    assert {tensor.name: tensor.dtype for tensor in model.inputs} == {
        "token_ids": "int32",
        "padding_mask": "bool",
        "decoder_token_ids": "int32",
    }
    assert set(model.input) == inputs
    assert model.name == {"rnnsearch_30": "rnnsearch", "rnnsearch_50": "rnnsearch"}.get(
        name, name
    )


@pytest.mark.parametrize("name", TINY)
def test_a_model_takes_a_name(name):
    builder = getattr(models.seq2seq, BUILDERS[name])
    assert builder(**TINY[name], name="mine").name == "mine"


def test_weights_have_fixed_paths():
    paths = [weight.path for weight in tiny("seq2seq_sutskever").weights]
    assert sorted(paths) == sorted(WEIGHTS["seq2seq_sutskever"])
    paths = {weight.path for weight in tiny("rnnsearch_50").weights}
    assert len(paths) == len(tiny("rnnsearch_50").weights)
    assert {path for path in paths if path.startswith("decoder/")} == {
        "decoder/decoder_cell/kernel",
        "decoder/decoder_cell/recurrent_kernel",
        "decoder/decoder_cell/bias",
        "decoder/attention/query_kernel",
        "decoder/attention/key_kernel",
        "decoder/attention/score_vector",
    }


@pytest.mark.parametrize("case", CASES)
def test_symbolic_shapes_are_those_of_the_values(case):
    model, inputs = tiny(case), make_inputs()
    symbolic = keras.tree.map_structure(lambda x: x.shape, model.output)
    values = keras.tree.map_structure(lambda x: tuple(x.shape), model(inputs))
    shows = CASES[case][1].get("return_attention_scores")
    if shows:
        assert symbolic == {
            "logits": (None, None, V),
            "attention_scores": (None, 1, None, None),
        }
        assert values == {"logits": (B, T, V), "attention_scores": (B, 1, T, S)}
    else:
        assert symbolic == (None, None, V)
        assert values == (B, T, V)


def plain(config):
    """A configuration as a file holds it, where a tuple is a list."""
    return json.loads(json.dumps(config))


@pytest.mark.parametrize("case", CASES)
def test_a_saved_model_comes_back_whole(case, tmp_path):
    model, inputs = tiny(case), make_inputs()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert type(loaded) is type(model)
    assert plain(loaded.get_config()) == plain(model.get_config())
    np.testing.assert_array_equal(logits_of(loaded, inputs), logits_of(model, inputs))
    # Its layers are found by name, so it decodes as before.
    ours, theirs = model.incremental(), loaded.incremental()
    assert ours.prompt == theirs.prompt == "decoder_token_ids"
    outputs, expected = theirs.prefill(inputs), ours.prefill(inputs)
    assert set(outputs) == set(expected)
    for name in outputs:
        np.testing.assert_array_equal(numpy(outputs[name]), numpy(expected[name]))


@pytest.mark.parametrize("case", CASES)
def test_a_configuration_and_a_clone_make_the_same_model(case):
    model, inputs = tiny(case), make_inputs()
    config = copy.deepcopy(model.get_config())
    for twin in (type(model).from_config(config), keras.models.clone_model(model)):
        assert type(twin) is type(model)
        assert not {id(w) for w in twin.weights} & {id(w) for w in model.weights}
        assert [w.shape for w in twin.weights] == [w.shape for w in model.weights]
        twin.set_weights(model.get_weights())
        np.testing.assert_array_equal(logits_of(twin, inputs), logits_of(model, inputs))
        assert twin.incremental().step.count_params() > 0


@pytest.mark.parametrize("name", TINY)
def test_fit_goes_alike_with_xla_and_without(name):
    if name == "rnnsearch_30":
        # The same graph as rnnsearch_50, whose compiling takes seconds.
        assert (
            models.seq2seq.VARIANTS["rnnsearch"]["30"]
            == (models.seq2seq.VARIANTS["rnnsearch"]["50"])
        )
        assert tiny(name).get_config() == tiny("rnnsearch_50").get_config()
        return
    losses, weights = [], []
    for jit_compile in (False, True):
        model = create(name)
        before = model.get_weights()
        losses.append(train(model, jit_compile))
        weights.append(model.get_weights())
        changed = [
            np.any(old != new) for old, new in zip(before, weights[-1], strict=True)
        ]
        assert all(changed)
    compiled = model.predict(make_inputs(), verbose=0)
    expected = logits_of(model, make_inputs())
    np.testing.assert_allclose(compiled, expected, rtol=0, atol=1e-5)
    assert np.isfinite(losses).all()
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    for plain, compiled in zip(*weights, strict=True):
        np.testing.assert_allclose(plain, compiled, rtol=0, atol=1e-5)
    # The published objective, from the logits before the step.
    log_probs = keras.ops.log_softmax(logits_of(create(name), make_inputs()))
    chosen = np.take_along_axis(numpy(log_probs), LABELS[..., None], -1)
    np.testing.assert_allclose(losses[0], -chosen.mean(), rtol=1e-5)


@pytest.mark.parametrize("case", sorted(set(CASES) - set(TINY)))
def test_every_option_fits(case):
    assert np.isfinite(train(create(case), jit_compile=False))


def test_dropout_drops_in_training_alone():
    model, inputs = tiny("rnnsearch_50-dropout"), make_inputs()
    still = [logits_of(model, inputs) for _ in range(2)]
    np.testing.assert_array_equal(*still)
    np.testing.assert_array_equal(still[0], logits_of(tiny("rnnsearch_50"), inputs))
    drawn = [numpy(model(inputs, training=True)) for _ in range(2)]
    assert np.abs(drawn[0] - drawn[1]).max() > 0.1
    rates = {
        layer.name: layer.rate
        for layer in model.layers
        if isinstance(layer, keras.layers.Dropout)
    }
    assert rates == {
        "source_dropout": 0.3,
        "target_dropout": 0.3,
        "readout_dropout": 0.3,
    }


def gradients(model, inputs):
    """The gradient of the loss by every trainable weight."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            outputs = model(inputs)
            logits = outputs["logits"] if isinstance(outputs, dict) else outputs
            loss = keras.ops.mean(cross_entropy(LABELS, logits))
        return tape.gradient(loss, [w.value for w in model.trainable_weights])
    import jax

    def loss_of(trainable):
        outputs, _ = model.stateless_call(
            trainable, [w.value for w in model.non_trainable_variables], inputs
        )
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs
        return keras.ops.mean(cross_entropy(LABELS, logits))

    return jax.grad(loss_of)([w.value for w in model.trainable_variables])


@pytest.mark.parametrize("case", CASES)
def test_every_weight_gets_a_finite_gradient(case):
    model = tiny(case)
    for weight, gradient in zip(
        model.trainable_weights, gradients(model, make_inputs()), strict=True
    ):
        assert gradient is not None, weight.path
        # The rows of an embedding may come apart, each with its index.
        values = numpy(getattr(gradient, "values", gradient))
        assert np.isfinite(values).all(), weight.path
        assert np.abs(values).max() > 1e-7, weight.path


@pytest.mark.parametrize(
    "dtype_policy", ["mixed_bfloat16", "mixed_float16"], indirect=True
)
@pytest.mark.parametrize("case", CASES)
def test_half_precision_computes_the_same_but_for_rounding(case, dtype_policy):
    model, inputs = create(case), make_inputs()
    outputs = model(inputs, training=False)
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs
    # A softmax over a vocabulary follows.
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    logits, expected = numpy(logits), logits_of(tiny(case), inputs)
    assert np.isfinite(logits).all()
    assert np.abs(logits - expected).max() > 1e-5  # It did compute in half precision.
    tolerance = {"mixed_bfloat16": 0.3, "mixed_float16": 0.05}[dtype_policy]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "case, dtype_policy",
    [
        ("seq2seq_sutskever", "mixed_float16"),
        ("seq2seq_context", "mixed_bfloat16"),
        ("rnnsearch_50", "mixed_float16"),
    ],
    indirect=["dtype_policy"],
)
def test_half_precision_fits(case, dtype_policy):
    assert np.isfinite(train(create(case), jit_compile=False))


@pytest.mark.parametrize("case", CASES)
def test_more_padding_changes_nothing(case):
    model, inputs = tiny(case), make_inputs()
    wider = {
        "token_ids": np.pad(inputs["token_ids"], [(0, 0), (0, 6)]),
        "padding_mask": np.pad(inputs["padding_mask"], [(0, 0), (0, 6)]),
        "decoder_token_ids": inputs["decoder_token_ids"],
    }
    expected = logits_of(model, inputs)
    np.testing.assert_allclose(logits_of(model, wider), expected, rtol=0, atol=1e-5)
    # Nor does what stands there.
    garbage = np.where(wider["padding_mask"], wider["token_ids"], 13)
    np.testing.assert_allclose(
        logits_of(model, {**wider, "token_ids": garbage.astype("int32")}),
        expected,
        rtol=0,
        atol=1e-5,
    )
    # The mask is what says so: without it, padding counts.
    everything = {**wider, "padding_mask": np.ones_like(wider["padding_mask"])}
    assert np.abs(logits_of(model, everything) - expected).max() > 1e-3
    # A mask of 0 and 1 is a mask, and each row is on its own.
    numbers = {**inputs, "padding_mask": inputs["padding_mask"].astype("int32")}
    np.testing.assert_array_equal(logits_of(model, numbers), expected)
    alone = {name: value[:1] for name, value in inputs.items()}
    np.testing.assert_allclose(logits_of(model, alone), expected[:1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_a_row_of_nothing_but_padding_is_finite(case):
    inputs = make_inputs()
    inputs["padding_mask"][1] = False
    assert np.isfinite(logits_of(tiny(case), inputs)).all()


@pytest.mark.parametrize("case", CASES)
def test_the_decoder_does_not_look_ahead(case):
    model, inputs = tiny(case), make_inputs(target=5)
    expected = logits_of(model, inputs)
    for position in range(5):
        changed = inputs["decoder_token_ids"].copy()
        changed[:, position] = changed[:, position] % (V - 1) + 1
        got = logits_of(model, {**inputs, "decoder_token_ids": changed})
        np.testing.assert_array_equal(got[:, :position], expected[:, :position])
        differences = np.abs(got - expected)[:, position:].max((0, 2))
        assert (differences > 1e-5).all()


RNNSEARCH = [case for case in CASES if case.startswith("rnnsearch")]


@pytest.mark.parametrize("case", RNNSEARCH)
def test_the_alignment_can_be_seen(case):
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
        handed_out = numpy(model(inputs)["attention_scores"])
        np.testing.assert_allclose(handed_out, scores, rtol=0, atol=1e-6)


def test_what_is_seen_of_the_others_is_what_they_are():
    inputs = make_inputs()
    captured = capture_attention(tiny("seq2seq_context"), inputs)["decoder"]
    np.testing.assert_array_equal(captured, np.ones((B, 1, T, 1)))
    with pytest.raises(ValueError, match="must have an attention layer"):
        capture_attention(tiny("seq2seq_sutskever"), inputs)


def test_linear_scores_let_every_query_see_the_same():
    scores = capture_attention(tiny("rnnsearch_50-linear"), make_inputs())["decoder"]
    np.testing.assert_allclose(scores, scores[:, :, :1].repeat(T, 2), atol=1e-6)
    other = capture_attention(tiny("rnnsearch_50"), make_inputs())["decoder"]
    assert np.abs(other - other[:, :, :1]).max() > 1e-3
