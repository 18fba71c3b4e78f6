"""Classifiers whose dense layers become convolutions: equal, larger, or refused."""

import keras
import numpy as np
import pytest
from keras import layers, ops
from model_cases import create, numpy, randomize

from keras_attn.models import convolutionize

RNG = np.random.default_rng(0)
SIZE = (12, 18)


def sample(*shape):
    return RNG.normal(size=shape).astype("float32")


def images_for(model, batch=2):
    return sample(batch, *model.inputs[0].shape[1:])


def randomized(model):
    return randomize(model, scale=0.4)


def convolutions():
    """An input and a map of 3 × 4 locations with 5 channels."""
    inputs = keras.Input((*SIZE, 3))
    hidden = layers.Conv2D(7, 3, padding="same", activation="relu")(inputs)
    hidden = layers.BatchNormalization()(layers.MaxPooling2D(2)(hidden))
    return inputs, layers.Conv2D(5, 4, strides=2, padding="valid")(hidden)


def users_model():
    """Flatten, Dense, Dropout, BatchNormalization, Dense."""
    inputs, hidden = convolutions()
    hidden = layers.Flatten()(hidden)
    hidden = layers.Dropout(0.5)(layers.LeakyReLU()(hidden))
    hidden = layers.Dense(11, activation="tanh", kernel_regularizer="l2")(hidden)
    hidden = layers.BatchNormalization()(layers.Dropout(0.5)(hidden))
    return keras.Model(inputs, layers.Dense(13, use_bias=False)(hidden))


def pooled_model(reduce=layers.GlobalAveragePooling2D):
    """Global pooling, a sum of two branches that share a layer, softmax."""
    inputs, hidden = convolutions()
    pooled = reduce()(hidden)
    shared = layers.Dense(5, activation="gelu")
    pooled = layers.Add()([shared(pooled), shared(ops.relu(pooled))])
    pooled = layers.LayerNormalization()(pooled * 2.0)
    both = layers.Concatenate()([pooled, ops.tanh(pooled)])
    return keras.Model(inputs, layers.Dense(13, activation="softmax")(both))


def squeezed_model():
    """A block that pools the map on the way; a head of 1 × 1 convolutions."""
    inputs, hidden = convolutions()
    gate = layers.GlobalAveragePooling2D()(hidden)
    gate = layers.Dense(5, activation="sigmoid")(gate)
    hidden = layers.Multiply()([hidden, layers.Reshape((1, 1, 5))(gate)])
    pooled = layers.GlobalMaxPooling2D(keepdims=True)(hidden)
    logits = layers.Conv2D(13, 1)(pooled)
    return keras.Model(inputs, layers.Flatten()(logits))


def nested_model():
    """A model of one layer inside another inside a sequential model."""
    inner = keras.Sequential([keras.Input((*SIZE, 3)), layers.Conv2D(5, 3, strides=2)])
    body = keras.Model(inner.inputs, layers.ReLU()(inner(inner.inputs[0])))
    head = keras.Sequential([layers.Dense(11), layers.ReLU(), layers.Dense(13)])
    return keras.Sequential(
        [
            keras.Input((*SIZE, 3)),
            *(layers.Rescaling(0.5), body, layers.Reshape((-1,)), head),
        ]
    )


def mean_model():
    return _on_map(lambda hidden: ops.mean(hidden, axis=(1, 2)), layers.Dense(13))


def largest_model():
    inputs, hidden = convolutions()
    pooled = ops.max(hidden, axis=(-2, -3), keepdims=True)
    return keras.Model(inputs, layers.Dense(13)(ops.squeeze(pooled, (1, 2))))


def vgg16():
    return keras.applications.VGG16(
        input_shape=(32, 64, 3), weights=None, classes=7, classifier_activation=None
    )


