"""GPT and the Transformer, beyond the contract of all models: bands and caches."""

import numpy as np
import pytest
import tensorflow as tf
from model_cases import create, inputs_for, logits_of, numpy, tiny
from model_family import V

from keras_attn import models
from keras_attn.decoding import next_state

BATCH, LENGTH = 3, 7
CASES = ("gpt_117m", "gpt2_small", "gpt3_small")
TRANSFORMERS = (
    "transformer_base",
    "transformer_base-pre_norm",
    "transformer_base-positions",
)


def test_every_second_block_of_gpt3_has_a_band():
    windows = [tiny("gpt3_small").get_layer(f"block_{i}").window for i in range(2)]
    assert windows == [None, 2]


def test_a_band_of_all_positions_has_no_effect():
    wide, plain = create("gpt3_small", window=31), tiny("gpt2_small")
    inputs = inputs_for(plain)
    np.testing.assert_allclose(
        logits_of(wide, inputs), logits_of(plain, inputs), rtol=0, atol=1e-5
    )
    narrow = logits_of(tiny("gpt3_small"), inputs)
    assert np.abs(narrow - logits_of(plain, inputs)).max() > 1e-2


def test_kernels_before_residuals_are_initialized_smaller():
    model = models.build_gpt(num_layers=8, hidden_dim=64, num_heads=2, mlp_dim=128)
    block = model.get_layer("block_3")
    deviations = [
        np.std(numpy(kernel))
        for kernel in (
            block.self_attention.query_key_value.kernel,
            block.self_attention.output_projection.kernel,
            block.feed_forward.expand.kernel,
            block.feed_forward.contract.kernel,
        )
    ]
    np.testing.assert_allclose(deviations, [0.02, 0.005, 0.02, 0.005], rtol=0.05)


def test_heads():
    encoder = tiny("gpt_encoder")
    inputs = inputs_for(encoder)
    features = numpy(encoder(inputs))
    for row, real in enumerate(inputs["padding_mask"].sum(1)):
        np.testing.assert_array_equal(
            features["pooled_output"][row], features["sequence_output"][row, real - 1]
        )
    with pytest.raises(TypeError, match="`model` must be .*build_gpt"):
        models.build_gpt_encoder(tiny("bert_base"))


def prompts(side):
    """Three prompts of 3, 1 and 7 tokens: as rows, and padded on one side."""
    rng = np.random.default_rng(5)
    rows = [rng.integers(1, V, size).astype("int32") for size in (3, 1, LENGTH)]
    token_ids = np.zeros((BATCH, LENGTH), "int32")
    mask = np.zeros((BATCH, LENGTH), bool)
    for index, row in enumerate(rows):
        start = 0 if side == "right" else LENGTH - len(row)
        tokens = slice(start, start + len(row))
        token_ids[index, tokens], mask[index, tokens] = row, True
    return rows, token_ids, mask


@pytest.mark.each_value
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("case", [*CASES, *TRANSFORMERS])
def test_logits_of_steps_equal_those_of_the_whole_sequence(case, side):
    """With any padding, each row continues as it would alone."""
    model = tiny(case)
    steps = 5
    pair = model.incremental(LENGTH + steps)
    rows, token_ids, mask = prompts(side)
    inputs = inputs_for(pair.prefill, batch=BATCH)
    own_mask = "padding_mask" if pair.prompt == "token_ids" else "decoder_padding_mask"
    inputs.update({pair.prompt: token_ids, own_mask: mask})
    outputs = numpy(pair.prefill(inputs))
    names = {tensor.name for tensor in pair.step.inputs} - {"token_ids"}
    state = {name: inputs[name] for name in names & set(inputs)}
    chosen = np.random.default_rng(9).integers(1, V, (steps, BATCH)).astype("int32")
    for index in range(steps + 1):
        for row, prompt in enumerate(rows):
            alone = {name: value[row : row + 1] for name, value in inputs.items()}
            alone.pop("decoder_padding_mask", None)
            tokens = np.concatenate([prompt, chosen[:index, row]])[None]
            alone[pair.prompt] = tokens.astype("int32")
            if pair.prompt == "token_ids":
                alone["padding_mask"] = np.ones(tokens.shape, bool)
            np.testing.assert_allclose(
                outputs["logits"][row], logits_of(model, alone)[0, -1], atol=1e-5
            )
        if index < steps:
            state = {name: outputs.get(name, state.get(name)) for name in names}
            changes = numpy(pair.step({**state, "token_ids": chosen[index]}))
            outputs = next_state(state, changes)


@pytest.mark.parametrize("case", [*CASES, *TRANSFORMERS])
def test_steps_do_not_copy_caches(case):
    """No tensor computed in a step is as large as a cache."""
    length, step = 29, tiny(case).incremental(29).step
    specs = {x.name: tf.TensorSpec((1, *x.shape[1:]), x.dtype) for x in step.inputs}
    graph = tf.function(step, autograph=False).get_concrete_function(specs).graph
    cache = specs["key_0"].shape.num_elements()
    computed = [
        tensor
        for operation in graph.get_operations()
        for tensor in operation.outputs
        # Runtimes fold the transpose of the keys into the product.
        if operation.type not in ("Placeholder", "ReadVariableOp", "Transpose")
    ]
    large = [x for x in computed if (x.shape.num_elements() or 0) >= cache]
    assert not [x for x in large if length in tuple(x.shape)]


def test_caches_have_the_length_given():
    pair = tiny("gpt2_small").incremental(11)
    assert pair.max_length == 11
    shapes = {tensor.name: tensor.shape for tensor in pair.step.inputs}
    assert shapes["key_1"] == shapes["value_1"] == (None, 3, 11, 7)
    assert tiny("gpt2_small").incremental().max_length == 31
    with pytest.raises(ValueError, match="`max_length` must be at most 31.*=32"):
        tiny("gpt2_small").incremental(32)
    # Sinusoids set no limit.
    assert tiny("transformer_base").incremental(1000).max_length == 1000
    learned = tiny("transformer_base-positions")
    assert learned.incremental().max_length == learned.max_length == 31
    with pytest.raises(ValueError, match="`max_length` must be at most 31.*=32"):
        learned.incremental(32)
