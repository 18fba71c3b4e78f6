"""What the checkpoints of image models of transformers have besides other families."""

import numpy as np
import pytest
from parity import folders
from parity.folders import CHECKPOINTS

from keras_attn.losses import MaskedPatchLoss
from keras_attn.models import load_checkpoint, save_checkpoint


@pytest.mark.parametrize("case", folders.cases_of("mae"))
def test_the_loss_is_that_of_transformers(case):
    inputs, expected = folders.arrays_of(CHECKPOINTS / case)
    model = load_checkpoint(CHECKPOINTS / case, noise=True)
    normed = folders.config_of(CHECKPOINTS / case)["norm_pix_loss"]
    objective = MaskedPatchLoss(4, normalize=normed)
    model.compile(loss={"reconstruction": objective})
    found = model.evaluate(inputs, {"reconstruction": inputs["images"]}, verbose=0)
    np.testing.assert_allclose(found, expected["loss"], rtol=1e-5)


@pytest.mark.parametrize("case", folders.cases_of("convnext"))
def test_a_model_of_any_image_size_agrees_with_transformers(case, tmp_path):
    """At 8 × 12 and at 11 × 14 pixels."""
    model = load_checkpoint(CHECKPOINTS / case, image_size=None)
    assert model.input.shape == (None, None, None, 3)
    inputs, expected = folders.arrays_of(CHECKPOINTS / case)
    folders.compare(folders.outputs_of(model, inputs), expected, inputs)
    # `config.json` cannot say "any size".
    save_checkpoint(model, tmp_path)
    assert "image_size" not in folders.config_of(tmp_path)
    again = load_checkpoint(tmp_path, image_size=None)
    assert again.input.shape == model.input.shape
    folders.same_weights(again, model)


def test_the_keys_of_published_autoencoders_are_read(tmp_path):
    """transformers 5 writes others, by a rename that it means for the encoder."""

    def published(tensors):
        start, others = "decoder.decoder_layers.", "decoder.decoder_encoder.layer."
        assert any(key.startswith(others) for key in tensors)
        return {key.replace(others, start): x for key, x in tensors.items()}

    folder = folders.altered(tmp_path / "mae", "mae_pretrainer", tensors=published)
    expected = load_checkpoint(CHECKPOINTS / "mae_pretrainer")
    folders.same_weights(load_checkpoint(folder), expected)


def test_the_encoder_of_an_autoencoder_is_read_as_a_vit():
    inputs, _ = folders.arrays_of(CHECKPOINTS / "mae_pretrainer")
    with pytest.warns(UserWarning, match="no weights for classifier"):
        model = load_checkpoint(
            CHECKPOINTS / "mae_pretrainer", "classifier", num_classes=7
        )
    assert folders.outputs_of(model, inputs)["logits"].shape == (2, 7)
    pretrainer = load_checkpoint(CHECKPOINTS / "mae_pretrainer")
    names = ("patch_embedding", "class_token", "position_embedding", "block_1")
    folders.same_layers(model, pretrainer, names)


def test_positions_of_an_oblong_grid_are_not_resized():
    with pytest.raises(ValueError, match=r"position_embeddings is \(1, 7, 12\)"):
        load_checkpoint(CHECKPOINTS / "vit_classifier", image_size=21)
