"""The contract of every model and head, at a tiny size: what it computes.

Fits are compared in the files `test_contract_fit_*.py`.
"""

from typing import Any

import keras
import numpy as np
import pytest
from model_cases import (
    CASES,
    DECODERS,
    GRAPHS,
    ONE_OF_EACH,
    TEXT,
    build,
    create,
    expected_outputs,
    given,
    has_own_loss,
    inputs_for,
    is_detector,
    named,
    numpy,
    outputs_of,
    tiny,
    truth_for,
    unpools,
)
from model_contract import (
    FEW,
    close,
    each_of,
    every_family,
    every_text_case,
    is_further,
    is_idle,
    labels_for,
    train,
)
from model_family import B, S, V

from keras_attn.checks.indices import index_ranges
from keras_attn.viz import capture_attention

BACKEND = keras.backend.backend()
KINDS_OF_ATTENTION = ("rnnsearch_50", "bert_base", "xlnet_base", "swin_tiny")


@pytest.mark.parametrize(
    "case",
    [
        case
        for case, made in CASES.items()
        if made.head is None and GRAPHS[made.name].reference
    ],
)
def test_outputs_are_those_of_the_equations(case):
    model = tiny(case)
    reference = GRAPHS[CASES[case].name].reference
    assert reference is not None
    expected, found = reference(model, inputs_for(model)), expected_outputs(case)
    assert expected
    close({name: found[name] for name in expected}, expected, 1e-5)


# Keras warns of weights that get no gradient: in the last co-attention of ViLBERT the
# words, which its regions do not depend on.
@pytest.mark.filterwarnings("ignore:.*do not exist for variables .'co_attention_1/text")
@pytest.mark.compiled
@pytest.mark.variation
@pytest.mark.parametrize(
    "case", [case for case, made in CASES.items() if made.head or made.options]
)
def test_every_option_and_head_fits(case):
    # Compiled fits are tested with the models without options. On JAX, where an eager
    # step takes three times as long, this one is compiled too.
    on_jax = BACKEND == "jax"
    loss = train(create(case), jit_compile=on_jax, run_eagerly=not on_jax)
    assert np.isfinite(loss)


# Images of any size, of two axes that are free.
ANY_SIZE = [
    case
    for case, made in CASES.items()
    if made.options.get("image_size", 0) in (None, (None, None))
]


@pytest.mark.parametrize("case", ANY_SIZE)
def test_a_model_of_any_image_size_equals_the_one_of_each_size(case):
    model = tiny(case)
    for size in ((19, 27), (16, 24), (37, 9)):
        fixed = build(case, image_size=size)
        fixed.set_weights(model.get_weights())
        inputs = inputs_for(fixed)
        expected = outputs_of(fixed, inputs)
        close(outputs_of(model, inputs), expected, 1e-5)
        close(named(model.predict(inputs["images"], verbose=0)), expected, 1e-5)


def gradients(model, inputs):
    """The gradient of the loss with respect to every trainable weight."""
    is_trained = has_own_loss(model)
    labels = {} if is_trained else labels_for(outputs_of(model, inputs))

    def loss_of(outputs) -> Any:
        if is_trained:
            return model.compute_loss(y=truth_for(model), y_pred=outputs)
        outputs = named(outputs)
        return sum(
            keras.ops.mean(keras.ops.square(outputs[name] - label))
            for name, label in labels.items()
        )

    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = loss_of(model(given(model, inputs), training=is_trained))
    return tape.gradient(loss, [w.value for w in model.trainable_weights])


# On JAX the fits tell: a step of SGD changes a weight by its gradient.
@pytest.mark.skipif(BACKEND != "tensorflow", reason="uses TensorFlow's tape")
@every_family
def test_every_weight_has_a_finite_gradient(case):
    model = tiny(case)
    for weight, gradient in zip(
        model.trainable_weights, gradients(model, inputs_for(model)), strict=True
    ):
        if gradient is None:
            assert is_idle(weight, model), weight.path
            continue
        # The gradient of an embedding may be indexed rows.
        values = numpy(getattr(gradient, "values", gradient))
        assert np.isfinite(values).all(), weight.path
        assert np.abs(values).max() > 1e-7 or is_idle(weight, model), weight.path


