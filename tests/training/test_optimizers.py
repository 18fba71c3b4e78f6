"""The fused AdamW against Keras' own."""

import functools

import keras
import numpy as np
import pytest
from model_cases import create, tiny

from keras_attn.training import AdamW, layerwise_rates

pytestmark = pytest.mark.compiled

ROWS = np.random.default_rng(0).integers(0, 11, (40, 5))
LABELS = ROWS.sum(axis=1) % 3


def fitted(optimizer, epochs=2, **options):
    """Weights of a small classifier after training from the same initial weights."""
    keras.utils.set_random_seed(1)
    table = keras.ops.eye(11)
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Lambda(lambda ids: keras.ops.take(table, ids, axis=0)),
            keras.layers.Flatten(),
            keras.layers.Dense(7, "relu"),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **options)
    model.fit(ROWS, LABELS, 8, epochs=epochs, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.fixture(scope="module")
def initial():
    """The weights that `fitted` starts from."""
    return fitted(AdamW(0.0), epochs=1, run_eagerly=True)


@functools.cache
def expected_weights(**options):
    """The weights that Keras' AdamW ends with."""
    return fitted(keras.optimizers.AdamW(schedule(), **options), run_eagerly=True)


def schedule():
    return keras.optimizers.schedules.ExponentialDecay(1e-2, 3, 0.7)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.3, "beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-3},
        {"global_clipnorm": 0.1},
        {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 4},
        {"gradient_accumulation_steps": 2},
        {"amsgrad": True},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_it_equals_keras_adamw(options, initial):
    found = fitted(AdamW(schedule(), **options), run_eagerly=True)
    expected = expected_weights(**options)
    for one, other, before in zip(found, expected, initial, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)
        assert np.abs(one - before).max() > 1e-2


@pytest.mark.parametrize("jit_compile", [False, True])
def test_compiled_it_equals_keras_adamw(jit_compile):
    options = {"global_clipnorm": 0.1, "use_ema": True, "ema_overwrite_frequency": 4}
    found = fitted(AdamW(schedule(), **options), jit_compile=jit_compile)
    for one, other in zip(found, expected_weights(**options), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)


def test_excluded_weights_do_not_decay():
    def optimizer(cls):
        made = cls(schedule(), weight_decay=0.3)
        made.exclude_from_weight_decay(var_names=["bias"])
        return made

    expected = fitted(optimizer(keras.optimizers.AdamW), run_eagerly=True)
    found = fitted(optimizer(AdamW), run_eagerly=True)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="only TensorFlow has IndexedSlices"
)
@pytest.mark.parametrize("kind", ["plain", "amsgrad", "strategy"])
def test_gradients_of_repeated_rows_are_summed_before_squaring(kind):
    """Also where it is Keras' own, which squares each: a device would learn another."""
    import tensorflow as tf

    options = {"amsgrad": kind == "amsgrad"}
    strategy = tf.distribute.get_strategy()
    if kind == "strategy":
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    values = np.random.default_rng(0).normal(size=(3, 2)).astype("float32")
    values, rows, shape = map(tf.constant, (values, [0, 1, 1], [4, 2]))
    slices = tf.IndexedSlices(values, rows, dense_shape=shape)
    found = []
    for cls, gradient in (
        (AdamW, slices),
        (keras.optimizers.AdamW, tf.convert_to_tensor(slices)),
    ):
        with strategy.scope():
            variable = keras.Variable(np.ones((4, 2), "float32"))
            optimizer = cls(1e-2, **options)
            optimizer.build([variable])
        for _ in range(3):
            strategy.run(optimizer.apply, ([gradient], [variable]))
        found.append(np.asarray(variable))
    np.testing.assert_allclose(*found, rtol=0, atol=1e-6)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="strategies are TensorFlow's"
)
def test_in_a_distribution_strategy_it_is_keras_own():
    import tensorflow as tf

    expected = fitted(keras.optimizers.AdamW(schedule()))
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        found = fitted(AdamW(schedule()))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)


def test_it_is_saved_under_its_name():
    optimizer = AdamW(1e-2, weight_decay=0.3, beta_2=0.9)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is AdamW
    assert again.get_config() == optimizer.get_config()


def test_rates_decrease_towards_the_first_layer():
    model = tiny("vit_base_patch16")
    found = {}
    for path, factor in layerwise_rates(model, 0.5).items():
        found.setdefault(path.split("/")[0], set()).add(factor)
    assert found == {
        **dict.fromkeys(("patch_embedding", "class_token"), {0.125}),
        "position_embedding": {0.125},
        "block_0": {0.25},
        "block_1": {0.5},
        **dict.fromkeys(("final_norm", "classifier"), {1.0}),
    }


@pytest.mark.parametrize("name, blocks", [("swin_tiny", 4), ("convnext_tiny", 3)])
def test_blocks_of_stages_are_counted_individually(name, blocks):
    model = tiny(name)
    rates = layerwise_rates(model, 0.5)
    assert set(rates) == {weight.path for weight in model.weights}
    assert set(rates.values()) == {0.5**power for power in range(blocks + 2)}
    parts = {path.split("/")[0]: rate for path, rate in rates.items()}
    assert parts["classifier"] == 1 and parts["patch_embedding"] == 0.5 ** (blocks + 1)


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_each_weight_has_its_own_rate(weight_decay):
    model = create("vit_base_patch16")
    rates = layerwise_rates(model, 0.5)
    optimizer = AdamW(1e-2, weight_decay=weight_decay, rate_factors=rates)
    variables = model.trainable_variables
    before = [keras.ops.convert_to_numpy(v) for v in variables]
    optimizer.apply([keras.ops.ones_like(v) for v in variables], variables)
    for variable, was in zip(variables, before, strict=True):
        rate = 1e-2 * rates[variable.path]
        expected = was * (1 - rate * weight_decay) - rate
        np.testing.assert_allclose(variable, expected, rtol=0, atol=1e-5)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert again.rate_factors == rates


def test_invalid_arguments_are_refused():
    for decay in (0.0, 1.5):
        with pytest.raises(ValueError, match=f"`decay` must be .*decay={decay}"):
            layerwise_rates(tiny("vit_base_patch16"), decay)
    with pytest.raises(ValueError, match="layers named block_0.*cnn_self_attention"):
        layerwise_rates(tiny("cnn_self_attention"), 0.5)
