"""Tasks of BERT, RoBERTa and the GPTs on one checkpoint, against transformers."""

import numpy as np
import pytest
from parity.folders import (
    CHECKPOINTS,
    arrays_of,
    cases_of,
    compare,
    config_of,
    outputs_of,
    tensors_of,
)

from keras_attn.models import load_checkpoint, save_checkpoint

CASES = cases_of("bert", "roberta", "gpt", "gpt2")


def load_fresh(case, task, **overrides):
    """A model whose head the files lack, which gives a warning."""
    with pytest.warns(UserWarning, match="The checkpoint has no weights for"):
        model = load_checkpoint(CHECKPOINTS / case, task, **overrides)
    inputs, expected = arrays_of(CHECKPOINTS / case)
    return model, inputs, expected


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
    compare(outputs_of(model, inputs), {"logits": mean}, inputs)
    unit = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    model = load_checkpoint(folder, "sentence_encoder")
    compare(outputs_of(model, inputs), {"logits": unit}, inputs)


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
    compare(outputs_of(model, inputs), {"logits": logits}, inputs)


@pytest.mark.parametrize(
    "case, table", [("gpt_body", "tokens_embed"), ("gpt2_body", "wte")]
)
def test_a_body_can_be_read_as_a_language_model(case, table):
    folder = CHECKPOINTS / case
    inputs, expected = arrays_of(folder)
    embeddings = tensors_of(folder)[f"{table}.weight"]
    logits = expected["sequence_output"] @ embeddings.T
    model = load_checkpoint(folder, "causal_lm")
    compare(outputs_of(model, inputs), {"logits": logits}, inputs)


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
    compare(found, expected, inputs)


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
    compare(found, {key: result[names.get(key, key)] for key in found}, inputs)
