"""Data sets that do not say how large their images are, for models that do."""

from typing import Any

import keras
import numpy as np
import pytest
from backend import skip_module_without_tensorflow
from model_cases import CASES, build, create, inputs_for
from model_contract import few_of

skip_module_without_tensorflow("tf.data is TensorFlow's")

import tensorflow as tf  # noqa: E402

OF_IMAGES = [case for case, made in CASES.items() if "images" in made.card.inputs]


def unknown(array):
    """The least that a data set may say of an input."""
    rank = np.ndim(array)
    sizes = [None] * (rank - 1) + [array.shape[-1]] if rank >= 4 else [None] * rank
    return tf.TensorSpec(sizes, array.dtype)


@pytest.mark.compiled
@pytest.mark.parametrize("case", few_of(OF_IMAGES))
def test_every_model_of_images_takes_unknown_sizes(case):
    """There is a graph whose inputs have none, with what is known of its outputs."""
    model = build(case)
    specs = {name: unknown(x) for name, x in inputs_for(model).items()}
    single = next(iter(specs)) if len(specs) == 1 else None

    def call(inputs):
        return model(inputs if single is None else inputs[single])

    graph = tf.function(call, input_signature=[specs]).get_concrete_function()
    found = keras.tree.flatten(graph.structured_outputs)
    for ours, theirs in zip(found, model.outputs, strict=True):
        known = zip(tuple(ours.shape)[1:], tuple(theirs.shape)[1:], strict=True)
        assert all(x == y or y is None for x, y in known), case


def _batches(images, labels):
    """Images of an unknown number of axes, in batches of an unknown number."""
    data = tf.data.Dataset.from_tensor_slices((images, labels))

    def decoded(image, label):
        return tf.numpy_function(lambda x: x, [image], tf.float32), label

    return data.map(decoded).filter(lambda *_: True).batch(2)


# Keras warns of every data set whose number of batches it does not know.
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.compiled
@pytest.mark.parametrize("case", ["vit_base_patch16", "swin_tiny"])
def test_fit(case):
    model = create(case)
    inputs = inputs_for(model, batch=3)["images"]
    labels = np.array([0, 1, 0])
    expected = model.predict(inputs, verbose=0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    data: Any = _batches(inputs, labels)
    assert data.element_spec[0].shape.rank is None
    np.testing.assert_allclose(model.predict(data, verbose=0), expected, atol=1e-5)
    assert np.isfinite(model.fit(data, verbose=0, shuffle=False).history["loss"][0])
    # A size that is wrong is an error of the graph.
    wrong = _batches(inputs[:, 1:], labels)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="(?i)shape"):
        model.fit(wrong, verbose=0, shuffle=False)
