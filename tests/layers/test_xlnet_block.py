"""The layers of XLNet; the equations are checked in `test_relative_attention.py`.

Outputs are compared with transformers' in `parity/test_xlnet_checkpoints.py`.
"""

import keras
import numpy as np
import pytest
from keras import ops
from layer_contract import assert_close, gradients
from layers.relative_cases import (
    CALLS,
    EARLIER,
    ITSELF,
    MAPPING,
    PERMUTED,
    B,
    D,
    H,
    N,
    P,
    T,
    draw,
    visible_mask,
)

from keras_attn.layers.blocks.xlnet_block import (
    SegmentMemory,
    TargetEmbedding,
    XLNetBlock,
    permutation_mask,
)
from keras_attn.layers.recorder import record_attention_scores

MLP = 19


def test_permutation_mask_follows_the_order():
    got = permutation_mask(np.array([[2, 0, 1, 0]]))
    expected = [[[0, 1, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]]]
    np.testing.assert_array_equal(ops.convert_to_numpy(got), np.array(expected, bool))


def pairs():
    """Calls with an order, and with the mask that it stands for."""
    yield from ((PERMUTED[name], CALLS[name]) for name in PERMUTED)
    seen = EARLIER | ITSELF
    for mask, visible in (
        (visible_mask(B, T, T), seen),
        (visible_mask(B, N, T, T), seen[:, None]),
    ):
        given = {**PERMUTED["order"], "attention_mask": mask}
        yield given, {"attention_mask": mask & visible}


@pytest.mark.parametrize("permuted, masked", [*pairs()])
def test_an_order_is_a_mask(permuted, masked):
    """Tokens attend to those before them, in the content stream also to themselves."""
    block = XLNetBlock(N, MLP, key_dim=H)
    found, expected = (
        block(draw(B, T, D), **call, return_attention_scores=True)
        for call in (permuted, masked)
    )
    assert_close(found, expected, atol=0)


@pytest.mark.parametrize(
    "masks, message",
    [
        (
            {"permutation_mask": EARLIER[0]},
            r"`permutation_mask` must have 3 axes, \(batch, query length",
        ),
        (
            {"permutation_mask": EARLIER, "attention_mask": np.ones((T, 3), bool)},
            r"`attention_mask` must have the shape .*\(5, 5\).*\(5, 3\)",
        ),
    ],
)
def test_wrong_masks_are_refused(masks, message):
    block, inputs = XLNetBlock(N, MLP, key_dim=H), draw(B, T, D)
    block(inputs)
    with pytest.raises(ValueError, match=message):
        block.call(inputs, **masks)


def test_target_embedding_returns_tokens_or_one_vector():
    layer, inputs = TargetEmbedding("normal"), draw(B, T, D)
    assert_close(layer(inputs), inputs, atol=0)
    vector = np.asarray(layer.embeddings)
    assert vector.shape == (1, D)
    expected = np.broadcast_to(vector, (B, P, D))
    assert_close(layer(inputs, MAPPING), expected, atol=0)
    symbol = layer(keras.Input((None, D)), keras.Input((None, None)))
    assert symbol.shape == (None, None, D)


def test_memory_keeps_the_last_states_without_gradient():
    memory, inputs = draw(B, 4, D, seed=1), draw(B, T, D)
    states = np.concatenate([memory, inputs], 1)
    assert_close(SegmentMemory(3)(inputs, memory), inputs[:, -3:], atol=0)
    assert_close(SegmentMemory(7)(inputs, memory), states[:, -7:], atol=0)
    assert_close(SegmentMemory(50)(inputs, memory), states, atol=0)
    first = SegmentMemory(50)(inputs, np.zeros((B, 0, D), "float32"))
    assert_close(first, inputs, atol=0)

    class ScaledMemory(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(), initializer="ones")
            self.memory = SegmentMemory(3)

        def call(self, inputs):
            scaled = ops.multiply(inputs, self.scale)
            return ops.sum(self.memory(scaled, scaled)) + 0.0 * self.scale

    layer = ScaledMemory()
    layer(inputs)
    assert [float(g) for g in gradients(layer, inputs=inputs).values()] == [0.0]


def test_both_streams_are_recorded():
    block, inputs = XLNetBlock(N, MLP, key_dim=H, name="block"), draw(B, T, D)
    with record_attention_scores() as recorded:
        _, content = block(inputs, return_attention_scores=True)
        _, queries = block(inputs, **CALLS["targets"], return_attention_scores=True)
    assert list(recorded) == ["block/attention", "block/attention/query_stream"]
    assert_close(list(recorded.values()), [content, queries], atol=0)


def test_key_dim_defaults_to_the_width_per_head():
    block = XLNetBlock(3, MLP)
    block.build((B, T, 21))
    assert block.attention.key_dim == 7
    with pytest.raises(ValueError, match="of `num_heads`.*width=17, num_heads=11"):
        XLNetBlock(N, MLP).build((B, T, D))
