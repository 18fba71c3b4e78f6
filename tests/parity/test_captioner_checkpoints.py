"""What the checkpoints of a ViT with a GPT-2 have besides other families."""

import numpy as np
import pytest
from parity import folders
from parity.folders import CHECKPOINTS

from keras_attn.decoding import generate
from keras_attn.models import load_checkpoint, save_checkpoint


@pytest.mark.parametrize("case", folders.cases_of("captioner"))
def test_generate_continues_each_caption_as_the_whole_model_does(case):
    inputs, _ = folders.arrays_of(CHECKPOINTS / case)
    model = load_checkpoint(CHECKPOINTS / case)
    prompt = {**inputs, "decoder_token_ids": inputs["decoder_token_ids"][:, :3]}
    new = generate(model, prompt, 5).token_ids
    whole = np.concatenate([prompt["decoder_token_ids"], new], axis=1)
    logits = folders.outputs_of(model, {**inputs, "decoder_token_ids": whole})["logits"]
    np.testing.assert_array_equal(logits[:, 2:-1].argmax(-1), new)


def test_the_halves_of_a_tensor_that_is_two_variables_are_converted(tmp_path):
    folder = CHECKPOINTS / "captioner_projected"
    save_checkpoint(load_checkpoint(folder), tmp_path, dtype="bfloat16")
    key = "decoder.transformer.h.1.crossattention.c_attn.weight"
    half = load_checkpoint(tmp_path).get_layer("decoder_block_1").cross_attention
    whole = folders.tensors_of(folder)[key]
    found = np.concatenate([half.key.kernel, half.value.kernel], axis=1)
    assert whole.shape == (len(whole), 2 * len(whole))
    np.testing.assert_allclose(found, whole, rtol=2**-8)


def test_a_missing_half_is_reported(tmp_path):
    def without_keys(tensors):
        del tensors["decoder.transformer.h.0.crossattention.c_attn.weight"]
        return tensors

    folder = folders.altered(tmp_path / "less", "captioner_equal", tensors=without_keys)
    with pytest.raises(ValueError, match="lacks keys .*crossattention.c_attn.weight"):
        load_checkpoint(folder)
