"""The contract of every exported layer; the cases are in `layer_cases`.

This file has more than 500 lines because each test of it is one more promise of every
layer, to be read in one place.
"""

import inspect
import json
import re

import keras
import numpy as np
import pytest
from initial_weights import assert_independent, assert_seed_decides
from keras import ops
from layer_cases import ALL, CASES, NOT_INSTANTIATED
from layer_contract import (
    CACHE,
    KNOWN,
    LENGTHS,
    NUMBERS,
    REAL,
    S,
    T,
    assert_close,
    built,
    far_from_zero,
    flat,
    functional,
    gradients,
    is_ids,
    randomize,
    symbols,
    tensors,
)

from keras_attn import layers
from keras_attn.checks.indices import index_ranges
from keras_attn.layers import output_specs
from keras_attn.layers.base import BaseLayer
from keras_attn.ops import gelu_tanh

FIRST = {f"{layer}-{[*cases][0]}" for layer, cases in CASES.items()}
ON_JAX = keras.backend.backend() == "jax"


# One of each kind. The others are variations in what takes compilation, such as a
# call on JAX, which compiles every operation by itself.
KINDS = {
    "AdditiveAttention",
    "AttentionRNN",
    "MultiHeadAttention",
    "PatchEmbedding",
    "RelativeMultiHeadAttention",
    "SinusoidalPositionEmbedding",
    "SwinBlock",
    "TransformerDecoderBlock",
    "TransformerEncoderBlock",
    "TransposedConv2D",
    "WindowAttention",
}


def of_each_layer(cases, variations=()):
    """The first case of each layer; the others are variations, on JAX most layers.

    Args:
        cases: Their names, "Layer-case", and the cases.
        variations: Layers of which the first case is a variation, too.
    """

    def is_variation(name):
        layer = name.split("-")[0]
        is_elsewhere = ON_JAX and layer not in KINDS
        return name not in FIRST or layer in variations or is_elsewhere

    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(
                case, marks=pytest.mark.variation if is_variation(name) else ()
            )
            for name, case in cases
        ],
        ids=[name for name, _ in cases],
    )


def _own_arguments(name):
    """Arguments that a layer's constructor names, and does not leave to Keras."""
    return inspect.signature(getattr(layers, name)).parameters


def of_each(cases):
    """All of these cases, always."""
    names, cases = zip(*cases, strict=True)
    return pytest.mark.parametrize("case", cases, ids=names)


every_layer = of_each_layer(ALL)
OTHERS = {name.split("-")[0] for name, _ in ALL} - KINDS
every_case = every_layer if ON_JAX else of_each(ALL)
padded_cases = of_each([(name, case) for name, case in ALL if case.padding])
causal_cases = of_each([(name, case) for name, case in ALL if case.causal_over])
# Every mask of a layer.
MASKS = {
    f"{label}-{name}": (case, name)
    for label, case in ALL
    for name in case.inputs
    if name.endswith("_mask")
}


def test_every_exported_layer_has_cases():
    assert set(CASES) | set(NOT_INSTANTIATED) == set(layers.__all__)
    for name, cases in CASES.items():
        for case in cases.values():
            assert type(case.make()) is getattr(layers, name)


@every_case
def test_the_config_is_complete_and_recreates_the_layer(case):
    layer = case.make()
    config = layer.get_config()
    arguments = set(inspect.signature(type(layer).__init__).parameters)
    assert arguments - {"self", "kwargs"} <= set(config)
    json.dumps(config)
    assert type(layer).from_config(config).get_config() == config
    from_file = type(layer).from_config(json.loads(json.dumps(config)))
    assert from_file.get_config() == config


@pytest.mark.parametrize(
    "layer", [name for name in CASES if "activation" in _own_arguments(name)]
)
def test_an_activation_has_the_names_of_the_library_too(layer):
    made = next(iter(CASES[layer].values())).make()
    named = type(made).from_config({**made.get_config(), "activation": "gelu_tanh"})
    assert named.activation is gelu_tanh


@every_layer
def test_random_weights_are_independent_and_follow_the_seed(case):
    def drawn(seed):
        keras.utils.set_random_seed(seed)
        layer = case.make()
        layer(**tensors(case), **case.static)
        return {
            f"{index} {weight.name}": ops.convert_to_numpy(weight)
            for index, weight in enumerate(layer.weights)
        }

    one, again, other = drawn(1), drawn(1), drawn(2)
    assert_independent(one)
    assert_seed_decides(one, other)
    for name, values in one.items():
        np.testing.assert_array_equal(values, again[name])


