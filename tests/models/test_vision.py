"""The image models beyond the contract: image sizes, features, refused arguments."""

import keras
import numpy as np
import pytest
from layer_contract import normal as sample
from model_cases import TINY, numpy, tiny
from model_family import C

from keras_attn import models


def create(name, **options):
    return models.create(name, **{**TINY[name], **options})


# Sizes that do not fit each other; the contract has wrong values of single arguments.
@pytest.mark.parametrize(
    "name, options, message",
    [
        ("vit_base_patch16", {"class_token": False}, "must be 'mean' .*class_token=F"),
        (
            "vit_base_patch16",
            {"distillation": "head", "class_token": False, "pooling": "mean"},
            "`distillation` adds a second token, so it needs `class_token=True`",
        ),
        ("mae_vit_base", {"image_size": 7}, "some hidden.*1 patches, mask_ratio=0.75"),
        ("mae_vit_base", {"hidden_dim": 6, "num_heads": 2}, "multiple of 4.*dim=6"),
        ("swin_tiny", {"num_blocks": (2,)}, r"per stage.*num_blocks=\(2,\)"),
        ("convnext_tiny", {"hidden_dims": (5,)}, r"per stage.*hidden_dims=\(5,\)"),
        ("convnext_tiny", {"image_size": (3, 8)}, r"least \(4, 4\).*ize=\(3, 8\)"),
        ("convnext_tiny", {"image_size": (3, None)}, r"\(4, 4\).*size=\(3, None\)"),
        ("convnext_tiny", {"image_size": (None, 0)}, "`image_size` must be a positive"),
        ("swin_tiny", {"image_size": (None, 26)}, "`image_size` must be a positive"),
        ("resnet50", {"dilated_stages": (0,)}, r"from 1 to 1.*stages=\(0,\)"),
        ("resnet50", {"dilated_stages": (2,)}, r"from 1 to 1.*stages=\(2,\)"),
        ("resnet50", {"num_frozen": 4}, "from 0 to 3.*num_frozen=4"),
        ("resnet18", {"dilated_stages": (1,)}, r"are for bottlenecks.*stages=\(1,\)"),
        (
            "fcn_resnet50",
            {"num_blocks": (1,), "dilated_stages": ()},
            r"`auxiliary_head` needs a stage .*auxiliary_head=True, num_blocks=\(1,\)",
        ),
        ("fcn8s_vgg16", {"skips": (2,)}, r"`skips` must be \(\), .*skips=\(2,\)"),
        ("fcn8s_vgg16", {"hidden_dims": (5,) * 4}, "must have five stages"),
        ("vgg16", {"hidden_dims": (5,)}, "must have the same length.*2 num_convs"),
        ("vgg16", {"image_size": (3, 8)}, r"least \(4, 4\).*ize=\(3, 8\)"),
        ("vgg16", {"image_size": (None, 8)}, r"must be given .*_top=False`.*None, 8\)"),
        ("sagan_generator_128", {"image_size": 24}, "a power of two of at .*size=24"),
        ("sagan_discriminator_128", {"image_size": 4}, "a power of two of at .*size=4"),
        ("sagan_generator_128", {"attention_size": 16}, r"of \[8\].*size=16"),
        ("vit_hybrid_r50_base_patch16", {"stem_dim": 48}, "multiple of 32.*dim=48"),
        ("cnn_self_attention", {"image_size": 1}, r"least \(2, 2\).*size=\(1, 1\)"),
        ("cnn_self_attention", {"attention_stage": 2}, "`attention_stage` .*stage=2"),
    ],
)
def test_invalid_arguments_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        create(name, **options)


# Checked by the class of all models; Keras' own check accepts a last axis of one.
@pytest.mark.parametrize("shape", [(18, 26, 1), (28, 26, 3)])
def test_images_of_another_size_or_other_channels_are_refused(shape):
    message = rf"`images` must have .* 18, 26, 3\),.*Received: shape=\(2, {shape[0]}, "
    with pytest.raises(ValueError, match=message):
        tiny("swin_tiny").predict(sample(2, *shape), verbose=0)


@pytest.mark.parametrize("name", ["swin_tiny", "convnext_tiny"])
def test_maps_of_each_stage(name):
    """Swin pads odd rows and columns, ConvNeXt crops them."""
    model = create(name, image_size=(19, 26), include_top=False)
    maps = numpy(model(sample(2, 19, 26, 3)))
    first, second = ((10, 13), (5, 7)) if name == "swin_tiny" else ((9, 13), (4, 6))
    assert maps["stage_0"].shape[:3] == (2, *first)
    assert maps["stage_1"].shape[:3] == (2, *second)
    widths = [maps[f"stage_{stage}"].shape[3] for stage in (0, 1)]
    assert maps["pooled_output"].shape == (2, widths[1])
    if name == "swin_tiny":
        assert widths[1] == 2 * widths[0]
        assert maps["sequence_output"].shape == (2, 35, widths[1])


