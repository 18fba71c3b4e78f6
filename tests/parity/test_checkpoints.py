"""BERT, RoBERTa and the GPTs against transformers, from tiny checkpoints.

`bert_references.py` and `gpt_references.py` write the folders.
"""

import numpy as np
import pytest
from parity.folders import (
    CHECKPOINTS,
    TOLERANCE,
    arrays_of,
    bytes_of,
    cases_of,
    compare,
    config_of,
    make_cases,
    outputs_of,
    same_tensors,
    tensors_of,
)

from keras_attn.models import load_checkpoint, save_checkpoint

COUNTS = {"bert": 11, "roberta": 5, "gpt": 3, "gpt2": 5}
CASES = cases_of(*COUNTS)


def load_fresh(case, task, **overrides):
    """A model whose head the files lack, which gives a warning."""
    with pytest.warns(UserWarning, match="The checkpoint has no weights for"):
        model = load_checkpoint(CHECKPOINTS / case, task, **overrides)
    inputs, expected = arrays_of(CHECKPOINTS / case)
    return model, inputs, expected


def test_every_case_is_committed():
    counts = dict.fromkeys(COUNTS, 0)
    for case in CASES:
        counts[case.split("_")[0]] += 1
    assert counts == COUNTS
    assert bytes_of(CASES) < 600_000
    kinds = {
        str(next(iter(tensors_of(CHECKPOINTS / case).values())).dtype) for case in CASES
    }
    assert kinds == {"float32", "float16", "bfloat16"}
    assert len(list((CHECKPOINTS / "bert_encoder_sharded").glob("*.safetensors"))) > 2


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_files_equal_those_of_transformers(case, tmp_path):
    folder = CHECKPOINTS / case
    model = load_checkpoint(folder)
    inputs, expected = arrays_of(folder)
    compare(outputs_of(model, inputs), expected, inputs["padding_mask"])

    dtype = next((d for d in ("bfloat16", "float16") if case.endswith(f"_{d}")), None)
    shard = 3000 if case.endswith("sharded") else 10**9
    save_checkpoint(model, tmp_path, dtype=dtype, max_shard_size=shard)
    same_tensors(case, tmp_path)
    config = config_of(folder)
    for key, value in config_of(tmp_path).items():
        if key == "classifier_dropout" and config.get(key) is None:
            assert value == 0.1  # transformers takes that of the body.
        elif key == "n_inner" and config[key] is None:
            assert value == 4 * config["n_embd"]
        else:
            assert value == config[key], key
    if case.endswith("sharded"):
        assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 2
        assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_sentence_embedding_is_the_mean_of_the_tokens(family):
    folder = CHECKPOINTS / f"{family}_encoder"
    inputs, expected = arrays_of(folder)
    real = inputs["padding_mask"]
    mean = np.stack(
        [
            row[mask].mean(0)
            for row, mask in zip(expected["sequence_output"], real, strict=True)
        ]
    )
    model = load_checkpoint(folder, "sentence_encoder", normalize=False)
    compare(outputs_of(model, inputs), {"logits": mean}, real)
    unit = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    model = load_checkpoint(folder, "sentence_encoder")
    compare(outputs_of(model, inputs), {"logits": unit}, real)


@pytest.mark.parametrize(
    "case, task, features",
    [
        ("roberta_encoder", "next_sentence", "pooled_output"),
        ("gpt_body", "token_classifier", "sequence_output"),
        ("gpt2_body", "token_classifier", "sequence_output"),
    ],
)
def test_heads_that_transformers_lacks(case, task, features):
    overrides = {"num_classes": 3} if task == "token_classifier" else {}
    model, inputs, expected = load_fresh(case, task, **overrides)
    layer = model.layers[-1]
    rng = np.random.default_rng(17)
    kernel, bias = rng.normal(size=layer.kernel.shape), rng.normal(size=layer.units)
    layer.set_weights([kernel, bias])
    logits = expected[features] @ kernel + bias
    compare(outputs_of(model, inputs), {"logits": logits}, inputs["padding_mask"])


