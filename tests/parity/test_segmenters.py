"""Segmenters and their layers against PyTorch, in committed files."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn import models
from keras_attn.layers import TransposedConv2D
from keras_attn.ops import max_pool_with_indices, max_unpool

FILES = "pooling_valid_2 pooling_same_2 pooling_valid_3 transposed segnet deconvnet "
FILES = (FILES + "unet_valid unet_same fcn_32s fcn_16s fcn_8s smp_even smp_odd").split()
CLASSES = 5
WIDTHS = {"hidden_dims": (3, 4), "num_convs": (2, 1), "num_classes": CLASSES}
FCN = {
    "hidden_dims": (3, 4, 5, 4, 5),
    "num_convs": (1,) * 5,
    "fully_connected_dims": (6, 5),
}
UNET = {"hidden_dims": (3, 4, 5), "num_channels": 3, "num_classes": CLASSES}


def build(name) -> Any:
    """Our model of a case."""
    if name == "segnet":
        return models.build_segnet(**WIDTHS)
    if name == "deconvnet":
        options = {"fully_connected_dims": (7, 6), "fully_connected_size": 2}
        return models.create("deconvnet_vgg16", image_size=None, **options, **WIDTHS)
    if name.startswith("fcn"):
        variant = name.removeprefix("fcn_")
        classes = 1 if variant == "32s" else 2
        return models.build_fcn_vgg(variant, **FCN, num_classes=classes)
    if name.startswith("unet"):
        return models.build_unet(padding=name.removeprefix("unet_"), **UNET)
    images = hidden = keras.Input((None, None, 3))
    if name == "transposed":
        sizes: Any = {"padding": (1, 0), "output_padding": (1, 2), "strides": (2, 3)}
        layer = TransposedConv2D(5, (4, 5), name=name, **sizes)
        return keras.Model(images, layer(images))
    for stage, width in enumerate((4, 5, 6)):
        hidden = keras.layers.ZeroPadding2D(1)(hidden)
        hidden = keras.layers.Conv2D(
            width, 3, 2, activation="relu", name=f"stage_{stage}"
        )(hidden)
    backbone = keras.Model(images, hidden)
    return models.build_unet(
        backbone=backbone, decoder_dims=(6, 4, 3), num_classes=CLASSES
    )


def set_weights(model, arrays):
    """Gives our layers PyTorch's weights, of which none may be left over."""
    left = {key for key in arrays if not key.startswith(("input_", "output_"))}
    for layer in model.layers:
        for weight in layer.weights:
            key = {
                "kernel": "weight",
                "gamma": "weight",
                "beta": "bias",
                "moving_mean": "running_mean",
                "moving_variance": "running_var",
            }.get(weight.name, weight.name)
            key = f"{layer.name}.{key}"
            left.remove(key)
            # (O, I, h, w) to (h, w, I, O); transposed (I, O, h, w) to (h, w, O, I).
            axes = (2, 3, 1, 0) if arrays[key].ndim == 4 else (0,)
            weight.assign(arrays[key].transpose(axes).astype("float32"))
    assert not left


def pooling(name, arrays):
    """What our functions give for a case of pooling."""
    import tensorflow as tf

    _, padding, window = name.split("_")
    window = int(window)
    images = tf.constant(arrays["input_images"])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(images)
        values, indices = max_pool_with_indices(images, window, padding)
        others = tf.cos(tf.stop_gradient(values))
        tape.watch(others)
        size = images.shape[1:3]
        restored = max_unpool(others, indices, size, window, padding)
        restoring = tf.reduce_sum(restored * arrays["input_factors"])
        pooled = tf.reduce_sum(values * tf.stop_gradient(others))
    row, column = np.indices(values.shape)[1:3] * window
    places = np.asarray(indices)
    row, column = row + places // window, column + places % window
    return {
        "values": values,
        "indices": row * size[1] + column,
        "restored": restored,
        "images_gradient": tape.gradient(pooled, images),
        "values_gradient": tape.gradient(restoring, others),
    }


def check(name, arrays):
    """Compares ours with the outputs of a case."""
    if name.startswith("pooling"):
        found, tolerance = pooling(name, arrays), 1e-6
    else:
        model = build(name)
        set_weights(model, arrays)
        found, tolerance = {"logits": model(arrays["input_images"])}, 1e-5
    assert {f"output_{key}" for key in found} == {
        key for key in arrays if key.startswith("output_")
    }
    for key, tensor in found.items():
        np.testing.assert_allclose(
            ops.convert_to_numpy(tensor),
            arrays[f"output_{key}"],
            rtol=tolerance,
            atol=tolerance,
            err_msg=f"{name} {key}",
        )


@pytest.mark.parametrize("name", FILES)
def test_agrees_with_pytorch(name):
    with np.load(Path(__file__).parent / "segmenters" / f"{name}.npz") as file:
        check(name, dict(file))
