"""A ViT with a GPT-2 against transformers, from tiny checkpoints: read, run, written.

`captioner_references.py` writes the folders.
"""

import numpy as np
import pytest
from parity import folders
from parity.folders import CHECKPOINTS, TOLERANCE

from keras_attn.decoding import generate
from keras_attn.models import load_checkpoint, save_checkpoint

CASES = folders.cases_of("captioner")


def test_every_case_is_committed():
    assert CASES == ["captioner_equal", "captioner_projected"]
    assert folders.bytes_of(CASES) < 160_000


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_transformers(case):
    inputs, expected = folders.arrays_of(CHECKPOINTS / case)
    model = load_checkpoint(CHECKPOINTS / case)
    found = folders.outputs_of(model, inputs)["logits"]
    assert np.std(expected["logits"]) > 0.05
    np.testing.assert_allclose(found, expected["logits"], rtol=1e-5, atol=TOLERANCE)
    # `generate` continues each caption as the whole model does.
    prompt = {**inputs, "decoder_token_ids": inputs["decoder_token_ids"][:, :3]}
    new = generate(model, prompt, 5).token_ids
    whole = np.concatenate([prompt["decoder_token_ids"], new], axis=1)
    logits = folders.outputs_of(model, {**inputs, "decoder_token_ids": whole})["logits"]
    np.testing.assert_array_equal(logits[:, 2:-1].argmax(-1), new)


@pytest.mark.parametrize("case", CASES)
def test_files_equal_those_of_transformers(case, tmp_path):
    model = load_checkpoint(CHECKPOINTS / case)
    save_checkpoint(model, tmp_path)
    # Our model has no pooling layer.
    folders.same_tensors(case, tmp_path, ignored=["pooler"])
    config, found = folders.config_of(CHECKPOINTS / case), folders.config_of(tmp_path)
    assert found["model_type"] == config["model_type"]
    for part in ("encoder", "decoder"):
        for key, value in found[part].items():
            expected = config[part][key]
            if key == "n_inner":  # None is four times the width.
                expected = 4 * config[part]["n_embd"]
            assert value == expected, key
    folders.same_weights(load_checkpoint(tmp_path), model)
    # The halves of a tensor that is two variables of ours are converted, too.
    save_checkpoint(model, tmp_path, dtype="bfloat16")
    key = "decoder.transformer.h.1.crossattention.c_attn.weight"
    width = config["decoder"]["n_embd"]
    half = load_checkpoint(tmp_path).get_layer("decoder_block_1").cross_attention
    whole = folders.tensors_of(CHECKPOINTS / case)[key]
    found = np.concatenate([half.key.kernel, half.value.kernel], axis=1)
    assert whole.shape == (width, 2 * width)
    np.testing.assert_allclose(found, whole, rtol=2**-8)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"decoder": None}, "`decoder` in config.json must be a configuration with"),
        (
            {"encoder": {"model_type": "beit"}},
            r"model_type='vit'.*'model_type': 'beit'",
        ),
        ({"decoder": {"model_type": "gpt2"}}, "`add_cross_attention` .* must be True"),
        (
            {
                "decoder": {
                    "model_type": "gpt2",
                    "add_cross_attention": True,
                    "cross_attention_hidden_size": 12,
                }
            },
            "`cross_attention_hidden_size` in config.json must be None",
        ),
        ({"architectures": ["BertModel"]}, "must name one of VisionEncoderDecoder"),
    ],
)
def test_other_configurations_are_refused(tmp_path, fields, message):
    folders.check_refused(tmp_path / "other", "captioner_equal", fields, message)


def test_a_missing_half_is_reported(tmp_path):
    def without_keys(tensors):
        del tensors["decoder.transformer.h.0.crossattention.c_attn.weight"]
        return tensors

    folder = folders.altered(tmp_path / "less", "captioner_equal", tensors=without_keys)
    with pytest.raises(ValueError, match="lacks keys .*crossattention.c_attn.weight"):
        load_checkpoint(folder)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_live(tmp_path, monkeypatch):
    """Cases computed now equal the committed ones."""
    cases = folders.make_cases("captioner_references", monkeypatch)
    from parity.hugging_face import write

    write(cases, tmp_path)
    for case, (_, arrays, _) in cases.items():
        folders.compare_with_committed(
            case, folders.tensors_of(tmp_path / case), arrays
        )
