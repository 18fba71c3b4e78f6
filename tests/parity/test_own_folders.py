"""Folders that other libraries' own save functions write: loaded, saved, loaded there.

`own_references.py` writes the folders; without PyTorch the committed ones are read.
"""

import json
from typing import Any

import numpy as np
import pytest
from parity.folders import (
    CHECKPOINTS,
    arrays_of,
    cases_of,
    compare,
    config_of,
    outputs_of,
    run_script,
    same_arrays,
    same_weights,
    tensors_of,
)
from variations import in_turn

from keras_attn.models import load_checkpoint, save_checkpoint
from keras_attn.models.parts.keras_file import load_keras_file

CASES = cases_of("own")
# As much as processors with and without AVX-512 differ.
LIKE: Any = {"rtol": 0, "atol": 2e-5, "scaled": True}
NAMES = ("ant", "bee", "cat", "dog", "elk")
LIBRARIES = {
    "timm": "timm",
    "smp": "segmentation_models_pytorch",
    "distilbert": "transformers",
    "roberta": "transformers",
    "resnet": "transformers",
}
# No tensors of a model's own, or of no use to ours.
UNSAVED = ("num_batches_tracked", "token_type_embeddings.weight")


def library_of(case) -> Any:
    return LIBRARIES[case.split("_")[1]]


@pytest.mark.parametrize("case", in_turn(CASES, 3))
def test_a_folder_is_read_written_and_read(case, tmp_path):
    folder = CHECKPOINTS / case
    model: Any = load_checkpoint(folder)
    inputs, expected = arrays_of(folder)
    compare(outputs_of(model, inputs), expected, inputs, **LIKE)
    save_checkpoint(model, tmp_path / "saved", library=library_of(case))
    again: Any = load_checkpoint(tmp_path / "saved")
    same_weights(again, model)
    tensors, saved = tensors_of(folder), tensors_of(tmp_path / "saved")
    lost = {key for key in set(tensors) ^ set(saved) if not key.endswith(UNSAVED)}
    assert not lost
    for key in set(saved) & set(tensors):
        if not key.endswith(UNSAVED):
            np.testing.assert_array_equal(saved[key], tensors[key], err_msg=key)
    # What the folder says besides the sizes.
    has_names = "id2label" in config_of(folder) or "label_names" in config_of(folder)
    has_head = "classifier" in {layer.name for layer in model.layers}
    assert model.class_names == (NAMES if has_names and has_head else None)
    is_described = "timm" in case or "resnet" in case
    assert (model.preprocessing is not None) == is_described
    model.save(tmp_path / "model.keras")
    for other in (again, load_keras_file(tmp_path / "model.keras")):
        assert other.class_names == model.class_names
        assert other.preprocessing == model.preprocessing


@pytest.mark.parametrize("case", [case for case in CASES if "timm" in case])
def test_timms_fields_are_written_as_timm_writes_them(case, tmp_path):
    folder = CHECKPOINTS / case
    save_checkpoint(load_checkpoint(folder), tmp_path, library="timm")
    found, expected = config_of(tmp_path), config_of(folder)
    for name in ("num_classes", "num_features", "global_pool", "label_names"):
        assert found.get(name) == expected.get(name), name
    assert found["model_args"] == {**found["model_args"], **expected["model_args"]}
    theirs = expected["pretrained_cfg"]
    for name in ("mean", "std", "crop_pct", "crop_mode", "interpolation", "input_size"):
        assert found["pretrained_cfg"][name] == theirs[name], name
    assert found["pretrained_cfg"]["fixed_input_size"] == theirs["fixed_input_size"]


def test_a_preprocessing_is_written_in_the_naming_of_each_library(tmp_path):
    """timm's crop of the center, as transformers says it, and back."""
    model: Any = load_checkpoint(CHECKPOINTS / "own_timm_vit")
    save_checkpoint(model, tmp_path)
    fields = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert fields == model.preprocessing
    assert fields["image_mean"] == [0.4, 0.5, 0.6]
    # 14 / 0.8 and 21 / 0.8, without the fractions; timm covers both.
    assert fields["size"] == {"height": 17, "width": 26} and fields["covers"]
    assert fields["crop_size"] == {"height": 14, "width": 21}
    again: Any = load_checkpoint(tmp_path)
    assert again.preprocessing == fields
    save_checkpoint(again, tmp_path / "timm", library="timm")
    found = config_of(tmp_path / "timm")["pretrained_cfg"]
    theirs = config_of(CHECKPOINTS / "own_timm_vit")["pretrained_cfg"]
    assert {name: theirs[name] for name in found if name in theirs} == found


