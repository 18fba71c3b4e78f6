"""SegNet, DeconvNet and U-Net beyond the contract: sizes, backbones, refusals."""

import keras
import numpy as np
import pytest
from layer_contract import normal as sample
from model_cases import numpy, randomize
from model_family import C, M, U

from keras_attn import layers, models
from keras_attn.models.parts.backbones.skips import find_skips

STAGES = {"hidden_dims": (5, U), "num_convs": (1, 2)}
UNPOOLING = {
    models.build_segnet: STAGES,
    models.build_deconvnet: {
        **{"image_size": None, "fully_connected_dims": (M,), "fully_connected_size": 2},
        **STAGES,
    },
}
UNET = {"hidden_dims": (3, 5, U), "num_channels": 3, "num_classes": C, "dropout": 0.0}
BACKBONES = {
    # Maps of odd sizes are rounded up in a ResNet, down in VGG and ConvNeXt.
    "resnet50": {"stem_dim": 3, "num_blocks": (1, 2, 1)},
    "vgg16": {"hidden_dims": (3, 5, U), "num_convs": (1, 2, 1)},
    "convnext_tiny": {"hidden_dims": (5, U), "num_blocks": (1, 1), "patch_size": 4},
}


def backbone(name, image_size=None):
    return models.create(
        name, image_size=image_size, include_top=False, **BACKBONES[name]
    )


def test_sizes_of_the_paper():
    """572 pixels give 388, and so on down to the least size, 188."""
    for size, output in ((572, 388), (588, 404), (188, 4)):
        model = models.build_unet(image_size=size, hidden_dims=(1, 1, 1, 1, 1))
        assert model.output.shape == (None, output, output, 2)
    for size in (571, 580, 172, (572, 573)):
        with pytest.raises(ValueError, match=r"188 plus a multiple of 16.*image_size="):
            models.build_unet(image_size=size)


def check_equals_fixed(model, fixed, size, lost=0):
    """Asserts that a model of any size computes what one of this size does."""
    fixed.set_weights(model.get_weights())
    images = sample(2, *size, 3)
    expected = numpy(fixed(images))
    assert expected.shape == (2, size[0] - lost, size[1] - lost, C)
    np.testing.assert_allclose(numpy(model(images)), expected, atol=1e-5)


def test_a_valid_unet_of_any_size_equals_the_one_of_each_size():
    model = randomize(models.build_unet(**UNET))
    for size in ((44, 52), (48, 56)):
        check_equals_fixed(model, models.build_unet(image_size=size, **UNET), size, 40)


def test_a_valid_unet_of_any_size_refuses_sizes_between_its_steps():
    model = models.build_unet(**UNET)
    message = r"must have \(44, 44\) pixels, .* plus multiples of \(4, 4\).*\(1, 46, 44"
    with pytest.raises(ValueError, match=message):
        model(sample(1, 46, 44, 3))
    with pytest.raises(ValueError, match=r"at least \(44, 44\) pixels.*\(1, 40, 44"):
        model.predict(sample(1, 40, 44, 3), verbose=0)


@pytest.mark.parametrize("name", BACKBONES)
def test_a_unet_on_a_backbone_keeps_every_image_size(name):
    model = randomize(models.build_unet(backbone=backbone(name), num_classes=C))
    for size in ((32, 48), (37, 51), (34, 39)):
        fixed = models.build_unet(backbone=backbone(name, size), num_classes=C)
        check_equals_fixed(model, fixed, size)


