"""DALL·E's discrete VAE, beyond the contract of all models: its loss and its halves."""

import keras
import numpy as np
import pytest
from families.dvae import TINY
from model_cases import create, inputs_for, layer_names, numpy, tiny

from keras_attn import models
from keras_attn.layers import CodeProjection, GumbelSoftmax
from keras_attn.training import BackupAndResume

CASE = "dvae_dalle"


def images_for(model, batch=2):
    return inputs_for(model, batch=batch)["images"]


def test_layers_have_their_documented_names():
    blocks = {f"block_0_conv_{index}" for index in range(4)}
    expected = {"encoder_input", "encoder_output", "relaxation"}
    expected |= {"decoder_input", "decoder_output"}
    expected |= {"encoder_group_0_pooling", "decoder_group_0_upsampling"}
    for side in ("encoder", "decoder"):
        for group in (0, 1):
            expected |= {f"{side}_group_{group}_{name}" for name in blocks}
    # Where the width changes.
    expected |= {f"decoder_group_{group}_block_0_shortcut" for group in (0, 1)}
    expected |= {"encoder_group_1_block_0_shortcut"}
    # The others, such as ReLUs, are operations without weights.
    names = layer_names(tiny(CASE))
    assert {name for name in names if "coder_" in name or name == "relaxation"} == (
        expected
    )


def test_an_image_becomes_codes_and_back():
    model = tiny(CASE)
    images = images_for(model)
    logits = keras.Model(model.input, model.get_layer("encoder_output").output)
    codes = numpy(model.encode_model()(images))
    assert codes.dtype == np.int32
    np.testing.assert_array_equal(codes, numpy(logits(images)).argmax(-1))
    decode = model.decode_model()
    expected = numpy(model(images))["reconstruction"]
    np.testing.assert_allclose(numpy(decode(codes)), expected, rtol=0, atol=1e-6)
    assert 0 <= expected.min() and expected.max() <= 1
    assert {id(w) for w in decode.weights} < {id(w) for w in model.weights}
    with pytest.raises(ValueError, match=r"`codes` must be in \[0, 29\).*Received: 29"):
        decode(np.full_like(codes, 29))


def bound(model, images, outputs, kl_weight):
    """The negative evidence lower bound of each image, per sub-pixel."""
    x = 0.8 * images.astype("float64") + 0.1
    mean, log_scale = np.split(outputs["statistics"], 2, axis=-1)
    distance = np.abs(np.log(x / (1 - x)) - mean) / np.exp(log_scale)
    losses = np.log(2) + log_scale + np.log(x * (1 - x)) + distance
    logits = keras.Model(model.input, model.get_layer("encoder_output").output)
    p = numpy(keras.ops.softmax(logits(images)))
    divergence = (p * np.log(p * p.shape[-1])).sum((1, 2, 3))
    total = losses.sum((1, 2, 3)) + kl_weight * divergence
    return total / np.prod(x.shape[1:]), losses.mean(), divergence.mean() / 6


def test_the_loss_is_the_evidence_lower_bound():
    model = create(CASE, kl_steps=4)
    model.get_layer("relaxation").updates.assign(1)
    images = images_for(model, 3)
    # Half a cosine from 0 to 6.6, after one of four steps.
    weight = 6.6 * (1 - np.cos(np.pi / 4)) / 2
    expected, reconstruction, divergence = bound(
        model, images, numpy(model(images)), weight
    )
    model.compile("sgd")
    found = model.evaluate(images, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["loss"], expected.mean(), rtol=1e-5)
    np.testing.assert_allclose(found["reconstruction_loss"], reconstruction, rtol=1e-5)
    np.testing.assert_allclose(found["divergence"], divergence, rtol=1e-5)
    # Evaluating is not an update.
    assert int(model.get_layer("relaxation").updates) == 1
    share = np.array([2.0, 0.0, 0.5])
    weighted = model.compute_loss(images, None, model(images), share, training=False)
    np.testing.assert_allclose(weighted, (share * expected).mean(), rtol=1e-5)


