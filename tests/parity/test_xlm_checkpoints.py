"""XLM against transformers, from tiny checkpoints: read, run and written.

`xlm_references.py` writes the folders.
"""

from typing import Any

import numpy as np
import pytest
from model_cases import build
from parity.folders import (
    CHECKPOINTS,
    altered,
    arrays_of,
    compare,
    outputs_of,
)

from keras_attn import models
from keras_attn.models import load_checkpoint, save_checkpoint
from keras_attn.models.checkpoints.families.xlm import XLM

TASKS = {
    "masked_lm": {},
    "classifier": {"num_classes": 3},
    "token_classifier": {"num_classes": 3},
    "span_qa": {},
    "sentence_encoder": {},
}


def read(case):
    """Our model of a case, its inputs, and the outputs of transformers."""
    inputs, expected = arrays_of(CHECKPOINTS / case)
    options: dict[str, Any] = {}
    if "position_ids" in inputs:
        options["position_ids"] = True
    return load_checkpoint(CHECKPOINTS / case, **options), inputs, expected


def test_outputs_depend_on_languages_and_positions():
    model, inputs, expected = read("xlm_encoder_positions")
    real = inputs["padding_mask"]
    for name in ("language_ids", "position_ids"):
        other = outputs_of(model, {**inputs, name: inputs[name][:, ::-1].copy()})
        difference = other["sequence_output"] - expected["sequence_output"]
        assert np.abs(difference[real]).max() > 0.1


def test_default_positions_count_from_the_first_real_token():
    inputs, expected = arrays_of(CHECKPOINTS / "xlm_encoder")
    model = load_checkpoint(CHECKPOINTS / "xlm_encoder", position_ids=True)
    first = inputs["padding_mask"].argmax(1)[:, None]
    positions = np.maximum(np.arange(11) - first, 0).astype("int32")
    found = outputs_of(model, {**inputs, "position_ids": positions})
    del expected["pooled_output"], found["pooled_output"]
    compare(found, expected, inputs)


@pytest.mark.parametrize("task", [*TASKS, "next_sentence"])
@pytest.mark.filterwarnings("ignore:The checkpoint has no weights:UserWarning")
def test_every_task_is_recognized_and_written(task, tmp_path):
    encoder, inputs, _ = read("xlm_encoder")
    build = getattr(models, f"build_xlm_{task}")
    model = build(encoder, **TASKS.get(task, {}))
    assert XLM.task_of(model) == task
    if task == "next_sentence":
        with pytest.raises(ValueError, match="no counterpart.*next_sentence"):
            save_checkpoint(model, tmp_path)
        return
    save_checkpoint(model, tmp_path)
    found = outputs_of(load_checkpoint(tmp_path, task), inputs)
    for name, array in outputs_of(model, inputs).items():
        np.testing.assert_array_equal(found[name], array)


def test_a_sentence_embedding_is_the_mean_of_the_tokens():
    _, inputs, expected = read("xlm_encoder")
    real = inputs["padding_mask"][:, :, None]
    mean = (expected["sequence_output"] * real).sum(1) / real.sum(1)
    unit = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    model = load_checkpoint(CHECKPOINTS / "xlm_encoder", "sentence_encoder")
    compare(outputs_of(model, inputs), {"logits": unit}, inputs)


def test_a_new_head_reads_the_first_token():
    _, inputs, expected = read("xlm_encoder")
    with pytest.warns(UserWarning, match="no weights for next_sentence"):
        model = load_checkpoint(CHECKPOINTS / "xlm_encoder", task="next_sentence")
    rng = np.random.default_rng(17)
    kernel, bias = rng.normal(size=(12, 2)), rng.normal(size=2)
    model.get_layer("next_sentence").set_weights([kernel, bias])
    starts_real = inputs["padding_mask"][:, 0]
    found = outputs_of(model, inputs)["logits"][starts_real]
    logits = expected["pooled_output"] @ kernel + bias
    np.testing.assert_allclose(found, logits[starts_real], rtol=0, atol=1e-5)


def test_the_old_name_of_the_vocabulary_size_is_read(tmp_path):
    fields = {"vocab_size": None, "n_words": 29}
    model = load_checkpoint(altered(tmp_path, "xlm_encoder", fields))
    assert model.get_layer("token_embedding").input_dim == 29


def test_models_that_transformers_lacks_are_not_written(tmp_path):
    model = build("xlm_mlm_tlm_xnli15", hidden_dim=6, mlp_dim=11)
    with pytest.raises(ValueError, match="no counterpart.*mlp_dim=11, width=6"):
        save_checkpoint(model, tmp_path)
    assert not list(tmp_path.iterdir())