MODELS = {
    "users": users_model,
    "pooled": pooled_model,
    "squeezed": squeezed_model,
    "nested": nested_model,
    "mean": mean_model,
    "largest": largest_model,
    **{
        name: lambda name=name: create(name)
        for name in ("resnet50", "vgg16", "convnext_tiny", "cnn_self_attention")
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_an_image_of_the_original_size_has_the_original_logits(name):
    model = randomized(MODELS[name]())
    convolutional = convolutionize(model)
    images = images_for(model)
    expected = numpy(model(images))
    assert expected.std() > 1e-3
    found = numpy(convolutional(images))
    assert found.shape == (2, 1, 1, expected.shape[-1])
    np.testing.assert_allclose(found[:, 0, 0], expected, rtol=1e-5, atol=1e-5)
    assert convolutional.count_params() == model.count_params()
    assert convolutional.name == model.name
    # A larger image gives a larger map; neither model shares a weight with the other.
    height, width = images.shape[1:3]
    larger = sample(1, height + 8, width + 16, 3)
    rows, columns = convolutional(larger).shape[1:3]
    assert rows > 1 and columns > 1
    assert not {id(w) for w in model.weights} & {id(w) for w in convolutional.weights}
    with pytest.raises(ValueError, match=r"images must have at least \("):
        convolutional(images[:, 1:])


def test_vgg16_of_keras_applications():
    model = vgg16()
    for layer in model.layers[-3:]:
        layer.set_weights(
            [3 * sample(*w.shape) / w.shape[0] ** 0.5 for w in layer.weights]
        )
    convolutional = convolutionize(model, name="slides")
    assert convolutional.name == "slides"
    images = 9 * images_for(model)
    expected = numpy(model(images))
    found = numpy(convolutional(images))
    np.testing.assert_allclose(
        found[:, 0, 0], expected, rtol=1e-4, atol=1e-4 * expected.std()
    )
    assert convolutional.get_layer("fc1").kernel.shape == (1, 2, 512, 4096)
    assert convolutional.compute_output_shape((None, 64, 96, 3)) == (None, 2, 2, 7)


@pytest.mark.parametrize("name", ["users", "mean", "nested"])
def test_each_place_has_the_logits_of_its_part_of_the_map(name):
    """Without padding and poolings before: crops of the image give the same."""
    inputs = keras.Input((7, 11, 3))
    hidden = layers.Conv2D(5, 3, activation="relu")(inputs)
    hidden = {
        "users": layers.Flatten(),
        "mean": layers.GlobalAveragePooling2D(),
        "nested": layers.Reshape((-1,)),
    }[name](hidden)
    hidden = layers.Dense(13, activation="relu")(hidden)
    model = randomized(keras.Model(inputs, layers.Dense(17)(hidden)))
    images = sample(2, 9, 15, 3)
    found = numpy(convolutionize(model).predict(images, verbose=0))
    assert found.shape == (2, 3, 5, 17)
    for row in range(3):
        for column in range(5):
            crop = images[:, row : row + 7, column : column + 11]
            np.testing.assert_allclose(found[:, row, column], model(crop), atol=1e-5)


def test_a_model_of_any_size_needs_the_size_of_one_place():
    model = create("resnet50", image_size=None)
    with pytest.raises(ValueError, match="`image_size` must be given .*None, None, 3"):
        convolutionize(model)
    convolutional = convolutionize(model, image_size=(20, 28))
    images = sample(2, 20, 28, 3)
    np.testing.assert_allclose(
        convolutional(images)[:, 0, 0], model(images), rtol=1e-5, atol=1e-5
    )
    with pytest.raises(ValueError, match=r"equal the size of .*\(12, 18\).*size=13"):
        convolutionize(users_model(), image_size=13)


def test_it_trains_saves_and_keeps_its_settings(tmp_path):
    model = users_model()
    model.layers[1].trainable = False
    convolutional = convolutionize(model)
    assert [len(w) for w in (model.trainable_weights, model.non_trainable_weights)] == [
        len(convolutional.trainable_weights),
        len(convolutional.non_trainable_weights),
    ]
    images = sample(3, 15, 22, 3)
    convolutional.compile("sgd", "mse")
    rows, columns = convolutional(images).shape[1:3]
    convolutional.fit(images, sample(3, rows, columns, 13), verbose=0)
    convolutional.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(images), convolutional(images))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float64"])
def test_layers_keep_their_precision(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = randomized(users_model())
    finally:
        keras.config.set_dtype_policy(before)
    convolutional = convolutionize(model)
    images = images_for(model)
    expected, found = numpy(model(images)), numpy(convolutional(images))
    assert found.dtype == expected.dtype
    tolerance = {"float64": 1e-10}.get(policy, 0.05)
    np.testing.assert_allclose(
        found[:, 0, 0].astype("float64"), expected.astype("float64"), atol=tolerance
    )


def _on_map(*then):
    inputs, hidden = convolutions()
    for layer in then:
        hidden = layer(hidden)
    return keras.Model(inputs, hidden)


def _flattened(*then):
    return _on_map(layers.Flatten(), *then)


def _with_two_inputs():
    one, hidden = convolutions()
    two = keras.Input((3,))
    hidden = layers.Concatenate()([layers.Flatten()(hidden), two])
    return keras.Model([one, two], layers.Dense(3)(hidden))


def _with_two_maps():
    inputs, hidden = convolutions()
    other = layers.Flatten()(layers.Conv2D(3, 3)(inputs))
    hidden = layers.Concatenate()([layers.Flatten()(hidden), other])
    return keras.Model(inputs, layers.Dense(3)(hidden))


def _back_to_a_map():
    inputs, hidden = convolutions()
    size = hidden.shape[1] * hidden.shape[2]
    vector = layers.Dense(size)(layers.Flatten()(hidden))
    hidden = hidden + layers.Reshape((*hidden.shape[1:3], 1))(vector)
    return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(hidden)))


