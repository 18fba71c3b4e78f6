"""XLNet: visibility in its two streams.

`parity/test_xlnet_checkpoints.py` compares it with transformers.
"""

from typing import Any

import numpy as np
from layer_contract import flat, randomize
from model_cases import dropout_rates, tiny

from keras_attn.models import xlnet
from keras_attn.viz import capture_attention

B, T, P = 2, 7, 3  # Batch, length, targets.
V, D, N, MLP = 41, 30, 5, 13
TINY: dict[str, Any] = {
    "vocabulary_size": V,
    "num_layers": 2,
    "hidden_dim": D,
    "num_heads": N,
    "mlp_dim": MLP,
}
# The rank of each token in the order; the second row begins with two padding tokens.
ORDER = np.array([[4, 0, 6, 1, 2, 5, 3], [7, 8, 1, 4, 0, 2, 3]])
TARGETS = np.array([[0, 1, 2], [3, 4, 6]])


def make_inputs(seed=1):
    rng = np.random.default_rng(seed)
    padding = np.ones((B, T), bool)
    padding[1, :2] = False
    return {
        "token_ids": rng.integers(0, V, (B, T)).astype("int32"),
        "padding_mask": padding,
        "segment_ids": np.array([[0, 0, 0, 1, 1, 1, 2], [0, 0, 0, 0, 0, 1, 2]]),
    }


def two_streams():
    mask = ORDER[:, :, None] > ORDER[:, None, :]
    mapping = np.eye(T, dtype="float32")[TARGETS]
    return {**make_inputs(), "permutation_mask": mask, "target_mapping": mapping}


def make_encoder():
    """An encoder with random weights, the gains of the norms too."""
    encoder = xlnet.build_xlnet(**TINY, dropout=0.0)
    randomize(encoder)
    return encoder


def make(kind):
    """A model of a kind with random weights, and inputs for it."""
    encoder = make_encoder()
    if kind == "encoder":
        return encoder, make_inputs()
    two_stream = kind == "permutation_lm"
    model = xlnet.build_xlnet_permutation_lm(encoder, two_stream=two_stream)
    randomize(model)
    return model, two_streams() if two_stream else make_inputs()


def close(actual, expected, atol=1e-5):
    assert len(flat(actual)) == len(flat(expected))
    for one, other in zip(flat(actual), flat(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)


def test_dropout_is_of_embeddings_positions_and_outputs():
    model = tiny("xlnet_base-memory")
    dropped = ("embeddings_dropout", "positions_dropout", "output_dropout")
    assert dropout_rates(model) == dict.fromkeys(dropped, 0.1)
    block = model.get_layer("block_1")
    assert (block.dropout, block.attention_dropout) == (0.1, 0.1)


def test_targets_attend_to_earlier_tokens_only():
    """A change of each token in turn changes only the targets after it."""
    model, inputs = make("permutation_lm")
    before = flat(model(inputs))[0]
    for token in range(T):
        ids = inputs["token_ids"].copy()
        ids[:, token] = (ids[:, token] + 1) % V
        change = np.abs(flat(model({**inputs, "token_ids": ids}))[0] - before).max(-1)
        for row in range(B):
            for p, target in enumerate(TARGETS[row]):
                # Directly, or through the tokens before it.
                is_visible = ORDER[row, token] < ORDER[row, target]
                is_visible &= bool(inputs["padding_mask"][row, token])
                if is_visible:
                    assert change[row, p] > 1e-3, (row, token, target)
                else:
                    assert change[row, p] == 0, (row, token, target)
    # The first token of each order is a target: it attends to nothing.
    assert (np.take_along_axis(ORDER, TARGETS, 1) == 0).any(1).all()


def test_content_stream_attends_to_itself():
    model, inputs = make("content_lm")
    before = flat(model(inputs))[0]
    ids = inputs["token_ids"].copy()
    ids[:, 4] = (ids[:, 4] + 1) % V
    change = np.abs(flat(model({**inputs, "token_ids": ids}))[0] - before).max(-1)
    assert (change[inputs["padding_mask"]] > 1e-4).all()
    assert (change[:, 4] > 1e-2).all()


def test_targets_depend_on_their_position_and_not_on_empty_rows():
    model, inputs = make("permutation_lm")
    before = flat(model(inputs))[0]
    swapped = {**inputs, "target_mapping": inputs["target_mapping"][:, ::-1]}
    close(model(swapped), before[:, ::-1])
    mapping = inputs["target_mapping"].copy()
    mapping[:, 1] = 0
    after = flat(model({**inputs, "target_mapping": mapping}))[0]
    close(after[:, [0, 2]], before[:, [0, 2]])
    assert np.isfinite(after).all()


def test_only_equality_of_segments_matters():
    model, inputs = make("encoder")
    real = inputs["padding_mask"]
    before = flat(model(inputs)["sequence_output"])[0][real]
    renamed = {**inputs, "segment_ids": 7 - 2 * inputs["segment_ids"]}
    close(flat(model(renamed)["sequence_output"])[0][real], before)
    merged = {**inputs, "segment_ids": np.zeros_like(inputs["segment_ids"])}
    after = flat(model(merged)["sequence_output"])[0][real]
    assert np.abs(after - before).max() > 1e-2


def test_padding_in_the_middle_affects_distances_only():
    model, inputs = make("encoder")
    padding = inputs["padding_mask"].copy()
    padding[:, 3:5] = False
    hidden = {**inputs, "padding_mask": padding}
    before = flat(model(hidden)["sequence_output"])[0][padding]
    junk = {**hidden, "token_ids": np.where(padding, inputs["token_ids"], 13)}
    close(flat(model(junk)["sequence_output"])[0][padding], before)
    everything = flat(model(inputs)["sequence_output"])[0][padding]
    assert np.abs(before - everything).max() > 1e-2


def test_attention_of_both_streams_is_captured():
    model, inputs = make("permutation_lm")
    captured = capture_attention(model, inputs)
    assert set(captured) == {
        "block_0/attention",
        "block_0/attention/query_stream",
        "block_1/attention/query_stream",
    }
    mask = inputs["permutation_mask"] & inputs["padding_mask"][:, None]
    mask = np.take_along_axis(mask, TARGETS[..., None], 1)[:, None]
    for name, scores in captured.items():
        if name.endswith("query_stream"):
            assert scores.shape == (B, N, P, T)
            np.testing.assert_array_equal(
                scores > 0, np.broadcast_to(mask, scores.shape)
            )


def test_pooling_uses_real_tokens():
    encoder, inputs = make("encoder")
    inputs["padding_mask"][0, 5:] = False
    outputs = encoder(inputs)
    sequence = flat(outputs["sequence_output"])[0]
    close(outputs["pooled_output"], sequence[[0, 1], [4, 6]], atol=0)
    model = xlnet.build_xlnet_sentence_encoder(encoder, normalize=False)
    real = inputs["padding_mask"][..., None]
    close(model(inputs), (sequence * real).sum(1) / real.sum(1))
    next_sentence = xlnet.build_xlnet_next_sentence(encoder)
    kernel, bias = next_sentence.get_layer("next_sentence").get_weights()
    close(next_sentence(inputs), flat(outputs["pooled_output"])[0] @ kernel + bias)
