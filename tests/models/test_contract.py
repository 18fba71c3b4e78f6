"""What every model of the registry promises, and every head, each at a tiny size."""

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from initial_weights import assert_independent, assert_seed_decides
from model_cases import (
    CASES,
    DECODERS,
    GRAPH_OF,
    GRAPHS,
    IMAGES,
    TEXT,
    TINY,
    B,
    S,
    V,
    create,
    digest,
    given,
    initial_weights,
    inputs_for,
    logits_of,
    numpy,
    outputs_of,
    randomize,
    seeded,
    tiny,
)

from keras_attn import models
from keras_attn.indices import index_ranges
from keras_attn.viz import capture_attention

BACKEND = keras.backend.backend()
INPUTS = {
    "token_ids": "int32",
    "padding_mask": "bool",
    "decoder_token_ids": "int32",
    "segment_ids": "int32",
    "language_ids": "int32",
    "position_ids": "int32",
    "masked_positions": "int32",
    "permutation_mask": "bool",
    "target_mapping": "float32",
    "memory_0": "float32",
    "memory_1": "float32",
    "images": "float32",
    "noise": "float32",
    "labels": "int32",
}
every_case = pytest.mark.parametrize("case", CASES)
every_text_case = pytest.mark.parametrize("case", TEXT)


def close(actual, expected, atol, rtol=0.0):
    """Compares outputs by name."""
    assert set(actual) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=rtol, atol=atol)


def labels_for(outputs):
    """A number for each output; the loss is the mean squared difference.

    Which patches are hidden is no number.
    """
    rng = np.random.default_rng(3)
    return {
        name: rng.normal(size=value.shape).astype("float32")
        for name, value in outputs.items()
        if value.dtype != bool
    }


def train(model, jit_compile=False, run_eagerly=False):
    """The loss of one step, the first of a fit."""
    inputs = inputs_for(model)
    labels: Any = labels_for(outputs_of(model, inputs))
    losses: Any = dict.fromkeys(labels, "mse")
    if not isinstance(model.output, dict):
        (labels,), (losses,) = labels.values(), losses.values()
    model.compile(
        keras.optimizers.SGD(0.1),
        loss=losses,
        jit_compile=jit_compile,
        run_eagerly=run_eagerly,
    )
    history = model.fit(given(model, inputs), labels, batch_size=B, verbose=0)
    return history.history["loss"][0]


@pytest.mark.parametrize("name", sorted(set(TINY) - set(GRAPHS)))
def test_names_that_differ_in_size_alone_are_one_graph(name):
    one, other = tiny(GRAPH_OF[name]), models.create(name, **TINY[name])
    assert [x.name for x in other.inputs] == [x.name for x in one.inputs]
    for layer, same in zip(other.layers, one.layers, strict=True):
        assert type(layer) is type(same)
        assert layer.get_config() == same.get_config()
    operations = [[type(x) for x in model.operations] for model in (one, other)]
    assert operations[0] == operations[1]


@every_case
def test_inputs_have_documented_names_and_types(case):
    model = tiny(case)
    if isinstance(model.input, dict):
        assert set(model.input) == {tensor.name for tensor in model.inputs}
    for tensor in model.inputs:
        assert tensor.dtype == INPUTS[tensor.name]
        # Batch and length are open.
        assert tensor.shape[0] is None
        assert case in IMAGES or tensor.shape[1] is None


@every_case
def test_a_weight_has_a_path_of_its_own(case):
    model = tiny(case)
    assert len({weight.path for weight in model.weights}) == len(model.weights)


@every_case
def test_random_weights_are_independent_and_follow_the_seed(case):
    drawn = initial_weights(case)
    # Positions of a masked autoencoder are sinusoids.
    tables = {name for name in drawn if "mae" in case and "position_embedding" in name}
    assert_independent({n: v for n, v in drawn.items() if n not in tables})
    assert_seed_decides(drawn, seeded(case, 2)[1], tables)


