import attention_reference as reference
import numpy as np
import pytest
from attention_reference import array_of
from keras import ops
from layer_contract import B, D, T, assert_close, flat, normal, randomize

from keras_attn.layers import FeedForward, Maxout


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_feed_forward_matches_the_equation(activation, use_bias):
    layer = FeedForward(29, activation=activation, use_bias=use_bias)
    inputs = normal(B, T, D)
    layer(inputs)
    randomize(layer)
    weights = [array_of(w).astype("float64") for w in layer.weights]
    kernels, biases = (weights[::2], weights[1::2]) if use_bias else (weights, [0, 0])
    assert [kernel.shape for kernel in kernels] == [(D, 29), (29, D)]
    hidden = getattr(reference, activation)(inputs @ kernels[0] + biases[0])
    assert_close(layer(inputs), hidden @ kernels[1] + biases[1])
    # The same at every position.
    assert_close(layer(inputs[:, 2:3]), layer(inputs)[:, 2:3], atol=1e-6)


def test_feed_forward_dropout_is_active_only_in_training():
    layer = FeedForward(29, dropout=0.5, seed=3)
    inputs = normal(B, T, D)
    layer(inputs)
    randomize(layer)
    expected, again = flat([layer(inputs), layer(inputs, training=False)])
    np.testing.assert_array_equal(expected, again)
    assert np.abs(flat(layer(inputs, training=True))[0] - expected).max() > 0.01


def test_feed_forward_kernels_start_different():
    layer = FeedForward(D)
    layer(normal(B, T, D))
    expand, contract = array_of(layer.expand.kernel), array_of(layer.contract.kernel)
    assert np.abs(expand - contract).max() > 0.1


def test_feed_forward_rejects_wrong_arguments():
    with pytest.raises(ValueError, match="`mlp_dim` must be a positive.*mlp_dim=0"):
        FeedForward(0)
    with pytest.raises(ValueError, match="`dropout` must be a probability.*dropout=1"):
        FeedForward(3, dropout=1)


def test_maxout_is_the_maximum_of_adjacent_units():
    inputs = np.array([[[1.0, 5.0, 3.0, 2.0, -1.0, -7.0]]], "float32")
    assert_close(Maxout()(inputs), np.array([[[5.0, 3.0, -1.0]]]), atol=0)
    assert_close(Maxout(pieces=3)(inputs), np.array([[[5.0, 2.0]]]), atol=0)
    assert_close(Maxout(1)(inputs), inputs, atol=0)


def test_maxout_of_two_pieces_can_be_relu():
    inputs = normal(B, T, D)
    pairs = ops.reshape(ops.stack([inputs, 0 * inputs], axis=-1), (B, T, 2 * D))
    assert_close(Maxout()(pairs), reference.relu(inputs), atol=0)


def test_maxout_rejects_wrong_arguments():
    with pytest.raises(ValueError, match="`pieces` must be a positive.*pieces=0"):
        Maxout(0)
    message = "The width must be a multiple of `pieces`. Received: width=11, pieces=3"
    with pytest.raises(ValueError, match=message):
        Maxout(3)(normal(B, T, D))
