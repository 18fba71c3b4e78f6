"""The image models against transformers, from tiny checkpoints: read, run and written.

`vision_references.py` writes the folders.
"""

import numpy as np
import pytest
from parity import folders
from parity.folders import CHECKPOINTS, TOLERANCE

from keras_attn.losses import MaskedPatchLoss
from keras_attn.models import load_checkpoint, save_checkpoint

CASES = folders.cases_of("vit", "deit", "mae", "swin", "convnext")


def read(case, **options):
    """Our model for the image size of a case, and the arrays of the case."""
    inputs, expected = folders.arrays_of(CHECKPOINTS / case)
    options["image_size"] = inputs["images"].shape[1:3]
    if "noise" in inputs:
        options["noise"] = True
    return load_checkpoint(CHECKPOINTS / case, **options), inputs, expected


def test_every_case_is_committed():
    assert len(CASES) == 18
    assert folders.bytes_of(CASES) < 600_000


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_transformers(case):
    model, inputs, expected = read(case)
    found = folders.outputs_of(model, inputs)
    loss = expected.pop("loss", None)
    # Of a body ours has more outputs: the map of each stage.
    assert set(expected) <= set(found)
    for name, array in expected.items():
        assert np.std(array) > 0.05
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=TOLERANCE)
    if loss is not None:
        normed = folders.config_of(CHECKPOINTS / case)["norm_pix_loss"]
        objective = MaskedPatchLoss(4, normalize=normed)
        model.compile(loss={"reconstruction": objective})
        images = {"reconstruction": inputs["images"]}
        got = model.evaluate(inputs, images, verbose=0)
        np.testing.assert_allclose(got, loss, rtol=1e-5)


@pytest.mark.parametrize("case", [name for name in CASES if "convnext" in name])
def test_a_model_of_any_image_size_agrees_with_transformers(case, tmp_path):
    """At 8 × 12 and at 11 × 14 pixels."""
    model = load_checkpoint(CHECKPOINTS / case, image_size=None)
    assert model.input.shape == (None, None, None, 3)
    inputs, expected = folders.arrays_of(CHECKPOINTS / case)
    found = folders.outputs_of(model, inputs)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=TOLERANCE)
    # `config.json` cannot say "any size".
    save_checkpoint(model, tmp_path)
    assert "image_size" not in folders.config_of(tmp_path)
    again = load_checkpoint(tmp_path, image_size=None)
    assert again.input.shape == model.input.shape
    folders.same_weights(again, model)


@pytest.mark.parametrize("case", CASES)
def test_files_equal_those_of_transformers(case, tmp_path):
    model = load_checkpoint(CHECKPOINTS / case)
    save_checkpoint(model, tmp_path)
    # Our model has no pooling layer.
    folders.same_tensors(case, tmp_path, ignored=["pooler"])
    config = folders.config_of(CHECKPOINTS / case)
    for key, value in folders.config_of(tmp_path).items():
        if key == "norm_pix_loss":
            continue  # An option of the loss, which is not part of our model.
        assert value == config[key], key
    folders.same_weights(load_checkpoint(tmp_path), model)


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
    for name in ("patch_embedding", "class_token", "position_embedding", "block_1"):
        for ours, theirs in zip(
            model.get_layer(name).weights,
            pretrainer.get_layer(name).weights,
            strict=True,
        ):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("case", ["vit_classifier", "swin_classifier"])
def test_a_head_with_another_number_of_classes_is_newly_initialized(case):
    with pytest.warns(UserWarning, match="no weights for classifier"):
        model = load_checkpoint(CHECKPOINTS / case, num_classes=3)
    assert model.output.shape == (None, 3)
    same = load_checkpoint(CHECKPOINTS / case, num_classes=5)
    assert same.output.shape == (None, 5)


def test_positions_of_an_oblong_grid_are_not_resized():
    with pytest.raises(ValueError, match=r"position_embeddings is \(1, 7, 12\)"):
        load_checkpoint(CHECKPOINTS / "vit_classifier", image_size=21)


@pytest.mark.parametrize(
    "case, fields, message",
    [
        (
            "vit_classifier",
            {"qkv_bias": "no"},
            "`qkv_bias` in config.json .*true or .*'no'",
        ),
        ("vit_classifier", {"qkv_bias": False}, "keys that this model does not have"),
        ("vit_classifier", {"image_size": [7, 7, 7]}, "`image_size` in config.json"),
        ("vit_classifier", {"patch_size": 6}, "multiple of `patch_size`"),
        ("swin_classifier", {"patch_size": 3}, r"weight is \(6, 3, 2, 2\), expected"),
        ("vit_classifier", {"image_size": [14, 20]}, "multiple of `patch_size`"),
        ("vit_classifier", {"num_channels": 4}, "weights must have the shapes"),
        # Positions are resized for an `image_size` of the call, not of a wrong file.
        ("vit_encoder", {"image_size": [56, 56]}, "weights must have the shapes"),
        ("mae_half", {"mask_ratio": 1.0}, "`mask_ratio` .*1.0"),
        ("swin_classifier", {"depths": 2}, "`depths` in config.json must be a list"),
        ("swin_classifier", {"depths": [2]}, "one number per stage"),
        ("swin_classifier", {"use_absolute_embeddings": True}, "absolute_embeddings"),
        ("swin_classifier", {"window_size": 4}, "relative_position_bias_table is"),
        (
            "convnext_classifier",
            {"hidden_sizes": [5, 8]},
            "weights must have the shapes",
        ),
    ],
)
def test_unsupported_configs_are_refused(case, fields, message, tmp_path):
    folders.check_refused(tmp_path, case, fields, message)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_live(tmp_path, monkeypatch):
    """Cases computed now equal the committed ones."""
    cases = folders.make_cases("vision_references", monkeypatch)
    assert sorted(cases) == CASES
    from parity.hugging_face import write

    # The weights have other names in files than in models.
    write(cases, tmp_path)
    for case, (_, arrays, _) in cases.items():
        folders.compare_with_committed(
            case, folders.tensors_of(tmp_path / case), arrays
        )
