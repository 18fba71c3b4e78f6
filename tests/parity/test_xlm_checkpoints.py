"""XLM against transformers, from tiny checkpoints: read, run and written.

`xlm_references.py` writes the folders.
"""

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

from keras_attn.models import load_checkpoint, save_checkpoint


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
