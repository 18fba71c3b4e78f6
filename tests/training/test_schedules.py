import keras
import numpy as np
import pytest

from keras_attn.training.schedules import (
    CosineWarmup,
    InverseSquareRootSchedule,
    LinearWarmup,
)


def rates(schedule, steps):
    return np.array([float(schedule(step)) for step in steps])


def test_inverse_square_root_equals_the_paper():
    schedule = InverseSquareRootSchedule(13, hidden_dim=512)
    updates = np.arange(1, 60)
    expected = 512**-0.5 * np.minimum(updates**-0.5, updates * 13**-1.5)
    np.testing.assert_allclose(rates(schedule, updates - 1), expected, rtol=2e-6)
    assert np.argmax(expected) == 12  # The peak is update 13.


def test_a_given_peak():
    schedule = InverseSquareRootSchedule(5, peak=0.3)
    expected = 0.3 * np.array([0.2, 0.4, 0.6, 0.8, 1, (5 / 6) ** 0.5, (5 / 7) ** 0.5])
    np.testing.assert_allclose(rates(schedule, range(7)), expected, rtol=1e-6)


def test_linear():
    schedule = LinearWarmup(0.4, 4, 9, end=0.1)
    expected = [0.1, 0.2, 0.3, 0.4, 0.4, 0.34, 0.28, 0.22, 0.16, 0.1, 0.1, 0.1]
    np.testing.assert_allclose(rates(schedule, range(12)), expected, rtol=1e-6)


def test_cosine():
    schedule = CosineWarmup(0.4, 2, 8, end=0.2)
    half = 0.5 * (1 + np.cos(np.pi * np.arange(7) / 6))
    expected = [0.2, 0.4, *(0.2 + 0.2 * half), 0.2]
    np.testing.assert_allclose(rates(schedule, range(10)), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", [LinearWarmup, CosineWarmup])
def test_without_warm_up_the_peak_is_first(kind):
    schedule = kind(0.5, 0, 7)
    np.testing.assert_allclose(rates(schedule, [0, 7]), [0.5, 0], atol=1e-9)
    assert 0 < float(schedule(6)) < float(schedule(5)) < 0.5


ALL = [
    InverseSquareRootSchedule(7, hidden_dim=11),
    InverseSquareRootSchedule(7, peak=0.25),
    LinearWarmup(0.25, 3, 11, end=0.125),
    CosineWarmup(0.25, 0, 11),
]


@pytest.mark.parametrize("schedule", ALL)
def test_schedules_are_serialised(schedule):
    config = keras.optimizers.schedules.serialize(schedule)
    again = keras.optimizers.schedules.deserialize(config)
    assert type(again) is type(schedule)
    assert again.get_config() == schedule.get_config()
    np.testing.assert_array_equal(rates(again, range(13)), rates(schedule, range(13)))


@pytest.mark.parametrize("schedule", ALL)
def test_a_compiled_optimizer_follows_the_schedule(schedule):
    # SGD on a loss with gradient 1: each update equals its rate.
    inputs = keras.Input((1,))
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Model(inputs, layer(inputs))
    model.compile(
        keras.optimizers.SGD(schedule),
        lambda y_true, y_pred: keras.ops.mean(y_pred),
        jit_compile=True,
    )
    model.fit(np.ones((5, 1)), np.ones((5, 1)), batch_size=1, verbose=0)
    moved = -float(layer.kernel[0, 0])
    assert moved == pytest.approx(rates(schedule, range(5)).sum(), rel=1e-5)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: InverseSquareRootSchedule(0, peak=1.0), "`warmup_steps` must be a p"),
        (lambda: InverseSquareRootSchedule(3), "`hidden_dim` and `peak`.*None.*None"),
        (lambda: InverseSquareRootSchedule(3, hidden_dim=5, peak=1.0), "Exactly one"),
        (lambda: InverseSquareRootSchedule(3, hidden_dim=0.5), "`hidden_dim` must be"),
        (
            lambda: InverseSquareRootSchedule(3, peak=0.0),
            "`peak` must be a number above 0",
        ),
        (lambda: LinearWarmup(-1.0, 2, 5), "`peak` must be a number.*peak=-1.0"),
        (lambda: LinearWarmup(1.0, -2, 5), "`warmup_steps` must be a positive"),
        (lambda: LinearWarmup(1.0, 2, 5.5), "`total_steps` must be a positive"),
        (lambda: CosineWarmup(1.0, 5, 5), "`total_steps` must be more.*steps=5"),
        (lambda: CosineWarmup(1.0, 2, 5, end=-0.5), "`end` must be a number"),
    ],
)
def test_invalid_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