def test_training_goes_through_relaxed_codes():
    layer = GumbelSoftmax(temperature=1.0, final_temperature=0.5, temperature_steps=2)
    logits = np.random.default_rng(0).normal(size=(5, 7)).astype("float32")
    hard = numpy(layer(logits))
    np.testing.assert_array_equal(hard, np.eye(7)[logits.argmax(-1)])
    first, second = (numpy(layer(logits, training=True)) for _ in range(2))
    np.testing.assert_allclose(first.sum(-1), 1, rtol=1e-5)
    assert np.abs(first - second).max() > 0.01
    temperatures = []
    for _ in range(4):
        temperatures.append(float(layer.current_temperature()))
        layer.advance()
    np.testing.assert_allclose(temperatures, [1.0, 0.75, 0.5, 0.5], rtol=1e-6)


@pytest.mark.compiled
def test_a_run_resumes_where_it_stopped(tmp_path):
    """Temperature, weight and noise go on; the loss falls; a file keeps the count."""
    images = images_for(tiny(CASE), 6)
    options = {"temperature_steps": 9, "kl_steps": 7, "seed": 3}

    class Kill(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    def fit(*callbacks):
        model = create(CASE, **options)
        model.compile(keras.optimizers.Adam(0.01))
        history = model.fit(
            images,
            batch_size=3,
            epochs=4,
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
        )
        return model, history.history

    model, whole = fit()
    backup = BackupAndResume(tmp_path / "backup", delete_checkpoint=False)
    with pytest.raises(KeyboardInterrupt):
        fit(backup, Kill())
    again, resumed = fit(BackupAndResume(tmp_path / "backup"))
    assert resumed == whole
    assert whole["reconstruction_loss"][-1] < whole["reconstruction_loss"][0]
    assert int(again.get_layer("relaxation").updates) == 8
    again.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert int(loaded.get_layer("relaxation").updates) == 8
    for weight, other in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(numpy(weight), numpy(other))


@pytest.mark.parametrize("scale, shift", [(255.0, 0.0), (2.0, -1.0)])
def test_pixels_out_of_range_are_named(scale, shift):
    model = create(CASE)
    model.compile("sgd")
    images = images_for(model) * scale + shift
    for call in (model.fit, model.evaluate, model.train_on_batch):
        with pytest.raises(ValueError, match=r"`images` must be in \[0, 1\]: divide"):
            call(images)
    # Resizing may overshoot.
    model.evaluate(images_for(model) * 1.1 - 0.05, verbose=0)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"base_dim": 6}, "`base_dim` must be a multiple of 4.*base_dim=6"),
        ({"image_size": (4, 5)}, "`image_size` must be a multiple of `patch_size`"),
        ({"temperature": 0.0}, "`temperature` must be a number above 0.*=0.0"),
        ({"final_temperature": -1.0}, "`final_temperature` must be a number above 0"),
        ({"kl_weight": -0.5}, "`kl_weight` must be a number of at least 0.*=-0.5"),
    ],
)
def test_sizes_that_no_model_has(options, match):
    with pytest.raises(ValueError, match=match):
        models.build_dvae(**{**TINY, **options})


def test_codes_and_one_hot_vectors_project_to_the_same():
    layer = CodeProjection(7, 5)
    codes = np.array([[0, 6], [3, 3]], "int32")
    expected = numpy(layer(np.eye(7, dtype="float32")[codes]))
    np.testing.assert_allclose(numpy(layer(codes)), expected, rtol=1e-6)


@pytest.mark.shipped
@pytest.mark.parametrize("half", ["encode_model", "decode_model"])
def test_both_halves_ship(half, tmp_path):
    from export_formats import SUFFIXES

    from keras_attn.export import export, load_runner

    model = tiny(CASE)
    images = images_for(model)
    made = getattr(model, half)()
    inputs = images if half == "encode_model" else numpy(model.encode_model()(images))
    expected = numpy(made(inputs))
    name = made.inputs[0].name
    for suffix in SUFFIXES.values():
        path = tmp_path / f"{half}{suffix}"
        export(made, path, sample_inputs=inputs)
        (found,) = load_runner(path)({name: inputs}).values()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        if half == "decode_model":
            with pytest.raises(ValueError, match=r"codes.* must be in \[0, 29\)"):
                load_runner(path)({name: inputs + 29})