def initializers_of(case):
    """The options of a case that are initializers; of Keras' own layers none."""
    layer = case.make()
    names = layer.get_config() if isinstance(layer, BaseLayer) else ()
    return [name for name in names if name.endswith("_initializer")]


# The first case of each layer, and all of those whose options decide what is shared.
INITIALIZED = {
    f"{name}-{kind}": case
    for name, cases in CASES.items()
    for kind, case in cases.items()
    if (name in ("TransformerDecoderBlock", "TransposedConv2D") or kind == [*cases][0])
    and initializers_of(case)
}


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("name", INITIALIZED)
def test_weights_of_one_initializer_object_are_independent(name, seed):
    """Such an object returns the same values at every call, for biases too.

    Without a seed, two layers that share it are independent as well.
    """
    case = INITIALIZED[name]
    initializer = keras.initializers.RandomNormal(seed=seed)
    options = dict.fromkeys(initializers_of(case), initializer)
    weights = {}
    for number in range(2 if seed is None else 1):
        made = case.make()
        layer = type(made).from_config({**made.get_config(), **options})
        layer(**tensors(case), **case.static)
        for index, weight in enumerate(layer.weights):
            weights[f"{number} {index} {weight.path}"] = ops.convert_to_numpy(weight)
    assert_independent(weights)


# Keras 3.15 turns TensorFlow's variables into NumPy arrays in a way NumPy 2 dislikes.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@every_layer
def test_saving_and_loading_keeps_outputs_and_paths(case, tmp_path):
    layer = case.make()
    model = functional(case, layer)
    randomize(layer)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(path, safe_mode=True)
    inputs = tensors(case)
    assert_close(loaded(inputs), model(inputs), atol=1e-6)
    assert [w.path for w in loaded.weights] == [w.path for w in model.weights]


@every_layer
@pytest.mark.parametrize(
    "known",
    [
        pytest.param(True, marks=pytest.mark.variation, id="known"),
        pytest.param(False, id="unknown"),
    ],
)
def test_symbolic_outputs_match_eager_ones(case, known, monkeypatch):
    monkeypatch.setattr(output_specs, "_cached_specs", {})
    # The second gets the cached specs of the first.
    first, second = case.make(), case.make()
    models = [functional(case, layer, known) for layer in (first, second)]
    assert inner_layers(second) == inner_layers(first)
    given = keras.tree.flatten(first(**tensors(case), **case.static))
    for model in models:
        promised = keras.tree.flatten(model.output)
        assert len(promised) == len(given)
        for symbol, tensor in zip(promised, given, strict=True):
            dtype = keras.backend.standardize_dtype(tensor.dtype)
            assert keras.backend.standardize_dtype(symbol.dtype) == dtype
            assert len(symbol.shape) == len(tensor.shape)
            for promise, size in zip(symbol.shape, tensor.shape, strict=True):
                # Only batch and lengths may be unknown; `LENGTHS` lists their sizes.
                if promise is None:
                    assert not known and size in LENGTHS
                else:
                    assert promise == size


def inner_layers(layer):
    """The sublayers: type, path, whether built, number of parameters."""
    # Keras numbers unnamed layers; a layer that was never built has no path.
    return [
        (
            type(part),
            re.sub(r"_\d+", "", part.path or ""),
            part.built,
            part.count_params(),
        )
        for part in layer._flatten_layers(include_self=False)
    ]


INDICES = {
    f"{label}-{name}": (case, name)
    for label, case in ALL
    for name in case.inputs
    # Sinusoids and the search for an end token have no table, `places` index a
    # sequence of any length, and unpooling drops a value whose index is no place of its
    # window.
    if is_ids(case, name)
    and name not in ("places", "indices", *NUMBERS)
    and not label.startswith(("Sinusoidal", "EndToken"))
}


@pytest.mark.parametrize("case, name", INDICES.values(), ids=INDICES)
def test_an_index_out_of_range_is_an_error(case, name):
    layer, inputs = built(case), tensors(case)
    low, high = index_ranges(functional(case, layer))[name]
    for wrong in (low - 1, high):
        changed = inputs[name].copy()
        changed.flat[-1] = wrong
        match = rf"`{name}` must be in \[{low}, {high}\), .*Received: {wrong} at index"
        with pytest.raises(ValueError, match=match):
            layer(**{**inputs, name: changed}, **case.static)