def test_a_unet_shares_the_weights_of_its_backbone_and_fits():
    encoder = backbone("vgg16")
    model = models.build_unet(backbone=encoder, num_classes=C, name="mine")
    assert model.name == "mine"
    shared = {id(weight) for weight in encoder.weights}
    assert shared < {id(weight) for weight in model.weights}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss=loss, jit_compile=False)
    images = sample(4, 19, 27, 3)
    labels = (images[..., 0] > 0).astype("int32")
    losses = model.fit(images, labels, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_skips_are_the_last_maps_before_each_halving():
    """Not those inside of residual blocks, and nothing of the head."""
    encoder = models.create("resnet50", image_size=(64, 96), **BACKBONES["resnet50"])
    found, lacking = find_skips(encoder)
    assert not lacking
    assert {scale: tuple(x.shape[1:3]) for scale, x in found.items()} == {
        1: (32, 48),
        2: (16, 24),
        3: (8, 12),
        4: (4, 6),
    }
    # The maps that the model returns without its top, and the stem's before pooling.
    without = models.create(
        "resnet50", image_size=(64, 96), include_top=False, **BACKBONES["resnet50"]
    )
    stages = {2: "stage_0", 3: "stage_1", 4: "stage_2"}
    maps = keras.Model(without.input, find_skips(without)[0])
    without.set_weights(encoder.get_weights()[: len(without.weights)])
    images = sample(2, 64, 96, 3)
    expected, found = numpy(without(images)), maps(images)
    for scale, name in stages.items():
        np.testing.assert_array_equal(numpy(found[scale]), expected[name])
    assert found[1].shape[-1] == 3


def test_skips_of_a_mobile_net_are_its_expanded_maps():
    network = keras.applications.MobileNetV2(
        (64, 96, 3), alpha=0.35, weights=None, classes=2
    )
    names = [f"block_{index}_expand_relu" for index in (1, 3, 6, 13)]
    expected = [*(network.get_layer(name).output for name in names)]
    expected.append(network.get_layer("out_relu").output)
    found, _ = find_skips(network)
    assert [id(found[scale]) for scale in range(1, 6)] == [id(x) for x in expected]
    model = models.build_unet(backbone=network, decoder_dims=(7, 5, 5, 3, 3))
    named = models.build_unet(
        backbone=network, skip_layers=("out_relu", *names), decoder_dims=(7, 5, 5, 3, 3)
    )
    assert [x.shape for x in named.weights] == [x.shape for x in model.weights]
    assert model.output.shape == (None, 64, 96, 2)


def test_no_name_of_a_decoder_on_a_backbone_is_left_to_keras():
    """A network of `keras.applications` may have a layer that is called "relu"."""
    encoder = backbone("vgg16")
    inherited = {operation.name for operation in encoder.operations}
    model = models.build_unet(backbone=encoder, num_classes=C)
    own = {operation.name for operation in model.operations} - inherited
    assert {name.partition("_")[0] for name in own} == {"decoder", "classifier"}


def test_a_model_with_one_map_has_no_skips():
    images = keras.Input((None, None, 3))
    features = keras.layers.Conv2D(5, 8, strides=8, name="patches")(images)
    model = models.build_unet(
        backbone=keras.Model(images, features), num_classes=C, decoder_dims=(7, 5, 3)
    )
    for size in ((16, 24), (23, 15)):
        assert model(sample(1, *size, 3)).shape == (1, *size, C)


def valid_network(size):
    """As InceptionV3: its convolutions take rows and columns from all sides."""
    images = keras.Input((*size, 3))
    hidden = keras.layers.Conv2D(3, 3, strides=2, name="half")(images)
    hidden = keras.layers.Conv2D(5, 3, name="half_less")(hidden)
    hidden = keras.layers.MaxPooling2D(3, strides=2)(hidden)
    hidden = keras.layers.Conv2D(7, 5, name="fourth")(hidden)
    hidden = keras.layers.Conv2D(5, 3, strides=2, name="eighth")(hidden)
    outputs = keras.layers.GlobalAveragePooling2D()(hidden)
    return keras.Model(images, keras.layers.Dense(2)(outputs))


def test_a_unet_on_a_network_that_takes_the_border_keeps_every_image_size():
    network = valid_network((None, None))
    found, lacking = find_skips(network)
    names = {scale: x._keras_history.operation.name for scale, x in found.items()}
    assert names == {1: "half_less", 2: "fourth", 3: "eighth"}
    assert lacking == {1, 2, 3}
    options = {"num_classes": C, "decoder_dims": (7, 5, 3)}
    model = randomize(models.build_unet(backbone=network, **options))
    for size in ((75, 61), (41, 67)):
        fixed = models.build_unet(backbone=valid_network(size), **options)
        check_equals_fixed(model, fixed, size)


def test_enlarged_maps_stay_centered():
    """As they are on a network that takes as much from all sides."""
    inputs = np.arange(3, dtype="float32").reshape(1, 3, 1, 1) + 1
    layer = layers.UpsampleLike(centered=True)
    for size, expected in (
        (6, [1, 1, 2, 2, 3, 3]),
        (9, [1, 1, 1, 2, 2, 3, 3, 3, 3]),
        (3, [2, 2, 3]),
    ):
        found = numpy(layer(inputs, np.zeros((1, size, 1, 1))))
        assert found.shape == (1, size, 1, 1)
        np.testing.assert_array_equal(found[0, :, 0, 0], expected)


def test_scales_of_a_network_of_one_size_are_found_by_the_sizes_of_its_maps():
    images = keras.Input((20, 26, 3))
    hidden = keras.layers.Conv2D(5, 3, strides=2, padding="same", name="half")(images)
    inner = keras.Sequential([keras.Input((10, 13, 5)), keras.layers.ReLU()])
    hidden = inner(hidden)
    hidden = keras.layers.Conv2D(5, 3, strides=2, padding="same", name="out")(hidden)
    found, lacking = find_skips(keras.Model(images, hidden))
    assert {scale: x.shape[1:3] for scale, x in found.items()} == {
        1: (10, 13),
        2: (5, 7),
    }
    assert not lacking


def test_a_backbone_whose_last_maps_would_be_left_out_is_refused():
    images = keras.Input((97, 97, 3))
    hidden = keras.layers.Conv2D(3, 3, strides=2, padding="same")(images)
    for _ in range(2):
        hidden = keras.layers.Conv2D(5, 5, strides=3)(hidden)
    with pytest.raises(ValueError, match="name its layers in .*map is 1 / 2 of the im"):
        models.build_unet(backbone=keras.Model(images, hidden))


def no_map():
    images = keras.Input((16, 16, 3))
    return keras.Model(images, keras.layers.Dense(2)(keras.layers.Flatten()(images)))


def two_inputs():
    images = [keras.Input((16, 16, 3)), keras.Input((16, 16, 3))]
    return keras.Model(images, keras.layers.Concatenate()(images))


class Subclassed(keras.Model):
    def call(self, inputs):
        return inputs


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"backbone": "resnet50"}, TypeError, "functional Keras .*backbone='resnet50'"),
        ({"backbone": Subclassed()}, TypeError, "`backbone` must be a functional"),
        ({"backbone": no_map()}, ValueError, "`backbone` must have a map"),
        ({"backbone": two_inputs()}, ValueError, "must take one input, images"),
        ({"decoder_dims": (3,)}, ValueError, r"for a U-Net on a.*decoder_dims=\(3,\)"),
        ({"skip_layers": ("a",)}, ValueError, r"leave them out.*skip_layers=\('a',\)"),
        ({"image_size": (None, 10)}, ValueError, r"188 plus.*size=\(None, 10\)"),
    ],
)
def test_refused_arguments_of_a_unet(options, error, message):
    with pytest.raises(error, match=message):
        models.build_unet(**options)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"image_size": 64}, "are determined by the `backbone`.*image_size=64"),
        ({"padding": "same", "dropout": 0.5}, "padding='same', dropout=0.5"),
        ({"decoder_dims": (7,)}, r"each halving of .* map, 2.*dims=\(7,\)"),
        ({"skip_layers": ("nowhere",)}, "names of layers in the.*'nowhere'"),
        (
            {"skip_layers": ("stage_1_conv_0", "stage_1_conv_1")},
            r"have different sizes.*maps of 1 / \[2, 2\]",
        ),
    ],
)
def test_refused_arguments_of_a_unet_on_a_backbone(options, message):
    with pytest.raises(ValueError, match=message):
        models.build_unet(backbone=backbone("vgg16"), **options)