def test_one_seed_gives_the_same_weights_in_another_process():
    script = (
        "import json, model_cases as m; "
        "print(json.dumps({c: m.digest(m.seeded(c, 1)[1]) for c in m.GRAPHS}))"
    )
    tests = Path(__file__).parent.parent
    path = os.pathsep.join([str(tests), str(tests.parent)])
    printed = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ).stdout
    # The order of a set of strings is another in each process: none may matter.
    here = {case: digest(initial_weights(case)) for case in GRAPHS}
    assert json.loads(printed.splitlines()[-1]) == here


@every_case
def test_a_model_takes_a_name(case):
    made = CASES[case]
    if made.head is None:
        sizes = {**TINY[made.name], **made.options}
        model = models.create(made.name, **sizes, name="mine")
    else:
        below = create(made.name)
        model = made.head(below, **made.head_options, name="mine")
        # A head shares the weights of what it is put on.
        shared = {id(weight) for weight in below.weights}
        assert sum(id(weight) in shared for weight in model.weights) > 0.7 * len(shared)
    assert model.name == "mine"


@every_case
def test_symbolic_shapes_are_those_of_the_values(case):
    model = tiny(case)
    symbolic = model.output
    if not isinstance(symbolic, dict):
        symbolic = {"logits": symbolic}
    values = outputs_of(model, inputs_for(model))
    assert set(symbolic) == set(values)
    for name, symbol in symbolic.items():
        assert len(symbol.shape) == values[name].ndim
        for promised, size in zip(symbol.shape, values[name].shape, strict=True):
            assert promised in (None, size)
        assert symbol.shape[0] is None
        # What is wide as the model or its vocabulary is known.
        assert symbol.shape[-1] is not None or values[name].shape[-1] == S


def damaged(inputs):
    """The name of an input, and inputs in which it has another shape or no rows."""
    for name, value in inputs.items():
        yield name, {**inputs, name: value[0]}
        yield name, {**inputs, name: value[..., None, None]}
        if value.ndim > 1:
            yield name, {**inputs, name: value[:, :0]}
    yield next(iter(inputs)), {name: value[:0] for name, value in inputs.items()}


@every_case
def test_an_input_of_another_shape_or_without_rows_is_named(case):
    model = tiny(case)
    inputs = inputs_for(model)
    for name, wrong in damaged(inputs):
        shape = re.escape(str(wrong[name].shape))
        match = f"`{name}` must have the shape .*Received: shape={shape}"
        for call in (model, model.predict, model.predict_on_batch):
            with pytest.raises(ValueError, match=match):
                call(given(model, wrong))


def test_images_without_a_batch_are_named_by_a_compiled_predict():
    """TensorFlow then knows no shape at all, because it traced another rank before."""
    model = tiny("vit_base_patch16")
    images = inputs_for(model)["images"]
    model.predict(images, verbose=0)
    for call in (model, model.predict, model.predict_on_batch):
        with pytest.raises(ValueError, match="`images` must have the shape"):
            call(images[0])


@every_case
def test_an_index_that_the_model_has_no_row_for_is_named(case):
    model = tiny(case)
    inputs = inputs_for(model)
    ranges = index_ranges(model)
    indices = {name for name, value in inputs.items() if value.dtype == "int32"}
    # XLNet compares segments with one another; where to predict has the length of the
    # text for a limit.
    free = {"segment_ids", "masked_positions"}
    assert indices - set(ranges) <= free
    for name, (low, high) in ranges.items():
        for wrong in (low - 1, high):
            changed = inputs[name].copy()
            changed.flat[-1] = wrong
            match = rf"`{name}` must be in \[{low}, {high}\), .*Received: {wrong} at"
            for call in (model, model.predict, model.predict_on_batch):
                with pytest.raises(ValueError, match=match):
                    call(given(model, {**inputs, name: changed}))


def is_idle(weight):
    """A bias of the keys moves all scores of a query alike: softmax cancels it."""
    return weight.path.endswith(("key_bias", "/key/bias"))