# Arguments that may be any number, or that Keras or another layer checks.
UNCHECKED_ARGUMENTS = {
    *("activation", "axis", "data_format", "epsilon", "groups", "layer_norm_epsilon"),
    *("momentum", "name", "power_iterations", "renorm_momentum", "seed"),
    *("initial_value", "max_wavelength"),
    *("canonical_size", "canonical_level", "anchor_sizes", "box_weights"),
    *("aspect_ratios", "positive_threshold", "negative_threshold", "match_threshold"),
    *("ImagePreprocessing.scale", "ImagePreprocessing.mean", "RegionProposal.strides"),
    *("ROIAlign.strides", "ROIPool.strides"),
    *("layer_scale", "initial_bias"),
    "LogMelSpectrogram.min_frequency",
}


@every_case
def test_a_wrong_argument_is_named(case):
    layer = case.make()
    config = layer.get_config() if isinstance(layer, BaseLayer) else {}
    wrong = {int: -1, float: -1, str: "none", list: [0], tuple: [0]}
    for name, value in config.items():
        paths = {name, f"{type(layer).__name__}.{name}"}
        if type(value) not in wrong or paths & UNCHECKED_ARGUMENTS:
            continue
        match = f"`{name}` must .*{name}="
        with pytest.raises((TypeError, ValueError), match=match) as raised:
            type(layer).from_config({**config, name: wrong[type(value)]})
        # Keras raises a `TypeError` from it.
        assert ValueError in (raised.type, type(raised.value.__context__)), name


# Inputs with any number of axes, and what Keras or a layer inside checks.
UNCHECKED_INPUTS = {
    *("AttentionObjective", "BatchNormalization", "CodeProjection", "Conv2D", "Dense"),
    *("ConditionalBatchNormalization", "Dropout", "Embedding", "FeedForward"),
    *("GumbelSoftmax", "LayerNormalization", "LayerScale", "Maxout", "OutputBias"),
    *("PerFrame", "Projection", "SpectralNormalization", "StandardizedConv2D"),
    *("StochasticDepth", "TextImageMask", "TokenEmbedding"),
    *("encoder_outputs", "encoder_padding_mask", "initial_state", "key"),
    *("positions", "TransformerEncoderBlock.attention_mask"),
}
# Inputs of which the last axis is checked too, with all masks.
CHECKED_TO_THE_END = {
    *("EndTokenPooling.token_ids", "GlobalRegion.boxes", "RandomPatchMasking.noise"),
    *("ROIAlign.boxes", "ROIPool.boxes", "SegmentMemory.memory", "SelectMasks.classes"),
    *("SelectDetections.deltas", "SelectDetections.proposals"),
}
# The first case of each input.
CHECKED_INPUTS = {
    f"{layer}-{name}": (case, name)
    for layer, cases in CASES.items()
    for case in [*cases.values()][::-1]
    for name, shape in case.inputs.items()
    if not isinstance(shape, list)
    and not {layer, name, f"{layer}.{name}"} & UNCHECKED_INPUTS
}


@pytest.mark.parametrize("case, name", CHECKED_INPUTS.values(), ids=CHECKED_INPUTS)
def test_an_input_of_another_shape_is_named(case, name):
    """In an eager call, and in a symbolic one, which builds the layer."""
    layer, inputs, symbolic = built(case), tensors(case), symbols(case, known=True)
    wrong = [inputs[name][0]]
    is_mask = name.endswith(("_mask", "_bias", "same_segment"))
    if is_mask or f"{type(layer).__name__}.{name}" in CHECKED_TO_THE_END:
        wrong.append(inputs[name][..., 1:])
    for value in wrong:
        symbol = keras.KerasTensor(value.shape, dtype=symbolic[name].dtype)
        with pytest.raises(ValueError, match=f"`{name}` must have"):
            layer(**{**inputs, name: value}, **case.static)
        with pytest.raises(ValueError, match=f"`{name}` must have"):
            case.make()(**{**symbolic, name: symbol}, **case.static)


RATES = {
    f"{name}-{option}": ([*cases.values()][0], option)
    for name, cases in CASES.items()
    for option in _own_arguments(name)
    if option.endswith("dropout") or option in ("rate", "stochastic_depth")
}