@pytest.mark.parametrize(
    "fields, expected",
    [
        (
            {"size": {"height": 20, "width": 30}, "resample": 2},
            ("bilinear", [3, 20, 30], 1.0, "squash"),
        ),
        (
            {
                "size": {"shortest_edge": 20},
                "crop_size": {"height": 16, "width": 16},
                "do_center_crop": True,
                "resample": 3,
            },
            ("bicubic", [3, 16, 16], 0.8, "center"),
        ),
        (
            {
                "image_processor_type": "ConvNextImageProcessor",
                "size": {"shortest_edge": 224},
                "crop_pct": 0.875,
                "resample": 0,
            },
            ("nearest", [3, 224, 224], 0.875, "center"),
        ),
        (
            {
                "image_processor_type": "ConvNextFeatureExtractor",
                "size": 384,
                "crop_pct": 0.875,
                "resample": 1,
            },
            ("lanczos", [3, 384, 384], 1.0, "squash"),
        ),
        ({"size": "large", "resample": 9}, (None, [3, 35, 70], None, None)),
    ],
)
def test_every_kind_of_size_has_a_crop_of_timm(fields, expected, tmp_path):
    model: Any = load_checkpoint(CHECKPOINTS / "own_timm_convnext", image_size=None)
    model.preprocessing = fields
    save_checkpoint(model, tmp_path, library="timm")
    found = config_of(tmp_path)["pretrained_cfg"]
    size = found["input_size"] if expected[0] else [3, 35, 70]
    names = ("interpolation", "crop_pct", "crop_mode")
    interpolation, share, mode = (found.get(name) for name in names)
    assert (interpolation, size, share, mode) == expected


def test_another_image_size_is_the_one_that_images_are_cropped_to():
    folder = CHECKPOINTS / "own_timm_convnext"
    model: Any = load_checkpoint(folder, image_size=(24, 48))
    assert model.preprocessing["crop_size"] == {"height": 24, "width": 48}


def test_another_number_of_classes_has_other_names():
    folder = CHECKPOINTS / "own_timm_vit"
    with pytest.warns(UserWarning, match="no weights for classifier"):
        model: Any = load_checkpoint(folder, num_classes=3)
    assert model.class_names is None
    encoder: Any = load_checkpoint(folder, "encoder")
    assert encoder.class_names is None
    assert encoder.preprocessing is not None


def test_the_names_must_be_those_of_the_classes(tmp_path):
    for case in ("own_timm_vit", "own_distilbert_classifier"):
        model: Any = load_checkpoint(CHECKPOINTS / case)
        model.class_names = ["one", "two"]
        message = r"`model.class_names` .* the 5 classes, or be None. Received: 2 names"
        with pytest.raises(ValueError, match=message):
            save_checkpoint(model, tmp_path, library=library_of(case))
        for names in ("abcde", 5, [1, 2]):
            with pytest.raises(ValueError, match=r"`class_names` must be None or a li"):
                model.class_names = names
        with pytest.raises(ValueError, match=r"`preprocessing` must be None or a dic"):
            model.preprocessing = [1]
        model.class_names = None
        save_checkpoint(model, tmp_path / case, library=library_of(case))
        assert load_checkpoint(tmp_path / case).class_names is None


def test_a_library_must_have_the_model(tmp_path):
    model = load_checkpoint(CHECKPOINTS / "own_timm_deit3")
    message = r"builder of a family .*bert, .*Received: .*, library='transformers'"
    with pytest.raises(ValueError, match=message):
        save_checkpoint(model, tmp_path, library="transformers")
    with pytest.raises(ValueError, match="`library` must be .*'tensorflow'"):
        save_checkpoint(model, tmp_path, library="tensorflow")  # pyright: ignore[reportArgumentType]