def plain(config):
    """A configuration as a file holds it, where a tuple is a list."""
    return json.loads(json.dumps(config))


@every_case
def test_a_saved_model_comes_back_whole(case, tmp_path):
    model = tiny(case)
    inputs = inputs_for(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert type(loaded) is type(model)
    assert plain(loaded.get_config()) == plain(model.get_config())
    close(outputs_of(loaded, inputs), outputs_of(model, inputs), 0)
    if case not in DECODERS:
        return
    # Its layers are found by name, so it decodes as before.
    ours, theirs = model.incremental(), loaded.incremental()
    assert ours.prompt == theirs.prompt
    inputs = inputs_for(ours.prefill)
    close(numpy(theirs.prefill(inputs)), numpy(ours.prefill(inputs)), 0)


@every_case
def test_a_configuration_and_a_clone_make_the_same_model(case):
    model = tiny(case)
    inputs = inputs_for(model)
    config = copy.deepcopy(model.get_config())
    for twin in (type(model).from_config(config), keras.models.clone_model(model)):
        assert type(twin) is type(model)
        assert not {id(w) for w in twin.weights} & {id(w) for w in model.weights}
        assert [w.shape for w in twin.weights] == [w.shape for w in model.weights]
        twin.set_weights(model.get_weights())
        close(outputs_of(twin, inputs), outputs_of(model, inputs), 0)
        if case in DECODERS:
            assert twin.incremental().step.count_params() > 0


@pytest.mark.parametrize("case", GRAPHS)
def test_fit_goes_alike_with_xla_and_without(case):
    model = still(case)
    losses, weights = [], []
    for jit_compile in (False, True):
        randomize(model)  # From the same start.
        before = [numpy(weight) for weight in model.trainable_variables]
        losses.append(train(model, jit_compile))
        weights.append([numpy(weight) for weight in model.trainable_variables])
        for weight, old, new in zip(
            model.trainable_variables, before, weights[-1], strict=True
        ):
            assert np.any(old != new) or is_idle(weight), weight.path
    inputs = inputs_for(model)
    flat = {
        # A row or an image of one value, which has no deviation that a norm divides by.
        name: np.full_like(value, 10) if value.dtype == np.float32 else value
        for name, value in inputs.items()
    }
    for fed, tolerance in ((inputs, 1e-5), (flat, 1e-3)):
        compiled = model.predict(given(model, fed), verbose=0)
        compiled = compiled if isinstance(compiled, dict) else {"logits": compiled}
        close(compiled, outputs_of(model, fed), tolerance, rtol=tolerance)
    assert np.isfinite(losses).all()
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    for eager, compiled in zip(*weights, strict=True):
        np.testing.assert_allclose(eager, compiled, rtol=1e-5, atol=1e-5)
    # The loss is that of the outputs before the step.
    outputs = outputs_of(randomize(model), inputs, training=True)
    labels = labels_for(outputs)
    # What an autoencoder saw counts nothing.
    counted = outputs.get("hidden", slice(None))
    expected = sum(
        np.mean((outputs[name] - labels[name])[counted] ** 2) for name in labels
    )
    np.testing.assert_allclose(losses[0], expected, rtol=1e-4)


def still(case):
    """A new model of a case that drops nothing, so that two runs can be compared."""
    model = create(case)
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    return model


@pytest.mark.parametrize("case", GRAPHS)
def test_fit_goes_alike_inside_a_remat_scope(case):
    with keras.RematScope("full"):
        again = still(case)
    model, inputs = still(case), inputs_for(again)
    # Compiled it is traced three times over: three kinds of layers stand for all.
    run_eagerly = case not in ("bert_base", "rnnsearch_50", "swin_tiny")
    losses = [train(x, run_eagerly=run_eagerly) for x in (model, again)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    for weight, other in zip(model.weights, again.weights, strict=True):
        np.testing.assert_allclose(
            numpy(weight), numpy(other), 1e-5, 1e-5, err_msg=weight.path
        )
    close(outputs_of(again, inputs), outputs_of(model, inputs), 1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", sorted(set(CASES) - set(GRAPHS)))
def test_every_option_and_head_fits(case):
    # Compiled fits are tested with the models that they are of.
    assert np.isfinite(train(create(case), run_eagerly=True))


def gradients(model, inputs):
    """The gradient of the loss by every trainable weight."""
    labels = labels_for(outputs_of(model, inputs))

    def loss_of(outputs) -> Any:
        outputs = outputs if isinstance(outputs, dict) else {"logits": outputs}
        return sum(
            keras.ops.mean(keras.ops.square(outputs[name] - label))
            for name, label in labels.items()
        )

    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = loss_of(model(given(model, inputs)))
        return tape.gradient(loss, [w.value for w in model.trainable_weights])
    import jax

    fixed = [w.value for w in model.non_trainable_variables]
    return jax.grad(
        lambda trainable: loss_of(
            model.stateless_call(trainable, fixed, given(model, inputs))[0]
        )
    )([w.value for w in model.trainable_variables])


@every_case
def test_every_weight_gets_a_finite_gradient(case):
    model = tiny(case)
    for weight, gradient in zip(
        model.trainable_weights, gradients(model, inputs_for(model)), strict=True
    ):
        assert gradient is not None, weight.path
        # The rows of an embedding may come apart, each with its index.
        values = numpy(getattr(gradient, "values", gradient))
        assert np.isfinite(values).all(), weight.path
        assert np.abs(values).max() > 1e-7 or is_idle(weight), weight.path


@pytest.mark.parametrize(
    "dtype_policy", ["mixed_bfloat16", "mixed_float16"], indirect=True
)
@every_case
def test_half_precision_computes_the_same_but_for_rounding(case, dtype_policy):
    model = create(case)
    inputs = inputs_for(model)
    outputs = outputs_of(model, inputs, training=False)
    expected = outputs_of(tiny(case), inputs, training=False)
    half = dtype_policy.removeprefix("mixed_")
    tolerance = {"bfloat16": 0.3, "float16": 0.05}[half]
    for name, value in outputs.items():
        if value.dtype == bool:
            np.testing.assert_array_equal(value, expected[name])
            continue
        # A softmax or a distance follows a head; more layers an encoder.
        is_inner = name.endswith(("_output", "_0", "_1"))
        assert value.dtype.name == (half if is_inner else "float32"), name
        value = value.astype("float32")
        assert np.isfinite(value).all()
        difference = np.abs(value - expected[name]).max()
        # Of a sum of many residuals the last digit counts more.
        assert 0 < difference < tolerance * max(1, expected[name].std()), name


@pytest.mark.parametrize(
    "case, dtype_policy",
    [
        ("seq2seq_sutskever", "mixed_float16"),
        ("seq2seq_context", "mixed_bfloat16"),
        ("rnnsearch_50", "mixed_float16"),
        ("transformer_base", "mixed_bfloat16"),
        ("bert_pretrainer", "mixed_float16"),
        ("gpt2_small", "mixed_bfloat16"),
        ("xlnet_permutation_lm", "mixed_float16"),
    ],
    indirect=["dtype_policy"],
)
def test_half_precision_fits(case, dtype_policy):
    assert np.isfinite(train(create(case)))


def wider(inputs, length=S, left=0, right=6):
    """Inputs with more padding, before and after their tokens."""
    more = {
        name: np.pad(
            value,
            [
                (left, right) if axis and size == length else (0, 0)
                for axis, size in enumerate(value.shape)
            ],
        )
        for name, value in inputs.items()
    }
    if "masked_positions" in more:
        more["masked_positions"] = more["masked_positions"] + np.int32(left)
    return more


def real(outputs, mask):
    """Outputs, those that have one for each token without the padding's."""
    return {
        name: value[mask] if value.shape[1:2] == mask.shape[1:] else value
        for name, value in outputs.items()
        # Their length is that of the inputs.
        if not name.startswith(("memory_", "attention_scores"))
    }


@every_text_case
def test_padding_changes_nothing(case):
    model = tiny(case)
    inputs = inputs_for(model)
    mask = inputs["padding_mask"]
    expected = real(outputs_of(model, inputs), mask)
    more = wider(inputs)
    mask = more["padding_mask"]
    close(real(outputs_of(model, more), mask), expected, 2e-5)
    # Nor does what stands there.
    garbage = {**more, "token_ids": np.where(mask, more["token_ids"], 13)}
    garbage["token_ids"] = garbage["token_ids"].astype("int32")
    close(real(outputs_of(model, garbage), mask), expected, 2e-5)
    # A mask of 0 and 1 is a mask, and each row is on its own.
    numbers = {**inputs, "padding_mask": inputs["padding_mask"].astype("int32")}
    close(outputs_of(model, numbers), outputs_of(model, inputs), 0)
    alone = {name: value[:1] for name, value in inputs.items()}
    first = {name: value[:1] for name, value in outputs_of(model, inputs).items()}
    close(outputs_of(model, alone), first, 2e-5)


# A memory ends right before position 0, so no padding may lie in between.
@pytest.mark.parametrize("case", sorted(set(TEXT) - {"xlnet_base-memory"}))
def test_padding_on_the_left_changes_nothing(case):
    model = tiny(case)
    inputs = inputs_for(model)
    expected = real(outputs_of(model, inputs), inputs["padding_mask"])
    for right in (0, 3):
        more = wider(inputs, left=2, right=right)
        close(real(outputs_of(model, more), more["padding_mask"]), expected, 2e-5)


@pytest.mark.parametrize("case", [case for case in TEXT if not case.startswith("gpt")])
def test_without_a_mask_padding_would_count(case):
    model = tiny(case)
    inputs = inputs_for(model)
    everything = {**inputs, "padding_mask": np.ones_like(inputs["padding_mask"])}
    outputs, expected = outputs_of(model, everything), outputs_of(model, inputs)
    assert max(np.abs(outputs[name] - expected[name]).max() for name in outputs) > 1e-3


@every_text_case
def test_a_row_of_nothing_but_padding_is_finite(case):
    model = tiny(case)
    inputs = inputs_for(model)
    inputs["padding_mask"][1] = False
    for value in outputs_of(model, inputs).values():
        assert np.isfinite(value).all()


@pytest.mark.parametrize("case", DECODERS)
def test_a_decoder_does_not_look_ahead(case):
    model = tiny(case)
    inputs = inputs_for(model, target=S, padded=False)
    prompt = model.incremental().prompt
    expected = logits_of(model, inputs)
    for position in range(S):
        changed = inputs[prompt].copy()
        changed[:, position] = changed[:, position] % (V - 1) + 1
        got = logits_of(model, {**inputs, prompt: changed})
        np.testing.assert_array_equal(got[:, :position], expected[:, :position])
        differences = np.abs(got - expected)[:, position:].max((0, 2))
        assert (differences > 1e-5).all()


@pytest.mark.parametrize(
    "case", sorted(set(GRAPHS) - {"seq2seq_sutskever", "convnext_tiny"})
)
def test_attention_can_be_seen(case):
    model = tiny(case)
    inputs = inputs_for(model)
    captured = capture_attention(model, given(model, inputs))
    assert captured
    is_padding = ~inputs.get("padding_mask", np.ones((B, S), bool))
    for path, scores in captured.items():
        assert scores.ndim == 4
        assert len(scores) == B
        np.testing.assert_allclose(scores.sum(-1), 1, rtol=0, atol=1e-5)
        assert (scores >= 0).all()
        # Nobody looks at padding.
        if case in TEXT and scores.shape[-1] == S:
            hidden = np.broadcast_to(is_padding[:, None, None], scores.shape)
            assert hidden.any()
            assert not scores[hidden].any(), path