@pytest.mark.parametrize("case, option", RATES.values(), ids=RATES)
def test_units_are_dropped_in_training_only(case, option):
    made = case.make()
    rates = {name: 0.0 for _, name in RATES.values() if name in made.get_config()}
    options = {**made.get_config(), **rates, option: 0.5, "seed": 3}
    layer, call = type(made).from_config(options), {**tensors(case), **case.static}
    layer(**call)
    randomize(layer)
    expected = flat(layer(**call))
    assert_close(layer(**call, training=False), expected, atol=0)
    found = flat(layer(**call, training=True))
    assert max(np.abs(x - y).max() for x, y in zip(found, expected, strict=True)) > 0.01


# TensorFlow has no gradient through a cache write, and training uses no cache.
@of_each_layer([(name, case) for name, case in ALL if "cache" not in case.inputs])
def test_every_weight_gets_a_gradient(case):
    layer = built(case)
    found = gradients(layer, **tensors(case), **case.static)
    assert len(found) == len(layer.trainable_variables)
    for path, gradient in found.items():
        assert gradient is not None, path
        assert np.isfinite(gradient).all(), path
        # A key bias shifts all scores of a query equally: the softmax cancels it.
        is_canceled = path.endswith(("key_bias", "/key/bias"))
        assert np.abs(gradient).max() > 0 or is_canceled, path


@pytest.mark.compiled
@of_each_layer(ALL, variations=OTHERS)
def test_compiled_outputs_match_eager_ones(case):
    layer = case.make()
    model = functional(case, layer)
    randomize(layer)
    inputs = tensors(case)
    cases = [
        (given, model(given), tolerance)
        for given, tolerance in (
            (inputs, 2e-5),
            (far_from_zero(case, inputs), 1e-3),
            (far_from_zero(case, inputs, deviation=0.0), 1e-3),
        )
    ]
    for jit_compile in (False, True):
        model.compile(jit_compile=jit_compile)
        for given, expected, tolerance in cases[: 1 if case.ranks else None]:
            # `predict` would spend most of the time on creating a dataset.
            assert_close(model.predict_on_batch(given), expected, atol=tolerance)


@every_layer
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param("mixed_bfloat16", id="bf16"),
        pytest.param("mixed_float16", id="f16", marks=pytest.mark.variation),
    ],
)
def test_half_precision(case, policy, set_policy):
    set_policy(policy)
    layer = built(case)
    assert {str(w.dtype) for w in layer.trainable_variables} <= {"float32"}
    outputs = layer(**tensors(case), **case.static)
    for output in keras.tree.flatten(outputs):
        assert np.isfinite(ops.convert_to_numpy(ops.cast(output, "float32"))).all()
        # The last axis of scores is a length, that of other outputs a width.
        scores = "return_attention_scores" in case.static and (
            output.shape[-1] in (T, S, KNOWN, CACHE)
        )
        # As many as there are ids: the logits of a layer that predicts them.
        logits = output.shape[-1] == case.ids_below
        full = scores or logits or case.stays_float32
        if not keras.backend.is_float_dtype(output.dtype):
            continue  # Ids and masks.
        expected = "float32" if full else policy.removeprefix("mixed_")
        dtype = keras.backend.standardize_dtype(output.dtype)
        assert dtype == expected, f"of an output of shape {tuple(output.shape)}"
    set_policy("float32")
    full = built(case)
    for one, other in zip(
        full.non_trainable_variables, layer.non_trainable_variables, strict=True
    ):
        one.assign(other)
    expected = full(**tensors(case), **case.static)
    if case.ranks:
        # Rounding changes the order.
        names = set(outputs) & {"objectness", "deltas"}
        outputs, expected = ({n: x[n] for n in names} for x in (outputs, expected))
    assert_close(outputs, expected, atol=0.15)


@pytest.mark.compiled
# Caches are for inference only.
@of_each_layer(
    [(name, case) for name, case in ALL if "cache" not in case.inputs],
    variations=OTHERS,
)
def test_rematerialized_gradients_are_the_same(case):
    """`keras.RematScope` keeps the dropout, masks and state of the forward pass."""
    with keras.RematScope("full"):
        again = built(case)
        functional(case, again)
    layer = built(case)
    for one, other in zip(
        layer.non_trainable_variables, again.non_trainable_variables, strict=True
    ):
        one.assign(other)
    call = {**tensors(case), **case.static}
    if "training" in inspect.signature(layer.call).parameters:
        call["training"] = True
    found, expected = gradients(again, **call), gradients(layer, **call)
    for gradient, wanted in zip(found.values(), expected.values(), strict=True):
        np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-4)
    # State that a call updates, such as a seed, is updated once.
    assert_close(again.non_trainable_variables, layer.non_trainable_variables)


