"""XLNet: what its two streams may see, and what is asked of every model.

That it computes what transformers computes is in `parity/test_xlnet_checkpoints.py`.
"""

import json
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops
from layer_contract import flat, gradients, randomize

from keras_attn.models import registry, xlnet
from keras_attn.training.permutation_lm import PermutationLMMasking
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
# The turn of each token; the second row begins with two tokens of padding.
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
    """All its weights drawn, the gains of the norms too."""
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
    """A model of a kind, all its weights drawn, and inputs for it."""
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


@pytest.mark.parametrize(
    "name, count", [("xlnet_base", 116_718_336), ("xlnet_large", 360_268_800)]
)
def test_has_the_published_number_of_parameters(name, count):
    assert registry.count_parameters(name) == count
    card = registry.describe(name)
    assert card.family == "xlnet" and card.year == 2019
    assert card.parameters is not None
    # The paper's own figures are BERT's, to which it sets itself equal.
    assert abs(card.parameters - count) / count < 0.06


def test_every_variant_is_registered():
    names = {f"xlnet_{variant}" for variant in xlnet.VARIANTS}
    assert set(registry.list_models("xlnet_*")) == names


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


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("kind", SHAPES)
def test_saved_and_cloned_it_gives_the_same(kind, tmp_path):
    model, inputs = make(kind)
    outputs = model(inputs)
    shapes = keras.tree.map_structure(lambda x: tuple(x.shape), outputs)
    assert shapes == SHAPES[kind]
    symbolic = keras.tree.map_structure(lambda x: len(x.shape), model.output)
    assert symbolic == keras.tree.map_structure(lambda x: len(x.shape), outputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    close(loaded(inputs), outputs, atol=0)
    assert [w.path for w in loaded.weights] == [w.path for w in model.weights]
    twin = keras.Model.from_config(json.loads(json.dumps(model.get_config())))
    twin.set_weights(model.get_weights())
    close(twin(inputs), outputs, atol=0)


@pytest.mark.parametrize("kind", ["memory", "permutation_lm", "sentence_encoder"])
def test_compiled_it_gives_the_same(kind):
    model, inputs = make(kind)
    for jit_compile in (False, True):
        model.compile(jit_compile=jit_compile)
        predicted = model.predict(inputs, verbose=0)
        close(predicted, model(inputs), atol=2e-5)


def test_heads_share_the_encoder():
    encoder = make_encoder()
    for kind in HEADS:
        model, _ = make(kind, encoder)
        for layer in ("token_embedding", "block_0", "block_1"):
            assert model.get_layer(layer) is encoder.get_layer(layer)


def test_targets_do_not_see_themselves_or_what_comes_later():
    """Every token is changed in turn, and who notices is who may."""
    model, inputs = make("permutation_lm")
    before = flat(model(inputs))[0]
    for token in range(T):
        ids = inputs["token_ids"].copy()
        ids[:, token] = (ids[:, token] + 1) % V
        change = np.abs(flat(model({**inputs, "token_ids": ids}))[0] - before).max(-1)
        for row in range(B):
            for p, target in enumerate(TARGETS[row]):
                # What a token before it saw of another, it sees as well.
                is_seen = ORDER[row, token] < ORDER[row, target]
                is_seen &= bool(inputs["padding_mask"][row, token])
                if is_seen:
                    assert change[row, p] > 1e-3, (row, token, target)
                else:
                    assert change[row, p] == 0, (row, token, target)
    # The first of an order is among the targets: it sees nothing at all.
    assert (np.take_along_axis(ORDER, TARGETS, 1) == 0).any(1).all()


def test_content_stream_sees_itself():
    model, inputs = make("content_lm")
    before = flat(model(inputs))[0]
    ids = inputs["token_ids"].copy()
    ids[:, 4] = (ids[:, 4] + 1) % V
    change = np.abs(flat(model({**inputs, "token_ids": ids}))[0] - before).max(-1)
    assert (change[inputs["padding_mask"]] > 1e-4).all()
    assert (change[:, 4] > 1e-2).all()


def test_places_of_targets_count_and_empty_rows_harm_nobody():
    model, inputs = make("permutation_lm")
    before = flat(model(inputs))[0]
    swapped = {**inputs, "target_mapping": inputs["target_mapping"][:, ::-1]}
    close(model(swapped), before[:, ::-1])
    mapping = inputs["target_mapping"].copy()
    mapping[:, 1] = 0
    after = flat(model({**inputs, "target_mapping": mapping}))[0]
    close(after[:, [0, 2]], before[:, [0, 2]])
    assert np.isfinite(after).all()


def test_only_whether_segments_are_the_same_counts():
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
    """Four more tokens of padding, on the left, on the right, with any content."""
    model, inputs = make(kind)
    names = ("token_ids", "padding_mask", "segment_ids")
    before = keras.tree.map_structure(lambda x: flat(x)[0], model(inputs))
    for left in (0, 3, 4):
        if kind == "memory" and left:
            continue  # Distances to the memory are not the same then.
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
            ours = after[name]
            if name != "pooled_output":
                ours = ours[:, left : left + T][inputs["padding_mask"]]
                close(ours, before[name][inputs["padding_mask"]])
            else:
                close(ours, before[name])


def test_padding_in_the_middle_counts_as_distance_alone():
    model, inputs = make("encoder")
    padding = inputs["padding_mask"].copy()
    padding[:, 3:5] = False
    hidden = {**inputs, "padding_mask": padding}
    before = flat(model(hidden)["sequence_output"])[0][padding]
    junk = {**hidden, "token_ids": np.where(padding, inputs["token_ids"], 13)}
    close(flat(model(junk)["sequence_output"])[0][padding], before)
    everything = flat(model(inputs)["sequence_output"])[0][padding]
    assert np.abs(before - everything).max() > 1e-2


@pytest.mark.parametrize("kind", ["encoder", "permutation_lm", "sentence_encoder"])
def test_a_row_of_nothing_but_padding_is_finite(kind):
    model, inputs = make(kind)
    inputs["padding_mask"][1] = False
    for output in flat(model(inputs)):
        assert np.isfinite(output).all()


@pytest.mark.parametrize("kind", ["permutation_lm", "span_qa"])
def test_fit_goes_alike_with_xla_and_without(kind):
    losses, weights = [], []
    for jit_compile in (False, True):
        model, inputs = make(kind, attention_dropout=0.0)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        labels = np.zeros((B,), "int32")
        if kind == "permutation_lm":
            # The published objective.
            masking = PermutationLMMasking(one_in=3, max_predictions=P, seed=1)
            drawn = masking(inputs["token_ids"], inputs["padding_mask"])
            labels = drawn.pop("labels")
            del drawn["sample_weight"]
            inputs.update(drawn)
            inputs = {k: np.asarray(ops.convert_to_numpy(x)) for k, x in inputs.items()}
            labels = ops.convert_to_numpy(labels)
        elif kind == "span_qa":
            labels = {"start_logits": labels, "end_logits": labels}
            loss = {key: loss for key in labels}
        before = [w.numpy() for w in model.trainable_weights]
        model.compile(keras.optimizers.SGD(0.1), loss=loss, jit_compile=jit_compile)
        history = model.fit(inputs, labels, batch_size=B, verbose=0)
        losses.append(history.history["loss"][0])
        weights.append(model.get_weights())
        for old, weight in zip(before, model.trainable_weights, strict=True):
            # One number added to all logits of a softmax changes nothing.
            changes = weight.path != "span/bias"
            assert np.any(old != weight.numpy()) == changes, weight.path
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    for plain, compiled in zip(*weights, strict=True):
        np.testing.assert_allclose(plain, compiled, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", sorted(set(SHAPES) - {"encoder", "sentence_encoder"}))
def test_every_trainable_weight_gets_a_finite_gradient(kind):
    model, inputs = make(kind, dropout=0.1)
    found = gradients(model, inputs=inputs)
    # What targets start from is trained where there are targets.
    frozen = {w.path for w in model.weights} - set(found)
    expected = set() if kind == "permutation_lm" else {"target_embedding/embeddings"}
    assert {path for path in frozen if "seed_generator" not in path} == expected
    for path, gradient in found.items():
        values = ops.convert_to_numpy(getattr(gradient, "values", gradient))
        assert np.isfinite(values).all(), path
        assert np.abs(values).max() > 1e-7, path


@pytest.mark.parametrize(
    "dtype_policy", ["mixed_bfloat16", "mixed_float16"], indirect=True
)
@pytest.mark.parametrize("kind", ["memory", "permutation_lm", "span_qa", "classifier"])
def test_half_precision_computes_the_same_but_for_rounding(kind, dtype_policy):
    half, inputs = make(kind)
    outputs = half(inputs)
    keras.config.set_dtype_policy("float32")
    full, _ = make(kind)
    for one, other in zip(
        keras.tree.flatten(outputs), keras.tree.flatten(full(inputs)), strict=True
    ):
        if kind != "memory":
            assert keras.backend.standardize_dtype(one.dtype) == "float32"
        one, other = flat(one)[0], flat(other)[0]
        assert np.isfinite(one).all()
        error = np.abs(one - other).max() / np.abs(other).max()
        assert (
            1e-6 < error < {"mixed_bfloat16": 0.1, "mixed_float16": 0.02}[dtype_policy]
        )


def test_dropout_drops_in_training_alone():
    model = xlnet.build_xlnet(**TINY)
    inputs = make_inputs()
    still = [flat(model(inputs))[0] for _ in range(2)]
    np.testing.assert_array_equal(still[0], still[1])
    drawn = flat(model(inputs, training=True))[0]
    assert np.abs(drawn - still[0]).max() > 0.1
    rates = {
        layer.name: layer.rate
        for layer in model.layers
        if isinstance(layer, keras.layers.Dropout)
    }
    assert rates == {
        "embeddings_dropout": 0.1,
        "positions_dropout": 0.1,
        "output_dropout": 0.1,
    }
    block = model.get_layer("block_1")
    assert (block.dropout, block.attention_dropout) == (0.1, 0.1)


def test_attention_can_be_seen():
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


def test_pooled_and_mean_are_of_real_tokens():
    encoder, inputs = make("encoder")
    inputs["padding_mask"][0, 5:] = False
    outputs = encoder(inputs)
    sequence = flat(outputs["sequence_output"])[0]
    close(outputs["pooled_output"], sequence[[0, 1], [4, 6]], atol=0)
    model = xlnet.build_xlnet_sentence_encoder(encoder, normalize=False)
    real = inputs["padding_mask"][..., None]
    close(model(inputs), (sequence * real).sum(1) / real.sum(1))
    follows = xlnet.build_xlnet_next_sentence(encoder)
    kernel, bias = follows.get_layer("next_sentence").get_weights()
    close(follows(inputs), flat(outputs["pooled_output"])[0] @ kernel + bias)


def test_says_what_is_wrong():
    with pytest.raises(ValueError, match="`variant` must be one of 'base', 'large'"):
        xlnet.build_xlnet("small")
    with pytest.raises(ValueError, match="`memory_length` must be a whole number"):
        xlnet.build_xlnet(**TINY, memory_length=0)
    with pytest.raises(ValueError, match="`max_distance` must be a whole number"):
        xlnet.build_xlnet(**TINY, max_distance=0)
    with pytest.raises(TypeError, match="`encoder` must be .*`build_xlnet`"):
        xlnet.build_xlnet_classifier(keras.Sequential(), num_classes=C)
    with pytest.raises(ValueError, match="`num_classes` must be a whole number"):
        xlnet.build_xlnet_classifier(make_encoder(), num_classes=0)
