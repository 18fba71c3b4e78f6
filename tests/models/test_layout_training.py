"""Training under `models.layout_map`, on meshes of four devices and on one device.

XLA makes four devices of one processor if this is in the environment before JAX starts:

    XLA_FLAGS=--xla_force_host_platform_device_count=4
"""

import functools
import warnings
from typing import Any

import keras
import numpy as np
import pytest
from model_cases import (
    GRAPHS,
    ONE_OF_EACH,
    TINY,
    build,
    given,
    has_own_loss,
    inputs_for,
    numpy,
    randomize,
    truth_for,
)
from model_contract import remove_noise

from keras_attn import models, training
from keras_attn.decoding import generate
from keras_attn.models.parts.keras_state import allocate, undone, without_allocating
from keras_attn.models.plans.splits import find_groups

if keras.backend.backend() != "jax":
    pytest.skip("`keras.distribution` has no effect here", allow_module_level=True)
if keras.distribution.get_device_count() < 4:
    pytest.skip("XLA_FLAGS asks for fewer than four devices", allow_module_level=True)

VARIATION = pytest.mark.variation
ROWS, STEPS = 4, 3
MESHES = {"1x4": (1, 4), "2x2": (2, 2), "4x1": (4, 1)}
# Grouped by what a name ends with; everything else keeps its size.
_DIMS = ("_dim", "_dims", "_size", "_classes", "_answers")
_KEPT = ("image_size", "patch_size", "window_size", "grid_size", "attention_size")
_KEPT += ("kernel_sizes", "anchor_sizes", "fully_connected_size")


