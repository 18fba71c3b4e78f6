"""Tasks of BERT, RoBERTa and the GPTs on one checkpoint, against transformers."""

from typing import Any

import numpy as np
import pytest
from model_cases import build
from parity.folders import (
    CHECKPOINTS,
    altered,
    arrays_of,
    cases_of,
    compare,
    outputs_of,
    tensors_of,
)

from keras_attn import models
from keras_attn.models import load_checkpoint, save_checkpoint
from keras_attn.models.checkpoints.families import FAMILIES

CASES = cases_of("bert", "roberta", "gpt", "gpt2")


def features_of(case):
    """Inputs of a body, and transformers' outputs for each token."""
    inputs, expected = arrays_of(CHECKPOINTS / case)
    if "sequence" in expected:  # XLNet's have further segments, and memories.
        names = ("token_ids", "padding_mask", "segment_ids")
        return {name: inputs[name] for name in names}, expected["sequence"]
    return inputs, expected["sequence_output"]


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm", "xlnet"])
def test_a_sentence_embedding_is_the_mean_of_the_tokens(family):
    folder = CHECKPOINTS / f"{family}_encoder"
    inputs, tokens = features_of(folder.name)
    real = inputs["padding_mask"][:, :, None]
    mean = (tokens * real).sum(1) / real.sum(1)
    model = load_checkpoint(folder, "sentence_encoder", normalize=False)
    compare(outputs_of(model, inputs), {"logits": mean}, inputs)
    unit = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    model = load_checkpoint(folder, "sentence_encoder")
    compare(outputs_of(model, inputs), {"logits": unit}, inputs)


@pytest.mark.parametrize(
    "case, task, features",
    [
        ("roberta_encoder", "next_sentence", "pooled_output"),
        ("gpt_body", "token_classifier", "tokens"),
        ("gpt2_body", "token_classifier", "tokens"),
        ("xlm_encoder", "next_sentence", "first"),
        ("xlnet_encoder", "next_sentence", "last"),
    ],
)
def test_heads_that_transformers_lacks(case, task, features):
    overrides = {"num_classes": 3} if task == "token_classifier" else {}
    with pytest.warns(UserWarning, match="The checkpoint has no weights for"):
        model = load_checkpoint(CHECKPOINTS / case, task, **overrides)
    inputs, tokens = features_of(case)
    places = [np.flatnonzero(row) for row in inputs["padding_mask"]]
    rows = np.arange(len(tokens))
    of = {
        "tokens": tokens,
        "first": tokens[rows, [place[0] for place in places]],
        "last": tokens[rows, [place[-1] for place in places]],
        **arrays_of(CHECKPOINTS / case)[1],
    }
    layer = model.layers[-1]
    rng = np.random.default_rng(17)
    kernel, bias = rng.normal(size=layer.kernel.shape), rng.normal(size=layer.units)
    layer.set_weights([kernel, bias])
    logits = of[features] @ kernel + bias
    compare(outputs_of(model, inputs), {"logits": logits}, inputs)


TASKS = {
    "masked_lm": {},
    "classifier": {"num_classes": 3},
    "token_classifier": {"num_classes": 3},
    "span_qa": {},
    "sentence_encoder": {},
    "next_sentence": {},
}


@pytest.mark.parametrize(
    "case, task",
    [
        *(("xlm_encoder", task) for task in TASKS),
        *(("xlnet_encoder", task) for task in (*TASKS, "permutation_lm")),
    ],
)
@pytest.mark.filterwarnings("ignore:The checkpoint has no weights:UserWarning")
def test_every_task_is_recognized_and_written(case, task, tmp_path):
    encoder: Any = load_checkpoint(CHECKPOINTS / case)
    name, options = f"{case.removesuffix('encoder')}{task}", TASKS.get(task, {})
    if name == "xlnet_masked_lm":
        name, options = "xlnet_permutation_lm", {"two_stream": False}
    model = getattr(models, f"build_{name}")(encoder, **options)
    assert FAMILIES[case.partition("_")[0]].find_task(model) == task
    if task == "next_sentence":
        with pytest.raises(ValueError, match="no counterpart.*next_sentence"):
            save_checkpoint(model, tmp_path)
        return
    inputs, _ = arrays_of(CHECKPOINTS / case.replace("xlnet_encoder", "xlnet_lm"))
    save_checkpoint(model, tmp_path)
    found = outputs_of(load_checkpoint(tmp_path, task), inputs)
    for key, array in outputs_of(model, inputs).items():
        np.testing.assert_array_equal(found[key], array)


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


# XLM.


def test_default_positions_count_from_the_first_real_token():
    inputs, expected = arrays_of(CHECKPOINTS / "xlm_encoder")
    model = load_checkpoint(CHECKPOINTS / "xlm_encoder", position_ids=True)
    first = inputs["padding_mask"].argmax(1)[:, None]
    positions = np.maximum(np.arange(11) - first, 0).astype("int32")
    found = outputs_of(model, {**inputs, "position_ids": positions})
    del expected["pooled_output"], found["pooled_output"]
    compare(found, expected, inputs)


def test_the_old_name_of_the_vocabulary_size_is_read(tmp_path):
    fields = {"vocab_size": None, "n_words": 29}
    model = load_checkpoint(altered(tmp_path, "xlm_encoder", fields))
    assert model.get_layer("token_embedding").input_dim == 29


def test_models_that_transformers_lacks_are_not_written(tmp_path):
    model = build("xlm_mlm_tlm_xnli15", hidden_dim=6, mlp_dim=11)
    with pytest.raises(ValueError, match="no counterpart.*mlp_dim=11, width=6"):
        save_checkpoint(model, tmp_path)
    assert not list(tmp_path.iterdir())