def test_skips_must_be_maps_of_halved_sizes():
    images = keras.Input((60, 60, 3))
    hidden = keras.layers.Conv2D(5, 3, strides=3, name="third")(images)
    flat = keras.layers.Flatten(name="flat")(hidden)
    network = keras.Model(images, flat)
    with pytest.raises(ValueError, match=r"one output each, .*'flat' with"):
        models.build_unet(backbone=network, skip_layers=("flat",))
    with pytest.raises(ValueError, match=r"maps of 1 / \[None\]"):
        models.build_unet(backbone=network, skip_layers=("third",))
    with pytest.raises(ValueError, match="`backbone` must have a map"):
        models.build_unet(backbone=network)


def test_refused_arguments_of_unpooling_networks():
    with pytest.raises(ValueError, match="must have the same length"):
        models.build_segnet(num_convs=(2,))
    message = r"at least 193, .*image_size=\(224, 192\), fully_connected_size=7"
    with pytest.raises(ValueError, match=message):
        models.build_deconvnet(image_size=(224, 192))


def test_too_small_an_image_for_the_fully_connected_layer_is_refused():
    options = UNPOOLING[models.build_deconvnet]
    model = models.build_deconvnet(num_classes=C, **options)
    with pytest.raises(ValueError, match=r"at least \(5, 5\) pixels.*\(1, 4, 9, 3\)"):
        model(sample(1, 4, 9, 3))


@pytest.mark.parametrize("build", [*UNPOOLING, models.build_unet])
def test_a_nan_in_an_image_reaches_the_output(build):
    options = {**UNPOOLING, models.build_unet: {**UNET, "padding": "same"}}[build]
    model = build(**options)
    images = sample(2, 16, 16, 3)
    images[0, 5, 5, 0] = np.nan
    with pytest.raises(ValueError, match="`images` must be finite numbers"):
        model(images)
    # As in a compiled graph, which has no checks.
    logits = numpy(keras.Model(model.input, model.output)(images))
    assert np.isnan(logits[0]).any() and np.isfinite(logits[1]).all()


def test_a_unet_drops_units_of_its_last_two_stages():
    model = models.build_unet(**{**UNET, "dropout": 0.4, "padding": "same"})
    rates = {layer.name: getattr(layer, "rate", None) for layer in model.layers}
    dropped = {name: rate for name, rate in rates.items() if name.endswith("_dropout")}
    assert dropped == {"stage_1_dropout": 0.4, "stage_2_dropout": 0.4}