@padded_cases
def test_masked_positions_have_no_influence(case):
    layer = built(case)
    inputs = tensors(case)
    ((mask, hidden),) = case.padding.items()
    length = case.inputs[mask][-1]
    other = dict(inputs)
    for name in hidden:
        other[name] = inputs[name].copy()
        other[name][:, REAL:] = 50 * np.random.default_rng(3).normal(
            size=other[name][:, REAL:].shape
        )

    def real(outputs):
        """Outputs without padding; an axis of the size `length` is padded."""
        return [
            output[tuple(slice(REAL if n == length else n) for n in output.shape)]
            for output in flat(outputs)
        ]

    before = layer(**inputs, **case.static)
    after = layer(**other, **case.static)
    assert_close(real(after), real(before), atol=1e-6)
    if case.causal_over in hidden:
        return  # Padding comes last and is not attended to without a mask either.
    # Without the mask they have.
    del inputs[mask], other[mask]
    before = real(layer(**inputs, **case.static))
    after = real(layer(**other, **case.static))
    assert max(np.abs(a - b).max() for a, b in zip(before, after, strict=True)) > 1e-3


@pytest.mark.parametrize("case, name", MASKS.values(), ids=MASKS)
def test_integer_and_float_masks_work_like_boolean_ones(case, name):
    layer = built(case)
    inputs = tensors(case)
    expected = layer(**inputs, **case.static)
    for dtype in ("int32", "float32"):
        inputs[name] = inputs[name].astype(dtype)
        assert_close(layer(**inputs, **case.static), expected, atol=0)


class _WithMask(keras.layers.Layer):
    """Returns its inputs with a Keras mask, as `Embedding(mask_zero=True)` does."""

    def __init__(self, mask):
        super().__init__()
        self._mask = ops.convert_to_tensor(mask)

    def call(self, inputs):
        return inputs

    def compute_mask(self, inputs, previous_mask=None):
        return self._mask


@pytest.mark.parametrize("case, name", MASKS.values(), ids=MASKS)
def test_a_mask_to_add_is_refused(case, name):
    """Of 0 where to attend and -1e9 elsewhere, which as a boolean is the opposite."""
    inputs = tensors(case)
    added = np.where(inputs[name], 0, -1e9).astype("float32")
    match = "mask` must be True or 1 where .*value -1000000000"
    with pytest.raises(ValueError, match=match):
        case.make()(**{**inputs, name: added}, **case.static)


@padded_cases
def test_a_keras_mask_works_like_a_padding_mask(case):
    layer = built(case)
    inputs = tensors(case)
    ((mask, hidden),) = case.padding.items()
    length = case.inputs[mask][-1]
    expected = flat(layer(**inputs, **case.static))
    add_mask = _WithMask(inputs.pop(mask))
    for name in hidden:
        inputs[name] = add_mask(inputs[name])
    for found, wanted in zip(
        flat(layer(**inputs, **case.static)), expected, strict=True
    ):
        # A window is counted in real tokens, so what padding attends to may differ.
        real = tuple(slice(REAL if n == length else n) for n in wanted.shape)
        np.testing.assert_allclose(found[real], wanted[real], rtol=0, atol=1e-6)


@padded_cases
def test_full_masks_give_finite_outputs_and_gradients(case):
    layer = built(case)
    inputs = tensors(case)
    ((mask, _),) = case.padding.items()
    inputs[mask][0] = False
    for output in flat(layer(**inputs, **case.static)):
        assert np.isfinite(output).all()
        if output.ndim == 4:  # The scores.
            length = case.inputs[mask][-1]
            if output.shape[-1] == length:
                assert not output[0].any()
                assert output[1].any()
    for path, gradient in gradients(layer, **inputs, **case.static).items():
        assert np.isfinite(gradient).all(), path


@causal_cases
def test_later_positions_have_no_influence(case):
    layer = built(case)
    inputs = tensors(case)
    name, now = case.causal_over, 2
    other = dict(inputs, **{name: inputs[name].copy()})
    other[name][:, now] = -other[name][:, now]

    def outputs(inputs):
        result = layer(**inputs, **case.static)
        if isinstance(result, dict):
            return result["states"]
        return result[0] if isinstance(result, tuple) else result

    difference = np.abs(np.subtract(*flat([outputs(inputs), outputs(other)])))
    assert difference[:, :now].max() < 1e-6
    assert (difference[:, now:].max(axis=(0, 2)) > 1e-3).all()