def test_a_kernel_with_lora_is_saved_with_what_it_has_learned(tmp_path):
    folder = CHECKPOINTS / "own_distilbert_classifier"
    inputs, _ = arrays_of(folder)
    model: Any = load_checkpoint(folder)
    before = outputs_of(model, inputs)["logits"]
    rng = np.random.default_rng(5)
    block = model.get_layer("block_0")
    for layer in (
        model.get_layer("token_embedding"),
        block.feed_forward.expand,
        model.get_layer("classifier"),
    ):
        layer.enable_lora(2)
        for variable in layer.trainable_variables:
            variable.assign(rng.normal(0, 0.3, variable.shape))
    adapted = outputs_of(model, inputs)["logits"]
    assert np.abs(adapted - before).max() > 0.1
    save_checkpoint(model, tmp_path)
    merged = outputs_of(load_checkpoint(tmp_path), inputs)["logits"]
    np.testing.assert_allclose(merged, adapted, rtol=1e-5, atol=1e-5)


# Live: the libraries themselves.


NEEDS = ("torch", "torchvision", "timm", "segmentation_models_pytorch", "transformers")


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*CASES, "own_timm_hybrid", "own_smp_unet_resnet34"])
def test_live(name, tmp_path):
    """Saved by the library, read by us; written by us, read by the library."""
    cases = run_script("own_references", NEEDS).CASES
    assert {each for each in cases if cases[each].is_committed} == set(CASES)
    case = cases[name]
    import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.

    torch.manual_seed(0)
    theirs = case.make()
    case.save(theirs, tmp_path / "theirs")
    arrays: dict[str, Any] = case.run(theirs)
    if case.is_committed:
        same_arrays(CHECKPOINTS / name / "expected.npz", arrays, LIKE["atol"])
    np.savez(tmp_path / "theirs" / "expected.npz", **arrays)
    inputs, expected = arrays_of(tmp_path / "theirs")
    model = load_checkpoint(tmp_path / "theirs")
    compare(outputs_of(model, inputs), expected, inputs, **LIKE)
    save_checkpoint(model, tmp_path / "ours", library=case.library)
    if name == "own_smp_unet":
        return  # The library has no such sizes.
    again = case.run(case.load(tmp_path / "ours"))
    for key, array in expected.items():
        np.testing.assert_array_equal(again[f"output_{key}"], array)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_a_pipeline_of_transformers_truncates_by_our_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    from keras_attn.data.text.wordpiece import BERT_TOKENS, WordPieceTokenizer

    letters = "abcdefghijklmnopqrstuvwx"
    tokenizer = WordPieceTokenizer([*BERT_TOKENS.values(), *letters])
    tokenizer.max_length = 17
    model: Any = load_checkpoint(CHECKPOINTS / "own_distilbert_classifier")
    save_checkpoint(model, tmp_path)
    tokenizer.save(tmp_path)
    classify: Any = transformers.pipeline("text-classification", str(tmp_path))
    long = "a b c d e f g h " * 9
    (found,) = classify([long], truncation=True)
    inputs = tokenizer.encode_batch([long])
    assert inputs["token_ids"].shape == (1, 17)
    logits = outputs_of(model, inputs)["logits"][0]
    probabilities = np.exp(logits) / np.exp(logits).sum()
    assert found["label"] == model.class_names[probabilities.argmax()]
    np.testing.assert_allclose(found["score"], probabilities.max(), rtol=1e-4)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ["vit_classifier", "swin_classifier"])
def test_transformers_writes_the_names_of_modules(case, tmp_path):
    """transformers 5: `save_pretrained(…, save_original_format=False)`."""
    pytest.importorskip("torch", reason="PyTorch is not installed; `pip install torch`")
    transformers = pytest.importorskip("transformers")
    name = config_of(CHECKPOINTS / case)["architectures"][0]
    theirs = getattr(transformers, name).from_pretrained(CHECKPOINTS / case)
    theirs.save_pretrained(tmp_path, save_original_format=False)
    assert any("q_proj" in key for key in tensors_of(tmp_path))
    inputs, expected = arrays_of(CHECKPOINTS / case)
    compare(outputs_of(load_checkpoint(tmp_path), inputs), expected, inputs, **LIKE)
