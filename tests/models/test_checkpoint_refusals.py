"""What `load_checkpoint` and `save_checkpoint` refuse, and their messages."""

import keras
import ml_dtypes
import numpy as np
import pytest
from parity.folders import CHECKPOINTS, altered, same_weights, tensors_of

from keras_attn import models
from keras_attn.models import load_checkpoint, save_checkpoint
from keras_attn.models.checkpoints import loading
from keras_attn.models.checkpoints.folder import Folder

# What can not be loaded.


OF_BERT = [
    ("model_type", "t5", "must be one of bert, distilbert.*'t5'"),
    ("model_type", None, "must be one of .*model_type=None"),
    ("model_type", ["bert"], r"must be one of .*\['bert'\]"),
    (
        *("architectures", ["BertForMultipleChoice"]),
        r"name one of BertModel, .* otherwise pass a `task`, one of encoder, .*\['Bert",
    ),
    ("architectures", None, "must name one of .*=None"),
    ("architectures", [["BertModel"]], "must name one of"),
    ("position_embedding_type", "relative_key", "'absolute'; other .*='relative_key'"),
    ("is_decoder", True, "must be False; other"),
    ("add_cross_attention", True, "must be False; other"),
    ("pruned_heads", {"0": [1]}, "must be {} or None; other"),
    ("quantization_config", {"bits": 4}, "must be None; other"),
    ("hidden_act", "mish", "must be one of gelu, .*='mish'"),
    ("hidden_act", ["gelu"], "must be one of gelu"),
    ("hidden_size", 0, "positive integer.*=0"),
    ("hidden_size", True, "positive integer.*=True"),
    ("hidden_size", 12.0, "positive integer.*=12.0"),
    ("layer_norm_eps", -1e-5, "number from 0 to 1. .*=-1e-05"),
    ("layer_norm_eps", "1e-5", "number from 0 to 1.*='1e-5'"),
    ("layer_norm_eps", float("nan"), "from 0 to 1.*=nan"),
]


@pytest.mark.parametrize(
    "case, field, value, message",
    [
        *(("bert_encoder", *row) for row in OF_BERT),
        ("bert_masked_lm", "tie_word_embeddings", False, "be True for 'masked_lm'.*=F"),
        ("roberta_masked_lm", "tie_word_embeddings", False, "be True for 'masked_lm'"),
        ("gpt2_causal_lm", "tie_word_embeddings", False, "be True for 'causal_lm'"),
        ("gpt2_classifier", "tie_word_embeddings", "no", "True or False.*='no'"),
        ("roberta_encoder", "pad_token_id", 0, "must be 1; other"),
        ("roberta_encoder", "max_position_embeddings", 2, "above 2, the first pos.*=2"),
        ("gpt_body", "afn", "gelu_new", "must be one of gelu, relu, silu, swish"),
        ("gpt2_body", "scale_attn_weights", False, "must be True; other"),
        ("gpt2_body", "scale_attn_by_inverse_layer_idx", True, "must be False; other"),
        ("gpt2_body", "n_inner", 0, "positive integer"),
        ("gpt2_body", "embd_pdrop", 0.5, "be equal.*the one to use as `dropout`.*=0.5"),
    ],
)
def test_unsupported_configs_are_refused(case, field, value, message, tmp_path):
    altered(tmp_path, case, {field: value})
    with pytest.raises(ValueError, match=rf"`{field}`.* in config.json .*{message}"):
        load_checkpoint(tmp_path)


def test_a_dropout_override_replaces_both_rates(tmp_path):
    altered(tmp_path, "gpt2_body", {"embd_pdrop": 0.5})
    model = load_checkpoint(tmp_path, dropout=0.25)
    assert model.get_layer("embeddings_dropout").rate == 0.25
    assert model.get_layer("block_0").dropout == 0.25


