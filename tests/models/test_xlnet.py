"""XLNet: visibility in its two streams.

`parity/test_xlnet_checkpoints.py` compares it with transformers.
"""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops
from layer_contract import flat, randomize
from model_cases import dropout_rates

from keras_attn.models import xlnet
from keras_attn.training.masking.permutation_lm import PermutationLMMasking
from keras_attn.viz import capture_attention

B, T, P = 2, 7, 3  # Batch, length, targets.
V, D, N, MLP, C = 41, 30, 5, 13, 11
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


def with_memory(inputs, length=4):
    rng = np.random.default_rng(9)
    memory = {f"memory_{i}": rng.normal(size=(B, length, D)) for i in range(2)}
    return {**inputs, **{k: x.astype("float32") for k, x in memory.items()}}


def make_encoder(**options):
    """An encoder with random weights, the gains of the norms too."""
    encoder = xlnet.build_xlnet(**{**TINY, "dropout": 0.0, **options})
    randomize(encoder)
    return encoder


CLASSES = {"num_classes": C, "dropout": 0.0}
HEADS = {
    "permutation_lm": (xlnet.build_xlnet_permutation_lm, {}),
    "content_lm": (xlnet.build_xlnet_permutation_lm, {"two_stream": False}),
    "next_sentence": (xlnet.build_xlnet_next_sentence, {}),
    "classifier": (xlnet.build_xlnet_classifier, CLASSES),
    "token_classifier": (xlnet.build_xlnet_token_classifier, CLASSES),
    "span_qa": (xlnet.build_xlnet_span_qa, {}),
    "sentence_encoder": (xlnet.build_xlnet_sentence_encoder, {}),
}
SHAPES = {
    "encoder": {"sequence_output": (B, T, D), "pooled_output": (B, D)},
    "memory": {
        "sequence_output": (B, T, D),
        "pooled_output": (B, D),
        "memory_0": (B, 5, D),
        "memory_1": (B, 5, D),
    },
    "permutation_lm": (B, P, V),
    "content_lm": (B, T, V),
    "next_sentence": (B, 2),
    "classifier": (B, C),
    "token_classifier": (B, T, C),
    "span_qa": {"start_logits": (B, T), "end_logits": (B, T)},
    "sentence_encoder": (B, D),
}


def make(kind, encoder=None, **options):
    """A model of a kind with random weights, and inputs for it."""
    if kind == "memory":
        return make_encoder(memory_length=5, **options), with_memory(make_inputs())
    encoder = make_encoder(**options) if encoder is None else encoder
    if kind == "encoder":
        return encoder, make_inputs()
    builder, arguments = HEADS[kind]
    model = builder(encoder, **arguments)
    randomize(model)
    return model, two_streams() if kind == "permutation_lm" else make_inputs()


