"""The layers of XLNet; the equations are checked in `test_relative_attention.py`.

Outputs are compared with transformers' in `parity/test_xlnet_checkpoints.py`.
"""

import inspect
import json

import keras
import numpy as np
import pytest
from keras import ops
from layer_contract import BLOCK_OPTIONS, assert_close, flat, gradients, randomize
from layers.relative_cases import (
    CALLS,
    EARLIER,
    ITSELF,
    MAPPING,
    PERMUTED,
    B,
    D,
    H,
    M,
    N,
    P,
    S,
    T,
    draw,
    visible_mask,
)

from keras_attn.layers.attention.relative_attention import RelativeMultiHeadAttention
from keras_attn.layers.blocks.xlnet_block import (
    SegmentMemory,
    TargetEmbedding,
    XLNetBlock,
    permutation_mask,
)
from keras_attn.layers.embeddings.relative_position_encoding import (
    RelativePositionEncoding,
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


def layers():
    """The layers of both files, with no option at its default."""
    return {
        "attention": RelativeMultiHeadAttention(
            N,
            H,
            dropout=0.2,
            kernel_initializer="he_normal",
            bias_initializer="ones",
            seed=3,
        ),
        "encoding": RelativePositionEncoding(5, max_wavelength=100),
        "target": TargetEmbedding("ones"),
        "memory": SegmentMemory(3),
        "block": XLNetBlock(
            N, MLP, key_dim=H, bias_initializer="ones", **BLOCK_OPTIONS
        ),
    }


@pytest.mark.parametrize("name", list(layers()))
def test_a_config_creates_an_equal_layer(name):
    layer = layers()[name]
    config = json.loads(json.dumps(layer.get_config()))
    twin = type(layer).from_config(config)
    assert json.loads(json.dumps(twin.get_config())) == config
    assert set(inspect.signature(type(layer).__init__).parameters) - {
        "self",
        "kwargs",
    } <= set(config)
    # No option is at its default, so an omitted one would be noticed.
    needed = {
        "attention": {"num_heads": 1, "key_dim": 1},
        "block": {"num_heads": 1, "mlp_dim": 1},
        "memory": {"memory_length": 1},
    }
    plain = type(layer)(**needed.get(name, {})).get_config()
    assert {key for key in config if config[key] == plain[key]} == {
        "trainable",
        "dtype",
    }


def functional(known=False):
    """A block with memory, called for both streams."""
    size = (lambda n: n) if known else (lambda n: None)
    inputs = {
        "inputs": keras.Input((size(T), D), name="inputs"),
        "targets": keras.Input((size(P), D), name="targets"),
        "target_mapping": keras.Input((size(P), size(T)), name="target_mapping"),
        "memory": keras.Input((size(M), D), name="memory"),
        "permutation_mask": keras.Input(
            (size(T), size(T)), dtype="bool", name="permutation_mask"
        ),
        "padding_mask": keras.Input((size(S),), dtype="bool", name="padding_mask"),
        "same_segment": keras.Input(
            (size(T), size(S)), dtype="bool", name="same_segment"
        ),
    }
    block = XLNetBlock(N, MLP, key_dim=H, name="block")
    content = {k: x for k, x in inputs.items() if not k.startswith("target")}
    outputs = {
        "content": block(**content, return_attention_scores=True),
        "targets": block(**inputs, return_attention_scores=True),
    }
    model = keras.Model(inputs, outputs)
    randomize(model)
    return model


def model_inputs():
    call = {**PERMUTED["targets_all"], "inputs": draw(B, T, D)}
    return {k: x for k, x in call.items() if k != "attention_mask"}


# Keras 3.15 turns TensorFlow's variables into NumPy arrays in a way NumPy 2 dislikes.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_outputs_are_the_same_saved_compiled_and_symbolic(tmp_path):
    model, inputs = functional(), model_inputs()
    outputs = model(inputs)
    shapes = keras.tree.map_structure(lambda x: tuple(x.shape), outputs)
    assert shapes == {
        "content": ((B, T, D), (B, N, T, S)),
        "targets": ((B, P, D), (B, N, P, S)),
    }
    symbolic = keras.tree.map_structure(lambda x: x.shape, functional(True).output)
    assert symbolic == {
        "content": ((None, T, D), (None, N, T, S)),
        "targets": ((None, P, D), (None, N, P, S)),
    }
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    assert_close(loaded(inputs), outputs, atol=1e-6)
    assert [w.path for w in loaded.weights] == [w.path for w in model.weights]
    for jit_compile in (False, True):
        model.compile(jit_compile=jit_compile)
        assert_close(model.predict(inputs, verbose=0), outputs, atol=2e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_in_half_precision(policy):
    inputs = model_inputs()
    full = functional()(inputs)
    keras.config.set_dtype_policy(policy)
    try:
        half = functional()(inputs)
    finally:
        keras.config.set_dtype_policy("float32")
    for stream, scores in half.values():
        assert keras.backend.standardize_dtype(stream.dtype) == policy[6:]
        assert keras.backend.standardize_dtype(scores.dtype) == "float32"
    # Outputs are layer norms, so of order one.
    assert_close(half, full, atol=0.15)


def test_both_streams_are_recorded():
    model, inputs = functional(), model_inputs()
    with record_attention_scores() as recorded:
        outputs = model(inputs)
    assert set(recorded) == {"block/attention", "block/attention/query_stream"}
    assert_close(recorded["block/attention"], outputs["content"][1], atol=0)
    queries = recorded["block/attention/query_stream"]
    assert_close(queries, outputs["targets"][1], atol=0)


def test_key_dim_defaults_to_the_width_per_head():
    block = XLNetBlock(3, MLP)
    block.build((B, T, 21))
    assert block.attention.key_dim == 7
    with pytest.raises(
        ValueError, match="must be a multiple of `num_heads`.*width=17, num_heads=11"
    ):
        XLNetBlock(N, MLP).build((B, T, D))


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda: RelativeMultiHeadAttention(0, H), "`num_heads` must be a positive"),
        (
            lambda: RelativeMultiHeadAttention(N, 1.5),  # pyright: ignore[reportArgumentType]
            "`key_dim` must be a positive",
        ),
        (
            lambda: RelativeMultiHeadAttention(N, H, dropout=1.0),
            "`dropout` must be a probability",
        ),
        (lambda: RelativePositionEncoding(0), "`max_distance` must be a positive"),
        (
            lambda: RelativePositionEncoding().call(draw(T, D)),
            "`inputs` must have 3 axes",
        ),
        (
            lambda: RelativePositionEncoding().call(draw(B, T, D), draw(M, D)),
            "`memory` must have 3 axes",
        ),
        (lambda: SegmentMemory(0), "`memory_length` must be a positive"),
        (lambda: TargetEmbedding().call(draw(T, D)), "`inputs` must have 3 axes"),
        (
            lambda: TargetEmbedding().call(draw(B, T, D), MAPPING[0]),
            "`target_mapping` must have 3 axes",
        ),
        (lambda: XLNetBlock(0, MLP), "`num_heads` must be a positive"),
        (lambda: XLNetBlock(N, 0), "`mlp_dim` must be a positive"),
        (lambda: XLNetBlock(N, MLP, dropout=2.0), "`dropout` must be a probability"),
        (
            lambda: XLNetBlock(N, MLP, attention_dropout=-1.0),
            "`attention_dropout` must be a probability",
        ),
    ],
)
def test_wrong_arguments_are_rejected(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_dropout_is_active_only_in_training():
    inputs = draw(B, T, D)
    block = XLNetBlock(N, MLP, key_dim=H, dropout=0.5, seed=1)
    expected, dropped = block(inputs), block(inputs, training=True)
    assert_close(block(inputs), expected, atol=0)
    assert np.abs(flat(expected)[0] - flat(dropped)[0]).max() > 0.1