@pytest.mark.parametrize(
    "case, config, message",
    [
        (
            *("bert_encoder", {"vocab_size": 31}),
            r"embeddings.word_embeddings.weight is \(29, 12\), expected \(31, 12\) "
            r"\(vocab_size=31\)",
        ),
        (
            *("bert_encoder", {"intermediate_size": 22}),
            r"intermediate.dense.weight is \(20, 12\), expected \(22, 12\) "
            r"\(intermediate_size=22\).*; and 2 more",
        ),
        (
            *("bert_classifier", {"id2label": {str(i): str(i) for i in range(7)}}),
            r"\(5, 12\), expected \(7, 12\) \(7 entries of id2label\)",
        ),
        ("gpt2_body", {"n_positions": 18}, r"wpe.weight .*\(n_positions=18\)"),
        ("xlnet_encoder", {"d_inner": 14}, r"layer_1.weight .*\(d_inner=14\)"),
    ],
)
def test_configs_that_contradict_the_weights_are_refused(
    case, config, message, tmp_path
):
    altered(tmp_path, case, config)
    message = rf"weights must have the shapes .*Received: .*{message}"
    with pytest.raises(ValueError, match=message):
        load_checkpoint(tmp_path)


def test_the_number_of_heads_must_divide_the_width(tmp_path):
    altered(tmp_path, "bert_encoder", {"num_attention_heads": 5})
    with pytest.raises(ValueError, match="num_heads=5"):
        load_checkpoint(tmp_path)


def test_overrides_that_contradict_the_weights_are_refused():
    with pytest.raises(
        ValueError,
        match=r"and the overrides imply. To replace a head, load the body with a "
        r"`task` and build the new head on it. Received: bert.*is \(20, 12\), expected "
        r"\(21, 12\)",
    ):
        load_checkpoint(CHECKPOINTS / "bert_classifier", mlp_dim=21)


def without(*names):
    return lambda arrays: {
        key: array for key, array in arrays.items() if key not in names
    }


def adding(**more):
    return lambda arrays: {
        **arrays,
        **{key.replace("__", "."): np.zeros(3, kind) for key, kind in more.items()},
    }


def with_two_keys_of_a_bias(arrays):
    return {**arrays, "bert.pooler.dense.bias": arrays["pooler.dense.bias"]}


def with_whole_numbers(arrays):
    return {**arrays, "pooler.dense.bias": np.zeros(12, "int32")}


@pytest.mark.parametrize(
    "case, config, tensors, message",
    [
        ("bert_encoder", {}, adding(surprise="f4"), "not have. Received: surprise"),
        # A part of a head that is read may not be ignored.
        (
            *("bert_classifier", {}, adding(classifier__scale="f4")),
            "does not have.*classifier.scale",
        ),
        ("gpt2_classifier", {}, adding(score__bias="f4"), "does not have.*score.bias"),
        (
            *("bert_encoder", {"num_hidden_layers": 1}, None),
            r"does not have. The files have more blocks than config.json says. "
            r"Received: encoder.layer.1.*, .* and \d+ more",
        ),
        (
            *("bert_encoder", {"num_hidden_layers": 3}, None),
            "`num_hidden_layers` in config.json must be at most 2, the number of "
            "blocks in the weight files. Received: num_hidden_layers of 3, folder=",
        ),
        (
            *("bert_encoder", {}, without("embeddings.LayerNorm.bias")),
            "lacks keys of this model. Received: bert.embeddings.LayerNorm.bias, fold",
        ),
        (
            *("bert_encoder", {"architectures": ["BertForSequenceClassification"]}),
            *(None, "If `task` is given, a missing head is newly initialized. Receiv"),
        ),
        (
            *("bert_encoder", {}, with_two_keys_of_a_bias),
            "must have only one key. .*pooler.dense.bias and .*the same weight",
        ),
        (
            *("bert_encoder", {}, with_whole_numbers),
            "`pooler.dense.bias` must have a floating-point dtype, .* dtype=I32",
        ),
    ],
)
def test_unknown_and_missing_keys_are_named(case, config, tensors, message, tmp_path):
    altered(tmp_path, case, config, tensors)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(tmp_path)


def test_an_incomplete_head_is_refused(tmp_path):
    altered(tmp_path, "bert_classifier", tensors=without("classifier.bias"))
    for task in (None, "classifier"):
        with pytest.raises(ValueError, match="lacks keys.*Received: classifier.bias, "):
            load_checkpoint(tmp_path, task)