def check_state(pair):
    """A step takes every state with the shape and type that `prefill` gives it."""
    given = {tensor.name: tensor for tensor in pair.prefill.inputs}
    # An input that is a state as well is passed on, not returned.
    assert not given.keys() & pair.prefill.output.keys()
    given |= pair.prefill.output
    state = dict(pair.step.input)
    del state["token_ids" if "token_ids" in state else "world_state"]
    for name, tensor in state.items():
        assert (tensor.shape, tensor.dtype) == (given[name].shape, given[name].dtype)
    changed = {name.removeprefix("new_") for name in pair.step.output}
    assert changed - {"logits"} <= set(state)


@pytest.mark.parametrize(
    ("case", "dtype_policy"),
    [
        pytest.param(
            *(case, policy),
            # The contract of layers tests each of them in half precision.
            marks=pytest.mark.variation
            if case not in FEW or policy == "mixed_float16"
            else (),
        )
        for case in CASES
        for policy in ("mixed_bfloat16", "mixed_float16")
    ],
    indirect=["dtype_policy"],
)
def test_half_precision_matches_float32_up_to_rounding(case, dtype_policy):
    model = create(case)
    inputs = inputs_for(model)
    outputs = outputs_of(model, inputs, training=False)
    expected = expected_outputs(case)
    half = dtype_policy.removeprefix("mixed_")
    if half == "float16" and case in GRAPHS and case in DECODERS:
        check_state(model.incremental())
    tolerance = {"bfloat16": 0.3, "float16": 0.05}[half]
    if is_detector(model):
        # Rounding changes the order of detections, so only their kind is compared.
        for name, value in outputs.items():
            assert value.dtype == expected[name].dtype
            assert np.isfinite(value).all()
        return
    for name, value in outputs.items():
        if value.dtype == bool:
            np.testing.assert_array_equal(value, expected[name])
            continue
        # Logits and embeddings are float32; features for more layers are not.
        is_inner = name.endswith(("_output", "_0", "_1"))
        assert value.dtype.name == (half if is_inner else "float32"), name
        value = value.astype("float32")
        assert np.isfinite(value).all()
        difference = np.abs(value - expected[name])
        share = 0.999 if unpools(model) else 1.0
        difference = np.quantile(difference, share)
        # The error is relative to the values, which a sum of residuals or a product
        # of features makes large. Two scores may be large and nearly equal.
        size = np.sqrt(np.mean(np.square(expected[name])))
        assert 0 < difference < tolerance * max(1, size), name