@pytest.mark.parametrize(
    "case, table", [("gpt_body", "tokens_embed"), ("gpt2_body", "wte")]
)
def test_a_body_can_be_read_as_a_language_model(case, table):
    folder = CHECKPOINTS / case
    inputs, expected = arrays_of(folder)
    embeddings = tensors_of(folder)[f"{table}.weight"]
    logits = expected["sequence_output"] @ embeddings.T
    model = load_checkpoint(folder, "causal_lm")
    compare(outputs_of(model, inputs), {"logits": logits}, inputs["padding_mask"])


@pytest.mark.parametrize(
    "case", ["bert_masked_lm", "bert_pretrainer", "roberta_masked_lm"]
)
def test_logits_of_masked_positions_only(case):
    folder = CHECKPOINTS / case
    inputs, expected = arrays_of(folder)
    model = load_checkpoint(folder, masked_positions=True)
    real = inputs["padding_mask"]
    positions = np.stack([np.flatnonzero(row)[[3, 0]] for row in real]).astype("int32")
    name = "masked_lm" if "masked_lm" in expected else "logits"
    expected[name] = np.take_along_axis(expected[name], positions[:, :, None], 1)
    found = outputs_of(model, {**inputs, "masked_positions": positions})
    compare(found, expected, real)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_transformers_reads_our_files(case, tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from parity.hugging_face import run, run_from_first_token

    model = load_checkpoint(CHECKPOINTS / case)
    save_checkpoint(model, tmp_path, max_shard_size=5000)
    (name,) = config_of(tmp_path)["architectures"]
    theirs, report = getattr(transformers, name).from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report.values()), report
    inputs, _ = arrays_of(CHECKPOINTS / case)
    real = inputs["padding_mask"]
    given = {"input_ids": inputs["token_ids"]}
    if "segment_ids" in inputs:
        given["token_type_ids"] = inputs["segment_ids"]
    if case.startswith("gpt"):
        given["position_ids"] = np.maximum(real.cumsum(1) - 1, 0)
        theirs.config.pad_token_id = 3  # Not a size of the model, so not written.
        result = run(theirs.eval(), real, **given)
    else:
        result = run_from_first_token(theirs.eval(), real, **given)
    names = {
        "sequence_output": "last_hidden_state",
        "pooled_output": "pooler_output",
        "masked_lm": "prediction_logits",
        "next_sentence": "seq_relationship_logits",
    }
    found = outputs_of(model, inputs)
    if case.endswith("_body"):
        found.pop("pooled_output")  # transformers has none.
    for key, ours in found.items():
        array = result[names.get(key, key)]
        if array.shape[:2] == real.shape:
            ours, array = ours[real], array[real]
        np.testing.assert_allclose(ours, array, atol=TOLERANCE, rtol=1e-5)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "script, families", [("bert", ["bert", "roberta"]), ("gpt", ["gpt", "gpt2"])]
)
def test_live(script, families, tmp_path, monkeypatch):
    """Cases computed now equal the committed ones, and our outputs agree."""
    cases = make_cases(f"{script}_references", monkeypatch)
    from parity.hugging_face import write

    assert set(cases) == {case for case in CASES if case.split("_")[0] in families}
    write(cases, tmp_path)
    for case in cases:
        committed, now = CHECKPOINTS / case, tmp_path / case
        for one, other in zip(arrays_of(committed), arrays_of(now), strict=True):
            assert set(one) == set(other)
            for key, array in other.items():
                np.testing.assert_allclose(
                    one[key], array, atol=1e-5, rtol=1e-5, err_msg=f"{case} {key}"
                )
        tensors = tensors_of(committed)
        assert set(tensors) == set(tensors_of(now))
        for key, array in tensors_of(now).items():
            np.testing.assert_array_equal(tensors[key], array)
        inputs, expected = arrays_of(now)
        found = outputs_of(load_checkpoint(now), inputs)
        compare(found, expected, inputs["padding_mask"])