@pytest.mark.parametrize("task", ["translate", 3, "permutation_lm"])
def test_tasks_that_the_family_lacks_are_refused(task):
    with pytest.raises(
        ValueError,
        match=f"`task` must be one of encoder, .* for model_type='bert'. .*={task!r}",
    ):
        load_checkpoint(CHECKPOINTS / "bert_encoder", task)


def test_a_failed_read_leaves_no_uninitialized_variables(monkeypatch):
    def fail(self, key):
        raise OSError("disk failure")

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "read", fail)
        with pytest.raises(OSError, match="disk failure"):
            load_checkpoint(CHECKPOINTS / "bert_encoder")
    # Keras keeps a list of variables to initialize; it must be empty again.
    folder = CHECKPOINTS / "bert_encoder"
    same_weights(load_checkpoint(folder), load_checkpoint(folder))


def test_weights_are_assigned_if_keras_does_not_call_the_initializer(monkeypatch):
    expected = load_checkpoint(CHECKPOINTS / "bert_encoder")

    class NotCalled(loading._FileInitializer):
        def __call__(self, shape, dtype=None):
            return keras.ops.zeros(shape, dtype)

    monkeypatch.setattr(loading, "_FileInitializer", NotCalled)
    same_weights(load_checkpoint(CHECKPOINTS / "bert_encoder"), expected)


# What can not be saved.


def test_models_of_no_family_are_refused(tmp_path):
    odd = keras.Sequential([keras.Input((3,))], name="odd")
    with pytest.raises(ValueError, match="from a builder of a family .*: bert, .*'odd"):
        save_checkpoint(odd, tmp_path / "x")
    with pytest.raises(ValueError, match="must be from a builder .*model=None"):
        save_checkpoint(None, tmp_path / "x")
    encoder = load_checkpoint(CHECKPOINTS / "bert_encoder")
    block = keras.Model(encoder.input, encoder.get_layer("block_0").output)
    with pytest.raises(ValueError, match="must be from a builder"):
        save_checkpoint(block, tmp_path / "x")
    more = keras.layers.Dense(2, name="extra")(encoder.output["pooled_output"])
    outputs = {**encoder.output, "extra": more}
    with pytest.raises(ValueError, match="exactly one key.*no key for .*extra/kernel"):
        save_checkpoint(keras.Model(encoder.input, outputs), tmp_path / "x")
    with pytest.raises(ValueError, match="`activation` must be one .* one of gelu, "):
        odd = models.build_bert(
            "tiny", vocabulary_size=5, num_layers=1, activation=keras.ops.sin
        )
        save_checkpoint(odd, tmp_path / "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "overrides, message",
    [
        ({"key_dim": 5}, "`key_dim` must be the width divided by .*key_dim=5"),
        ({"window": 3}, "`window` must be None .*window=3"),
        (
            {"mlp_dim": 13, "norm_first": False},
            "`mlp_dim` must be four times the width .*mlp_dim=13, width=14",
        ),
    ],
)
def test_gpts_that_transformers_lacks_are_refused(overrides, message, tmp_path):
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


def test_arguments_of_save_checkpoint(tmp_path):
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


@pytest.mark.parametrize(
    "case",
    [
        "bert_encoder",
        "bert_classifier",
        "gpt2_body",
        "gpt2_classifier",
        "gpt_classifier",
        "own_distilbert_classifier",
        "roberta_span_qa",
        "xlm_classifier",
        "xlnet_classifier",
    ],
)
def test_an_output_layer_of_its_own_matters_to_no_other_model(case, tmp_path):
    fields = {"tie_word_embeddings": False}
    model = load_checkpoint(altered(tmp_path, case, fields))
    same_weights(model, load_checkpoint(CHECKPOINTS / case))


def test_a_body_does_not_become_a_language_model_with_another_output_layer(tmp_path):
    folder = altered(tmp_path, "gpt2_body", {"tie_word_embeddings": False})
    with pytest.raises(ValueError, match="`tie_word_embeddings`.*'causal_lm'"):
        load_checkpoint(folder, "causal_lm")