@pytest.mark.compiled
@pytest.mark.parametrize(
    "case, dtype_policy",
    [
        ("seq2seq_sutskever", "mixed_float16"),
        ("seq2seq_context", "mixed_bfloat16"),
        ("rnnsearch_50", "mixed_float16"),
        ("listen_attend_spell-sampling", "mixed_bfloat16"),
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
    """Outputs without those of padding, where there is one for each token."""
    # Regions are as many as tokens, in ViLBERT after one of the whole image.
    from_second = np.pad(mask, ((0, 0), (1, 0)))

    def only_real(name, value):
        masks = [mask, from_second] if name == "region_output" else [mask]
        for each in masks:
            if value.shape[1:2] == each.shape[1:]:
                return value[each]
        return value

    return {
        name: only_real(name, value)
        for name, value in outputs.items()
        # These have the length of the padded inputs.
        if not name.startswith(("memory_", "attention_scores"))
    }


@every_text_case
def test_padding_changes_no_output(case):
    model = tiny(case)
    inputs = inputs_for(model)
    mask = inputs["padding_mask"]
    outputs = expected_outputs(case)
    expected = real(outputs, mask)
    # Whatever stands in padding.
    more = wider(inputs)
    mask = more["padding_mask"]
    source = "token_ids" if "token_ids" in more else "features"
    hidden = ~mask if more[source].ndim == 2 else ~mask[..., None]
    limit = index_ranges(model).get(source, (0, None))[1] or V
    filler = min(13, limit - 1)
    garbage = {**more, source: np.where(hidden, filler, more[source])}
    garbage[source] = garbage[source].astype(more[source].dtype)
    close(real(outputs_of(model, garbage), mask), expected, 2e-5)
    # A mask may hold 0 and 1, and rows are independent of each other.
    numbers = {**inputs, "padding_mask": inputs["padding_mask"].astype("int32")}
    close(outputs_of(model, numbers), outputs, 0)
    alone = {name: value[:1] for name, value in inputs.items()}
    first = {name: value[:1] for name, value in outputs.items()}
    close(outputs_of(model, alone), first, 2e-5)


@every_text_case
def test_left_padding_changes_no_output(case):
    if case == "xlnet_base-memory":
        pytest.skip("a memory ends before position 0: padding must not separate them")
    model = tiny(case)
    inputs = inputs_for(model)
    expected = real(expected_outputs(case), inputs["padding_mask"])
    for right in (0, 3):
        more = wider(inputs, left=2, right=right)
        close(real(outputs_of(model, more), more["padding_mask"]), expected, 2e-5)


# A causal model reads no padding that comes after the text.
@each_of(
    [case for case in TEXT if CASES[case].card.task != "language model"], is_further
)
def test_without_a_mask_padding_changes_the_output(case):
    model = tiny(case)
    inputs = inputs_for(model)
    everything = {**inputs, "padding_mask": np.ones_like(inputs["padding_mask"])}
    outputs, expected = outputs_of(model, everything), expected_outputs(case)
    assert max(np.abs(outputs[name] - expected[name]).max() for name in outputs) > 1e-3


@every_text_case
def test_a_row_of_padding_alone_is_finite(case):
    """In a compiled graph, such as that of a training step, whose batch it fills up."""
    model = tiny(case)
    inputs = inputs_for(model)
    inputs["padding_mask"][1] = False
    # Past the check of `Functional`, which refuses such a row.
    outputs = named(keras.Model.__call__(model, given(model, inputs)))
    for value in outputs.values():
        assert np.isfinite(value).all()


def predicted_logits(model, inputs):
    """The logits of a forward pass, (B, T, V); for DALL·E those of the caption."""
    if BACKEND == "tensorflow":
        outputs = outputs_of(model, inputs, training=False)
    else:  # An eager call would compile each loop again.
        outputs = named(model.predict_on_batch(given(model, inputs)))
    return outputs["logits" if "logits" in outputs else "text_logits"]


@each_of(DECODERS, lambda case: case not in ONE_OF_EACH)
def test_a_decoder_does_not_attend_to_the_future(case):
    model = tiny(case)
    inputs = inputs_for(model, target=S, padded=False)
    prompt = model.incremental().prompt
    if "world_state" in inputs:  # Read at each step, where others read a token.
        prompt = "world_state"
    expected = predicted_logits(model, inputs)
    limit = index_ranges(model).get(prompt, (0, None))[1] or V
    # One call for all positions: a row for each of them and each row of the inputs.
    rows = {name: np.concatenate(S * [value]) for name, value in inputs.items()}
    changed = rows[prompt].reshape(S, len(expected), *rows[prompt].shape[1:])
    for position, one in enumerate(changed):
        one[:, position] = one[:, position] % (limit - 1) + 1
    found = predicted_logits(model, rows).reshape(S, *expected.shape)
    for position, got in enumerate(found):
        before = slice(position)
        np.testing.assert_allclose(got[:, before], expected[:, before], 0, 2e-5)
        differences = np.abs(got - expected)[:, position:].max((0, 2))
        assert (differences > 1e-5).all()


@pytest.mark.parametrize(
    "case",
    [
        # On JAX an eager call takes seven seconds.
        pytest.param(name, marks=pytest.mark.variation)
        if BACKEND == "jax" and name not in KINDS_OF_ATTENTION
        else name
        for name, graph in GRAPHS.items()
        if graph.attends
    ],
)
def test_attention_scores_can_be_captured(case):
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
        # Padding is never attended to.
        if case in TEXT and scores.shape[-1] == S:
            hidden = np.broadcast_to(is_padding[:, None, None], scores.shape)
            assert hidden.any()
            assert not scores[hidden].any(), path