class _Subclass(keras.Model):
    def call(self, inputs):
        return inputs


REFUSED = {
    "norm": (
        lambda: _flattened(layers.BatchNormalization(name="norm"), layers.Dense(3)),
        r"its layer `norm` \(BatchNormalization\) has weights for the",
    ),
    "no_dense": (lambda: _flattened(layers.ReLU()), "must have a dense layer after it"),
    "repeat": (
        lambda: _flattened(layers.RepeatVector(2, name="two"), layers.LSTM(3)),
        r"layer `two` \(RepeatVector\) follows the last map, where only dense",
    ),
    "noise": (
        lambda: _flattened(layers.Dropout(0.5, noise_shape=(None, 1), name="drop")),
        "layer `drop` .* must have no `noise_shape`",
    ),
    "softmax": (
        lambda: _flattened(layers.Activation("softmax", name="share"), layers.Dense(3)),
        r"`share` \(Activation\) follows the last map",
    ),
    "reshape": (
        lambda: _on_map(
            layers.Reshape((3, 2, 5), name="turned"), layers.Flatten(), layers.Dense(3)
        ),
        r"`turned` \(Reshape\) does not fit a larger image",
    ),
    "resizing": (
        lambda: _on_map(layers.Resizing(7, 9), layers.Flatten(), layers.Dense(3)),
        "gets a map of .* locations from larger images, too",
    ),
    "sequence": (
        lambda: keras.Sequential(
            [
                keras.Input((8, 9, 3)),
                layers.Reshape((8, 27), name="lines"),
                *(layers.LSTM(5), layers.Dense(3)),
            ]
        ),
        r"`lines` \(Reshape\) must flatten the map to one vector, channels last",
    ),
    "mean_over_rows": (
        lambda: keras.Model(
            (inputs := keras.Input((8, 9, 3))),
            layers.Dense(3)(layers.Flatten()(ops.mean(inputs, axis=1))),
        ),
        r"\(Mean\) must be over rows and columns, axes 1 and 2",
    ),
    "channels_first": (
        lambda: _on_map(layers.Flatten(data_format="channels_first"), layers.Dense(3)),
        "must flatten the map to one vector, channels last",
    ),
    "pooled_first": (
        lambda: _on_map(
            layers.GlobalAveragePooling2D(data_format="channels_first"), layers.Dense(3)
        ),
        "must have channels last",
    ),
    "two_maps": (_with_two_maps, "combines vectors of several maps"),
    "back": (_back_to_a_map, r"\(Flatten\) turns a map into the shape"),
    "inputs": (_with_two_inputs, "must have one input, images .*18, 3.*None, 3"),
    "vit": (
        lambda: create("vit_base_patch16"),
        r"`patch_embedding` \(PatchEmbedding\)",
    ),
    "swin": (lambda: create("swin_tiny"), "`patch_embedding` .* does not fit a larger"),
    "none": (_on_map, "must be a classifier: none of its layers"),
    "vector": (
        lambda: keras.Sequential([keras.Input((7,)), layers.Dense(3)]),
        r"must have one input, images .*Received: inputs of shape \(None, 7\)",
    ),
    "unbuilt": (lambda: keras.Sequential([layers.Dense(3)]), "`model` must be built"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused_with_the_layer_and_the_reason(name):
    make, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        convolutionize(make())


def test_a_quantized_layer_is_refused():
    model = users_model()
    model.layers[-1].quantize("int8")
    with pytest.raises(ValueError, match="is quantized; convert the model first"):
        convolutionize(model)


def test_a_model_that_is_no_graph_is_a_type_error():
    for model in (_Subclass(), layers.Dense(3), "vgg16"):
        with pytest.raises(TypeError, match="must be a functional or sequential"):
            convolutionize(model)