def test_too_small_an_image_is_refused():
    model = create("convnext_tiny", image_size=(None, 26))
    assert model.input.shape == (None, None, 26, 3)
    assert model(sample(1, 4, 26, 3)).shape == (1, C)
    message = r"images must have at least \(4, 4\) pixels.*shape=\(2, 3, 26, 3\)"
    for call in (model, lambda images: model.predict(images, verbose=0)):
        with pytest.raises(ValueError, match=message):
            call(sample(2, 3, 26, 3))


def test_an_image_smaller_than_a_patch_is_padded_in_swin():
    model = create("swin_tiny", image_size=1)
    assert model(sample(2, 1, 1, 3)).shape == (2, C)


def test_features_are_the_input_of_the_classifier():
    for name in (
        *("vit_base_patch16", "swin_tiny", "convnext_tiny", "deit3_base"),
        "resnet50",
    ):
        model = tiny(name)
        features = keras.Model(model.input, model.get_layer("classifier").input)
        images = sample(2, *model.input.shape[1:])
        bare = create(name, include_top=False)
        bare.set_weights(model.get_weights()[: len(bare.weights)])
        np.testing.assert_allclose(
            numpy(bare(images))["pooled_output"], numpy(features(images)), atol=1e-5
        )


def test_the_logits_of_both_heads_are_averaged():
    model = create("vit_base_patch16", distillation="head")
    body = create("vit_base_patch16", distillation="token", include_top=False)
    rng = np.random.default_rng(5)
    for layer in body.layers:
        weights = [rng.normal(size=weight.shape) for weight in layer.weights]
        layer.set_weights(weights)
        model.get_layer(layer.name).set_weights(weights)
    images = sample(2, 14, 21, 3)
    tokens = numpy(body(images))["sequence_output"]
    logits = np.zeros((2, C))
    # The first head reads the class token, the second the token after it.
    for index, name in enumerate(("classifier", "distillation_classifier")):
        head = model.get_layer(name)
        kernel, bias = rng.normal(size=head.kernel.shape), rng.normal(size=C)
        head.set_weights([kernel, bias])
        logits += (tokens[:, index] @ kernel + bias) / 2
    np.testing.assert_allclose(model(images), logits, rtol=1e-4, atol=1e-4)


def test_the_mean_of_the_patches_leaves_out_the_tokens():
    options = {"include_top": False, "pooling": "mean", "distillation": "token"}
    model = create("vit_base_patch16", **options)
    outputs = numpy(model(sample(2, 14, 21, 3)))
    mean = outputs["sequence_output"][:, 2:].mean(1)
    expected = model.get_layer("final_norm")(mean)
    np.testing.assert_allclose(outputs["pooled_output"], expected, atol=1e-5)


def test_stochastic_depth_rises_with_depth_but_not_in_deit3():
    model = create("vit_base_patch16", num_layers=3, stochastic_depth=0.4)
    rates = [model.get_layer(f"block_{i}").stochastic_depth for i in range(3)]
    assert rates == pytest.approx([0, 0.2, 0.4])
    model = create("deit3_base", stochastic_depth=0.4)
    assert {model.get_layer(f"block_{i}").stochastic_depth for i in (0, 1)} == {0.4}


def test_positions_of_an_autoencoder_are_not_trained():
    model = tiny("mae_vit_base")
    frozen = {weight.path.split("/")[0] for weight in model.non_trainable_weights}
    assert frozen == {"position_embedding", "decoder_position_embedding"}


def test_generated_images_are_in_range_and_depend_on_the_class():
    model = tiny("sagan_generator_128")
    noise = sample(1, 13)
    generated = [
        numpy(model({"noise": noise, "labels": np.array([label])}))
        for label in (0, C - 1)
    ]
    assert generated[0].shape == (1, 16, 16, 3)
    assert np.abs(generated).max() <= 1
    assert np.abs(generated[0] - generated[1]).max() > 1e-3


def test_maps_of_a_vgg_are_those_before_their_pooling():
    model = create("vgg16", image_size=None, include_top=False)
    found = numpy(model(sample(2, 19, 26, 3)))
    # An odd last row is left out.
    assert found["stage_0"].shape == (2, 19, 26, 7)
    assert found["stage_1"].shape == (2, 9, 13, 13)
    corners = found["stage_1"][:, :8, :12].reshape(2, 4, 2, 6, 2, 13)
    mean = corners.max((2, 4)).mean((1, 2))
    np.testing.assert_allclose(found["pooled_output"], mean, rtol=0, atol=1e-6)