def close(actual, expected, atol=1e-5):
    assert len(flat(actual)) == len(flat(expected))
    for one, other in zip(flat(actual), flat(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)


def test_layers_and_inputs_have_their_documented_names():
    model, _ = make("memory")
    names = {layer.name for layer in model.layers} - {x.name for x in model.inputs}
    assert names == {
        "token_embedding",
        "embeddings_dropout",
        "target_embedding",
        "relative_positions",
        "positions_dropout",
        "block_0",
        "block_1",
        "output_dropout",
        "last_token",
        "segment_memory",
    }
    assert {x.name: x.dtype for x in model.inputs} == {
        "token_ids": "int32",
        "padding_mask": "bool",
        "segment_ids": "int32",
        "memory_0": "float32",
        "memory_1": "float32",
    }


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


@pytest.mark.parametrize("kind", ["encoder", "classifier", "span_qa", "memory"])
def test_padding_anywhere_changes_nothing(kind):
    """Four more padding tokens, on the left or on the right, with any content."""
    model, inputs = make(kind)
    names = ("token_ids", "padding_mask", "segment_ids")
    before = keras.tree.map_structure(lambda x: flat(x)[0], model(inputs))
    for left in (0, 3, 4):
        if kind == "memory" and left:
            continue  # Padding changes the distances to the memory.
        padded = dict(inputs)
        for name in names:
            fill = [(0, 0), (left, 4 - left)]
            padded[name] = np.pad(inputs[name], fill)
        junk = np.random.default_rng(left).integers(0, V, padded["token_ids"].shape)
        ids = np.where(padded["padding_mask"], padded["token_ids"], junk)
        padded["token_ids"] = ids.astype("int32")
        after = keras.tree.map_structure(lambda x: flat(x)[0], model(padded))
        if kind == "classifier":
            close(after, before)
            continue
        for name in set(before) - {"memory_0", "memory_1"}:
            actual = after[name]
            if name != "pooled_output":
                actual = actual[:, left : left + T][inputs["padding_mask"]]
                close(actual, before[name][inputs["padding_mask"]])
            else:
                close(actual, before[name])


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


@pytest.mark.compiled
def test_trains_on_the_published_objective_with_and_without_xla():
    losses, weights = [], []
    for jit_compile in (False, True):
        model, inputs = make("permutation_lm", attention_dropout=0.0)
        masking = PermutationLMMasking(one_in=3, max_predictions=P, seed=1)
        masked = masking(inputs["token_ids"], inputs["padding_mask"])
        labels = ops.convert_to_numpy(masked.pop("labels"))
        del masked["sample_weight"]
        inputs = {
            name: np.asarray(ops.convert_to_numpy(value))
            for name, value in {**inputs, **masked}.items()
        }
        before = [w.numpy() for w in model.trainable_weights]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss=loss, jit_compile=jit_compile)
        history = model.fit(inputs, labels, batch_size=B, verbose=0)
        losses.append(history.history["loss"][0])
        weights.append(model.get_weights())
        for old, weight in zip(before, model.trainable_weights, strict=True):
            assert np.any(old != weight.numpy()), weight.path
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    for plain, compiled in zip(*weights, strict=True):
        np.testing.assert_allclose(plain, compiled, rtol=0, atol=1e-4)


def test_dropout_is_active_in_training_only():
    model = xlnet.build_xlnet(**TINY)
    inputs = make_inputs()
    inference = [flat(model(inputs))[0] for _ in range(2)]
    np.testing.assert_array_equal(inference[0], inference[1])
    training = flat(model(inputs, training=True))[0]
    assert np.abs(training - inference[0]).max() > 0.1
    assert dropout_rates(model) == {
        "embeddings_dropout": 0.1,
        "positions_dropout": 0.1,
        "output_dropout": 0.1,
    }
    block = model.get_layer("block_1")
    assert (block.dropout, block.attention_dropout) == (0.1, 0.1)


def test_attention_can_be_captured():
    model, inputs = make("encoder")
    captured = capture_attention(model, inputs)
    assert list(captured) == ["block_0/attention", "block_1/attention"]
    for scores in captured.values():
        assert scores.shape == (B, N, T, T)
        np.testing.assert_allclose(scores.sum(-1), 1, rtol=0, atol=1e-5)
        assert not scores[1, :, :, :2].any() and (scores[1, :, :, 2:] > 0).all()
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


def test_error_messages():
    with pytest.raises(ValueError, match="`variant` must be one of 'base', 'large'"):
        xlnet.build_xlnet("small")
    with pytest.raises(ValueError, match="`memory_length` must be a positive integer"):
        xlnet.build_xlnet(**TINY, memory_length=0)
    with pytest.raises(ValueError, match="`max_distance` must be a positive integer"):
        xlnet.build_xlnet(**TINY, max_distance=0)
    with pytest.raises(TypeError, match="`encoder` must be .*`build_xlnet`"):
        xlnet.build_xlnet_classifier(keras.Sequential(), num_classes=C)
    with pytest.raises(ValueError, match="`num_classes` must be a positive integer"):
        xlnet.build_xlnet_classifier(make_encoder(), num_classes=0)
