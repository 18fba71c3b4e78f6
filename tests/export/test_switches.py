"""Models with max unpooling: other choices of equal maxima pass, wrong ones do not."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from export_formats import SUFFIXES
from keras import layers

from keras_attn.export import ExportError, export, verify
from keras_attn.layers import MaxPoolWithIndices, MaxUnpool2D
from keras_attn.layers.convolution.switches import chosen, watched_switches
from keras_attn.ops import max_pool_with_indices

H, W, C = 7, 11, 3


@pytest.fixture(scope="module")
def network():
    """Pools, doubles by a convolution, unpools and convolves."""
    keras.utils.set_random_seed(2)
    images = layers.Input((H, W, C), name="images")
    values, indices = MaxPoolWithIndices(padding="same", name="pooling")(images)
    values = layers.Conv2D(C, 3, padding="same", name="inner")(values)
    restored = MaxUnpool2D(padding="same", name="unpooling")(values, indices, images)
    return keras.Model(images, layers.Conv2D(2, 3, name="outer")(restored))


@pytest.fixture(scope="module")
def images():
    """Every window of one of them has two maxima, which differ by 4e-6."""
    pictures = np.random.default_rng(5).uniform(0, 1, (2, H, W, C)).astype("float32")
    pictures[0, ::2, ::2] = 2
    pictures[0, ::2, 1::2] = 2 + 4e-6
    return pictures


def in_graphs(monkeypatch, change_inputs=None, change=None, change_unseen=None):
    """Lets the layer do something else in an artefact than in Keras.

    Args:
        monkeypatch: Of the test.
        change_inputs: Changes what is compared for the maximum.
        change: Changes the indices.
        change_unseen: Changes the indices that unpooling gets, and no others.
    """

    def call(self, inputs):
        options = self.pool_size, self.padding
        maxima, indices = max_pool_with_indices(inputs, *options)
        if tf.executing_eagerly():
            return maxima, chosen(self, inputs, maxima, indices)
        if change_inputs:
            _, indices = max_pool_with_indices(change_inputs(inputs), *options)
        if change:
            indices = change(indices)
        indices = chosen(self, inputs, maxima, indices)
        return maxima, change_unseen(indices) if change_unseen else indices

    monkeypatch.setattr(MaxPoolWithIndices, "call", call)


def rounded(inputs):
    return tf.round(inputs * 1e4) / 1e4


def shifted(indices):
    return (indices + 1) % 4


@pytest.mark.parametrize(
    "suffix",
    ["", *(pytest.param(x, marks=pytest.mark.shipped) for x in SUFFIXES.values() if x)],
)
def test_another_choice_of_equal_maxima_is_accepted(
    network, images, tmp_path, monkeypatch, suffix
):
    in_graphs(monkeypatch, change_inputs=rounded)
    path = tmp_path / f"model{suffix}"
    report = export(network, path, sample_inputs=images)
    assert report.max_abs_diff is not None and report.max_abs_diff < 1e-5
    assert "the artefact's choices" in " ".join(report.notes)
    assert verify(network, path, sample_inputs=images).outputs == report.outputs
    # It is another choice indeed.
    monkeypatch.undo()
    with pytest.raises(ExportError, match="from the same model exported"):
        verify(network, path, sample_inputs=images)


@pytest.mark.shipped
def test_wrong_places_are_refused(network, images, tmp_path, monkeypatch):
    in_graphs(monkeypatch, change=shifted)
    with pytest.raises(ExportError, match="`pooling` chooses a location whose"):
        export(network, tmp_path / "model", sample_inputs=images)
    in_graphs(monkeypatch, change=lambda indices: indices + 4)
    with pytest.raises(ExportError, match="whose value is inf below the maximum"):
        export(network, tmp_path / "model", sample_inputs=images)
    in_graphs(monkeypatch, change_unseen=shifted)
    with pytest.raises(ExportError, match="`outer` of `serve` differs from Keras by"):
        export(network, tmp_path / "model", sample_inputs=images)
    assert not (tmp_path / "model").exists()


@pytest.mark.shipped
@pytest.mark.parametrize("layer", ["inner", "outer"])
def test_one_wrong_weight_is_refused(network, images, tmp_path, monkeypatch, layer):
    in_graphs(monkeypatch, change_inputs=rounded)
    export(network, tmp_path / "model", sample_inputs=images)
    kernel = network.get_layer(layer).kernel
    before = kernel.numpy()
    after = before.copy()
    after[1, 1, 1, 1] += 1e-2
    kernel.assign(after)
    try:
        with pytest.raises(ExportError, match="from the same model exported"):
            verify(network, tmp_path / "model", sample_inputs=images)
    finally:
        kernel.assign(before)
    verify(network, tmp_path / "model", sample_inputs=images)


def test_watched_switches(network, images):
    expected = network(images)
    with watched_switches() as calls:
        network(images)
    [call] = calls
    assert call.layer is network.get_layer("pooling")
    np.testing.assert_array_equal(call.inputs, images)
    with watched_switches([call.indices]):
        np.testing.assert_array_equal(network(images), expected)
    with watched_switches([shifted(call.indices)]) as calls:
        assert np.abs(network(images) - expected).max() > 0.1
    np.testing.assert_array_equal(calls[0].indices, shifted(call.indices))
    # Nothing is left behind.
    np.testing.assert_array_equal(network(images), expected)