def divisible(name, size):
    """A size of a tiny model that four devices can share."""
    if isinstance(size, tuple):
        return tuple(divisible(name, each) for each in size)
    if name.endswith("num_heads") or name.endswith("_heads"):
        return 4
    if name.endswith(_DIMS) and name not in _KEPT:
        return 8 * -(-size // 8)
    return size


def sizes_of(case) -> dict[str, Any]:
    """Arguments of a tiny model that four devices can share."""
    tiny = {name: divisible(name, size) for name, size in TINY[case].items()}
    smaller = GRAPHS[case].smaller or {"num_layers": 1}
    return tiny | {k: v for k, v in smaller.items() if "layers" in k and k in tiny}


def distribution(case, shape):
    """The distribution of a case on a mesh."""
    mesh = keras.distribution.DeviceMesh(shape, ["batch", "model"])
    with warnings.catch_warnings():
        # Tiny products whose sizes follow from an image or from three channels.
        warnings.filterwarnings("ignore", "On a mesh whose axis|No weight of this")
        layout = models.layout_map(case, mesh, **sizes_of(case))
    return keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")


def new_model(case):
    """A model with the same random weights at each call, and no noise."""
    with undone():
        with without_allocating():
            model = build(case, **sizes_of(case))
        for weight in model.weights:
            # JAX would compile the initializer of each shape.
            weight._initializer = lambda shape, dtype: np.zeros(shape, dtype)
        allocate()
    remove_noise(model)
    return randomize(model, scale=0.3)


def labels_for(model, inputs):
    """Labels for each output, or what the model's own loss needs."""
    if has_own_loss(model):
        return truth_for(model, batch=ROWS)
    import jax

    outputs, _ = jax.eval_shape(
        lambda *weights: model.stateless_call(*weights, given(model, inputs)),
        [variable.value for variable in model.trainable_variables],
        [variable.value for variable in model.non_trainable_variables],
    )
    rng = np.random.default_rng(3)
    return jax.tree.map(
        lambda x: None if x.dtype == bool else rng.normal(size=x.shape).astype("f4"),
        outputs,
    )


def trained(model):
    """The losses of three steps, and all weights afterwards."""
    inputs = inputs_for(model, batch=ROWS)
    labels = labels_for(model, inputs)
    model.compile(
        keras.optimizers.SGD(0.01),
        loss=None
        if has_own_loss(model)
        else keras.tree.map_structure(lambda x: None if x is None else "mse", labels),
    )
    losses = [model.train_on_batch(given(model, inputs), labels) for _ in range(STEPS)]
    return losses, {weight.path: numpy(weight) for weight in model.weights}


@functools.lru_cache(maxsize=2)
def on_one_device(case):
    """What `trained` returns without a distribution."""
    return trained(new_model(case))


# Speech: everything is inside recurrent loops.
WHOLE = ("listen_attend_spell",)


def check_parts(model, parallel, devices):
    """A device holds its part of what the map divides, also after training."""
    divided = set()
    for weight in model.weights:
        layout = parallel.get_variable_layout(weight)
        if "model" in layout.axes:
            divided.add(weight.path)
        parts = devices if "model" in layout.axes else 1
        for shard in weight.value.addressable_shards:
            assert shard.data.size * parts == np.prod(weight.shape), weight.path
    kernels = [
        weight
        for layer, groups in find_groups(model)
        for weight in layer._trainable_variables
        if groups and len(weight.shape) > 1
    ]
    if model.name not in WHOLE:
        largest = max(kernels, key=lambda weight: np.prod(weight.shape))
        assert largest.path in divided


def _close(found, expected):
    losses, weights = found
    np.testing.assert_allclose(losses, expected[0], rtol=1e-5)
    assert losses[0] != losses[-1]
    assert set(weights) == set(expected[1])
    for path, value in weights.items():
        np.testing.assert_allclose(
            value, expected[1][path], rtol=1e-5, atol=1e-5, err_msg=path
        )


# Fused heads in both divisions, windows, relative heads, convolutions with batch norms,
# a recurrent loop. A case takes three seconds, one of the others up to half a minute.
FEW = {
    "gpt_117m": ("1x4", "2x2"),
    "swin_tiny": ("1x4",),
    "xlnet_base": ("4x1",),
    "resnet18": ("2x2",),
    "rnnsearch_50": ("2x2",),
}


@pytest.mark.compiled
@pytest.mark.parametrize(
    "case, mesh",
    [
        pytest.param(
            case,
            mesh,
            marks=[] if mesh in FEW.get(case, ()) else VARIATION,
        )
        for case in ONE_OF_EACH
        for mesh in MESHES
    ],
)
def test_four_devices_train_like_one(case, mesh):
    shape, expected = MESHES[mesh], on_one_device(case)
    parallel = distribution(case, shape)
    with parallel.scope():
        model = new_model(case)
        found = trained(model)
    _close(found, expected)
    check_parts(model, parallel, shape[1])


GPT: dict[str, Any] = {
    "vocabulary_size": 32,
    "num_layers": 1,
    "hidden_dim": 32,
    "num_heads": 4,
}
GPT |= {"mlp_dim": 64, "max_sequence_length": 16, "dropout": 0.0}


def generated_updated_quantized():
    """Tokens, losses of LoRA weights, and the logits of integers, of one GPT."""

    def new_gpt():
        keras.utils.set_random_seed(1)
        return models.create("gpt2_small", **GPT)

    tokens = np.random.default_rng(0).integers(1, 32, (ROWS, 7)).astype("int32")
    prompt = {"token_ids": tokens[:, :-1]}
    texts = {**prompt, "padding_mask": np.ones_like(tokens[:, :-1])}
    written = generate(new_gpt(), prompt, 6)
    model = new_gpt()
    training.enable_lora(model, 4)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = [model.train_on_batch(texts, tokens[:, 1:]) for _ in range(STEPS)]
    model = new_gpt()
    model.quantize("int8")
    return numpy(written.token_ids), losses, model.predict(texts, verbose=0)


@pytest.mark.compiled
@pytest.mark.parametrize(
    "mesh", [x if x == "1x4" else pytest.param(x, marks=VARIATION) for x in MESHES]
)
def test_four_devices_generate_update_and_quantize_like_one(mesh):
    expected = generated_updated_quantized()
    layout = models.layout_map(
        "gpt2_small",
        keras.distribution.DeviceMesh(MESHES[mesh], ["batch", "model"]),
        **GPT,
    )
    parallel = keras.distribution.ModelParallel(
        layout_map=layout, batch_dim_name="batch"
    )
    with parallel.scope():
        tokens, losses, logits = generated_updated_quantized()
    np.testing.assert_array_equal(tokens, expected[0])
    np.testing.assert_allclose(losses, expected[1], rtol=1e-5)
    assert losses[0] != losses[-1]
    np.testing.assert_allclose(logits, expected[2], atol=1e-5)
