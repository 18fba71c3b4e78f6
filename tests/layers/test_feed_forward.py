import attention_reference as reference
import pytest
from attention_reference import array_of
from layer_contract import B, D, T, assert_close, normal, randomize

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


def test_maxout_rejects_wrong_arguments():
    with pytest.raises(ValueError, match="`pieces` must be a positive.*pieces=0"):
        Maxout(0)
    message = "The width must be a multiple of `pieces`. Received: width=11, pieces=3"
    with pytest.raises(ValueError, match=message):
        Maxout(3)(normal(B, T, D))
