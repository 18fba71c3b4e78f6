"""ResNet beyond the contract: norms in training, dilation, frozen parts, sizes."""

from typing import Any

import keras
import numpy as np
import pytest
from layer_contract import normal as sample
from model_cases import numpy, randomize
from model_family import C

from keras_attn import models

TINY = {"stem_dim": 3, "num_blocks": (1, 2, 1), "num_classes": C}


def build(**options):
    arguments: dict[str, Any] = {"image_size": (19, 29), **TINY, **options}
    return models.build_resnet(**arguments)


def fit(model, images, **options):
    """One step towards random labels."""
    labels = np.arange(len(images)) % C
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss=loss, **options)
    return model.fit(images, labels, batch_size=len(images), verbose=0)


def weights_by_path(model):
    return {weight.path: numpy(weight) for weight in model.weights}


@pytest.mark.compiled
@pytest.mark.parametrize(
    "dtype_policy, jit_compile",
    [("float32", False), ("mixed_bfloat16", True)],
    indirect=["dtype_policy"],
)
def test_a_fit_moves_the_means_and_variances_towards_those_of_the_batch(
    dtype_policy, jit_compile
):
    model = randomize(build(num_blocks=(1,)))
    images = sample(5, 19, 29, 3)
    old = weights_by_path(model)
    stem = keras.Model(model.input, model.get_layer("stem_conv").output)
    values = numpy(stem(images)).astype("float32")
    assert np.isfinite(fit(model, images, jit_compile=jit_compile).history["loss"][0])
    new = weights_by_path(model)
    # XLA doesn't round the values in between.
    tolerance = 1e-5 if dtype_policy == "float32" else 1e-3
    for name, moments in (
        ("stem_norm/moving_mean", values.mean((0, 1, 2))),
        ("stem_norm/moving_variance", values.var((0, 1, 2))),
    ):
        expected = 0.9 * old[name] + 0.1 * moments
        np.testing.assert_allclose(new[name], expected, rtol=0, atol=tolerance)
        assert new[name].dtype == np.float32
    moved = {name for name, value in new.items() if np.any(value != old[name])}
    assert moved == set(new)


def test_frozen_norms_use_their_means_and_variances_in_training():
    model = randomize(build(frozen_norms=True))
    trained = {weight.path for weight in model.trainable_weights}
    assert trained == {name for name in weights_by_path(model) if "norm" not in name}
    images = sample(5, 19, 29, 3)
    # Equal up to rounding: gradients and inference have a kernel each.
    np.testing.assert_allclose(
        model(images, training=True), model(images, training=False), atol=1e-5
    )
    old = weights_by_path(model)
    fit(model, images)
    moved = {
        n for n, value in weights_by_path(model).items() if np.any(value != old[n])
    }
    assert moved == trained
    # Saved with the model.
    twin = keras.Model.from_config(model.get_config())
    assert {weight.path for weight in twin.trainable_weights} == trained


@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_the_first_parts_can_be_frozen(count):
    model = build(num_frozen=count)
    parts = ["stem_", "stage_0_", "stage_1_", "stage_2_"]
    frozen = tuple(parts[:count])
    for layer in model.layers:
        if layer.weights:
            is_frozen = bool(frozen) and layer.name.startswith(frozen)
            assert bool(layer.trainable_weights) != is_frozen, layer.name


@pytest.mark.parametrize("size", [(19, 29), (32, 64), (33, 1)])
def test_every_second_place_of_a_dilated_map_is_the_map_of_the_stage(size):
    """A kernel with gaps sees at these places what it sees in the smaller map."""
    options = {"image_size": size, "include_top": False}
    model = randomize(build(**options))
    once = build(**options, dilated_stages=(2,))
    twice = build(**options, dilated_stages=(1, 2))
    images = sample(2, *size, 3)
    expected = numpy(model(images))
    for dilated, steps in ((once, (1, 1, 2)), (twice, (1, 2, 4))):
        dilated.set_weights(model.get_weights())
        maps = numpy(dilated(images))
        for stage, step in enumerate(steps):
            name = f"stage_{stage}"
            np.testing.assert_allclose(
                maps[name][:, ::step, ::step], expected[name], rtol=0, atol=1e-5
            )
        rows, columns = maps["stage_0"].shape[1:3]
        step = 4 // steps[-1]
        assert maps["stage_2"].shape[1:3] == (-(-rows // step), -(-columns // step))


@pytest.mark.parametrize("block, last", [("bottleneck", 2), ("basic", 1)])
def test_blocks_start_as_their_shortcuts_or_nearly_so(block, last):
    for options, value in (({}, 0.0), ({"frozen_norms": True}, 0.1)):
        model = build(block=block, **options)
        for layer in model.layers:
            if isinstance(layer, keras.layers.BatchNormalization):
                expected = value if layer.name.endswith(f"_norm_{last}") else 1.0
                np.testing.assert_allclose(layer.gamma, expected)
